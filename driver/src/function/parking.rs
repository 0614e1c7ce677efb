//! A function that outlives its process.
//!
//! [`Function::park`] turns a function into a snapshot, which is plain data, and descriptors. Nothing is written to the
//! device: it keeps its bus mastering, its interrupts and its mappings, and continues the work that it has.
//! [`Function::resume`] makes a function of the snapshot and the descriptors, in another process or in the same one,
//! and maps the memory at the addresses that it had. The device keeps running as long as duplicates of the descriptors
//! are open: the kernel's VFIO resets a function when the last descriptor of its device file is closed, and a vfio-user
//! server when its connection ends.
//!
//! ```text
//!   the old process                               the new process
//!     hold_mappings
//!     DmaArena::snapshot
//!     drop BARs, queues, arenas, clones
//!     park  --- FunctionSnapshot, descriptors --->  resume: an UnclaimedFunction, which is only read
//!                                                   claim the handover, go_on
//!                                                   DmaArena::resume, claim, finish
//!                                                   release_mappings
//! ```
//!
//! A refusal changes nothing. If `park` is refused, it returns the function with all of its mappings, and an arena is
//! made again from its snapshot, as in a new process. If `resume` is refused, it returns the descriptors.
//!
//! Two processes do not drive one function by mistake. `park` is refused while a BAR of the function exists, so the old
//! process has none. A second `resume` is refused while the function of the first one exists ([`DrivingLock`]). The
//! lock is advisory: a process that has the descriptors can drive the device without it. The old process must not read
//! the eventfds any more, because a count can be read only once. The layer above ensures that.
//!
//! A reset of the device between `park` and `resume` is not detected here, because the kernel restores configuration
//! space after a reset (Linux `pci_restore_state`). The layer above detects it by state of the device that a reset
//! destroys.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Function, Inner, UnclaimedFunction};
use crate::backend::Backend;
use crate::descriptors::{Given, Parting};
use crate::device::{COMMAND_BUS_MASTER, COMMAND_MEMORY_SPACE, CONFIG_COMMAND, Device};
use crate::driving_lock::DrivingLock;
use crate::error::{ClaimError, FunctionError, ParkError, ResumeError};
use crate::interrupt::{Interrupt, Notices};
use crate::iova::Iova;
use crate::memory::SharedMemory;
use crate::parked_models;
use crate::snapshot::{
    BackendSnapshot, DescriptorSnapshot, FunctionSnapshot, ModelSnapshot, NamedFd, PciIdentity,
    UnclaimedMemory,
};
use crate::space::{CheckedSpace, Space};
use crate::vfio::{Files, Kernel, Roots, System, Vfio};
use crate::vfio_user::{Client, Sockets};

impl Function {
    /// From now on, mappings of DMA memory stay when their owners drop: when an arena, a pool or a buffer is dropped,
    /// the function keeps the memory and its mapping, until the memory is claimed or the mappings are
    /// [released](Self::release_mappings). Lent memory is unmapped as before. A function that was
    /// [resumed](Self::resume) begins in this state.
    pub fn hold_mappings(&self) {
        let _before = self.inner.space.hold();
    }

    /// Ends the effect of [`hold_mappings`](Self::hold_mappings). Unmaps the memory that has no owner, and returns the
    /// ranges that were unmapped. If the function refuses to unmap a range, the range is not returned: bus mastering is
    /// disabled permanently for all functions of the I/O address space, and the memory is leaked, as when an owner
    /// drops.
    pub fn release_mappings(&self) -> Vec<UnclaimedMemory> {
        self.inner.space.release()
    }

    /// Returns the memory of a mapping that the previous process, or this one before a refused [`park`](Self::park),
    /// has made with [`dma_map`](Self::dma_map) at exactly these I/O addresses. The caller unmaps it with
    /// [`dma_unmap`](Self::dma_unmap). The mapping may be a part of the memory. As long as the mappings are
    /// [held](Self::hold_mappings), it can be claimed again, with the same result.
    ///
    /// # Errors
    /// [`ClaimError::NotInUse`]: no such mapping begins there. [`ClaimError::Length`]: it has another length.
    /// [`ClaimError::Claimed`]: mappings are not held, so the program has the memory.
    pub fn claim_mapping(&self, iova: Iova, bytes: usize) -> Result<SharedMemory, ClaimError> {
        self.inner.space.claim_memory(iova, bytes)
    }

    /// Checks that the function can be parked at all. Changes nothing, and asks the device nothing. [`Self::park`] may
    /// find more reasons.
    ///
    /// # Errors
    /// [`ParkError::InProcess`]: a model in this process implements it, whose `can_be_parked` returns false.
    /// [`ParkError::Lost`]: the connection to its server has failed.
    pub fn can_park(&self) -> Result<(), ParkError> {
        let name = &self.inner.name;
        match Parkable::of(&self.inner.backend) {
            None => Err(ParkError::InProcess { name: name.clone() }),
            Some(backend) => backend.check_answers(name),
        }
    }

    /// Ends this process's use of the function without closing it. Returns a snapshot, and duplicates of the
    /// descriptors that another process needs to resume the function. Nothing is written to the device, and its work
    /// continues. To close a parked function, resume it and drop it.
    ///
    /// From the snapshots of its arenas on, the caller makes no requests of the function and reads no interrupts. Other
    /// threads may still drop memory of it. Memory that has an owner in this process after the call stays mapped in
    /// this process, but only the other process may use it. A pool allocates nothing any more.
    ///
    /// # Errors
    /// Returns the function unchanged, and the reason. [`ParkError::InProcess`]: a model in this process implements
    /// it, whose `can_be_parked` returns false. [`ParkError::Clones`], [`ParkError::Bars`]: clones of it, or references
    /// to its BARs, exist. [`ParkError::Lost`]: it does not answer, or was removed. [`ParkError::Shared`]: other
    /// functions are in its I/O address space. [`ParkError::Stopped`], [`ParkError::Kept`]: a function has refused to
    /// unmap memory. [`ParkError::KeptMemory`]: memory of the function is [kept](crate::WeakArena::keep) for the
    /// device. [`ParkError::LentMemory`], [`ParkError::NoDescriptor`], [`ParkError::OutsideWindow`]: memory is mapped
    /// that another process cannot map. [`ParkError::Mappings`]: the kernel has another number of mappings.
    /// [`ParkError::MappingChanged`]: another thread has changed a mapping during the call. [`ParkError::Query`]:
    /// configuration space, the IOMMU's capabilities or the number of mappings cannot be read.
    /// [`ParkError::Descriptor`]: a descriptor cannot be made, duplicated or examined.
    pub fn park(self) -> Result<(FunctionSnapshot, Vec<NamedFd>), (Self, ParkError)> {
        let mut inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(inner) => {
                let error = ParkError::Clones {
                    name: inner.name.clone(),
                    others: Arc::strong_count(&inner).saturating_sub(1),
                };
                return Err((Self { inner }, error));
            }
        };
        // From here on, no mapping ends because its owner drops in another thread.
        let were_held = inner.space.hold();
        let parked = inner.snapshot();
        let parked = parked.and_then(|(snapshot, fds)| {
            inner.space.part(&inner.name, &snapshot.space)?;
            Ok((snapshot, fds))
        });
        match parked {
            Ok(parked) => {
                inner.is_parked = true;
                inner.backend.part();
                Ok(parked)
            }
            Err(error) => {
                if !were_held {
                    // This unmaps memory whose owner was dropped during this call.
                    inner.space.release();
                }
                let inner = Arc::new(inner);
                Err((Self { inner }, error))
            }
        }
    }

    /// Makes a function that this or another process has parked, in two steps. The result may only be read until
    /// [`go_on`](UnclaimedFunction::go_on) gets the proof that this process has claimed the handover. Dropping it
    /// before that has no effect on the device. This call writes nothing to the device, and maps no memory for it. The
    /// interrupts are those of the snapshot, with their counts: the first call of
    /// [`enable_interrupts`](Self::enable_interrupts) returns them. The memory is mapped in this process at the
    /// addresses that it had. [`DmaArena::resume`](crate::DmaArena::resume),
    /// [`DmaPool::resume`](crate::DmaPool::resume) and [`claim_mapping`](Self::claim_mapping) give the memory an owner.
    /// [`release_mappings`](Self::release_mappings), after `go_on`, unmaps the rest.
    ///
    /// A vfio-user server has 10 s to answer a question. If it answers later, this call is refused, and the next one
    /// drops the late reply, unless a part of it was already received. Then every resumption is refused.
    ///
    /// # Errors
    /// Returns the descriptors, and the reason. The device keeps running as long as the descriptors are open.
    /// [`ResumeError::Missing`], [`ResumeError::Unknown`], [`ResumeError::Repeated`]: the names of the descriptors are
    /// not those of the snapshot. [`ResumeError::Descriptor`]: a descriptor is another one, or of another kind.
    /// [`ResumeError::Resumed`]: the function was resumed before, and that function still exists.
    /// [`ResumeError::Snapshot`]: numbers of the snapshot are impossible, or contradict each other.
    /// [`ResumeError::AddressTaken`]: virtual addresses are in use in this process. [`ResumeError::Memory`]: a file
    /// cannot be mapped. [`ResumeError::Changed`]: the function is another one, has other values in its registers,
    /// reaches other I/O addresses, or has another number of mappings. [`ResumeError::Query`]: it does not answer, or
    /// the kernel refuses a question.
    pub fn resume(
        snapshot: &FunctionSnapshot,
        descriptors: Vec<NamedFd>,
    ) -> Result<UnclaimedFunction, (Vec<NamedFd>, ResumeError)> {
        let system: Arc<dyn System> = Arc::new(Kernel);
        Self::resume_by((&system, &Roots::default()), snapshot, descriptors)
    }

    /// Does the same as [`resume`](Self::resume), with another kernel and its sysfs.
    pub(crate) fn resume_by(
        kernel: (&Arc<dyn System>, &Roots),
        snapshot: &FunctionSnapshot,
        descriptors: Vec<NamedFd>,
    ) -> Result<UnclaimedFunction, (Vec<NamedFd>, ResumeError)> {
        match Self::unclaimed(kernel, snapshot, &descriptors) {
            Ok(function) => Ok(UnclaimedFunction::new(function, descriptors)),
            Err(error) => Err((descriptors, error)),
        }
    }

    fn unclaimed(
        kernel: (&Arc<dyn System>, &Roots),
        snapshot: &FunctionSnapshot,
        descriptors: &[NamedFd],
    ) -> Result<Self, ResumeError> {
        let name = snapshot.name();
        let mut given = Given::new(&name, descriptors)?;
        let lock = DrivingLock::take(&name, &snapshot.lock, &mut given)?;
        let files = BackendFiles::of(&snapshot.backend, &mut given)?;
        let mut vectors = Vec::new();
        for (number, vector) in snapshot.vectors.iter().enumerate() {
            vectors.push(adopt_eventfd(&vector_name(number), vector, &mut given)?);
        }
        let mut notice = |name: &str, notice: &Option<DescriptorSnapshot>| {
            let notice = notice.as_ref();
            notice
                .map(|notice| adopt_eventfd(name, notice, &mut given))
                .transpose()
        };
        let notices = Notices {
            error: notice("error", &snapshot.error)?,
            requested: notice("removal", &snapshot.removal)?,
        };
        // The kernel's VFIO pins the pages that it maps. A vfio-user server and a model map the files, as this process
        // does.
        let pinned = match &snapshot.backend {
            BackendSnapshot::Vfio(_) => true,
            BackendSnapshot::VfioUser(_) | BackendSnapshot::InProcess(_) => false,
        };
        let space = CheckedSpace::of(&name, &snapshot.space, &mut given, pinned)?;
        given.finish()?;

        let backend = files.resume(kernel, snapshot.space.mappings.len(), notices.clone())?;
        check_unchanged(&name, &backend, snapshot)?;
        Ok(Self {
            inner: Arc::new(Inner {
                name,
                space: Space::adopted(&backend, space),
                backend,
                notices,
                interrupts: Mutex::new(vectors),
                lock: Arc::new(Some(lock)),
                is_parked: false,
            }),
        })
    }
}

impl Inner {
    /// Describes the function for another process. Changes nothing.
    fn snapshot(&self) -> Result<(FunctionSnapshot, Vec<NamedFd>), ParkError> {
        let name = || self.name.clone();
        let Some(backend) = Parkable::of(&self.backend) else {
            return Err(ParkError::InProcess { name: name() });
        };
        let count = Arc::strong_count(&self.lock) - 1;
        if count > 0 {
            return Err(ParkError::Bars {
                name: name(),
                count,
            });
        }
        backend.check_answers(&self.name)?;
        // A server answers this after all register writes that were sent before.
        let identity = match identity(&self.backend) {
            Ok(identity) => identity,
            Err(error) => {
                backend.check_answers(&self.name)?;
                return Err(ParkError::Query {
                    name: name(),
                    error: Box::new(error),
                });
            }
        };
        if identity.device == u32::MAX {
            return Err(ParkError::Lost {
                name: name(),
                because: "configuration space reads as ones".to_owned(),
            });
        }
        if let Parkable::Vfio(vfio) = backend {
            vfio.ask_again().map_err(|error| ParkError::Query {
                name: name(),
                error: Box::new(Box::new(error).into()),
            })?;
        }
        let mut parting = Parting::new(&self.name);
        let space = self.space.snapshot(&self.backend, &mut parting)?;
        let interrupts = self.interrupts.lock();
        let interrupts = interrupts.unwrap_or_else(PoisonError::into_inner);
        let mut vectors = Vec::new();
        for (number, vector) in interrupts.iter().enumerate() {
            vectors.push(parting.add(&vector_name(number), vector.as_fd())?);
        }
        let mut notice = |name: &str, notice: &Option<Interrupt>| {
            let notice = notice.as_ref();
            notice
                .map(|notice| parting.add(name, notice.as_fd()))
                .transpose()
        };
        let error = notice("error", &self.notices.error)?;
        let removal = notice("removal", &self.notices.requested)?;
        let lock = match &*self.lock {
            Some(lock) => lock.snapshot(&mut parting)?,
            None => DrivingLock::make(&mut parting)?,
        };
        let backend = backend.snapshot(space.mappings.len(), &mut parting)?;
        let snapshot = FunctionSnapshot {
            backend,
            identity,
            vectors,
            error,
            removal,
            lock,
            space,
        };
        Ok((snapshot, parting.finish()))
    }
}

/// A backend whose function can be parked.
#[derive(Clone, Copy)]
enum Parkable<'a> {
    VfioUser(&'a Client),
    Vfio(&'a Vfio),
    InProcess(&'a Arc<dyn Device>),
}

impl<'a> Parkable<'a> {
    /// Returns `None` for a model in this process whose `can_be_parked` returns false: it ends with the process.
    fn of(backend: &'a Backend) -> Option<Self> {
        match backend {
            Backend::InProcess(model) => model.can_be_parked().then_some(Self::InProcess(model)),
            Backend::VfioUser(client) => Some(Self::VfioUser(client)),
            Backend::Vfio(vfio) => Some(Self::Vfio(vfio)),
        }
    }

    /// Checks that the connection to a server has not failed.
    fn check_answers(self, function: &str) -> Result<(), ParkError> {
        let lost = match self {
            Self::VfioUser(client) => client.lost(),
            Self::Vfio(_) | Self::InProcess(_) => None,
        };
        lost.map_or(Ok(()), |lost| {
            Err(ParkError::Lost {
                name: function.to_owned(),
                because: lost.to_string(),
            })
        })
    }

    /// Describes the backend for the process that resumes it. This process has made `known` mappings.
    fn snapshot(
        self,
        known: usize,
        parting: &mut Parting<'_>,
    ) -> Result<BackendSnapshot, ParkError> {
        let vfio = match self {
            Self::VfioUser(client) => {
                return Ok(BackendSnapshot::VfioUser(client.snapshot(parting)?));
            }
            Self::InProcess(model) => {
                return Ok(BackendSnapshot::InProcess(ModelSnapshot {
                    name: parting.function().to_owned(),
                    model: parked_models::add(model, parting)?,
                }));
            }
            Self::Vfio(vfio) => vfio.snapshot(parting)?,
        };
        match vfio.mappings_made() {
            Some(made) if made != known as u64 => Err(ParkError::Mappings {
                name: parting.function().to_owned(),
                made,
                known,
            }),
            Some(_) | None => Ok(BackendSnapshot::Vfio(vfio)),
        }
    }
}

/// Descriptors of a backend, and its part of the snapshot.
enum BackendFiles<'a> {
    VfioUser(&'a crate::snapshot::VfioUserSnapshot, Sockets),
    Vfio(&'a crate::snapshot::VfioSnapshot, Files),
    InProcess(Arc<dyn Device>),
}

impl<'a> BackendFiles<'a> {
    fn of(snapshot: &'a BackendSnapshot, given: &mut Given<'_>) -> Result<Self, ResumeError> {
        Ok(match snapshot {
            BackendSnapshot::VfioUser(client) => {
                Self::VfioUser(client, Sockets::of(client, given)?)
            }
            BackendSnapshot::Vfio(vfio) => Self::Vfio(vfio, Files::of(vfio, given)?),
            BackendSnapshot::InProcess(it) => {
                Self::InProcess(parked_models::find(&it.model, given)?)
            }
        })
    }

    /// Makes the backend. Dropping it has no effect on the function before [`Backend::adopt`]. The snapshot has
    /// `mappings` mappings.
    fn resume(
        self,
        (system, roots): (&Arc<dyn System>, &Roots),
        mappings: usize,
        notices: Notices,
    ) -> Result<Backend, ResumeError> {
        Ok(match self {
            Self::VfioUser(client, sockets) => {
                Backend::VfioUser(Arc::new(Client::resume(client, sockets, notices)?))
            }
            Self::Vfio(vfio, files) => {
                let system = (Arc::clone(system), roots);
                let vfio = Vfio::resume(system, vfio, mappings, files, notices)?;
                Backend::Vfio(Arc::new(vfio))
            }
            Self::InProcess(model) => Backend::InProcess(model),
        })
    }
}

/// Returns the name of the descriptor of a vector.
fn vector_name(number: usize) -> String {
    format!("vector-{number}")
}

/// Takes over the eventfd of an interrupt.
fn adopt_eventfd(
    name: &str,
    event: &DescriptorSnapshot,
    given: &mut Given<'_>,
) -> Result<Interrupt, ResumeError> {
    let fd = given.duplicate(name, event)?;
    Interrupt::adopted(fd).map_err(|error| given.unfit(name, error.to_string()))
}

/// Reads the registers of configuration space that distinguish functions.
#[expect(
    clippy::little_endian_bytes,
    reason = "configuration space is little-endian"
)]
fn identity(backend: &Backend) -> Result<PciIdentity, FunctionError> {
    let word = |offset| {
        let mut word = [0; 4];
        backend.config_read(offset, &mut word)?;
        Ok::<_, FunctionError>(u32::from_le_bytes(word))
    };
    let mut command = [0; 2];
    backend.config_read(CONFIG_COMMAND, &mut command)?;
    Ok(PciIdentity {
        device: word(0x00)?,
        class: word(0x08)?,
        subsystem: word(0x2c)?,
        command: u16::from_le_bytes(command) & u16::from(COMMAND_MEMORY_SPACE | COMMAND_BUS_MASTER),
    })
}

/// Checks that a function has the registers, I/O addresses and vectors of the snapshot.
fn check_unchanged(
    name: &str,
    backend: &Backend,
    snapshot: &FunctionSnapshot,
) -> Result<(), ResumeError> {
    let changed = |what: String| {
        Err(ResumeError::Changed {
            name: name.to_owned(),
            what,
        })
    };
    let now = identity(backend).map_err(|error| ResumeError::Query {
        name: name.to_owned(),
        error: Box::new(error),
    })?;
    if now != snapshot.identity {
        return changed(format!(
            "its registers were {:x?}, and are {now:x?}",
            snapshot.identity
        ));
    }
    let (ranges, before) = (backend.iova_ranges(), &snapshot.space.ranges);
    if ranges != *before {
        return changed(format!(
            "it reaches I/O addresses {ranges:x?}, and reached {before:x?}"
        ));
    }
    let (count, enabled) = (backend.interrupt_count(), snapshot.vectors.len());
    if enabled > count {
        return changed(format!(
            "it has {count} vectors, and {enabled} were enabled"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DmaArena;
    use crate::double::Double;

    #[test]
    fn a_function_in_this_process_is_refused_and_stays_usable() {
        let device = Double::new();
        let function = device.function();
        function.enable_interrupts(1).unwrap();
        let error = function.can_park().unwrap_err();
        assert!(matches!(error, ParkError::InProcess { .. }), "{error:?}");
        let (function, error) = function.park().unwrap_err();
        assert!(matches!(error, ParkError::InProcess { .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            "double: is implemented in this process, and ends with it"
        );
        function.set_bus_master(true).unwrap();
        assert_eq!((device.interrupts_set(), device.resets()), (1, 0));
    }

    /// Parks a function that has memory, and lets the model write there. Returns the snapshots, the descriptors, and
    /// the place of the memory.
    fn parked(
        device: &Arc<Double>,
    ) -> (
        FunctionSnapshot,
        Vec<NamedFd>,
        crate::ArenaSnapshot,
        (Iova, u64),
    ) {
        let model = Arc::clone(device) as Arc<dyn Device>;
        let function = Function::in_process(model).unwrap();
        function.set_bus_master(true).unwrap();
        let interrupts = function.enable_interrupts(1).unwrap();
        let arena = DmaArena::with_chunk_bytes(&function, 1 << 16).unwrap();
        let buffer = arena.alloc(100, 64).unwrap();
        let place = (buffer.iova(), buffer.address());
        function.hold_mappings();
        let arena_before = arena.snapshot().unwrap();
        drop((interrupts, buffer, arena));
        let (snapshot, descriptors) = function.park().map_err(|(_, error)| error).unwrap();
        let (memory, at) = device.reach(place.0.0);
        assert_ne!(
            (memory.address() + at) as u64,
            place.1,
            "a mapping of its own"
        );
        memory.write_bytes(at, b"by device");
        device.signal(0);
        (snapshot, descriptors, arena_before, place)
    }

    #[test]
    fn a_function_of_a_model_that_can_be_parked_is_resumed_in_this_process() {
        let device = Arc::new(Double::that_can_be_parked());
        let (snapshot, descriptors, arena_before, (iova, address)) = parked(&device);
        let mappings = device.mappings();
        let unclaimed = Function::resume(&snapshot, descriptors).unwrap();
        let function = unclaimed.go_on(&crate::handover::Claimed::by_caller());
        let arena = DmaArena::resume(&function, &arena_before).unwrap();
        let buffer = arena.claim(iova, 100).unwrap();
        assert_eq!(buffer.address(), address);
        assert_eq!(buffer.read_obj::<[u8; 9]>(0), *b"by device");
        let interrupts = function.enable_interrupts(1).unwrap();
        assert_eq!(interrupts[0].take(), 1);
        assert_eq!(device.mappings(), mappings);
        assert_eq!((device.interrupts_set(), device.resets()), (1, 0));
        drop((buffer, arena, interrupts, function));
        assert_eq!((device.interrupts_set(), device.mappings()), (0, vec![]));
    }

    /// The file of a model is the same for all of its snapshots, and stands for nothing after a new opening.
    #[test]
    fn a_model_is_found_by_its_snapshots_until_it_is_opened_anew() {
        let device = Arc::new(Double::that_can_be_parked());
        let (snapshot, descriptors, ..) = parked(&device);
        let again = |fds: &[NamedFd]| {
            let again = fds.iter().map(|NamedFd { name, fd }| NamedFd {
                name: name.clone(),
                fd: fd.try_clone().unwrap(),
            });
            again.collect::<Vec<_>>()
        };
        let other_double = Arc::new(Double::that_can_be_parked());
        let (other, others, ..) = parked(&other_double);
        drop(Function::resume(&other, others).unwrap());
        let unclaimed = Function::resume(&snapshot, again(&descriptors)).unwrap();
        let function = unclaimed.go_on(&crate::handover::Claimed::by_caller());
        let next = function.park().map_err(|(_, error)| error).unwrap();
        drop(Function::resume(&snapshot, again(&descriptors)).unwrap());
        drop(Function::resume(&next.0, next.1).unwrap());
        assert_eq!((device.interrupts_set(), device.resets()), (1, 0));
        drop(Function::in_process(Arc::clone(&device) as Arc<dyn Device>).unwrap());
        let (given_back, error) = Function::resume(&snapshot, descriptors).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("opened anew"), "{text}");
        assert_eq!(given_back.len(), next.0.vectors.len() + 5);
    }
}
