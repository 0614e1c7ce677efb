//! A worker: one thread, one instance of an adapter.
//!
//! A turn takes what events there are, and what its disks have done; each may answer I/Os, and the answers of a turn
//! leave together, those of one queue behind one doorbell, and so do the receives that are posted again. A turn in
//! which nothing came may end in a sleep, on the adapter, the disks and the inbox at once.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use udapl::reactor::ReactorError;
use udapl::{
    Arm, AsyncEvent, CloseFlags, ConnQual, ConnectionEventKind, DatError, DmaError, DtoCompletion,
    DtoCookie, DtoStatus, EvdFlags, EvdHandle, Event, Ia, NotClosed, PspFlags, PspHandle, PzHandle,
    SrqAttr, SrqHandle, explain, ia_close,
};

use super::admission::{Admission, event_places, most_ios, places};
use super::buffers::Buffers;
use super::disks::Disks;
use super::event::Held;
use super::execute::Shelves;
use super::fused::Membership;
use super::inbox::{Inbox, Message};
use super::io::{Io, State, Step};
use super::layout::Memory;
use super::queue::{QueueId, Queues, Step as QueueStep};
use super::target::{Member, Target};
use super::times::Timing;
use crate::lines::Lines;
use crate::model::{Moment, WorkerId};

/// Events that are taken at once.
const EVENTS: usize = 32;
/// How often the model's times are looked at, and what was heard of hosts is told; a sleep is no longer. Half of the
/// shortest keep-alive time.
const TICK: Duration = Duration::from_millis(500);
/// Turns after which a worker that has no rest looks whether it is time for that.
const TURNS: u32 = 1024;
/// How long connections have to end when everything does.
const FAREWELL: Duration = Duration::from_secs(5);

/// What a completion is of, in the low bits of its cookie; the I/O is above.
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

/// What a worker is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// The model's port by which hosts reach it.
    pub port: u16,
    /// The service (TCP port number) at which it listens.
    pub service: u16,
    /// Entries that the queues of all hosts have together here: a queue that does not fit is refused
    /// (`src/serve/admission.rs`).
    pub ios: u32,
    /// Buffers of 128 KiB for data that is longer than a page.
    pub buffers: u32,
    /// Turns without an event before it sleeps.
    pub spin: u32,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            port: 1,
            service: 4420,
            ios: 2048,
            buffers: 32,
            spin: 64,
        }
    }
}

/// Why there is no worker, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The adapter refuses.
    #[error("{0}")]
    Adapter(#[from] DatError),
    /// There is no memory.
    #[error("{0}")]
    Memory(#[from] DmaError),
    /// The ring for the disks.
    #[error("{0}")]
    Reactor(#[from] ReactorError),
    /// A descriptor to be woken by.
    #[error("a descriptor to be woken by: {0}")]
    Wakeup(#[from] std::io::Error),
    /// The adapter cannot be closed.
    #[error("{0}")]
    Close(Box<NotClosed<Ia>>),
    /// A number that cannot be.
    #[error("{what} of a worker: {number}, there can be {least} to {most}")]
    Range {
        /// Of what.
        what: &'static str,
        /// How many were asked for.
        number: u32,
        /// How many there have to be.
        least: u32,
        /// How many there can be.
        most: u32,
    },
    /// The adapter is dead, or is wanted back.
    #[error("the adapter is gone")]
    Gone,
}

/// How a worker ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Over {
    /// Commands that were answered.
    pub commands: u64,
    /// Connections that were taken.
    pub connections: u64,
    /// Of them, those that are there.
    pub queues: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// I/Os that had not ended when it did, and buffers that they had: none, unless connections did not end in time.
    pub ios_left: usize,
    /// Buffers likewise.
    pub buffers_left: usize,
    /// Commands that were refused; their answers are counted, too.
    pub refused: u64,
    /// Commands that are here now: taken in, and their answers have not left.
    pub here: u64,
}

/// A worker.
pub struct Worker {
    pub(super) target: Target,
    pub(super) id: WorkerId,
    pub(super) config: WorkerConfig,
    pub(super) member: Member,
    pub(super) timing: Timing,
    pub(super) membership: Membership,
    /// Who may have how much.
    pub(super) admission: Admission,
    /// I/Os that met a locked block.
    pub(super) locked_out: Vec<u32>,
    pub(super) ia: Ia,
    pub(super) zone: PzHandle,
    pub(super) events: EvdHandle,
    pub(super) srq: SrqHandle,
    psp: Option<PspHandle>,
    pub(super) memory: Memory,
    /// Those that receives are posted for, and behind them answers to event requests.
    pub(super) ios: Vec<Io>,
    /// How many receives there are.
    places: u32,
    /// One of the I/Os was to take a step that it has not.
    is_any_lost: Arc<AtomicBool>,
    pub(super) buffers: Buffers,
    pub(super) queues: Queues,
    pub(super) shelves: Shelves,
    pub(super) disks: Disks,
    /// I/Os that are answered in this turn.
    pub(super) ready: Vec<u32>,
    /// I/Os whose receives are to be posted again.
    spare: Vec<u32>,
    /// Free places for answers to event requests.
    pub(super) spare_events: Vec<u32>,
    /// Event requests that wait, by controller.
    pub(super) held: BTreeMap<u16, VecDeque<Held>>,
    /// Lines of the log that strangers cause.
    pub(super) lines: Lines,
    next_tick: Moment,
    /// Turns since the model's times were looked at.
    turns: u32,
    pub(super) is_stopping: Option<Moment>,
    pub(super) over: Over,
}

impl Worker {
    /// A worker that listens.
    ///
    /// # Errors
    /// [`WorkerError`]; the adapter is closed.
    pub fn new(target: &Target, mut ia: Ia, config: WorkerConfig) -> Result<Self, WorkerError> {
        /// Beyond that a region of pages has no 32-bit offsets.
        const IOS: u32 = 1 << 16;
        let receives = ia.query().ia.max_recv_per_srq;
        /// Likewise one of buffers.
        const BUFFERS: u32 = 1 << 14;
        for (what, number, least, most) in [
            ("ios", config.ios, 2, IOS.min(most_ios(receives))),
            // A comparison has two.
            ("buffers", config.buffers, 2, BUFFERS),
        ] {
            if !(least..=most).contains(&number) {
                return Err(WorkerError::Range {
                    what,
                    number,
                    least,
                    most,
                });
            }
        }
        let zone = ia.pz_create()?;
        let (places, responses) = (places(config.ios), event_places(config.ios));
        // A receive and a fetch or a response of each I/O, and what a broken connection throws away.
        let streams = EvdFlags::CR | EvdFlags::CONNECTION | EvdFlags::DTO;
        let events = ia.evd_create(4 * places + 2 * responses, streams)?;
        let attr = SrqAttr {
            max_recv_dtos: places,
            max_recv_iov: 2,
            low_watermark: 0,
        };
        let srq = ia.srq_create(zone, attr)?;
        let all = places + responses;
        let memory = Memory::new(&mut ia, zone, (places, all), config.buffers)?;
        let is_any_lost = Arc::new(AtomicBool::new(false));
        let mut disks = Disks::new(256)?;
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
            membership: Membership {
                inbox,
                fences: Vec::new(),
            },
            admission: Admission::new(config.ios),
            locked_out: Vec::new(),
            ia,
            zone,
            events,
            srq,
            psp: Some(psp),
            memory,
            ios: (0..all).map(|_| Io::new(&is_any_lost)).collect(),
            places,
            is_any_lost,
            buffers: Buffers::new(config.buffers),
            queues: Queues::default(),
            shelves: Shelves::default(),
            disks,
            ready: Vec::with_capacity(all as usize), // CAST: bounded above.
            spare: (0..places).collect(),
            spare_events: (places..all).collect(),
            held: BTreeMap::new(),
            lines: Lines::default(),
            next_tick: Moment::ZERO,
            turns: 0,
            is_stopping: None,
            over: Over::default(),
        };
        worker.post_spare()?;
        worker.tell_room();
        Ok(worker)
    }

    /// As the target counts it.
    #[must_use]
    pub const fn id(&self) -> WorkerId {
        self.id
    }

    /// Lets others read what is given away.
    #[cold]
    pub(super) fn tell_room(&self) {
        self.member.tell_room(self.config.port, self.admission.room);
    }

    /// Serves until [`Target::stop`] or [`Target::stop_worker`].
    ///
    /// # Errors
    /// [`WorkerError::Gone`]: the adapter is dead or wanted back. Everything else is a call that was refused although
    /// nothing was wrong with it.
    pub fn run(mut self) -> Result<Over, WorkerError> {
        let mut events = [Event::NONE; EVENTS];
        let mut idle = 0;
        loop {
            let came = self.take_turn(&mut events)?;
            if let Some(until) = self.is_stopping {
                self.leave_drained(until)?;
            }
            if let Some(until) = self.is_stopping
                && (self.queues.is_empty() || self.target.now() >= until)
            {
                return self.close();
            }
            idle = if came { 0 } else { idle + 1 };
            if idle > self.config.spin {
                self.sleep()?;
                idle = 0;
            }
        }
    }

    /// One turn, for a program that has a loop of its own: takes what has come, and answers what it can. Whether
    /// anything had come.
    ///
    /// # Errors
    /// As [`Worker::run`].
    pub fn turn(&mut self) -> Result<bool, WorkerError> {
        self.take_turn(&mut [Event::NONE; EVENTS])
    }

    fn take_turn(&mut self, events: &mut [Event; EVENTS]) -> Result<bool, WorkerError> {
        self.turns += 1;
        if self.turns == TURNS {
            self.turns = 0;
            self.look_at_times()?;
        }
        let taken = self.ia.evd_poll(self.events, events)?;
        for event in &events[..taken] {
            self.take(event)?;
        }
        if taken != 0 {
            self.over.queues = self.queues.count();
            self.member.tell(&self.over);
        }
        let moved = self.look_at_disks()?;
        for message in self.membership.inbox.take() {
            self.hear(message)?;
        }
        self.finish_turn()?;
        Ok(taken != 0 || moved)
    }

    /// Sleeps until something comes, or the model's times want to be looked at.
    fn sleep(&mut self) -> Result<(), WorkerError> {
        // What comes of it may be in the inbox.
        if self.look_at_times()? {
            return Ok(());
        }
        // What concerns the adapter as a whole. One that is gone brings nothing else, so it comes to a sleep.
        let of_adapter = self.ia.async_evd();
        let mut events = [Event::NONE; EVENTS];
        let taken = self.ia.evd_poll(of_adapter, &mut events)?;
        for event in &events[..taken] {
            self.take(event)?;
        }
        let left = self.next_tick.saturating_sub(self.target.now());
        match self.ia.arm(&[self.events, of_adapter])? {
            Arm::Ready => {}
            Arm::Armed(armed) => {
                self.over.sleeps += 1;
                let on = [armed.as_fd(), self.membership.inbox.as_fd()];
                self.disks.sleep(&on, armed.timeout().min(left))?;
            }
        }
        Ok(())
    }

    /// Ends what has been silent for too long, if it is time to look at that. Whether it was.
    fn look_at_times(&mut self) -> Result<bool, WorkerError> {
        let now = self.target.now();
        if now < self.next_tick {
            return Ok(false);
        }
        self.next_tick = now + TICK;
        self.member.tell(&self.over);
        let heard = self.queues.heard();
        self.target.with(|model| {
            heard.for_each(|controller| model.hear(controller, now));
            model.expire(now)
        });
        self.expire_strangers(now)?;
        Ok(true)
    }

    /// What the disks have done. Whether there was anything.
    fn look_at_disks(&mut self) -> Result<bool, WorkerError> {
        self.disks.look()?;
        let mut moved = false;
        while let Some(ended) = self.disks.next() {
            moved = true;
            self.disk_done(ended)?;
        }
        if moved && !self.membership.fences.is_empty() {
            self.pass_fences();
        }
        Ok(moved)
    }

    fn take(&mut self, event: &Event) -> Result<(), WorkerError> {
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
            // Who is asked for it has it from the adapter's own socket.
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

    fn completed(&mut self, done: &DtoCompletion) -> Result<(), WorkerError> {
        // As it was posted: 32 bits.
        let at = u32::try_from(done.cookie.0 >> 2).unwrap_or(u32::MAX);
        let kind = done.cookie.0 & 3;
        if done.status != DtoStatus::Success && done.status != DtoStatus::ErrFlushed {
            let of = self.queues.of(done.ep).and_then(|id| self.queues.get(id));
            let source = of.map(|queue| queue.place.source);
            if let Some(source) = source
                && let Some(unlogged) = self.lines.take(source, "broken", self.target.now())
            {
                tracing::info!(worker = self.id, io = at, kind, %source, unlogged, "{}", explain(done));
            }
        }
        let succeeded = done.status == DtoStatus::Success;
        match kind {
            kind::RECEIVE => {
                let bytes = u32::try_from(done.transferred_length).unwrap_or(0);
                self.received(at, done.ep, if succeeded { Some(bytes) } else { None })
            }
            kind::FETCH => {
                self.ios[at as usize].step(Step::Arrived);
                if succeeded {
                    self.fetched(at)
                } else {
                    // The connection is on its way out; nobody is to be answered.
                    self.drop_io(at)
                }
            }
            // Only failures are told, and the response behind it fails as well.
            kind::PUT => Ok(()),
            _ => self.left(at, succeeded),
        }
    }

    /// An answer has left, or failed, and those posted before it have left: what fails is told one by one.
    fn left(&mut self, at: u32, succeeded: bool) -> Result<(), WorkerError> {
        let id = self.ios[at as usize].queue;
        while let Some(queue) = self.queues.get_mut(id)
            && let Some(first) = queue.leaving.pop_front()
        {
            let has_left = succeeded || first != at;
            queue.was_heard |= has_left;
            self.over.commands += u64::from(has_left);
            if let Some(began) = self.ios[first as usize].began
                && has_left
            {
                self.end_time(first, began);
            }
            self.ios[first as usize].step(Step::Left);
            self.release(first)?;
            if first == at {
                break;
            }
        }
        Ok(())
    }

    fn hear(&mut self, message: Message) -> Result<(), WorkerError> {
        match message {
            Message::Event(controller) => self.tell_events(controller),
            Message::Fence(lock) => self.fence(lock),
            Message::Locked(io) => self.locked(io)?,
            Message::Unlocked => self.unlocked()?,
            Message::Reset(controller, last) => self.controller_reset(controller, last)?,
            Message::Over(controller) => self.controller_over(controller)?,
            Message::Queue(connection) => self.queue_over(connection)?,
            Message::Authenticated {
                io,
                answer,
                is_known,
            } => self.authenticated(io, &answer, is_known)?,
            // Once is enough.
            Message::Stop if self.is_stopping.is_some() => {}
            Message::Stop => {
                if let Some(psp) = self.psp.take() {
                    self.ia.psp_free(psp)?;
                }
                self.is_stopping = Some(self.target.now() + FAREWELL);
                for id in self.queues.ids() {
                    if let Some(queue) = self.queues.get_mut(id)
                        && !queue.step(QueueStep::Drain)
                    {
                        self.leave(id)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends connections of which nothing is here any more but requests for events, and late in a stop all of them.
    #[cold]
    fn leave_drained(&mut self, until: Moment) -> Result<(), WorkerError> {
        let is_late = self.target.now() + FAREWELL / 2 >= until;
        let is_busy = |io: &&Io| io.state() != State::Posted;
        let busy: Vec<QueueId> = self.ios.iter().filter(is_busy).map(|io| io.queue).collect();
        for id in self.queues.ids() {
            if is_late || !busy.contains(&id) {
                self.leave(id)?;
            }
        }
        Ok(())
    }

    /// Hands out what the turn has freed, and posts what it has brought: responses, then receives.
    fn finish_turn(&mut self) -> Result<(), WorkerError> {
        loop {
            while let Some(io) = self.buffers.next() {
                self.found(io)?;
            }
            if !self.ready.is_empty() {
                self.respond()?;
            }
            // Answers that nobody takes free buffers at once.
            if !self.buffers.has_next() {
                break;
            }
        }
        if !self.spare.is_empty() {
            self.post_spare()?;
        }
        if self.is_any_lost.load(Ordering::Relaxed) {
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
                    batch.recv(&receive, cookie(*io, kind::RECEIVE))?;
                }
            }
            Ok(())
        });
        spare.clear();
        Ok(posted?)
    }

    /// Ends the connections of I/Os that were to take a step that is none of their state's. What they have stays
    /// theirs: the adapter or a disk may reach it.
    #[cold]
    fn end_lost(&mut self) -> Result<(), WorkerError> {
        self.is_any_lost.store(false, Ordering::Relaxed);
        for at in 0..self.ios.len() {
            let io = &mut self.ios[at];
            if let Some((state, step)) = io.mistake.take() {
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
                self.leave(queue)?;
            }
        }
        Ok(())
    }

    /// An I/O is over: what it had is free, and its receive is posted again.
    pub(super) fn release(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &mut self.ios[at as usize];
        if io.state() != State::Posted {
            // It is lost.
            return Ok(());
        }
        let (queue, spot, second) = (io.queue, io.spot.take(), io.second.take());
        if let Some(super::layout::Spot::Buffer(buffer)) = spot {
            self.buffers.give_back(buffer);
        }
        if let Some(buffer) = second {
            self.buffers.give_back(buffer);
        }
        if let Some(partner) = io.partner.take() {
            self.ios[partner as usize].partner = None;
        }
        if let Some(lock) = self.ios[at as usize].lock.take() {
            self.target.unlock(&lock);
        }
        let is_event = at >= self.places;
        if is_event {
            self.spare_events.push(at);
        } else {
            self.spare.push(at);
            self.over.here -= 1;
        }
        if let Some(of) = self.queues.get_mut(queue) {
            if of.share.is_guest() {
                self.admission.give_back(of.outstanding);
            }
            of.outstanding -= 1;
            if let Some(next) = of.behind.pop_front() {
                self.ready.push(next);
            }
            if of.state() == super::queue::State::Ending {
                return self.clear_away(queue);
            }
        }
        if is_event {
            self.told(queue);
        }
        Ok(())
    }

    /// Nobody wants an answer of an I/O that is nowhere else.
    pub(super) fn drop_io(&mut self, at: u32) -> Result<(), WorkerError> {
        self.ios[at as usize].step(Step::Drop);
        self.release(at)
    }

    /// A queue that has ended is gone once nothing of it is anywhere.
    pub(super) fn clear_away(&mut self, id: QueueId) -> Result<(), WorkerError> {
        if let Some(queue) = self.queues.get(id)
            && queue.state() == super::queue::State::Ending
            && queue.outstanding == 0
        {
            let (ep, share) = (queue.ep, queue.share);
            self.queues.remove(id);
            self.admission.dismiss(&share);
            self.tell_room();
            self.ia.ep_free(ep)?;
        }
        Ok(())
    }

    fn close(self) -> Result<Over, WorkerError> {
        let Self {
            ia,
            mut over,
            disks,
            ios,
            buffers,
            config,
            membership,
            ..
        } = self;
        let left = ios.iter().filter(|io| io.state() != State::Posted);
        over.ios_left = left.count();
        over.buffers_left = (config.buffers as usize).saturating_sub(buffers.free()); // CAST: widening.
        // Disks have what they were given before the memory goes.
        disks.end(FAREWELL)?;
        drop(membership);
        ia_close(ia, CloseFlags::Abrupt).map_err(|error| WorkerError::Close(Box::new(error)))?;
        Ok(over)
    }
}
