//! Errors of the kernel's VFIO, with advice.
//!
//! About half of these errors are common when a device is first opened. Each text names the system call, the device,
//! the errno and then a remedy, because the errno alone suggests none (the causes are in `drivers/vfio` of Linux).

use std::path::PathBuf;

use nix::errno::Errno;
use thiserror::Error;

use super::sys::Request;
use crate::error::ErrnoText;

/// An error that prevents a function from being opened or used through VFIO.
#[derive(Debug, Error)]
pub enum VfioError {
    /// The given text is not the address of a PCI function.
    #[error("{text:?} is no PCI address: those look like 0000:3b:00.2 or 3b:00.2")]
    Address {
        /// The given text.
        text: String,
    },
    /// sysfs has no device at the address.
    #[error("{address}: no such PCI function: {path} is not there (see lspci -D)")]
    NoDevice {
        /// The function.
        address: String,
        /// The path in sysfs.
        path: PathBuf,
    },
    /// The function is in no IOMMU group.
    #[error(
        "{address}: in no IOMMU group: switch the IOMMU on in the firmware, and in the kernel with intel_iommu=on (AMD and Arm have it on)"
    )]
    NoIommu {
        /// The function.
        address: String,
    },
    /// The function is bound to another driver, or to none.
    #[error(
        "{address}: bound to {driver}, not to vfio-pci: echo vfio-pci > /sys/bus/pci/devices/{address}/driver_override, unbind it, and echo {address} > /sys/bus/pci/drivers_probe"
    )]
    NotBound {
        /// The function.
        address: String,
        /// The driver, or "no driver".
        driver: String,
    },
    /// The group is not viable, because drivers of the kernel use other functions of it.
    #[error(
        "{address}: IOMMU group {group} is not viable, because {others}: bind those to vfio-pci too, or unbind them"
    )]
    NotViable {
        /// The function.
        address: String,
        /// Number of the IOMMU group.
        group: u32,
        /// Functions that make the group unusable, each with its driver.
        others: String,
    },
    /// A device file could not be opened.
    #[error("{address}: open {path}: {}: {advice}", ErrnoText(*errno))]
    Open {
        /// The function.
        address: String,
        /// The file.
        path: PathBuf,
        /// Error of the system call.
        errno: Errno,
        /// Remedy for a person.
        advice: String,
    },
    /// This process already has the function open in the same container.
    #[error("{address}: this process has the device open already, in the same I/O address space")]
    OpenAlready {
        /// The function.
        address: String,
    },
    /// The kernel refused a request.
    #[error("{address}: {request}{detail}: {}: {advice}", ErrnoText(*errno))]
    Refused {
        /// The function.
        address: String,
        /// Name of the ioctl.
        request: &'static str,
        /// Arguments of the request as text; may be empty.
        detail: String,
        /// Error of the kernel.
        errno: Errno,
        /// Remedy for a person.
        advice: String,
    },
    /// The kernel answered, but the answer is not usable.
    #[error("{address}: {request}: {what}")]
    Answer {
        /// The function.
        address: String,
        /// Name of the ioctl.
        request: &'static str,
        /// The problem with the answer.
        what: String,
    },
    /// A region could not be read or written.
    #[error("{address}: {operation} of {bytes} bytes at {offset:#x} of region {region}: {reason}")]
    Transfer {
        /// The function.
        address: String,
        /// `pread` or `pwrite`.
        operation: &'static str,
        /// The region's index.
        region: u32,
        /// Offset in the region.
        offset: u64,
        /// Length in bytes.
        bytes: usize,
        /// Error of the system call, with advice.
        reason: String,
    },
    /// A BAR could not be mapped.
    #[error("{address}: BAR {index}: {error}")]
    Map {
        /// The function.
        address: String,
        /// BAR number.
        index: u8,
        /// The cause.
        error: crate::error::MemoryError,
    },
}

/// Returns the advice for a region that cannot be read or written.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "errno has more values than VFIO has uses for"
)]
pub(super) fn transfer_advice(errno: Errno) -> &'static str {
    match errno {
        Errno::ENODEV | Errno::ENXIO => GONE,
        Errno::EIO => {
            "the device does not answer: it sleeps (power management), its memory decoding is off, or it is gone"
        }
        Errno::EINVAL => "the kernel knows no such part of the region",
        _ => "see dmesg",
    }
}

const GONE: &str = "the device is gone, or being removed";

/// Returns the advice for a refused request.
pub(super) fn advice(request: Request, errno: Errno, address: &str) -> String {
    let text = match (request, errno) {
        (_, Errno::ENODEV) if request >= Request::DeviceGetInfo => GONE,
        (Request::SetIommu, Errno::EPERM) => {
            "the platform cannot remap interrupts (see dmesg): enable it in the firmware, or, trusting the device, load vfio_iommu_type1 with allow_unsafe_interrupts=1"
        }
        (Request::SetIommu, Errno::ENODEV) => {
            "no IOMMU driver takes the group: modprobe vfio_iommu_type1"
        }
        (Request::GroupSetContainer, Errno::EPERM) => {
            "the group is one without an IOMMU, which needs CAP_SYS_RAWIO; it is not supported here"
        }
        (Request::SetIommu, Errno::EBUSY) => {
            "the kernel itself uses a function of the group: bind all of them to vfio-pci"
        }
        (Request::SetIommu, Errno::EINVAL) => {
            "the container has an IOMMU already: other functions are in it, and each that is handed in by descriptors needs a container of its own"
        }
        (Request::IommuGetInfo, Errno::EINVAL) => {
            "the container has no IOMMU: the group has to be put into it first"
        }
        (Request::GroupSetContainer, Errno::EBADF) => "the descriptor is none of /dev/vfio/vfio",
        (Request::GroupSetContainer, Errno::EBUSY | Errno::EINVAL) => {
            "the group is in another container already: another process has it"
        }
        (Request::GroupUnsetContainer, Errno::EBUSY) => {
            "a function of the group is open: another process has it, or this one has not let go of it"
        }
        (Request::GroupGetDeviceFd, Errno::ENODEV) => {
            return format!("{address} is not of this group, or not bound to vfio-pci");
        }
        (Request::GroupGetDeviceFd, Errno::EACCES | Errno::EINVAL | Errno::EPERM) => {
            "a virtual function whose physical function is itself under vfio-pci needs a VF token, which is not supported here; otherwise see dmesg"
        }
        (Request::GroupGetDeviceFd, Errno::EBUSY) => "another process has the device open",
        (Request::GroupGetDeviceFd, Errno::EAGAIN) => {
            "the device could not be reset on opening, because another holder has it locked: try again"
        }
        (_, Errno::EIO) if request >= Request::DeviceGetInfo && request <= Request::DeviceReset => {
            "the device does not wake up (power management): see dmesg"
        }
        (Request::DeviceReset, Errno::ENOTTY | Errno::EINVAL) => {
            "the function cannot be reset alone (no FLR, and others share its bus); its reset methods are in reset_method in sysfs"
        }
        (Request::DeviceReset, Errno::EAGAIN | Errno::EBUSY) => {
            "the device is locked by another holder, try again"
        }
        (Request::DeviceSetIrqs, Errno::ENOSPC | Errno::ENOMEM) => {
            "the machine has no interrupt vectors left (/proc/interrupts shows who has them)"
        }
        (Request::DeviceSetIrqs, Errno::EINVAL) => {
            "the device has no such vectors, or another kind of interrupt is on"
        }
        (Request::IommuMapDma, Errno::EEXIST) => "the address range is mapped already",
        (Request::IommuMapDma, Errno::EFAULT) => {
            "the memory is not mapped, or cannot be pinned for long: pages of a file on disk cannot since Linux 6.4 (memory of memfd_create, /dev/shm and hugetlbfs can), nor can those of a mapping that is read-only"
        }
        (Request::IommuMapDma, Errno::EINVAL) => {
            "the address or the length is outside the IOMMU's ranges, or not whole pages of its own"
        }
        (Request::IommuUnmapDma, Errno::EINVAL) => {
            "it is not whole mappings, or not of whole pages"
        }
        (Request::GetApiVersion, Errno::ENOTTY) => "the descriptor is none of /dev/vfio/vfio",
        (Request::GroupGetStatus, Errno::ENOTTY) => {
            "the descriptor is none of a group, /dev/vfio/N"
        }
        (_, Errno::ENOTTY) => {
            "the kernel does not know this request; is the descriptor one of VFIO?"
        }
        (_, _) => "see dmesg",
    };
    text.to_owned()
}

/// Returns the advice for failing to open `/dev/vfio/vfio`.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "errno has more values than VFIO has uses for"
)]
pub(super) fn container_advice(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOENT | Errno::ENODEV | Errno::ENXIO => {
            "the module is not loaded: modprobe vfio-pci (or the kernel has no CONFIG_VFIO_CONTAINER)"
        }
        Errno::EACCES | Errno::EPERM => "the file should have mode 0666",
        _ => "see dmesg",
    }
}

/// Returns the advice for failing to open `/dev/vfio/N`.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "errno has more values than VFIO has uses for"
)]
pub(super) fn group_advice(errno: Errno, path: &std::path::Path) -> String {
    match errno {
        Errno::ENOENT | Errno::ENODEV | Errno::ENXIO => {
            "no function of the group is bound to vfio-pci: modprobe vfio-pci and bind it"
                .to_owned()
        }
        Errno::EACCES | Errno::EPERM => format!(
            "give the file to the user who runs this: chown $USER {}",
            path.display()
        ),
        Errno::EBUSY => "another process has the group open".to_owned(),
        _ => "see dmesg".to_owned(),
    }
}
