//! A function under VFIO, from the first open to the last close.
//!
//! Order matters, and is the kernel's (`Documentation/driver-api/vfio.rst`): the group joins the container, the
//! container gets its IOMMU, and only then is the group asked for the device. BARs are mapped with memory decoding on,
//! because touching them while it is off is a SIGBUS. Down again: no bus mastering, so that nothing is in flight; no
//! interrupts; then the device, the group and the container are closed, in that order. A BAR that is still
//! mapped keeps the device open until it goes. The kernel resets the function when the last descriptor is closed.
//!
//! DMA memory is kept here from mapping to unmapping, so that its addresses are not used for anything else meanwhile.

use core::mem::offset_of;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use vfio_bindings::bindings::vfio::{
    VFIO_DEVICE_FLAGS_PCI, VFIO_GROUP_FLAGS_CONTAINER_SET, VFIO_GROUP_FLAGS_VIABLE,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_PCI_REQ_IRQ_INDEX, VFIO_TYPE1v2_IOMMU, vfio_device_info, vfio_group_status,
};

use super::ask::Asking;
use super::config::Window;
use super::dma::{Iommu, map_message, unmap_message, unmapped_bytes};
use super::error::{VfioError, advice, container_advice, group_advice};
use super::group::{PciAddress, Roots};
use super::sys::{Argument, Message, Request, System};
use crate::interrupt::{Interrupt, Notices};
use crate::memory::SharedMemory;

/// Command register of configuration space, and two of its bits.
const CONFIG_COMMAND: u64 = 0x04;
const COMMAND_MEMORY_SPACE: u8 = 1 << 1;
const COMMAND_BUS_MASTER: u8 = 1 << 2;

/// A BAR's memory, and the way to the parts of it that are not mapped, if there are such.
pub(crate) type BarParts = (SharedMemory, Option<Arc<Window>>);

/// What somebody with more rights has opened, so that whoever drives the function needs none.
///
/// Opening `/dev/vfio/vfio` and `/dev/vfio/N` is all that takes rights; what follows does not. So the two files are
/// enough; whoever has the device open already hands that in as well.
#[derive(Debug)]
pub struct VfioFds {
    /// `/dev/vfio/vfio`.
    pub container: OwnedFd,
    /// `/dev/vfio/N`, N being the number of the function's IOMMU group.
    pub group: OwnedFd,
    /// What the group gave for the function, if it was asked already. The group is then in the container, and the
    /// container has its TYPE1v2 IOMMU.
    pub device: Option<OwnedFd>,
}

/// A function under VFIO.
pub(crate) struct Vfio {
    address: String,
    system: Arc<dyn System>,
    config: Window,
    iommu: Iommu,
    vectors: usize,
    notices: Notices,
    /// What the device reaches, by I/O address.
    mapped: Mutex<BTreeMap<u64, (SharedMemory, usize)>>,
    // Fields drop in this order.
    device: Arc<File>,
    _group: OwnedFd,
    container: OwnedFd,
}

impl Vfio {
    /// Opens a function by its address.
    pub(crate) fn open(
        address: PciAddress,
        roots: &Roots,
        system: Arc<dyn System>,
    ) -> Result<Self, VfioError> {
        let group_number = roots.viable_group(address)?;
        let address = address.to_string();
        let open = |path: std::path::PathBuf, advice: &dyn Fn(Errno) -> String| {
            system.open(&path).map_err(|errno| VfioError::Open {
                address: address.clone(),
                advice: advice(errno),
                path,
                errno,
            })
        };
        let container = open(roots.dev.join("vfio"), &|errno| {
            container_advice(errno).to_owned()
        })?;
        let path = roots.dev.join(group_number.to_string());
        let group = open(path.clone(), &|errno| group_advice(errno, &path))?;

        let fds = VfioFds {
            container,
            group,
            device: None,
        };
        Self::from_fds(address, roots, system, fds)
    }

    /// Takes over what was opened: the group, or the device itself.
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
        let ask = Asking {
            address: &address,
            system: &*system,
        };
        ask.check_container(container.as_fd())?;
        let device = match device {
            Some(device) => device,
            None => Self::device_of_group(&ask, roots, container.as_fd(), group.as_fd())?,
        };
        let device = Arc::new(File::from(device));
        let info = ask.message(
            device.as_fd(),
            Request::DeviceGetInfo,
            Message::new(size_of::<vfio_device_info>()),
        )?;
        let flags: u32 = info.field(offset_of!(vfio_device_info, flags));
        if flags & VFIO_DEVICE_FLAGS_PCI == 0 {
            let what = format!("flags {flags:#x}: not a PCI device");
            return Err(ask.unusable(Request::DeviceGetInfo, what));
        }
        let iommu = ask.iommu(container.as_fd())?;
        let region = ask.region(device.as_fd(), VFIO_PCI_CONFIG_REGION_INDEX)?;
        let config = Window {
            address: address.clone(),
            system: Arc::clone(&system),
            device: Arc::clone(&device),
            region,
        };
        let mut command = [0];
        config.read(CONFIG_COMMAND, &mut command)?;
        config.write(CONFIG_COMMAND, &[command[0] | COMMAND_MEMORY_SPACE])?;
        let vectors = ask.vectors(device.as_fd())?;
        let notices = Notices {
            error: ask.event(device.as_fd(), VFIO_PCI_ERR_IRQ_INDEX),
            requested: ask.event(device.as_fd(), VFIO_PCI_REQ_IRQ_INDEX),
        };
        Ok(Self {
            address,
            system,
            config,
            iommu,
            vectors,
            notices,
            mapped: Mutex::default(),
            device,
            _group: group,
            container,
        })
    }

    /// Puts the group into the container, unless it is there already, gives that its IOMMU, and asks for the device.
    fn device_of_group(
        ask: &Asking<'_>,
        roots: &Roots,
        container: BorrowedFd<'_>,
        group: BorrowedFd<'_>,
    ) -> Result<OwnedFd, VfioError> {
        let status = ask.message(
            group,
            Request::GroupGetStatus,
            Message::new(size_of::<vfio_group_status>()),
        )?;
        let flags: u32 = status.field(offset_of!(vfio_group_status, flags));
        if flags & VFIO_GROUP_FLAGS_VIABLE == 0 {
            return Err(roots.not_viable(ask.address));
        }
        if flags & VFIO_GROUP_FLAGS_CONTAINER_SET == 0 {
            ask.plain(group, Request::GroupSetContainer, Argument::Fd(container))?;
            let kind = Argument::Number(VFIO_TYPE1v2_IOMMU);
            ask.plain(container, Request::SetIommu, kind)?;
        }
        ask.system
            .device_fd(group, ask.address)
            .map_err(|errno| ask.refused(Request::GroupGetDeviceFd, String::new(), errno))
    }

    fn ask(&self) -> Asking<'_> {
        Asking {
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

    /// What the kernel says of the device.
    pub(crate) fn notices(&self) -> Notices {
        self.notices.clone()
    }

    /// Mappings that can still be made, if the kernel says how many.
    pub(crate) fn dma_mappings_left(&self) -> Option<u32> {
        self.ask().iommu(self.container.as_fd()).ok()?.available
    }

    pub(crate) fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.iommu.ranges.clone()
    }

    /// A BAR, mapped where it can be; with it the way to the rest, if there is a rest. `None`: there is no such BAR.
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
        self.ask()
            .plain(self.device.as_fd(), Request::DeviceReset, Argument::None)
            .map(|_| ())
    }

    /// Hands MSI-X vectors to the kernel; how many of them it took.
    pub(crate) fn set_interrupts(&self, vectors: &[Interrupt]) -> Result<usize, VfioError> {
        if vectors.is_empty() {
            return Ok(0);
        }
        self.ask()
            .set_irqs(self.device.as_fd(), VFIO_PCI_MSIX_IRQ_INDEX, vectors)
    }

    pub(crate) fn dma_map(
        &self,
        iova: u64,
        memory: &SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), VfioError> {
        let part = memory.part(offset, bytes);
        let address = part.address() as u64;
        let mut message = map_message(address, iova, bytes as u64);
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let result = self.system.ioctl(
            self.container.as_fd(),
            Request::IommuMapDma,
            Argument::Message(&mut message),
        );
        match result {
            Ok(_) => {
                mapped.insert(iova, (part, bytes));
                Ok(())
            }
            Err(errno) => {
                drop(mapped);
                Err(self.map_refused(iova, address, bytes, errno))
            }
        }
    }

    /// Why a mapping was refused; two of the reasons are limits, which are looked up for the text.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "errno has more values than VFIO has uses for"
    )]
    fn map_refused(&self, iova: u64, address: u64, bytes: usize, errno: Errno) -> VfioError {
        let request = Request::IommuMapDma;
        let advice = match errno {
            Errno::ENOMEM => self.memory_advice(bytes as u64),
            Errno::ENOSPC => {
                let told = |count: Option<u32>| {
                    count.map_or_else(|| "an unknown number".to_owned(), |count| count.to_string())
                };
                format!(
                    "{} mappings are left of {}: raise dma_entry_limit of vfio_iommu_type1 (/sys/module/vfio_iommu_type1/parameters)",
                    told(self.dma_mappings_left()),
                    told(self.iommu.available),
                )
            }
            Errno::EINVAL => format!(
                "{}; they are {}, with pages of {:#x} bytes",
                advice(request, errno, &self.address),
                self.iommu.ranges_in_words(),
                self.iommu.page_bytes
            ),
            _ => advice(request, errno, &self.address),
        };
        VfioError::Refused {
            address: self.address.clone(),
            request: request.name(),
            detail: format!(" of {bytes:#x} bytes at {address:#x} as IOVA {iova:#x}"),
            errno,
            advice,
        }
    }

    /// What to do about memory that could not be pinned: `bytes` more than is locked now.
    fn memory_advice(&self, bytes: u64) -> String {
        let (limit, locked) = self.system.locked_memory();
        let needed = locked.saturating_add(bytes);
        match limit {
            Some(limit) if limit < needed => format!(
                "{locked} bytes are locked, and {bytes} more need a limit of at least {needed}; it is {limit}: raise it with ulimit -l {}, LimitMEMLOCK= or limits.conf (memlock)",
                needed.div_ceil(1024)
            ),
            Some(_) | None => format!(
                "the limit of locked memory allows {needed} bytes, so it is memory itself that is short: for the pages, or for the IOMMU's tables (see dmesg)"
            ),
        }
    }

    /// Takes back one mapping. The memory is let go of only when the kernel says that all of it is unmapped.
    pub(crate) fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), VfioError> {
        let request = Request::IommuUnmapDma;
        let detail = || format!(" of {bytes:#x} bytes at IOVA {iova:#x}");
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        // The kernel would unmap several mappings in the range at once; ours are taken back one by one.
        if mapped.get(&iova).is_none_or(|&(_, known)| known != bytes) {
            let what = format!("nothing was mapped exactly there{}", detail());
            return Err(self.ask().unusable(request, what));
        }
        let mut message = unmap_message(iova, bytes as u64);
        self.system
            .ioctl(
                self.container.as_fd(),
                request,
                Argument::Message(&mut message),
            )
            .map_err(|errno| self.ask().refused(request, detail(), errno))?;
        let done = unmapped_bytes(&message);
        if done != bytes as u64 {
            let what = format!("only {done:#x} bytes were unmapped{}", detail());
            return Err(self.ask().unusable(request, what));
        }
        mapped.remove(&iova);
        Ok(())
    }
}

impl Drop for Vfio {
    fn drop(&mut self) {
        let mut command = [0];
        let quiet = self
            .config
            .read(CONFIG_COMMAND, &mut command)
            .and_then(|()| {
                self.config
                    .write(CONFIG_COMMAND, &[command[0] & !COMMAND_BUS_MASTER])
            });
        if let Err(error) = quiet {
            tracing::warn!("closing: {error}");
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
        // The container is about to go, and every mapping of it with it; until then the memory stays where it is. A
        // BAR somebody still holds keeps the group in the container, so they are taken back by hand.
        let left: Vec<(u64, usize)> = self
            .mapped
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|(&iova, &(_, bytes))| (iova, bytes))
            .collect();
        for (iova, bytes) in left {
            if let Err(error) = self.dma_unmap(iova, bytes) {
                tracing::error!("closing: {error}; the memory is leaked");
                let mapped = self
                    .mapped
                    .get_mut()
                    .unwrap_or_else(PoisonError::into_inner);
                std::mem::forget(mapped.remove(&iova));
            }
        }
    }
}
