//! Queue pairs: the device's work between a doorbell and a completion.
//!
//! A [`Qp`] joins independent parts: its rings (`ring`); its send queue with the requester, which turns WQEs into
//! packets; and its receive queue with the responder, which turns packets into filled WQEs. A datagram queue pair has
//! the datagram service instead of requester and responder. The [`Qp`] owns the state, and nothing else changes it.
//!
//! A [`Qp`] does nothing by itself. A caller reports a doorbell, a packet or a timer, and calls [`Qp::run`] while
//! [`Qp::pending`]. Each call processes about one packet, so that queue pairs take turns, and no guest or peer can make
//! one call long.
//!
//! An error ends in ERR. The part that detects the error writes the error CQE of the WQE concerned and returns
//! `Broken`. From then on, all WQEs that were or will be posted complete with a flush error on both queues, signalled
//! or not. A datagram or UC queue pair whose *send* queue failed goes to SQER instead and keeps receiving. Receives
//! posted in ERR ring no doorbell register, so the device polls the doorbell record, with intervals that grow.
//!
//! Absent on purpose: path migration, SQD (no command enters it), DC, WQE signatures.

mod answers;
mod completion;
mod congestion;
mod context;
mod core;
mod datagram;
mod path;
pub(crate) mod receive_queue;
mod request;
mod requester;
mod responder;
pub(crate) mod ring;
mod scatter_to_cqe;
pub(crate) mod send_queue;
mod state;
mod timing;
pub(crate) mod wqe;

pub use ring::QueueMemory;
pub(crate) use ring::queue_bytes;
pub(crate) use scatter_to_cqe::needs_wide_entries;
pub use state::{Service, State, Transition};

use self::completion::RQ_TYPE_SRQ;
use self::congestion::Congestion;
pub(crate) use self::congestion::Notice;
use self::core::{Broken, Core};
use self::datagram::Datagrams;
use self::path::Path;
use self::receive_queue::ReceiveQueue;
use self::requester::Requester;
use self::responder::Responder;
use self::ring::Rings;
use self::scatter_to_cqe::InEntry;
use self::send_queue::SendQueue;
use crate::host::Host;
use crate::wire::{Packet, Transport};
use mlx_prm::{CmdStatus, EventType, Qpc, Syndrome};

/// Maximum number of WQEs that one call of `Qp::run` flushes.
const FLUSH_SLICE: usize = 8;
/// First interval, in nanoseconds, at which the device polls the receive record of a queue pair in ERR.
const FIRST_POLL_NS: u64 = 1_000;
/// Maximum interval of these polls, in nanoseconds.
const LAST_POLL_NS: u64 = 1_000_000;
/// Average number of packets after which the device reads the send record without a doorbell, as hardware may do. This
/// exposes drivers that write a WQE after they have updated the record.
const EARLY_READ: u64 = 16;
/// `rq_type` of a queue pair that has no receive WQEs.
const RQ_TYPE_NONE: u32 = 3;

/// Returns the earlier of two times, or the one that exists, or `None`.
fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    core: Core,
    send_queue: SendQueue,
    receive_queue: ReceiveQueue,
    requester: Requester,
    responder: Responder,
    datagrams: Datagrams,
    /// State of congestion notifications, received and sent.
    congestion: Congestion,
    /// True if posted WQEs must be flushed.
    flushing: bool,
    /// End of the flush in RTS: the number of WQEBBs posted, modulo 2^16, at SQERR2RTS. Later WQEs are executed.
    flush_end: u16,
    /// Next virtual time to read the record, and the current interval, both in ns. Set in ERR if the queue pair has its
    /// own receive queue.
    poll: Option<(u64, u64)>,
    /// True if the requester runs next when requester and responder both have work.
    requester_is_next: bool,
}

impl Qp {
    /// Creates a queue pair in RST whose work queues lie in `memory`.
    ///
    /// # Errors
    ///
    /// BAD_PARAM for features that this device does not have: other service types, other values of `rq_type`, WQE
    /// signatures, sizes of scatter to CQE. Also for a receive queue size without a receive queue, for memory that is
    /// too short for the queues, or for a doorbell record that is not aligned.
    pub fn create(qpn: u32, context: &Qpc, memory: QueueMemory) -> Result<Self, CmdStatus> {
        let service = Service::of(context).ok_or(CmdStatus::BAD_PARAM)?;
        let rq_type = context.rq_type();
        let has_queue = !context.no_sq() || rq_type == 0;
        if context.wq_signature()
            || has_queue && !memory.doorbell_record.is_multiple_of(8)
            || !matches!(rq_type, 0 | RQ_TYPE_SRQ | RQ_TYPE_NONE)
            || rq_type != 0 && context.log_rq_size() != 0
        {
            return Err(CmdStatus::BAD_PARAM);
        }
        let core = Core {
            qpn,
            service,
            state: State::Reset,
            context: context.clone(),
            rings: Rings::new(context, memory)?,
            in_entry: InEntry::of(service, context).ok_or(CmdStatus::BAD_PARAM)?,
            path: None,
        };
        Ok(Self {
            core,
            send_queue: SendQueue::default(),
            receive_queue: ReceiveQueue::default(),
            requester: Requester::new(),
            responder: Responder::new(),
            datagrams: Datagrams::new(),
            congestion: Congestion::default(),
            flushing: false,
            flush_end: 0,
            poll: None,
            requester_is_next: false,
        })
    }

    /// Executes a transition command.
    ///
    /// # Errors
    ///
    /// BAD_QP_STATE if the state does not have this transition, BAD_PARAM if a field that the transition uses is out of
    /// range or the mask names a parameter that the transition does not have. In both cases nothing has changed.
    pub fn modify(
        &mut self,
        transition: Transition,
        opt_param_mask: u32,
        context: &Qpc,
        host: &mut dyn Host,
    ) -> Result<(), CmdStatus> {
        let next = self
            .core
            .state
            .next(transition)
            .ok_or(CmdStatus::BAD_QP_STATE)?;
        match transition {
            Transition::ToErr => {
                self.enter_error(host);
                return Ok(());
            }
            Transition::ToRst => {
                self.reset();
                return Ok(());
            }
            Transition::RstToInit
            | Transition::InitToInit
            | Transition::InitToRtr
            | Transition::RtrToRts
            | Transition::RtsToRts
            | Transition::SqErrToRts
            | Transition::SqdToRts => {}
        }
        let service = self.core.service;
        let mut live = self.core.context.clone();
        context::merge(
            &mut live,
            service,
            transition,
            opt_param_mask,
            context,
            host,
        )?;
        self.core.context = live;
        self.core.state = next;
        match transition {
            Transition::InitToRtr => {
                let entropy = self.core.entropy(self.core.context.remote_qpn());
                let ads = self.core.context.primary_address_path();
                self.core.path = service
                    .is_connected()
                    .then(|| Path::of_context(ads, entropy));
                self.responder.start(&self.core);
            }
            Transition::RtrToRts => {
                self.requester.start(&self.core);
                self.datagrams.start(&self.core);
            }
            // An unfinished flush continues up to this index.
            Transition::SqErrToRts => (_, self.flush_end) = self.send_queue.counters(),
            Transition::RstToInit
            | Transition::InitToInit
            | Transition::RtsToRts
            | Transition::SqdToRts
            | Transition::ToErr
            | Transition::ToRst => {}
        }
        Ok(())
    }

    /// Returns the context with live values, for QUERY_QP.
    pub fn query(&self) -> Qpc {
        let mut context = self.core.context.clone();
        let (next_psn, acked_psn, ssn) = self.requester.query();
        let (expected_psn, rmsn) = self.responder.query();
        let (retries, rnr_retries) = self.requester.retries_left();
        let (fetched, posted) = self.send_queue.counters();
        let (taken, receives) = self.receive_queue.counters();
        context
            .set_state(self.core.state.code().bits())
            .set_cur_retry_count(retries)
            .set_cur_rnr_retry(rnr_retries)
            .set_hw_sq_wqebb_counter(u32::from(fetched))
            .set_sw_sq_wqebb_counter(u32::from(posted))
            .set_hw_rq_counter(u32::from(taken))
            .set_sw_rq_counter(u32::from(receives));
        if self.core.service.is_datagram() {
            context.set_next_send_psn(self.datagrams.next_psn());
        } else {
            context
                .set_next_send_psn(next_psn)
                .set_last_acked_psn(acked_psn)
                .set_ssn(ssn)
                .set_next_rcv_psn(expected_psn)
                .set_rmsn(rmsn);
        }
        context
    }

    /// Handles a send doorbell with these eight bytes.
    pub fn doorbell(&mut self, value: [u8; 8], host: &mut dyn Host) {
        match self.core.state {
            State::ReadyToSend => {
                let checked = self
                    .send_queue
                    .read_record(&self.core.rings, host)
                    .and_then(|()| {
                        self.send_queue
                            .check_doorbell(value, &self.core.rings, host)
                    });
                if let Err(bad) = checked {
                    self.refuse(bad, host);
                }
            }
            State::Error | State::SendQueueError => {
                // The queue is in error already, so a wrong record changes nothing.
                let _ = self.send_queue.read_record(&self.core.rings, host);
                self.flushing = true;
            }
            State::Reset | State::Init | State::ReadyToReceive => {
                let state = self.core.state;
                host.driver_bug(format!(
                    "QP {:#x}: send doorbell in {state:?}",
                    self.core.qpn
                ));
            }
        }
    }

    fn refuse(&mut self, bad: send_queue::BadWqe, host: &mut dyn Host) {
        let Self {
            core,
            send_queue,
            requester,
            ..
        } = self;
        let result = if core.service.is_datagram() {
            datagram::refuse(core, send_queue, host, bad)
        } else {
            requester.refuse(core, send_queue, host, bad)
        };
        self.handle_send_result(result, host);
    }

    /// Handles a packet for this queue pair.
    pub fn receive(&mut self, packet: &Packet<'_>, host: &mut dyn Host) {
        if !self.takes(packet) {
            return;
        }
        let Self {
            core,
            send_queue,
            receive_queue,
            requester,
            responder,
            ..
        } = self;
        let operation = packet.bth.opcode.operation();
        if core.service.is_datagram() {
            let result = datagram::receive(core, receive_queue, host, packet);
            self.handle_result(result, host);
        } else if operation.is_response() {
            if core.state == State::ReadyToSend {
                let result = requester.receive(core, send_queue, host, packet);
                self.handle_result(result, host);
            }
        } else {
            responder.receive(core, receive_queue, host, packet);
        }
        if self.core.state == State::ReadyToSend && host.random().is_multiple_of(EARLY_READ) {
            // An error is ignored here. The doorbell will detect and report it again.
            let _ = self.send_queue.read_record(&self.core.rings, host);
        }
    }

    /// Returns whether the queue pair accepts packets of this kind in its state. Other packets are dropped.
    fn takes(&self, packet: &Packet<'_>) -> bool {
        let receives = match self.core.state {
            State::ReadyToReceive | State::ReadyToSend | State::SendQueueError => true,
            State::Reset | State::Init | State::Error => false,
        };
        let transport = packet.bth.opcode.transport();
        receives
            && match self.core.service {
                Service::Rc => transport == Transport::Rc,
                // Only the receiving end of XRC accepts requests. The other end accepts responses only.
                Service::Xrc => {
                    let receives = self.core.context.rq_type() == RQ_TYPE_SRQ;
                    transport == Transport::Xrc
                        && (receives || packet.bth.opcode.operation().is_response())
                }
                Service::Uc => transport == Transport::Uc,
                Service::Ud | Service::Gsi | Service::Smi => transport == Transport::Ud,
                Service::Umr => false,
            }
    }

    /// Returns the virtual time (ns) at which the caller must call [`Qp::timer`].
    pub fn timer_due(&self) -> Option<u64> {
        let poll = self.poll.map(|(due, _)| due);
        let own = earlier(poll, self.congestion.held_until());
        earlier(self.requester.deadline(), own)
    }

    /// Handles the timer: virtual time has reached [`Qp::timer_due`].
    pub fn timer(&mut self, host: &mut dyn Host) {
        self.congestion.release(host.now());
        if self.core.state == State::ReadyToSend {
            let result = self.requester.timer(&self.core, &mut self.send_queue, host);
            self.handle_send_result(result, host);
        }
        if let Some((due, interval)) = self.poll
            && due <= host.now()
        {
            let interval = (interval * 2).min(LAST_POLL_NS);
            self.poll = Some((host.now().saturating_add(interval), interval));
            self.flushing = true;
        }
    }

    /// Returns whether [`Qp::run`] has work to do now.
    pub fn pending(&self) -> bool {
        self.flushing || self.responder.is_ready() || self.sender_is_ready()
    }

    fn sender_is_ready(&self) -> bool {
        if self.congestion.held_until().is_some() {
            false
        } else if self.core.service.is_datagram() {
            self.core.state == State::ReadyToSend && self.send_queue.has_more()
        } else {
            self.requester.is_ready(&self.core, self.send_queue)
        }
    }

    /// Does a bounded amount of work, about one packet. [`Qp::pending`] returns whether there is more to do.
    pub fn run(&mut self, host: &mut dyn Host) {
        if self.flushing {
            self.flush(host);
        } else if self.responder.is_ready() && !(self.requester_is_next && self.sender_is_ready()) {
            self.requester_is_next = true;
            let result = self.responder.step(&self.core, host);
            self.handle_result(result, host);
        } else if self.sender_is_ready() {
            self.requester_is_next = false;
            let Self {
                core,
                send_queue,
                requester,
                datagrams,
                ..
            } = self;
            let before = host.sent_bytes();
            let result = if core.service.is_datagram() {
                datagrams.step(core, send_queue, host)
            } else {
                requester.step(core, send_queue, host)
            };
            let sent = host.sent_bytes() - before;
            self.congestion.sent(host.now(), sent);
            self.handle_send_result(result, host);
        }
    }

    /// Moves the queue pair to ERR, because one of its completion queues failed.
    pub fn fail(&mut self, host: &mut dyn Host) {
        if self.core.state != State::Reset {
            self.enter_error(host);
        }
    }

    fn handle_result(&mut self, result: Result<(), Broken>, host: &mut dyn Host) {
        if let Err(Broken) = result {
            self.enter_error(host);
        }
    }

    /// Handles an error of the send queue. An unreliable service only stops sending (SQER); a reliable one goes to ERR.
    fn handle_send_result(&mut self, result: Result<(), Broken>, host: &mut dyn Host) {
        if let Err(Broken) = result {
            match self.core.service {
                Service::Ud | Service::Gsi | Service::Smi | Service::Uc => {
                    self.core.state = State::SendQueueError;
                    self.flushing = true;
                }
                Service::Rc | Service::Xrc | Service::Umr => self.enter_error(host),
            }
        }
    }

    fn enter_error(&mut self, host: &mut dyn Host) {
        if self.core.state == State::Error {
            return;
        }
        self.core.state = State::Error;
        if let Some(wqe) = self.responder.abandon() {
            self.core
                .fail_receive(host, wqe.counter, wqe.xrc, Syndrome::WR_FLUSH_ERR);
        }
        if self.core.context.rq_type() == RQ_TYPE_SRQ {
            host.qp_event(EventType::SRQ_LAST_WQE, self.core.qpn);
        }
        // The record may already include WQEs whose doorbell has not arrived yet.
        let _ = self.send_queue.read_record(&self.core.rings, host);
        self.flushing = true;
        if self.core.rings.receive.is_some() {
            self.poll = Some((host.now().saturating_add(FIRST_POLL_NS), FIRST_POLL_NS));
        }
    }

    fn flush(&mut self, host: &mut dyn Host) {
        for _ in 0..FLUSH_SLICE {
            if !self.flush_one(host) {
                self.flushing = false;
                return;
            }
        }
    }

    /// Completes one WQE with a flush error. Returns false if there is none.
    fn flush_one(&mut self, host: &mut dyn Host) -> bool {
        let Self {
            core,
            send_queue,
            receive_queue,
            requester,
            flush_end,
            ..
        } = self;
        let end = if core.state == State::ReadyToSend {
            *flush_end
        } else {
            send_queue.counters().1
        };
        if let Some((index, opcode)) = requester
            .abandon()
            .or_else(|| send_queue.skip_before(end, &core.rings, host))
        {
            core.fail_send(host, index, opcode, Syndrome::WR_FLUSH_ERR);
            return true;
        }
        if core.state != State::Error {
            return false;
        }
        let counter = match receive_queue.skip(&core.rings, host) {
            Ok(Some(counter)) => counter,
            Ok(None) => return false,
            Err(_) => {
                self.poll = None; // the record is unreadable, so nothing more can be posted
                return false;
            }
        };
        core.fail_receive(host, counter, None, Syndrome::WR_FLUSH_ERR);
        if self.poll.is_some() {
            self.poll = Some((host.now().saturating_add(FIRST_POLL_NS), FIRST_POLL_NS));
        }
        true
    }

    /// Moves the queue pair to RST and empties its queues. Posted WQEs are dropped without completions, and the context
    /// keeps its values. Software has to clear the doorbell record and the completion queues.
    fn reset(&mut self) {
        self.core.state = State::Reset;
        self.core.path = None;
        self.send_queue = SendQueue::default();
        self.receive_queue = ReceiveQueue::default();
        self.requester = Requester::new();
        self.responder = Responder::new();
        self.datagrams = Datagrams::new();
        self.congestion = Congestion::default();
        self.flushing = false;
        self.poll = None;
    }

    /// Returns the queue pair number.
    pub const fn qpn(&self) -> u32 {
        self.core.qpn
    }

    /// Returns the state.
    pub const fn state(&self) -> State {
        self.core.state
    }

    /// Returns the service type.
    pub const fn service(&self) -> Service {
        self.core.service
    }

    /// Returns the protection domain.
    pub const fn pd(&self) -> u32 {
        self.core.context.pd()
    }

    /// Returns the number of the send queue's completion queue.
    pub const fn cqn_snd(&self) -> u32 {
        self.core.context.cqn_snd()
    }

    /// Returns the number of the receive queue's completion queue.
    pub const fn cqn_rcv(&self) -> u32 {
        self.core.context.cqn_rcv()
    }

    /// Returns the number of the shared receive queue, if the queue pair receives from one.
    pub fn srqn(&self) -> Option<u32> {
        let context = &self.core.context;
        (context.rq_type() == RQ_TYPE_SRQ).then(|| context.srqn_rmpn_xrqn())
    }

    /// Returns whether the queue pair refuses multicast datagrams that its own function has sent.
    pub const fn blocks_own_multicast(&self) -> bool {
        self.core.context.block_lb_mc()
    }

    /// Returns the UAR page of the queue pair's doorbells.
    pub const fn uar(&self) -> u32 {
        self.core.context.uar_page()
    }
}
