//! Requests on behalf of a device. Every error names the device and the request, and gives advice.
//!
//! The kernel's answers are checked for values that are not usable: an unknown version, an answer longer than the
//! limit, fewer interrupt vectors than requested.

use core::mem::offset_of;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use vfio_bindings::bindings::vfio::{
    VFIO_API_VERSION, VFIO_IRQ_INFO_EVENTFD, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_TYPE1v2_IOMMU,
    vfio_group_status, vfio_iommu_type1_info, vfio_region_info,
};

use super::dma::Iommu;
use super::error::{VfioError, advice};
use super::irq::{info_answer, info_message, set_message};
use super::region::{LONGEST_ANSWER, Region};
use super::sys::{Argument, Message, Request, System};
use crate::interrupt::Interrupt;

/// Number of attempts at a reset while another holder has the device locked: the first and 50 more.
pub(super) const RESETS: u32 = 51;
/// Time between two attempts at a reset; 50 pauses are one second.
const RESET_PAUSE: Duration = Duration::from_millis(20);

/// A sender of requests on behalf of a device.
pub(super) struct DeviceRequests<'a> {
    pub(super) address: &'a str,
    pub(super) system: &'a dyn System,
}

impl DeviceRequests<'_> {
    pub(super) fn refused(&self, request: Request, detail: String, errno: Errno) -> VfioError {
        VfioError::Refused {
            address: self.address.to_owned(),
            request: request.name(),
            detail,
            errno,
            advice: advice(request, errno, self.address),
        }
    }

    pub(super) fn unusable(&self, request: Request, what: String) -> VfioError {
        VfioError::Answer {
            address: self.address.to_owned(),
            request: request.name(),
            what,
        }
    }

    pub(super) fn plain(
        &self,
        fd: BorrowedFd<'_>,
        request: Request,
        argument: Argument<'_>,
    ) -> Result<u32, VfioError> {
        self.system
            .ioctl(fd, request, argument)
            .map_err(|errno| self.refused(request, String::new(), errno))
    }

    pub(super) fn message(
        &self,
        fd: BorrowedFd<'_>,
        request: Request,
        mut message: Message,
    ) -> Result<Message, VfioError> {
        self.plain(fd, request, Argument::Message(&mut message))?;
        Ok(message)
    }

    /// Sends a request. If the kernel needs more space for the answer, sends it again with a buffer of the reported
    /// size.
    pub(super) fn long(
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

    pub(super) fn check_container(&self, container: BorrowedFd<'_>) -> Result<(), VfioError> {
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

    /// Returns the flags of a group, which report whether it is viable and whether it is in a container.
    pub(super) fn group_flags(&self, group: BorrowedFd<'_>) -> Result<u32, VfioError> {
        let status = self.message(
            group,
            Request::GroupGetStatus,
            Message::new(size_of::<vfio_group_status>()),
        )?;
        Ok(status.field(offset_of!(vfio_group_status, flags)))
    }

    /// Opens the device of a group and returns its file. The kernel resets the device.
    pub(super) fn device(&self, group: BorrowedFd<'_>) -> Result<OwnedFd, VfioError> {
        self.unless_locked(Request::GroupGetDeviceFd, || {
            self.system.device_fd(group, self.address)
        })
    }

    /// Resets only this device.
    pub(super) fn reset(&self, device: BorrowedFd<'_>) -> Result<(), VfioError> {
        let request = Request::DeviceReset;
        self.unless_locked(request, || {
            self.system.ioctl(device, request, Argument::None)
        })
        .map(|_| ())
    }

    /// Sends a request that resets the device. The kernel returns EAGAIN while another holder has the device locked,
    /// such as a process that writes a sysfs file of the device, or the driver of its physical function
    /// (`pci_try_reset_function`). The request is then repeated, at most `RESETS` times in total.
    fn unless_locked<T>(
        &self,
        request: Request,
        mut ask: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, VfioError> {
        let mut tries = 1;
        loop {
            match ask() {
                Err(Errno::EAGAIN) if tries < RESETS => {
                    tracing::debug!("{}: locked by another holder, try {tries}", self.address);
                    tries += 1;
                    self.system.pause(RESET_PAUSE);
                }
                Err(errno) => return Err(self.refused(request, String::new(), errno)),
                Ok(done) => return Ok(done),
            }
        }
    }

    pub(super) fn iommu(&self, container: BorrowedFd<'_>) -> Result<Iommu, VfioError> {
        let request = Request::IommuGetInfo;
        let first = Message::new(size_of::<vfio_iommu_type1_info>());
        let answer = self.long(container, request, first)?;
        Iommu::parse(&answer).map_err(|what| self.unusable(request, what))
    }

    pub(super) fn region(&self, device: BorrowedFd<'_>, index: u32) -> Result<Region, VfioError> {
        let request = Request::DeviceGetRegionInfo;
        let mut first = Message::new(size_of::<vfio_region_info>());
        first.put(offset_of!(vfio_region_info, index), index);
        let answer = self.long(device, request, first)?;
        Region::parse(&answer).map_err(|what| self.unusable(request, what))
    }

    /// Returns the number of MSI-X vectors; 0 if the kernel cannot signal them through eventfds.
    pub(super) fn vectors(&self, device: BorrowedFd<'_>) -> Result<usize, VfioError> {
        let request = Request::DeviceGetIrqInfo;
        let answer = self.message(device, request, info_message(VFIO_PCI_MSIX_IRQ_INDEX))?;
        let (flags, count) = info_answer(&answer);
        // PCI base specification: the MSI-X table has at most 2048 entries.
        if count > 2048 {
            return Err(self.unusable(request, format!("{count} MSI-X vectors")));
        }
        Ok(if flags & VFIO_IRQ_INFO_EVENTFD == 0 {
            0
        } else {
            count as usize
        })
    }

    /// Makes an eventfd for the notice `index` (error or removal) and gives it to the kernel. Returns `None` if the
    /// kernel lacks the notice or refuses the eventfd.
    pub(super) fn event(&self, device: BorrowedFd<'_>, index: u32) -> Option<Interrupt> {
        let request = Request::DeviceGetIrqInfo;
        let answer = self.message(device, request, info_message(index)).ok()?;
        let (flags, count) = info_answer(&answer);
        if flags & VFIO_IRQ_INFO_EVENTFD == 0 || count == 0 {
            return None;
        }
        let interrupt = Interrupt::new().ok()?;
        match self.set_irqs(device, index, std::slice::from_ref(&interrupt)) {
            Ok(_) => Some(interrupt),
            Err(error) => {
                tracing::warn!("{error}");
                None
            }
        }
    }

    /// Sets the eventfds of the vectors of an index. If fewer vectors are available, sets only those. Returns their
    /// number.
    pub(super) fn set_irqs(
        &self,
        device: BorrowedFd<'_>,
        index: u32,
        vectors: &[Interrupt],
    ) -> Result<usize, VfioError> {
        let available = self.try_irqs(device, index, vectors)?;
        if available == vectors.len() {
            return Ok(available);
        }
        tracing::warn!(
            "{}: {available} of {} interrupt vectors are available: the machine has no more (/proc/interrupts shows their owners)",
            self.address,
            vectors.len()
        );
        match vectors.get(..available) {
            Some(fewer) if available > 0 && self.try_irqs(device, index, fewer)? == available => {
                Ok(available)
            }
            _ => Err(self.unusable(
                Request::DeviceSetIrqs,
                format!(
                    "{available} of {} vectors are available, but setting those failed",
                    vectors.len()
                ),
            )),
        }
    }

    /// Sets the eventfds of the vectors of an index. If fewer vectors are available, sets none. Returns the number that
    /// is available.
    fn try_irqs(
        &self,
        device: BorrowedFd<'_>,
        index: u32,
        vectors: &[Interrupt],
    ) -> Result<usize, VfioError> {
        let request = Request::DeviceSetIrqs;
        let mut message = set_message(index, vectors);
        let detail = || format!(" of {} vectors of index {index}", vectors.len());
        let available = self
            .system
            .ioctl(device, request, Argument::Message(&mut message))
            .map_err(|errno| self.refused(request, detail(), errno))?;
        Ok(match available {
            0 => vectors.len(),
            fewer => usize::try_from(fewer).unwrap_or(usize::MAX),
        })
    }
}
