//! The way from a snapshot to instances.
//!
//! There are two parts. The first one ([`check`]) makes all tables again and compares the numbers of the snapshot
//! with each other, with the memory and with the registers. It writes nothing, and needs no claim. The second one
//! sends commands that only ask, and compares the answers. Until its end nothing here switches bus mastering off, so
//! a refusal leaves the device as it was.
//!
//! The second part does not read the event queues: commands are polled until the last answer was right. So a refusal
//! loses no event, and the process that has claimed the function can try again. The device writes an event for each
//! command meanwhile. An overrun would stop the event queue for commands, so the first part ends with a check that the
//! queue has room for those events. The events of refused attempts stay in it, so the check fails after about ten, and
//! after two if there are as many instances as possible.

use std::collections::BTreeSet;

use driver::handover::Claimed;
use driver::{Block, DmaArena, Function, Instant, Interrupt, NamedFd, UnclaimedFunction};
use mlx_prm::{Eqc, Eqn, InitSegment, NopIn, Opcode, QueryEqIn, UarIndex, UarPage};

use super::{HcaSnapshot, HcaTables, InstanceSnapshot, LIMITS, MOST_INSTANCES, PortSnapshot};
use crate::broken::BrokenQueues;
use crate::caps::Caps;
use crate::cmd::CommandQueue;
use crate::control::{Commands, Control, Known, Objects};
use crate::counters;
use crate::eq::{Eq, EqSnapshot};
use crate::error::{CmdError, Mac, MlxError, NotResumed, ResumeError, ask_twice};
use crate::event::{AsyncEvent, Completions, Inbox};
use crate::gid::{self, GidTable};
use crate::health::{Health, halves};
use crate::instance::{Found, Listener, Listeners, Own, Parts, Shared, uar_page};
use crate::pages::Pages;
use crate::segment;
use crate::vport::{self, Port};

/// Name of the tables in errors.
const TABLE: &str = "the function";
/// Largest number of a counter set, which has 8 bits.
const LAST_COUNTER_SET: u32 = 0xff;
/// Number of entries of the event queue for commands that remain free for events, besides those of our questions.
const EVENT_ROOM: u32 = 32;
/// Maximum number of commands of a resumption, besides those about event queues of instances and about addresses.
const QUESTIONS: u32 = 22;
/// Maximum number of commands about the event queue of an instance, or of one that has ended.
const QUESTIONS_OF_INSTANCE: u32 = 2;

/// State of a function, and of its instances in their order.
pub(super) type Instances = (Shared, Vec<Own>);

/// A function and its instances that were checked without a command, and that this process may not use yet. If it is
/// dropped, the device stays parked.
#[must_use]
pub struct UnclaimedHca {
    // It is dropped before the function.
    rebuilt: Tables,
    function: UnclaimedFunction,
    tables: HcaTables,
    /// Number of descriptors that were given.
    count: usize,
}

impl std::fmt::Debug for UnclaimedHca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnclaimedHca")
            .field("function", &self.function)
            .finish_non_exhaustive()
    }
}

/// Makes a function and its instances of a snapshot, and checks all that needs no command.
pub(super) fn check(
    snapshot: &HcaSnapshot,
    descriptors: Vec<NamedFd>,
) -> Result<UnclaimedHca, Box<NotResumed>> {
    let count = descriptors.len();
    let not_begun = |descriptors, error| {
        Box::new(NotResumed {
            descriptors,
            touched: false,
            error,
        })
    };
    if snapshot.function.vectors.is_empty() {
        let error = ResumeError::snapshot(TABLE, "it has no interrupt vectors");
        return Err(not_begun(descriptors, error));
    }
    let function = Function::resume(&snapshot.function, descriptors)
        .map_err(|(descriptors, error)| not_begun(descriptors, error.into()))?;
    match Tables::rebuild(&function, &snapshot.tables, None) {
        Ok(rebuilt) => Ok(UnclaimedHca {
            rebuilt,
            function,
            tables: snapshot.tables.clone(),
            count,
        }),
        Err(error) => Err(not_begun(function.park(), error)),
    }
}

impl UnclaimedHca {
    /// Returns the time of the function's clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.rebuilt.control.clock.now()
    }

    /// Gives the descriptors back. The device is as before.
    #[must_use]
    pub fn park(self) -> Vec<NamedFd> {
        let Self {
            rebuilt, function, ..
        } = self;
        drop(rebuilt);
        function.park()
    }

    /// Goes on with the function, which the claim allows.
    pub(super) fn go_on_with(self, claimed: &Claimed) -> Result<Instances, Box<NotResumed>> {
        let Self {
            rebuilt,
            function,
            tables,
            count,
        } = self;
        let function = function.go_on(claimed);
        // The given descriptors are closed now, so there is room for as many. One more is for files of /proc.
        let reserve: Result<Vec<Interrupt>, _> = (0..=count).map(|_| function.wakeup()).collect();
        let (touched, taken) = match &reserve {
            Ok(_) => (true, rebuilt.verify(&function, &tables)),
            Err(_) => {
                drop(rebuilt);
                let what = format!("the system has no room for {count} more descriptors");
                (false, Err(ResumeError::snapshot(TABLE, what)))
            }
        };
        taken.map_err(|error| {
            // Duplicates of the function's descriptors take the place of the reserve.
            drop(reserve);
            let descriptors = match function.park() {
                Ok((_, descriptors)) => descriptors,
                Err((function, error)) => {
                    tracing::error!(function = function.name(), %error, "its descriptors cannot be given back; it is closed");
                    Vec::new()
                }
            };
            Box::new(NotResumed {
                descriptors,
                touched,
                error,
            })
        })
    }
}

/// Makes the tables of a function again that was not parked, and goes on with it. `arena` is its arena, if that exists.
pub(super) fn take_up(
    function: Function,
    tables: &HcaTables,
    arena: Option<DmaArena>,
) -> Result<Instances, Box<(Function, ResumeError)>> {
    Tables::rebuild(&function, tables, arena)
        .and_then(|rebuilt| rebuilt.verify(&function, tables))
        .map_err(|error| Box::new((function, error)))
}

/// The tables, before the device has confirmed them.
struct Tables {
    control: Control,
    /// Parts of each instance, and its completion queues that had events.
    instances: Vec<(Parts, Completions)>,
    gids: GidTable,
}

impl Tables {
    /// Makes the tables again. Writes nothing to the device, and nothing to memory that the device uses.
    fn rebuild(
        function: &Function,
        tables: &HcaTables,
        arena: Option<DmaArena>,
    ) -> Result<Self, ResumeError> {
        let refused = |what: String| ResumeError::snapshot(TABLE, what);
        let limits = [tables.command_limit, tables.reclaim_limit];
        if limits.iter().any(|limit| !LIMITS.contains(limit)) {
            return Err(refused(format!(
                "time limits {limits:?}, not in {LIMITS:?}"
            )));
        }
        let (count, ended) = (tables.instances.len(), tables.spare.len());
        if count == 0 || count + ended > MOST_INSTANCES {
            return Err(refused(format!(
                "{count} instances and {ended} ended ones; at least one, and at most {MOST_INSTANCES} in all"
            )));
        }
        let caps = Caps::of_images(&tables.capabilities)
            .ok_or_else(|| refused("it has no whole general capability page".to_owned()))?;
        if caps.is_signed() != tables.commands.is_signed {
            return Err(refused(format!(
                "signed answers: {} in the command queue, {} in the capability page",
                tables.commands.is_signed,
                caps.is_signed()
            )));
        }
        if let Some(set) = tables.counter_set.filter(|set| *set > LAST_COUNTER_SET) {
            return Err(refused(format!("counter set {set:#x}")));
        }
        if !vport::is_unicast(tables.port.mac) {
            return Err(refused(format!("unusable MAC {}", Mac(tables.port.mac))));
        }
        let objects = tables.objects.iter().map(|it| (it.creates, it.count));
        let objects = Objects::resume(&objects.collect::<Vec<_>>()).ok_or_else(|| {
            refused(format!(
                "one of {} counts of objects is impossible",
                tables.objects.len()
            ))
        })?;
        let inboxes = tables.instances.iter().map(inbox_of);
        let inboxes = inboxes.collect::<Result<Vec<_>, _>>()?;
        let completions = tables.instances.iter().map(|it| noted(&it.completions));
        let completions = completions.collect::<Result<Vec<_>, _>>()?;
        let shared_completions = noted(&tables.shared_completions)?;
        check_event_queues(tables, objects.alive(Opcode::CREATE_EQ))?;

        let bar = function.bar(0).map_err(MlxError::from)?;
        let registers: Block<InitSegment> = bar.block(0).map_err(MlxError::from)?;
        let arena = match arena {
            Some(arena) => {
                arena.take_back(&tables.arena)?;
                arena
            }
            None => DmaArena::resume(function, &tables.arena)?,
        };
        let queue = CommandQueue::resume(&arena, registers.clone(), &tables.commands)?;
        let pages = Pages::resume(&arena, &tables.pages)?;
        let mut interrupts = function
            .enable_interrupts(usize::MAX)
            .map_err(MlxError::from)?;
        let vectors = interrupts.len();
        let eq = |snapshot: &EqSnapshot| {
            let page = |number| Ok(uar_page(function, number)?);
            Eq::resume(&arena, snapshot, vectors, page)
        };
        let eqs = tables.event_queues.iter().map(eq);
        let eqs = eqs.collect::<Result<Vec<_>, _>>()?;
        let parts_of = |snapshot: &EqSnapshot| -> Result<Parts, ResumeError> {
            Ok(parts(function, eq(snapshot)?)?)
        };
        let own = tables.instances.iter().map(|it| parts_of(&it.own));
        let own = own.collect::<Result<Vec<_>, _>>()?;
        let spare = tables.spare.iter().map(parts_of);
        let spare = spare.collect::<Result<Vec<_>, _>>()?;

        let clock = function.clock();
        let room = usize::try_from(caps.limits().gids).unwrap_or(usize::MAX);
        let gids = GidTable::resume(&tables.gids, tables.port.mac, room, clock.now())?;
        let written = halves(queue.iova());
        let notices = function.notices().clone();
        let mut health = Health::new(registers.clone(), notices, written, clock.now());
        check_registers(function, &registers, &mut health, tables)?;
        check_room(&eqs, own.len() + spare.len())?;
        interrupts.extend(health.notices().cloned());
        let mut listeners = Listeners::default();
        for (parts, inbox) in own.iter().zip(inboxes) {
            let wakeup = function.wakeup().map_err(MlxError::from)?;
            // The instances get their numbers in their order.
            let _number = listeners.add(Listener::new(parts.vector, wakeup).with_inbox(inbox));
        }
        let mut resumed = Known::default();
        // The numbers differ, as `check_event_queues` has shown.
        for eq in tables.queues_of_instances().chain(&tables.event_queues) {
            let _is_new = resumed.resume(Opcode::CREATE_EQ, eq.eqn);
        }
        for eq in tables.queues_of_instances() {
            let _is_new = resumed.resume(Opcode::ALLOC_UAR, eq.uar);
        }
        Ok(Self {
            control: Control {
                function: function.clone(),
                clock,
                arena,
                registers,
                interrupts,
                vectors,
                queue,
                pages,
                health,
                listeners,
                completions: shared_completions,
                objects,
                resumed: Some(resumed),
                eqs,
                spare,
                orphaned_rings: Vec::new(),
                event_mode: false,
                closed: false,
                is_parking: false,
                readers: 0,
                broken: BrokenQueues::default(),
                requested: false,
                link_up: tables.link_up,
                slot_wanted: false,
                watch_health: false,
                counter_set: tables.counter_set,
                losses: Vec::new(),
                probe: None,
                embedded_cpu: tables.embedded_cpu,
                reclaim_limit: tables.reclaim_limit,
                timeout: tables.command_limit,
                over_at: None,
                // Until the device has confirmed the tables, dropping them does not stop it.
                bus_master: false,
                stopped: false,
            },
            instances: own.into_iter().zip(completions).collect(),
            gids,
        })
    }

    /// Asks the device, compares its answers with the tables, and goes on with the function.
    fn verify(self, function: &Function, tables: &HcaTables) -> Result<Instances, ResumeError> {
        let Self {
            mut control,
            instances,
            gids,
        } = self;
        exec(&mut control, &NopIn::new())?;
        for (at, eq) in tables.event_queues.iter().enumerate() {
            ask_twice(|| {
                let (context, page) = query_eq(&mut control, eq.eqn)?;
                control.eqs[at].check(&context, page)
            })?;
        }
        for (instance, (parts, _)) in tables.instances.iter().zip(&instances) {
            ask_twice(|| {
                let (context, page) = query_eq(&mut control, instance.own.eqn)?;
                parts.eq.check(&context, page)
            })?;
        }
        for (at, spare) in tables.spare.iter().enumerate() {
            ask_twice(|| {
                let (context, page) = query_eq(&mut control, spare.eqn)?;
                control.spare[at].eq.check(&context, page)
            })?;
        }
        let caps = Caps::query(&mut control)?;
        caps.check()?;
        check_capabilities(&caps, tables)?;
        let mtu = check_vport(&mut control, &tables.port)?;
        check_gids(&mut control, &gids, caps.port_number())?;
        if let Some(set) = tables.counter_set {
            counters::query_set(&mut control, set).map_err(MlxError::from)?;
        }
        let hardware = segment::hardware(function, &control.registers)?;
        let PortSnapshot {
            mac,
            link_up,
            node_guid,
            switched_on,
            forwarding,
            ..
        } = tables.port;
        let found = Found {
            caps,
            port: Port {
                mac,
                mtu,
                path_mtu: vport::path_mtu_code(mtu),
                link_up,
                node_guid,
                switched_on,
                forwarding,
            },
            neighbours: tables.neighbours.clone(),
            hardware,
            report: tables.report.clone(),
        };
        if let Some(cause) = control.health.dead() {
            return Err(MlxError::Dead(cause).into());
        }
        // Nothing is refused any more. From here on, dropping the function stops the device.
        control.bus_master = true;
        control.watch_health = true;
        control.event_mode = true;
        let own = |(number, (parts, completions)): (usize, (Parts, Completions))| {
            let mut own = Own::new(&control, number, parts.vector, Some(parts));
            own.completions = completions;
            own
        };
        let mut instances: Vec<Own> = instances.into_iter().enumerate().map(own).collect();
        let shared = Shared::new(control, gids, found);
        // The other process may have taken the interrupts of entries that are still in the queues. So all event queues
        // are drained and armed.
        let mut control = shared.lock();
        for own in &mut instances {
            own.serve(&mut control);
        }
        for own in &instances {
            own.set_idle(&mut control);
            control.listeners.call(own.number);
        }
        drop(control);
        Ok((shared, instances))
    }
}

/// Returns whether no parked function can have an event: its device is dead, or the system has requested the function.
fn is_of_the_process(event: &AsyncEvent) -> bool {
    match event {
        AsyncEvent::DeviceDead { .. } | AsyncEvent::DeviceRequested => true,
        AsyncEvent::PortUp
        | AsyncEvent::PortDown
        | AsyncEvent::PortChange { .. }
        | AsyncEvent::CommEstablished { .. }
        | AsyncEvent::SqDrained { .. }
        | AsyncEvent::QpError { .. }
        | AsyncEvent::SrqLastWqe { .. }
        | AsyncEvent::CqError { .. }
        | AsyncEvent::SrqLimit { .. }
        | AsyncEvent::SrqError { .. }
        | AsyncEvent::Network(_)
        | AsyncEvent::AddressRemoved { .. }
        | AsyncEvent::EventsLost { .. }
        | AsyncEvent::Other { .. } => false,
    }
}

/// Makes the queue of events of an instance.
fn inbox_of(instance: &InstanceSnapshot) -> Result<Inbox, ResumeError> {
    let InstanceSnapshot {
        events,
        events_lost: lost,
        ..
    } = instance;
    let is_possible = !events.iter().any(is_of_the_process);
    let inbox = is_possible.then(|| Inbox::resume(events, *lost)).flatten();
    inbox.ok_or_else(|| {
        let count = events.len();
        let what =
            format!("{count} events, {lost} dropped: too many, or one that no parked function has");
        ResumeError::snapshot(TABLE, what)
    })
}

/// Makes a set of completion queues that had events.
fn noted(numbers: &[u32]) -> Result<Completions, ResumeError> {
    Completions::resume(numbers).ok_or_else(|| {
        let what = format!("events of {} completion queues", numbers.len());
        ResumeError::snapshot(TABLE, what)
    })
}

/// Checks that all event queues are there, of which the device has `count`, and no two with the same number; that no
/// two instances have the same doorbell page, and that the function's event queues use vector 0.
fn check_event_queues(tables: &HcaTables, count: i64) -> Result<(), ResumeError> {
    let (mut numbers, mut pages) = (BTreeSet::new(), BTreeSet::new());
    for eq in tables.queues_of_instances().chain(&tables.event_queues) {
        if !numbers.insert(eq.eqn) {
            return Err(ResumeError::snapshot(
                TABLE,
                format!("event queue {:#x} is there twice", eq.eqn),
            ));
        }
    }
    // An instance that is missing would be noticed only when all objects are resumed.
    if i64::try_from(numbers.len()) != Ok(count) {
        let what = format!("{} event queues, and the device has {count}", numbers.len());
        return Err(ResumeError::snapshot(TABLE, what));
    }
    for eq in tables.queues_of_instances() {
        if !pages.insert(eq.uar) {
            return Err(ResumeError::snapshot(
                TABLE,
                format!("two instances have doorbell page {:#x}", eq.uar),
            ));
        }
    }
    match tables.event_queues.iter().find(|eq| eq.vector != 0) {
        None => Ok(()),
        Some(eq) => Err(ResumeError::snapshot(
            TABLE,
            format!("event queue {:#x} uses vector {}", eq.eqn, eq.vector),
        )),
    }
}

/// Returns an event queue with its doorbell page.
fn parts(function: &Function, eq: Eq) -> Result<Parts, MlxError> {
    let uar_index: UarIndex = eq.uar_index();
    let uar: Block<UarPage> = uar_page(function, uar_index)?;
    Ok(Parts {
        uar_index,
        uar,
        vector: eq.vector(),
        eq,
    })
}

/// Compares the initialization segment with the snapshot.
fn check_registers(
    function: &Function,
    registers: &Block<InitSegment>,
    health: &mut Health,
    tables: &HcaTables,
) -> Result<(), ResumeError> {
    if health.check() {
        let cause = health.dead().map_or_else(String::new, |it| it.to_string());
        return Err(ResumeError::changed(cause));
    }
    if segment::is_initializing(registers) {
        return Err(ResumeError::changed("its firmware is booting"));
    }
    let hardware = segment::hardware(function, registers)?;
    let now = (
        hardware.device_id,
        hardware.revision,
        hardware.firmware,
        segment::is_embedded_cpu(registers),
    );
    let before = (
        tables.device_id,
        tables.revision,
        tables.firmware,
        tables.embedded_cpu,
    );
    if now != before {
        return Err(ResumeError::changed(format!(
            "device ID, revision, firmware and embedded_cpu are {now:x?}, and were {before:x?}"
        )));
    }
    health.initialized();
    if !tables.shows_queue {
        return Ok(());
    }
    if !health.shows_queue() {
        return Err(ResumeError::changed(
            "it has another address of the command queue",
        ));
    }
    // The geometry is in the same register as the address.
    let [.., now] = registers
        .read(|segment| &segment.cmdq_addr_l_sz)
        .get()
        .to_be_bytes();
    let before = tables.commands.log_size << 4 | tables.commands.log_stride;
    if u32::from(now) != before {
        return Err(ResumeError::changed(format!(
            "the geometry of the command queue is {now:#04x}, and was {before:#04x}"
        )));
    }
    Ok(())
}

fn exec<C: mlx_prm::Command>(control: &mut Control, input: &C) -> Result<C::Out, ResumeError> {
    Ok(control.exec(input).map_err(MlxError::from)?)
}

/// Returns the number of events for which the event queue for commands must have room at the beginning. `instances` is
/// the number of instances, with ended ones.
fn events_needed(instances: usize) -> u32 {
    // CAST: at most `MOST_INSTANCES`.
    #[expect(clippy::cast_possible_truncation, reason = "at most 60")]
    let of_instances = instances as u32 * QUESTIONS_OF_INSTANCE;
    QUESTIONS + EVENT_ROOM + of_instances
}

/// Checks that the event queue for commands has room for the events of the questions. `instances` is the number of
/// instances, with ended ones.
fn check_room(eqs: &[Eq], instances: usize) -> Result<(), ResumeError> {
    let (room, needed) = (eqs[0].room(), events_needed(instances));
    if room >= needed {
        return Ok(());
    }
    Err(ResumeError::snapshot(
        TABLE,
        format!("its event queue for commands has room for {room} events; {needed} are needed"),
    ))
}

/// Reads the context of an event queue from the device, and the first entry of its page list.
fn query_eq(control: &mut Control, eqn: u32) -> Result<(Eqc, u64), ResumeError> {
    let mut input = QueryEqIn::new();
    // The number was checked when the queue was made.
    input.set_eq_number(Eqn::new(eqn).get());
    let answer = control.exec_reading(&input, &[], size_of::<u64>());
    let (answer, list) = answer.map_err(MlxError::from)?;
    let page = list
        .first_chunk()
        .map_or(0, |page| u64::from_be_bytes(*page));
    Ok((answer.eq_context_entry().clone(), page))
}

/// Compares the capabilities with those of the snapshot. Other functions of the card may change some of them, so only
/// those that the driver uses must be the same.
fn check_capabilities(caps: &Caps, tables: &HcaTables) -> Result<(), ResumeError> {
    let before = Caps::of_images(&tables.capabilities)
        .ok_or_else(|| ResumeError::snapshot(TABLE, "it has no whole general capability page"))?;
    if let Some(difference) = caps.differs_in_use(&before) {
        return Err(ResumeError::changed(difference));
    }
    for page in caps.images() {
        if !tables.capabilities.contains(&page) {
            tracing::info!(
                op_mod = page.op_mod,
                "capabilities have changed that the driver does not use"
            );
        }
    }
    Ok(())
}

/// Compares the vport with the snapshot. Returns the MTU, which another function may have lowered.
fn check_vport(control: &mut Control, port: &PortSnapshot) -> Result<u32, ResumeError> {
    let vport = vport::query(control).map_err(MlxError::from)?;
    if vport.node_guid != port.node_guid {
        return Err(ResumeError::changed(format!(
            "its node GUID is {:#x}, and was {:#x}",
            vport.node_guid, port.node_guid
        )));
    }
    let mtu = vport::configure_mtu(control, &vport, None).map_err(MlxError::from)?;
    Ok(mtu.min(port.mtu))
}

/// Compares our addresses with the device's table, if the firmware lets it be read. Compares as many as the event queue
/// for commands has room for, and leaves a further attempt its own.
fn check_gids(
    control: &mut Control,
    gids: &GidTable,
    port: Option<u32>,
) -> Result<(), ResumeError> {
    // CAST: widening, on every target of the driver.
    let room = control.eqs[0].room();
    let instances = control.listeners.count() + control.spare.len();
    let room = room.saturating_sub(events_needed(instances) + 1) as usize;
    for entry in gids.all().into_iter().take(room) {
        match gid::read_entry(control, entry.index, port) {
            Ok(now) if now == (entry.gid, entry.mac) => {}
            Ok((gid, mac)) => {
                return Err(ResumeError::changed(format!(
                    "index {} of its address table has {} with MAC {}, and not {} with MAC {}",
                    entry.index,
                    gid::address_of(gid),
                    Mac(mac),
                    entry.address.address,
                    Mac(entry.mac)
                )));
            }
            Err(error @ CmdError::Refused { .. }) => {
                tracing::info!(%error, "the address table cannot be read, and is not compared");
                return Ok(());
            }
            Err(error) => return Err(MlxError::from(error).into()),
        }
    }
    Ok(())
}
