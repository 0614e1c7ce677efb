//! Spaces of functions that are handed over to another process, or were taken over from one.
//!
//! ```text
//!   open --hold--> held --snapshot, part--> parked (here)
//!                   ^                                        the device keeps running
//!                   |   a new process:  adopted (held)  <----      no request before the function is claimed
//!   open <--release-+
//! ```
//!
//! In a held space a mapping stays when its owner drops: the space keeps the memory, and the mapping is *unclaimed*. An
//! owner can claim it again, in this process or in the one that takes the function over. Releasing the space unmaps the
//! mappings that are still unclaimed. Lent memory is an exception: it is unmapped when its lease ends, in any state.
//!
//! A parked space makes no request of a function. Memory that still has an owner in this process is mapped only in the
//! process then; dropping it does not unmap it from the device.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use super::{Entry, Mapped, Space, State};
use crate::backend::Backend;
use crate::descriptors::{Given, Parting};
use crate::dma_window;
use crate::error::{ClaimError, ErrnoText, FunctionError, ParkError, ResumeError};
use crate::iova::{Iova, IovaAllocator};
use crate::memory::SharedMemory;
use crate::page::{DMA_PAGE, GIB};
use crate::snapshot::{MappingSnapshot, MemorySnapshot, SpaceSnapshot, UnclaimedMemory};

impl State {
    /// Refuses a request of a function that was resumed and is not claimed.
    pub(super) fn check_claimed(
        &self,
        function: &str,
        request: &'static str,
    ) -> Result<(), FunctionError> {
        if self.unclaimed {
            let name = function.to_owned();
            return Err(FunctionError::Unclaimed { name, request });
        }
        Ok(())
    }

    /// Keeps the mapping of an owner that drops, if the space is held or the function was handed over. Returns whether
    /// the mapping stays.
    pub(super) fn keep_without_owner(&mut self, iova: Iova, bytes: usize) -> bool {
        if self.parked {
            return true;
        }
        let entry = self.mapped.get_mut(&iova.0);
        let Some(entry) = entry.filter(|it| it.bytes == bytes) else {
            return false;
        };
        let stays = self.held && entry.memory.open().is_none();
        entry.unclaimed |= stays;
        stays
    }

    /// Checks that the function is the only one of the space, that no function has refused to unmap memory, and that no
    /// memory is kept for the device.
    fn check_parkable(&self, function: &str) -> Result<(), ParkError> {
        let name = function.to_owned();
        if self.members.len() != 1 {
            let functions = self.members.len();
            return Err(ParkError::Shared { name, functions });
        }
        if self.broken {
            return Err(ParkError::Stopped { name });
        }
        let refused = |entry: &Entry| entry.kept || entry.refused;
        let refused = self.mapped.iter().find(|(_, entry)| refused(entry));
        let refused = refused.map(|(iova, _)| iova).or(self.kept.first());
        if let Some(&iova) = refused {
            return Err(ParkError::Kept { name, iova });
        }
        match self.kept_buffers {
            0 => Ok(()),
            count => Err(ParkError::KeptMemory { name, count }),
        }
    }

    /// Checks that the mappings are exactly those of a snapshot.
    fn check_described(&self, function: &str, snapshot: &SpaceSnapshot) -> Result<(), ParkError> {
        let now = self.mapped.iter().map(|(&iova, entry)| {
            // CAST: usize has at most 64 bits on every target Rust has.
            let (bytes, offset) = (entry.bytes as u64, entry.offset as u64);
            (iova, bytes, entry.memory.address() as u64, offset)
        });
        let described = snapshot.mappings.iter().map(|mapping| {
            // PANIC: `snapshot` was made by this space.
            let memory = &snapshot.memories[mapping.memory as usize];
            (mapping.iova, mapping.bytes, memory.address, mapping.offset)
        });
        match first_difference(now, described) {
            None => Ok(()),
            Some((iova, ..)) => Err(ParkError::MappingChanged {
                name: function.to_owned(),
                iova,
            }),
        }
    }
}

/// Returns the smallest item that is in only one of two ascending sequences.
fn first_difference<T: Ord>(
    mut one: impl Iterator<Item = T>,
    mut other: impl Iterator<Item = T>,
) -> Option<T> {
    loop {
        match (one.next(), other.next()) {
            (Some(one), Some(other)) if one == other => {}
            (Some(one), Some(other)) => return Some(one.min(other)),
            (one, other) => return one.or(other),
        }
    }
}

impl Space {
    /// Refuses a request of a function that was resumed and is not claimed.
    pub(crate) fn check_claimed(
        &self,
        function: &str,
        request: &'static str,
    ) -> Result<(), FunctionError> {
        self.state().check_claimed(function, request)
    }

    /// Ends the time in which the function may only be read.
    pub(crate) fn end_unclaimed(&self) {
        self.state().unclaimed = false;
    }

    /// Ends this process's use of a function that is dropped without a claim, as [`part`](Self::part) does. Returns
    /// false and does nothing if the function is claimed.
    pub(crate) fn abandon_unclaimed(&self) -> bool {
        let mut state = self.state();
        if !state.unclaimed {
            return false;
        }
        state.parked = true;
        let members = std::mem::take(&mut state.members);
        let mapped = std::mem::take(&mut state.mapped);
        // Memory is unmapped in this process after the lock is released, because that takes the kernel some time.
        drop(state);
        drop((members, mapped));
        true
    }

    /// From now on, a mapping stays when its owner drops. Returns whether the space was held before.
    pub(crate) fn hold(&self) -> bool {
        std::mem::replace(&mut self.state().held, true)
    }

    /// Ends the effect of [`hold`](Self::hold): unmaps all unclaimed mappings, and returns those that were unmapped.
    /// Each is found and unmapped under one lock, because the program may unmap it too, or map other memory there.
    pub(crate) fn release(&self) -> Vec<UnclaimedMemory> {
        let mut unmapped = Vec::new();
        let mut state = self.state();
        if state.unclaimed {
            return unmapped;
        }
        state.held = false;
        drop(state);
        loop {
            let mut state = self.state();
            let mut unclaimed = state.mapped.iter_mut().filter(|(_, it)| it.unclaimed);
            let Some((&iova, entry)) = unclaimed.next() else {
                return unmapped;
            };
            // A mapping that the function refuses to unmap stays, and is not unmapped again here.
            entry.unclaimed = false;
            let (iova, bytes, allocated) = (Iova(iova), entry.bytes, entry.allocated);
            let memory = entry.memory.clone();
            let ended = self.end_mapping(&mut state, iova, bytes, allocated);
            drop(state);
            match ended {
                Some(_) => unmapped.push(UnclaimedMemory { iova, bytes }),
                None => std::mem::forget(memory),
            }
        }
    }

    /// Returns whether the function was handed over to another process.
    pub(crate) fn is_parked(&self) -> bool {
        self.state().parked
    }

    /// Counts a piece of memory that the device may still write although it is no longer needed. In the next process
    /// the memory would count as unclaimed and be freed, so the function cannot be parked any more. If `only_held`, the
    /// memory counts only while the space is held. Memory that an arena kept before that needs no count: the arena
    /// refuses a snapshot.
    pub(crate) fn count_kept(&self, only_held: bool) {
        let mut state = self.state();
        if state.held || !only_held {
            state.kept_buffers += 1;
        }
    }

    /// Makes an owner of an unclaimed mapping of exactly these bytes. The mapping ends when the owner drops.
    pub(crate) fn claim(self: &Arc<Self>, iova: Iova, bytes: usize) -> Result<Mapped, ClaimError> {
        let memory = self.claim_entry(iova, bytes, true)?;
        Ok(Mapped {
            space: Arc::clone(self),
            iova,
            memory: Some(memory),
            bytes,
        })
    }

    /// Returns the memory of a mapping whose addresses the program has chosen. In a held space the mapping can be
    /// claimed repeatedly, because the program may have dropped the memory before a `park` that was refused.
    pub(crate) fn claim_memory(
        &self,
        iova: Iova,
        bytes: usize,
    ) -> Result<SharedMemory, ClaimError> {
        self.claim_entry(iova, bytes, false)
    }

    fn claim_entry(
        &self,
        iova: Iova,
        bytes: usize,
        allocated: bool,
    ) -> Result<SharedMemory, ClaimError> {
        let mut state = self.state();
        let held = state.held;
        let entry = state.mapped.get_mut(&iova.0);
        let Some(entry) = entry.filter(|entry| entry.allocated == allocated) else {
            let iova = iova.0;
            return Err(ClaimError::NotInUse { iova, bytes });
        };
        let iova = iova.0;
        if entry.bytes != bytes {
            let in_use = entry.bytes;
            return Err(ClaimError::Length {
                iova,
                bytes,
                in_use,
            });
        }
        if !entry.unclaimed && (allocated || !held) {
            return Err(ClaimError::Claimed { iova, bytes });
        }
        entry.unclaimed = false;
        Ok(entry.memory.clone())
    }

    /// Describes the space for another process, with a duplicate of each descriptor. The space is held, so no mapping
    /// ends when its owner drops. [`part`](Self::part) checks that none was added.
    pub(crate) fn snapshot(
        &self,
        backend: &Backend,
        parting: &mut Parting<'_>,
    ) -> Result<SpaceSnapshot, ParkError> {
        let state = self.state();
        // `part` checks this again. The checks below would hide the reason: memory that a function has refused to unmap
        // may be lent memory.
        state.check_parkable(parting.function())?;
        let name = || parting.function().to_owned();
        for (&iova, entry) in &state.mapped {
            let (name, bytes) = (name(), entry.bytes);
            if entry.memory.open().is_some() {
                return Err(ParkError::LentMemory { name, iova, bytes });
            }
            if entry.memory.as_fd().is_none() {
                return Err(ParkError::NoDescriptor { name, iova, bytes });
            }
            let (address, bytes) = (entry.memory.address() as u64, entry.memory.len() as u64);
            if !dma_window::contains(address, bytes) {
                return Err(ParkError::OutsideWindow {
                    name,
                    address,
                    bytes,
                });
            }
        }
        let (memories, mappings) = memories(&state.mapped, parting)?;
        // The lock of the mappings is still held, so no mapping is between them and the free addresses.
        let addresses = self.addresses();
        Ok(SpaceSnapshot {
            name: self.name.clone(),
            ranges: backend.iova_ranges(),
            free: addresses.free_ranges().collect(),
            allowed: addresses.with_allocated(allocated(&mappings)),
            memories,
            mappings,
        })
    }

    /// Ends this process's use of the function, its mappings and their addresses, which belong to another process from
    /// now on. No request is made of the function. The conditions are checked under the same lock, because another
    /// thread may keep memory, or open a function in the space, at any time. The function that was opened may change
    /// the mappings and be closed again, so they are compared with those of `snapshot`.
    ///
    /// # Errors
    /// [`ParkError::Shared`], [`ParkError::Stopped`], [`ParkError::Kept`], [`ParkError::KeptMemory`],
    /// [`ParkError::MappingChanged`]. The space is unchanged then.
    pub(crate) fn part(&self, function: &str, snapshot: &SpaceSnapshot) -> Result<(), ParkError> {
        let mut state = self.state();
        state.check_parkable(function)?;
        state.check_described(function, snapshot)?;
        state.parked = true;
        let members = std::mem::take(&mut state.members);
        let mapped = std::mem::take(&mut state.mapped);
        // Memory is unmapped after the lock is released, because that takes the kernel some time.
        drop(state);
        drop((members, mapped));
        Ok(())
    }

    /// Makes the space of a function that was resumed and is not claimed. The mappings exist already, and have no
    /// owner.
    pub(crate) fn adopted(backend: &Backend, space: CheckedSpace) -> Arc<Self> {
        let CheckedSpace {
            name,
            addresses,
            mapped,
        } = space;
        Arc::new(Self {
            name,
            iova: Mutex::new(addresses),
            state: Mutex::new(State {
                members: vec![backend.clone()],
                mapped,
                held: true,
                unclaimed: true,
                ..State::default()
            }),
            lent: Mutex::default(),
        })
    }
}

/// Returns the I/O addresses of the mappings whose addresses were allocated.
fn allocated(mappings: &[MappingSnapshot]) -> impl Iterator<Item = RangeInclusive<u64>> + '_ {
    let allocated = mappings.iter().filter(|mapping| mapping.allocated);
    allocated.map(|mapping| mapping.iova..=mapping.iova + (mapping.bytes - 1))
}

/// Describes all mappings, and each memory once. Every memory has a descriptor.
fn memories(
    mapped: &BTreeMap<u64, Entry>,
    parting: &mut Parting<'_>,
) -> Result<(Vec<MemorySnapshot>, Vec<MappingSnapshot>), ParkError> {
    let mut memories: Vec<MemorySnapshot> = Vec::new();
    // Index of the memory by its virtual address.
    let mut places: BTreeMap<u64, usize> = BTreeMap::new();
    let mut mappings = Vec::new();
    for (&iova, entry) in mapped {
        let Some(fd) = entry.memory.as_fd() else {
            continue;
        };
        // CAST: usize has at most 64 bits on every target Rust has.
        let (address, bytes) = (entry.memory.address() as u64, entry.memory.len() as u64);
        let place = match places.get(&address) {
            Some(&place) => place,
            None => {
                let place = memories.len();
                let file_name = memory_name(place);
                let stat = nix::sys::stat::fstat(fd)
                    .map_err(|errno| parting.failed(&file_name, errno.into()))?;
                memories.push(MemorySnapshot {
                    file: parting.add(&file_name, fd)?,
                    address,
                    file_bytes: u64::try_from(stat.st_size).unwrap_or(0),
                    bytes,
                    blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
                });
                places.insert(address, place);
                place
            }
        };
        // Two mappings may have parts of different lengths of one memory.
        memories[place].bytes = memories[place].bytes.max(bytes);
        mappings.push(MappingSnapshot {
            iova,
            bytes: entry.bytes as u64,
            // PANIC: a process has fewer than 2^32 mappings.
            memory: u32::try_from(place).expect("fewer than 2^32 memories"),
            offset: entry.offset as u64,
            allocated: entry.allocated,
        });
    }
    Ok((memories, mappings))
}

/// A space from a snapshot, all of whose numbers were checked and whose memory is mapped in this process.
pub(crate) struct CheckedSpace {
    name: String,
    addresses: IovaAllocator,
    mapped: BTreeMap<u64, Entry>,
}

impl CheckedSpace {
    /// Checks a snapshot of the function `function`, and maps its memory in this process. `given` has the files. If
    /// `pinned`, the device has its own references to the pages.
    pub(crate) fn of(
        function: &str,
        snapshot: &SpaceSnapshot,
        given: &mut Given<'_>,
        pinned: bool,
    ) -> Result<Self, ResumeError> {
        let addresses = check(snapshot).map_err(|what| ResumeError::Snapshot {
            name: function.to_owned(),
            what,
        })?;
        let mut memories = Vec::new();
        for (place, memory) in snapshot.memories.iter().enumerate() {
            let fd = given.duplicate(&memory_name(place), &memory.file)?;
            if pinned {
                check_pages(memory, &fd, given)?;
            }
            memories.push(adopt(function, memory, fd)?);
        }
        let mut mapped = BTreeMap::new();
        for mapping in &snapshot.mappings {
            // PANIC: `check` has compared the indices and the numbers with the memory, whose length is a usize.
            let fits = |number| usize::try_from(number).expect("inside a memory of this process");
            let entry = Entry {
                memory: memories[mapping.memory as usize].clone(),
                offset: fits(mapping.offset),
                bytes: fits(mapping.bytes),
                kept: false,
                unmapped_by: Vec::new(),
                refused: false,
                allocated: mapping.allocated,
                unclaimed: true,
            };
            mapped.insert(mapping.iova, entry);
        }
        Ok(Self {
            name: snapshot.name.clone(),
            addresses,
            mapped,
        })
    }
}

/// Returns the name of the descriptor of a memory.
fn memory_name(place: usize) -> String {
    format!("memory-{place}")
}

/// Checks that no page was removed from a file whose pages are pinned for the device: the device would use the old
/// page, and the process a new one. A page that was removed and then allocated again is not detected.
///
/// Pages that were swapped out count as in use (Linux `mm/shmem.c`, `shmem_recalc_inode`), and more pages may be in use
/// than before. Under memory pressure the kernel drops pages that were read and never written, and these do not count
/// any more; it does not drop pinned pages.
fn check_pages(
    memory: &MemorySnapshot,
    fd: &OwnedFd,
    given: &Given<'_>,
) -> Result<(), ResumeError> {
    let MemorySnapshot { file, blocks, .. } = memory;
    let stat = nix::sys::stat::fstat(fd)
        .map_err(|errno| given.unfit(&file.name, format!("fstat: {}", ErrnoText(errno))))?;
    let found = u64::try_from(stat.st_blocks).unwrap_or(0);
    if found < *blocks {
        let what = format!(
            "{found} blocks of 512 bytes are in use, and {blocks} were: pages were removed from the file"
        );
        return Err(given.unfit(&file.name, what));
    }
    Ok(())
}

/// Maps one memory of a snapshot.
fn adopt(
    function: &str,
    memory: &MemorySnapshot,
    fd: OwnedFd,
) -> Result<SharedMemory, ResumeError> {
    let MemorySnapshot {
        ref file,
        address,
        file_bytes,
        bytes,
        ..
    } = *memory;
    let too_large = || ResumeError::Snapshot {
        name: function.to_owned(),
        what: format!("{file_bytes:#x} bytes at address {address:#x}"),
    };
    let fits = |number| usize::try_from(number).map_err(|_| too_large());
    let adopted = SharedMemory::adopted(fd, fits(address)?, fits(file_bytes)?, fits(bytes)?);
    adopted
        .map_err(|error| ResumeError::of_memory(function, &file.name, (address, file_bytes), error))
}

/// Checks the numbers of a snapshot against each other. Returns the allocator of I/O addresses.
fn check(snapshot: &SpaceSnapshot) -> Result<IovaAllocator, String> {
    let SpaceSnapshot {
        ranges,
        free,
        allowed,
        memories,
        mappings,
        ..
    } = snapshot;
    let addresses = IovaAllocator::restored(free, allowed).ok_or_else(|| {
        format!("free I/O addresses {free:x?}, of which {allowed:x?} are allowed")
    })?;
    for range in allowed {
        if !covers(ranges, range) {
            return Err(format!(
                "I/O addresses {range:x?} can be allocated, which the function does not reach"
            ));
        }
    }
    let mut used = 0;
    let mut last_before = None;
    for mapping in mappings {
        let range = check_mapping(mapping, memories)?;
        if last_before.is_some_and(|last| *range.start() <= last) {
            return Err(format!(
                "the mapping of I/O addresses {range:x?} begins below the end of the one before"
            ));
        }
        if !covers(ranges, &range) {
            return Err(format!(
                "the function does not reach the mapping of I/O addresses {range:x?}"
            ));
        }
        if mapping.allocated && addresses.has_free(&range) {
            return Err(format!(
                "some of the mapped I/O addresses {range:x?} are free"
            ));
        }
        // Memories are in the order of the first mapping of each.
        if mapping.memory as usize > used {
            return Err(format!("memory {used} is mapped behind a later one"));
        }
        used = used.max(mapping.memory as usize + 1);
        last_before = Some(*range.end());
    }
    if used != memories.len() {
        return Err(format!("{used} memories of {} are mapped", memories.len()));
    }
    // If a mapping was left out or added, some addresses have no owner or two owners.
    let owned = addresses.with_allocated(allocated(mappings));
    if owned != *allowed {
        return Err(format!(
            "I/O addresses {allowed:x?} can be allocated, and those free and those mapped are {owned:x?}"
        ));
    }
    check_memories(memories, mappings)?;
    Ok(addresses)
}

/// Checks that each memory is a file of its own in the window of DMA memory, and that a mapping whose addresses were
/// allocated is the only one of its memory. Mappings that the program has made may overlap in one memory, because the
/// program may map a page twice.
fn check_memories(memories: &[MemorySnapshot], mappings: &[MappingSnapshot]) -> Result<(), String> {
    // Number of mappings of each memory, and whether the addresses of one of them were allocated.
    let mut uses = vec![(0_usize, false); memories.len()];
    for mapping in mappings {
        // PANIC: `check_mapping` has compared the index with the number of memories.
        let (count, is_allocated) = &mut uses[mapping.memory as usize];
        *count += 1;
        *is_allocated |= mapping.allocated;
    }
    let mut files = BTreeMap::new();
    for (place, memory) in memories.iter().enumerate() {
        let MemorySnapshot {
            ref file,
            address,
            file_bytes,
            bytes,
            ..
        } = *memory;
        if bytes == 0 || bytes > file_bytes {
            return Err(format!("memory of {bytes:#x} bytes of {file_bytes:#x}"));
        }
        if !dma_window::contains(address, file_bytes) {
            return Err(format!(
                "the {file_bytes:#x} bytes of memory at address {address:#x} are not inside the window of DMA memory"
            ));
        }
        if let Some(before) = files.insert((file.device, file.inode), place) {
            return Err(format!("memories {before} and {place} are one file"));
        }
        let (count, is_allocated) = uses[place];
        if count > 1 && is_allocated {
            return Err(format!(
                "memory {place} is that of an arena or a pool, and has {count} mappings"
            ));
        }
    }
    Ok(())
}

/// Returns whether all addresses of a range are in a list of ranges, which may touch each other.
fn covers(ranges: &[RangeInclusive<u64>], wanted: &RangeInclusive<u64>) -> bool {
    let mut at = *wanted.start();
    loop {
        match ranges.iter().find(|range| range.contains(&at)) {
            None => return false,
            Some(range) if range.end() >= wanted.end() => return true,
            // PANIC: less than the end of `wanted`.
            Some(range) => at = range.end() + 1,
        }
    }
}

/// Checks that a mapping is whole pages inside its memory, and all of it if its addresses were allocated. Returns its
/// I/O addresses.
fn check_mapping(
    mapping: &MappingSnapshot,
    memories: &[MemorySnapshot],
) -> Result<RangeInclusive<u64>, String> {
    let MappingSnapshot {
        iova,
        bytes,
        memory,
        offset,
        allocated,
    } = *mapping;
    let count = memories.len();
    let Some(&MemorySnapshot {
        bytes: len,
        address,
        ..
    }) = memories.get(memory as usize)
    else {
        return Err(format!("memory {memory} of {count} is mapped"));
    };
    let whole_pages = (iova | bytes | offset).is_multiple_of(DMA_PAGE as u64);
    let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= len);
    // Address 0 is never allocated. Allocated addresses are congruent to the virtual ones (`dma`).
    let is_congruent = iova % GIB as u64 == address % GIB as u64;
    let can_be_allocated = offset == 0 && bytes == len && iova != 0 && is_congruent;
    let last = bytes.checked_sub(1).and_then(|last| iova.checked_add(last));
    match last {
        Some(last) if whole_pages && is_inside && (can_be_allocated || !allocated) => {
            Ok(iova..=last)
        }
        Some(_) | None => Err(format!(
            "{bytes:#x} bytes from offset {offset:#x} of a memory of {len:#x} at address {address:#x} are mapped at IOVA {iova:#x}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_cover_a_range_in_both() {
        let ranges = [0x8000..=u64::MAX, 0x1000..=0x1fff, 0x2000..=0x2fff];
        for inside in [0x1000..=0x2fff, 0x1fff..=0x2000, 0x9000..=u64::MAX] {
            assert!(covers(&ranges, &inside), "{inside:x?}");
        }
        for outside in [0xfff..=0x1000, 0x2000..=0x3000, 0x2fff..=0x8000, 0..=0] {
            assert!(!covers(&ranges, &outside), "{outside:x?}");
        }
    }
}
