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
    VFIO_API_VERSION, VFIO_DEVICE_FLAGS_PCI, VFIO_GROUP_FLAGS_VIABLE, VFIO_IRQ_INFO_EVENTFD,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_PCI_REQ_IRQ_INDEX, VFIO_TYPE1v2_IOMMU, vfio_device_info, vfio_group_status,
    vfio_iommu_type1_info, vfio_region_info,
};

use super::config::Window;
use super::dma::{Iommu, map_message, unmap_message, unmapped_bytes};
use super::error::{VfioError, advice, container_advice, group_advice};
use super::group::{PciAddress, Roots};
use super::irq::{info_answer, info_message, set_message};
use super::region::{LONGEST_ANSWER, Region};
use super::sys::{Argument, Message, Request, System};
use crate::interrupt::Interrupt;
use crate::memory::SharedMemory;

/// Command register of configuration space, and two of its bits.
const CONFIG_COMMAND: u64 = 0x04;
const COMMAND_MEMORY_SPACE: u8 = 1 << 1;
const COMMAND_BUS_MASTER: u8 = 1 << 2;

/// A BAR's memory, and the way to the parts of it that are not mapped, if there are such.
pub(crate) type BarParts = (SharedMemory, Option<Arc<Window>>);

/// A function under VFIO.
pub(crate) struct Vfio {
    address: String,
    system: Arc<dyn System>,
    config: Window,
    iommu: Iommu,
    vectors: usize,
    error: Option<Interrupt>,
    requested: Option<Interrupt>,
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

        let ask = Asking {
            address: &address,
            system: &*system,
        };
        ask.check_container(container.as_fd())?;
        let status = ask.message(
            group.as_fd(),
            Request::GroupGetStatus,
            Message::new(size_of::<vfio_group_status>()),
        )?;
        let flags: u32 = status.field(offset_of!(vfio_group_status, flags));
        if flags & VFIO_GROUP_FLAGS_VIABLE == 0 {
            let mut others = roots.in_the_way(group_number, &address);
            if others.is_empty() {
                others.push("the kernel says so (see dmesg)".to_owned());
            }
            return Err(VfioError::NotViable {
                group: group_number,
                others: others.join(", "),
                address,
            });
        }
        ask.plain(
            group.as_fd(),
            Request::GroupSetContainer,
            Argument::Fd(container.as_fd()),
        )?;
        ask.plain(
            container.as_fd(),
            Request::SetIommu,
            Argument::Number(VFIO_TYPE1v2_IOMMU),
        )?;
        let device = system
            .device_fd(group.as_fd(), &address)
            .map_err(|errno| ask.refused(Request::GroupGetDeviceFd, String::new(), errno))?;
        Self::from_fds(address, system, container, group, device)
    }

    /// Takes over a device whose group is in the container, with the IOMMU set.
    pub(crate) fn from_fds(
        address: String,
        system: Arc<dyn System>,
        container: OwnedFd,
        group: OwnedFd,
        device: OwnedFd,
    ) -> Result<Self, VfioError> {
        let ask = Asking {
            address: &address,
            system: &*system,
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
        let error = ask.event(device.as_fd(), VFIO_PCI_ERR_IRQ_INDEX);
        let requested = ask.event(device.as_fd(), VFIO_PCI_REQ_IRQ_INDEX);
        Ok(Self {
            address,
            system,
            config,
            iommu,
            vectors,
            error,
            requested,
            mapped: Mutex::default(),
            device,
            _group: group,
            container,
        })
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

    /// Signalled when the bus reports an uncorrectable error of the device.
    pub(crate) fn error(&self) -> Option<Interrupt> {
        self.error.clone()
    }

    /// Signalled when somebody wants the device back.
    pub(crate) fn requested(&self) -> Option<Interrupt> {
        self.requested.clone()
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

    /// Hands all MSI-X vectors to the kernel.
    pub(crate) fn set_interrupts(&self, vectors: &[Interrupt]) -> Result<(), VfioError> {
        if vectors.is_empty() {
            return Ok(());
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
            Errno::ENOMEM => {
                let (limit, locked) = self.system.locked_memory();
                let needed = locked.saturating_add(bytes as u64);
                let limit = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
                format!(
                    "{locked} bytes are locked, and {bytes} more need a limit of at least {needed}; it is {limit}: raise it with ulimit -l {}, LimitMEMLOCK= or limits.conf (memlock)",
                    needed.div_ceil(1024)
                )
            }
            Errno::ENOSPC => {
                let available = self.ask().iommu(self.container.as_fd()).ok();
                let available = available.and_then(|iommu| iommu.available);
                let left = available.map_or_else(|| "no".to_owned(), |count| count.to_string());
                let at_first = self
                    .iommu
                    .available
                    .map_or_else(|| "an unknown number".to_owned(), |count| count.to_string());
                format!(
                    "{left} mappings are left of {at_first}: raise dma_entry_limit of vfio_iommu_type1 (/sys/module/vfio_iommu_type1/parameters)"
                )
            }
            Errno::EINVAL => format!(
                "{}; they are {:#x?}, with pages of {:#x} bytes",
                advice(request, errno, &self.address),
                self.iommu.ranges,
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
            (VFIO_PCI_ERR_IRQ_INDEX, self.error.is_some()),
            (VFIO_PCI_REQ_IRQ_INDEX, self.requested.is_some()),
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

/// Requests in the name of a device.
struct Asking<'a> {
    address: &'a str,
    system: &'a dyn System,
}

impl Asking<'_> {
    fn refused(&self, request: Request, detail: String, errno: Errno) -> VfioError {
        VfioError::Refused {
            address: self.address.to_owned(),
            request: request.name(),
            detail,
            errno,
            advice: advice(request, errno, self.address),
        }
    }

    fn unusable(&self, request: Request, what: String) -> VfioError {
        VfioError::Answer {
            address: self.address.to_owned(),
            request: request.name(),
            what,
        }
    }

    fn plain(
        &self,
        fd: BorrowedFd<'_>,
        request: Request,
        argument: Argument<'_>,
    ) -> Result<u32, VfioError> {
        self.system
            .ioctl(fd, request, argument)
            .map_err(|errno| self.refused(request, String::new(), errno))
    }

    fn message(
        &self,
        fd: BorrowedFd<'_>,
        request: Request,
        mut message: Message,
    ) -> Result<Message, VfioError> {
        self.plain(fd, request, Argument::Message(&mut message))?;
        Ok(message)
    }

    /// Asks, and asks again with as much room as the kernel says the answer needs.
    fn long(
        &self,
        fd: BorrowedFd<'_>,
        request: Request,
        first: Message,
    ) -> Result<Message, VfioError> {
        let question = first.clone();
        let answer = self.message(fd, request, first)?;
        let needed = answer.field::<u32>(0) as usize;
        if needed <= answer.bytes().len() {
            return Ok(answer);
        }
        if needed > LONGEST_ANSWER {
            let what = format!("an answer of {needed:#x} bytes");
            return Err(self.unusable(request, what));
        }
        self.message(fd, request, question.grown(needed))
    }

    fn check_container(&self, container: BorrowedFd<'_>) -> Result<(), VfioError> {
        let version = self.plain(container, Request::GetApiVersion, Argument::None)?;
        if version != VFIO_API_VERSION {
            let what = format!("version {version} of the interface, not {VFIO_API_VERSION}");
            return Err(self.unusable(Request::GetApiVersion, what));
        }
        let extension = Argument::Number(VFIO_TYPE1v2_IOMMU);
        if self.plain(container, Request::CheckExtension, extension)? == 0 {
            let what = "no TYPE1v2 IOMMU: modprobe vfio_iommu_type1".to_owned();
            return Err(self.unusable(Request::CheckExtension, what));
        }
        Ok(())
    }

    fn iommu(&self, container: BorrowedFd<'_>) -> Result<Iommu, VfioError> {
        let request = Request::IommuGetInfo;
        let first = Message::new(size_of::<vfio_iommu_type1_info>());
        let answer = self.long(container, request, first)?;
        Iommu::parse(&answer).map_err(|what| self.unusable(request, what))
    }

    fn region(&self, device: BorrowedFd<'_>, index: u32) -> Result<Region, VfioError> {
        let request = Request::DeviceGetRegionInfo;
        let mut first = Message::new(size_of::<vfio_region_info>());
        first.put(offset_of!(vfio_region_info, index), index);
        let answer = self.long(device, request, first)?;
        Region::parse(&answer).map_err(|what| self.unusable(request, what))
    }

    /// How many MSI-X vectors there are; none if they cannot be eventfds.
    fn vectors(&self, device: BorrowedFd<'_>) -> Result<usize, VfioError> {
        let request = Request::DeviceGetIrqInfo;
        let answer = self.message(device, request, info_message(VFIO_PCI_MSIX_IRQ_INDEX))?;
        let (flags, count) = info_answer(&answer);
        // PCI base specification: the table has at most 2048 entries.
        if count > 2048 {
            return Err(self.unusable(request, format!("{count} MSI-X vectors")));
        }
        Ok(if flags & VFIO_IRQ_INFO_EVENTFD == 0 {
            0
        } else {
            count as usize
        })
    }

    /// An event of the kernel's own, where the kernel has it.
    fn event(&self, device: BorrowedFd<'_>, index: u32) -> Option<Interrupt> {
        let request = Request::DeviceGetIrqInfo;
        let answer = self.message(device, request, info_message(index)).ok()?;
        let (flags, count) = info_answer(&answer);
        if flags & VFIO_IRQ_INFO_EVENTFD == 0 || count == 0 {
            return None;
        }
        let interrupt = Interrupt::new().ok()?;
        match self.set_irqs(device, index, std::slice::from_ref(&interrupt)) {
            Ok(()) => Some(interrupt),
            Err(error) => {
                tracing::warn!("{error}");
                None
            }
        }
    }

    fn set_irqs(
        &self,
        device: BorrowedFd<'_>,
        index: u32,
        vectors: &[Interrupt],
    ) -> Result<(), VfioError> {
        let request = Request::DeviceSetIrqs;
        let mut message = set_message(index, vectors);
        let detail = || format!(" of {} vectors of index {index}", vectors.len());
        let available = self
            .system
            .ioctl(device, request, Argument::Message(&mut message))
            .map_err(|errno| self.refused(request, detail(), errno))?;
        // A positive answer is how many vectors there would have been, and none of them is set.
        if available != 0 {
            let what = format!("only {available} vectors can be had{}", detail());
            return Err(self.unusable(request, what));
        }
        Ok(())
    }
}
