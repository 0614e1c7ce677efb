//! Queue pairs: a send queue and a receive queue connected to one peer.
//!
//! Both rings are in one buffer, the receive ring first (offset 0) and the send ring behind it. They have one doorbell
//! record of two words, receive counter and send counter (PRM "Work Queue Structure"). [`crate::ring`] describes that
//! memory.
//!
//! [`Qp`] is the consumer's side: posting and completing. State changes (creation and the transitions) are commands,
//! in [`control`]; their contents are in [`context`].
//!
//! This module decodes completion queue entries. Opcode and form of an entry determine whether it belongs to a request
//! or a receive, and whether that succeeded. The queue pair number in the entry must be ours, because the user index
//! by which the entry was dispatched may have belonged to an earlier queue pair.

pub mod context;
pub mod control;
mod parking;
mod recv;
mod request;
mod send;

use std::sync::Arc;

pub use parking::QpSnapshot;
pub(crate) use parking::check;
pub use recv::{Outcome, ReceiveSnapshot, RecvQueue, RecvQueueSnapshot, RecvSizes};
pub use send::{RequestSnapshot, SendQueue, SendQueueSnapshot, SendSizes};

use rdma_types::{
    DataSegment, Detail, InlineError, Plain, PostedRecv, Qpn, QueueFull, QueuePairCounts,
    RequestFlags, RequestOp, WindowTarget,
};

use self::context::QpFacts;
use crate::completion::{self, Completion, Status};
use crate::cq::{Cqe, FORM};
use crate::gid::Use;
use crate::ring::{Lent, RingMemory};
use crate::srq::Returns;
use crate::window::Window;
use mlx_prm::CqeOpcode;

impl Cqe {
    /// Returns the outcome of a receive. Returns `None` for entries of requests, and for forms that we never request.
    #[inline]
    #[must_use]
    pub fn receive_outcome(&self) -> Option<Outcome> {
        match self.opcode() {
            CqeOpcode::RESP_SEND if self.format() == 0 => Some(self.received(Detail::None)),
            CqeOpcode::RESP_SEND_IMM if self.format() == 0 => {
                Some(self.received(Detail::SendImmediate(self.word())))
            }
            CqeOpcode::RESP_SEND_INV if self.format() == 0 => {
                Some(self.received(Detail::Invalidated(self.word())))
            }
            // The data went to the memory that the peer named. The buffer of the receive got none.
            CqeOpcode::RESP_WR_IMM if self.format() == 0 => Some(Outcome::Written {
                bytes: self.byte_count(),
                solicited: self.solicited(),
                immediate: self.word(),
            }),
            CqeOpcode::RESP_ERR => Some(Outcome::Failed {
                syndrome: self.syndrome(),
            }),
            _ => None,
        }
    }
}

impl Cqe {
    fn received(&self, detail: Detail) -> Outcome {
        Outcome::Received {
            bytes: self.byte_count(),
            solicited: self.solicited(),
            detail,
        }
    }
}

/// A reliable connected queue pair. If its owner places it at the start of a cache line, the receive queue starts at
/// one, too, because it is at a multiple of 64 bytes.
#[repr(C)]
pub struct Qp {
    send: SendQueue,
    facts: QpFacts,
    /// Shared receive queue's list for buffers whose completions were discarded; `None` without a shared receive queue.
    returns: Option<Arc<Returns>>,
    /// Number of entries with our queue pair number that matched neither a request nor a receive.
    unmatched_entries: u64,
    qpn: Qpn,
    /// True if the queue pair was left in RESET: a later command was refused, or `rewind` found a consumed receive.
    in_reset: bool,
    recv: RecvQueue,
    memory: Lent<RingMemory>,
    /// References that the queue pair holds from RTR until it is stopped.
    path: Option<PathUse>,
}

/// References of a running queue pair: to its source address, and to the mark that its peer is in use.
pub(crate) struct PathUse {
    pub(crate) _source: Use,
    pub(crate) _peer: Option<Arc<()>>,
    /// Index of the source address.
    pub(crate) index: u8,
}

static_assertions::const_assert_eq!(core::mem::offset_of!(Qp, recv) % 64, 0);

impl Qp {
    /// Returns the owner number that the queue pair's CQEs carry.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.facts.user_index
    }

    /// Returns the number of CQEs that matched nothing posted to this queue pair.
    #[must_use]
    pub fn unmatched_entries(&self) -> u64 {
        self.unmatched_entries + self.send.unmatched_entries() + self.recv.unmatched_entries()
    }

    /// Returns whether an entry belongs to this queue pair.
    fn owns(&self, entry: &Cqe) -> bool {
        entry.owner() == self.facts.user_index && entry.qpn() == self.qpn
    }

    /// Returns whether an entry belongs to this queue pair. If it completes a buffer of a shared receive queue, the
    /// buffer goes back to that queue, because the entry is about to be discarded.
    pub(crate) fn disown(&self, entry: &Cqe) -> bool {
        let ours = self.owns(entry);
        if let Some(returns) = self
            .returns
            .as_ref()
            .filter(|_| ours && !entry.is_request())
        {
            returns.push(entry.wqe_counter());
        }
        ours
    }

    /// Logs a failure with an explanation of its syndrome. Flushes are not logged, because they only follow from a
    /// failure or from a disconnect.
    #[cold]
    #[inline(never)]
    fn explain(&self, completion: &Completion) {
        let (syndrome, vendor) = completion.detail.syndrome();
        if completion.status != Status::Flushed {
            tracing::warn!(
                qpn = self.qpn.get(),
                request = completion.request,
                status = ?completion.status,
                syndrome,
                vendor,
                "{}",
                completion::explain(syndrome, vendor)
            );
        }
    }

    #[cold]
    #[inline(never)]
    fn count_unmatched(&mut self, entry: &Cqe) {
        self.unmatched_entries += 1;
        tracing::warn!(?entry, queue = ?self, "a completion entry does not belong to this queue pair; ignored");
    }
}

impl Qp {
    /// Posts the bind of a window and rings the doorbell. Requests posted later do not start before the window is
    /// bound. Returns the window's new remote key; the old key becomes invalid when the bind completes. The success of
    /// a bind is always reported. The queue pair must have been created with
    /// [`QueueSizes::binds`](rdma_types::QueueSizes::binds).
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was written, and the window keeps its key.
    pub fn post_bind(
        &mut self,
        window: &mut Window,
        target: &WindowTarget,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<u32, QueueFull> {
        self.send.post_bind(window, target, cookie, flags)
    }

    /// Posts a request and rings the doorbell. Checks only that the queue has capacity; the device checks keys, ranges
    /// and rights.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_requests` are outstanding; nothing was written.
    #[inline(always)]
    pub fn post_request<I>(
        &mut self,
        op: RequestOp,
        segments: I,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone,
    {
        self.send.post(op, segments, cookie, flags)
    }

    /// Posts a request of one segment ([`Qp::post_request`]). Returns an error if the queue appears full. After a
    /// bind, a queue that appears full may have room; [`Qp::post_request`] then succeeds. Without `RING`, the next
    /// request or [`Qp::ring_last`] rings the doorbell.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was written.
    #[inline(always)]
    pub fn post_one<const RING: bool>(
        &mut self,
        op: RequestOp,
        segment: DataSegment,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), QueueFull> {
        self.send.post_one::<RING>(op, segment, cookie, flags)
    }

    /// Rings the doorbell for requests that were posted without a doorbell. There must be at least one.
    pub fn ring_last(&mut self) {
        self.send.ring_last();
    }

    /// Posts a receive of one segment ([`Qp::post_recv`]). Without `PUBLISH`, the next receive or [`Qp::publish_recvs`]
    /// writes the doorbell record.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was written.
    #[inline(always)]
    pub fn post_one_recv<const PUBLISH: bool>(
        &mut self,
        segment: DataSegment,
        cookie: u64,
        unsignalled: bool,
    ) -> Result<(), QueueFull> {
        self.recv.post_one::<PUBLISH>(segment, cookie, unsignalled)
    }

    /// Writes the doorbell record for receives that were posted without `PUBLISH`.
    pub fn publish_recvs(&mut self) {
        self.recv.publish();
    }

    /// Posts a Send of kind `op` and copies its data into the queue. The caller may reuse the data on return.
    ///
    /// # Errors
    /// [`InlineError`]; nothing was written.
    #[inline(always)]
    pub fn post_send_inline(
        &mut self,
        op: RequestOp,
        data: &[u8],
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), InlineError> {
        // `op` is a constant in each branch, so each is compiled for its operation. Send is the most frequent one.
        if op == RequestOp::Send {
            return self.send.post_inline(RequestOp::Send, data, cookie, flags);
        }
        self.send.post_inline(op, data, cookie, flags)
    }

    /// Returns the maximum number of bytes that [`Qp::post_send_inline`] takes.
    #[must_use]
    pub fn send_inline_limit(&self) -> usize {
        self.send.inline_limit(RequestOp::Send)
    }

    /// Posts a receive and writes the doorbell record, from which the device learns of the receive. No register is
    /// written.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_recvs` are outstanding.
    #[inline(always)]
    pub fn post_recv<I>(
        &mut self,
        segments: I,
        cookie: u64,
        unsignalled: bool,
    ) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone,
    {
        self.recv.post(segments, cookie, unsignalled)
    }

    /// Completes the oldest request or receive if `entry` is its [`Plain`] completion. Otherwise returns `None` and
    /// changes nothing; the caller then passes the entry to [`Qp::complete`].
    #[inline(always)]
    pub fn complete_plain(&mut self, entry: &Cqe) -> Option<Plain> {
        if entry.opcode() == CqeOpcode::REQ {
            let (cookie, bytes) = self.send.complete_plain(entry.tail())?;
            return Some(Plain {
                cookie,
                bytes,
                request: true,
            });
        }
        if !self.recv.is_arrival(entry.tail()) {
            return None;
        }
        let bytes = entry.byte_count();
        let cookie = self.recv.complete_plain(entry.wqe_counter(), bytes)?;
        Some(Plain {
            cookie,
            bytes,
            request: false,
        })
    }

    /// Completes a request like `complete_plain`, and also the suppressed requests before it.
    pub fn complete_behind_suppressed(&mut self, entry: &Cqe) -> Option<Plain> {
        let (cookie, bytes) = self.send.complete_behind_suppressed(entry.tail())?;
        Some(Plain {
            cookie,
            bytes,
            request: true,
        })
    }

    /// Converts an entry of this queue pair into a completion, and frees the slots of that request and those before it.
    /// Returns `None` if there is nothing to report: a success was suppressed, or the entry matches nothing posted. The
    /// second case is logged and counted, since the device is not trusted.
    #[inline]
    pub fn complete(&mut self, entry: &Cqe) -> Option<Completion> {
        if entry.qpn() == self.qpn {
            if entry.op_own() & FORM == CqeOpcode::REQ.0 << 4 {
                return self.send.complete(entry.wqe_counter(), None);
            }
            if entry.opcode() == CqeOpcode::REQ_ERR {
                let failed = self
                    .send
                    .complete(entry.wqe_counter(), Some(entry.syndrome()));
                return failed.inspect(|completion| self.explain(completion));
            }
            if let Some(outcome) = entry.receive_outcome() {
                let completion = self.recv.complete(entry.wqe_counter(), outcome);
                if completion.is_some_and(|completion| completion.status != Status::Success) {
                    return completion.inspect(|completion| self.explain(completion));
                }
                return completion;
            }
        }
        self.count_unmatched(entry);
        None
    }

    /// Removes the oldest outstanding send request, or the oldest receive if there is none, and returns it as flushed.
    /// Used when the device is dead. The caller must first poll the CQEs that the device has already written.
    #[inline]
    pub fn take_outstanding(&mut self) -> Option<Completion> {
        self.send.take_oldest().or_else(|| self.recv.take_oldest())
    }

    /// Like `take_outstanding`, for a queue pair that was left in RESET by a refused command, or by a call of
    /// [`Qp::rewind`] that returned false. In RESET the device has discarded its work. Returns `None` for any other
    /// queue pair.
    #[inline]
    pub fn take_lost(&mut self) -> Option<Completion> {
        if self.in_reset {
            self.take_outstanding()
        } else {
            None
        }
    }

    /// Posts a request of the library itself, an RDMA Write of no bytes. Its completion shows that all earlier requests
    /// are done and that the peer answers. The completion is always reported, as [`Completion::own`].
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was written.
    pub fn post_own(&mut self) -> Result<(), QueueFull> {
        self.send.post_own()
    }

    /// Returns true if the last outstanding request asked for no CQE on success.
    #[must_use]
    pub fn ends_silently(&self) -> bool {
        self.send.ends_silently()
    }

    /// Returns the receives that are posted and not complete, oldest first. Returns `None` if the lengths in the ring
    /// have changed since we wrote them.
    #[must_use]
    pub fn posted_recvs(&self) -> Option<Vec<PostedRecv>> {
        self.recv.posted()
    }

    /// Returns the number of requests posted and not known complete.
    #[must_use]
    #[inline]
    pub fn requests_outstanding(&self) -> u32 {
        self.send.outstanding()
    }

    /// Returns the number of receives that are posted to the queue pair's own receive queue and not complete.
    #[must_use]
    #[inline]
    pub fn recvs_outstanding(&self) -> u32 {
        self.recv.outstanding()
    }

    /// Returns the counters of the queue pair.
    #[must_use]
    pub fn counts(&self) -> QueuePairCounts {
        let ((requests, request_bytes), (recvs, received_bytes)) =
            (self.send.posted(), self.recv.counted());
        QueuePairCounts {
            requests,
            request_bytes,
            recvs,
            received_bytes,
        }
    }

    /// Returns the queue pair's number, which the peer needs.
    #[must_use]
    pub fn number(&self) -> Qpn {
        self.qpn
    }
}

impl core::fmt::Debug for Qp {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Qp")
            .field("qpn", &format_args!("{}", self.qpn))
            .field("owner", &format_args!("{:#x}", self.facts.user_index))
            .field("send", &self.send)
            .field("recv", &self.recv)
            .finish_non_exhaustive()
    }
}
