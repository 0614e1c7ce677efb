//! The posting calls of an endpoint.
//!
//! Each call makes its checks in a fixed order, and posts nothing if a check fails: handle; state; number of segments,
//! flags; the segments, in order ([`crate::segment`]); lengths; free queue entries. The provider makes the last check
//! and writes the work queue entry.
//!
//! Most posts are correct and have one segment, on a connected endpoint. These are made *at once*
//! ([`Ia::request_at_once`], [`Ia::recv_at_once`]): with the same checks, in the fastest order, returning only whether
//! the post was made. If it was not made, nothing has changed. Then the call checks everything *in order*
//! ([`Ia::request_in_order`]), and finds the error or still makes the post. A correct post is not made at once in these
//! cases. The post has no segment, an empty segment, or a list of segments. It is an atomic operation. It has to be
//! recorded or timed. The endpoint is disconnected: its queue pair is in the error state, and the device itself
//! completes the request as flushed. A queue looks full because its completions were not polled lately (or are never
//! polled: their EVD is null, or all of them are suppressed). Such a queue is reclaimed once before the call returns
//! DAT_INSUFFICIENT_RESOURCES.

use crate::error::{DatError, DatResult};
use crate::handle::{EpHandle, EpKey, EvdKey};
use crate::ia::instance::Ia;
use crate::object::ep::Ep;
use crate::object::ep::request::{Operation, RdmaRead, RdmaWrite, Recv, Send, request_flags};
use crate::object::ep::untimely::EpCall;
use crate::object::lmr::segment::{RmrTriplet, Scope, Segment, check, pieces, pieces_up_to};
use crate::object::recorder::Posted;
use crate::provider::{Provider, QueueFull, QueuePair};
use crate::refusal::Refusal;
use crate::types::{CompletionFlags, DtoCookie, MemPrivFlags};

/// A post: [`Send`], [`RdmaWrite`], [`RdmaRead`], [`Recv`], or one that DAT 1.2 does not have ([`crate::post`]).
///
/// [`Post::at_once`] never panics. A facade that must know whether a call can panic calls `at_once` first.
pub trait Post: Copy {
    /// Posts if the fast path can do so. Returns false if nothing was posted.
    fn at_once<P: Provider, S: Segment>(
        self,
        ia: &mut Ia<P>,
        ep: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> bool;

    /// Posts at once if possible. Otherwise checks everything in DAT's order, and posts or returns the error.
    ///
    /// # Errors
    /// The errors of the call.
    fn post<P: Provider, S: Segment>(
        self,
        ia: &mut Ia<P>,
        ep: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()>;
}

macro_rules! posts {
    ($($what:ty: $at_once:expr, $in_order:ident;)*) => {$(
        impl $crate::ia::call::ep::post::Post for $what {
            #[inline(always)]
            fn at_once<P: Provider, S: Segment>(
                self,
                ia: &mut Ia<P>,
                ep: EpHandle,
                iov: &[S],
                cookie: DtoCookie,
                flags: CompletionFlags,
            ) -> bool {
                $at_once(ia, ep, iov, self, cookie, flags)
            }

            #[inline(always)]
            fn post<P: Provider, S: Segment>(
                self,
                ia: &mut Ia<P>,
                ep: EpHandle,
                iov: &[S],
                cookie: DtoCookie,
                flags: CompletionFlags,
            ) -> DatResult<()> {
                if self.at_once(ia, ep, iov, cookie, flags) {
                    return Ok(());
                }
                ia.$in_order(ep, iov, self, cookie, flags)
            }
        }
    )*};
}

pub(in crate::ia) use posts;

posts! {
    Send: Ia::request_at_once, request_in_order;
    RdmaWrite<'_>: Ia::request_at_once, request_in_order;
    RdmaRead<'_>: Ia::request_at_once, request_in_order;
    Recv: Ia::recv_at_once, recv_in_order;
}

impl<P: Provider> Ia<P> {
    /// Sends the bytes of `iov` as one message.
    ///
    /// Page: dat_ep_post_send.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP. DAT_INVALID_STATE: neither CONNECTED nor DISCONNECTED.
    /// DAT_INVALID_PARAMETER: |ARG2 more than `max_request_iov` segments, |ARG5 flags unknown or not
    /// allowed by the endpoint, |ARG3 a segment reaches outside its LMR or is longer than 2^31 - 1 bytes; without a
    /// subtype: the message is longer than `max_message_size`. DAT_PROTECTION_VIOLATION: an LMR is in another PZ.
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
        Send.post(self, ep, iov, cookie, flags)
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
        RdmaWrite(remote).post(self, ep, iov, cookie, flags)
    }

    /// Reads all of `remote`, a segment of the peer's memory, into `iov`.
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
        RdmaRead(remote).post(self, ep, iov, cookie, flags)
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
        Recv.post(self, ep, iov, cookie, flags)
    }

    /// Posts a request if it has one segment and passes all checks, on a connected endpoint with a free queue entry.
    /// Returns false if nothing was posted.
    #[inline(always)]
    pub(in crate::ia) fn request_at_once<S: Segment, O: Operation>(
        &mut self,
        handle: EpHandle,
        iov: &[S],
        operation: O,
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> bool {
        self.eps.named_mut(handle.key, handle.ia).is_some_and(|ep| {
            ep.request_at_once::<true, S, O>(self.regions.table(), iov, operation, cookie, flags)
        })
    }

    /// Posts a receive if it has one segment and passes all checks, on an endpoint with a free queue entry. Returns
    /// false if nothing was posted.
    #[inline(always)]
    fn recv_at_once<S: Segment>(
        &mut self,
        handle: EpHandle,
        iov: &[S],
        _what: Recv,
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> bool {
        self.eps
            .named_mut(handle.key, handle.ia)
            .is_some_and(|ep| ep.recv_at_once::<true, S>(self.regions.table(), iov, cookie, flags))
    }

    /// Checks a request in DAT's order and posts it.
    #[inline(always)]
    pub(in crate::ia) fn request_in_order<S: Segment, O: Operation>(
        &mut self,
        EpHandle { key, ia }: EpHandle,
        iov: &[S],
        operation: O,
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        self.request_in_order_of(key, ia, iov, operation, cookie, flags)
    }

    // The handle is passed as its two fields, which stay in registers. As a struct it would go through memory, also for
    // posts on the fast path.
    #[inline(never)]
    pub(in crate::ia) fn request_in_order_of<S: Segment, O: Operation>(
        &mut self,
        key: EpKey,
        ia: u32,
        iov: &[S],
        operation: O,
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let handle = EpHandle { key, ia };
        match self.request_checked(handle, iov, operation, cookie, flags) {
            Err(Refusal::Full) => {
                self.reclaim(handle, |ep| ep.request_evd);
                self.request_checked(handle, iov, operation, cookie, flags)
            }
            answered => answered,
        }
        .map_err(|refusal| {
            let excess = self.excess(handle, iov, operation, refusal);
            let error = self.refused(handle, refusal);
            excess.map_or(error, |(asked, allowed)| error.over(asked, allowed))
        })
    }

    /// Returns the requested amount and its limit, if the amount is the reason why a request was refused.
    #[cold]
    fn excess<S: Segment, O: Operation>(
        &self,
        handle: EpHandle,
        iov: &[S],
        operation: O,
        refusal: Refusal,
    ) -> Option<(u64, u64)> {
        let bounds = &self.ep(handle).ok()?.bounds;
        if refusal == Refusal::Segments {
            return Some((iov.len() as u64, O::max_iov(bounds).into()));
        }
        let local = || iov.iter().map(Segment::bytes).fold(0, u64::saturating_add);
        let most = match (refusal == Refusal::LongTransfer, operation.limit()) {
            (true, Some(_)) => bounds.max_read_bytes,
            (true, None) => bounds.max_write_bytes,
            (false, _) if refusal == Refusal::LongMessage => bounds.max_send_bytes,
            (false, _) => return None,
        };
        Some((operation.limit().unwrap_or_else(local), most))
    }

    fn request_checked<S: Segment, O: Operation>(
        &mut self,
        handle: EpHandle,
        iov: &[S],
        operation: O,
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> Result<(), Refusal> {
        let ep = self.eps.named_mut(handle.key, handle.ia);
        let ep = ep.ok_or(Refusal::NoEp)?;
        let hot = &ep.hot;
        if !hot.state.takes_requests() {
            return Err(Refusal::State);
        }
        let qp = ep.qp.get_mut().ok_or(Refusal::NotReady)?;
        if O::IS_ATOMIC && !self.provider.limits().atomics {
            return Err(Refusal::NoAtomics);
        }
        if iov.len() > O::max_iov(&ep.bounds) as usize {
            return Err(Refusal::Segments);
        }
        if flags.bits() & hot.request_flags_refused != 0 {
            return Err(O::BAD_FLAGS);
        }
        let scope = Scope {
            lmrs: self.regions.table(),
            pz: hot.pz,
            need: O::RIGHT,
        };
        let how = request_flags::<O>(flags);
        let total = check(iov, scope)?;
        operation.admit(&ep.bounds, total)?;
        let op = operation.op();
        match operation.limit() {
            None => qp.post_request(op, pieces(iov), cookie.0, how),
            Some(limit) => qp.post_request(op, pieces_up_to(iov, limit), cookie.0, how),
        }
        .map_err(|QueueFull| Refusal::Full)?;
        let bytes = operation.limit().unwrap_or(total);
        self.record_post(handle.key, Posted::request(op), bytes, cookie.0);
        if self.observed && !how.suppress {
            self.time_post(handle.key);
        }
        Ok(())
    }

    /// Checks a receive in DAT's order and posts it.
    #[inline(never)]
    pub(in crate::ia) fn recv_in_order<S: Segment>(
        &mut self,
        handle: EpHandle,
        iov: &[S],
        _what: Recv,
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        match self.recv_checked(handle, iov, cookie, flags) {
            Err(Refusal::Full) => {
                self.reclaim(handle, |ep| ep.recv_evd);
                self.recv_checked(handle, iov, cookie, flags)
            }
            answered => answered,
        }
        .map_err(|refusal| {
            let error = self.refused(handle, refusal);
            match self.ep(handle) {
                Ok(ep) if refusal == Refusal::Segments => {
                    error.over(iov.len() as u64, ep.bounds.max_recv_iov.into())
                }
                _ => error,
            }
        })
    }

    /// Returns the consumer's error for a refused post.
    #[cold]
    pub(in crate::ia) fn refused(&mut self, handle: EpHandle, refusal: Refusal) -> DatError {
        match (self.eps.get_mut(handle.key), refusal) {
            (Some(ep), Refusal::State) => return ep.hot.state.refuse(EpCall::Post),
            (Some(ep), Refusal::Full) => ep.counts.full(),
            (_, _) => {}
        }
        refusal.error()
    }

    fn recv_checked<S: Segment>(
        &mut self,
        handle: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> Result<(), Refusal> {
        let ep = self.eps.named_mut(handle.key, handle.ia);
        let ep = ep.ok_or(Refusal::NoEp)?;
        if ep.srq.is_some() {
            return Err(Refusal::UsesSrq);
        }
        let qp = ep.qp.get_mut().ok_or(Refusal::NotReady)?;
        if iov.len() > ep.bounds.max_recv_iov as usize {
            return Err(Refusal::Segments);
        }
        if flags.bits() & ep.hot.recv_flags_refused != 0 {
            return Err(Refusal::Flags);
        }
        let scope = Scope {
            lmrs: self.regions.table(),
            pz: ep.hot.pz,
            need: MemPrivFlags::LOCAL_WRITE,
        };
        let bytes = check(iov, scope)?;
        let unsignalled = flags.contains(CompletionFlags::UNSIGNALLED);
        qp.post_recv(pieces(iov), cookie.0, unsignalled)
            .map_err(|QueueFull| Refusal::Full)?;
        self.record_post(handle.key, (Posted::Recv, 0), bytes, cookie.0);
        Ok(())
    }

    /// Frees entries in a queue that is full only because its completions were not polled. An entry is free when its
    /// DTO is done, not when its event is dequeued, and suppressed requests have no event. Completions move to their
    /// EVD's software queue; those of null EVDs are dropped. The effects of a failed DTO are left to the next call that
    /// polls, because they need device commands, and a post must not block.
    pub(in crate::ia) fn reclaim(&mut self, ep: EpHandle, evd: fn(&Ep<P>) -> Option<EvdKey>) {
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
