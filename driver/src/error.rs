//! Errors, one enum per layer.
//!
//! The texts contain the numbers that a person needs: the address, the length, the system call and its errno. A
//! failure that only a bug of this crate can cause has no error here: the code that detects it panics.

mod errno;
mod handover;
mod memory;

use std::path::PathBuf;

use nix::errno::Errno;
use thiserror::Error;

pub(crate) use self::errno::ErrnoText;
pub use self::handover::{ArenaError, ClaimError, ParkError, ResumeError};
pub use self::memory::MemoryError;
use crate::vfio::VfioError;
use crate::vfio_user::VfioUserError;

/// An error of the allocator of I/O addresses.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum IovaError {
    /// No free range is long enough at that alignment.
    #[error(
        "no free range of {bytes:#x} units at {remainder:#x} modulo {modulus:#x}: {free:#x} free, the longest range has {longest:#x}"
    )]
    Exhausted {
        /// Length asked for.
        bytes: u64,
        /// Alignment asked for.
        modulus: u64,
        /// Remainder asked for, modulo the alignment.
        remainder: u64,
        /// Total still free.
        free: u64,
        /// Longest free range.
        longest: u64,
    },
    /// The request is invalid: no bytes, an alignment that is no power of two, or a remainder that is not below it.
    #[error(
        "a range of {bytes:#x} units at {remainder:#x} modulo {modulus:#x} is no legal request"
    )]
    Request {
        /// Length asked for.
        bytes: u64,
        /// Alignment asked for.
        modulus: u64,
        /// Remainder asked for, modulo the alignment.
        remainder: u64,
    },
}

/// DMA memory could not be allocated.
#[derive(Debug, Error)]
pub enum DmaError {
    /// The request is invalid: no bytes, a range that cannot exist, or an alignment that is no power of two up to 1
    /// GiB.
    #[error("DMA memory of {bytes:#x} bytes aligned to {align:#x} is no legal request")]
    Request {
        /// Bytes asked for.
        bytes: usize,
        /// Alignment asked for.
        align: usize,
    },
    /// The hugetlb pool has too few free pages, or the system has no such pool.
    #[error("{}", huge_pages(*needed, *page_bytes, *node, *free))]
    HugePages {
        /// Pages asked for.
        needed: usize,
        /// Bytes of one page.
        page_bytes: usize,
        /// NUMA node of the pages, if one was asked for.
        node: Option<u32>,
        /// Number of free pages of that size; `None` if the system has no pool of that size.
        free: Option<usize>,
    },
    /// The function takes no pages of the hugetlb pool. Another process implements the function, and the kernel would
    /// kill that process if the pool lacked a page.
    #[error(
        "{name}: is played by another process, and takes no pages of the hugetlb pool ({page_bytes:#x} bytes)"
    )]
    NoHugePages {
        /// The function.
        name: String,
        /// Bytes of one page.
        page_bytes: usize,
    },
    /// Memory could not be bound to a NUMA node.
    #[error(
        "mbind of {bytes:#x} bytes to NUMA node {node}: {}: is there such a node (/sys/devices/system/node/has_memory), and may this process use it (Mems_allowed of /proc/self/status)?",
        ErrnoText(*errno)
    )]
    Node {
        /// The node.
        node: u32,
        /// Bytes to bind.
        bytes: usize,
        /// Error of the system. EINVAL may also mean that no node has this number.
        errno: Errno,
    },
    /// Memory could not be populated.
    #[error(
        "MADV_POPULATE_WRITE of {bytes:#x} bytes at {at:#x} of {of:#x}, pages of {page_bytes:#x}: {}: EFAULT is a lack of huge pages, ENOMEM one of memory, EINVAL a kernel before Linux 5.14",
        ErrnoText(*errno)
    )]
    Populate {
        /// Number of bytes of the slice that could not be populated.
        bytes: usize,
        /// Offset of the slice in the memory.
        at: usize,
        /// Number of bytes of the memory.
        of: usize,
        /// Bytes of a page.
        page_bytes: usize,
        /// Error of the system.
        errno: Errno,
    },
    /// Part of the caller's memory is not mapped.
    #[error("not all of {bytes:#x} bytes at {address:#x} is mapped (EFAULT)")]
    NotMapped {
        /// Address of the memory's first page.
        address: usize,
        /// Number of bytes of the memory's pages.
        bytes: usize,
    },
    /// A pool has no free range that is long enough for a buffer.
    #[error(
        "a pool of {of:#x} bytes has {free:#x} free, and no {bytes:#x} together that are aligned to {align:#x}"
    )]
    PoolFull {
        /// Bytes asked for.
        bytes: usize,
        /// Alignment asked for.
        align: usize,
        /// Bytes that are free, contiguous or not.
        free: usize,
        /// Bytes of the pool.
        of: usize,
    },
    /// The function was handed over to another process ([`Function::park`](crate::Function::park)), and its memory with
    /// it.
    #[error("{name}: was handed over to another process, and so was the pool's memory")]
    Parked {
        /// The function.
        name: String,
    },
    /// The I/O address space has no free range.
    #[error("{}", no_addresses(.0))]
    Iova(#[from] IovaError),
    /// The memory itself could not be mapped.
    #[error("DMA memory: {0}")]
    Memory(#[from] MemoryError),
    /// The function refused the mapping.
    #[error(transparent)]
    Function(#[from] FunctionError),
}

/// Returns the text for an exhausted address space, with advice.
fn no_addresses(error: &IovaError) -> String {
    match error {
        IovaError::Exhausted {
            bytes,
            free,
            longest,
            ..
        } => format!(
            "{bytes} bytes of DMA memory are wanted; of the addresses that the device reaches, {longest} bytes together are free at the most, {free} in all: ask for less at a time, or free what is not used"
        ),
        IovaError::Request { .. } => format!("I/O address space: {error}"),
    }
}

/// Returns the text for missing huge pages, with advice.
fn huge_pages(needed: usize, page_bytes: usize, node: Option<u32>, free: Option<usize>) -> String {
    let pool = format!("hugepages-{}kB/nr_hugepages", page_bytes >> 10);
    let (place, path) = match node {
        Some(node) => (
            format!(" on NUMA node {node}"),
            format!("/sys/devices/system/node/node{node}/hugepages/{pool}"),
        ),
        None => (String::new(), format!("/sys/kernel/mm/hugepages/{pool}")),
    };
    let wanted = format!("{needed} pages of {page_bytes:#x} bytes{place} are wanted");
    match free {
        Some(free) => {
            format!("{wanted} and {free} are free: echo their number in all > {path}")
        }
        None => format!(
            "{wanted}, and the system has no pool of such: hugepagesz= and hugepages= on the kernel's command line make one"
        ),
    }
}

/// A PCI function refused or could not be reached.
#[derive(Debug, Error)]
pub enum FunctionError {
    /// The access ends beyond configuration space.
    #[error(
        "{name}: configuration space access of {bytes} bytes at {offset:#x} is outside its 4096 bytes"
    )]
    ConfigBounds {
        /// The function.
        name: String,
        /// Byte offset.
        offset: u16,
        /// Access width.
        bytes: usize,
    },
    /// The kernel's VFIO refused a request.
    #[error(transparent)]
    Vfio(#[from] Box<VfioError>),
    /// The function has no such BAR.
    #[error("{name}: no BAR {index}")]
    NoBar {
        /// The function.
        name: String,
        /// Requested BAR number. Valid ones are 0 to 5.
        index: u8,
    },
    /// The range passed to `dma_map` is not inside the memory, or not whole pages.
    #[error(
        "{name}: cannot map {bytes:#x} bytes from offset {offset:#x} of {len:#x} at IOVA {iova:#x}: not whole pages inside the memory"
    )]
    DmaRange {
        /// The function.
        name: String,
        /// I/O virtual address.
        iova: u64,
        /// Offset into the memory.
        offset: usize,
        /// Bytes to map.
        bytes: usize,
        /// Bytes the memory has.
        len: usize,
    },
    /// The memory for the BARs of a function that this process implements could not be mapped.
    #[error("{name}: memory of a BAR: {error}")]
    Memory {
        /// The function.
        name: String,
        /// The cause.
        error: MemoryError,
    },
    /// A DMA mapping or an unmap was refused.
    #[error("{name}: {operation} of {bytes:#x} bytes at IOVA {iova:#x} refused: {reason}")]
    DmaRefused {
        /// The function.
        name: String,
        /// `dma_map` or `dma_unmap`.
        operation: &'static str,
        /// I/O virtual address.
        iova: u64,
        /// Length in bytes.
        bytes: usize,
        /// Reason of the device model or of this crate.
        reason: String,
    },
    /// A function cannot share the I/O address space of others.
    #[error("{name}: cannot be opened in the I/O address space of {space}: {what}")]
    Space {
        /// The function.
        name: String,
        /// The function that the space was made for.
        space: String,
        /// The reason.
        what: String,
    },
    /// A function of the I/O address space refused to unmap memory, and all functions of the space were stopped.
    #[error(
        "{name}: the functions in the I/O address space of {space} were stopped for good, because one of them did not let go of memory: close them all and open them anew"
    )]
    Stopped {
        /// The function.
        name: String,
        /// The function that the space was made for.
        space: String,
    },
    /// The function was resumed and is not claimed, so it may only be read.
    #[error("{name}: {request} is refused: the function was resumed, and is not claimed")]
    Unclaimed {
        /// The function.
        name: String,
        /// The request.
        request: &'static str,
    },
    /// The process that implements the function could not be reached, or refused a request.
    #[error("vfio-user:{source}")]
    VfioUser {
        /// The function.
        name: String,
        /// The cause: the socket, the message and the answer.
        source: Box<VfioUserError>,
    },
    /// An eventfd for an interrupt vector could not be made.
    #[error("{name}: eventfd for interrupt vector {vector} of {count}: {source}")]
    Interrupt {
        /// The function.
        name: String,
        /// Vector number.
        vector: usize,
        /// Vectors the function has.
        count: usize,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The eventfds on which the system reports errors and the removal of the function could not be made.
    #[error("{name}: no eventfd for the reports of errors and of removal: {source}")]
    Notices {
        /// The function.
        name: String,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The eventfd that wakes a sleeping thread could not be made.
    #[error("{name}: no eventfd to wake a sleeping thread: {source}")]
    Wakeup {
        /// The function.
        name: String,
        /// Error of the system.
        source: std::io::Error,
    },
}

/// A register block does not fit its BAR.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum BarError {
    /// The block ends beyond the BAR.
    #[error(
        "a register block of {bytes:#x} bytes at {offset:#x} is outside BAR {index} of {len:#x} bytes"
    )]
    Bounds {
        /// BAR number.
        index: u8,
        /// Offset of the block.
        offset: u64,
        /// Number of bytes of the block.
        bytes: usize,
        /// Number of bytes of the BAR.
        len: u64,
    },
    /// The offset is not a multiple of the block's alignment, so its registers would be misaligned.
    #[error("a register block at {offset:#x} of BAR {index} is not aligned to {align}")]
    Alignment {
        /// BAR number.
        index: u8,
        /// Offset of the block.
        offset: u64,
        /// Alignment the block needs.
        align: usize,
    },
}

/// The io_uring, a file, or an operation on a file failed.
#[derive(Debug, Error)]
pub enum ReactorError {
    /// The ring itself could not be made or entered.
    #[error("{call} with {entries} entries: {source}")]
    Ring {
        /// The system call.
        call: &'static str,
        /// Number of entries of the submission queue.
        entries: u32,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The system refuses this process an io_uring, which file operations need.
    #[error(
        "disks need io_uring, which this process may not use ({source}): kernel.io_uring_disabled, a filter of system calls, SELinux, the kernel's build or the limit of locked memory forbids it; `datctl doctor` tells which"
    )]
    NoDisks {
        /// Error of the system.
        source: std::io::Error,
    },
    /// The bytes of the operation are not inside the buffer.
    #[error(
        "{path}: {bytes:#x} bytes at {buffer_offset:#x} are outside a buffer of {len:#x} bytes"
    )]
    Bounds {
        /// The file.
        path: PathBuf,
        /// Offset into the buffer.
        buffer_offset: usize,
        /// Bytes to move.
        bytes: usize,
        /// Bytes the buffer has.
        len: usize,
    },
    /// A file could not be opened.
    #[error("{path}: open: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// An operation on a file failed.
    #[error("{path}: {}: {source}", what(operation, *offset, *bytes))]
    Transfer {
        /// The file.
        path: PathBuf,
        /// `read`, `write`, `sync`, `zero` or `deallocate`.
        operation: &'static str,
        /// Offset in the file at which the operation failed.
        offset: u64,
        /// Number of bytes that had not been moved yet.
        bytes: usize,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The properties of a file could not be read.
    #[error("{path}: {call}: {source}")]
    Geometry {
        /// The file.
        path: PathBuf,
        /// The system call.
        call: &'static str,
        /// Error of the system.
        source: std::io::Error,
    },
}

/// Describes an operation on a file, with its bytes and offset unless it is a sync.
fn what(operation: &str, offset: u64, bytes: usize) -> String {
    match operation {
        "sync" => operation.to_owned(),
        _ => format!("{operation} of {bytes:#x} bytes at offset {offset:#x}"),
    }
}

impl ReactorError {
    /// Returns the error of the system, if a system call caused this error.
    fn answer(&self) -> Option<&std::io::Error> {
        match self {
            Self::Ring { source, .. }
            | Self::NoDisks { source }
            | Self::Open { source, .. }
            | Self::Transfer { source, .. }
            | Self::Geometry { source, .. } => Some(source),
            Self::Bounds { .. } => None,
        }
    }

    /// Returns the system's error number, if there is one.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        self.answer().and_then(std::io::Error::raw_os_error)
    }
}

impl From<ReactorError> for std::io::Error {
    fn from(error: ReactorError) -> Self {
        let kind = error
            .answer()
            .map_or(std::io::ErrorKind::InvalidInput, Self::kind);
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_for_lack_of_addresses_has_the_bytes_wanted_and_free() {
        let error = DmaError::from(IovaError::Exhausted {
            bytes: 1 << 40,
            modulus: 1 << 30,
            remainder: 0,
            free: 3 << 30,
            longest: 1 << 30,
        });
        let text = error.to_string();
        for part in [
            "1099511627776 bytes of DMA memory",
            "1073741824 bytes together",
            "3221225472 in all",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
