//! Snapshots: descriptions from which another process makes a function, an arena or a pool again.
//!
//! A snapshot is plain data, and its fields are public, so that a layer above can write it out and read it in. A
//! snapshot that is read is not trusted: [`Function::resume`](crate::Function::resume),
//! [`DmaArena::resume`](crate::DmaArena::resume) and [`DmaPool::resume`](crate::DmaPool::resume) check every number,
//! and compare each descriptor with its description. All sizes are in bytes.

use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::iova::Iova;
use crate::vfio_user::name::function_name;

/// A descriptor and its name in the snapshot. A name has at most 32 characters, all of them ASCII letters, digits or
/// `-`, so it can be a name in systemd's descriptor store (sd_notify(3), `FDNAME`).
#[derive(Debug)]
pub struct NamedFd {
    /// The name, such as `memory-0`. No two descriptors of a function have the same name.
    pub name: String,
    /// The descriptor.
    pub fd: OwnedFd,
}

/// Name of a descriptor, and the numbers of its file when it was handed over (fstat(2)).
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct DescriptorSnapshot {
    /// The name ([`NamedFd::name`]).
    pub name: String,
    /// Number of the file system (`st_dev`).
    pub device: u64,
    /// Number of the inode (`st_ino`). All eventfds have the same number.
    pub inode: u64,
    /// Number of a device file (`st_rdev`); 0 for other files.
    pub special: u64,
    /// The kernel's number of an eventfd (proc(5), `eventfd-id`, Linux 5.2); `None` for other files.
    pub event: Option<u64>,
}

/// A function that was parked ([`Function::park`](crate::Function::park)).
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct FunctionSnapshot {
    /// The way to reach the function.
    pub backend: BackendSnapshot,
    /// Registers of configuration space.
    pub identity: PciIdentity,
    /// Eventfds of the enabled interrupt vectors, in vector order. The kernel keeps their counts.
    pub vectors: Vec<DescriptorSnapshot>,
    /// Eventfd of the error notice, if the backend has one.
    pub error: Option<DescriptorSnapshot>,
    /// Eventfd of the removal notice, if the backend has one.
    pub removal: Option<DescriptorSnapshot>,
    /// File that is locked by the process that has the function.
    pub lock: DescriptorSnapshot,
    /// The I/O address space.
    pub space: SpaceSnapshot,
}

/// The way to reach a parked function.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum BackendSnapshot {
    /// A vfio-user server.
    VfioUser(VfioUserSnapshot),
    /// The kernel's VFIO.
    Vfio(VfioSnapshot),
    /// A device model in the process that has parked the function. No other process can resume it.
    InProcess(ModelSnapshot),
}

impl FunctionSnapshot {
    /// Returns the function's name, for messages.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.backend {
            BackendSnapshot::VfioUser(client) => function_name(&client.path),
            BackendSnapshot::Vfio(vfio) => vfio.address.clone(),
            BackendSnapshot::InProcess(model) => model.name.clone(),
        }
    }
}

/// A connection to a vfio-user server between two messages.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct VfioUserSnapshot {
    /// Path of the server's socket, for messages.
    pub path: PathBuf,
    /// The connection.
    pub socket: DescriptorSnapshot,
    /// The twin socket, if the server has given one.
    pub twin: Option<DescriptorSnapshot>,
    /// ID of the next message.
    pub next_id: u16,
    /// Number of descriptors that the server accepts in one message: 1 to 16.
    pub max_fds: u32,
    /// Number of mappings that the server accepts.
    pub most_mappings: u64,
    /// Number of MSI-X vectors of the function.
    pub vector_count: u32,
}

/// A device model in the process that has parked the function.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ModelSnapshot {
    /// The function's name, for messages.
    pub name: String,
    /// File that stands for the model in the process that has it.
    pub model: DescriptorSnapshot,
}

/// A function of the kernel's VFIO.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct VfioSnapshot {
    /// PCI address, such as `0000:3b:00.2`.
    pub address: String,
    /// File of the container. The kernel reports no identity of a container. The descriptor's name and the number of
    /// mappings are compared.
    pub container: DescriptorSnapshot,
    /// File of the group.
    pub group: DescriptorSnapshot,
    /// File of the device. fstat(2) does not distinguish devices. The descriptor's name is compared and, from Linux
    /// 6.18 on, the PCI address that the kernel reports for the file.
    pub device: DescriptorSnapshot,
    /// True if the group is removed from its container when the function is closed, because the process that has
    /// provided the group keeps its file open.
    pub group_leaves: bool,
    /// Number of MSI-X vectors of the function.
    pub vector_count: u32,
    /// Number of mappings that could still be made in the container, if the kernel reports it.
    pub mappings_left: Option<u32>,
    /// Number of mappings that could be made in the container when this process got it.
    pub mappings_at_first: Option<u32>,
}

impl VfioSnapshot {
    /// Returns the number of mappings in the container, if the kernel reports it.
    pub(crate) fn mappings_made(&self) -> Option<u64> {
        let (first, left) = (self.mappings_at_first?, self.mappings_left?);
        // If more mappings are left than at first, the subtraction wraps to a number that is never the number of
        // mappings, and the snapshot is refused.
        Some(u64::from(first).wrapping_sub(u64::from(left)))
    }
}

/// Registers of configuration space that distinguish functions, and the bits that the driver has enabled. They do not
/// show a reset, because the kernel restores configuration space after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct PciIdentity {
    /// Vendor ID and device ID (offset 0x00).
    pub device: u32,
    /// Revision and class code (offset 0x08).
    pub class: u32,
    /// Subsystem vendor ID and subsystem ID (offset 0x2c).
    pub subsystem: u32,
    /// Bits 1 (memory space) and 2 (bus master) of the command register (offset 0x04).
    pub command: u16,
}

/// An I/O address space.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct SpaceSnapshot {
    /// Name of the function that the space was made for.
    pub name: String,
    /// I/O addresses that can be mapped for the function ([`Function::iova_ranges`](crate::Function::iova_ranges)).
    pub ranges: Vec<RangeInclusive<u64>>,
    /// I/O addresses that are free, from the bottom: disjoint and never adjacent.
    pub free: Vec<RangeInclusive<u64>>,
    /// I/O addresses that are free or become free with a mapping, in the same form.
    pub allowed: Vec<RangeInclusive<u64>>,
    /// Files of memory that is mapped.
    pub memories: Vec<MemorySnapshot>,
    /// Mappings, by I/O address.
    pub mappings: Vec<MappingSnapshot>,
}

/// Memory: a file (memfd_create(2)) and its place in the address space of the process.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct MemorySnapshot {
    /// The file.
    pub file: DescriptorSnapshot,
    /// Virtual address of the file's first byte.
    pub address: u64,
    /// Size of the file, in whole pages.
    pub file_bytes: u64,
    /// Length of the memory: at most the size of the file.
    pub bytes: u64,
    /// Number of units of 512 bytes that the file had in use (`st_blocks`). If fewer are in use later, a holder of the
    /// file has removed pages from it, which the device still uses.
    pub blocks: u64,
}

/// A mapping in the I/O address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct MappingSnapshot {
    /// I/O address of the first byte.
    pub iova: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Index of the memory in [`SpaceSnapshot::memories`].
    pub memory: u32,
    /// Offset in the memory.
    pub offset: u64,
    /// True if this crate has chosen the I/O addresses, for memory of an arena or a pool; they become free with the
    /// mapping. False if the program has chosen them ([`Function::dma_map`](crate::Function::dma_map)).
    pub allocated: bool,
}

/// An arena ([`DmaArena::snapshot`](crate::DmaArena::snapshot)).
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ArenaSnapshot {
    /// Bytes by which the arena grows.
    pub chunk_bytes: u64,
    /// Chunks, in the order in which they are searched for room.
    pub chunks: Vec<ChunkSnapshot>,
}

/// A pool ([`DmaPool::snapshot`](crate::DmaPool::snapshot)).
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct PoolSnapshot {
    /// Bytes of a page of the pool.
    pub page_bytes: u64,
    /// The pool's memory.
    pub chunk: ChunkSnapshot,
}

/// A piece of memory of an arena or a pool, which is one mapping.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ChunkSnapshot {
    /// I/O address of the mapping.
    pub iova: u64,
    /// Bytes of the mapping.
    pub bytes: u64,
    /// True if the chunk belongs to a single buffer, and is unmapped with it.
    pub is_dedicated: bool,
    /// End offset of the highest range ever allocated. Bytes below it are cleared when they are allocated again.
    pub used_below: u64,
    /// Ranges that are in use, by offset.
    pub leases: Vec<LeaseSnapshot>,
}

/// A range of a chunk that is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct LeaseSnapshot {
    /// Offset in the chunk, a multiple of 64.
    pub offset: u64,
    /// Length, a multiple of 64.
    pub bytes: u64,
}

/// Memory of the previous process that was not claimed in this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnclaimedMemory {
    /// I/O address of the first byte.
    pub iova: Iova,
    /// Length in bytes.
    pub bytes: usize,
}
