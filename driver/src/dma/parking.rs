//! Arenas and pools of a function that is handed over to another process.
//!
//! A snapshot has the chunks, by their I/O addresses, and the ranges of each that are in use. It is made before the
//! buffers are dropped, while the function holds its mappings ([`Function::hold_mappings`]). The next process makes the
//! arena again over the mappings of its function, and claims each range that it needs, by the I/O address and the
//! length of the buffer. At the end it frees the ranges that were not claimed ([`DmaArena::finish`]).
//!
//! Memory is allocated in units of 64 bytes, and a snapshot has the lengths in these units. So a claim is accepted with
//! any length that rounds up to the same multiple of 64 as the length of the buffer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::LeaseState;
use super::{ArenaInner, Chunk, ChunkState, DmaArena, DmaBuffer, DmaPool, LINE_BYTES, Lease};
use crate::error::{ArenaError, ClaimError, ResumeError};
use crate::function::Function;
use crate::iova::Iova;
use crate::page::{DMA_PAGE, GIB, PageSize};
use crate::snapshot::{ArenaSnapshot, ChunkSnapshot, LeaseSnapshot, PoolSnapshot, UnclaimedMemory};

impl Chunk {
    fn snapshot(&self, is_dedicated: bool) -> ChunkSnapshot {
        let state = self.state();
        let lease = |(&offset, lease): (&usize, &LeaseState)| LeaseSnapshot {
            offset: offset as u64,
            bytes: lease.bytes as u64,
        };
        // CAST: usize has at most 64 bits on every target Rust has.
        ChunkSnapshot {
            iova: self.mapped.iova().0,
            bytes: self.mapped.memory().len() as u64,
            is_dedicated,
            used_below: state.used_below as u64,
            leases: state.leases.iter().map(lease).collect(),
        }
    }

    /// Makes a chunk of a previous process again, over the mapping that the function has.
    fn resume(function: &Function, snapshot: &ChunkSnapshot) -> Result<Self, ResumeError> {
        let iova = snapshot.iova;
        let refused = |what: String| ResumeError::Snapshot {
            name: function.name().to_owned(),
            what: format!("chunk at IOVA {iova:#x}: {what}"),
        };
        let bytes = usize::try_from(snapshot.bytes)
            .map_err(|_| refused(format!("{:#x} bytes", snapshot.bytes)))?;
        let mapped = function.space().claim(Iova(iova), bytes);
        let mapped = mapped.map_err(|error| refused(error.to_string()))?;
        let address = mapped.memory().address();
        if iova % GIB as u64 != (address % GIB) as u64 {
            return Err(refused(format!(
                "its virtual address {address:#x} is not congruent modulo {GIB:#x}"
            )));
        }
        let mut free = Self::all_free(bytes);
        let mut leases = BTreeMap::new();
        let mut end = 0;
        for lease in &snapshot.leases {
            let LeaseSnapshot { offset, bytes: len } = *lease;
            let whole_lines = (offset | len).is_multiple_of(LINE_BYTES as u64);
            let start = offset.checked_add(snapshot.bytes);
            if !whole_lines || !start.is_some_and(|start| free.take(start, len)) {
                return Err(refused(format!(
                    "a range of {len:#x} bytes in use at {offset:#x} of {bytes:#x}"
                )));
            }
            end = end.max(offset + len);
            // PANIC: `take` has shown that the range is inside the chunk, whose length is a usize.
            let fits = |number| usize::try_from(number).expect("inside a chunk");
            let state = LeaseState {
                bytes: fits(len),
                unclaimed: true,
            };
            leases.insert(fits(offset), state);
        }
        let used_below = snapshot.used_below;
        let possible = end..=snapshot.bytes;
        if !possible.contains(&used_below) || !used_below.is_multiple_of(LINE_BYTES as u64) {
            return Err(refused(format!(
                "used below {used_below:#x}; its ranges in use end at {end:#x} of {bytes:#x}"
            )));
        }
        if !snapshot.leases.is_sorted_by_key(|lease| lease.offset) {
            return Err(refused("its ranges in use are not sorted".to_owned()));
        }
        Ok(Self {
            mapped,
            state: Mutex::new(ChunkState {
                free,
                // PANIC: not more than `bytes`.
                used_below: usize::try_from(used_below).expect("inside a chunk"),
                leases,
            }),
        })
    }

    /// Marks ranges of an earlier snapshot as in use again. A range whose buffer still exists keeps its owner.
    fn take_back(&self, snapshot: &ChunkSnapshot) -> Result<(), String> {
        let len = self.mapped.memory().len();
        let mut state = self.state();
        let ChunkState { free, leases, .. } = &mut *state;
        for lease in &snapshot.leases {
            // PANIC: the snapshot is of this chunk, whose length is a usize.
            let fits = |number| usize::try_from(number).expect("inside a chunk");
            let (offset, bytes) = (fits(lease.offset), fits(lease.bytes));
            let is_there = leases.get(&offset).is_some_and(|it| it.bytes == bytes);
            if !is_there && !free.take((offset + len) as u64, lease.bytes) {
                return Err(format!(
                    "the range at offset {offset:#x} was allocated again"
                ));
            }
            let unclaimed = true;
            leases
                .entry(offset)
                .or_insert(LeaseState { bytes, unclaimed });
        }
        Ok(())
    }

    /// Returns the offset of an I/O range in the chunk; `None` if it is not inside.
    fn offset_of(&self, iova: Iova, bytes: usize) -> Option<usize> {
        let offset = iova.0.checked_sub(self.mapped.iova().0)?;
        let offset = usize::try_from(offset).ok()?;
        self.mapped
            .memory()
            .contains(offset, bytes)
            .then_some(offset)
    }

    /// Makes an owner of a range that was in use in the previous process. `bytes` is rounded up to lines.
    fn claim(self: &Arc<Self>, at: Iova, bytes: usize) -> Result<Lease, ClaimError> {
        let iova = at.0;
        let outside = ClaimError::Outside { iova, bytes };
        let offset = self.offset_of(at, bytes).ok_or(outside)?;
        let rounded = bytes.checked_next_multiple_of(LINE_BYTES).ok_or(outside)?;
        let mut state = self.state();
        let Some(lease) = state.leases.get_mut(&offset) else {
            return Err(ClaimError::NotInUse { iova, bytes });
        };
        if lease.bytes != rounded {
            let in_use = lease.bytes;
            return Err(ClaimError::Length {
                iova,
                bytes,
                in_use,
            });
        }
        if !lease.unclaimed {
            return Err(ClaimError::Claimed { iova, bytes });
        }
        lease.unclaimed = false;
        drop(state);
        Ok(Lease {
            chunk: Arc::clone(self),
            offset,
            bytes: rounded,
            arena: self.origin_pool(),
        })
    }

    /// Returns the ranges that were not claimed, and frees them if `free`.
    fn unclaimed(&self, free: bool) -> Vec<UnclaimedMemory> {
        let len = self.mapped.memory().len();
        let mut state = self.state();
        let ChunkState {
            free: ranges,
            leases,
            ..
        } = &mut *state;
        let mut unclaimed = Vec::new();
        leases.retain(|&offset, lease| {
            if !lease.unclaimed {
                return true;
            }
            unclaimed.push(UnclaimedMemory {
                iova: self.mapped.iova().advance(offset),
                bytes: lease.bytes,
            });
            if free {
                ranges.free((offset + len) as u64, lease.bytes as u64);
            }
            !free
        });
        unclaimed
    }
}

impl DmaArena {
    /// Describes the arena for another process: its chunks, and the ranges that are in use at this moment. Buffers that
    /// are dropped later stay in use in the snapshot. The caller [holds](Function::hold_mappings) the function's
    /// mappings first.
    ///
    /// # Errors
    /// [`ArenaError::Kept`]: the device may still write memory that is no longer needed.
    pub fn snapshot(&self) -> Result<ArenaSnapshot, ArenaError> {
        let inner = &self.inner;
        let kept = inner.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.is_empty() {
            return Err(ArenaError::Kept { count: kept.len() });
        }
        let shared = inner.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut chunks: Vec<_> = shared.iter().map(|chunk| chunk.snapshot(false)).collect();
        drop(shared);
        let dedicated = inner.dedicated();
        for chunk in dedicated.iter().filter_map(|chunk| chunk.upgrade()) {
            let chunk = chunk.snapshot(true);
            // The buffer of a chunk without ranges in use is being dropped in another thread.
            chunks.extend((!chunk.leases.is_empty()).then_some(chunk));
        }
        Ok(ArenaSnapshot {
            chunk_bytes: inner.chunk_bytes as u64,
            chunks,
        })
    }

    /// Makes the arena of a previous process again. The ranges that were in use stay in use until they are
    /// [claimed](Self::claim) and dropped, or [freed](Self::finish).
    ///
    /// # Errors
    /// [`ResumeError::Snapshot`]: numbers of the snapshot are impossible, or contradict each other, or the function has
    /// no unclaimed mapping for a chunk. No mapping was claimed then.
    pub fn resume(function: &Function, snapshot: &ArenaSnapshot) -> Result<Self, ResumeError> {
        let refused = |what: String| ResumeError::Snapshot {
            name: function.name().to_owned(),
            what,
        };
        let chunk_bytes = snapshot.chunk_bytes;
        let arena = usize::try_from(chunk_bytes)
            .ok()
            .and_then(|bytes| Self::with_chunk_bytes(function, bytes).ok())
            .ok_or_else(|| refused(format!("an arena with chunks of {chunk_bytes:#x} bytes")))?;
        let ArenaInner {
            chunks,
            dedicated,
            unclaimed,
            ..
        } = &*arena.inner;
        if !snapshot.chunks.is_sorted_by_key(|chunk| chunk.is_dedicated) {
            return Err(refused("its dedicated chunks are not the last".to_owned()));
        }
        for described in &snapshot.chunks {
            let ChunkSnapshot {
                iova,
                bytes,
                is_dedicated,
                ref leases,
                ..
            } = *described;
            let is_possible = if is_dedicated {
                leases.len() == 1
            } else {
                bytes >= chunk_bytes
            };
            if !is_possible {
                let count = leases.len();
                return Err(refused(format!(
                    "chunk at IOVA {iova:#x} with {bytes:#x} bytes and {count} ranges in use, dedicated: {is_dedicated}"
                )));
            }
            let chunk = Arc::new(Chunk::resume(function, described)?);
            let list = if is_dedicated {
                let mut dedicated = dedicated.lock().unwrap_or_else(PoisonError::into_inner);
                dedicated.push(Arc::downgrade(&chunk));
                unclaimed
            } else {
                chunks
            };
            let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
            list.push(chunk);
        }
        Ok(arena)
    }

    /// Undoes the drops of buffers since `snapshot` was made of this arena, in a process that goes on with a function
    /// that it could not park. The dropped buffers can be [claimed](Self::claim), and those that still exist keep their
    /// owners. The mappings were held from the snapshot on, and nothing was allocated from the arena since.
    ///
    /// # Errors
    /// [`ResumeError::Snapshot`]: a range was allocated again, or a mapping is gone. The ranges before it are in use.
    pub fn take_back(&self, snapshot: &ArenaSnapshot) -> Result<(), ResumeError> {
        let function = &self.inner.function;
        for described in &snapshot.chunks {
            let (iova, bytes) = (Iova(described.iova), described.bytes);
            // CAST: usize has at most 64 bits on every target Rust has.
            let is_this = |chunk: &Arc<Chunk>| {
                chunk.mapped.iova() == iova && chunk.mapped.memory().len() as u64 == bytes
            };
            let Some(chunk) = self.chunk_around(iova, 1).filter(is_this) else {
                // The chunk of a single buffer has ended with it, and its mapping is held.
                let chunk = Arc::new(Chunk::resume(function, described)?);
                self.inner.dedicated().push(Arc::downgrade(&chunk));
                let unclaimed = self.inner.unclaimed.lock();
                unclaimed
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(chunk);
                continue;
            };
            let taken = chunk.take_back(described);
            taken.map_err(|what| ResumeError::Snapshot {
                name: function.name().to_owned(),
                what: format!("chunk at IOVA {:#x}: {what}", described.iova),
            })?;
        }
        Ok(())
    }

    /// Returns a buffer that was in use in the previous process, with its contents. The buffer has `bytes` bytes, which
    /// must round up to the same multiple of 64 as the length that it had.
    ///
    /// # Errors
    /// [`ClaimError`]: the range is not that of a buffer that was in use, or was claimed before.
    pub fn claim(&self, iova: Iova, bytes: usize) -> Result<DmaBuffer, ClaimError> {
        let outside = ClaimError::Outside {
            iova: iova.0,
            bytes,
        };
        if bytes == 0 {
            return Err(outside);
        }
        let chunk = self.chunk_around(iova, bytes).ok_or(outside)?;
        let mut lease = chunk.claim(iova, bytes)?;
        lease.arena = self.downgrade();
        // From now on the buffer owns its dedicated chunk.
        let unclaimed = self.inner.unclaimed.lock();
        let mut unclaimed = unclaimed.unwrap_or_else(PoisonError::into_inner);
        unclaimed.retain(|other| !Arc::ptr_eq(other, &chunk));
        Ok(DmaBuffer::new(lease, bytes))
    }

    /// Returns whether the arena has all of these bytes, in use or not.
    #[must_use]
    pub fn has(&self, iova: Iova, bytes: usize) -> bool {
        bytes > 0 && self.chunk_around(iova, bytes).is_some()
    }

    fn chunk_around(&self, iova: Iova, bytes: usize) -> Option<Arc<Chunk>> {
        let is_around = |chunk: &Arc<Chunk>| chunk.offset_of(iova, bytes).is_some();
        let shared = self.inner.chunks.lock();
        let shared = shared.unwrap_or_else(PoisonError::into_inner);
        let found = shared.iter().find(|chunk| is_around(chunk)).cloned();
        drop(shared);
        found.or_else(|| {
            let dedicated = self.inner.dedicated();
            let mut dedicated = dedicated.iter().filter_map(|chunk| chunk.upgrade());
            dedicated.find(is_around)
        })
    }

    /// Returns the memory that was in use in the previous process and was not claimed.
    #[must_use]
    pub fn unclaimed(&self) -> Vec<UnclaimedMemory> {
        self.each_unclaimed(false)
    }

    /// Frees the memory that was in use in the previous process and was not claimed, and returns the freed ranges. The
    /// caller ensures that the device does not use that memory any more.
    pub fn finish(&self) -> Vec<UnclaimedMemory> {
        self.each_unclaimed(true)
    }

    fn each_unclaimed(&self, free: bool) -> Vec<UnclaimedMemory> {
        let mut found = Vec::new();
        let shared = self.inner.chunks.lock();
        for chunk in shared.unwrap_or_else(PoisonError::into_inner).iter() {
            found.append(&mut chunk.unclaimed(free));
        }
        let dedicated = self.inner.unclaimed.lock();
        let mut dedicated = dedicated.unwrap_or_else(PoisonError::into_inner);
        for chunk in dedicated.iter() {
            found.append(&mut chunk.unclaimed(free));
        }
        if free {
            // The mappings end after the lock is released, because unmapping takes the kernel some time.
            let over = std::mem::take(&mut *dedicated);
            drop(dedicated);
            drop(over);
        }
        found
    }
}

impl DmaPool {
    /// Describes the pool for another process. Buffers that are dropped later stay in use in the snapshot. The caller
    /// [holds](Function::hold_mappings) the function's mappings first. If memory of the pool is
    /// [kept](crate::WeakArena::keep) for the device, the function cannot be parked.
    #[must_use]
    pub fn snapshot(&self) -> PoolSnapshot {
        PoolSnapshot {
            page_bytes: self.pages.bytes() as u64,
            chunk: self.chunk.snapshot(false),
        }
    }

    /// Makes the pool of a previous process again. The ranges that were in use stay in use until they are
    /// [claimed](Self::claim) and dropped, or [freed](Self::finish).
    ///
    /// # Errors
    /// As [`DmaArena::resume`].
    pub fn resume(function: &Function, snapshot: &PoolSnapshot) -> Result<Self, ResumeError> {
        let sizes = [PageSize::Base, PageSize::Huge2M, PageSize::Huge1G];
        let PoolSnapshot {
            page_bytes,
            ref chunk,
        } = *snapshot;
        let pages = sizes
            .into_iter()
            .find(|size| size.bytes() as u64 == page_bytes);
        let whole_pages = chunk.bytes.is_multiple_of(page_bytes.max(DMA_PAGE as u64));
        let Some(pages) = pages.filter(|_| whole_pages && !chunk.is_dedicated) else {
            return Err(ResumeError::Snapshot {
                name: function.name().to_owned(),
                what: format!(
                    "a pool of {:#x} bytes with pages of {page_bytes:#x}, dedicated: {}",
                    chunk.bytes, chunk.is_dedicated
                ),
            });
        };
        let chunk = Arc::new(Chunk::resume(function, chunk)?);
        Ok(Self { chunk, pages })
    }

    /// Returns a buffer that was in use in the previous process, with its contents. The length is compared as by
    /// [`DmaArena::claim`].
    ///
    /// # Errors
    /// As [`DmaArena::claim`].
    pub fn claim(&self, iova: Iova, bytes: usize) -> Result<DmaBuffer, ClaimError> {
        if bytes == 0 {
            let iova = iova.0;
            return Err(ClaimError::Outside { iova, bytes });
        }
        Ok(DmaBuffer::new(self.chunk.claim(iova, bytes)?, bytes))
    }

    /// Returns the memory that was in use in the previous process and was not claimed.
    #[must_use]
    pub fn unclaimed(&self) -> Vec<UnclaimedMemory> {
        self.chunk.unclaimed(false)
    }

    /// Frees the memory that was in use in the previous process and was not claimed, and returns the freed ranges. The
    /// caller ensures that the device does not use that memory any more.
    pub fn finish(&self) -> Vec<UnclaimedMemory> {
        self.chunk.unclaimed(true)
    }
}
