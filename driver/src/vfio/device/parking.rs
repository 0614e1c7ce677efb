//! Handing over a function under VFIO from one process to another.
//!
//! The kernel's objects belong to open files, not to processes. A duplicate of the device's file prevents a reset of
//! the function, and the container's file keeps the mappings and the pinned pages. The device still signals the
//! eventfds, because the kernel has references to them. So the process that takes a function over only reads: the
//! group's status, the descriptions of the device and the IOMMU, and configuration space. It opens no device, and sets
//! no eventfd.
//!
//! fstat(2) does not distinguish containers from each other, nor device files. So the names of the descriptors have the
//! function's address. From Linux 6.18 on, the kernel reports the device of a device file, which is compared too.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vfio_bindings::bindings::vfio::{VFIO_GROUP_FLAGS_CONTAINER_SET, VFIO_GROUP_FLAGS_VIABLE};

use super::{UnsetContainerOnDrop, Vfio, configuration_space};
use crate::descriptors::{Given, Parting};
use crate::device::{COMMAND_MEMORY_SPACE, CONFIG_COMMAND};
use crate::error::{FunctionError, ParkError, ResumeError};
use crate::interrupt::Notices;
use crate::snapshot::VfioSnapshot;
use crate::vfio::container::{Container, Opening};
use crate::vfio::error::VfioError;
use crate::vfio::group::{PciAddress, Roots};
use crate::vfio::requests::DeviceRequests;
use crate::vfio::sys::{Request, System};

/// Files of a function that is taken over.
pub(crate) struct Files {
    container: OwnedFd,
    group: OwnedFd,
    device: OwnedFd,
}

impl Files {
    /// Finds the files of a snapshot.
    pub(crate) fn of(snapshot: &VfioSnapshot, given: &mut Given<'_>) -> Result<Self, ResumeError> {
        let address = snapshot.address.as_str();
        let is_canonical = address
            .parse::<PciAddress>()
            .is_ok_and(|parsed| parsed.to_string() == address);
        if !is_canonical {
            return Err(ResumeError::Snapshot {
                name: address.to_owned(),
                what: format!("{address:?} is no full PCI address"),
            });
        }
        let name = |what| file_name(what, address);
        Ok(Self {
            container: given.duplicate(&name("container"), &snapshot.container)?,
            group: given.duplicate(&name("group"), &snapshot.group)?,
            device: given.duplicate(&name("device"), &snapshot.device)?,
        })
    }
}

/// Returns the name of the descriptor of a function's file: at most 26 characters.
fn file_name(what: &str, address: &str) -> String {
    format!("{what}-{}", address.replace([':', '.'], "-"))
}

impl Vfio {
    /// Reads the IOMMU's capabilities again: after a group has left the container, more addresses may be translatable.
    pub(crate) fn ask_again(&self) -> Result<(), VfioError> {
        self.container().ask_again()
    }

    /// Describes the function for another process, with a duplicate of each file.
    pub(crate) fn snapshot(&self, parting: &mut Parting<'_>) -> Result<VfioSnapshot, ParkError> {
        let container = self.container();
        let mappings_left = container.ask_mappings_left();
        let mappings_left = mappings_left.map_err(|error| ParkError::Query {
            name: self.address.clone(),
            error: Box::new(FunctionError::Vfio(Box::new(error))),
        })?;
        let name = |what| file_name(what, &self.address);
        Ok(VfioSnapshot {
            address: self.address.clone(),
            container: parting.add(&name("container"), container.fd())?,
            group: parting.add(&name("group"), self.group.as_fd())?,
            device: parting.add(&name("device"), self.device.as_fd())?,
            group_leaves: self.unset_container.is_some(),
            // PANIC: `DeviceRequests::vectors` has limited the number.
            vector_count: u32::try_from(self.vectors).expect("at most 2048 vectors"),
            mappings_left,
            mappings_at_first: container.iommu().available,
        })
    }

    /// Ends this process's use of the function: dropping it does not remove the group from its container.
    pub(crate) fn part(&self) {
        if let Some(guard) = &self.unset_container {
            guard.parted.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the function over.
    pub(crate) fn adopt(&self) {
        if let Some(guard) = &self.unset_container {
            guard.parted.store(false, Ordering::Relaxed);
        }
    }

    /// Takes over a function that another process has parked, and that has `mappings` mappings. Nothing is written to
    /// the device. Dropping the result has no effect on the function before [`adopt`](Self::adopt).
    pub(crate) fn resume(
        (system, roots): (Arc<dyn System>, &Roots),
        snapshot: &VfioSnapshot,
        mappings: usize,
        files: Files,
        notices: Notices,
    ) -> Result<Self, ResumeError> {
        let address = snapshot.address.as_str();
        let changed = |what: String| {
            Err(ResumeError::Changed {
                name: address.to_owned(),
                what,
            })
        };
        if let Some(path) = system.device_path(files.device.as_fd())
            && path.file_name() != Some(OsStr::new(address))
        {
            return changed(format!("the device's file is that of {}", path.display()));
        }
        if let Some(made) = snapshot.mappings_made().filter(|&it| it != mappings as u64) {
            return changed(format!(
                "its container has {made} mappings, and the snapshot has {mappings}"
            ));
        }
        let unanswered = |error| ResumeError::Query {
            name: address.to_owned(),
            error: Box::new(FunctionError::Vfio(Box::new(error))),
        };
        let vfio = Self::adopted((system, roots), snapshot, files, notices);
        let mut vfio = vfio.map_err(unanswered)?;
        let (vectors, expected) = (vfio.vectors, snapshot.vector_count);
        if vectors != expected as usize {
            return changed(format!("{vectors} vectors, and there were {expected}"));
        }
        let left = vfio.container().ask_mappings_left().map_err(unanswered)?;
        let expected = snapshot.mappings_left;
        if left != expected {
            let number =
                |it: Option<u32>| it.map_or("not reported".to_owned(), |it| it.to_string());
            return changed(format!(
                "the number of mappings that can still be made in its container is {}, and was {}",
                number(left),
                number(expected)
            ));
        }
        vfio.unset_container = snapshot.group_leaves.then(|| UnsetContainerOnDrop {
            address: vfio.address.clone(),
            system: Arc::clone(&vfio.system),
            group: Arc::clone(&vfio.group),
            parted: AtomicBool::new(true),
        });
        Ok(vfio)
    }

    /// Makes the function from its files, without writing to it.
    fn adopted(
        (system, roots): (Arc<dyn System>, &Roots),
        snapshot: &VfioSnapshot,
        files: Files,
        notices: Notices,
    ) -> Result<Self, VfioError> {
        let address = snapshot.address.clone();
        let ask = DeviceRequests {
            address: &address,
            system: &*system,
        };
        ask.check_container(files.container.as_fd())?;
        let flags = ask.group_flags(files.group.as_fd())?;
        let wanted = VFIO_GROUP_FLAGS_VIABLE | VFIO_GROUP_FLAGS_CONTAINER_SET;
        if flags & wanted != wanted {
            let what = format!("flags {flags:#x}: the group is not viable, or in no container");
            return Err(ask.unusable(Request::GroupGetStatus, what));
        }
        let config = configuration_space(&address, &system, files.device)?;
        let device = Arc::clone(&config.device);
        let mut command = [0];
        config.read(CONFIG_COMMAND.into(), &mut command)?;
        if command[0] & COMMAND_MEMORY_SPACE == 0 {
            let what = format!("command register {:#x}: memory decoding is off", command[0]);
            return Err(ask.unusable(Request::DeviceGetRegionInfo, what));
        }
        let vectors = ask.vectors(device.as_fd())?;
        let container = Container::new(&address, Arc::clone(&system), files.container)?;
        container.set_available(snapshot.mappings_at_first);
        let container = Arc::new(container);
        let group = Arc::new(files.group);
        // A group's file can be open only once, so other functions of the group use this one. sysfs has the group's
        // number.
        if let Some(number) = roots.group(&address) {
            container.joined(number, &group);
        }
        let opening = Opening::of(&address, &container)?;
        Ok(Self {
            config,
            vectors,
            notices,
            device,
            unset_container: None,
            group,
            opening,
            system: Arc::clone(&system),
            address: address.clone(),
        })
    }
}
