//! I/O address spaces: allocated addresses, mappings, and the functions that use them.
//!
//! A function has an I/O address space of its own, unless it was opened in that of other functions
//! ([`dma_space`](crate::Function::dma_space)). Memory is mapped in a space once and every function of the space can
//! access it: memory allocated for one function can be registered on all of them. Under the kernel's VFIO a space is a
//! container, and the kernel pins a page once for each mapping of the container, regardless of the number of groups
//! (Linux `drivers/vfio/vfio_iommu_type1.c`). For functions simulated in this process or served by another one, each
//! mapping is made at every function.
//!
//! Functions join and leave. A function that joins receives all existing mappings. A function that leaves has them
//! removed. When the last function has left, nothing is mapped. Memory may outlive all functions; its addresses are
//! freed when it is dropped.
//!
//! If a function refuses to unmap memory that is dropped, the mapping stays recorded, its addresses are not used again,
//! and all functions of the space are stopped permanently ([`Space::stop`]). The record of
//! a mapping says which functions have unmapped it before another refused, so that they are not asked again. If a
//! function refuses an unmap while it leaves, only that function is stopped.
//!
//! A space can be held ([`parking`]): a mapping then stays when its owner in this process drops, so that all owners can
//! be dropped before the function is handed over. The next process claims the mappings.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{Backend, MOST_MAPPINGS};
use crate::error::{DmaError, FunctionError, IovaError};
use crate::iova::{Iova, IovaAllocator};
use crate::lent_ranges::LentRanges;
use crate::memory::SharedMemory;
use crate::vfio::Container;

/// A mapping: `bytes` bytes at `offset` of `memory`.
struct Entry {
    memory: SharedMemory,
    offset: usize,
    bytes: usize,
    /// True if a function that has left refused to unmap this mapping. The addresses are then not used again.
    kept: bool,
    /// Members that have unmapped this mapping, after which another member refused to.
    unmapped_by: Vec<Backend>,
    /// True if a member has refused to unmap this mapping.
    refused: bool,
    /// True if the addresses are those of a [`Mapped`], and become free with it.
    allocated: bool,
    /// True if no [`Mapped`] and no program has the mapping; only in a space that is or was held.
    unclaimed: bool,
}

impl Entry {
    /// Returns the index of a backend in `unmapped_by`.
    fn position_unmapped(&self, backend: &Backend) -> Option<usize> {
        self.unmapped_by.iter().position(|one| one.is_same(backend))
    }
}

#[derive(Default)]
struct State {
    members: Vec<Backend>,
    mapped: BTreeMap<u64, Entry>,
    /// Start addresses of former mappings that a function refused to unmap.
    kept: BTreeSet<u64>,
    /// True once all members were stopped, because one of them refused to unmap memory.
    broken: bool,
    /// True while mappings are kept without their owners ([`Space::hold`]).
    held: bool,
    /// True while the function was resumed and is not claimed: no request is made of it.
    unclaimed: bool,
    /// True once the function was handed over to another process. Nothing is mapped or unmapped any more.
    parked: bool,
    /// Number of pieces of memory that the device may still write although they are no longer needed, and that the next
    /// process would free ([`Space::count_kept`]).
    kept_buffers: usize,
}

impl State {
    /// Stops DMA by all members permanently: disables bus mastering, or resets the function if that fails. Returns the
    /// result for each member.
    fn stop(&mut self) -> Vec<Result<(), FunctionError>> {
        self.broken = true;
        let stop = |member: &Backend| member.set_bus_master(false).or_else(|_| member.reset());
        self.members.iter().map(stop).collect()
    }
}

/// An I/O address space.
pub(crate) struct Space {
    /// Name of the function that the space was made for; used in messages.
    name: String,
    /// Locked while `state` is locked, where both are.
    iova: Mutex<IovaAllocator>,
    state: Mutex<State>,
    lent: Mutex<LentRanges<Mapped>>,
}

/// Memory that is mapped in an I/O address space. Unmapped on drop.
pub(crate) struct Mapped {
    space: Arc<Space>,
    iova: Iova,
    /// `None` only within `drop`.
    memory: Option<SharedMemory>,
    bytes: usize,
}

impl Mapped {
    /// Maps all of `memory` at `iova`, which the caller has allocated for it. Frees `iova` if a function refuses.
    pub(crate) fn new(
        space: &Arc<Space>,
        memory: SharedMemory,
        iova: Iova,
    ) -> Result<Self, DmaError> {
        let bytes = memory.len();
        Self::of_part(space, memory, 0, bytes, iova)
    }

    /// Maps `bytes` bytes of `memory` at `iova`, which the caller has allocated for them. Frees `iova` if a function
    /// refuses.
    pub(crate) fn of_part(
        space: &Arc<Space>,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
        iova: Iova,
    ) -> Result<Self, DmaError> {
        if let Err(error) = space.map(iova, &memory, offset, bytes, true) {
            space.free_iova(iova, bytes);
            return Err(error.into());
        }
        Ok(Self {
            space: Arc::clone(space),
            iova,
            memory: Some(memory),
            bytes,
        })
    }

    pub(crate) const fn iova(&self) -> Iova {
        self.iova
    }

    pub(crate) const fn space(&self) -> &Arc<Space> {
        &self.space
    }

    pub(crate) fn memory(&self) -> &SharedMemory {
        // PANIC: only `drop` takes the memory out.
        self.memory
            .as_ref()
            .expect("mapped memory is there until it drops")
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.space.let_go(self.iova, self.bytes, self.memory.take());
    }
}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapped({:#x} bytes at {:?})", self.bytes, self.iova)
    }
}

/// A handle of a function's I/O address space, used to open other functions in it. It keeps no function open.
#[derive(Clone)]
pub struct DmaSpace(pub(crate) Arc<Space>);

impl std::fmt::Debug for DmaSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DmaSpace({})", self.0.name)
    }
}

impl DmaSpace {
    /// Returns the name of the function that the space was made for.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns whether a function of the space is open, so that others can join.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.0.state().members.is_empty()
    }
}

impl Space {
    /// Makes an address space with one function.
    pub(crate) fn of(backend: &Backend) -> Arc<Self> {
        Arc::new(Self {
            name: backend.name().to_owned(),
            iova: Mutex::new(IovaAllocator::new(&backend.iova_ranges())),
            state: Mutex::new(State {
                members: vec![backend.clone()],
                ..State::default()
            }),
            lent: Mutex::default(),
        })
    }

    /// Returns the name of the function that the space was made for.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn addresses(&self) -> MutexGuard<'_, IovaAllocator> {
        self.iova.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks and returns the record of memory lent to the space.
    pub(crate) fn lent(&self) -> MutexGuard<'_, LentRanges<Mapped>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a range of I/O addresses.
    pub(crate) fn alloc_iova(
        &self,
        bytes: usize,
        modulus: usize,
        remainder: usize,
    ) -> Result<Iova, IovaError> {
        // CAST: usize has at most 64 bits on every target Rust has.
        self.addresses()
            .alloc_congruent(bytes as u64, modulus as u64, remainder as u64)
            .map(Iova)
    }

    /// Frees a range of addresses that has no mapping any more. If a function refused to unmap the range, it is never
    /// freed.
    pub(crate) fn free_iova(&self, iova: Iova, bytes: usize) {
        if self.state().kept.contains(&iova.0) {
            return;
        }
        self.addresses().free(iova.0, bytes as u64);
    }

    /// Returns the VFIO container; `None` if the functions are not under VFIO or none is open.
    pub(crate) fn container(&self) -> Option<Arc<Container>> {
        match self.state().members.first()? {
            Backend::Vfio(vfio) => Some(Arc::clone(vfio.container())),
            Backend::InProcess(_) | Backend::VfioUser(_) => None,
        }
    }

    /// Returns the number of mappings that can still be made; `None` if it is not known.
    pub(crate) fn mappings_left(&self) -> Option<u32> {
        let state = self.state();
        // CAST: the mapping limits are below 2^32.
        let made = u32::try_from(state.mapped.len()).unwrap_or(u32::MAX);
        let left = state.members.iter().map(|member| match member {
            Backend::InProcess(_) => Some(MOST_MAPPINGS.saturating_sub(made)),
            Backend::VfioUser(client) => Some(client.most_mappings().saturating_sub(made)),
            // The kernel counts the mappings of a container.
            Backend::Vfio(vfio) => vfio.container().mappings_left(),
        });
        left.flatten().min()
    }

    /// Returns the error for the function `name` in a stopped space.
    fn stopped(&self, name: &str) -> FunctionError {
        FunctionError::Stopped {
            name: name.to_owned(),
            space: self.name.clone(),
        }
    }

    /// Enables BAR decoding and bus mastering of a member.
    pub(crate) fn start(&self, backend: &Backend) -> Result<(), FunctionError> {
        // The lock is held until bus mastering is on, so that a concurrent stop disables it afterwards.
        let state = self.state();
        if state.broken {
            return Err(self.stopped(backend.name()));
        }
        backend.set_bus_master(true)
    }

    /// Ends the mapping of an owner that drops. It stays if the space is held or the function was handed over. Which of
    /// these holds is decided under the same lock as the unmapping, because it may change at any time.
    fn let_go(&self, iova: Iova, bytes: usize, memory: Option<SharedMemory>) {
        let mut state = self.state();
        if state.keep_without_owner(iova, bytes) {
            return;
        }
        let ended = self.end_mapping(&mut state, iova, bytes, true);
        drop(state);
        match ended {
            // The memory is unmapped here, because that takes the kernel some time.
            Some(entry) => drop((entry, memory)),
            None => std::mem::forget(memory),
        }
    }

    /// Unmaps one mapping and frees its addresses, if they were `allocated`. The result still has the memory. If a
    /// function refuses, all functions are stopped, and the result is `None`: the memory is to be leaked.
    fn end_mapping(
        &self,
        state: &mut State,
        iova: Iova,
        bytes: usize,
        allocated: bool,
    ) -> Option<Entry> {
        match self.remove(state, iova, bytes) {
            Ok(entry) => {
                if allocated && !state.kept.contains(&iova.0) {
                    self.addresses().free(iova.0, bytes as u64);
                }
                Some(entry)
            }
            Err(error) => {
                // Our own memory is leaked. The owner of borrowed memory gets it back in any case, so all devices must
                // be stopped.
                let stopped = state.stop();
                tracing::error!(
                    ?stopped,
                    "{error}; the device may still reach the memory: bus mastering goes off, and the memory is leaked"
                );
                None
            }
        }
    }

    /// Maps memory for every function of the space, or for none. Functions whose server is lost are skipped, but if
    /// that leaves no function, the map fails. `allocated`: the addresses become free with the mapping.
    pub(crate) fn map(
        &self,
        iova: Iova,
        memory: &SharedMemory,
        offset: usize,
        bytes: usize,
        allocated: bool,
    ) -> Result<(), FunctionError> {
        let mut state = self.state();
        state.check_claimed(&self.name, "a mapping")?;
        let made = state.mapped.len();
        if state.members.is_empty() {
            return Err(FunctionError::DmaRefused {
                name: self.name.clone(),
                operation: "dma_map",
                iova: iova.0,
                bytes,
                reason: "no function of the address space is open any more".to_owned(),
            });
        }
        if state.broken {
            return Err(self.stopped(&self.name));
        }
        let mut mapped_at: Vec<usize> = Vec::new();
        let mut lost = None;
        for number in 0..state.members.len() {
            let member = &state.members[number];
            if number > 0 && matches!(member, Backend::Vfio(_)) {
                // Functions under VFIO use the same container, so one mapping serves them all.
                break;
            }
            let mapped = member.may_map(iova, bytes, made);
            let mapped = mapped.and_then(|()| member.dma_map(iova, memory, offset, bytes));
            match mapped {
                Ok(()) => mapped_at.push(number),
                Err(error) if member.is_lost() => lost = Some(error),
                Err(error) => {
                    self.roll_back(&mut state, &mapped_at, iova, memory, bytes);
                    return Err(error);
                }
            }
        }
        if let Some(error) = lost.filter(|_| mapped_at.is_empty()) {
            return Err(error);
        }
        let entry = Entry {
            memory: memory.clone(),
            offset,
            bytes,
            kept: false,
            unmapped_by: Vec::new(),
            refused: false,
            allocated,
            unclaimed: false,
        };
        state.mapped.insert(iova.0, entry);
        Ok(())
    }

    /// Removes a mapping from the members that have it. If one of them refuses, all members are stopped, the addresses
    /// are not used again, and the memory is leaked, because the device may still use it.
    fn roll_back(
        &self,
        state: &mut State,
        mapped_at: &[usize],
        iova: Iova,
        memory: &SharedMemory,
        bytes: usize,
    ) {
        for &number in mapped_at {
            if let Err(second) = state.members[number].dma_unmap(iova, bytes) {
                state.kept.insert(iova.0);
                std::mem::forget(memory.clone());
                let stopped = state.stop();
                tracing::error!(
                    ?stopped,
                    space = self.name,
                    "{second}; bus mastering goes off"
                );
            }
        }
    }

    /// Unmaps exactly one mapping, from every function of the space. The memory is released when all functions have
    /// answered. If one of them refuses, a later call asks only those that have not unmapped it yet.
    pub(crate) fn unmap(&self, iova: Iova, bytes: usize) -> Result<(), FunctionError> {
        let mut state = self.state();
        let removed = self.remove(&mut state, iova, bytes)?;
        // The memory is unmapped after the lock is released, because that takes the kernel some time.
        drop(state);
        drop(removed);
        Ok(())
    }

    /// Unmaps exactly one mapping, and returns it.
    fn remove(&self, state: &mut State, iova: Iova, bytes: usize) -> Result<Entry, FunctionError> {
        state.check_claimed(&self.name, "an unmapping")?;
        let known = state.mapped.get_mut(&iova.0);
        let Some(entry) = known.filter(|mapped| mapped.bytes == bytes) else {
            // The range has no mapping, is part of one, or covers one.
            let reason = "nothing was mapped exactly there";
            return Err(match state.members.first() {
                Some(member) => member.not_unmapped(iova, bytes, reason),
                None => FunctionError::DmaRefused {
                    name: self.name.clone(),
                    operation: "dma_unmap",
                    iova: iova.0,
                    bytes,
                    reason: reason.to_owned(),
                },
            });
        };
        for (number, member) in state.members.iter().enumerate() {
            if number > 0 && matches!(member, Backend::Vfio(_)) {
                break;
            }
            if entry.position_unmapped(member).is_none() {
                if let Err(error) = member.dma_unmap(iova, bytes) {
                    entry.refused = true;
                    return Err(error);
                }
                entry.unmapped_by.push(member.clone());
            }
        }
        // PANIC: the entry was found above, under the same lock.
        let removed = state.mapped.remove(&iova.0).expect("a mapping");
        if removed.kept {
            state.kept.insert(iova.0);
        }
        Ok(removed)
    }

    /// Adds a function, and makes all existing mappings for it. Under the kernel's VFIO the function's group is already
    /// in the container, and the kernel has made the mappings.
    ///
    /// # Errors
    /// [`FunctionError::Space`]: no function of the space is open any more, its functions are of another kind, or
    /// memory is mapped at an address that the new function cannot reach. [`FunctionError::Stopped`]: the space was
    /// stopped. Or the function refused a mapping. In each case the function is not added.
    pub(crate) fn join(&self, backend: &Backend) -> Result<(), FunctionError> {
        let mut state = self.state();
        state.check_claimed(&self.name, "another function in its I/O address space")?;
        let refused = |what: String| FunctionError::Space {
            name: backend.name().to_owned(),
            space: self.name.clone(),
            what,
        };
        let Some(first) = state.members.first() else {
            return Err(refused("no function of it is open any more".to_owned()));
        };
        if std::mem::discriminant(first) != std::mem::discriminant(backend) {
            return Err(refused(
                "its functions are reached in another way".to_owned(),
            ));
        }
        if state.broken {
            return Err(self.stopped(backend.name()));
        }
        let ranges = backend.iova_ranges();
        let outside = |(iova, mapped): (&u64, &Entry)| {
            let last = iova + (mapped.bytes as u64 - 1);
            let inside =
                |range: &RangeInclusive<u64>| range.contains(iova) && range.contains(&last);
            (!ranges.iter().any(inside)).then_some(*iova)
        };
        if let Some(iova) = state.mapped.iter().find_map(outside) {
            return Err(refused(format!(
                "memory is mapped at {iova:#x}, which it cannot reach"
            )));
        }
        if !matches!(backend, Backend::Vfio(_)) {
            let mut mapped_at: Vec<u64> = Vec::new();
            for (&iova, mapped) in &state.mapped {
                let (offset, bytes) = (mapped.offset, mapped.bytes);
                if let Err(error) = backend.dma_map(Iova(iova), &mapped.memory, offset, bytes) {
                    take_back(backend, &mut state.mapped, |iova| mapped_at.contains(&iova));
                    return Err(error);
                }
                mapped_at.push(iova);
            }
        }
        self.addresses().restrict(&ranges);
        state.members.push(backend.clone());
        Ok(())
    }

    /// Removes a function that is being closed, and its mappings. The driver has stopped the device before.
    pub(crate) fn remove_member(&self, backend: &Backend) {
        let mut state = self.state();
        let State {
            members, mapped, ..
        } = &mut *state;
        let Some(place) = members.iter().position(|member| member.is_same(backend)) else {
            return;
        };
        // The caller holds another reference to the backend, so this drop is never the last.
        members.swap_remove(place);
        if matches!(backend, Backend::Vfio(_)) && !members.is_empty() {
            // Other functions still use the container. The kernel removes the group from it when the group's file is
            // closed.
            return;
        }
        take_back(backend, mapped, |_| true);
    }
}

/// Removes mappings from a function that is not a member, except those that it has unmapped before. If the function
/// refuses to unmap some, it is stopped, the addresses of these mappings are not used again, and their memory is
/// leaked.
fn take_back(backend: &Backend, mapped: &mut BTreeMap<u64, Entry>, which: impl Fn(u64) -> bool) {
    let mut refused = false;
    for (&iova, mapped) in mapped.iter_mut().filter(|(iova, _)| which(**iova)) {
        if let Some(place) = mapped.position_unmapped(backend) {
            // The caller holds another reference to the backend, so this drop is never the last.
            mapped.unmapped_by.swap_remove(place);
            continue;
        }
        if let Err(error) = backend.dma_unmap(Iova(iova), mapped.bytes) {
            tracing::error!("closing: {error}; the memory is leaked");
            mapped.kept = true;
            refused = true;
            std::mem::forget(mapped.memory.clone());
        }
    }
    if refused {
        let stopped = backend.stop();
        tracing::error!(?stopped, "{} was stopped", backend.name());
    }
}

mod parking;

pub(crate) use parking::CheckedSpace;

#[cfg(test)]
mod tests;
