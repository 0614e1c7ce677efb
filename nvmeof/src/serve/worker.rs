//! Workers: one thread each, with one instance of an adapter.
//!
//! A loop iteration polls the events of the adapter and of the disks. Each event may produce responses. At the
//! end of the iteration the worker posts the responses, those of one queue with one doorbell, and then the receives.
//! After a number of iterations without an event, the worker sleeps on the adapter, the disks and the inbox at once.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use udapl::connection::PspHandle;
use udapl::event::{AsyncEvent, DtoCompletion};
use udapl::memory::PzHandle;
use udapl::reactor::ReactorError;
use udapl::srq::{SrqAttr, SrqHandle};
use udapl::wait::Arm;
use udapl::{
    CloseFlags, ConnQual, ConnectionEventKind, DtoCookie, DtoStatus, EvdFlags, EvdHandle, Event,
    Ia, PspFlags, explain, ia_close,
};

use super::admission::{Admission, event_places, places};
use super::config::WorkerConfig;
use super::error::WorkerError;
use super::hold::{Arrived, Pause};
use super::inbox::{Inbox, Membership, Message};
use super::layout::Memory;
use super::queue::{Held, Queues, Step as QueueStep};
use super::target::{Member, Over, Target};
use super::times::Timing;
use crate::io::{Commands, Disks, Io, QueueId, State, Step};
use crate::lines::Lines;
use crate::model::{Moment, Namespace, WorkerId};

/// Maximum number of events that one poll returns.
const EVENTS: usize = 32;
/// Interval at which the worker checks the model's deadlines and reports the activity of hosts: half of the shortest
/// keep-alive time. A sleep is not longer.
pub(super) const TICK: Duration = Duration::from_millis(500);
/// Number of iterations after which a busy worker checks whether `TICK` has passed.
const ITERATIONS_PER_CHECK: u32 = 1024;
/// Time in which connections must end when the worker stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Kind of a completion: the low two bits of its cookie. The other bits are the index of the command.
pub(super) mod kind {
    pub(in crate::serve) const RECEIVE: u64 = 0;
    pub(in crate::serve) const FETCH: u64 = 1;
    pub(in crate::serve) const PUT: u64 = 2;
    pub(in crate::serve) const RESPONSE: u64 = 3;
}

#[inline]
pub(super) const fn cookie(io: u32, kind: u64) -> DtoCookie {
    DtoCookie((io as u64) << 2 | kind)
}

/// Returns the command's index and the kind of a completion.
#[inline(always)]
fn parts_of(cookie: DtoCookie) -> (u32, u64) {
    // CAST: the index of 32 bits with which the cookie was posted.
    ((cookie.0 >> 2 & 0xffff_ffff) as u32, cookie.0 & 3)
}

/// Returns the length of a received capsule; `None` if the receive failed.
#[inline(always)]
fn received_bytes(done: &DtoCompletion, succeeded: bool) -> Option<u32> {
    let bytes = u32::try_from(done.transferred_length).unwrap_or(0);
    if succeeded { Some(bytes) } else { None }
}

/// Event streams of a worker's EVD.
pub(super) const STREAMS: EvdFlags = EvdFlags::CR
    .union(EvdFlags::CONNECTION)
    .union(EvdFlags::DTO);

/// Returns the attributes of a worker's SRQ.
pub(super) const fn srq_attr(places: u32) -> SrqAttr {
    SrqAttr {
        max_recv_dtos: places,
        max_recv_iov: 2,
        low_watermark: 0,
    }
}

/// The way in which [`Worker::run_or_pause`] has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The worker has been stopped, and its connections have ended. [`Worker::end`] follows.
    Stopped,
    /// All workers of the target are quiet, because of [`Target::hold`]. [`Worker::park`] may follow. If
    /// [`Worker::run_or_pause`] is called again, the worker goes on, and after [`Target::release`] as usual.
    Paused,
}

/// A worker: a thread's state for one instance of an adapter. The module describes its loop.
pub struct Worker {
    pub(super) target: Target,
    pub(super) id: WorkerId,
    pub(super) config: WorkerConfig,
    pub(super) timing: Timing,
    /// Quotas of parties.
    pub(super) admission: Admission,
    pub(super) ia: Ia,
    pub(super) zone: PzHandle,
    pub(super) events: EvdHandle,
    pub(super) srq: SrqHandle,
    pub(super) psp: Option<PspHandle>,
    pub(super) memory: Memory,
    /// All command slots: first those with a receive, then those for responses to event requests.
    pub(super) commands: Commands,
    /// Locks of all workers, also of this one. They are passed when the disks have ended the commands that they wait
    /// for, or when these have been leaked ([`Disks::end`]).
    pub(super) membership: Membership,
    /// Registration at the target. It is dropped after `commands`, because it unlocks the blocks of pairs.
    pub(super) member: Member,
    /// Number of slots with a receive.
    pub(super) places: u32,
    pub(super) queues: Queues,
    /// Commands whose responses are posted at the end of this iteration.
    pub(super) ready: Vec<u32>,
    /// Commands whose receives are to be posted.
    pub(super) spare: Vec<u32>,
    /// Free slots for responses to event requests.
    pub(super) spare_events: Vec<u32>,
    /// Room for the events of one iteration.
    pub(super) arrivals: Box<[Event]>,
    /// The hold of the target that the worker follows, with the capsules that it has not begun.
    pub(super) pause: Option<Box<Pause>>,
    /// Outstanding event requests, by controller.
    pub(super) held: BTreeMap<u16, VecDeque<Held>>,
    /// Budgets for log lines that any peer can cause.
    pub(super) lines: Lines,
    /// Budgets for log lines about disks, which only admitted hosts can cause.
    pub(super) disk_lines: Lines,
    pub(super) next_tick: Moment,
    /// Number of iterations since the last check of the clock.
    pub(super) iterations: u32,
    pub(super) is_stopping: Option<Moment>,
    pub(super) over: Over,
}

/// Waits for the operations of a worker that ends.
fn end_disks(
    disks: Disks,
    at_disks: &[Arc<Namespace>],
    membership: &mut Membership,
) -> Result<(), ReactorError> {
    let ended = disks.end(DRAIN_TIMEOUT);
    if !matches!(ended, Ok(true)) {
        membership.abandon(at_disks);
    }
    ended.map(|_| ())
}

impl Worker {
    /// Creates a worker that listens.
    ///
    /// # Errors
    /// [`WorkerError`]. The adapter is closed then.
    pub fn new(target: &Target, mut ia: Ia, config: WorkerConfig) -> Result<Self, WorkerError> {
        config.check(ia.query().ia.max_recv_per_srq)?;
        let zone = ia.pz_create()?;
        let (places, responses) = (places(config.ios), event_places(config.ios));
        // A command has at most two completions outstanding: its receive, and its fetch or response. An event has one,
        // its response. As many again are the flushed requests of broken connections.
        let events = ia.evd_create(4 * places + 2 * responses, STREAMS)?;
        let srq = ia.srq_create(zone, srq_attr(places))?;
        let all = places + responses;
        let memory = Memory::new(&mut ia, zone, (places, all), config)?;
        let mut disks = Disks::new(all)?;
        let pinned = disks.pin(&[memory.places.buffer.clone(), memory.buffers.buffer.clone()])?;
        let inbox = Arc::new(Inbox::new()?);
        let psp =
            ia.psp_create_shared(ConnQual::port(config.service), events, PspFlags::CONSUMER)?;
        let member = target.join(Arc::clone(&inbox));
        let id = member.id();
        tracing::debug!(
            worker = id,
            port = config.port,
            service = config.service,
            pinned,
            "worker"
        );
        let mut worker = Self {
            target: target.clone(),
            id,
            config,
            member,
            timing: Timing::default(),
            membership: Membership::new(inbox),
            admission: Admission::new(config.ios),
            ia,
            zone,
            events,
            srq,
            psp: Some(psp),
            commands: Commands::new(all, config.buffers, memory.data(), disks),
            memory,
            places,
            queues: Queues::default(),
            ready: Vec::with_capacity(all as usize), // CAST: bounded above.
            spare: (0..places).collect(),
            spare_events: (places..all).collect(),
            arrivals: Self::room_for_events(),
            pause: None,
            held: BTreeMap::new(),
            lines: Lines::default(),
            disk_lines: Lines::default(),
            next_tick: Moment::ZERO,
            iterations: 0,
            is_stopping: None,
            over: Over::default(),
        };
        worker.post_spare()?;
        worker.report_capacity();
        worker.follow_hold()?;
        Ok(worker)
    }

    pub(super) fn room_for_events() -> Box<[Event]> {
        Box::new([Event::NONE; EVENTS])
    }

    /// Returns the worker's number.
    #[must_use]
    pub const fn id(&self) -> WorkerId {
        self.id
    }

    /// Reports the capacity that is left to the target.
    #[cold]
    pub(super) fn report_capacity(&self) {
        self.member
            .report_capacity(self.config.port, self.admission.room);
    }

    /// Serves until [`Target::stop`] or [`Target::stop_worker`].
    ///
    /// # Errors
    /// [`WorkerError::Gone`]: the device is dead, or the system has requested its release. Other errors: the adapter or
    /// the reactor of the disks refused a valid call, or the adapter cannot be closed.
    pub fn run(mut self) -> Result<Over, WorkerError> {
        let served = self.serve(false);
        self.end(served)
    }

    /// Serves as [`Worker::run`] does, and also returns when all workers of the target are quiet during a hold
    /// ([`Target::hold`]).
    ///
    /// # Errors
    /// As [`Worker::run`]. The caller passes the result to [`Worker::end`], also if it is an error.
    pub fn run_or_pause(&mut self) -> Result<Served, WorkerError> {
        self.serve(true)
    }

    /// Ends the worker after [`Worker::run_or_pause`].
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub fn end(mut self, served: Result<Served, WorkerError>) -> Result<Over, WorkerError> {
        if let Err(error) = served {
            let at_disks = self.commands.at_disks();
            let disks = self.commands.disks;
            if let Err(of_disks) = end_disks(disks, &at_disks, &mut self.membership) {
                tracing::error!(
                    worker = self.id,
                    error = %of_disks,
                    "the disks of a failed worker cannot be waited for"
                );
            }
            // Pairs of other workers, and hosts of this one, wait for these drops. So they precede the adapter's close.
            drop(self.membership);
            drop(self.member);
            return Err(error);
        }
        self.close()
    }

    /// Serves until the worker has been stopped and its connections have ended, or, if `pauses`, may pause.
    fn serve(&mut self, pauses: bool) -> Result<Served, WorkerError> {
        let mut idle = 0;
        loop {
            let came = self.run_once()?;
            if let Some(until) = self.is_stopping {
                self.disconnect_drained(until)?;
            }
            if let Some(until) = self.is_stopping
                && (self.queues.is_empty() || self.target.now() >= until)
            {
                return Ok(Served::Stopped);
            }
            if pauses && self.pause.is_some() && self.may_pause() {
                return Ok(Served::Paused);
            }
            idle = if came { 0 } else { idle + 1 };
            if idle > self.config.spin {
                self.sleep()?;
                idle = 0;
            }
        }
    }

    /// Runs one iteration, for a program with a loop of its own. Returns whether there was an event.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub fn run_once(&mut self) -> Result<bool, WorkerError> {
        self.iterations += 1;
        if self.iterations == ITERATIONS_PER_CHECK {
            self.iterations = 0;
            self.check_timers()?;
        }
        let mut arrivals = core::mem::take(&mut self.arrivals);
        let taken = if self.pause.is_none() {
            self.take_events(self.events, &mut arrivals)
        } else {
            self.take_events_held(&mut arrivals)
        };
        self.arrivals = arrivals;
        let taken = taken?;
        if taken != 0 {
            self.over.queues = self.queues.count();
            self.member.report_counts(&self.over);
        }
        let mut moved = self.poll_disks()?;
        self.hear_all()?;
        if self.commands.wake().is_some() {
            moved |= self.end_waits()?;
        }
        self.finish_iteration()?;
        Ok(taken != 0 || moved)
    }

    /// Handles events of an EVD, as many as `places` holds. Returns their number.
    #[inline(always)]
    fn take_events(&mut self, evd: EvdHandle, places: &mut [Event]) -> Result<usize, WorkerError> {
        let taken = self.ia.evd_poll(evd, places)?;
        for event in &places[..taken] {
            self.take(event)?;
        }
        Ok(taken)
    }

    /// Sleeps until an event or a message comes, or the model's deadlines are due.
    fn sleep(&mut self) -> Result<(), WorkerError> {
        // The check may have put messages into the inbox, so the worker does not sleep.
        if self.check_timers()? {
            return Ok(());
        }
        // Asynchronous events concern the adapter as a whole. They are polled only here: a dead adapter has no other
        // events, so the worker soon becomes idle and calls this function.
        let of_adapter = self.ia.async_evd();
        self.take_events(of_adapter, &mut [Event::NONE; EVENTS])?;
        let wake = self.commands.wake().unwrap_or(self.next_tick);
        let left = wake.min(self.next_tick).saturating_sub(self.target.now());
        match self.ia.arm(&[self.events, of_adapter])? {
            Arm::Ready => {}
            Arm::Armed(armed) => {
                self.over.sleeps += 1;
                let on = [armed.as_fd(), self.membership.inbox.as_fd()];
                self.commands.disks.sleep(&on, armed.timeout().min(left))?;
            }
        }
        Ok(())
    }

    /// Checks the model's deadlines, if `TICK` has passed. Returns whether it has.
    fn check_timers(&mut self) -> Result<bool, WorkerError> {
        let now = self.target.now();
        if now < self.next_tick {
            return Ok(false);
        }
        self.member.report_counts(&self.over);
        self.report_heard(now);
        if self.pause.is_none() {
            self.target.with(|model| model.expire(now));
            self.expire_unconnected(now)?;
        }
        Ok(true)
    }

    /// Reports the activity of hosts to the model. The next check of the model's deadlines is after `TICK`.
    pub(super) fn report_heard(&mut self, now: Moment) {
        self.next_tick = now + TICK;
        let heard = self.queues.heard();
        self.target
            .with(|model| heard.for_each(|controller| model.hear(controller, now)));
    }

    /// Handles the completed operations of the disks. Returns whether there were any.
    fn poll_disks(&mut self) -> Result<bool, WorkerError> {
        self.commands.disks.poll()?;
        let mut moved = false;
        while let Some(ended) = self.commands.disks.next() {
            moved = true;
            self.disk_done(ended)?;
        }
        if moved && !self.membership.fences.is_empty() {
            self.pass_fences();
        }
        Ok(moved)
    }

    pub(super) fn take(&mut self, event: &Event) -> Result<(), WorkerError> {
        match event {
            Event::Dto(done) => self.completed(done),
            Event::ConnectionRequest(request) => self.asked(request),
            Event::Connection(event) => match event.kind {
                ConnectionEventKind::Established => self.established(event.ep),
                ConnectionEventKind::Disconnected
                | ConnectionEventKind::Broken
                | ConnectionEventKind::AcceptCompletionError
                | ConnectionEventKind::TimedOut
                | ConnectionEventKind::Unreachable
                | ConnectionEventKind::PeerRejected
                | ConnectionEventKind::NonPeerRejected => self.ended(event.ep),
            },
            Event::Async(AsyncEvent::IaCatastrophic) => Err(WorkerError::Gone),
            // The control socket of the adapter reports this event.
            Event::Async(AsyncEvent::Network(event)) => {
                tracing::debug!(worker = self.id, %event, "network");
                Ok(())
            }
            Event::Async(event) => {
                tracing::warn!(worker = self.id, ?event, "asynchronous event");
                Ok(())
            }
            Event::RmrBind(_) | Event::Software(_) => Ok(()),
        }
    }

    /// Handles the completion of a receive during a hold: the capsule waits until the worker goes on.
    pub(super) fn set_aside(done: &DtoCompletion) -> Option<Arrived> {
        let (at, kind) = parts_of(done.cookie);
        (kind == kind::RECEIVE).then(|| Arrived {
            at,
            ep: done.ep,
            bytes: received_bytes(done, done.status == DtoStatus::Success),
        })
    }

    fn completed(&mut self, done: &DtoCompletion) -> Result<(), WorkerError> {
        let (at, kind) = parts_of(done.cookie);
        if done.status != DtoStatus::Success && done.status != DtoStatus::ErrFlushed {
            let of = self.queues.of(done.ep);
            let source = of.map(|(_, queue)| queue.place.source);
            if let Some(source) = source
                && let Some(unlogged) = self.lines.take(source, "broken", self.target.now())
            {
                tracing::info!(worker = self.id, io = at, kind, %source, unlogged, "{}", explain(done));
            }
        }
        let succeeded = done.status == DtoStatus::Success;
        match kind {
            kind::RECEIVE => self.received(at, done.ep, received_bytes(done, succeeded)),
            kind::FETCH => {
                self.commands.ios[at as usize].step(Step::Fetched); // CAST: widening.
                if succeeded {
                    self.fetched(at)
                } else {
                    // A failed RDMA Read ends the connection, so there is no response.
                    self.drop_io(at)
                }
            }
            // An RDMA Write has a completion only if it fails, and the response after it then fails, too.
            kind::PUT => Ok(()),
            _ => self.left(at, succeeded),
        }
    }

    /// Handles all messages that have come. If that fails, no other worker waits for an answer to one of them.
    pub(super) fn hear_all(&mut self) -> Result<(), WorkerError> {
        let mut messages = self.membership.inbox.take();
        while let Some(message) = messages.pop_front() {
            if let Err(error) = self.hear(message) {
                messages.into_iter().for_each(Message::give_up);
                return Err(error);
            }
        }
        Ok(())
    }

    pub(super) fn hear(&mut self, message: Message) -> Result<(), WorkerError> {
        match message {
            Message::Event(controller) => self.report_events(controller),
            Message::Fence(lock) => self.fence(lock),
            Message::Locked(io) => self.locked(io)?,
            Message::Unlocked => self.unlocked()?,
            Message::Abort(search) => self.look_for(&search)?,
            Message::Searched { io, was_found } => self.searched(io, was_found)?,
            Message::Reset(controller, last) => self.controller_reset(controller, last)?,
            Message::Over(controller) => self.controller_over(controller)?,
            Message::Queue(connection) => self.queue_over(connection)?,
            Message::Authenticated {
                io,
                answer,
                is_known,
            } => self.authenticated(io, &answer, is_known)?,
            Message::Hold => self.follow_hold()?,
            // The worker is already stopping.
            Message::Stop if self.is_stopping.is_some() => {}
            Message::Stop => {
                if let Some(psp) = self.psp.take() {
                    self.ia.psp_free(psp)?;
                }
                self.end_pause()?;
                self.is_stopping = Some(self.target.now() + DRAIN_TIMEOUT);
                for id in self.queues.ids() {
                    if let Some(queue) = self.queues.get_mut(id)
                        && !queue.step(QueueStep::Drain)
                    {
                        self.disconnect(id)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// While the worker stops, ends the connections that have no pending commands except event requests. After half of
    /// the time-out, ends all connections.
    #[cold]
    fn disconnect_drained(&mut self, until: Moment) -> Result<(), WorkerError> {
        let is_late = self.target.now() + DRAIN_TIMEOUT / 2 >= until;
        let is_busy = |io: &&Io| io.state() != State::Free;
        let ios = self.commands.ios.iter();
        let busy: Vec<QueueId> = ios.filter(is_busy).map(|io| io.queue).collect();
        for id in self.queues.ids() {
            if is_late || !busy.contains(&id) {
                self.disconnect(id)?;
            }
        }
        Ok(())
    }

    /// Gives freed buffers to waiting commands, posts the responses of the iteration, and then the receives.
    fn finish_iteration(&mut self) -> Result<(), WorkerError> {
        loop {
            while let Some(io) = self.commands.buffers.next() {
                self.buffer_free(io)?;
            }
            if !self.ready.is_empty() {
                self.respond()?;
            }
            // Responses of ended connections are dropped, and so free their buffers at once.
            if !self.commands.buffers.has_next() {
                break;
            }
        }
        if !self.spare.is_empty() {
            self.post_spare()?;
        }
        if self.commands.is_any_lost() {
            self.end_lost()?;
        }
        Ok(())
    }

    fn post_spare(&mut self) -> Result<(), WorkerError> {
        let Self {
            ia,
            srq,
            spare,
            memory,
            ..
        } = self;
        let posted = ia.srq_batch(*srq, |batch| {
            for io in spare.iter() {
                if let Some(receive) = memory.receive(*io) {
                    batch.recv(receive, cookie(*io, kind::RECEIVE))?;
                }
            }
            Ok(())
        });
        spare.clear();
        Ok(posted?)
    }

    /// Ends the connections of lost commands. The slots and buffers of these commands are never used again, because the
    /// adapter or a disk may still access them.
    #[cold]
    fn end_lost(&mut self) -> Result<(), WorkerError> {
        for (at, state, step) in self.commands.take_lost() {
            let io = &self.commands.ios[at as usize]; // CAST: widening.
            let (queue, opcode, cid) = (io.queue, io.sqe.opcode, io.sqe.cid.get());
            tracing::error!(
                worker = self.id,
                io = at,
                ?state,
                ?step,
                opcode,
                cid,
                "an I/O in a state that has no such step: its connection ends, and its place is used no more"
            );
            self.disconnect(queue)?;
        }
        Ok(())
    }

    /// Removes a queue whose connection has ended, once none of its commands is pending.
    pub(super) fn remove_ended(&mut self, id: QueueId) -> Result<(), WorkerError> {
        if let Some(queue) = self.queues.get(id)
            && queue.state() == super::queue::State::Ending
            && queue.outstanding == 0
        {
            let (ep, share) = (queue.ep, queue.share);
            self.queues.remove(id);
            self.admission.release_share(&share);
            self.report_capacity();
            self.ia.ep_free(ep)?;
        }
        Ok(())
    }

    fn close(self) -> Result<Over, WorkerError> {
        let Self {
            ia,
            mut over,
            commands,
            config,
            mut membership,
            ..
        } = self;
        let left = commands.ios.iter().filter(|io| io.state() != State::Free);
        over.ios_left = left.count();
        over.buffers_left = (config.buffers as usize).saturating_sub(commands.buffers.free()); // CAST: widening.
        // The disks must finish their operations before the memory is freed.
        let at_disks = commands.at_disks();
        end_disks(commands.disks, &at_disks, &mut membership)?;
        drop(membership);
        ia_close(ia, CloseFlags::Abrupt).map_err(|error| WorkerError::Close(Box::new(error)))?;
        Ok(over)
    }
}
