//! The requester: it turns send WQEs into packets, and answers into completions.
//!
//! Every packet of a message has a PSN. An RDMA Read has as many PSNs as its response has packets, though its request
//! is one packet (IBTA volume 1, section 9.4.4). PSNs are assigned when a WQE is fetched, so the WQEs in progress form
//! one contiguous row:
//!
//! ```text
//!          unacked          cursor        sent          next
//!  ---------|-----------------|-------------|-------------|---------
//!   done    | sent, unanswered| to be resent| never sent  | not assigned
//! ```
//!
//! Recovery is go-back-N. Any fault (sequence NAK, RNR NAK, a hole in read responses, the ACK timeout, the early
//! timeout of adaptive retransmission) first acknowledges the packets that it covers, then moves `cursor` back to
//! `unacked`. Sending is a pure function of the cursor: a retransmitted packet is computed again from its PSN, with the
//! data in memory at that time.
//!
//! Completions are in order. A WQE that cannot be sent (bad key, malformed) ends the row. It fails once everything
//! before it has completed, so that its error CQE is the last before the flush.
//!
//! The unreliable connection uses the same row without acknowledgements. A packet counts as acknowledged when it has
//! been sent.

use super::core::{Broken, Core};
use super::earlier;
use super::request::Request;
use super::send_queue::{BadWqe, SendQueue};
use super::state::State;
use super::timing::{EarlyTimer, ack_timeout_ns, rnr_timer_ns};
use super::wqe::{Fence, SendWqe};
use crate::host::Host;
use crate::q_counters::QCounter;
use crate::wire::{AckSyndrome, AethRepr, NakCode, Operation, Packet, Psn};
use mlx_prm::{Syndrome, WqeOpcode};
use std::collections::VecDeque;

/// Maximum number of unacknowledged packets of sends and writes on the wire.
const WINDOW: u32 = 256;
/// Maximum number of packets of a message without a request for an acknowledgement. It is so small that a full window
/// always contains such a request.
const MAX_ACK_INTERVAL: u32 = WINDOW / 4;
/// Maximum number of PSNs in use: half of the PSN space, so that old and new PSNs are distinguishable.
const MAX_PSNS: u32 = 1 << 23;
/// Value of `rnr_retry` for unlimited retries.
const RNR_RETRY_FOREVER: u32 = 7;

/// The sending side of a connected queue pair: the row of WQEs in progress, and the timers.
#[derive(Debug)]
pub(super) struct Requester {
    row: VecDeque<Request>,
    /// A fetched WQE that waits for a fence, a responder resource or PSNs.
    staged: Option<SendWqe>,
    unacked: Psn,
    cursor: Psn,
    sent: Psn,
    next: Psn,
    /// PSN from which on the last WQE of the row cannot be sent, and the syndrome of its error CQE.
    send_failure: Option<(Psn, Syndrome)>,
    retries: u32,
    rnr_retries: u32,
    /// True if the last started WQE was a UMR that makes a key usable. In the simulator such a UMR has completed at
    /// this point; on a real device it may still be in progress.
    behind_umr: bool,
    /// True if the requester returned to `unacked` because of a hole in the responses. Further responses beyond the
    /// hole are ignored.
    hole_seen: bool,
    ack_deadline: Option<u64>,
    early: EarlyTimer,
    rnr_deadline: Option<u64>,
    completed: u32,
}

impl Requester {
    pub(super) fn new() -> Self {
        let zero = Psn::masked(0);
        Self {
            row: VecDeque::new(),
            staged: None,
            unacked: zero,
            cursor: zero,
            sent: zero,
            next: zero,
            send_failure: None,
            retries: 0,
            rnr_retries: 0,
            behind_umr: false,
            hole_seen: false,
            ack_deadline: None,
            early: EarlyTimer::new(),
            rnr_deadline: None,
            completed: 0,
        }
    }

    /// Sets the first PSN and the retry counters, when the queue pair enters RTS for the first time.
    pub(super) fn start(&mut self, core: &Core) {
        let first = Psn::masked(core.context.next_send_psn());
        (self.unacked, self.cursor, self.sent, self.next) = (first, first, first, first);
        self.reset_retries(core);
    }

    /// Returns the values of `next_send_psn`, `last_acked_psn` and `ssn` for QUERY_QP.
    pub(super) fn query(&self) -> (u32, u32, u32) {
        (
            self.next.get(),
            self.unacked.previous().get(),
            self.completed & 0xff_ffff,
        )
    }

    /// Returns the numbers of transport retries and of RNR retries that are left.
    pub(super) const fn retries_left(&self) -> (u32, u32) {
        (self.retries, self.rnr_retries)
    }

    /// Returns the virtual time at which [`Requester::timer`] has work to do.
    pub(super) fn deadline(&self) -> Option<u64> {
        let ack = earlier(self.ack_deadline, self.early.deadline());
        earlier(ack, self.rnr_deadline)
    }

    /// Returns whether [`Requester::step`] has work to do.
    pub(super) fn is_ready(&self, core: &Core, queue: SendQueue) -> bool {
        if core.state != State::ReadyToSend || self.rnr_deadline.is_some() {
            return false;
        }
        if self.send_failure.is_some_and(|(psn, _)| psn == self.cursor) {
            return false;
        }
        if self.cursor != self.next {
            return !self.window_is_closed();
        }
        match &self.staged {
            Some(wqe) => self.may_start(core, wqe),
            None => queue.has_more(),
        }
    }

    /// Sends one packet, or starts one WQE.
    pub(super) fn step(
        &mut self,
        core: &Core,
        queue: &mut SendQueue,
        host: &mut dyn Host,
    ) -> Result<(), Broken> {
        if !self.is_ready(core, *queue) {
            return Ok(());
        }
        if self.cursor == self.next {
            let wqe = match self.staged.take() {
                Some(wqe) => wqe,
                None => match queue.fetch(core, host) {
                    Ok(wqe) => wqe,
                    Err(bad) => return self.refuse(core, queue, host, bad),
                },
            };
            if !self.may_start(core, &wqe) {
                self.staged = Some(wqe);
                return Ok(());
            }
            self.admit(core, host, wqe);
            if self.cursor == self.next || self.send_failure.is_some() {
                return self.complete(core, queue, host);
            }
        }
        self.transmit(core, queue, host)
    }

    /// Returns whether a send or write must wait because too many packets are unacknowledged. Reads and atomics never
    /// wait here, because responder resources limit them.
    fn window_is_closed(&self) -> bool {
        let asks = || {
            self.request_at(self.cursor)
                .is_some_and(|request| request.wqe.action.is_read_or_atomic())
        };
        self.cursor.distance_from(self.unacked) >= WINDOW && !asks()
    }

    fn may_start(&self, core: &Core, wqe: &SendWqe) -> bool {
        let outstanding = self
            .row
            .iter()
            .filter(|request| request.missing_answer().is_some())
            .count();
        let fence_is_open = match wqe.fence {
            Fence::None => true,
            Fence::Reads => outstanding == 0,
            Fence::All => self.row.is_empty(),
        };
        let has_resource =
            !wqe.action.is_read_or_atomic() || outstanding < 1 << core.context.log_sra_max();
        let used = self.next.distance_from(self.unacked);
        let has_psns = self.row.is_empty() || used + core.packets(wqe.length) < MAX_PSNS;
        let window_is_open =
            wqe.action.is_read_or_atomic() || wqe.action.is_local() || used < WINDOW;
        fence_is_open && has_resource && has_psns && window_is_open
    }

    /// Appends a WQE to the row. A WQE that sends no packet is executed here.
    fn admit(&mut self, core: &Core, host: &mut dyn Host, wqe: SendWqe) {
        let behind_umr = std::mem::replace(&mut self.behind_umr, wqe.action.makes_a_key_usable());
        if behind_umr && core.service.is_reliable() && !wqe.fences_umr && !host.umr_keeps_order() {
            host.driver_bug(format!(
                "QP {:#x}, WQE {:#06x}: follows a UMR without a fence, so it may overtake it",
                core.qpn, wqe.index
            ));
        }
        let request = Request::new(core, wqe, self.next);
        if request.wqe.action.is_atomic() && !host.has_atomics() {
            host.driver_bug(format!(
                "QP {:#x}, WQE {:#06x}: an atomic on a function without that capability",
                core.qpn, request.wqe.index
            ));
            self.send_failure = Some((self.next, Syndrome::LOCAL_QP_OP_ERR));
        } else if request.is_too_long(core) {
            self.send_failure = Some((self.next, Syndrome::LOCAL_LENGTH_ERR));
        } else if let Err(syndrome) = request.execute_locally(core, host) {
            self.send_failure = Some((self.next, syndrome));
        }
        self.next = request.end();
        self.row.push_back(request);
    }

    /// Appends a placeholder for a WQE that could not be fetched. The placeholder fails after all WQEs before it have
    /// completed.
    pub(super) fn refuse(
        &mut self,
        core: &Core,
        queue: &mut SendQueue,
        host: &mut dyn Host,
        bad: BadWqe,
    ) -> Result<(), Broken> {
        let index = queue.next_index();
        let (opcode, syndrome) = match bad {
            BadWqe::Malformed(opcode, why) => {
                host.driver_bug(format!("QP {:#x}, WQE {index:#06x}: {}", core.qpn, why.0));
                (opcode, Syndrome::LOCAL_QP_OP_ERR)
            }
            BadWqe::Fault(fault) => {
                host.driver_bug(format!("QP {:#x}, WQE {index:#06x}: {fault}", core.qpn));
                (WqeOpcode::NOP, Syndrome::LOCAL_QP_OP_ERR)
            }
        };
        // Skip the WQE, so that the flush does not complete it again.
        queue.skip(&core.rings, host);
        let request = Request::new(core, SendWqe::failed(index, opcode), self.next);
        self.row.push_back(request);
        self.send_failure = Some((self.next, syndrome));
        self.complete(core, queue, host)
    }

    fn request_index(&self, psn: Psn) -> Option<usize> {
        let base = self.row.front()?.first;
        let distance = psn.distance_from(base);
        let after = self
            .row
            .partition_point(|request| request.first.distance_from(base) <= distance);
        after.checked_sub(1)
    }

    fn request_at(&self, psn: Psn) -> Option<&Request> {
        self.row.get(self.request_index(psn)?)
    }

    /// Sends the packet whose PSN is at the cursor.
    fn transmit(
        &mut self,
        core: &Core,
        queue: &mut SendQueue,
        host: &mut dyn Host,
    ) -> Result<(), Broken> {
        let psn = self.cursor;
        let Some(request) = self.request_at(psn) else {
            // Unreachable: every PSN up to `next` belongs to a request of the row.
            self.cursor = self.next;
            return Ok(());
        };
        let ack_interval = (1 << core.context.log_ack_req_freq()).min(MAX_ACK_INTERVAL);
        match request.send(core, host, psn, ack_interval) {
            Ok(after) => self.cursor = after,
            Err(syndrome) => {
                self.send_failure = Some((psn, syndrome));
                return self.complete(core, queue, host);
            }
        }
        if self.cursor.ahead_of(self.sent) > 0 {
            self.sent = self.cursor;
        }
        if core.service.is_reliable() {
            if self.ack_deadline.is_none() {
                self.arm(core, host);
            }
            return Ok(());
        }
        self.unacked = self.cursor;
        self.complete(core, queue, host)
    }

    fn arm(&mut self, core: &Core, host: &dyn Host) {
        let timeout = ack_timeout_ns(core.context.primary_address_path().ack_timeout());
        self.ack_deadline = timeout.map(|timeout| host.now().saturating_add(timeout));
        if host.retransmits_early() {
            self.early.arm(host.now(), self.ack_deadline);
        }
    }

    /// Handles a response packet of the peer's responder.
    pub(super) fn receive(
        &mut self,
        core: &Core,
        queue: &mut SendQueue,
        host: &mut dyn Host,
        packet: &Packet<'_>,
    ) -> Result<(), Broken> {
        let psn = packet.bth.psn;
        match (packet.bth.opcode.operation(), packet.headers.aeth) {
            (Operation::Acknowledge, Some(aeth)) => self.acknowledge(core, queue, host, psn, aeth),
            (_, aeth) => {
                let is_ack = aeth.is_none_or(|aeth| matches!(aeth.syndrome, AckSyndrome::Ack(_)));
                if !is_ack {
                    return Ok(());
                }
                self.answer(core, queue, host, packet)
            }
        }
    }

    fn acknowledge(
        &mut self,
        core: &Core,
        queue: &mut SendQueue,
        host: &mut dyn Host,
        psn: Psn,
        aeth: AethRepr,
    ) -> Result<(), Broken> {
        // An answer is for a packet that was sent. Any other answer is an old duplicate.
        if psn.distance_from(self.unacked) >= self.sent.distance_from(self.unacked) {
            return Ok(());
        }
        match aeth.syndrome {
            AckSyndrome::Ack(_) => {
                let hole = self.advance(core, queue, host, psn.advance(1))?;
                if hole {
                    self.go_back_over_hole(core, queue, host)
                } else {
                    Ok(())
                }
            }
            AckSyndrome::Nak(NakCode::Sequence) => {
                self.advance(core, queue, host, psn)?;
                self.retry(core, queue, host, QCounter::PacketSeqErr)
            }
            AckSyndrome::Rnr(timer) => {
                self.advance(core, queue, host, psn)?;
                self.wait_for_receiver(core, queue, host, timer)
            }
            AckSyndrome::Nak(code) => {
                if self.advance(core, queue, host, psn)? {
                    // The response to an earlier read is lost, and the responder will not send it again. Only the ACK
                    // timeout can detect that. The WQE that the NAK is for is flushed after the read has failed.
                    return Ok(());
                }
                let syndrome = match code {
                    NakCode::RemoteAccess => Syndrome::REMOTE_ACCESS_ERR,
                    NakCode::RemoteOperational => Syndrome::REMOTE_OP_ERR,
                    NakCode::InvalidRequest | NakCode::InvalidRd | NakCode::Sequence => {
                        Syndrome::REMOTE_INVAL_REQ_ERR
                    }
                };
                self.fail_front(core, queue, host, syndrome)
            }
        }
    }

    /// Marks everything before `until` as acknowledged, but stops at a read or atomic whose response is missing.
    /// Returns true if a response is missing.
    fn advance(
        &mut self,
        core: &Core,
        queue: &mut SendQueue,
        host: &mut dyn Host,
        until: Psn,
    ) -> Result<bool, Broken> {
        let mut reached = until;
        let mut hole = false;
        if let Some(missing) = self.row.iter().find_map(Request::missing_answer)
            && until.distance_from(self.unacked) > missing.distance_from(self.unacked)
        {
            reached = missing;
            hole = true;
        }
        if reached != self.unacked {
            self.unacked = reached;
            // An answer may arrive before its request has been retransmitted.
            if self.cursor.ahead_of(reached) < 0 {
                self.cursor = reached;
            }
            self.reset_retries(core);
            self.hole_seen = false;
            self.ack_deadline = None;
            self.early.rewind();
            self.rnr_deadline = None;
            if self.unacked != self.sent {
                self.arm(core, host);
            }
        }
        self.complete(core, queue, host)?;
        Ok(hole)
    }

    fn reset_retries(&mut self, core: &Core) {
        self.retries = core.context.retry_count();
        self.rnr_retries = core.context.rnr_retry();
    }

    /// Handles a read response or an atomic acknowledgement.
    fn answer(
        &mut self,
        core: &Core,
        queue: &mut SendQueue,
        host: &mut dyn Host,
        packet: &Packet<'_>,
    ) -> Result<(), Broken> {
        let psn = packet.bth.psn;
        let waiting = self
            .row
            .iter()
            .find_map(|request| Some((request.missing_answer()?, request)));
        let Some((expected, request)) = waiting else {
            return Ok(());
        };
        let outstanding = self.sent.distance_from(self.unacked);
        if psn.distance_from(self.unacked) >= outstanding || psn.ahead_of(expected) < 0 {
            return Ok(());
        }
        let first = request.first;
        if first.ahead_of(self.unacked) > 0 {
            self.advance(core, queue, host, first)?;
        }
        if psn != expected {
            return self.go_back_over_hole(core, queue, host);
        }
        // Everything before this request has completed and left the row, so this request is at the front.
        let Some(request) = self.row.front_mut() else {
            return Ok(());
        };
        match request.take_answer(core, host, packet) {
            Ok(()) => self.advance(core, queue, host, psn.advance(1)).map(|_| ()),
            Err(syndrome) => self.fail_front(core, queue, host, syndrome),
        }
    }

    /// Handles an answer which shows that an earlier response was lost (an implied NAK). The requester returns to
    /// `unacked` once per hole.
    fn go_back_over_hole(
        &mut self,
        core: &Core,
        queue: &mut SendQueue,
        host: &mut dyn Host,
    ) -> Result<(), Broken> {
        // During an RNR wait nothing is done here, because the end of the wait resends the hole as well.
        if self.hole_seen || self.rnr_deadline.is_some() {
            return Ok(());
        }
        self.hole_seen = true;
        self.retry(core, queue, host, QCounter::ImpliedNakSeqErr)
    }

    fn retry(
        &mut self,
        core: &Core,
        queue: &mut SendQueue,
        host: &mut dyn Host,
        why: QCounter,
    ) -> Result<(), Broken> {
        // During an RNR wait the fault is only counted, because the end of the wait also resends from `unacked`. A
        // responder may send both NAKs for one PSN: Linux' software RoCE sends an RNR NAK for one message and a
        // sequence NAK for the next message.
        if self.rnr_deadline.is_some() {
            core.count(host, why);
            return Ok(());
        }
        if self.retries == 0 {
            return self.fail_front(core, queue, host, Syndrome::TRANSPORT_RETRY_EXC_ERR);
        }
        core.count(host, why);
        self.retries -= 1;
        self.cursor = self.unacked;
        self.arm(core, host);
        Ok(())
    }

    fn wait_for_receiver(
        &mut self,
        core: &Core,
        queue: &mut SendQueue,
        host: &mut dyn Host,
        timer: u8,
    ) -> Result<(), Broken> {
        if core.context.rnr_retry() != RNR_RETRY_FOREVER {
            if self.rnr_retries == 0 {
                return self.fail_front(core, queue, host, Syndrome::RNR_RETRY_EXC_ERR);
            }
            self.rnr_retries -= 1;
        }
        core.count(host, QCounter::RnrNakRetryErr);
        self.cursor = self.unacked;
        self.ack_deadline = None;
        self.early.stop();
        self.rnr_deadline = Some(host.now().saturating_add(rnr_timer_ns(timer)));
        Ok(())
    }

    /// Handles the timers whose virtual time has come.
    pub(super) fn timer(
        &mut self,
        core: &Core,
        queue: &mut SendQueue,
        host: &mut dyn Host,
    ) -> Result<(), Broken> {
        let now = host.now();
        if self.rnr_deadline.is_some_and(|deadline| deadline <= now) {
            self.rnr_deadline = None;
        }
        let early = self.early.is_over(now);
        if early && self.ack_deadline.is_some_and(|deadline| deadline > now) {
            core.count(host, QCounter::RoceAdpRetransTo);
            core.count(host, QCounter::RoceAdpRetrans);
            self.hole_seen = false;
            self.cursor = self.unacked;
            self.early.arm(now, self.ack_deadline);
            return Ok(());
        }
        if self.ack_deadline.is_some_and(|deadline| deadline <= now) {
            self.ack_deadline = None;
            self.hole_seen = false;
            return self.retry(core, queue, host, QCounter::LocalAckTimeoutErr);
        }
        Ok(())
    }

    /// Completes the acknowledged requests at the front of the row. If only the WQE that cannot be sent is left, fails
    /// that WQE.
    fn complete(
        &mut self,
        core: &Core,
        queue: &mut SendQueue,
        host: &mut dyn Host,
    ) -> Result<(), Broken> {
        while let Some(request) = self.row.front() {
            if let (1, Some((_, syndrome))) = (self.row.len(), self.send_failure) {
                return self.fail_front(core, queue, host, syndrome);
            }
            // The first request never begins after `unacked`, because everything before it is acknowledged.
            let is_acknowledged = self.unacked.distance_from(request.first) >= request.packets;
            if !is_acknowledged || request.missing_answer().is_some() {
                break;
            }
            let Some(request) = self.row.pop_front() else {
                break;
            };
            self.completed = self.completed.wrapping_add(1);
            queue.complete(request.wqe.index, request.wqe.blocks);
            request.signal(core, host);
        }
        Ok(())
    }

    /// Fails the oldest WQE with an error CQE. The caller must move the queue pair to an error state.
    fn fail_front(
        &mut self,
        core: &Core,
        queue: &mut SendQueue,
        host: &mut dyn Host,
        syndrome: Syndrome,
    ) -> Result<(), Broken> {
        if let Some(request) = self.row.pop_front() {
            queue.complete(request.wqe.index, request.wqe.blocks);
            core.fail_send(host, request.wqe.index, request.wqe.opcode, syndrome);
        }
        self.ack_deadline = None;
        self.early.rewind();
        self.rnr_deadline = None;
        self.send_failure = None;
        Err(Broken)
    }

    /// Removes and returns the oldest WQE in progress, so that it can be flushed.
    pub(super) fn abandon(&mut self) -> Option<(u16, WqeOpcode)> {
        self.ack_deadline = None;
        self.early.rewind();
        self.rnr_deadline = None;
        self.send_failure = None;
        // PSNs that were not sent are free again. An unreliable queue pair continues from the cursor.
        (self.unacked, self.sent, self.next) = (self.cursor, self.cursor, self.cursor);
        let wqe = self
            .row
            .pop_front()
            .map(|request| request.wqe)
            .or_else(|| self.staged.take())?;
        Some((wqe.index, wqe.opcode))
    }
}
