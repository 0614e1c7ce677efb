//! A function under VFIO, from the first open to the last close.
//!
//! The order of the steps is given by the kernel (`Documentation/driver-api/vfio.rst`): the group joins the container,
//! the container gets its IOMMU, and only then the group provides the device. BARs are mapped with memory decoding
//! enabled, because an access while it is disabled raises SIGBUS. On close, bus mastering is disabled first, so that
//! no DMA is in flight, and then the interrupts. Mappings are removed explicitly, because a BAR that is still in use
//! keeps the group in the container. Then the device, the group and the container are closed, in that order. A BAR that
//! is still mapped keeps the device open until it is unmapped. The kernel resets the function when the last descriptor
//! is closed.
//!
//! A function can be handed over to another process ([`parking`]). Then this process takes none of the steps of a
//! close.
//!
//! A function can join the container of another one instead of getting a new container ([`super::container`]).
//!
//! A group's file that was handed in may outlive the function: the process that provided it keeps it open, so the group
//! stays in its container, even with the mappings of a process that was killed. So the group is removed from the
//! container when the function is closed, and again before it is opened, in case the previous process was killed (Linux
//! `vfio_group_ioctl_unset_container`, which refuses while a device of the group is open).

use core::mem::offset_of;
use std::fs::File;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_GROUP_FLAGS_CONTAINER_SET, VFIO_GROUP_FLAGS_VIABLE,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_PCI_REQ_IRQ_INDEX, VFIO_TYPE1v2_IOMMU, vfio_device_info,
};

use super::config::Window;
use super::container::{Container, Opening};
use super::error::{VfioError, container_advice, group_advice};
use super::group::{PciAddress, Roots};
use super::requests::DeviceRequests;
use super::sys::{Argument, Message, Request, System};
use crate::device::{COMMAND_BUS_MASTER, COMMAND_MEMORY_SPACE, CONFIG_COMMAND};
use crate::interrupt::{Interrupt, Notices};
use crate::memory::SharedMemory;

mod parking;

pub(crate) use parking::Files;

/// Memory of a BAR, and the `Window` for accesses to its unmapped parts, if there are any.
pub(crate) type BarParts = (SharedMemory, Option<Arc<Window>>);

/// Descriptors that a more privileged process has opened, so that the driver's process needs no privilege.
///
/// Only opening `/dev/vfio/N` needs a privilege, and opening `/dev/vfio/vfio` where its mode is restricted. Later steps
/// need none, so these files suffice. A process that already has the device open must hand in its file as well.
#[derive(Debug)]
pub struct VfioFds {
    /// `/dev/vfio/vfio`, opened for this function alone. If `None`, this process opens it; all users may usually do so.
    pub container: Option<OwnedFd>,
    /// `/dev/vfio/N`, N being the number of the function's IOMMU group.
    pub group: OwnedFd,
    /// Device file of the function, if the group has already provided it. The group must then be in the container, and
    /// the container must have its TYPE1v2 IOMMU.
    pub device: Option<OwnedFd>,
}

/// Opens a device file of VFIO.
fn open(
    address: &str,
    system: &dyn System,
    path: PathBuf,
    advice: &dyn Fn(Errno, &Path) -> String,
) -> Result<OwnedFd, VfioError> {
    system.open(&path).map_err(|errno| VfioError::Open {
        address: address.to_owned(),
        advice: advice(errno, &path),
        path,
        errno,
    })
}

/// Checks that a device is a PCI function, and returns its configuration space, which has the device's file.
fn configuration_space(
    address: &str,
    system: &Arc<dyn System>,
    device: OwnedFd,
) -> Result<Window, VfioError> {
    let ask = DeviceRequests {
        address,
        system: &**system,
    };
    let device = Arc::new(File::from(device));
    let question = Message::new(size_of::<vfio_device_info>());
    let info = ask.message(device.as_fd(), Request::DeviceGetInfo, question)?;
    let flags: u32 = info.field(offset_of!(vfio_device_info, flags));
    if flags & VFIO_DEVICE_FLAGS_PCI == 0 {
        let what = format!("flags {flags:#x}: not a PCI device");
        return Err(ask.unusable(Request::DeviceGetInfo, what));
    }
    let region = ask.region(device.as_fd(), VFIO_PCI_CONFIG_REGION_INDEX)?;
    Ok(Window {
        address: address.to_owned(),
        system: Arc::clone(system),
        device,
        region,
    })
}

/// A guard that removes a handed-in group from its container on drop.
struct UnsetContainerOnDrop {
    address: String,
    system: Arc<dyn System>,
    group: Arc<OwnedFd>,
    /// True once another process has the function, and removes the group.
    parted: AtomicBool,
}

impl Drop for UnsetContainerOnDrop {
    fn drop(&mut self) {
        if self.parted.load(Ordering::Relaxed) {
            return;
        }
        let ask = DeviceRequests {
            address: &self.address,
            system: &*self.system,
        };
        if let Err(error) = ask.plain(
            self.group.as_fd(),
            Request::GroupUnsetContainer,
            Argument::None,
        ) {
            // A BAR is still in use, or another process has the device open. The next open of the group tries again.
            tracing::debug!("closing: {error}");
        }
    }
}

/// A function under VFIO.
pub(crate) struct Vfio {
    address: String,
    system: Arc<dyn System>,
    config: Window,
    vectors: usize,
    notices: Notices,
    // The following fields are dropped in this order.
    device: Arc<File>,
    /// Removes a group that was handed in from the container.
    unset_container: Option<UnsetContainerOnDrop>,
    group: Arc<OwnedFd>,
    /// Keeps the container open.
    opening: Opening,
}

impl Vfio {
    /// Opens a function by its address.
    pub(crate) fn open(
        address: PciAddress,
        roots: &Roots,
        system: Arc<dyn System>,
    ) -> Result<Self, VfioError> {
        let number = roots.viable_group(address)?;
        let address = address.to_string();
        let container = Self::open_container(&address, roots, &*system)?;
        let path = roots.dev.join(number.to_string());
        let group = open(&address, &*system, path, &group_advice)?;

        let vfio = Self::of_files(address, roots, system, container, group, None)?;
        vfio.container().joined(number, &vfio.group);
        Ok(vfio)
    }

    fn open_container(
        address: &str,
        roots: &Roots,
        system: &dyn System,
    ) -> Result<OwnedFd, VfioError> {
        let path = roots.dev.join("vfio");
        open(address, system, path, &|errno, _| {
            container_advice(errno).to_owned()
        })
    }

    /// Opens a function in a container that has an IOMMU and open functions already.
    pub(crate) fn join(
        address: PciAddress,
        roots: &Roots,
        container: &Arc<Container>,
    ) -> Result<Self, VfioError> {
        let number = roots.viable_group(address)?;
        let address = address.to_string();
        let opening = Opening::of(&address, container)?;
        let system = Arc::clone(&container.system);
        let ask = DeviceRequests {
            address: &address,
            system: &*system,
        };
        let group = match container.group(number) {
            Some(group) => group,
            None => {
                let path = roots.dev.join(number.to_string());
                let group = open(&address, &*system, path, &group_advice)?;
                if ask.group_flags(group.as_fd())? & VFIO_GROUP_FLAGS_VIABLE == 0 {
                    return Err(roots.not_viable(&address));
                }
                let joined = Argument::Fd(container.fd());
                ask.plain(group.as_fd(), Request::GroupSetContainer, joined)?;
                Arc::new(group)
            }
        };
        let device = ask.device(group.as_fd())?;
        container.ask_again()?;
        container.joined(number, &group);
        Self::driven(address.clone(), system, opening, group, device)
    }

    /// Opens a function from descriptors that are already open: the group's, and possibly the container's and the
    /// device's.
    pub(crate) fn from_fds(
        address: String,
        roots: &Roots,
        system: Arc<dyn System>,
        fds: VfioFds,
    ) -> Result<Self, VfioError> {
        let VfioFds {
            container,
            group,
            device,
        } = fds;
        let container = match container {
            Some(container) => container,
            None => Self::open_container(&address, roots, &*system)?,
        };
        // If the device is handed in, its group is already in a container, and this process must not remove it.
        let is_ours = device.is_none();
        let mut vfio = Self::of_files(
            address.clone(),
            roots,
            Arc::clone(&system),
            container,
            group,
            device,
        )?;
        vfio.unset_container = is_ours.then(|| UnsetContainerOnDrop {
            address,
            system,
            group: Arc::clone(&vfio.group),
            parted: AtomicBool::new(false),
        });
        Ok(vfio)
    }

    fn of_files(
        address: String,
        roots: &Roots,
        system: Arc<dyn System>,
        container: OwnedFd,
        group: OwnedFd,
        device: Option<OwnedFd>,
    ) -> Result<Self, VfioError> {
        let ask = DeviceRequests {
            address: &address,
            system: &*system,
        };
        ask.check_container(container.as_fd())?;
        let device = match device {
            Some(device) => device,
            None => Self::device_of_group(&ask, roots, container.as_fd(), group.as_fd())?,
        };
        let container = Arc::new(Container::new(&address, Arc::clone(&system), container)?);
        let opening = Opening::of(&address, &container)?;
        Self::driven(address.clone(), system, opening, Arc::new(group), device)
    }

    /// Prepares a device for its driver: checks that it is a PCI device, enables memory decoding, reads its number of
    /// MSI-X vectors, and sets eventfds for its notices.
    fn driven(
        address: String,
        system: Arc<dyn System>,
        opening: Opening,
        group: Arc<OwnedFd>,
        device: OwnedFd,
    ) -> Result<Self, VfioError> {
        let ask = DeviceRequests {
            address: &address,
            system: &*system,
        };
        let config = configuration_space(&address, &system, device)?;
        let device = Arc::clone(&config.device);
        let mut command = [0];
        config.read(CONFIG_COMMAND.into(), &mut command)?;
        config.write(CONFIG_COMMAND.into(), &[command[0] | COMMAND_MEMORY_SPACE])?;
        let vectors = ask.vectors(device.as_fd())?;
        let notices = Notices {
            error: ask.event(device.as_fd(), VFIO_PCI_ERR_IRQ_INDEX),
            requested: ask.event(device.as_fd(), VFIO_PCI_REQ_IRQ_INDEX),
        };
        Ok(Self {
            address,
            system,
            config,
            vectors,
            notices,
            device,
            unset_container: None,
            group,
            opening,
        })
    }

    /// Puts the group into the container, sets the container's IOMMU, and gets the device.
    fn device_of_group(
        ask: &DeviceRequests<'_>,
        roots: &Roots,
        container: BorrowedFd<'_>,
        group: BorrowedFd<'_>,
    ) -> Result<OwnedFd, VfioError> {
        let flags = ask.group_flags(group)?;
        if flags & VFIO_GROUP_FLAGS_VIABLE == 0 {
            return Err(roots.not_viable(ask.address));
        }
        if flags & VFIO_GROUP_FLAGS_CONTAINER_SET != 0 {
            // A previous process left the group in a container, together with mappings that are obsolete.
            ask.plain(group, Request::GroupUnsetContainer, Argument::None)?;
        }
        ask.plain(group, Request::GroupSetContainer, Argument::Fd(container))?;
        let kind = Argument::Number(VFIO_TYPE1v2_IOMMU);
        ask.plain(container, Request::SetIommu, kind)?;
        ask.device(group)
    }

    fn ask(&self) -> DeviceRequests<'_> {
        DeviceRequests {
            address: &self.address,
            system: &*self.system,
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) const fn config(&self) -> &Window {
        &self.config
    }

    pub(crate) const fn vectors(&self) -> usize {
        self.vectors
    }

    /// Returns the eventfds through which the kernel reports errors of the device and removal requests.
    pub(crate) fn notices(&self) -> Notices {
        self.notices.clone()
    }

    /// Returns the container that the function is in.
    pub(crate) fn container(&self) -> &Arc<Container> {
        self.opening.container()
    }

    pub(crate) fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.container().iommu().ranges
    }

    /// Returns a BAR's memory, mapped where possible, and a `Window` for the unmapped rest, if any. Returns `None` if
    /// there is no such BAR.
    pub(crate) fn bar(&self, index: u8) -> Result<Option<BarParts>, VfioError> {
        if index > 5 {
            return Ok(None);
        }
        let region = self.ask().region(self.device.as_fd(), u32::from(index))?;
        if region.bytes == 0 {
            return Ok(None);
        }
        let failed = |error| VfioError::Map {
            address: self.address.clone(),
            index,
            error,
        };
        let bytes = usize::try_from(region.bytes)
            .map_err(|_| failed(crate::error::MemoryError::TooLarge { bytes: usize::MAX }))?;
        let memory = self
            .system
            .map(self.device.as_fd(), bytes, &region.areas)
            .map_err(failed)?;
        let window = (!region.is_mapped(0, bytes)).then(|| {
            Arc::new(Window {
                address: self.address.clone(),
                system: Arc::clone(&self.system),
                device: Arc::clone(&self.device),
                region,
            })
        });
        Ok(Some((memory, window)))
    }

    pub(crate) fn reset(&self) -> Result<(), VfioError> {
        self.ask().reset(self.device.as_fd())
    }

    /// Sets the eventfds of the MSI-X vectors. Returns the number of vectors that the kernel accepted.
    pub(crate) fn set_interrupts(&self, vectors: &[Interrupt]) -> Result<usize, VfioError> {
        if vectors.is_empty() {
            return Ok(0);
        }
        self.ask()
            .set_irqs(self.device.as_fd(), VFIO_PCI_MSIX_IRQ_INDEX, vectors)
    }
}

impl Vfio {
    /// Disables bus mastering, or resets the device if that fails, so that no DMA is in flight, and disables the
    /// interrupts. The caller removes the mappings next.
    pub(crate) fn disable(&self) {
        let mut command = [0];
        let quiet = self
            .config
            .read(CONFIG_COMMAND.into(), &mut command)
            .and_then(|()| {
                let off = [command[0] & !COMMAND_BUS_MASTER];
                self.config.write(CONFIG_COMMAND.into(), &off)
            });
        if let Err(error) = quiet {
            // A reset stops DMA as well.
            let reset = self.reset();
            tracing::error!(?reset, "closing: {error}; reset instead");
        }
        let indices = [
            (VFIO_PCI_MSIX_IRQ_INDEX, self.vectors > 0),
            (VFIO_PCI_ERR_IRQ_INDEX, self.notices.error.is_some()),
            (VFIO_PCI_REQ_IRQ_INDEX, self.notices.requested.is_some()),
        ];
        for (index, _) in indices.into_iter().filter(|&(_, set)| set) {
            if let Err(error) = self.ask().set_irqs(self.device.as_fd(), index, &[]) {
                tracing::debug!("closing: {error}");
            }
        }
    }
}
