//! Resuming a worker. The snapshot is not trusted: all of it is checked before anything changes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use udapl::endpoint::EpState;
use udapl::memory::PzHandle;
use udapl::{ConnQual, DatError, EpHandle, Ia};

use super::snapshot::{
    ArrivedSnapshot, AttachedSnapshot, CountersSnapshot, KeptSnapshot, QueueSnapshot,
    TimesSnapshot, WorkerSnapshot,
};
use crate::io::{Commands, Disks, PAGE, QueueId};
use crate::model::{
    ADMIN_ENTRIES, Model, Moment, NamespaceList, Party, Place, PortAccess, QUEUE_ENTRIES, QUEUES,
};
use crate::nvme::Nqn;
use crate::serve::admission::{Admission, event_places, places};
use crate::serve::config::WorkerConfig;
use crate::serve::error::WorkerError;
use crate::serve::hold::{Arrived, Pause};
use crate::serve::inbox::{Membership, Message};
use crate::serve::layout::{COMMAND, Memory};
use crate::serve::queue::{Attached, Held, Queues, Step};
use crate::serve::receive::prepare_first;
use crate::serve::target::{Over, Target};
use crate::serve::times::{EVERY, KINDS, Timing, Took};
use crate::serve::worker::{STREAMS, TICK, Worker, srq_attr};

/// Maximum value of a counter, so that a worker never reaches the end of 64 bits.
const MOST_COUNTED: u64 = u64::MAX >> 1;

/// Reason why a worker was not resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerResumeError {
    /// No worker of this number is parked at the target.
    #[error("no worker {worker} is parked at the target")]
    Unknown {
        /// Number of the worker.
        worker: u32,
    },
    /// The instance does not have an object.
    #[error("{what} of the snapshot: {error}")]
    Object {
        /// Kind of the object.
        what: &'static str,
        /// Error of the instance.
        error: DatError,
    },
    /// An object of the instance is not as the worker has made it.
    #[error("{what} of the instance is not the worker's")]
    Differs {
        /// Kind of the object.
        what: &'static str,
    },
    /// A number is out of range.
    #[error("{what} is {number}; {least} to {most} are possible")]
    Range {
        /// Name of the number.
        what: &'static str,
        /// The number.
        number: u64,
        /// Minimum.
        least: u64,
        /// Maximum.
        most: u64,
    },
    /// A command slot is in two places.
    #[error("command slot {slot} is in two places")]
    SlotTwice {
        /// Index of the slot.
        slot: u32,
    },
    /// Command slots are in no place, or in two: the instance has another number of receives.
    #[error("{receives} receives are posted, for {slots} command slots that are in no other place")]
    Receives {
        /// Number of receives of the instance that were not dequeued.
        receives: u32,
        /// Number of command slots without another place.
        slots: u32,
    },
    /// The first of a fused pair is another command.
    #[error("the command in slot {slot} is not the first of a fused pair")]
    NotFirst {
        /// Index of the slot.
        slot: u32,
    },
    /// Values of a queue contradict each other, or the model.
    #[error("queue {queue} of the snapshot: {what}")]
    Queue {
        /// Index of the queue in the snapshot.
        queue: usize,
        /// The contradiction.
        what: &'static str,
    },
    /// An event request has no admin queue.
    #[error("event request {request} of the snapshot has no admin queue")]
    Request {
        /// Index of the request in the snapshot.
        request: usize,
    },
    /// The configuration is invalid, or memory or descriptors are missing.
    #[error("{0}")]
    Worker(#[from] WorkerError),
}

use WorkerResumeError as Error;

fn in_range(what: &'static str, number: u64, least: u64, most: u64) -> Result<(), Error> {
    if (least..=most).contains(&number) {
        return Ok(());
    }
    Err(Error::Range {
        what,
        number,
        least,
        most,
    })
}

fn object<T>(what: &'static str, result: Result<T, DatError>) -> Result<T, Error> {
    result.map_err(|error| Error::Object { what, error })
}

fn is_same(is_same: bool, what: &'static str) -> Result<(), Error> {
    is_same.then_some(()).ok_or(Error::Differs { what })
}

/// Command slots that are in no posted receive.
struct Slots {
    places: u32,
    used: BTreeSet<u32>,
}

impl Slots {
    fn take(&mut self, slot: u32) -> Result<(), Error> {
        let most = u64::from(self.places).saturating_sub(1);
        in_range("a command slot", slot.into(), 0, most)?;
        let is_new = self.used.insert(slot);
        is_new.then_some(()).ok_or(Error::SlotTwice { slot })
    }
}

/// The parts of a worker that are made of a snapshot.
struct Parts {
    memory: Memory,
    commands: Commands,
    admission: Admission,
    queues: Queues,
    held: BTreeMap<u16, VecDeque<Held>>,
    arrived: Vec<Arrived>,
    times: [Took; KINDS.len()],
}

impl Worker {
    /// Makes a worker of an instance that was resumed or adopted, and of the snapshot of the worker that had it. The
    /// worker has its number at `target`, which [`Target::resume`] has made, or which has parked the worker. It goes on
    /// with the next [`Worker::run_or_pause`].
    ///
    /// # Errors
    /// The instance, which is unchanged, and the reason. The worker is still parked at the target:
    /// [`Target::forget_worker`] removes it.
    pub fn resume(
        target: &Target,
        mut ia: Ia,
        snapshot: &WorkerSnapshot,
    ) -> Result<Self, Box<(Ia, WorkerResumeError)>> {
        let parts = match Parts::of(target, &mut ia, snapshot) {
            Ok(parts) => parts,
            Err(error) => return Err(Box::new((ia, error))),
        };
        let Some((member, inbox)) = target.rejoin(snapshot.id) else {
            let worker = snapshot.id;
            drop(parts);
            return Err(Box::new((ia, Error::Unknown { worker })));
        };
        let Parts {
            memory,
            commands,
            admission,
            queues,
            held,
            arrived,
            times,
        } = parts;
        let places = places(snapshot.config.ios);
        let all = places + event_places(snapshot.config.ios);
        let here = queues.all().map(|queue| u64::from(queue.outstanding));
        let counters = &snapshot.counters;
        let over = Over {
            commands: counters.commands,
            connections: counters.connections,
            queues: queues.count(),
            sleeps: counters.sleeps,
            refused: counters.refused,
            here: here.sum(),
            ..Over::default()
        };
        member.times().restore(&times);
        member.report_counts(&over);
        // The first iteration hears whether the target is held. Until then the worker pauses.
        inbox.put(Message::Hold);
        let worker = Self {
            target: target.clone(),
            id: snapshot.id,
            config: snapshot.config(),
            timing: Timing {
                left: snapshot.untimed,
            },
            admission,
            ia,
            zone: snapshot.zone,
            events: snapshot.events,
            srq: snapshot.srq,
            psp: snapshot.psp,
            memory,
            commands,
            membership: Membership::new(inbox),
            member,
            places,
            queues,
            ready: Vec::with_capacity(all as usize), // CAST: widening.
            spare: Vec::with_capacity(places as usize), // CAST: widening.
            spare_events: (places..all).collect(),
            arrivals: Self::room_for_events(),
            pause: Some(Box::new(Pause::of(arrived))),
            held,
            lines: Default::default(),
            disk_lines: Default::default(),
            next_tick: target.now() + TICK,
            iterations: 0,
            is_stopping: None,
            over,
        };
        tracing::debug!(
            worker = worker.id,
            queues = worker.over.queues,
            "worker resumed"
        );
        worker.report_capacity();
        Ok(worker)
    }
}

impl Parts {
    fn of(target: &Target, ia: &mut Ia, snapshot: &WorkerSnapshot) -> Result<Self, Error> {
        if !target.parked_workers().contains(&snapshot.id) {
            return Err(Error::Unknown {
                worker: snapshot.id,
            });
        }
        let config = snapshot.config();
        config.check(ia.query().ia.max_recv_per_srq)?;
        check_objects(ia, snapshot, config)?;
        let times = check_counters(snapshot)?;
        let (places, responses) = (places(config.ios), event_places(config.ios));
        let all = places + responses;
        let (zone, lmrs) = (snapshot.zone, snapshot.regions);
        let memory = Memory::resume(ia, zone, lmrs, (places, all), config);
        let memory = object("a region", memory)?;
        let memory = memory.ok_or(Error::Differs { what: "a region" })?;
        let disks = target.take_disks(snapshot.id);
        let disks = disks.map_or_else(|| Disks::new(all), Ok);
        let disks = disks.map_err(WorkerError::from)?;
        let mut this = Self {
            commands: Commands::new(all, config.buffers, memory.data(), disks),
            memory,
            admission: Admission::new(config.ios),
            queues: Queues::default(),
            held: BTreeMap::new(),
            arrived: Vec::new(),
            times,
        };
        match this.fill(target, ia, snapshot, places) {
            Ok(()) => Ok(this),
            Err(error) => {
                target.keep_disks(snapshot.id, this.commands.into_disks());
                Err(error)
            }
        }
    }

    /// Adds all queues and commands, and registers the memory of operations.
    fn fill(
        &mut self,
        target: &Target,
        ia: &mut Ia,
        snapshot: &WorkerSnapshot,
        places: u32,
    ) -> Result<(), Error> {
        let mut slots = Slots {
            places,
            used: BTreeSet::new(),
        };
        let now = target.now();
        let mut ids = Vec::new();
        let mut attached = BTreeSet::new();
        for (number, queue) in snapshot.queues.iter().enumerate() {
            let failed = |what| Error::Queue {
                queue: number,
                what,
            };
            check_endpoint(ia, snapshot, queue)?;
            if self.queues.of(queue.ep).is_some() {
                return Err(failed("another queue has its endpoint"));
            }
            let of = queue.attached.as_ref();
            let of = of.map(|of| (of.controller, queue.number, of.connection));
            if of.is_some_and(|of| !attached.insert(of)) {
                return Err(failed("another connection is the same queue"));
            }
            let known = target.with(|model| Known::of(model, snapshot, queue));
            let known = known.map_err(failed)?;
            let id = self.add_queue(ia, (snapshot, queue), known, now);
            let id = id.map_err(failed)?;
            self.add_kept(id, queue, &mut slots)?;
            ids.push(id);
        }
        self.add_requests(snapshot, &ids)?;
        for arrived in &snapshot.arrived {
            slots.take(arrived.slot)?;
            self.arrived.push(arrived.checked()?);
        }
        let receives = object("the SRQ", ia.srq_query(snapshot.srq))?.outstanding_dto_count;
        // Each is below `places`, so their number is at most `places`.
        let used = u32::try_from(slots.used.len()).unwrap_or(places);
        let slots = places - used;
        if receives != slots {
            return Err(Error::Receives { receives, slots });
        }
        self.set_counters(&snapshot.counters);
        let memory = [&self.memory.places, &self.memory.buffers].map(|it| it.buffer.clone());
        let pinned = self.commands.disks.pin(&memory);
        pinned.map_err(WorkerError::from)?;
        Ok(())
    }

    /// Adds a queue, whose values were not checked yet.
    fn add_queue(
        &mut self,
        ia: &Ia,
        (snapshot, queue): (&WorkerSnapshot, &QueueSnapshot),
        known: Known,
        now: Moment,
    ) -> Result<QueueId, &'static str> {
        let age = Duration::from_nanos(queue.age_ns);
        let since = now.checked_sub(age).ok_or("it is older than the clock")?;
        let entries = match &queue.attached {
            Some(attached) => attached.entries,
            None => queue.entries,
        };
        let host = match (&known.attached, queue.reserved) {
            (Some(attached), Some(reserved)) if reserved == u32::from(entries) => {
                Some((&attached.party, reserved))
            }
            (None | Some(_), Some(_)) => return Err("it has reserved impossible entries"),
            (_, None) => None,
        };
        let share = self.admission.resume(queue.source, host);
        let share = share.ok_or("its quota exceeds what the worker has")?;
        let place = Place {
            port: snapshot.config.port,
            worker: snapshot.id,
            queue: queue.number,
            entries: queue.entries,
            source: queue.source,
        };
        let room = ia.query().ia.max_dto_per_ep;
        let id = self.queues.add(queue.ep, (place, share), room, since);
        let Some(made) = self.queues.get_mut(id) else {
            return Err("there is no place for it");
        };
        made.was_heard = queue.was_heard;
        made.is_disconnecting = queue.is_disconnecting;
        made.entries = entries;
        made.head = queue.head;
        if queue.is_up {
            made.step(Step::Up);
        }
        if let Some(mut attached) = known.attached {
            attached.list = known
                .namespaces
                .map(|list| self.commands.lists.add_user(&list));
            made.step(Step::Attach);
            made.attached = Some(attached);
        }
        Ok(id)
    }

    /// Adds the commands of a queue that have not begun, and the one that waits for its partner.
    fn add_kept(
        &mut self,
        id: QueueId,
        from: &QueueSnapshot,
        slots: &mut Slots,
    ) -> Result<(), Error> {
        let Some(queue) = self.queues.get_mut(id) else {
            return Ok(());
        };
        for kept in from.early.iter().chain(&from.first) {
            let KeptSnapshot { slot, in_capsule } = *kept;
            slots.take(slot)?;
            let most = PAGE.into();
            in_range("data in a capsule", in_capsule.into(), 0, most)?;
            let io = &mut self.commands.ios[slot as usize]; // CAST: widening.
            self.memory.read_command(slot, &mut io.sqe);
            io.begin(id, in_capsule);
            queue.outstanding += 1;
            if queue.share.is_guest() {
                // If the guests exceed their loan, the next command ends one of them.
                let _within = self.admission.borrow(queue.outstanding);
            }
        }
        queue.early = from.early.iter().map(|kept| kept.slot).collect();
        queue.fused = from.first.map(|kept| kept.slot);
        if let Some(slot) = queue.fused
            && !prepare_first(&mut self.commands, slot)
        {
            return Err(Error::NotFirst { slot });
        }
        Ok(())
    }

    fn add_requests(&mut self, snapshot: &WorkerSnapshot, ids: &[QueueId]) -> Result<(), Error> {
        for (number, request) in snapshot.requests.iter().enumerate() {
            let failed = Error::Request { request: number };
            let Some(id) = ids.get(request.queue as usize) else {
                return Err(failed); // CAST: widening.
            };
            let Some(queue) = self.queues.get_mut(*id) else {
                return Err(failed);
            };
            let attached = queue.attached.as_ref().filter(|one| one.number == 0);
            let Some(controller) = attached.map(|one| one.controller) else {
                return Err(failed);
            };
            queue.held += 1;
            let there = queue.held + queue.outstanding;
            in_range("commands of a queue", there.into(), 0, queue.entries.into())?;
            let of = self.held.entry(controller).or_default();
            // Another queue of the same number is one of a controller that has ended.
            if of.front().is_some_and(|one| one.queue != *id) {
                return Err(failed);
            }
            of.push_back(Held {
                queue: *id,
                cid: request.cid,
                is_aborted: request.is_aborted,
            });
        }
        Ok(())
    }

    const fn set_counters(&mut self, counters: &CountersSnapshot) {
        let room = &mut self.admission.room;
        room.refused_hosts = counters.refused_hosts;
        room.refused_guests = counters.refused_guests;
        room.displaced_guests = counters.displaced_guests;
        room.overdrawn = counters.overdrawn;
    }
}

/// Checks the objects of the instance, except endpoints and the contents of regions.
fn check_objects(
    ia: &mut Ia,
    snapshot: &WorkerSnapshot,
    config: WorkerConfig,
) -> Result<(), Error> {
    let (places, responses) = (places(config.ios), event_places(config.ios));
    object("the PZ", ia.pz_query(snapshot.zone))?;
    let events = object("the EVD", ia.evd_query(snapshot.events))?;
    let is_evd = events.flags == STREAMS && events.qlen >= 4 * places + 2 * responses;
    is_same(is_evd && events.cno.is_none(), "the EVD")?;
    let srq = object("the SRQ", ia.srq_query(snapshot.srq))?;
    let attr = srq_attr(places);
    let is_srq = srq.pz == snapshot.zone
        && (srq.max_recv_dtos, srq.max_recv_iov) == (attr.max_recv_dtos, attr.max_recv_iov)
        && srq.low_watermark == attr.low_watermark;
    is_same(is_srq, "the SRQ")?;
    let psp = snapshot.psp.ok_or(Error::Differs { what: "the PSP" })?;
    let psp = object("the PSP", ia.psp_query(psp))?;
    let is_psp = psp.conn_qual == ConnQual::port(config.service) && psp.evd == snapshot.events;
    is_same(is_psp, "the PSP")
}

/// Checks the endpoint of a queue.
fn check_endpoint(ia: &Ia, snapshot: &WorkerSnapshot, queue: &QueueSnapshot) -> Result<(), Error> {
    const WHAT: &str = "an endpoint";
    let (ep, zone): (EpHandle, PzHandle) = (queue.ep, snapshot.zone);
    let known = object(WHAT, ia.ep_query(ep))?;
    let evds = [known.recv_evd, known.request_evd, known.connect_evd];
    is_same(evds.iter().all(|evd| *evd == Some(snapshot.events)), WHAT)?;
    is_same(
        known.pz == Some(zone) && known.srq == Some(snapshot.srq),
        WHAT,
    )?;
    let is_connected = match known.state {
        EpState::Connected
        | EpState::Disconnected
        | EpState::DisconnectPending
        | EpState::CompletionPending => true,
        EpState::Unconnected
        | EpState::Reserved
        | EpState::PassiveConnectionPending
        | EpState::ActiveConnectionPending
        | EpState::TentativeConnectionPending => false,
    };
    // The endpoint of a queue that disconnects leaves CONNECTED at once.
    let is_leaving = known.state != EpState::Connected;
    is_same(is_connected || !queue.is_up, WHAT)?;
    is_same(is_leaving || !queue.is_disconnecting, WHAT)?;
    let remote = known.remote_ia_address;
    is_same(remote.is_none_or(|remote| remote == queue.source), WHAT)
}

/// Checks the counters, and returns the latencies.
fn check_counters(snapshot: &WorkerSnapshot) -> Result<[Took; KINDS.len()], Error> {
    in_range(
        "the next timed command",
        snapshot.untimed.into(),
        1,
        EVERY.into(),
    )?;
    let CountersSnapshot {
        commands,
        connections,
        sleeps,
        refused,
        refused_hosts,
        refused_guests,
        displaced_guests,
        overdrawn,
    } = snapshot.counters;
    for counter in [
        commands,
        connections,
        sleeps,
        refused,
        refused_hosts,
        refused_guests,
        displaced_guests,
        overdrawn,
    ] {
        in_range("a counter", counter, 0, MOST_COUNTED)?;
    }
    let mut times = [Took::default(); KINDS.len()];
    let kinds = KINDS.len() as u64; // CAST: widening.
    in_range(
        "kinds of latencies",
        snapshot.times.len() as u64,
        kinds,
        kinds,
    )?; // CAST: widening.
    for (to, from) in times.iter_mut().zip(&snapshot.times) {
        let TimesSnapshot {
            count,
            nanoseconds,
            buckets,
        } = from;
        let (there, wanted) = (buckets.len() as u64, to.buckets.len() as u64); // CAST: widening.
        in_range("buckets of latencies", there, wanted, wanted)?;
        to.buckets.copy_from_slice(buckets);
        (to.count, to.nanoseconds) = (*count, *nanoseconds);
    }
    Ok(times)
}

impl ArrivedSnapshot {
    fn checked(&self) -> Result<Arrived, Error> {
        let bytes = self.bytes.unwrap_or(0).into();
        in_range("a capsule's length", bytes, 0, (COMMAND + PAGE).into())?;
        Ok(Arrived {
            at: self.slot,
            ep: self.ep,
            bytes: self.bytes,
        })
    }
}

/// What the model knows of a queue.
struct Known {
    attached: Option<Attached>,
    namespaces: Option<Arc<NamespaceList>>,
}

impl Known {
    /// Checks the numbers of a queue against each other and against the model. A queue that is disconnecting may have
    /// lost its controller.
    fn of(
        model: &Model,
        snapshot: &WorkerSnapshot,
        queue: &QueueSnapshot,
    ) -> Result<Self, &'static str> {
        let most = if queue.number == 0 {
            ADMIN_ENTRIES
        } else {
            QUEUE_ENTRIES
        };
        if queue.number > QUEUES || !(2..=most).contains(&queue.entries) {
            return Err("its number or its entries are impossible");
        }
        if queue.is_up && !queue.early.is_empty() {
            return Err("it is established, and has commands that came before");
        }
        let (may_be_first, entries) = match &queue.attached {
            Some(of) => (queue.number != 0 && !of.must_authenticate, of.entries),
            None => (false, queue.entries),
        };
        if queue.first.is_some() && !may_be_first {
            return Err("it cannot have a fused pair");
        }
        if queue.early.len() > usize::from(entries) || queue.head >= entries {
            return Err("it has too many commands, or its head is impossible");
        }
        let Some(attached) = &queue.attached else {
            return Ok(Self {
                attached: None,
                namespaces: None,
            });
        };
        if !queue.is_up || !(2..=queue.entries).contains(&entries) {
            return Err("its state or its entries are impossible");
        }
        let is_known = attached.is_known(model, queue.number);
        if !is_known && !queue.is_disconnecting {
            return Err("the model has no such queue of a controller");
        }
        let mut ports = model.ports();
        let port = ports.find(|port| port.id == snapshot.config.port);
        let access = port.map(|port| Arc::clone(&port.access));
        let controller = model.controller(attached.controller).filter(|_| is_known);
        if let Some(one) = controller {
            // The states of its groups (ANA) are those of the port.
            let is_admin = queue.number == 0;
            let is_its = (one.port(), one.worker()) == (snapshot.config.port, snapshot.id);
            if access.is_none() || is_admin && !is_its {
                return Err("its controller has another port or another worker");
            }
        }
        let namespaces = match controller {
            Some(one) if attached.has_namespaces == one.is_discovery() => {
                return Err("it has the namespaces of another subsystem");
            }
            Some(one) if attached.has_namespaces => {
                let mut all = model.subsystems();
                let of = all.find(|subsystem| subsystem.name() == one.subsystem());
                of.map(|subsystem| subsystem.list())
            }
            Some(_) | None => None,
        };
        // Only a queue that is disconnecting has no controller, and it begins no command.
        let host = controller.map_or_else(Nqn::discovery, |one| one.host().clone());
        let is_host = attached.has_namespaces && !attached.must_authenticate;
        // A host's queue that does not fit is disconnected.
        if queue.reserved.is_some() != is_host && !queue.is_disconnecting {
            return Err("it is counted as a guest and not as a host's, or the reverse");
        }
        Ok(Self {
            attached: Some(attached.checked(queue, access, host)?),
            namespaces,
        })
    }
}

impl AttachedSnapshot {
    /// Returns whether the model has this queue.
    fn is_known(&self, model: &Model, number: u16) -> bool {
        let controller = model.controller(self.controller);
        controller.is_some_and(|one| {
            one.has_queue(number, self.connection)
                && *one.host_id() == self.host_id
                && model.is_authenticated(self.controller, number) != self.must_authenticate
        })
    }

    fn checked(
        &self,
        queue: &QueueSnapshot,
        access: Option<Arc<PortAccess>>,
        host: Nqn,
    ) -> Result<Attached, &'static str> {
        let party = match &self.party {
            None => Party::Source(queue.source),
            Some(name) => {
                let name = Nqn::of_host(name, false);
                Party::Host(name.map_err(|_| "its host has an impossible name")?)
            }
        };
        Ok(Attached {
            controller: self.controller,
            number: queue.number,
            connection: self.connection,
            entries: self.entries,
            without_head: self.without_head,
            host_id: self.host_id,
            host,
            must_authenticate: self.must_authenticate,
            list: None,
            party,
            access: access.unwrap_or_default(),
        })
    }
}
