//! DMA memory: the arena, the buffers cut from it, and the memory that a memory region can cover.
//!
//! An arena belongs to one function and grows by chunks. A chunk is a memfd (on huge pages if the pool has some),
//! mapped once, as a whole, in the function's I/O address space. Its virtual address and its I/O address are congruent
//! modulo 1 GiB. So a memory key with virtual addresses over any piece of the chunk can have pages as large as the
//! piece allows. Requests larger than a chunk get a chunk of their own.
//!
//! Lifetime: a [`DmaBuffer`] keeps its chunk. When the last clone of a buffer drops, its bytes return to the chunk.
//! When the last owner of a chunk drops (arena or buffer), the chunk is first unmapped from the function and then
//! freed: the memory outlives the device's permission to reach it. If a function refuses to unmap, all functions of its
//! I/O address space are stopped and the memory is leaked, because a device may still write it. Before dropping a
//! buffer, its owner stops the queue that used it and waits for the device's answer.
//!
//! An arena can be made again in another process that takes the function over, from a snapshot ([`parking`]).
//!
//! Buffers are zeroed. Fresh chunks are zero already and are not touched, so a sparse gigabyte costs nothing until it
//! is used; but huge pages are populated at once, because touching a missing one later would raise SIGBUS. Recycled
//! bytes are cleared when they are allocated again.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::{DmaError, MemoryError};
use crate::function::Function;
use crate::iova::Iova;
use crate::iova::IovaAllocator;
use crate::lent::LentMemory;
use crate::memory::{SharedMemory, shared_memory_accessors};
use crate::page::DMA_PAGE;
use crate::page::GIB;
use crate::page::PageSize;
use crate::page::page_bytes;
use crate::placement::{Machine, Pages, Placement};
use crate::space::Mapped;
use crate::space::Space;
use crate::span::Span;

/// Bytes of a chunk unless a request needs more. Fewer under Miri, which allocates and tracks each byte.
const CHUNK_BYTES: usize = if cfg!(miri) { 1 << 20 } else { 64 << 20 };
/// Smallest unit of allocation: no two buffers share a cache line.
const LINE_BYTES: usize = 64;

/// Allocation state of a chunk's bytes.
struct ChunkState {
    /// Free offsets. One chunk length is added to each, because the allocator never returns 0.
    free: IovaAllocator,
    /// End offset of the highest range allocated so far, in bytes. Bytes below this offset may be nonzero.
    used_below: usize,
    /// Ranges in use, by offset.
    leases: BTreeMap<usize, LeaseState>,
}

/// A range of a chunk that is in use.
#[derive(Clone, Copy)]
struct LeaseState {
    bytes: usize,
    /// True if the range was in use in a previous process, and has no owner in this one yet.
    unclaimed: bool,
}

/// A piece of memory that is one mapping in the function's I/O address space.
struct Chunk {
    mapped: Mapped,
    state: Mutex<ChunkState>,
}

impl Chunk {
    fn new(function: &Function, bytes: usize) -> Result<Self, DmaError> {
        let bytes = bytes
            .checked_next_multiple_of(DMA_PAGE.max(page_bytes()))
            .ok_or(MemoryError::TooLarge { bytes })?;
        let huge = function.takes_huge_pages();
        let memory = |remainder| Self::memory(&Machine, bytes, remainder, huge);
        Self::over(function.space(), bytes, memory)
    }

    /// Maps `bytes` bytes, which are whole pages, for the function. `memory` allocates the bytes at a virtual address
    /// whose remainder modulo 1 GiB is the argument of `memory`.
    fn over(
        space: &Arc<Space>,
        bytes: usize,
        memory: impl FnOnce(usize) -> Result<SharedMemory, DmaError>,
    ) -> Result<Self, DmaError> {
        let align = bytes
            .checked_next_power_of_two()
            .map_or(GIB, |power| power.min(GIB));
        let iova = space.alloc_iova(bytes, align, 0)?;
        // PANIC: a remainder modulo 1 GiB fits every usize.
        let remainder = usize::try_from(iova.0 % GIB as u64).expect("less than 1 GiB");
        let memory = match memory(remainder) {
            Ok(memory) => memory,
            Err(error) => {
                space.free_iova(iova, bytes);
                return Err(error);
            }
        };
        Ok(Self {
            mapped: Mapped::new(space, memory, iova)?,
            state: Mutex::new(ChunkState {
                free: Self::all_free(bytes),
                used_below: 0,
                leases: BTreeMap::new(),
            }),
        })
    }

    /// Makes the allocator of a chunk's bytes, all of which are free.
    fn all_free(bytes: usize) -> IovaAllocator {
        // CAST: usize has at most 64 bits on every target Rust has.
        let len = bytes as u64;
        IovaAllocator::new(std::slice::from_ref(&(len..=2 * len - 1)))
    }

    fn state(&self) -> MutexGuard<'_, ChunkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps memory at a virtual address with this remainder modulo 1 GiB. If `huge`, the memory is on 2 MiB pages,
    /// provided that it consists of whole pages and that enough pages are free and can be populated.
    fn memory(
        machine: &dyn Pages,
        bytes: usize,
        remainder: usize,
        huge: bool,
    ) -> Result<SharedMemory, DmaError> {
        let placed = |size| {
            let memory = SharedMemory::congruent(bytes, GIB, remainder, size)?;
            Placement::default().apply(machine, &memory, size)?;
            Ok(memory)
        };
        let size = PageSize::Huge2M;
        let enough = || machine.free(size, None).unwrap_or(0) >= bytes / size.bytes();
        if huge && bytes.is_multiple_of(size.bytes()) && enough() {
            match placed(size) {
                Ok(memory) => return Ok(memory),
                Err(error) => tracing::debug!("no huge pages: {error}"),
            }
        }
        placed(PageSize::Base)
    }

    /// Allocates `bytes` bytes, already rounded to lines, and zeroes them. `None` if no free range is long enough.
    fn take(self: &Arc<Self>, bytes: usize, align: usize) -> Option<Lease> {
        let len = self.mapped.memory().len();
        let mut state = self.state();
        // The chunk is aligned to the next power of two of its size, at most 1 GiB. Offsets in `free` start at one
        // chunk length, which may be less aligned than `align`. So the request to the allocator has the remainder that
        // makes the address a multiple of `align`.
        let modulus = align as u64;
        let remainder =
            (len as u64).wrapping_sub(self.mapped.memory().address() as u64) & (modulus - 1);
        let at = state
            .free
            .alloc_congruent(bytes as u64, modulus, remainder)
            .ok()?;
        // PANIC: `at` is between `len` and `2 * len`, and `len` came from a usize.
        let offset = usize::try_from(at).expect("an offset within a chunk") - len;
        let dirty = state.used_below.saturating_sub(offset).min(bytes);
        state.used_below = state.used_below.max(offset + bytes);
        let unclaimed = false;
        state.leases.insert(offset, LeaseState { bytes, unclaimed });
        drop(state);
        self.mapped.memory().fill(offset, dirty, 0);
        Some(Lease {
            chunk: Arc::clone(self),
            offset,
            bytes,
            arena: self.origin_pool(),
        })
    }

    /// Returns the reference of memory that belongs to no arena.
    fn origin_pool(&self) -> WeakArena {
        WeakArena {
            inner: Origin::Pool(Arc::downgrade(self.mapped.space())),
        }
    }
}

/// A range of a chunk that is in use. Dropping the lease frees the range.
pub(crate) struct Lease {
    chunk: Arc<Chunk>,
    offset: usize,
    bytes: usize,
    arena: WeakArena,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let len = self.chunk.mapped.memory().len();
        let mut state = self.chunk.state();
        state.leases.remove(&self.offset);
        state
            .free
            .free((self.offset + len) as u64, self.bytes as u64);
    }
}

struct ArenaInner {
    function: Function,
    chunk_bytes: usize,
    chunks: Mutex<Vec<Arc<Chunk>>>,
    /// Chunks that belong to one buffer each.
    dedicated: Mutex<Vec<Weak<Chunk>>>,
    /// Chunks of single buffers of a previous process that were not claimed yet.
    unclaimed: Mutex<Vec<Arc<Chunk>>>,
    /// Memory that the device may still write; see [`WeakArena::keep`].
    kept: Mutex<Vec<Box<dyn Send>>>,
}

/// A weak reference to the arena that some memory belongs to.
#[derive(Clone)]
pub struct WeakArena {
    inner: Origin,
}

/// The place that memory comes from.
#[derive(Clone)]
enum Origin {
    Arena(Weak<ArenaInner>),
    /// A pool in an I/O address space.
    Pool(Weak<Space>),
}

impl WeakArena {
    /// Keeps memory that the device may still write although the memory is no longer needed. It is neither reused nor
    /// unmapped before the arena is dropped; the arena's owner stops the device before that. If the arena was dropped
    /// already, the memory is freed at once. Memory of a pool is never freed, because the program may drop a pool while
    /// the device runs; the function's mapping of it ends when the function is closed.
    ///
    /// A function cannot be parked any more if memory of a pool was kept, or memory of an arena while the function's
    /// mappings were held: in the snapshot of the pool or the arena it would be unclaimed memory, which can be freed.
    pub fn keep(&self, memory: impl Send + 'static) {
        match &self.inner {
            Origin::Pool(space) => {
                std::mem::forget(memory);
                if let Some(space) = space.upgrade() {
                    space.count_kept(false);
                }
            }
            Origin::Arena(arena) => {
                if let Some(arena) = arena.upgrade() {
                    arena.function.space().count_kept(true);
                    let mut kept = arena.kept.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.push(Box::new(memory));
                }
            }
        }
    }
}

impl std::fmt::Debug for WeakArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakArena")
    }
}

/// A growable pool of DMA memory of one function. Clones share it.
#[derive(Clone)]
pub struct DmaArena {
    inner: Arc<ArenaInner>,
}

impl DmaArena {
    /// Makes an empty arena; memory is mapped on the first request.
    ///
    /// # Errors
    /// Those of [`DmaArena::with_chunk_bytes`]; the default chunk size causes none.
    pub fn new(function: &Function) -> Result<Self, DmaError> {
        Self::with_chunk_bytes(function, CHUNK_BYTES)
    }

    /// Makes an arena that grows by `chunk_bytes`, a power of two of at least 4 KiB.
    ///
    /// # Errors
    /// [`DmaError::Request`]: `chunk_bytes` is no power of two, or less than 4 KiB.
    pub fn with_chunk_bytes(function: &Function, chunk_bytes: usize) -> Result<Self, DmaError> {
        if !chunk_bytes.is_power_of_two() || chunk_bytes < DMA_PAGE {
            return Err(DmaError::Request {
                bytes: chunk_bytes,
                align: chunk_bytes,
            });
        }
        Ok(Self {
            inner: Arc::new(ArenaInner {
                function: function.clone(),
                chunk_bytes,
                chunks: Mutex::new(Vec::new()),
                dedicated: Mutex::new(Vec::new()),
                unclaimed: Mutex::new(Vec::new()),
                kept: Mutex::new(Vec::new()),
            }),
        })
    }

    /// Returns a weak reference to the arena.
    #[must_use]
    pub fn downgrade(&self) -> WeakArena {
        WeakArena {
            inner: Origin::Arena(Arc::downgrade(&self.inner)),
        }
    }

    /// Returns the number of bytes of all shared chunks, in use or not. A request larger than a chunk has a mapping of
    /// its own, which is not counted here.
    #[must_use]
    pub fn mapped_bytes(&self) -> usize {
        let chunks = self.inner.chunks.lock();
        let chunks = chunks.unwrap_or_else(PoisonError::into_inner);
        // A chunk has whole pages of the system, which may be larger than `chunk_bytes`.
        let bytes = chunks.iter().map(|chunk| chunk.mapped.memory().len());
        bytes.sum()
    }

    /// Allocates `bytes` zeroed bytes whose virtual and I/O addresses are multiples of `align`, a power of two up to
    /// 1 GiB.
    ///
    /// # Errors
    /// [`DmaError::Request`]: no bytes, or an alignment that is no power of two up to 1 GiB. [`DmaError::Memory`],
    /// [`DmaError::Iova`], [`DmaError::Function`]: the arena had to grow, and the host had no memory, the I/O address
    /// space had no free range, or the function refused the mapping.
    pub fn alloc(&self, bytes: usize, align: usize) -> Result<DmaBuffer, DmaError> {
        let request = DmaError::Request { bytes, align };
        if bytes == 0 || !align.is_power_of_two() || align > GIB {
            return Err(request);
        }
        let Some(rounded) = bytes.checked_next_multiple_of(LINE_BYTES) else {
            return Err(request);
        };
        let align = align.max(LINE_BYTES);
        let mut lease = if rounded.max(align) > self.inner.chunk_bytes {
            self.dedicated(rounded, align)?
        } else {
            self.shared(rounded, align)?
        };
        lease.arena = self.downgrade();
        Ok(DmaBuffer::new(lease, bytes))
    }

    /// Allocates from an existing chunk, or from a new one.
    fn shared(&self, bytes: usize, align: usize) -> Result<Lease, DmaError> {
        let mut chunks = self
            .inner
            .chunks
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(lease) = chunks.iter().find_map(|chunk| chunk.take(bytes, align)) {
            return Ok(lease);
        }
        let chunk = Arc::new(Chunk::new(&self.inner.function, self.inner.chunk_bytes)?);
        chunks.push(Arc::clone(&chunk));
        drop(chunks);
        chunk
            .take(bytes, align)
            .ok_or(DmaError::Request { bytes, align })
    }

    /// Allocates a chunk for this request alone. The chunk is freed with the buffer.
    fn dedicated(&self, bytes: usize, align: usize) -> Result<Lease, DmaError> {
        let chunk = Arc::new(Chunk::new(&self.inner.function, bytes.max(align))?);
        let mut dedicated = self.inner.dedicated();
        dedicated.retain(|chunk| chunk.strong_count() > 0);
        dedicated.push(Arc::downgrade(&chunk));
        drop(dedicated);
        chunk
            .take(bytes, align)
            .ok_or(DmaError::Request { bytes, align })
    }
}

impl ArenaInner {
    fn dedicated(&self) -> MutexGuard<'_, Vec<Weak<Chunk>>> {
        self.dedicated
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for DmaArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let chunks = self
            .inner
            .chunks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len();
        write!(
            f,
            "DmaArena({chunks} chunks of {:#x} bytes)",
            self.inner.chunk_bytes
        )
    }
}

/// A piece of an arena or a pool. Clones share it. Its bytes return to the arena or the pool when the last clone drops.
#[derive(Clone)]
pub struct DmaBuffer {
    /// The buffer's bytes: a part of the chunk's memory.
    memory: SharedMemory,
    iova: Iova,
    lease: Arc<Lease>,
}

impl DmaBuffer {
    fn new(lease: Lease, bytes: usize) -> Self {
        let mapped = &lease.chunk.mapped;
        Self {
            memory: mapped.memory().part(lease.offset, bytes),
            iova: mapped.iova().advance(lease.offset),
            lease: Arc::new(lease),
        }
    }

    /// Returns the part of `bytes` bytes from `offset` on. The part keeps the whole buffer alive.
    ///
    /// # Panics
    /// If the part is not inside the buffer.
    #[must_use]
    pub fn part(&self, offset: usize, bytes: usize) -> Self {
        Self {
            memory: self.memory.part(offset, bytes),
            iova: self.iova.advance(offset),
            lease: Arc::clone(&self.lease),
        }
    }

    /// Returns the arena that the buffer was allocated from. For a buffer of a [`DmaPool`] the reference names no
    /// arena, and memory that it [keeps](WeakArena::keep) is never freed.
    #[must_use]
    pub fn arena(&self) -> WeakArena {
        self.lease.arena.clone()
    }

    /// Returns the I/O address of the first byte.
    #[inline]
    #[must_use]
    pub const fn iova(&self) -> Iova {
        self.iova
    }

    /// Returns the virtual address of the first byte.
    #[inline]
    #[must_use]
    pub fn address(&self) -> u64 {
        // CAST: usize has at most 64 bits on every target Rust has.
        self.memory.address() as u64
    }

    /// Returns the length in bytes; never zero.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub const fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns a pointer to `bytes` bytes at `offset`, valid while a clone of `self` lives.
    // PANIC: if the bytes are not inside the buffer.
    pub(crate) fn pointer(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        self.memory.pointer(offset, bytes)
    }

    /// Returns the location of the bytes. While the caller uses the location, it must also keep the
    /// [lease](Self::lease).
    pub(crate) const fn span(&self) -> Span {
        self.memory.span()
    }

    /// Returns the lease that keeps the bytes mapped and allocated.
    pub(crate) fn lease(&self) -> Arc<Lease> {
        Arc::clone(&self.lease)
    }

    shared_memory_accessors!(memory);
}

impl std::fmt::Debug for DmaBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "DmaBuffer({:#x} bytes at {:#x}, IOVA {:#x}, chunk offset {:#x})",
            self.len(),
            self.address(),
            self.iova.0,
            self.lease.offset
        )
    }
}

/// Memory that a memory region can cover.
#[derive(Clone, Debug)]
pub enum DmaMemory {
    /// A part of an arena buffer.
    Arena {
        /// The buffer.
        buffer: DmaBuffer,
        /// Offset of the memory in the buffer.
        offset: usize,
        /// Bytes of the memory.
        bytes: usize,
    },
    /// Memory the caller lent.
    Lent(Arc<LentMemory>),
}

/// Converts the whole buffer.
impl From<DmaBuffer> for DmaMemory {
    fn from(buffer: DmaBuffer) -> Self {
        Self::Arena {
            offset: 0,
            bytes: buffer.len(),
            buffer,
        }
    }
}

impl DmaMemory {
    /// Returns the I/O address space in which the memory's I/O addresses are valid. In another space the same addresses
    /// refer to other bytes, or to none.
    fn space(&self) -> &Arc<Space> {
        match self {
            Self::Arena { buffer, .. } => buffer.lease.chunk.mapped.space(),
            Self::Lent(lent) => lent.space(),
        }
    }

    /// Ends the lease of lent memory, for an owner that takes the memory back while a reference to it remains
    /// ([`LentMemory::withdraw`]). Does nothing for memory of an arena.
    pub fn withdraw(&self) {
        match self {
            Self::Arena { .. } => {}
            Self::Lent(lent) => lent.withdraw(),
        }
    }

    /// Returns whether a function reaches the memory at its I/O addresses: the memory was made for that function, or
    /// for a function whose I/O address space that function shares ([`Function::shares_memory_with`]).
    #[must_use]
    pub fn is_reached_by(&self, function: &Function) -> bool {
        Arc::ptr_eq(self.space(), function.space())
    }

    /// Returns the name of the function whose I/O address space has the memory, for messages.
    #[must_use]
    pub fn made_for(&self) -> &str {
        self.space().name()
    }

    /// Returns the I/O address of the buffer that the memory lies in, and the number of values that share the buffer. A
    /// thread that clones or drops one meanwhile may be counted or not. `None` for lent memory.
    #[must_use]
    pub fn owners(&self) -> Option<(Iova, usize)> {
        match self {
            Self::Arena { buffer, .. } => Some((buffer.iova(), Arc::strong_count(&buffer.lease))),
            Self::Lent(_) => None,
        }
    }

    /// Returns the I/O address of the first byte.
    #[must_use]
    pub fn iova(&self) -> Iova {
        match self {
            Self::Arena { buffer, offset, .. } => buffer.iova().advance(*offset),
            Self::Lent(lent) => lent.iova(),
        }
    }

    /// Returns whether other processes can map the memory too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        match self {
            // The memory of an arena is a memfd.
            Self::Arena { .. } => true,
            Self::Lent(lent) => lent.is_shared(),
        }
    }

    /// Returns the virtual address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        match self {
            // CAST: usize has at most 64 bits on every target Rust has.
            Self::Arena { buffer, offset, .. } => buffer.address() + *offset as u64,
            Self::Lent(lent) => lent.address(),
        }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Arena { bytes, .. } => *bytes,
            Self::Lent(lent) => lent.len(),
        }
    }

    /// Returns whether the memory has no bytes; true also if the part is not inside its buffer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Arena {
                buffer,
                offset,
                bytes,
            } => *bytes == 0 || !buffer.contains(*offset, *bytes),
            Self::Lent(_) => false,
        }
    }
}

mod elsewhere;
mod parking;
mod pool;
#[cfg(test)]
mod tests;

pub use elsewhere::MappedBuffer;
pub use pool::{DmaPool, PoolBuilder};
