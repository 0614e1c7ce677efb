//! Device models of this process whose functions are parked.
//!
//! A model cannot be passed to another process. In its place, the snapshot of a function has the descriptor of a file
//! without contents (memfd_create(2)), and the table here says which model the file stands for. So the function is
//! resumed in the process that parked it, with the same steps and checks as in another one.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::descriptors::{Given, Parting};
use crate::device::Device;
use crate::error::{ParkError, ResumeError};
use crate::snapshot::DescriptorSnapshot;

/// Name of the descriptor.
const NAME: &str = "model";

/// A model and the file that stands for it.
type Entry = (Weak<dyn Device>, OwnedFd);

/// Models by their files: the numbers of the file system and of the inode.
static MODELS: Mutex<BTreeMap<(u64, u64), Entry>> = Mutex::new(BTreeMap::new());

fn is(model: &Arc<dyn Device>, (other, _): &Entry) -> bool {
    std::ptr::addr_eq(other.as_ptr(), Arc::as_ptr(model))
}

/// Adds the file of a model whose function is parked. As with other functions, it is the same for all snapshots until
/// the function is opened anew.
pub(crate) fn add(
    model: &Arc<dyn Device>,
    parting: &mut Parting<'_>,
) -> Result<DescriptorSnapshot, ParkError> {
    let mut models = MODELS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, file)) = models.values().find(|entry| is(model, entry)) {
        return parting.add(NAME, file.as_fd());
    }
    let file = memfd_create("model", MFdFlags::MFD_CLOEXEC);
    let file = file.map_err(|errno| parting.failed(NAME, errno.into()))?;
    let described = parting.add(NAME, file.as_fd())?;
    let entry = (Arc::downgrade(model), file);
    models.insert((described.device, described.inode), entry);
    Ok(described)
}

/// Removes the file of a model that is opened anew, and those of models that do not exist any more. Earlier snapshots
/// are refused then.
pub(crate) fn remove(model: &Arc<dyn Device>) {
    let mut models = MODELS.lock().unwrap_or_else(PoisonError::into_inner);
    models.retain(|_, entry| entry.0.strong_count() > 0 && !is(model, entry));
}

/// Returns the model of a snapshot.
pub(crate) fn find(
    snapshot: &DescriptorSnapshot,
    given: &mut Given<'_>,
) -> Result<Arc<dyn Device>, ResumeError> {
    let _same_file = given.duplicate(NAME, snapshot)?;
    let models = MODELS.lock().unwrap_or_else(PoisonError::into_inner);
    let model = models.get(&(snapshot.device, snapshot.inode));
    model.and_then(|(model, _)| model.upgrade()).ok_or_else(|| {
        let what = "it stands for no model of this process, or for one that was opened anew";
        given.unfit(NAME, what.to_owned())
    })
}
