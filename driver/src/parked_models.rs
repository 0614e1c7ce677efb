//! Device models of this process whose functions are parked.
//!
//! A model cannot be passed to another process. In its place, the snapshot of a function has the descriptor of a file
//! without contents (memfd_create(2)), and the table here says which model the file stands for. So the function is
//! resumed in the process that parked it, with the same steps and checks as in another one.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::descriptors::{Given, Parting};
use crate::device::Device;
use crate::error::{ParkError, ResumeError};
use crate::snapshot::DescriptorSnapshot;

/// Name of the descriptor.
const NAME: &str = "model";

/// Models by the file that stands for them: the numbers of its file system and of its inode. A model has at most one
/// file: that of its last snapshot.
static MODELS: Mutex<BTreeMap<(u64, u64), Weak<dyn Device>>> = Mutex::new(BTreeMap::new());

/// Makes the file for a model whose function is parked.
pub(crate) fn add(
    model: &Arc<dyn Device>,
    parting: &mut Parting<'_>,
) -> Result<DescriptorSnapshot, ParkError> {
    let file = memfd_create("model", MFdFlags::MFD_CLOEXEC);
    let file = file.map_err(|errno| parting.failed(NAME, errno.into()))?;
    let described = parting.add(NAME, file.as_fd())?;
    let mut models = MODELS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_other = |it: &Weak<dyn Device>| !std::ptr::addr_eq(it.as_ptr(), Arc::as_ptr(model));
    models.retain(|_, it| it.strong_count() > 0 && is_other(it));
    models.insert((described.device, described.inode), Arc::downgrade(model));
    Ok(described)
}

/// Returns the model of a snapshot.
pub(crate) fn find(
    snapshot: &DescriptorSnapshot,
    given: &mut Given<'_>,
) -> Result<Arc<dyn Device>, ResumeError> {
    let _same_file = given.duplicate(NAME, snapshot)?;
    let models = MODELS.lock().unwrap_or_else(PoisonError::into_inner);
    let model = models.get(&(snapshot.device, snapshot.inode));
    model.and_then(Weak::upgrade).ok_or_else(|| {
        let what = "it stands for no model of this process, or not for its last snapshot";
        given.unfit(NAME, what.to_owned())
    })
}
