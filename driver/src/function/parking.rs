//! A function that outlives its process.
//!
//! [`Function::park`] turns a function into a snapshot, which is plain data, and descriptors. The device is told
//! nothing: it keeps its bus mastering, its interrupts and its mappings, and goes on with the work that it has. Another
//! process, or the same one, makes a function of them with [`Function::resume`], maps the memory where it was, and goes
//! on. As long as a duplicate of the descriptors is open, nothing ends: the kernel's VFIO resets a function when the
//! last descriptor of its device file is closed, and a vfio-user server does when its connection ends.
//!
//! ```text
//!   the old process                               the new process
//!     hold_mappings
//!     DmaArena::snapshot
//!     drop BARs, queues, arenas, clones
//!     park  --- FunctionSnapshot, descriptors --->  resume
//!                                                   DmaArena::resume, claim, finish
//!                                                   release_mappings
//! ```
//!
//! A refusal changes nothing. If `park` is refused, the function is given back, and its mappings are all there: an
//! arena is made again from its snapshot, as in a new process. If `resume` is refused, the descriptors are given back.
//!
//! Two processes never drive one function: the old one has no BAR any more, because `park` insists on it, and a second
//! `resume` is refused as long as the function of the first one exists ([`DrivingLock`]). The old process also reads
//! its eventfds no more, because a count can be read only once; that is up to the layer above.
//!
//! A reset of the device meanwhile does not show here: the kernel restores configuration space after a reset (Linux
//! `pci_restore_state`). The layer above asks the device for something that a reset destroys.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Function, Inner};
use crate::backend::Backend;
use crate::descriptors::{Given, Parting};
use crate::device::{COMMAND_BUS_MASTER, COMMAND_MEMORY_SPACE, CONFIG_COMMAND};
use crate::driving_lock::DrivingLock;
use crate::error::{ClaimError, FunctionError, ParkError, ResumeError};
use crate::interrupt::{Interrupt, Notices};
use crate::iova::Iova;
use crate::memory::SharedMemory;
use crate::snapshot::{
    BackendSnapshot, DescriptorSnapshot, FunctionSnapshot, NamedFd, PciIdentity, UnclaimedMemory,
};
use crate::space::{CheckedSpace, Space};
use crate::vfio::{Files, Kernel, Roots, System, Vfio};
use crate::vfio_user::{Client, Sockets};

impl Function {
    /// Lets mappings of DMA memory outlive their owners from now on: when an arena, a pool or a buffer is dropped, the
    /// function keeps the memory and its mapping, until the memory is claimed or the mappings are
    /// [released](Self::release_mappings). Lent memory is unmapped as before. A function that was
    /// [resumed](Self::resume) begins in this state.
    pub fn hold_mappings(&self) {
        let _before = self.inner.space.hold();
    }

    /// Ends the effect of [`hold_mappings`](Self::hold_mappings). Unmaps the memory that has no owner, and returns it.
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

    /// Parts with the function: returns a snapshot, and duplicates of the descriptors that another process needs to go
    /// on. Nothing is sent to the device, and nothing of it ends. To close the function after all, resume it, and drop
    /// it.
    ///
    /// While a function is to be parked, its caller makes no requests of it, and its device is at a quiet point.
    /// Memory of the function that still has an owner in this process stays mapped here, and is the other process's to
    /// use. A pool allocates nothing any more.
    ///
    /// # Errors
    /// Returns the function unchanged, and the reason. [`ParkError::InProcess`]: a model in this process implements
    /// it. [`ParkError::Clones`], [`ParkError::Bars`]: clones of it, or references to its BARs, exist.
    /// [`ParkError::Lost`]: it does not answer, or was removed. [`ParkError::Shared`]: other functions are in its I/O
    /// address space. [`ParkError::Stopped`], [`ParkError::Kept`]: memory was not unmapped when it should have been.
    /// [`ParkError::KeptMemory`]: memory of the function is [kept](crate::WeakArena::keep) for the device.
    /// [`ParkError::LentMemory`], [`ParkError::NoDescriptor`], [`ParkError::OutsideWindow`]: memory is mapped that
    /// another process cannot map. [`ParkError::Mappings`]: the kernel has another number of mappings.
    /// [`ParkError::Query`]: configuration space cannot be read. [`ParkError::Descriptor`]: a descriptor cannot be
    /// made, duplicated or examined.
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
        // An owner of memory that drops in another thread does not change the mappings from here on.
        let were_held = inner.space.hold();
        let parked = inner.snapshot();
        let parked = parked.and_then(|parked| inner.space.part(&inner.name).map(|()| parked));
        match parked {
            Ok(parked) => {
                inner.is_parked = true;
                inner.backend.part();
                Ok(parked)
            }
            Err(error) => {
                if !were_held {
                    // This unmaps what lost its owner meanwhile.
                    inner.space.release();
                }
                let inner = Arc::new(inner);
                Err((Self { inner }, error))
            }
        }
    }

    /// Goes on with a function that this or another process has parked. Nothing is written to the device, and nothing
    /// is mapped or reset. The interrupts are those of the snapshot, with their counts: the first call of
    /// [`enable_interrupts`](Self::enable_interrupts) returns them. Memory is mapped at the addresses that it had; it
    /// is there for [`DmaArena::resume`](crate::DmaArena::resume), [`DmaPool::resume`](crate::DmaPool::resume) and
    /// [`claim_mapping`](Self::claim_mapping), until [`release_mappings`](Self::release_mappings) unmaps what is left.
    ///
    /// # Errors
    /// Returns the descriptors, and the reason; the function goes on alone as long as they are open.
    /// [`ResumeError::Missing`], [`ResumeError::Unknown`], [`ResumeError::Repeated`]: the names of the descriptors are
    /// not those of the snapshot. [`ResumeError::Descriptor`]: a descriptor is another one, or of another kind.
    /// [`ResumeError::Resumed`]: the function was resumed before, and that function still exists.
    /// [`ResumeError::Snapshot`]: numbers of the snapshot make no sense. [`ResumeError::AddressTaken`]: virtual
    /// addresses are in use in this process. [`ResumeError::Memory`]: a file cannot be mapped.
    /// [`ResumeError::Changed`]: the function is another one, has other values in its registers, reaches other I/O
    /// addresses, or has another number of mappings. [`ResumeError::Query`]: it does not answer, or the kernel
    /// refuses a question.
    pub fn resume(
        snapshot: &FunctionSnapshot,
        descriptors: Vec<NamedFd>,
    ) -> Result<Self, (Vec<NamedFd>, ResumeError)> {
        let system: Arc<dyn System> = Arc::new(Kernel);
        Self::resume_by((&system, &Roots::default()), snapshot, descriptors)
    }

    /// Does the same as [`resume`](Self::resume), with another kernel and its sysfs.
    pub(crate) fn resume_by(
        kernel: (&Arc<dyn System>, &Roots),
        snapshot: &FunctionSnapshot,
        descriptors: Vec<NamedFd>,
    ) -> Result<Self, (Vec<NamedFd>, ResumeError)> {
        Self::adopt(kernel, snapshot, &descriptors).map_err(|error| (descriptors, error))
    }

    fn adopt(
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
        // The kernel's VFIO pins the pages that it maps. A server maps the files, as this process does.
        let pinned = match &snapshot.backend {
            BackendSnapshot::Vfio(_) => true,
            BackendSnapshot::VfioUser(_) => false,
        };
        let space = CheckedSpace::of(&name, &snapshot.space, &mut given, pinned)?;
        given.finish()?;

        let backend = files.resume(kernel, snapshot.space.mappings.len(), notices.clone())?;
        check_unchanged(&name, &backend, snapshot)?;
        backend.adopt();
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

/// A backend that goes on without this process.
#[derive(Clone, Copy)]
enum Parkable<'a> {
    VfioUser(&'a Client),
    Vfio(&'a Vfio),
}

impl<'a> Parkable<'a> {
    /// Returns `None` for a model in this process, which ends with it.
    fn of(backend: &'a Backend) -> Option<Self> {
        match backend {
            Backend::InProcess(_) => None,
            Backend::VfioUser(client) => Some(Self::VfioUser(client)),
            Backend::Vfio(vfio) => Some(Self::Vfio(vfio)),
        }
    }

    /// Checks that the connection to a server has not failed.
    fn check_answers(self, function: &str) -> Result<(), ParkError> {
        let lost = match self {
            Self::VfioUser(client) => client.lost(),
            Self::Vfio(_) => None,
        };
        lost.map_or(Ok(()), |lost| {
            Err(ParkError::Lost {
                name: function.to_owned(),
                because: lost.to_string(),
            })
        })
    }

    /// Describes the backend for another process. This process has made `known` mappings.
    fn snapshot(
        self,
        known: usize,
        parting: &mut Parting<'_>,
    ) -> Result<BackendSnapshot, ParkError> {
        let vfio = match self {
            Self::VfioUser(client) => {
                return Ok(BackendSnapshot::VfioUser(client.snapshot(parting)?));
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

/// Descriptors of a backend, and what the snapshot says of it.
enum BackendFiles<'a> {
    VfioUser(&'a crate::snapshot::VfioUserSnapshot, Sockets),
    Vfio(&'a crate::snapshot::VfioSnapshot, Files),
}

impl<'a> BackendFiles<'a> {
    fn of(snapshot: &'a BackendSnapshot, given: &mut Given<'_>) -> Result<Self, ResumeError> {
        Ok(match snapshot {
            BackendSnapshot::VfioUser(client) => {
                Self::VfioUser(client, Sockets::of(client, given)?)
            }
            BackendSnapshot::Vfio(vfio) => Self::Vfio(vfio, Files::of(vfio, given)?),
        })
    }

    /// Goes on with the backend, which is not this process's before [`Backend::adopt`]. The snapshot has `mappings`
    /// mappings.
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

/// Reads the registers of configuration space that tell a function from another one.
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

/// Checks that a function is like the one that was parked.
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
    use crate::double::Double;

    #[test]
    fn a_function_in_this_process_is_not_parked_and_stays_usable() {
        let device = Double::new();
        let function = device.function();
        function.enable_interrupts(1).unwrap();
        let (function, error) = function.park().unwrap_err();
        assert!(matches!(error, ParkError::InProcess { .. }), "{error:?}");
        assert_eq!(
            error.to_string(),
            "double: is implemented in this process, and ends with it"
        );
        function.set_bus_master(true).unwrap();
        assert_eq!((device.interrupts_set(), device.resets()), (1, 0));
    }
}
