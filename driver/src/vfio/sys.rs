//! The system calls of the VFIO backend.
//!
//! [`System`] has the calls that the backend makes: open, ioctl, map, read and write at an offset. [`Kernel`] makes
//! the real calls. Tests replace it by a simulated kernel, so that every error can be tested on a machine without an
//! IOMMU. No call is on a hot path: registers are accessed through the mapping.
//!
//! All structures that VFIO exchanges begin with `argsz`, their length in bytes. The kernel accesses the fixed part of
//! a structure in any case, and beyond it no more than `argsz` allows (`include/uapi/linux/vfio.h`). A [`Message`] is
//! such a structure, followed by space for data.

// UNSAFETY: ioctl takes raw addresses and returns raw descriptors.
#![expect(unsafe_code, reason = "system calls of VFIO")]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_TYPE, vfio_device_info, vfio_group_status, vfio_iommu_type1_dma_map,
    vfio_iommu_type1_dma_unmap, vfio_iommu_type1_info, vfio_irq_info, vfio_irq_set,
    vfio_region_info,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::clock::monotonic_now;
use crate::error::MemoryError;
use crate::fdinfo::fdinfo;
use crate::mapping::Area;
use crate::memory::SharedMemory;
use crate::readable::poll_readable;

/// VFIO ioctls that are used. The value is the ioctl's number, counted from `VFIO_BASE`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum Request {
    GetApiVersion = 0,
    CheckExtension = 1,
    SetIommu = 2,
    GroupGetStatus = 3,
    GroupSetContainer = 4,
    GroupUnsetContainer = 5,
    GroupGetDeviceFd = 6,
    DeviceGetInfo = 7,
    DeviceGetRegionInfo = 8,
    DeviceGetIrqInfo = 9,
    DeviceSetIrqs = 10,
    DeviceReset = 11,
    IommuGetInfo = 12,
    IommuMapDma = 13,
    IommuUnmapDma = 14,
}

impl Request {
    /// Returns the name of the ioctl in `linux/vfio.h`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::GetApiVersion => "VFIO_GET_API_VERSION",
            Self::CheckExtension => "VFIO_CHECK_EXTENSION",
            Self::SetIommu => "VFIO_SET_IOMMU",
            Self::GroupGetStatus => "VFIO_GROUP_GET_STATUS",
            Self::GroupSetContainer => "VFIO_GROUP_SET_CONTAINER",
            Self::GroupUnsetContainer => "VFIO_GROUP_UNSET_CONTAINER",
            Self::GroupGetDeviceFd => "VFIO_GROUP_GET_DEVICE_FD",
            Self::DeviceGetInfo => "VFIO_DEVICE_GET_INFO",
            Self::DeviceGetRegionInfo => "VFIO_DEVICE_GET_REGION_INFO",
            Self::DeviceGetIrqInfo => "VFIO_DEVICE_GET_IRQ_INFO",
            Self::DeviceSetIrqs => "VFIO_DEVICE_SET_IRQS",
            Self::DeviceReset => "VFIO_DEVICE_RESET",
            Self::IommuGetInfo => "VFIO_IOMMU_GET_INFO",
            Self::IommuMapDma => "VFIO_IOMMU_MAP_DMA",
            Self::IommuUnmapDma => "VFIO_IOMMU_UNMAP_DMA",
        }
    }

    /// Returns `_IO(VFIO_TYPE, VFIO_BASE + n)` of `asm-generic/ioctl.h`: no direction, no size.
    const fn number(self) -> libc::Ioctl {
        ((VFIO_TYPE as u32) << 8 | (VFIO_BASE + self as u32)) as libc::Ioctl
    }

    /// Returns the length of the fixed structure, which the kernel accesses regardless of `argsz`; `None` if the ioctl
    /// takes no structure.
    pub(crate) const fn message_bytes(self) -> Option<usize> {
        Some(match self {
            Self::GroupGetStatus => size_of::<vfio_group_status>(),
            Self::DeviceGetInfo => size_of::<vfio_device_info>(),
            Self::DeviceGetRegionInfo => size_of::<vfio_region_info>(),
            Self::DeviceGetIrqInfo => size_of::<vfio_irq_info>(),
            Self::DeviceSetIrqs => size_of::<vfio_irq_set>(),
            Self::IommuGetInfo => size_of::<vfio_iommu_type1_info>(),
            Self::IommuMapDma => size_of::<vfio_iommu_type1_dma_map>(),
            Self::IommuUnmapDma => size_of::<vfio_iommu_type1_dma_unmap>(),
            Self::GetApiVersion
            | Self::CheckExtension
            | Self::SetIommu
            | Self::GroupSetContainer
            | Self::GroupUnsetContainer
            | Self::GroupGetDeviceFd
            | Self::DeviceReset => return None,
        })
    }
}

/// A structure that begins with its length in bytes (`argsz`). It is in the host's byte order and aligned to 8 bytes.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    words: Vec<u64>,
    bytes: usize,
}

impl Message {
    /// Makes a message of `bytes` bytes, all zero except `argsz`.
    // PANIC: all callers pass lengths below 4 GiB that have at least the 4 bytes of `argsz`.
    pub(crate) fn new(bytes: usize) -> Self {
        let mut message = Self {
            words: vec![0; bytes.div_ceil(8)],
            bytes,
        };
        let argsz = u32::try_from(bytes).expect("a message below 4 GiB");
        message.put(0, argsz);
        message
    }

    /// Makes the message longer; the added bytes are zero.
    pub(crate) fn grown(mut self, bytes: usize) -> Self {
        let grown = Self::new(bytes);
        self.words.resize(grown.words.len(), 0);
        self.bytes = bytes;
        self.put(0, grown.field::<u32>(0));
        self
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.words.as_bytes()[..self.bytes]
    }

    /// Writes a field.
    // PANIC: the field is outside the message; offsets of fields are constants.
    pub(crate) fn put<T: IntoBytes + zerocopy::Immutable>(&mut self, offset: usize, value: T) {
        self.words.as_mut_bytes()[offset..offset + size_of::<T>()]
            .copy_from_slice(value.as_bytes());
    }

    /// Reads a field at an offset that the kernel has given. Returns `None` if it is outside the message.
    pub(crate) fn get<T: FromBytes>(&self, offset: usize) -> Option<T> {
        let end = offset.checked_add(size_of::<T>())?;
        T::read_from_bytes(self.bytes().get(offset..end)?).ok()
    }

    /// Reads a field of the structure's fixed part.
    // PANIC: the field is outside the message; offsets of fields are constants.
    pub(crate) fn field<T: FromBytes>(&self, offset: usize) -> T {
        self.get(offset).expect("a field of the fixed part")
    }
}

/// Argument of an ioctl.
pub(crate) enum Argument<'a> {
    None,
    Number(u32),
    /// A descriptor, passed as a pointer to its number.
    Fd(BorrowedFd<'a>),
    Message(&'a mut Message),
}

/// System calls that the backend makes.
pub(crate) trait System: Send + Sync {
    /// Opens a device file for reading and writing.
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno>;
    /// Makes any VFIO request except `GroupGetDeviceFd`. Returns the result, which is not negative.
    fn ioctl(
        &self,
        fd: BorrowedFd<'_>,
        request: Request,
        argument: Argument<'_>,
    ) -> Result<u32, Errno>;
    /// Makes a `VFIO_GROUP_GET_DEVICE_FD` request.
    fn device_fd(&self, group: BorrowedFd<'_>, address: &str) -> Result<OwnedFd, Errno>;
    /// Returns the path in sysfs of the device that a device file of VFIO belongs to (`vfio-device-syspath`, Linux
    /// `Documentation/filesystems/proc.rst`). `None` before Linux 6.18.
    fn device_path(&self, device: BorrowedFd<'_>) -> Option<PathBuf>;
    /// Reserves `bytes` bytes of address space, maps the given areas of a region there, and fills the gaps with
    /// ordinary memory.
    fn map(
        &self,
        device: BorrowedFd<'_>,
        bytes: usize,
        areas: &[Area],
    ) -> Result<SharedMemory, MemoryError>;
    /// Makes one `pread`.
    fn read_at(&self, fd: &File, offset: u64, out: &mut [u8]) -> io::Result<usize>;
    /// Makes one `pwrite`.
    fn write_at(&self, fd: &File, offset: u64, data: &[u8]) -> io::Result<usize>;
    /// Returns the limit of locked memory in bytes (`None` if there is no limit) and the bytes locked now, for
    /// messages.
    fn locked_memory(&self) -> (Option<u64>, u64);
    /// Sleeps for `time`, so that another process can finish.
    fn pause(&self, time: Duration);
}

/// The real kernel of this machine.
#[derive(Debug)]
pub(crate) struct Kernel;

impl System for Kernel {
    fn pause(&self, time: Duration) {
        // The call has no descriptors and waits for the time only. An error ends the wait early, which is harmless.
        let _ = poll_readable(std::iter::empty(), monotonic_now() + time);
    }

    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map(OwnedFd::from)
            .map_err(|error| errno_of(&error))
    }

    fn ioctl(
        &self,
        fd: BorrowedFd<'_>,
        request: Request,
        argument: Argument<'_>,
    ) -> Result<u32, Errno> {
        let (fd, number) = (fd.as_raw_fd(), request.number());
        let result = match argument {
            Argument::None => {
                assert!(
                    request.message_bytes().is_none(),
                    "{request:?} takes a message"
                );
                // SAFETY: the request takes no structure (asserted above). The two requests that take the address of a
                // descriptor or a name read address 0 and fail with EFAULT.
                unsafe { libc::ioctl(fd, number, 0) }
            }
            Argument::Number(value) => {
                let takes_number = matches!(request, Request::CheckExtension | Request::SetIommu);
                assert!(takes_number, "{request:?} takes no number");
                // SAFETY: the request takes its argument by value.
                unsafe { libc::ioctl(fd, number, libc::c_ulong::from(value)) }
            }
            Argument::Fd(other) => {
                assert!(
                    request == Request::GroupSetContainer,
                    "{request:?} takes no descriptor"
                );
                let other = other.as_raw_fd();
                // SAFETY: the kernel reads one `int` at the address of a local variable.
                unsafe { libc::ioctl(fd, number, &raw const other) }
            }
            Argument::Message(message) => {
                let least = request.message_bytes();
                assert!(
                    least.is_some_and(|least| least <= message.bytes),
                    "{request:?} in {} bytes",
                    message.bytes
                );
                // CAST: widening.
                assert_eq!(message.field::<u32>(0) as usize, message.bytes, "argsz");
                // SAFETY: the kernel accesses at most `argsz` bytes at the address, or the structure's fixed part if
                // that is longer; the message has `argsz` bytes, and not less than the fixed part (both asserted). The
                // only request that lets the device access memory is `IommuMapDma`: its message names memory of a
                // `SharedMemory`, to which no reference exists, and the kernel pins it.
                unsafe { libc::ioctl(fd, number, message.words.as_mut_ptr()) }
            }
        };
        Errno::result(result).map(i32::cast_unsigned)
    }

    fn device_fd(&self, group: BorrowedFd<'_>, address: &str) -> Result<OwnedFd, Errno> {
        let name = CString::new(address).map_err(|_| Errno::EINVAL)?;
        let number = Request::GroupGetDeviceFd.number();
        // SAFETY: the kernel reads a string that ends with a zero byte, as a `CString` does.
        let fd = Errno::result(unsafe { libc::ioctl(group.as_raw_fd(), number, name.as_ptr()) })?;
        // SAFETY: the kernel has just made this descriptor for this call, so nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn device_path(&self, device: BorrowedFd<'_>) -> Option<PathBuf> {
        fdinfo(device, "vfio-device-syspath:").map(PathBuf::from)
    }

    fn map(
        &self,
        device: BorrowedFd<'_>,
        bytes: usize,
        areas: &[Area],
    ) -> Result<SharedMemory, MemoryError> {
        SharedMemory::device(device, bytes, areas)
    }

    fn read_at(&self, fd: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        fd.read_at(out, offset)
    }

    fn write_at(&self, fd: &File, offset: u64, data: &[u8]) -> io::Result<usize> {
        fd.write_at(data, offset)
    }

    fn locked_memory(&self) -> (Option<u64>, u64) {
        let line = |path: &str, start: &str, word: usize| {
            std::fs::read_to_string(path)
                .unwrap_or_default()
                .lines()
                .find_map(|line| {
                    line.strip_prefix(start)?
                        .split_whitespace()
                        .nth(word)?
                        .parse()
                        .ok()
                })
        };
        (
            line("/proc/self/limits", "Max locked memory", 0),
            line("/proc/self/status", "VmLck:", 0).map_or(0, |kib: u64| kib.saturating_mul(1024)),
        )
    }
}

pub(crate) fn errno_of(error: &io::Error) -> Errno {
    error
        .raw_os_error()
        .map_or(Errno::UnknownErrno, Errno::from_raw)
}
