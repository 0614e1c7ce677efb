//! Queue pairs: a send queue and a receive queue that talk to one peer.
//!
//! Both rings live in one buffer, the receive ring first (offset 0) and the send ring behind it, and
//! one doorbell record of two words, receive counter and send counter (PRM "Work Queue
//! Structure"). What memory that is says [`crate::ring`].
//!
//! [`Qp`] is the consumer's side: posting and completing. What changes the device (creation and the
//! transitions) is commands, in [`control`]; what those say is in [`context`].
//!
//! A completion queue entry is taken apart here: opcode and form say whether it is a request's or
//! a receive's, good or bad. The queue pair number in it must be ours, because the user index
//! by which it found its way here may have belonged to an earlier queue pair.

pub mod context;
pub mod control;
mod recv;
mod request;
mod send;

use std::sync::Arc;

use dat_core::provider::{
    Completion, CompletionEntry, DataSegment, InlineError, Plain, PostedRecv, QueueFull, QueuePair,
    QueuePairCounts, RequestFlags, RequestOp, WindowTarget,
};
pub use recv::{Outcome, RecvQueue, RecvSizes};
pub use send::{SendQueue, SendSizes};

use dat_core::DtoDetail;
use dat_core::types::DtoStatus;

use self::context::QpFacts;
use crate::completion;
use crate::cq::{Cqe, FORM};
use crate::gid::Use;
use crate::ring::{Lent, RingMemory};
use crate::srq::Returns;
use crate::window::Window;
use mlx_prm::CqeOpcode;

impl Cqe {
    /// What a receive's entry says; `None` for entries that are none, or that have a form we never
    /// asked for.
    #[inline]
    #[must_use]
    pub fn receive_outcome(&self) -> Option<Outcome> {
        match self.opcode() {
            CqeOpcode::RESP_SEND if self.format() == 0 => Some(self.received(DtoDetail::None)),
            CqeOpcode::RESP_SEND_IMM if self.format() == 0 => {
                Some(self.received(DtoDetail::SendImmediate(self.word())))
            }
            CqeOpcode::RESP_SEND_INV if self.format() == 0 => {
                Some(self.received(DtoDetail::Invalidated(self.word())))
            }
            // The data went to the memory the peer named; the receive itself got none.
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
    fn received(&self, detail: DtoDetail) -> Outcome {
        Outcome::Received {
            bytes: self.byte_count(),
            solicited: self.solicited(),
            detail,
        }
    }
}

/// A reliable connected queue pair. It begins a cache line, and so does its receive queue.
#[repr(C)]
pub struct Qp {
    send: SendQueue,
    facts: QpFacts,
    /// Where thrown-away completions of a shared receive queue go.
    returns: Option<Arc<Returns>>,
    /// Entries that were neither a request's nor a receive's of ours.
    distrusted: u64,
    qpn: u32,
    /// It was left in RESET: what should have brought it further was refused.
    in_reset: bool,
    recv: RecvQueue,
    memory: Lent<RingMemory>,
    /// While it runs.
    path: Option<PathUse>,
}

/// What a queue pair that runs keeps: the address that it leaves from, and that its peer is in use.
pub(crate) struct PathUse {
    pub(crate) _source: Use,
    pub(crate) _peer: Option<Arc<()>>,
}

static_assertions::const_assert_eq!(core::mem::offset_of!(Qp, recv) % 64, 0);

impl Qp {
    /// The owner number its completions carry.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.facts.user_index
    }

    /// Completion entries that fitted nothing posted here.
    #[must_use]
    pub fn distrusted(&self) -> u64 {
        self.distrusted + self.send.distrusted() + self.recv.distrusted()
    }

    /// Whether an entry is of this queue pair.
    fn owns(&self, entry: &Cqe) -> bool {
        entry.owner() == self.facts.user_index && entry.qpn() == self.qpn
    }

    /// True if an entry is of this queue pair. If it is one of a shared receive queue's buffers, the
    /// buffer goes back to it, because the entry is about to be thrown away.
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

    /// Says in words what failed. Flushes go without saying: they follow from a failure or a wish.
    #[cold]
    #[inline(never)]
    fn explain(&self, completion: &Completion) {
        let (syndrome, vendor) = completion.detail.syndrome();
        if completion.status != DtoStatus::ErrFlushed {
            tracing::warn!(
                qpn = self.qpn,
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
    fn distrust(&mut self, entry: &Cqe) {
        self.distrusted += 1;
        tracing::warn!(?entry, queue = ?self, "a completion entry does not belong to this queue pair; ignored");
    }
}

impl QueuePair for Qp {
    type Entry = Cqe;
    type Window = Window;

    fn post_bind(
        &mut self,
        window: &mut Window,
        target: &WindowTarget,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<u32, QueueFull> {
        self.send.post_bind(window, target, cookie, flags)
    }

    #[inline(always)]
    fn post_request<I>(
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

    #[inline(always)]
    fn post_one<const RING: bool>(
        &mut self,
        op: RequestOp,
        segment: DataSegment,
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), QueueFull> {
        self.send.post_one::<RING>(op, segment, cookie, flags)
    }

    fn ring_last(&mut self) {
        self.send.ring_last();
    }

    #[inline(always)]
    fn post_one_recv<const TELL: bool>(
        &mut self,
        segment: DataSegment,
        cookie: u64,
        unsignalled: bool,
    ) -> Result<(), QueueFull> {
        self.recv.post_one::<TELL>(segment, cookie, unsignalled)
    }

    fn tell_of_recvs(&mut self) {
        self.recv.announce();
    }

    #[inline(always)]
    fn post_send_inline(
        &mut self,
        op: RequestOp,
        data: &[u8],
        cookie: u64,
        flags: RequestFlags,
    ) -> Result<(), InlineError> {
        // The caller knows which it is, and that is most often the first.
        if op == RequestOp::Send {
            return self.send.post_inline(RequestOp::Send, data, cookie, flags);
        }
        self.send.post_inline(op, data, cookie, flags)
    }

    fn send_inline_limit(&self) -> usize {
        self.send.inline_limit(RequestOp::Send)
    }

    #[inline(always)]
    fn post_recv<I>(&mut self, segments: I, cookie: u64, unsignalled: bool) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone,
    {
        self.recv.post(segments, cookie, unsignalled)
    }

    #[inline(always)]
    fn complete_plain(&mut self, entry: &Cqe) -> Option<Plain> {
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

    fn complete_behind_suppressed(&mut self, entry: &Cqe) -> Option<Plain> {
        let (cookie, bytes) = self.send.complete_behind_suppressed(entry.tail())?;
        Some(Plain {
            cookie,
            bytes,
            request: true,
        })
    }

    fn complete(&mut self, entry: &Cqe) -> Option<Completion> {
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
                if completion.is_some_and(|completion| completion.status != DtoStatus::Success) {
                    return completion.inspect(|completion| self.explain(completion));
                }
                return completion;
            }
        }
        self.distrust(entry);
        None
    }

    fn take_outstanding(&mut self) -> Option<Completion> {
        self.send.take_oldest().or_else(|| self.recv.take_oldest())
    }

    fn take_lost(&mut self) -> Option<Completion> {
        if self.in_reset {
            self.take_outstanding()
        } else {
            None
        }
    }

    fn post_own(&mut self) -> Result<(), QueueFull> {
        self.send.post_own()
    }

    fn ends_silently(&self) -> bool {
        self.send.ends_silently()
    }

    fn posted_recvs(&self) -> Option<Vec<PostedRecv>> {
        self.recv.posted()
    }

    #[inline]
    fn requests_outstanding(&self) -> u32 {
        self.send.outstanding()
    }

    #[inline]
    fn recvs_outstanding(&self) -> u32 {
        self.recv.outstanding()
    }

    fn counts(&self) -> QueuePairCounts {
        let ((requests, request_bytes), (recvs, received_bytes)) =
            (self.send.posted(), self.recv.counted());
        QueuePairCounts {
            requests,
            request_bytes,
            recvs,
            received_bytes,
        }
    }

    fn number(&self) -> u32 {
        self.qpn
    }
}

impl core::fmt::Debug for Qp {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Qp")
            .field("qpn", &format_args!("{:#x}", self.qpn))
            .field("owner", &format_args!("{:#x}", self.facts.user_index))
            .field("send", &self.send)
            .field("recv", &self.recv)
            .finish_non_exhaustive()
    }
}
