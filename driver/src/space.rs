//! I/O address spaces: which addresses are taken, what is mapped at them, and which functions reach it.
//!
//! A function has an I/O address space of its own, unless it was opened in that of others
//! ([`dma_space`](crate::Function::dma_space)). Whatever is mapped in a space is mapped once and reached by every
//! function in it: memory made for one can be registered on all of them. Under the kernel's VFIO a space is a
//! container, and the kernel pins a page once for each mapping of the container, however many groups are in it (Linux
//! `drivers/vfio/vfio_iommu_type1.c`). Of functions in this process, or in others, each is told of every mapping.
//!
//! Functions come and go. One that comes is told of what is there; one that goes is told that it is there no more, and
//! the last one leaves nothing mapped. Memory may outlive them all; its addresses are given back with it.
//!
//! A mapping that a function does not let go of stays in the books: its addresses are not used again, and all functions
//! of the space are stopped for good ([`Space::stop`]). One that goes, and keeps a mapping, is stopped alone.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{Backend, MOST_MAPPINGS};
use crate::error::{DmaError, FunctionError, IovaError};
use crate::iova::{Iova, IovaAllocator};
use crate::lendings::Lendings;
use crate::memory::SharedMemory;
use crate::vfio::Container;

/// A mapping: memory, where in it, how much.
struct Entry {
    memory: SharedMemory,
    offset: usize,
    bytes: usize,
    /// A function that is no member kept it: its addresses are not used again.
    kept: bool,
}

#[derive(Default)]
struct State {
    members: Vec<Backend>,
    mapped: BTreeMap<u64, Entry>,
    /// Where mappings started that are over, and that a function has kept.
    kept: BTreeSet<u64>,
    /// All were stopped, since a member did not let go of memory.
    broken: bool,
}

impl State {
    /// Ends the use of memory by all members, for good. What came of it.
    fn stop(&mut self) -> Vec<Result<(), FunctionError>> {
        self.broken = true;
        let stop = |member: &Backend| member.set_bus_master(false).or_else(|_| member.reset());
        self.members.iter().map(stop).collect()
    }
}

/// An I/O address space.
pub(crate) struct Space {
    /// The function that it was made for, for messages.
    name: String,
    iova: Mutex<IovaAllocator>,
    state: Mutex<State>,
    lent: Mutex<Lendings<Mapped>>,
}

/// Memory that is mapped in an I/O address space. Taken back on drop.
pub(crate) struct Mapped {
    space: Arc<Space>,
    iova: Iova,
    /// `None` only within `drop`.
    memory: Option<SharedMemory>,
    bytes: usize,
}

impl Mapped {
    /// Maps all of `memory` at `iova`, which was allocated for it; given back here if a function refuses.
    pub(crate) fn new(
        space: &Arc<Space>,
        memory: SharedMemory,
        iova: Iova,
    ) -> Result<Self, DmaError> {
        let bytes = memory.len();
        if let Err(error) = space.map(iova, &memory, 0, bytes) {
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
        // PANIC: only `drop` takes it.
        self.memory
            .as_ref()
            .expect("mapped memory is there until it drops")
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        match self.space.unmap(self.iova, self.bytes) {
            Ok(()) => self.space.free_iova(self.iova, self.bytes),
            Err(error) => {
                // Memory of ours is leaked. Memory of somebody else's is his again whatever we do, so the devices must
                // stop.
                let stopped = self.space.stop();
                tracing::error!(
                    ?stopped,
                    "{error}; the device may still reach the memory: bus mastering goes off, and the memory is leaked"
                );
                std::mem::forget(self.memory.take());
            }
        }
    }
}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapped({:#x} bytes at {:?})", self.bytes, self.iova)
    }
}

/// The I/O address space of a function, for opening others in it. It keeps no function open.
#[derive(Clone)]
pub struct DmaSpace(pub(crate) Arc<Space>);

impl std::fmt::Debug for DmaSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DmaSpace({})", self.0.name)
    }
}

impl DmaSpace {
    /// The function that it was made for.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether a function of it is open, beside which others can be.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.0.state().members.is_empty()
    }
}

impl Space {
    /// The space of one function.
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

    /// The function that it was made for.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn addresses(&self) -> MutexGuard<'_, IovaAllocator> {
        self.iova.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory that is lent in it.
    pub(crate) fn lent(&self) -> MutexGuard<'_, Lendings<Mapped>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a range of I/O addresses that nothing is mapped at.
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

    /// Gives a range back, once nothing is mapped at it any more, or could not be. If a function has kept what was
    /// mapped there, it is nobody's.
    pub(crate) fn free_iova(&self, iova: Iova, bytes: usize) {
        if self.state().kept.contains(&iova.0) {
            return;
        }
        self.addresses().free(iova.0, bytes as u64);
    }

    /// The container, if its functions are under VFIO and one is open.
    pub(crate) fn container(&self) -> Option<Arc<Container>> {
        match self.state().members.first()? {
            Backend::Vfio(vfio) => Some(Arc::clone(vfio.container())),
            Backend::InProcess(_) | Backend::VfioUser(_) => None,
        }
    }

    /// Mappings that can still be made; `None` where nobody says.
    pub(crate) fn mappings_left(&self) -> Option<u32> {
        let state = self.state();
        // CAST: there are at most as many as the limits allow.
        let made = u32::try_from(state.mapped.len()).unwrap_or(u32::MAX);
        let left = state.members.iter().map(|member| match member {
            Backend::InProcess(_) => Some(MOST_MAPPINGS.saturating_sub(made)),
            Backend::VfioUser(client) => Some(client.most_mappings().saturating_sub(made)),
            // The kernel counts.
            Backend::Vfio(vfio) => vfio.container().mappings_left(),
        });
        left.flatten().min()
    }

    /// The space is broken; what is refused to a function of that name.
    fn stopped(&self, name: &str) -> FunctionError {
        FunctionError::Stopped {
            name: name.to_owned(),
            space: self.name.clone(),
        }
    }

    /// Switches BAR decoding and bus mastering of a member on.
    pub(crate) fn start(&self, backend: &Backend) -> Result<(), FunctionError> {
        // Held until it is done: who stops the members waits.
        let state = self.state();
        if state.broken {
            return Err(self.stopped(backend.name()));
        }
        backend.set_bus_master(true)
    }

    /// Makes memory reachable for every function of the space, or for none. Servers that are lost are not asked, unless
    /// there is nobody else.
    pub(crate) fn map(
        &self,
        iova: Iova,
        memory: &SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), FunctionError> {
        let mut state = self.state();
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
        let mut told: Vec<usize> = Vec::new();
        let mut lost = None;
        for number in 0..state.members.len() {
            let member = &state.members[number];
            if number > 0 && matches!(member, Backend::Vfio(_)) {
                // They share the container.
                break;
            }
            let mapped = member.may_map(iova, bytes, made);
            let mapped = mapped.and_then(|()| member.dma_map(iova, memory, offset, bytes));
            match mapped {
                Ok(()) => told.push(number),
                Err(error) if member.is_lost() => lost = Some(error),
                Err(error) => {
                    self.roll_back(&mut state, &told, iova, memory, bytes);
                    return Err(error);
                }
            }
        }
        if let Some(error) = lost.filter(|_| told.is_empty()) {
            return Err(error);
        }
        let entry = Entry {
            memory: memory.clone(),
            offset,
            bytes,
            kept: false,
        };
        state.mapped.insert(iova.0, entry);
        Ok(())
    }

    /// Takes a mapping back from the members that have it. If one of them keeps it, all are stopped, its addresses are
    /// nobody's, and the memory is leaked: it is the device's for as long as it holds it.
    fn roll_back(
        &self,
        state: &mut State,
        told: &[usize],
        iova: Iova,
        memory: &SharedMemory,
        bytes: usize,
    ) {
        for &number in told {
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

    /// Takes one mapping back, exactly as it was made, from every function of the space. The memory is let go of when
    /// all of them have answered.
    pub(crate) fn unmap(&self, iova: Iova, bytes: usize) -> Result<(), FunctionError> {
        let mut state = self.state();
        let known = state.mapped.get(&iova.0);
        let known = known.filter(|mapped| mapped.bytes == bytes);
        let Some(kept) = known.map(|mapped| mapped.kept) else {
            // What would be unmapped is another mapping, or a part of one.
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
            member.dma_unmap(iova, bytes)?;
        }
        state.mapped.remove(&iova.0);
        if kept {
            state.kept.insert(iova.0);
        }
        Ok(())
    }

    /// Ends the use of memory by every function of the space, for good. What came of it.
    pub(crate) fn stop(&self) -> Vec<Result<(), FunctionError>> {
        self.state().stop()
    }

    /// One more function, which is told of what is mapped already. Under the kernel's VFIO its group has joined the
    /// container, and the kernel has told it.
    ///
    /// # Errors
    /// [`FunctionError::Space`]: no function of the space is open any more, they are of another kind, or something is
    /// mapped where the new one cannot reach it. [`FunctionError::Stopped`]. What the function refuses. It is no member
    /// then.
    pub(crate) fn join(&self, backend: &Backend) -> Result<(), FunctionError> {
        let mut state = self.state();
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
            let mut told: Vec<u64> = Vec::new();
            for (&iova, mapped) in &state.mapped {
                let (offset, bytes) = (mapped.offset, mapped.bytes);
                if let Err(error) = backend.dma_map(Iova(iova), &mapped.memory, offset, bytes) {
                    take_back(backend, &mut state.mapped, |iova| told.contains(&iova));
                    return Err(error);
                }
                told.push(iova);
            }
        }
        self.addresses().restrict(&ranges);
        state.members.push(backend.clone());
        Ok(())
    }

    /// A function closes: what is mapped is taken back from it. It has been told to be quiet.
    pub(crate) fn leave(&self, backend: &Backend) {
        let mut state = self.state();
        let State {
            members, mapped, ..
        } = &mut *state;
        let Some(place) = members.iter().position(|member| member.is_same(backend)) else {
            return;
        };
        // Dropped where the caller has another one: never the last.
        members.swap_remove(place);
        if matches!(backend, Backend::Vfio(_)) && !members.is_empty() {
            // The container is the others', too. The kernel takes the group out of it.
            return;
        }
        take_back(backend, mapped, |_| true);
    }
}

/// Takes mappings back from a function that is no member. If it keeps some, it is stopped, their addresses are not used
/// again, and the memory is leaked.
fn take_back(backend: &Backend, mapped: &mut BTreeMap<u64, Entry>, which: impl Fn(u64) -> bool) {
    let mut refused = false;
    for (&iova, mapped) in mapped.iter_mut().filter(|(iova, _)| which(**iova)) {
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

#[cfg(test)]
mod tests;
