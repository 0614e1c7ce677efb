//! The posting calls of an endpoint.
//!
//! Each checks in one order and posts nothing when a check fails: handle; state; number of segments,
//! flags; the segments, in order ([`crate::segment`]); lengths; room. What is left to the provider is
//! the room and the work queue entry.
//!
//! The common case (connected, in bounds) runs straight through and touches one cache line of the
//! endpoint ([`Hot`](super::Hot)) before the queue pair. All else is one call away, in
//! [`Ia::post_request_again`]: a disconnected endpoint takes posts too, because its queue pair is in the
//! error state and the device itself completes them as flushed, in order; and a queue that looks
//! full because nobody has looked at its completions lately (or ever will, their EVD being null, or all of
//! them suppressed) is reclaimed, once, before the answer is DAT_INSUFFICIENT_RESOURCES.

use super::state::EpState;
use super::{Ep, Hot};
use crate::error::DatResult;
use crate::handle::{EpHandle, EvdKey};
use crate::ia::Ia;
use crate::lmr::table::LmrTable;
use crate::provider::{DataSegment, Provider, QueueFull, QueuePair, RequestFlags, RequestOp};
use crate::refusal::Refusal;
use crate::segment::{RmrTriplet, Scope, Segment, check, pieces, pieces_up_to};
use crate::types::{CompletionFlags, DtoCookie, MemPrivFlags};

/// A request as the consumer names it, and what is particular about it.
pub(super) trait Operation: Copy {
    /// What it needs of local memory.
    const RIGHT: MemPrivFlags;
    /// The answer to bad flags.
    const BAD_FLAGS: Refusal;
    /// SOLICITED_WAIT means something.
    const SOLICITS: bool;

    /// [`Operation::admit`] bounds the length of local memory: to what a segment can have, since no endpoint has longer
    /// messages or transfers ([`IaAttr`](crate::IaAttr)), and to 0 where there may be no segment.
    const BOUNDS_MEMORY: bool;

    /// Segments it may have.
    fn max_iov(hot: &Hot) -> u32;

    /// Checks lengths: of local memory, `total` bytes.
    fn admit(self, hot: &Hot, total: u64) -> Result<(), Refusal>;

    /// What it is on the wire.
    fn op(self) -> RequestOp;

    /// Bytes of local memory to use.
    fn limit(self) -> Option<u64>;

    /// What is used of the one segment of a request that was admitted.
    #[inline(always)]
    fn data<S: Segment>(self, one: &S) -> DataSegment {
        let mut data = one.data();
        if let Some(limit) = self.limit() {
            // CAST: not more than the `u32` the segment has: `admit` has compared them.
            #[expect(clippy::cast_possible_truncation, reason = "at most a u32")]
            {
                data.bytes = limit as u32;
            }
        }
        data
    }
}

#[derive(Clone, Copy)]
pub(super) struct Send;
#[derive(Clone, Copy)]
pub(super) struct Write<'a>(pub(super) &'a RmrTriplet);
#[derive(Clone, Copy)]
pub(super) struct Read<'a>(pub(super) &'a RmrTriplet);

impl Operation for Send {
    const RIGHT: MemPrivFlags = MemPrivFlags::LOCAL_READ;
    const BAD_FLAGS: Refusal = Refusal::Flags;
    const SOLICITS: bool = true;
    const BOUNDS_MEMORY: bool = true;

    #[inline(always)]
    fn max_iov(hot: &Hot) -> u32 {
        hot.max_request_iov
    }

    #[inline(always)]
    fn admit(self, hot: &Hot, total: u64) -> Result<(), Refusal> {
        if total > hot.max_send_bytes {
            return Err(Refusal::LongMessage);
        }
        Ok(())
    }

    #[inline(always)]
    fn op(self) -> RequestOp {
        RequestOp::Send
    }

    #[inline(always)]
    fn limit(self) -> Option<u64> {
        None
    }
}

impl Operation for Write<'_> {
    const RIGHT: MemPrivFlags = MemPrivFlags::LOCAL_READ;
    const BAD_FLAGS: Refusal = Refusal::RdmaFlags;
    const SOLICITS: bool = false;
    const BOUNDS_MEMORY: bool = true;

    #[inline(always)]
    fn max_iov(hot: &Hot) -> u32 {
        hot.max_write_iov
    }

    #[inline(always)]
    fn admit(self, hot: &Hot, total: u64) -> Result<(), Refusal> {
        if total > hot.max_write_bytes {
            return Err(Refusal::LongTransfer);
        }
        if total > self.0.segment_length {
            return Err(Refusal::Length);
        }
        Ok(())
    }

    #[inline(always)]
    fn op(self) -> RequestOp {
        RequestOp::RdmaWrite {
            address: self.0.target_address,
            rmr_context: self.0.rmr_context,
        }
    }

    #[inline(always)]
    fn limit(self) -> Option<u64> {
        None
    }
}

impl Operation for Read<'_> {
    const RIGHT: MemPrivFlags = MemPrivFlags::LOCAL_WRITE;
    const BAD_FLAGS: Refusal = Refusal::RdmaFlags;
    const SOLICITS: bool = false;
    // The sink may be longer than what is read.
    const BOUNDS_MEMORY: bool = false;

    #[inline(always)]
    fn max_iov(hot: &Hot) -> u32 {
        hot.max_read_iov
    }

    #[inline(always)]
    fn admit(self, hot: &Hot, total: u64) -> Result<(), Refusal> {
        if self.0.segment_length > hot.max_read_bytes {
            return Err(Refusal::LongTransfer);
        }
        if total < self.0.segment_length {
            return Err(Refusal::Length);
        }
        if hot.max_reads_out == 0 {
            return Err(Refusal::NoReads);
        }
        Ok(())
    }

    #[inline(always)]
    fn op(self) -> RequestOp {
        RequestOp::RdmaRead {
            address: self.0.target_address,
            rmr_context: self.0.rmr_context,
        }
    }

    #[inline(always)]
    fn limit(self) -> Option<u64> {
        Some(self.0.segment_length)
    }
}

impl<P: Provider> Ia<P> {
    /// Sends the bytes of `iov` as one message.
    ///
    /// Page: dat_ep_post_send.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP. DAT_INVALID_STATE: neither CONNECTED nor DISCONNECTED.
    /// DAT_INVALID_PARAMETER: |ARG2 more than `max_request_iov` segments, |ARG5 flags unknown or not
    /// allowed by the endpoint, |ARG3 a segment reaches outside its LMR, the message is longer than
    /// `max_message_size`. DAT_PROTECTION_VIOLATION: an LMR is in another PZ.
    /// DAT_PRIVILEGES_VIOLATION: no such LMR, or no right of local read.
    /// DAT_INSUFFICIENT_RESOURCES: `max_request_dtos` are outstanding.
    #[inline]
    pub fn ep_post_send<S: Segment>(
        &mut self,
        ep: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        match self.post_request(ep, iov, Send, cookie, flags) {
            Ok(()) => Ok(()),
            Err(refusal) => self.post_request_again(ep, iov, Send, cookie, flags, refusal),
        }
    }

    /// Writes the bytes of `iov` to the peer's memory.
    ///
    /// Page: dat_ep_post_rdma_write.
    ///
    /// # Errors
    /// As [`Ia::ep_post_send`], with `max_rdma_write_iov` and `max_rdma_size`; flags are ARG6.
    /// DAT_LENGTH_ERROR: `remote` is shorter than `iov`.
    #[inline]
    pub fn ep_post_rdma_write<S: Segment>(
        &mut self,
        ep: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        match self.post_request(ep, iov, Write(remote), cookie, flags) {
            Ok(()) => Ok(()),
            Err(refusal) => self.post_request_again(ep, iov, Write(remote), cookie, flags, refusal),
        }
    }

    /// Reads the peer's memory `remote`, all of it, into `iov`.
    ///
    /// Page: dat_ep_post_rdma_read.
    ///
    /// # Errors
    /// As [`Ia::ep_post_send`], with `max_rdma_read_iov` and `max_rdma_size`, the right of local
    /// write, and flags as ARG6. DAT_LENGTH_ERROR: `iov` is shorter than `remote`.
    /// DAT_INSUFFICIENT_RESOURCES also when the endpoint's `max_rdma_read_out` is 0.
    #[inline]
    pub fn ep_post_rdma_read<S: Segment>(
        &mut self,
        ep: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        remote: &RmrTriplet,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        match self.post_request(ep, iov, Read(remote), cookie, flags) {
            Ok(()) => Ok(()),
            Err(refusal) => self.post_request_again(ep, iov, Read(remote), cookie, flags, refusal),
        }
    }

    /// Posts a buffer for one incoming message. Legal in every state.
    ///
    /// Page: dat_ep_post_recv.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP. DAT_INVALID_STATE: |SRQ_IN_USE the endpoint takes its buffers from an
    /// SRQ, |EP_NOTREADY it has no PZ. DAT_INVALID_PARAMETER: |ARG2 more than `max_recv_iov` segments,
    /// |ARG5 a flag other than UNSIGNALLED, or that one on an endpoint not configured for it, |ARG3 a
    /// segment reaches outside its LMR. DAT_PROTECTION_VIOLATION: an LMR is in another PZ.
    /// DAT_PRIVILEGES_VIOLATION: no such LMR, or no right of local write.
    /// DAT_INSUFFICIENT_RESOURCES: `max_recv_dtos` are outstanding.
    #[inline]
    pub fn ep_post_recv<S: Segment>(
        &mut self,
        ep: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        match self.post_recv(ep, iov, cookie, flags) {
            Ok(()) => Ok(()),
            Err(refusal) => self.post_recv_again(ep, iov, cookie, flags, refusal),
        }
    }

    #[inline(always)]
    fn post_request<S: Segment, O: Operation>(
        &mut self,
        handle: EpHandle,
        iov: &[S],
        operation: O,
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> Result<(), Refusal> {
        if handle.ia != self.id {
            return Err(Refusal::NoEp);
        }
        let ep = self.eps.get_mut(handle.key).ok_or(Refusal::NoEp)?;
        if ep.hot.state != EpState::Connected {
            return Err(Refusal::State);
        }
        post_checked(ep, &self.lmrs, iov, operation, cookie, flags)
    }

    #[inline(always)]
    fn post_recv<S: Segment>(
        &mut self,
        handle: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> Result<(), Refusal> {
        if handle.ia != self.id {
            return Err(Refusal::NoEp);
        }
        let ep = self.eps.get_mut(handle.key).ok_or(Refusal::NoEp)?;
        if ep.hot.srq.is_some() {
            return Err(Refusal::UsesSrq);
        }
        let qp = ep.qp.as_mut().ok_or(Refusal::NotReady)?;
        if iov.len() > ep.hot.max_recv_iov as usize {
            return Err(Refusal::Segments);
        }
        if flags.bits() & ep.hot.recv_flags_refused != 0 {
            return Err(Refusal::Flags);
        }
        let scope = Scope {
            lmrs: &self.lmrs,
            pz: ep.hot.pz,
            need: MemPrivFlags::LOCAL_WRITE,
        };
        let unsignalled = flags.contains(CompletionFlags::UNSIGNALLED);
        match iov {
            [one] if one.bytes() != 0 => {
                one.check(scope)?;
                qp.post_recv(core::iter::once(one.data()), cookie, unsignalled)
                    .map_err(|QueueFull| Refusal::Full)
            }
            _ => post_recv_list(qp, &self.lmrs, ep.hot.pz, iov, cookie, unsignalled),
        }
    }

    /// What becomes of a request that was not posted at once.
    #[cold]
    #[inline(never)]
    fn post_request_again<S: Segment, O: Operation>(
        &mut self,
        handle: EpHandle,
        iov: &[S],
        operation: O,
        cookie: DtoCookie,
        flags: CompletionFlags,
        refusal: Refusal,
    ) -> DatResult<()> {
        if refusal != Refusal::State && refusal != Refusal::Full {
            return Err(refusal.error());
        }
        let mut reclaimed = false;
        loop {
            let Some(ep) = self.eps.get_mut(handle.key) else {
                return Err(Refusal::NoEp.error());
            };
            if !matches!(ep.hot.state, EpState::Connected | EpState::Disconnected) {
                return Err(ep.hot.state.refuse());
            }
            match post_checked(ep, &self.lmrs, iov, operation, cookie, flags) {
                Ok(()) => {
                    ep.posted_after_marker = ep.posted_after_marker.saturating_add(1);
                    return Ok(());
                }
                Err(Refusal::Full) if !reclaimed => {
                    self.reclaim(handle, |ep| ep.request_evd);
                    reclaimed = true;
                }
                Err(refusal) => return Err(refusal.error()),
            }
        }
    }

    /// What becomes of a receive that was not posted at once.
    #[cold]
    #[inline(never)]
    fn post_recv_again<S: Segment>(
        &mut self,
        ep: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        flags: CompletionFlags,
        refusal: Refusal,
    ) -> DatResult<()> {
        if refusal != Refusal::Full {
            return Err(refusal.error());
        }
        self.reclaim(ep, |ep| ep.recv_evd);
        self.post_recv(ep, iov, cookie, flags)
            .map_err(Refusal::error)
    }

    /// Makes room in a queue that is full only because nobody has looked: a slot is free when the DTO
    /// is done, not when its event is dequeued, and suppressed requests have no event to dequeue.
    /// Completions move to their EVD's queue in software, those of null EVDs vanish. What a failed one
    /// means for the connection is left to the next call that polls: it takes commands to the device,
    /// and a post does not block.
    pub(super) fn reclaim(&mut self, ep: EpHandle, evd: fn(&Ep<P>) -> Option<EvdKey>) {
        match self.eps.get(ep.key).and_then(evd) {
            Some(evd) => {
                self.drain_evd(evd, true);
            }
            None => {
                self.drain_discard(ep.key);
            }
        }
    }
}

#[inline(always)]
fn post_checked<P: Provider, S: Segment, O: Operation>(
    ep: &mut Ep<P>,
    lmrs: &LmrTable,
    iov: &[S],
    operation: O,
    cookie: DtoCookie,
    flags: CompletionFlags,
) -> Result<(), Refusal> {
    let hot = &ep.hot;
    let qp = ep.qp.as_mut().ok_or(Refusal::NotReady)?;
    if iov.len() > O::max_iov(hot) as usize {
        return Err(Refusal::Segments);
    }
    if flags.bits() & hot.request_flags_refused != 0 {
        return Err(O::BAD_FLAGS);
    }
    let scope = Scope {
        lmrs,
        pz: hot.pz,
        need: O::RIGHT,
    };
    let how = RequestFlags {
        suppress: flags.contains(CompletionFlags::SUPPRESS),
        solicited: O::SOLICITS && flags.contains(CompletionFlags::SOLICITED_WAIT),
        fence: flags.contains(CompletionFlags::BARRIER_FENCE),
        unsignalled: flags.contains(CompletionFlags::UNSIGNALLED),
    };
    match iov {
        [one] if one.bytes() != 0 && operation.limit() != Some(0) => {
            one.check(scope)?;
            operation.admit(hot, one.bytes())?;
            let data = operation.data(one);
            qp.post_request(operation.op(), core::iter::once(data), cookie, how)
                .map_err(|QueueFull| Refusal::Full)?;
        }
        _ => post_list(qp, hot, lmrs, iov, operation, cookie, how)?,
    }
    Ok(())
}

/// A request of none or several segments, or one without bytes. Apart, so that the others run straight through.
#[inline(never)]
fn post_list<Q: QueuePair, S: Segment, O: Operation>(
    qp: &mut Q,
    hot: &Hot,
    lmrs: &LmrTable,
    iov: &[S],
    operation: O,
    cookie: DtoCookie,
    how: RequestFlags,
) -> Result<(), Refusal> {
    let scope = Scope {
        lmrs,
        pz: hot.pz,
        need: O::RIGHT,
    };
    let total = check(iov, scope)?;
    operation.admit(hot, total)?;
    let op = operation.op();
    match operation.limit() {
        None => qp.post_request(op, pieces(iov), cookie, how),
        Some(limit) => qp.post_request(op, pieces_up_to(iov, limit), cookie, how),
    }
    .map_err(|QueueFull| Refusal::Full)
}

/// As [`post_list`], for a receive.
#[inline(never)]
fn post_recv_list<Q: QueuePair, S: Segment>(
    qp: &mut Q,
    lmrs: &LmrTable,
    pz: u32,
    iov: &[S],
    cookie: DtoCookie,
    unsignalled: bool,
) -> Result<(), Refusal> {
    let scope = Scope {
        lmrs,
        pz,
        need: MemPrivFlags::LOCAL_WRITE,
    };
    check(iov, scope)?;
    qp.post_recv(pieces(iov), cookie, unsignalled)
        .map_err(|QueueFull| Refusal::Full)
}
