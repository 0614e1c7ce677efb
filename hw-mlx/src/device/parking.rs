//! A function and its instances that outlive their process.
//!
//! [`Hca::park`] turns a function with one instance into a snapshot, which is plain data, and descriptors. The device
//! goes on with the work that it has. [`Hca::resume`] makes an instance of them, in another process or in the same one.
//!
//! A function with several instances is parked as a whole: [`Hca::begin_parking_all`] takes all of them, and the
//! resumption returns as many, in the same order. An object is resumed by the instance that had it. QP1, the Ethernet
//! port, keys and shared receive queues belong to no instance, so any of them resumes these.
//!
//! ```text
//!   the old process                                       the new process
//!     begin_parking: the quiet point, tables
//!       Cq::park, Qp::park, ...; drop all buffers
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
//! A refusal changes nothing, or the parking is unfinished and can be finished or cancelled ([`NotParked`],
//! [`NotCancelled`]). [`Hca::begin_parking`] refuses a function that cannot be parked, and names the reason
//! ([`ParkError`]): instances that were not given, commands under way, queues that wait for a repair, objects of XRC
//! and of multicast.
//!
//! The snapshot has only what the device cannot be asked for, or what the device's answers are compared with. Waker,
//! wakeup descriptor, flight recorder, health history and [`Opened`](super::Opened) handles are those of the process:
//! they are new after the resumption.

mod resuming;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use driver::handover::Claimed;
use driver::{ArenaSnapshot, Function, FunctionSnapshot, NamedFd, UnclaimedMemory};
use thiserror::Error;

pub use self::resuming::UnclaimedHca;
use super::Hca;
use crate::caps::CapabilityPage;
use crate::cmd::CommandQueueSnapshot;
use crate::control::{Control, milliseconds};
use crate::eq::EqSnapshot;
use crate::error::{NotResumed, ParkError, ResumeError};
use crate::event::AsyncEvent;
use crate::gid::GidTableSnapshot;
use crate::instance::{Own, Shared};
use crate::pages::PagesSnapshot;
use crate::report::BringupReport;

impl UnclaimedHca {
    /// Goes on with the function, which this process has claimed. The first commands ask the device for its
    /// capabilities, event queues, addresses and counters. Only then, when nothing can be refused any more, event
    /// queues are drained and armed. Returns the instances in the order in which they were parked.
    ///
    /// # Errors
    /// As [`Hca::resume`].
    pub fn go_on(self, claimed: &Claimed) -> Result<Vec<Hca>, Box<NotResumed>> {
        let (shared, instances) = self.go_on_with(claimed)?;
        Ok(Hca::all(shared, instances))
    }
}

/// A function that was parked, with its instances.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct HcaSnapshot {
    /// The function.
    pub function: FunctionSnapshot,
    /// The driver's tables.
    pub tables: HcaTables,
}

/// The tables of a function, at its quiet point.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
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
    /// The instances, in the order in which the caller gave them: at least one.
    pub instances: Vec<InstanceSnapshot>,
    /// Completion event queues of instances that have ended, each with its doorbell page.
    pub spare: Vec<EqSnapshot>,
    /// Numbers of shared completion queues that had an event which the caller has not fetched.
    pub shared_completions: Vec<u32>,
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

impl HcaTables {
    /// Returns the completion event queues of all instances, of those that have ended first.
    fn queues_of_instances(&self) -> impl Iterator<Item = &EqSnapshot> {
        let living = self.instances.iter().map(|instance| &instance.own);
        self.spare.iter().chain(living)
    }
}

/// An instance of a function, at the function's quiet point.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct InstanceSnapshot {
    /// The instance's completion event queue, whose doorbell page is the instance's.
    pub own: EqSnapshot,
    /// Numbers of the instance's completion queues that had an event which the caller has not fetched.
    pub completions: Vec<u32>,
    /// Events that the caller has not fetched, oldest first.
    pub events: Vec<AsyncEvent>,
    /// Number of later events that were dropped.
    pub events_lost: u64,
}

/// Number of objects of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ObjectCount {
    /// Opcode of the command that creates an object of this kind.
    pub creates: u16,
    /// Number of objects.
    pub count: i64,
}

/// A port as bring-up configured it ([`Port`](crate::Port)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
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

/// Maximum number of instances, with those that have ended and whose doorbell pages are kept. A resumption sends
/// commands about the event queue of each, and reads the event queue for commands only after the last answer. So that
/// queue must have room for the events of all of them, and of a second attempt after a late refusal.
const MOST_INSTANCES: usize = 60;
/// Pause while another thread holds the tables of an instance that has ended.
const HELD_PAUSE: Duration = Duration::from_micros(100);
/// Time limits that a snapshot may have. With a shorter one, a busy machine alone would make a command fail.
const LIMITS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// A function that was not parked.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct NotParked {
    /// The instances, in their order; none if there is an unfinished parking. Those of [`Hca::begin_parking`] are
    /// unchanged. That of [`Hca::park`] may be a new one on the same function, as after [`Hca::resume`].
    pub instances: Vec<Hca>,
    /// The unfinished parking. [`Hca::begin_parking`] leaves none.
    pub parking: Option<ParkingHca>,
    /// The reason.
    #[source]
    pub error: ParkError,
}

/// A parking that was not cancelled.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct NotCancelled {
    /// The parking, which can still be finished or cancelled.
    pub parking: ParkingHca,
    /// The reason.
    #[source]
    pub error: ResumeError,
}

/// A function at its quiet point, whose tables are written out. If it is dropped, the function is stopped.
#[must_use = "the function is stopped if this is dropped"]
pub struct ParkingHca {
    stage: Stage,
    tables: HcaTables,
}

/// The part of a function that still exists while it is parked.
enum Stage {
    /// All of its instances.
    Whole(Vec<Hca>),
    /// The function alone. The tables are in the snapshot, and their memory stays mapped.
    Bare(BareFunction),
}

/// A function without its tables. If it is dropped, it is stopped.
struct BareFunction(Option<Function>);

impl BareFunction {
    fn take(mut self) -> Function {
        // PANIC: only this function takes it, and it consumes `self`.
        self.0.take().expect("a function")
    }
}

impl Drop for BareFunction {
    fn drop(&mut self) {
        if let Some(function) = self.0.take()
            && let Err(error) = function.stop()
        {
            tracing::error!(function = function.name(), %error, "cannot be stopped");
        }
    }
}

impl Hca {
    /// Parks a function whose instance has no objects of the data path: [`Hca::begin_parking`] and
    /// [`ParkingHca::finish`] in one. If the second step is refused, the parking is cancelled.
    ///
    /// # Errors
    /// [`NotParked`], with the reason and the instance; or with the parking, if it could not be cancelled.
    pub fn park(self) -> Result<(HcaSnapshot, Vec<NamedFd>), Box<NotParked>> {
        let mut refused = match self.begin_parking()?.finish() {
            Ok(parked) => return Ok(parked),
            Err(refused) => refused,
        };
        match refused.parking.take().map(ParkingHca::cancel) {
            Some(Ok(instances)) => refused.instances = instances,
            Some(Err(not_cancelled)) => {
                let NotCancelled { parking, error } = *not_cancelled;
                tracing::warn!(%error, "a parking cannot be cancelled yet");
                refused.parking = Some(parking);
            }
            None => {}
        }
        Err(refused)
    }

    /// Brings a function with one instance to its quiet point: [`Hca::begin_parking_all`] with this instance.
    ///
    /// # Errors
    /// As [`Hca::begin_parking_all`].
    pub fn begin_parking(self) -> Result<ParkingHca, Box<NotParked>> {
        Self::begin_parking_all(vec![self])
    }

    /// Brings a function to its quiet point and writes its tables out: waits for page requests under way and for
    /// commands of threads without an instance, handles all events of all instances, and checks that nothing else is
    /// under way. The caller gives all instances of the function, in any order. It now parks their objects
    /// ([`Cq::park`](crate::cq::Cq::park) and so on), drops its buffers, and calls [`ParkingHca::finish`]. The memory
    /// stays mapped. An object that is dropped without being parked keeps the function from being parked.
    ///
    /// # Errors
    /// [`NotParked`] with the unchanged instances in their order, and the reason: any [`ParkError`] except
    /// [`ParkError::MemoryInUse`]. [`ParkError::NoInstance`], [`ParkError::Instances`], [`ParkError::OtherFunction`]:
    /// the list is empty, an instance is missing from it, or one is of another function. [`ParkError::Function`]: as
    /// [`Function::can_park`].
    pub fn begin_parking_all(mut instances: Vec<Self>) -> Result<ParkingHca, Box<NotParked>> {
        match write_out(&mut instances) {
            Ok(tables) => Ok(ParkingHca {
                stage: Stage::Whole(instances),
                tables,
            }),
            Err(error) => Err(Box::new(NotParked {
                instances,
                parking: None,
                error,
            })),
        }
    }

    /// Goes on with a function that this or another process has parked. Returns its instances in the order in which
    /// they were parked. Their objects are resumed next, each by the instance that had it, and then
    /// [`Hca::finish_resuming`] is called. Events are handled as usual: those that came meanwhile are in the queues.
    ///
    /// This is [`Hca::check`] and [`UnclaimedHca::go_on`] in one, for a caller that has claimed the function before, or
    /// has parked it itself ([`Claimed::by_caller`]).
    ///
    /// # Errors
    /// [`NotResumed`] with the descriptors and the reason. The device is neither stopped nor reset; that happens when
    /// the last duplicate of the descriptors is closed.
    pub fn resume(
        snapshot: &HcaSnapshot,
        descriptors: Vec<NamedFd>,
    ) -> Result<Vec<Self>, Box<NotResumed>> {
        Self::check(snapshot, descriptors)?.go_on(&Claimed::by_caller())
    }

    /// Makes a function of a snapshot, and checks all that can be checked without a command: the numbers of the
    /// snapshot, the descriptors, the memory and the registers. The device is not changed, so this comes before the
    /// claim of a handover.
    ///
    /// # Errors
    /// [`NotResumed`] with the descriptors and the reason.
    pub fn check(
        snapshot: &HcaSnapshot,
        descriptors: Vec<NamedFd>,
    ) -> Result<UnclaimedHca, Box<NotResumed>> {
        resuming::check(snapshot, descriptors)
    }

    /// Ends the resumption: frees the memory that the previous process had and that was not claimed, such as mailboxes,
    /// and returns it. One of the instances does this for all of them. Does nothing if the function was not resumed.
    /// Until then, the function is not parked, and removed addresses stay in the device's table.
    ///
    /// # Errors
    /// [`ResumeError::Missing`]: objects that use memory exist in the device and were not resumed. Nothing was freed.
    pub fn finish_resuming(&mut self) -> Result<Vec<UnclaimedMemory>, ResumeError> {
        let mut control = self.shared.lock();
        let Some(resumed) = &control.resumed else {
            return Ok(Vec::new());
        };
        let objects = control.objects.with_memory_besides(resumed);
        if !objects.is_empty() {
            return Err(ResumeError::Missing { objects });
        }
        control.resumed = None;
        let mut unclaimed = self.shared.arena.finish();
        unclaimed.extend(self.shared.function.release_mappings());
        Ok(unclaimed)
    }
}

/// Reaches the quiet point, and writes the tables out. If this is refused, the instances work as before.
fn write_out(instances: &mut [Hca]) -> Result<HcaTables, ParkError> {
    let shared = function_of(instances)?;
    let mut control = shared.lock();
    let deadline = control.now() + control.timeout;
    control.is_parking = true;
    let outcome = loop {
        for hca in instances.iter_mut() {
            hca.own.serve(&mut control);
        }
        if let Err(error) = check_usable(instances, &mut control) {
            break Err(error);
        }
        let count = control.readers;
        if count == 0 && !control.pages.busy() {
            break check_quiet(&control);
        }
        if control.now() >= deadline {
            let waited_ms = milliseconds(control.timeout);
            break Err(if count > 0 {
                ParkError::Readers { count, waited_ms }
            } else {
                ParkError::PageRequests { waited_ms }
            });
        }
        // Answers and page requests are events of the shared event queues, which end the sleep of any instance.
        control = instances[0].own.sleep(&shared, control, deadline);
    };
    control.is_parking = false;
    for hca in instances.iter() {
        // The sleep may have taken signals of events that the caller has not fetched.
        hca.own.set_idle_after(&mut control);
    }
    outcome?;
    // A mapping that ended after the snapshot would still be in it, so mappings are kept from here on.
    shared.function.hold_mappings();
    let arena = shared.arena.snapshot().inspect_err(|_| {
        shared.function.release_mappings();
    })?;
    // No other instance can be made, and no thread without an instance can send commands.
    control.closed = true;
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
        instances: instances
            .iter()
            .map(|hca| snapshot_of(&hca.own, &control))
            .collect(),
        spare: control.spare.iter().map(|it| it.eq.snapshot()).collect(),
        shared_completions: control.completions.numbers(),
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

/// Describes an instance whose event queue is drained.
fn snapshot_of(own: &Own, control: &Control) -> InstanceSnapshot {
    let (events, events_lost) = own.inbox_contents(control);
    InstanceSnapshot {
        own: own.parts().eq.snapshot(),
        completions: own.completions.numbers(),
        events,
        events_lost,
    }
}

/// Returns the state that the given instances share.
///
/// # Errors
/// There is no instance, or one of them is of another function than the first.
fn function_of(instances: &[Hca]) -> Result<Arc<Shared>, ParkError> {
    let Some(first) = instances.first() else {
        return Err(ParkError::NoInstance);
    };
    let is_other = |hca: &&Hca| !Arc::ptr_eq(&hca.shared, &first.shared);
    match instances.iter().find(is_other) {
        None => Ok(Arc::clone(&first.shared)),
        Some(other) => Err(ParkError::OtherFunction {
            function: first.name().to_owned(),
            other: other.name().to_owned(),
        }),
    }
}

/// Checks that nothing but the tables has memory of the function. Another owner of a buffer would have memory that the
/// next process claims.
fn check_memory(instances: &[Hca]) -> Result<(), ParkError> {
    let shared = function_of(instances)?;
    let arena = shared.arena.snapshot()?;
    let all: usize = arena.chunks.iter().map(|chunk| chunk.leases.len()).sum();
    let control = shared.lock();
    // Each instance has an event queue.
    let tables = control.queue.buffers()
        + control.pages.buffers()
        + control.eqs.len()
        + control.spare.len()
        + instances.len();
    match all.saturating_sub(tables) {
        0 => Ok(()),
        count => Err(ParkError::MemoryInUse { count }),
    }
}

/// Ends the instances and all tables, and returns the function. Sends no command.
///
/// # Errors
/// Another thread holds the tables for longer than the time limit of a command. The function is returned, too.
fn into_function(instances: Vec<Hca>) -> Result<Function, (Function, ParkError)> {
    // PANIC: `begin_parking_all` refuses an empty list, and nothing else makes a whole stage.
    let mut shared = Arc::clone(&instances.first().expect("an instance").shared);
    let (function, clock, limit) = {
        let mut control = shared.lock();
        // Dropping the tables must not switch the device's bus mastering off.
        control.bus_master = false;
        let clock = Arc::clone(&control.clock);
        (control.function.clone(), clock, control.timeout)
    };
    drop(instances);
    // A thread that asks whether the function is open holds the tables for a moment.
    let deadline = clock.now() + limit;
    loop {
        shared = match Arc::try_unwrap(shared) {
            Ok(_) => return Ok(function),
            Err(shared) => shared,
        };
        if clock.now() >= deadline {
            let count = Arc::strong_count(&shared) - 1;
            let waited_ms = milliseconds(limit);
            return Err((function, ParkError::Readers { count, waited_ms }));
        }
        clock.wait(&[], clock.now() + HELD_PAUSE);
    }
}

/// Refuses instances that are not all of their function, a function that is about to end, or whose device may be dead,
/// and objects that cannot be parked.
fn check_usable(instances: &[Hca], control: &mut Control) -> Result<(), ParkError> {
    control.update_health(true);
    if let Some(cause) = control.health.dead() {
        return Err(ParkError::Dead(cause));
    }
    if control.closed {
        return Err(ParkError::Closed);
    }
    // Each value is another instance, so as many as there are are all of them.
    let (count, given) = (control.listeners.count(), instances.len());
    if count != given {
        return Err(ParkError::Instances { count, given });
    }
    control.function.can_park()?;
    if control.requested {
        return Err(ParkError::Requested);
    }
    if control.probe.is_some() {
        return Err(ParkError::Doubtful);
    }
    if instances.iter().any(|hca| hca.own.over_at.is_some()) {
        return Err(ParkError::Limited);
    }
    if control.resumed.is_some() {
        return Err(ParkError::Unfinished);
    }
    let rings = control.orphaned_rings.len();
    if rings > 0 {
        return Err(ParkError::OrphanedRings { count: rings });
    }
    let ended = control.spare.len();
    if count + ended > MOST_INSTANCES {
        let most = MOST_INSTANCES;
        return Err(ParkError::TooManyInstances { count, ended, most });
    }
    let limits = [control.timeout, control.reclaim_limit];
    if let Some(limit) = limits.into_iter().find(|limit| !LIMITS.contains(limit)) {
        let (least, most) = LIMITS.into_inner();
        return Err(ParkError::TimeLimit { limit, least, most });
    }
    if let Some(queue) = control.broken.first() {
        return Err(ParkError::Broken { queue });
    }
    let objects = control.objects.not_parked();
    if !objects.is_empty() {
        return Err(ParkError::Objects { objects });
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

    /// Ends the parking. The caller claims the buffers that it has dropped, and resumes its objects. The results are
    /// other instances on the same function, as many and in the same order, as after [`Hca::resume`].
    ///
    /// # Errors
    /// [`NotCancelled`] with the parking: the device has changed, or [`ParkingHca::finish`] has ended the tables before
    /// it was refused, and a buffer or a clone of the arena exists.
    pub fn cancel(self) -> Result<Vec<Hca>, Box<NotCancelled>> {
        let Self { stage, tables } = self;
        // The arena stays if the program has memory of it.
        let arena = match &stage {
            Stage::Whole(instances) => instances.first().map(|hca| hca.arena().clone()),
            Stage::Bare(_) => None,
        };
        let function = match stage.into_function() {
            Ok(function) => function,
            Err((function, error)) => {
                tracing::warn!(%error, "the tables are still held");
                function
            }
        };
        match resuming::take_up(function, &tables, arena) {
            Ok((shared, instances)) => Ok(Hca::all(shared, instances)),
            Err(refused) => {
                let (function, error) = *refused;
                let stage = Stage::Bare(BareFunction(Some(function)));
                let parking = Self { stage, tables };
                Err(Box::new(NotCancelled { parking, error }))
            }
        }
    }

    /// Parks the function, and ends this process's use of it. The caller has parked all objects of all instances
    /// before, and dropped all buffers. It does not read the function's eventfds any more.
    ///
    /// # Errors
    /// [`NotParked`] with the parking. The caller removes the reason and finishes again, or cancels the parking.
    /// [`ParkError::MemoryInUse`]: buffers of the function's memory exist. [`ParkError::Arena`]: an object was dropped
    /// that was not parked. [`ParkError::Readers`]: another thread holds the tables. [`ParkError::Function`]:
    /// references to the function, its arena or its registers exist, or its memory cannot be handed over.
    pub fn finish(self) -> Result<(HcaSnapshot, Vec<NamedFd>), Box<NotParked>> {
        let not_parked = |stage, tables, error| {
            Err(Box::new(NotParked {
                instances: Vec::new(),
                parking: Some(Self { stage, tables }),
                error,
            }))
        };
        let Self { stage, tables } = self;
        if let Stage::Whole(instances) = &stage
            && let Err(error) = check_memory(instances)
        {
            return not_parked(stage, tables, error);
        }
        let bare = |function| Stage::Bare(BareFunction(Some(function)));
        let function = match stage.into_function() {
            Ok(function) => function,
            Err((function, error)) => return not_parked(bare(function), tables, error),
        };
        match function.park() {
            Ok((function, descriptors)) => Ok((HcaSnapshot { function, tables }, descriptors)),
            Err((function, error)) => not_parked(bare(function), tables, error.into()),
        }
    }
}

impl Stage {
    /// Ends the instances and all tables. Sends no command.
    ///
    /// # Errors
    /// Another thread holds the tables. The function is returned, too.
    fn into_function(self) -> Result<Function, (Function, ParkError)> {
        match self {
            Self::Whole(instances) => into_function(instances),
            Self::Bare(function) => Ok(function.take()),
        }
    }
}

impl std::fmt::Debug for ParkingHca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let instances = match &self.stage {
            Stage::Whole(instances) => &instances[..],
            Stage::Bare(_) => &[],
        };
        f.debug_struct("ParkingHca")
            .field("instances", &instances)
            .finish_non_exhaustive()
    }
}
