//! Errors of handing a function over to another process, and of taking one over.

use nix::errno::Errno;
use thiserror::Error;

use super::{FunctionError, MemoryError};
use crate::dma_window;

/// A function cannot be parked. Nothing was changed.
#[derive(Debug, Error)]
pub enum ParkError {
    /// A device model in this process implements the function, and its [`can_be_parked`] returns false.
    ///
    /// [`can_be_parked`]: crate::Device::can_be_parked
    #[error("{name}: is implemented in this process, and ends with it")]
    InProcess {
        /// The function.
        name: String,
    },
    /// The function does not answer any more.
    #[error("{name}: is lost: {because}")]
    Lost {
        /// The function.
        name: String,
        /// The cause.
        because: String,
    },
    /// There are other clones of the function. Each arena and each builder of a pool has one.
    #[error(
        "{name}: {others} other clones of the function exist; each arena and each builder of a pool has one"
    )]
    Clones {
        /// The function.
        name: String,
        /// Number of the other clones.
        others: usize,
    },
    /// BARs of the function are still mapped.
    #[error(
        "{name}: {count} references to its BARs exist: each Bar, and each Block or Register with its clones, has one"
    )]
    Bars {
        /// The function.
        name: String,
        /// Number of references.
        count: usize,
    },
    /// Memory of the caller is lent to the function.
    #[error("{name}: {bytes:#x} bytes of the program's memory are lent at IOVA {iova:#x}")]
    LentMemory {
        /// The function.
        name: String,
        /// I/O address.
        iova: u64,
        /// Length in bytes.
        bytes: usize,
    },
    /// Memory without a descriptor is mapped, so another process cannot map it.
    #[error("{name}: the {bytes:#x} bytes mapped at IOVA {iova:#x} have no descriptor")]
    NoDescriptor {
        /// The function.
        name: String,
        /// I/O address.
        iova: u64,
        /// Length in bytes.
        bytes: usize,
    },
    /// The I/O address space has other functions too.
    #[error("{name}: {functions} functions share its I/O address space")]
    Shared {
        /// The function.
        name: String,
        /// Number of functions in the space.
        functions: usize,
    },
    /// The I/O address space was stopped, because a function has refused to unmap memory.
    #[error("{name}: its I/O address space was stopped")]
    Stopped {
        /// The function.
        name: String,
    },
    /// A function has refused to unmap memory.
    #[error("{name}: a function has refused to unmap the memory at IOVA {iova:#x}")]
    Kept {
        /// The function.
        name: String,
        /// I/O address.
        iova: u64,
    },
    /// The device may still write memory that is no longer needed ([`WeakArena::keep`](crate::WeakArena::keep)). In
    /// another process the memory would count as unclaimed, and be freed.
    #[error("{name}: {count} pieces of memory that the device may still write are kept")]
    KeptMemory {
        /// The function.
        name: String,
        /// Number of pieces.
        count: usize,
    },
    /// Memory is not inside the window of virtual addresses that is for DMA memory. Another process may have its
    /// addresses in use. When the memory was allocated, the kernel refused the addresses of the window: they are in
    /// use, or the process has fewer than 46 address bits, or a sanitizer reserves them.
    #[error(
        "{name}: the {bytes:#x} bytes of memory at address {address:#x} are not inside the window of DMA memory, {:#x} to {:#x}",
        dma_window::FIRST, dma_window::END - 1
    )]
    OutsideWindow {
        /// The function.
        name: String,
        /// First virtual address.
        address: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// The kernel has another number of mappings than this process has made: another process maps memory in the
    /// container.
    #[error("{name}: its container has {made} mappings, and this process has made {known}")]
    Mappings {
        /// The function.
        name: String,
        /// Number of mappings according to the kernel.
        made: u64,
        /// Number of mappings that this process knows.
        known: usize,
    },
    /// Another thread has changed the mappings during the call, with a function that it has opened in the I/O address
    /// space and closed again.
    #[error("{name}: the mapping at IOVA {iova:#x} was made, replaced or removed during the call")]
    MappingChanged {
        /// The function.
        name: String,
        /// I/O address.
        iova: u64,
    },
    /// The function's configuration space, the capabilities of its IOMMU or the number of its mappings could not be
    /// read.
    #[error("{name}: {error}")]
    Query {
        /// The function.
        name: String,
        /// The cause.
        error: Box<FunctionError>,
    },
    /// A descriptor could not be made, duplicated or examined.
    #[error("{name}: descriptor {descriptor}: {source}")]
    Descriptor {
        /// The function.
        name: String,
        /// Name of the descriptor.
        descriptor: String,
        /// Error of the system.
        source: std::io::Error,
    },
}

/// A function, an arena or a pool cannot be taken over. The function was not changed.
#[derive(Debug, Error)]
pub enum ResumeError {
    /// A descriptor of the snapshot was not given.
    #[error("{name}: descriptor {descriptor} is missing; {given} descriptors were given")]
    Missing {
        /// The function.
        name: String,
        /// Name of the descriptor.
        descriptor: String,
        /// Number of descriptors that were given.
        given: usize,
    },
    /// A descriptor was given that the snapshot does not name.
    #[error("{name}: the snapshot has no descriptor {descriptor}")]
    Unknown {
        /// The function.
        name: String,
        /// Name of the descriptor.
        descriptor: String,
    },
    /// A name of a descriptor was given more than once, or is in the snapshot more than once.
    #[error("{name}: there are several descriptors {descriptor}")]
    Repeated {
        /// The function.
        name: String,
        /// Name of the descriptors.
        descriptor: String,
    },
    /// A descriptor is not the one of the snapshot.
    #[error("{name}: descriptor {descriptor}: {what}")]
    Descriptor {
        /// The function.
        name: String,
        /// Name of the descriptor.
        descriptor: String,
        /// The difference, with its numbers.
        what: String,
    },
    /// The function was resumed before, in this process or another one, and that function still exists.
    #[error("{name}: was resumed already, and that function still exists")]
    Resumed {
        /// The function.
        name: String,
    },
    /// A number of the snapshot is impossible, or contradicts another one.
    #[error("{name}: the snapshot is not valid: {what}")]
    Snapshot {
        /// The function.
        name: String,
        /// The contradiction, with its numbers.
        what: String,
    },
    /// A range of virtual addresses at which the snapshot has memory is in use in this process.
    #[error("{name}: {bytes:#x} bytes at address {address:#x} are in use in this process")]
    AddressTaken {
        /// The function.
        name: String,
        /// First virtual address.
        address: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// Memory could not be mapped at its address.
    #[error("{name}: descriptor {descriptor} at address {address:#x}: {error}")]
    Memory {
        /// The function.
        name: String,
        /// Name of the descriptor.
        descriptor: String,
        /// Virtual address.
        address: u64,
        /// The cause.
        error: Box<MemoryError>,
    },
    /// The function differs from the one that was parked.
    #[error("{name}: {what}")]
    Changed {
        /// The function.
        name: String,
        /// The difference, with its numbers.
        what: String,
    },
    /// The function's configuration space, or a description of the function, its group or its IOMMU, could not be read.
    #[error("{name}: {error}")]
    Query {
        /// The function.
        name: String,
        /// The cause.
        error: Box<FunctionError>,
    },
}

impl ResumeError {
    /// Makes the error for memory that could not be mapped.
    pub(crate) fn of_memory(
        name: &str,
        descriptor: &str,
        (address, bytes): (u64, u64),
        error: MemoryError,
    ) -> Self {
        let name = name.to_owned();
        if let MemoryError::System {
            errno: Errno::EEXIST,
            ..
        } = error
        {
            return Self::AddressTaken {
                name,
                address,
                bytes,
            };
        }
        Self::Memory {
            name,
            descriptor: descriptor.to_owned(),
            address,
            error: Box::new(error),
        }
    }
}

/// A snapshot of an arena cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ArenaError {
    /// The device may still write memory that is no longer needed ([`WeakArena::keep`](crate::WeakArena::keep)).
    #[error("the arena keeps {count} pieces of memory that the device may still write")]
    Kept {
        /// Number of pieces.
        count: usize,
    },
}

/// Memory that was in use in the previous process cannot be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ClaimError {
    /// No chunk of the arena or the pool contains all of the bytes.
    #[error("{bytes:#x} bytes at IOVA {iova:#x} are not inside the memory")]
    Outside {
        /// I/O address.
        iova: u64,
        /// Length in bytes.
        bytes: usize,
    },
    /// No range that was in use begins at the I/O address.
    #[error("no range that was in use begins at IOVA {iova:#x} ({bytes:#x} bytes are claimed)")]
    NotInUse {
        /// I/O address.
        iova: u64,
        /// Length in bytes.
        bytes: usize,
    },
    /// The range that begins at the I/O address has another length. Ranges of an arena or a pool have multiples of 64
    /// bytes, and the length of a claim is rounded up before it is compared.
    #[error("the range at IOVA {iova:#x} has {in_use:#x} bytes, and {bytes:#x} bytes are claimed")]
    Length {
        /// I/O address.
        iova: u64,
        /// Length in bytes.
        bytes: usize,
        /// Length of the range that was in use.
        in_use: usize,
    },
    /// The range was claimed before, or was allocated by this process.
    #[error("the range of {bytes:#x} bytes at IOVA {iova:#x} has an owner already")]
    Claimed {
        /// I/O address.
        iova: u64,
        /// Length in bytes.
        bytes: usize,
    },
}
