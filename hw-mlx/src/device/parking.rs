//! A function and its instance that outlive their process.
//!
//! [`Hca::park`] turns a function with one instance into a snapshot, which is plain data, and descriptors. The device
//! goes on with the work that it has. [`Hca::resume`] makes an instance of them, in another process or in the same one.
//!
//! ```text
//!   the old process                                       the new process
//!     begin_parking: the quiet point, tables
//!       Cq::park, Qp::park, ...; drop the queues
//!     finish  ------- HcaSnapshot, descriptors ------->   resume: checks, then the first commands
//!             ------- snapshots of queues ------------>     Cq::resume, Qp::resume, ...
//!                                                           events are counted, queues are armed
//!                                                         finish_resuming
//! ```
//!
//! At the quiet point no command and no page request is under way, and all event queues are drained. Completion queues
//! may have entries that were not taken, and queue pairs may have work in flight: what the driver knows of it is in
//! the snapshots of the queues. Such work is never posted again.
//!
//! A refusal changes nothing, or the instance is made again on the same function ([`NotParked`]).
//!
//! The snapshot has only what the device cannot be asked for, or what the device's answers are compared with. Waker,
//! wakeup descriptor, flight recorder, health history and [`Opened`](super::Opened) handles are those of the process:
//! they are new after the resumption.

mod resuming;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use driver::{ArenaSnapshot, Function, FunctionSnapshot, NamedFd, UnclaimedMemory};
use thiserror::Error;

use super::Hca;
use crate::caps::CapabilityPage;
use crate::cmd::CommandQueueSnapshot;
use crate::control::{Control, milliseconds};
use crate::eq::EqSnapshot;
use crate::error::{NotResumed, ParkError, ResumeError};
use crate::event::AsyncEvent;
use crate::gid::GidTableSnapshot;
use crate::instance::Own;
use crate::pages::PagesSnapshot;
use crate::report::BringupReport;

/// A function with one instance that was parked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HcaSnapshot {
    /// The function.
    pub function: FunctionSnapshot,
    /// The driver's tables.
    pub tables: HcaTables,
}

/// The tables of a function with one instance, at its quiet point.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HcaTables {
    /// The function's DMA memory.
    pub arena: ArenaSnapshot,
    /// PCI device ID.
    pub device_id: u16,
    /// PCI revision.
    pub revision: u8,
    /// Firmware version: major, minor, sub-minor.
    pub firmware: (u16, u16, u16),
    /// True if the function is that of the adapter's own processor.
    pub embedded_cpu: bool,
    /// True if the device shows the address of the command queue in the initialization segment.
    pub shows_queue: bool,
    /// The capability pages, with the current values.
    pub capabilities: Vec<CapabilityPage>,
    /// The command queue.
    pub commands: CommandQueueSnapshot,
    /// The firmware's pages.
    pub pages: PagesSnapshot,
    /// The event queues of the function: for commands and pages, for errors and the port, and for shared completion
    /// queues.
    pub event_queues: [EqSnapshot; 3],
    /// The instance's completion event queue, whose doorbell page is the instance's.
    pub own: EqSnapshot,
    /// Completion event queues of instances that have ended, each with its doorbell page.
    pub spare: Vec<EqSnapshot>,
    /// Numbers of the instance's completion queues that had an event which the caller has not fetched.
    pub completions: Vec<u32>,
    /// Numbers of shared completion queues that had an event which the caller has not fetched.
    pub shared_completions: Vec<u32>,
    /// Events that the caller has not fetched, oldest first.
    pub events: Vec<AsyncEvent>,
    /// Number of events that were dropped behind them.
    pub events_lost: u64,
    /// Numbers of objects that the device has.
    pub objects: Vec<ObjectCount>,
    /// Number of the counter set of the queue pairs.
    pub counter_set: Option<u32>,
    /// True if the link was up according to the last event.
    pub link_up: bool,
    /// The port as bring-up configured it.
    pub port: PortSnapshot,
    /// Our addresses.
    pub gids: GidTableSnapshot,
    /// Peers whose MAC was configured.
    pub neighbours: Vec<(IpAddr, [u8; 6])>,
    /// Report of the bring-up.
    pub report: BringupReport,
    /// Time limit of a command.
    pub command_limit: Duration,
    /// Time limit for the firmware to return the next page, while it still holds some.
    pub reclaim_limit: Duration,
}

/// Number of objects of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectCount {
    /// Opcode of the command that creates an object of this kind.
    pub creates: u16,
    /// Number of objects.
    pub count: i64,
}

/// A port as bring-up configured it ([`Port`](crate::Port)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortSnapshot {
    /// MAC that the function uses.
    pub mac: [u8; 6],
    /// MTU in bytes as the hardware counts.
    pub mtu: u32,
    /// True if the link was up at bring-up.
    pub link_up: bool,
    /// GUID of the node.
    pub node_guid: u64,
    /// True if bring-up switched the port on.
    pub switched_on: bool,
    /// True if bring-up entered the MAC in the port's forwarding table.
    pub forwarding: bool,
}

/// A function that was not parked.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct NotParked {
    /// The instance; `None` if there is a `parking`, or if the error is [`ParkError::Lost`]. If the error is
    /// [`ParkError::Function`], the instance is a new one on the same function, as after [`Hca::resume`]: objects are
    /// resumed, and [`Hca::finish_resuming`] ends it.
    pub hca: Option<Hca>,
    /// The unfinished parking, if the error is [`ParkError::MemoryInUse`] or [`ParkError::Arena`] and comes from
    /// [`ParkingHca::finish`]: the caller drops its buffers and finishes again, or cancels the parking.
    pub parking: Option<ParkingHca>,
    /// The reason.
    #[source]
    pub error: ParkError,
}

/// An instance at its quiet point, whose tables are written out. If it is dropped, the function is stopped.
#[must_use = "the function is stopped if this is dropped"]
pub struct ParkingHca {
    hca: Hca,
    tables: HcaTables,
}

impl Hca {
    /// Parks a function whose instance has no objects of the data path: [`Hca::begin_parking`] and
    /// [`ParkingHca::finish`] in one.
    ///
    /// # Errors
    /// [`NotParked`], with the instance and the reason.
    pub fn park(self) -> Result<(HcaSnapshot, Vec<NamedFd>), Box<NotParked>> {
        self.begin_parking()?.finish()
    }

    /// Brings the function to its quiet point and writes its tables out: waits for page requests under way, handles all
    /// events, and checks that nothing else is under way. The caller now parks its objects
    /// ([`Cq::park`](crate::cq::Cq::park) and so on), drops them, and calls [`ParkingHca::finish`]. Memory of the
    /// objects stays mapped. An object that is dropped without being parked keeps the function from being parked.
    ///
    /// # Errors
    /// [`NotParked`] with the unchanged instance, and the reason: any [`ParkError`] except [`ParkError::Function`] and
    /// [`ParkError::Lost`].
    pub fn begin_parking(mut self) -> Result<ParkingHca, Box<NotParked>> {
        match self.write_out() {
            Ok(tables) => Ok(ParkingHca { hca: self, tables }),
            Err(error) => Err(Box::new(NotParked {
                hca: Some(self),
                parking: None,
                error,
            })),
        }
    }

    /// Goes on with a function that this or another process has parked. Its objects are resumed next, and then
    /// [`Hca::finish_resuming`] is called. Events are handled as usual: those that came meanwhile are in the queues.
    ///
    /// All that can be checked without a command is checked first. The first commands ask the device for what it can
    /// tell: capabilities, event queues, addresses, counters. Only then event queues are drained and armed.
    ///
    /// # Errors
    /// [`NotResumed`] with the descriptors and the reason. The device is neither stopped nor reset; that happens when
    /// the last duplicate of the descriptors is closed.
    pub fn resume(
        snapshot: &HcaSnapshot,
        descriptors: Vec<NamedFd>,
    ) -> Result<Self, Box<NotResumed>> {
        resuming::resume(snapshot, descriptors)
    }

    /// Ends the resumption: frees the memory that the previous process had and that was not claimed, such as mailboxes,
    /// and returns it. Does nothing if the function was not resumed.
    ///
    /// # Errors
    /// Objects that use memory exist in the device and were not resumed: their kinds and numbers. Nothing was freed.
    pub fn finish_resuming(&mut self) -> Result<Vec<UnclaimedMemory>, Vec<(&'static str, i64)>> {
        let mut control = self.shared.lock();
        let Some(resumed) = &control.resumed else {
            return Ok(Vec::new());
        };
        let missing = control.objects.with_memory_besides(resumed);
        if !missing.is_empty() {
            return Err(missing);
        }
        control.resumed = None;
        let mut unclaimed = self.shared.arena.finish();
        unclaimed.extend(self.shared.function.release_mappings());
        Ok(unclaimed)
    }

    /// Reaches the quiet point, and writes the tables out. Changes nothing that an instance would notice.
    fn write_out(&mut self) -> Result<HcaTables, ParkError> {
        let Self { own, shared } = self;
        let mut control = shared.lock();
        let deadline = control.now() + control.timeout;
        let outcome = loop {
            own.serve(&mut control);
            if let Err(error) = check_usable(own, &mut control) {
                break Err(error);
            }
            if !control.pages.busy() {
                break check_quiet(&control);
            }
            if control.now() >= deadline {
                let waited_ms = milliseconds(control.timeout);
                break Err(ParkError::PageRequests { waited_ms });
            }
            control = own.sleep(shared, control, deadline);
        };
        own.set_idle(&mut control);
        outcome?;
        let arena = shared.arena.snapshot()?;
        shared.function.hold_mappings();
        // No other instance can be made, and no thread without an instance can send commands.
        control.closed = true;
        let (events, events_lost) = own.inbox_contents(&control);
        let [commands, errors, shared_completions] = &control.eqs[..] else {
            // PANIC: bring-up creates three event queues, and the list is emptied only when the function is torn down.
            panic!("{} event queues", control.eqs.len());
        };
        let found = &shared.found;
        let objects = control.objects.numbers().into_iter();
        Ok(HcaTables {
            arena,
            device_id: found.hardware.device_id,
            revision: found.hardware.revision,
            firmware: found.hardware.firmware,
            embedded_cpu: control.embedded_cpu,
            shows_queue: control.health.shows_queue(),
            capabilities: found.caps.images(),
            commands: control.queue.snapshot(),
            pages: control.pages.snapshot(),
            event_queues: [commands, errors, shared_completions].map(|eq| eq.snapshot()),
            own: own.parts().eq.snapshot(),
            spare: control.spare.iter().map(|it| it.eq.snapshot()).collect(),
            completions: own.completions.numbers(),
            shared_completions: control.completions.numbers(),
            events,
            events_lost,
            objects: objects
                .map(|(creates, count)| ObjectCount { creates, count })
                .collect(),
            counter_set: control.counter_set,
            link_up: control.link_up,
            port: PortSnapshot {
                mac: found.port.mac,
                mtu: found.port.mtu,
                link_up: found.port.link_up,
                node_guid: found.port.node_guid,
                switched_on: found.port.switched_on,
                forwarding: found.port.forwarding,
            },
            gids: shared.gids.snapshot(),
            neighbours: found.neighbours.clone(),
            report: found.report.clone(),
            command_limit: control.timeout,
            reclaim_limit: control.reclaim_limit,
        })
    }

    /// Checks that nothing but the tables has memory of the function. If the function were not parked then, its arena
    /// could not be made again.
    fn check_memory(&self) -> Result<(), ParkError> {
        let arena = self.shared.arena.snapshot()?;
        let all: usize = arena.chunks.iter().map(|chunk| chunk.leases.len()).sum();
        let control = self.shared.lock();
        // The last one is the instance's event queue.
        let tables = control.queue.buffers()
            + control.pages.buffers()
            + control.eqs.len()
            + control.spare.len()
            + 1;
        match all.saturating_sub(tables) {
            0 => Ok(()),
            count => Err(ParkError::MemoryInUse { count }),
        }
    }

    /// Ends the instance and all tables, and returns the function. The device is told nothing.
    fn into_function(self) -> Function {
        let mut shared = Arc::clone(&self.shared);
        {
            let mut this = self;
            let mut control = shared.lock();
            this.own.leave(&mut control);
        }
        let shared = loop {
            // Another thread that checks whether the function is open may hold a reference for a moment.
            shared = match Arc::try_unwrap(shared) {
                Ok(shared) => break shared,
                Err(shared) => shared,
            };
            core::hint::spin_loop();
        };
        let (mut control, _gids, _found) = shared.into_parts();
        // The device keeps its bus mastering.
        control.bus_master = false;
        control.function.clone()
    }
}

/// Refuses an instance that is about to end, or whose device is in doubt.
fn check_usable(own: &Own, control: &mut Control) -> Result<(), ParkError> {
    control.update_health(true);
    if let Some(cause) = control.health.dead() {
        return Err(ParkError::Dead(cause));
    }
    if control.closed {
        return Err(ParkError::Closed);
    }
    let count = control.listeners.count();
    if count != 1 {
        return Err(ParkError::Instances { count });
    }
    if control.requested {
        return Err(ParkError::Requested);
    }
    if control.probe.is_some() {
        return Err(ParkError::Doubtful);
    }
    if own.over_at.is_some() {
        return Err(ParkError::Limited);
    }
    if control.resumed.is_some() {
        return Err(ParkError::Unfinished);
    }
    let count = control.orphaned_rings.len();
    if count > 0 {
        return Err(ParkError::OrphanedRings { count });
    }
    Ok(())
}

/// Refuses a function with commands under way.
fn check_quiet(control: &Control) -> Result<(), ParkError> {
    match control.queue.in_use() {
        (0, 0, 0) => Ok(()),
        (posted, done, quarantined) => Err(ParkError::Commands {
            posted,
            done,
            quarantined,
        }),
    }
}

impl ParkingHca {
    /// Returns the tables.
    #[must_use]
    pub fn tables(&self) -> &HcaTables {
        &self.tables
    }

    /// Ends the parking. The caller has dropped its objects and buffers, and resumes them. The result is another
    /// instance on the same function, as after [`Hca::resume`].
    ///
    /// # Errors
    /// [`ResumeError`]: the function could not be driven again, and was reset.
    pub fn cancel(self) -> Result<Hca, ResumeError> {
        let Self { hca, tables } = self;
        resuming::drive_again(hca.into_function(), &tables)
    }

    /// Parts with the function. All objects of the instance were dropped before. The old process does not read the
    /// function's eventfds any more.
    ///
    /// # Errors
    /// [`NotParked`] with the unfinished parking, and [`ParkError::MemoryInUse`]: buffers of the function's memory
    /// exist; or [`ParkError::Arena`]: an object was dropped that was not parked. [`NotParked`] with another instance
    /// on the same function, and [`ParkError::Function`]: references to the function or its registers exist, or its
    /// memory cannot be handed over. [`ParkError::Lost`]: the function could not be driven again after that, and was
    /// reset; that happens if a clone of its arena exists.
    pub fn finish(self) -> Result<(HcaSnapshot, Vec<NamedFd>), Box<NotParked>> {
        if let Err(error) = self.hca.check_memory() {
            return Err(Box::new(NotParked {
                hca: None,
                parking: Some(self),
                error,
            }));
        }
        let Self { hca, tables } = self;
        match hca.into_function().park() {
            Ok((function, descriptors)) => Ok((HcaSnapshot { function, tables }, descriptors)),
            Err((function, error)) => Err(Box::new(resuming::take_back(function, &tables, error))),
        }
    }
}

impl std::fmt::Debug for ParkingHca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParkingHca")
            .field("hca", &self.hca)
            .finish_non_exhaustive()
    }
}
