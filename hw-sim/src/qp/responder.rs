//! The responder: it executes the requests of a connected queue pair's peer.
//!
//! The PSN of a request packet is expected, early or late. An expected packet is executed. An early packet shows that
//! a packet was lost. The first early packet causes a sequence NAK, and every early packet is dropped until the
//! expected packet arrives. A late packet is a duplicate. A duplicate is answered again without being executed again,
//! except a read, which is executed from the current contents of memory (IBTA volume 1, section 9.7.5).
//!
//! A duplicate read must repeat an accepted read, or a part of one. The responder remembers as many reads as it has
//! resources. Any other duplicate read is dropped (Linux `rxe_resp.c` `duplicate_request`, class D error), so that a
//! sender that does not know the connection's PSNs cannot end the connection. Linux also drops a duplicate whose key or
//! range differs from the accepted read's. Here key and range of a duplicate are checked like a new read's.
//!
//! A duplicate read is also dropped if its key or its shared receive queue no longer exists. This is inferred: no
//! public text says what a card does, and rxe answers with an access error. But a requester that received the first
//! answer may invalidate the key (NVMe targets do so with their response) while a packet that the requester sent again
//! is still in flight.
//!
//! Answers leave in PSN order, one packet per call of `Responder::step` (see `answers`).
//!
//! Atomics are executed once. Their results stay in a replay buffer for duplicates; the buffer has as many entries as
//! the responder has resources.
//!
//! A request that cannot be accepted ends the connection: earlier requests are answered, then the NAK is sent, then the
//! queue pair goes to ERR.
//!
//! The unreliable connection has no answers. An unexpected PSN abandons the message in progress, and the next First or
//! Only packet starts a new message.
//!
//! Absent on purpose: end-to-end credits (every ACK carries "not used"), and a check that packets come from the peer's
//! address, which no public source ascribes to this hardware.

use super::answers::{Answers, Interrupted, ReadStream};
use super::completion::Receipt;
use super::core::{Broken, Core};
use super::receive_queue::{ReceiveQueue, ReceiveWqe, ScatterError, TakeError};
use super::scatter_to_cqe::is_in_entry;
use super::state::State;
use crate::host::{Host, KeyScope};
use crate::q_counters::QCounter;
use crate::wire::{
    AckSyndrome, AtomicEthRepr, DEFAULT_PKEY, NakCode, Operation, Packet, Psn, RethRepr, Transport,
};
use mlx_prm::{CqeOpcode, EventType, Syndrome};
use std::collections::VecDeque;

/// Maximum length of an RDMA Read or Write in bytes (IBTA volume 1, section 9.4.3).
const MAX_RDMA_BYTES: u32 = 1 << 31;

/// A message of which not all packets have arrived.
#[derive(Debug)]
enum Message {
    Send(ReceiveWqe),
    Write {
        rkey: u32,
        va: u64,
        left: u32,
        total: u32,
    },
}

/// Reason for which a request is refused: the code of the NAK, and the event for the driver.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    code: NakCode,
    event: Option<EventType>,
}

impl Refusal {
    /// The request is invalid for this queue pair.
    const INVALID: Self = Self {
        code: NakCode::InvalidRequest,
        event: Some(EventType::WQ_INVAL_REQ_ERROR),
    };
    /// The key does not permit the access.
    const ACCESS: Self = Self {
        code: NakCode::RemoteAccess,
        event: Some(EventType::WQ_ACCESS_ERROR),
    };
    /// The work queue cannot be read.
    const CATASTROPHIC: Self = Self {
        code: NakCode::RemoteOperational,
        event: Some(EventType::WQ_CATAS_ERROR),
    };
    /// The message is longer than its receive WQE. The WQE's CQE reports the error, so there is no event.
    const TOO_LONG: Self = Self {
        code: NakCode::InvalidRequest,
        event: None,
    };
    /// A key of the receive WQE is wrong. The WQE's CQE reports the error, so there is no event.
    const LOCAL: Self = Self {
        code: NakCode::RemoteOperational,
        event: None,
    };
}

/// Result of a request packet that is not refused.
enum Outcome {
    Done,
    /// There is no receive WQE. The peer must try again later.
    NotReady,
}

/// The responder of a connected queue pair.
#[derive(Debug)]
pub(super) struct Responder {
    expected: Psn,
    /// True if a NAK for `expected` was sent. No further NAK is sent until `expected` arrives.
    nak_sent: bool,
    heard: bool,
    message: Option<Message>,
    /// Receive WQE of an abandoned unreliable message, which the next message reuses.
    spare: Option<ReceiveWqe>,
    answers: Answers,
    replay: VecDeque<(Psn, u64)>,
    /// The most recent reads, each with its first PSN and the PSN that follows its last.
    reads: VecDeque<(Psn, Psn)>,
    pending_failure: Option<Option<EventType>>,
}

impl Responder {
    pub(super) fn new() -> Self {
        Self {
            expected: Psn::masked(0),
            nak_sent: false,
            heard: false,
            message: None,
            spare: None,
            answers: Answers::default(),
            replay: VecDeque::new(),
            reads: VecDeque::new(),
            pending_failure: None,
        }
    }

    /// Sets the first expected PSN, when the queue pair enters RTR.
    pub(super) fn start(&mut self, core: &Core) {
        self.expected = Psn::masked(core.context.next_rcv_psn());
    }

    /// Returns the values of `next_rcv_psn` and `rmsn` for QUERY_QP.
    pub(super) const fn query(&self) -> (u32, u32) {
        (self.expected.get(), self.answers.msn())
    }

    /// Returns whether `Responder::step` has work to do.
    pub(super) fn is_ready(&self) -> bool {
        !self.answers.is_empty() || self.pending_failure.is_some()
    }

    /// Handles a request packet.
    pub(super) fn receive(
        &mut self,
        core: &Core,
        queue: &mut ReceiveQueue,
        host: &mut dyn Host,
        packet: &Packet<'_>,
    ) {
        if self.pending_failure.is_some() || packet.bth.pkey != DEFAULT_PKEY {
            return;
        }
        if packet.bth.opcode.transport() == Transport::Uc {
            self.receive_unreliable(core, queue, host, packet);
            return;
        }
        let psn = packet.bth.psn;
        match psn.ahead_of(self.expected) {
            0 => {
                self.nak_sent = false;
                self.note_first_packet(core, host);
                self.receive_expected(core, queue, host, packet);
            }
            1.. => {
                core.count(host, QCounter::OutOfSequence);
                if !self.nak_sent {
                    self.nak_sent = true;
                    self.answers
                        .acknowledge(self.expected, AckSyndrome::Nak(NakCode::Sequence));
                }
            }
            _ => {
                core.count(host, QCounter::DuplicateRequest);
                self.receive_duplicate(core, host, packet);
            }
        }
    }

    /// Reports the first packet by an event, because it proves that the peer is connected. Without the habit
    /// `tells_every_connection`, only a packet that arrives in RTR causes the event.
    fn note_first_packet(&mut self, core: &Core, host: &mut dyn Host) {
        let is_event = core.state == State::ReadyToReceive || host.habits().tells_every_connection;
        if !self.heard && is_event {
            host.qp_event(EventType::COMM_EST, core.qpn);
        }
        self.heard = true;
    }

    fn receive_expected(
        &mut self,
        core: &Core,
        queue: &mut ReceiveQueue,
        host: &mut dyn Host,
        packet: &Packet<'_>,
    ) {
        let psn = packet.bth.psn;
        match self.execute(core, queue, host, packet) {
            Ok(Outcome::Done) => {
                // A read or atomic has already advanced `expected` by the PSNs of its response.
                if self.expected == psn {
                    self.expected = psn.advance(1);
                }
                if packet.bth.ack_request && !packet.bth.opcode.operation().is_read_or_atomic() {
                    self.answers.acknowledge(psn, AckSyndrome::ACK);
                }
            }
            Ok(Outcome::NotReady) => {
                core.count(host, QCounter::OutOfBuffer);
                self.nak_sent = true;
                // CAST: the field has five bits.
                let timer = u8::try_from(core.context.min_rnr_nak()).unwrap_or(0);
                self.answers.acknowledge(psn, AckSyndrome::Rnr(timer));
            }
            Err(refusal) => self.refuse(core, host, refusal),
        }
    }

    fn execute(
        &mut self,
        core: &Core,
        queue: &mut ReceiveQueue,
        host: &mut dyn Host,
        packet: &Packet<'_>,
    ) -> Result<Outcome, Refusal> {
        let operation = packet.bth.opcode.operation();
        if let Some(asked) = asked(packet) {
            core.count(host, asked);
        }
        let scope = remote_scope(core, host, packet)?;
        let in_order = match &self.message {
            None => operation.begins_message(),
            Some(Message::Send(_)) => operation.continues_send(),
            Some(Message::Write { .. }) => operation.continues_write(),
        };
        if !in_order {
            return Err(Refusal::INVALID);
        }
        match (packet.headers.reth, packet.headers.atomic) {
            (Some(reth), _) if operation == Operation::ReadRequest => {
                self.accept_read(core, host, scope, reth)
            }
            (_, Some(atomic)) => self.execute_atomic(core, host, scope, operation, atomic),
            (reth, _) if operation.is_write() => {
                self.execute_write(core, queue, host, scope, packet, reth)
            }
            _ => self.execute_send(core, queue, host, scope, packet),
        }
    }

    /// Checks the payload length against the packet's position in its message.
    fn check_length(core: &Core, operation: Operation, bytes: usize) -> Result<(), Refusal> {
        let mtu = core.mtu();
        let fits = if operation.ends_message() {
            bytes <= mtu && (operation.begins_message() || bytes > 0)
        } else {
            bytes == mtu
        };
        if fits { Ok(()) } else { Err(Refusal::INVALID) }
    }

    fn execute_send(
        &mut self,
        core: &Core,
        queue: &mut ReceiveQueue,
        host: &mut dyn Host,
        scope: KeyScope,
        packet: &Packet<'_>,
    ) -> Result<Outcome, Refusal> {
        let operation = packet.bth.opcode.operation();
        Self::check_length(core, operation, packet.payload.len())?;
        let mut wqe = match self.message.take() {
            Some(Message::Send(wqe)) => wqe,
            Some(Message::Write { .. }) | None => match self.take_wqe(core, queue, host, packet)? {
                Some(wqe) => wqe,
                None => return Ok(Outcome::NotReady),
            },
        };
        let bytes = packet.payload.len();
        let whole = operation.begins_message() && operation.ends_message();
        let in_entry = is_in_entry(bytes, core.in_entry.receives) && whole;
        let appended = if wqe.written + packet.payload.len() as u64 > core.max_message() {
            Err(ScatterError::TooLong)
        } else if in_entry {
            wqe.count(bytes as u64)
        } else {
            wqe.append(host, packet.payload)
        };
        if let Err(error) = appended {
            let (syndrome, refusal) = match error {
                ScatterError::TooLong => (Syndrome::LOCAL_LENGTH_ERR, Refusal::TOO_LONG),
                ScatterError::Key(_) => (Syndrome::LOCAL_PROT_ERR, Refusal::LOCAL),
            };
            core.fail_receive(host, wqe.counter, wqe.xrc, syndrome);
            return Err(refusal);
        }
        if !operation.ends_message() {
            self.message = Some(Message::Send(wqe));
            return Ok(Outcome::Done);
        }
        let opcode = if let Some(key) = packet.headers.invalidate {
            if host.invalidate(key, scope).is_err() {
                self.message = Some(Message::Send(wqe)); // flushed, when the queue pair goes to ERR
                return Err(Refusal::ACCESS);
            }
            CqeOpcode::RESP_SEND_INV
        } else if packet.headers.immediate.is_some() {
            CqeOpcode::RESP_SEND_IMM
        } else {
            CqeOpcode::RESP_SEND
        };
        // CAST: `written` is at most the maximum message length.
        let bytes = u32::try_from(wqe.written).unwrap_or(u32::MAX);
        let receipt = Receipt {
            in_entry: if in_entry { packet.payload } else { &[] },
            ..receipt(packet, opcode, &wqe, bytes)
        };
        core.complete_receive(host, &receipt);
        self.finish_message();
        Ok(Outcome::Done)
    }

    fn execute_write(
        &mut self,
        core: &Core,
        queue: &mut ReceiveQueue,
        host: &mut dyn Host,
        scope: KeyScope,
        packet: &Packet<'_>,
        reth: Option<RethRepr>,
    ) -> Result<Outcome, Refusal> {
        let operation = packet.bth.opcode.operation();
        let bytes = packet.payload.len();
        Self::check_length(core, operation, bytes)?;
        let (rkey, va, left, total) = match (reth, &self.message) {
            (Some(reth), _) => {
                check_write(core, host, scope, &reth)?;
                (reth.rkey, reth.va, reth.length, reth.length)
            }
            (
                None,
                Some(Message::Write {
                    rkey,
                    va,
                    left,
                    total,
                }),
            ) => (*rkey, *va, *left, *total),
            (None, Some(Message::Send(_)) | None) => return Err(Refusal::INVALID),
        };
        let after = u32::try_from(bytes)
            .ok()
            .and_then(|bytes| left.checked_sub(bytes));
        let Some(after) = after.filter(|&after| (after == 0) == operation.ends_message()) else {
            return Err(Refusal::INVALID);
        };
        let wqe = match packet.headers.immediate {
            None => None,
            Some(_) => match self.take_wqe(core, queue, host, packet)? {
                Some(wqe) => Some(wqe),
                None => return Ok(Outcome::NotReady),
            },
        };
        if bytes > 0 && host.key_write(rkey, scope, va, packet.payload).is_err() {
            if let Some(wqe) = wqe {
                self.message = Some(Message::Send(wqe));
            }
            return Err(Refusal::ACCESS);
        }
        if !operation.ends_message() {
            let va = va.wrapping_add(bytes as u64);
            self.message = Some(Message::Write {
                rkey,
                va,
                left: after,
                total,
            });
            return Ok(Outcome::Done);
        }
        if let Some(wqe) = wqe {
            let receipt = receipt(packet, CqeOpcode::RESP_WR_IMM, &wqe, total);
            core.complete_receive(host, &receipt);
        }
        self.finish_message();
        Ok(Outcome::Done)
    }

    fn take_wqe(
        &mut self,
        core: &Core,
        queue: &mut ReceiveQueue,
        host: &mut dyn Host,
        packet: &Packet<'_>,
    ) -> Result<Option<ReceiveWqe>, Refusal> {
        if let Some(mut wqe) = self.spare.take() {
            wqe.rewind();
            return Ok(Some(wqe));
        }
        let taken = queue.take(core, host, packet.headers.xrc_srq);
        taken.map_err(|error| {
            let why = match error {
                TakeError::Fault(fault) => fault.to_string(),
                TakeError::Record => "receive doorbell record beyond the ring".to_owned(),
            };
            host.driver_bug(format!("QP {:#x}: {why}", core.qpn));
            Refusal::CATASTROPHIC
        })
    }

    fn finish_message(&mut self) {
        self.message = None;
        self.answers.count_message();
    }

    /// Returns whether the responder has a resource for another read or atomic.
    fn has_resource(&self, core: &Core) -> bool {
        let used = self.answers.resources_in_use();
        used < 1 << core.context.log_rra_max()
    }

    fn accept_read(
        &mut self,
        core: &Core,
        host: &mut dyn Host,
        scope: KeyScope,
        reth: RethRepr,
    ) -> Result<Outcome, Refusal> {
        if !self.has_resource(core) {
            return Err(Refusal::INVALID);
        }
        check_read(core, host, scope, &reth)?;
        self.answers.count_message();
        let psn = self.expected;
        self.expected = psn.advance(core.packets(reth.length));
        if self.reads.len() >= 1 << core.context.log_rra_max() {
            self.reads.pop_front();
        }
        self.reads.push_back((psn, self.expected));
        self.answers.read(ReadStream {
            psn,
            end: self.expected,
            rkey: reth.rkey,
            scope,
            va: reth.va,
            left: reth.length,
            is_first: true,
            is_duplicate: false,
        });
        Ok(Outcome::Done)
    }

    fn execute_atomic(
        &mut self,
        core: &Core,
        host: &mut dyn Host,
        scope: KeyScope,
        operation: Operation,
        atomic: AtomicEthRepr,
    ) -> Result<Outcome, Refusal> {
        // Inferred: atomics need a mode. Drivers set one wherever they permit atomics (Linux `set_qpc_atomic_flags`,
        // UCX `uct_rc_mlx5_devx`), and 0 permits none.
        let enabled = core.context.rae() && core.context.atomic_mode() != 0;
        if !enabled || !atomic.va.is_multiple_of(8) || !self.has_resource(core) {
            return Err(Refusal::INVALID);
        }
        let scope = KeyScope {
            atomic: true,
            ..scope
        };
        let mut memory = [0; 8];
        host.key_check(atomic.rkey, scope, atomic.va, 8, true)
            .map_err(|_| Refusal::ACCESS)?;
        host.key_read(atomic.rkey, scope, atomic.va, &mut memory)
            .map_err(|_| Refusal::ACCESS)?;
        let original = from_memory(memory);
        let result = if operation == Operation::FetchAdd {
            original.wrapping_add(atomic.swap_add)
        } else if original == atomic.compare {
            atomic.swap_add
        } else {
            original
        };
        host.key_write(atomic.rkey, scope, atomic.va, &to_memory(result))
            .map_err(|_| Refusal::ACCESS)?;
        self.answers.count_message();
        let psn = self.expected;
        self.expected = psn.advance(1);
        if self.replay.len() >= 1 << core.context.log_rra_max() {
            self.replay.pop_front();
        }
        self.replay.push_back((psn, original));
        self.answers.atomic(psn, original, false);
        Ok(Outcome::Done)
    }

    /// Handles a request that was executed before. Its answer was lost, or is still on its way.
    fn receive_duplicate(&mut self, core: &Core, host: &mut dyn Host, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        let operation = packet.bth.opcode.operation();
        let resources = 1 << core.context.log_rra_max();
        if operation.is_read_or_atomic() && self.answers.will_cover(psn, resources) {
            return;
        }
        match packet.headers.reth {
            Some(reth) if operation == Operation::ReadRequest => {
                // A length may need more packets than there are PSNs. Then `end` wraps, so the sum is compared instead.
                let packets = core.packets(reth.length);
                let end = psn.advance(packets);
                let repeats = |&(first, behind): &(Psn, Psn)| {
                    let reaches = u64::from(psn.distance_from(first)) + u64::from(packets);
                    reaches <= u64::from(behind.distance_from(first))
                };
                if !self.reads.iter().any(repeats) {
                    return;
                }
                if let Ok(scope) = remote_scope(core, host, packet)
                    && check_read(core, host, scope, &reth).is_ok()
                {
                    self.answers.read(ReadStream {
                        psn,
                        end,
                        rkey: reth.rkey,
                        scope,
                        va: reth.va,
                        left: reth.length,
                        is_first: true,
                        is_duplicate: true,
                    });
                }
            }
            _ if operation.has_atomic() => {
                let executed = self.replay.iter().find(|(executed, _)| *executed == psn);
                if let Some(&(_, original)) = executed {
                    self.answers.atomic(psn, original, true);
                }
            }
            _ => self
                .answers
                .acknowledge(self.expected.previous(), AckSyndrome::ACK),
        }
    }

    fn refuse(&mut self, core: &Core, host: &mut dyn Host, refusal: Refusal) {
        refusal.count(core, host);
        self.answers
            .acknowledge(self.expected, AckSyndrome::Nak(refusal.code));
        self.pending_failure = Some(refusal.event);
    }

    /// Sends one answer packet. If no answer is left, reports the pending failure.
    pub(super) fn step(&mut self, core: &Core, host: &mut dyn Host) -> Result<(), Broken> {
        if self.answers.is_empty() {
            return match self.pending_failure.take() {
                None => Ok(()),
                Some(event) => {
                    if let Some(event) = event {
                        host.qp_event(event, core.qpn);
                    }
                    Err(Broken)
                }
            };
        }
        if let Err(Interrupted(psn)) = self.answers.send_one(core, host) {
            // The answers that follow cannot be sent.
            self.answers.clear();
            self.answers
                .acknowledge(psn, AckSyndrome::Nak(Refusal::ACCESS.code));
            self.pending_failure = Some(Refusal::ACCESS.event);
            Refusal::ACCESS.count(core, host);
        }
        Ok(())
    }

    /// Drops all answers, because the queue pair goes to ERR. Returns the receive WQE that was taken and is not
    /// completed, if any.
    pub(super) fn abandon(&mut self) -> Option<ReceiveWqe> {
        self.answers.clear();
        self.pending_failure = None;
        match self.message.take() {
            Some(Message::Send(wqe)) => Some(wqe),
            Some(Message::Write { .. }) | None => self.spare.take(),
        }
    }

    fn receive_unreliable(
        &mut self,
        core: &Core,
        queue: &mut ReceiveQueue,
        host: &mut dyn Host,
        packet: &Packet<'_>,
    ) {
        let operation = packet.bth.opcode.operation();
        let in_order = packet.bth.psn == self.expected;
        if (!in_order || operation.begins_message())
            && let Some(Message::Send(wqe)) = self.message.take()
        {
            self.spare = Some(wqe);
        }
        self.expected = packet.bth.psn.advance(1);
        self.note_first_packet(core, host);
        if self.message.is_none() && !operation.begins_message() {
            return;
        }
        match self.execute(core, queue, host, packet) {
            Ok(Outcome::Done) => {}
            // There is no receive WQE, so the message is lost.
            Ok(Outcome::NotReady) => {
                core.count(host, QCounter::OutOfBuffer);
                self.message = None;
            }
            Err(refusal) if refusal.is_about_the_packet() => {
                refusal.count(core, host);
                if let Some(Message::Send(wqe)) = self.message.take() {
                    self.spare = Some(wqe);
                }
            }
            Err(refusal) => self.pending_failure = Some(refusal.event),
        }
    }
}

impl Refusal {
    /// Counts an invalid request or an access error. The error CQE of a receive WQE is counted elsewhere.
    fn count(self, core: &Core, host: &mut dyn Host) {
        match self.event {
            Some(EventType::WQ_INVAL_REQ_ERROR) => {
                core.count(host, QCounter::RespRemoteInvalidRequest);
            }
            Some(EventType::WQ_ACCESS_ERROR) => core.count(host, QCounter::RespRemoteAccessErrors),
            _ => {}
        }
    }

    /// Returns whether an unreliable responder drops only the packet. For any other refusal the queue pair fails.
    fn is_about_the_packet(self) -> bool {
        matches!(
            self.event,
            Some(EventType::WQ_INVAL_REQ_ERROR | EventType::WQ_ACCESS_ERROR)
        )
    }
}

/// Returns the counter for a request of this kind. Returns `None` if the kind is not counted, or if the packet is not
/// the first of its request.
fn asked(packet: &Packet<'_>) -> Option<QCounter> {
    let operation = packet.bth.opcode.operation();
    if operation.has_atomic() {
        Some(QCounter::RxAtomicRequests)
    } else if packet.headers.reth.is_none() {
        None
    } else if operation == Operation::ReadRequest {
        Some(QCounter::RxReadRequests)
    } else {
        Some(QCounter::RxWriteRequests)
    }
}

/// Returns the scope for the keys of a request. Keys of an XRC request belong to the protection domain of the shared
/// receive queue, which must be in the queue pair's XRC domain (IBTA volume 1, annex A14).
fn remote_scope(core: &Core, host: &dyn Host, packet: &Packet<'_>) -> Result<KeyScope, Refusal> {
    let scope = core.remote_scope();
    let Some(number) = packet.headers.xrc_srq else {
        return Ok(scope);
    };
    match host.xrc_srq(number) {
        Some(target) if target.xrcd == core.context.xrcd() => Ok(KeyScope {
            pd: target.pd,
            ..scope
        }),
        // Inferred: no source names the NAK code for this case. Invalid Request is the closest code.
        _ => Err(Refusal::INVALID),
    }
}

fn check_write(
    core: &Core,
    host: &mut dyn Host,
    scope: KeyScope,
    reth: &RethRepr,
) -> Result<(), Refusal> {
    if !core.context.rwe() || !rdma_length_is_legal(core, reth.length) {
        return Err(Refusal::INVALID);
    }
    check_key(host, scope, reth, true)
}

fn check_read(
    core: &Core,
    host: &mut dyn Host,
    scope: KeyScope,
    reth: &RethRepr,
) -> Result<(), Refusal> {
    if !core.context.rre() || !rdma_length_is_legal(core, reth.length) {
        return Err(Refusal::INVALID);
    }
    check_key(host, scope, reth, false)
}

fn rdma_length_is_legal(core: &Core, bytes: u32) -> bool {
    bytes <= MAX_RDMA_BYTES && u64::from(bytes) <= core.max_message()
}

/// Checks that the key permits the whole operation, before the first byte is transferred. The key of an empty operation
/// is not checked (IBTA volume 1, section 9.4.3).
fn check_key(
    host: &mut dyn Host,
    scope: KeyScope,
    reth: &RethRepr,
    write: bool,
) -> Result<(), Refusal> {
    if reth.length == 0 {
        return Ok(());
    }
    host.key_check(reth.rkey, scope, reth.va, u64::from(reth.length), write)
        .map_err(|_| Refusal::ACCESS)
}

fn receipt(
    packet: &Packet<'_>,
    opcode: CqeOpcode,
    wqe: &ReceiveWqe,
    bytes: u32,
) -> Receipt<'static> {
    let immediate = packet.headers.immediate.map(u32::from_be_bytes);
    Receipt {
        opcode,
        counter: wqe.counter,
        bytes,
        immediate: immediate.or(packet.headers.invalidate).unwrap_or(0),
        solicited: packet.bth.solicited,
        flags_rqpn: 0,
        slid: 0,
        vlan: None,
        xrc: wqe.xrc,
        in_entry: &[],
    }
}

#[expect(
    clippy::little_endian_bytes,
    reason = "the simulated host is little-endian; atomics act on its numbers"
)]
const fn from_memory(bytes: [u8; 8]) -> u64 {
    u64::from_le_bytes(bytes)
}

#[expect(clippy::little_endian_bytes, reason = "as above")]
const fn to_memory(value: u64) -> [u8; 8] {
    value.to_le_bytes()
}
