//! The posting calls of an endpoint.
//!
//! Each checks in one order and posts nothing when a check fails: handle; state; number of segments,
//! flags; the segments, in order ([`crate::segment`]); lengths; room. What is left to the provider is
//! the room and the work queue entry.
//!
//! The common case (connected, in bounds) runs straight through and touches one cache line of the
//! endpoint ([`Hot`](super::Hot)) before the queue pair. A disconnected endpoint takes posts too:
//! its queue pair is in the error state, so the device itself completes them as flushed, in order.
//! That path is the same code behind a call.
//!
//! A queue that looks full although the consumer will never see its completions (its EVD is null) is
//! reclaimed here, once, before the answer is DAT_INSUFFICIENT_RESOURCES.

use super::state::EpState;
use super::{Ep, Hot};
use crate::error::{DatError, DatResult, ReturnType, Subtype};
use crate::handle::EpHandle;
use crate::ia::Ia;
use crate::lmr::table::LmrTable;
use crate::provider::{Provider, QueueFull, QueuePair, RequestFlags, RequestOp};
use crate::segment::{RmrTriplet, Scope, Segment, check, pieces, pieces_up_to};
use crate::types::{CompletionFlags, DtoCookie, MemPrivFlags};

/// A request as the consumer names it.
#[derive(Clone, Copy)]
enum Request {
    Send,
    Write(RmrTriplet),
    Read(RmrTriplet),
}

impl Request {
    /// The subtype that names completion_flags in the C prototype.
    const fn flags_argument(self) -> Subtype {
        match self {
            Self::Send => Subtype::Arg5,
            Self::Write(_) | Self::Read(_) => Subtype::Arg6,
        }
    }

    const fn max_iov(self, hot: &Hot) -> u32 {
        match self {
            Self::Send => hot.max_request_iov,
            Self::Write(_) => hot.max_write_iov,
            Self::Read(_) => hot.max_read_iov,
        }
    }
}

impl<P: Provider> Ia<P> {
    /// Sends the bytes of `iov` as one message.
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
        match self.post_request(ep, iov, Request::Send, cookie, flags) {
            Ok(()) => Ok(()),
            Err(error) => self.post_request_again(ep, iov, Request::Send, cookie, flags, error),
        }
    }

    /// Writes the bytes of `iov` to the peer's memory.
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
        match self.post_request(ep, iov, Request::Write(*remote), cookie, flags) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.post_request_again(ep, iov, Request::Write(*remote), cookie, flags, error)
            }
        }
    }

    /// Reads the peer's memory `remote`, all of it, into `iov`.
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
        match self.post_request(ep, iov, Request::Read(*remote), cookie, flags) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.post_request_again(ep, iov, Request::Read(*remote), cookie, flags, error)
            }
        }
    }

    /// Posts a buffer for one incoming message. Legal in every state.
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
            Err(error) => self.post_recv_again(ep, iov, cookie, flags, error),
        }
    }

    #[inline(always)]
    fn post_request<S: Segment>(
        &mut self,
        handle: EpHandle,
        iov: &[S],
        request: Request,
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        if handle.ia != self.id {
            return Err(foreign_ep());
        }
        let ep = self.eps.get_mut(handle.key).ok_or_else(foreign_ep)?;
        if ep.hot.state != EpState::Connected {
            return post_unconnected(ep, &self.lmrs, iov, request, cookie, flags);
        }
        post_checked(ep, &self.lmrs, iov, request, cookie, flags)
    }

    #[inline(always)]
    fn post_recv<S: Segment>(
        &mut self,
        handle: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        if handle.ia != self.id {
            return Err(foreign_ep());
        }
        let ep = self.eps.get_mut(handle.key).ok_or_else(foreign_ep)?;
        if ep.hot.srq.is_some() {
            return Err(refuse_srq());
        }
        let qp = ep.qp.as_mut().ok_or_else(refuse_unready)?;
        if iov.len() > ep.hot.max_recv_iov as usize {
            return Err(refuse_iov());
        }
        if flags.bits() & ep.hot.recv_flags_refused != 0 {
            return Err(refuse_flags(Subtype::Arg5));
        }
        check(
            iov,
            Scope {
                lmrs: &self.lmrs,
                pz: ep.hot.pz,
                need: MemPrivFlags::LOCAL_WRITE,
            },
        )?;
        let unsignalled = flags.contains(CompletionFlags::UNSIGNALLED);
        match iov {
            [one] if one.bytes() != 0 => {
                qp.post_recv(core::iter::once(one.data()), cookie, unsignalled)
            }
            _ => qp.post_recv(pieces(iov), cookie, unsignalled),
        }
        .map_err(|QueueFull| refuse_full())
    }

    /// The second and last try of a request that found no room.
    #[cold]
    #[inline(never)]
    fn post_request_again<S: Segment>(
        &mut self,
        ep: EpHandle,
        iov: &[S],
        request: Request,
        cookie: DtoCookie,
        flags: CompletionFlags,
        error: DatError,
    ) -> DatResult<()> {
        if !self.reclaim(ep, error) {
            return Err(error);
        }
        self.post_request(ep, iov, request, cookie, flags)
    }

    #[cold]
    #[inline(never)]
    fn post_recv_again<S: Segment>(
        &mut self,
        ep: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        flags: CompletionFlags,
        error: DatError,
    ) -> DatResult<()> {
        if !self.reclaim(ep, error) {
            return Err(error);
        }
        self.post_recv(ep, iov, cookie, flags)
    }

    /// Makes room in an endpoint whose completions nobody else takes. True: it is worth another try.
    fn reclaim(&mut self, ep: EpHandle, error: DatError) -> bool {
        error.return_type() == ReturnType::InsufficientResources
            && self.eps.get(ep.key).is_some_and(|ep| ep.discard.is_some())
            && {
                let some = self.drain_discard(ep.key);
                self.settle_effects();
                some
            }
    }
}

/// A request in any other state than CONNECTED: flushed by the device in DISCONNECTED, otherwise
/// refused.
#[cold]
#[inline(never)]
fn post_unconnected<P: Provider, S: Segment>(
    ep: &mut Ep<P>,
    lmrs: &LmrTable,
    iov: &[S],
    request: Request,
    cookie: DtoCookie,
    flags: CompletionFlags,
) -> DatResult<()> {
    if ep.hot.state != EpState::Disconnected {
        return Err(ep.hot.state.refuse());
    }
    post_checked(ep, lmrs, iov, request, cookie, flags)?;
    ep.posted_after_marker = ep.posted_after_marker.saturating_add(1);
    Ok(())
}

#[inline(always)]
fn post_checked<P: Provider, S: Segment>(
    ep: &mut Ep<P>,
    lmrs: &LmrTable,
    iov: &[S],
    request: Request,
    cookie: DtoCookie,
    flags: CompletionFlags,
) -> DatResult<()> {
    let hot = &mut ep.hot;
    let Some(qp) = &mut ep.qp else {
        return Err(refuse_unready());
    };
    if iov.len() > request.max_iov(hot) as usize {
        return Err(refuse_iov());
    }
    if flags.bits() & hot.request_flags_refused != 0 {
        return Err(refuse_flags(request.flags_argument()));
    }
    let need = match request {
        Request::Send | Request::Write(_) => MemPrivFlags::LOCAL_READ,
        Request::Read(_) => MemPrivFlags::LOCAL_WRITE,
    };
    let total = check(
        iov,
        Scope {
            lmrs,
            pz: hot.pz,
            need,
        },
    )?;
    let op = match request {
        Request::Send => {
            if total > hot.max_message_size {
                return Err(refuse_long("the message is longer than max_message_size"));
            }
            RequestOp::Send
        }
        Request::Write(remote) => {
            if total > hot.max_rdma_size {
                return Err(refuse_long("the transfer is longer than max_rdma_size"));
            }
            if total > remote.segment_length {
                return Err(refuse_length());
            }
            RequestOp::RdmaWrite {
                address: remote.target_address,
                rmr_context: remote.rmr_context,
            }
        }
        Request::Read(remote) => {
            if remote.segment_length > hot.max_rdma_size {
                return Err(refuse_long("the transfer is longer than max_rdma_size"));
            }
            if total < remote.segment_length {
                return Err(refuse_length());
            }
            if hot.max_reads_out == 0 {
                return Err(refuse_reads());
            }
            RequestOp::RdmaRead {
                address: remote.target_address,
                rmr_context: remote.rmr_context,
            }
        }
    };
    let suppress = flags.contains(CompletionFlags::SUPPRESS);
    let how = RequestFlags {
        suppress,
        solicited: matches!(request, Request::Send)
            && flags.contains(CompletionFlags::SOLICITED_WAIT),
        fence: flags.contains(CompletionFlags::BARRIER_FENCE),
        unsignalled: flags.contains(CompletionFlags::UNSIGNALLED),
    };
    let posted = match (request, iov) {
        (Request::Send | Request::Write(_), [one]) if one.bytes() != 0 => {
            qp.post_request(op, core::iter::once(one.data()), cookie, how)
        }
        (Request::Send | Request::Write(_), _) => qp.post_request(op, pieces(iov), cookie, how),
        (Request::Read(remote), _) => {
            qp.post_request(op, pieces_up_to(iov, remote.segment_length), cookie, how)
        }
    };
    if posted.is_err() {
        return Err(refuse_full());
    }
    hot.last_suppressed = suppress;
    Ok(())
}

#[cold]
#[inline(never)]
pub(crate) fn foreign_ep() -> DatError {
    DatError::handle(Subtype::HandleEp).because("no such endpoint in this IA")
}

#[cold]
#[inline(never)]
fn refuse_srq() -> DatError {
    DatError::state(Subtype::StateSrqInUse).because("the endpoint takes its buffers from an SRQ")
}

#[cold]
#[inline(never)]
fn refuse_unready() -> DatError {
    DatError::state(Subtype::StateEpNotReady).because("the endpoint has no PZ")
}

#[cold]
#[inline(never)]
fn refuse_iov() -> DatError {
    DatError::parameter(Subtype::Arg2).because("more segments than the endpoint allows")
}

#[cold]
#[inline(never)]
fn refuse_flags(argument: Subtype) -> DatError {
    DatError::parameter(argument).because("completion_flags: unknown, not for this call, or UNSIGNALLED without the endpoint's attribute")
}

#[cold]
#[inline(never)]
fn refuse_long(detail: &'static str) -> DatError {
    DatError::parameter(Subtype::None).because(detail)
}

#[cold]
#[inline(never)]
fn refuse_length() -> DatError {
    DatError::new(ReturnType::LengthError, Subtype::None)
        .because("the destination is shorter than the source")
}

#[cold]
#[inline(never)]
fn refuse_reads() -> DatError {
    DatError::resources(Subtype::ResourceTep).because("the endpoint's max_rdma_read_out is 0")
}

#[cold]
#[inline(never)]
fn refuse_full() -> DatError {
    DatError::resources(Subtype::ResourceTep)
        .because("as many DTOs are outstanding as the endpoint allows")
}
