//! Posts for a facade that knows endpoints by names of its own.
//!
//! A facade, the C ABI, has handles of its own kind and a table from those to ours. It gives every endpoint the name it
//! has there ([`Ia::ep_set_name`]), a number that no two endpoints of the process ever share. Then a post need not turn one
//! handle into the other and have both checked: the place says where to look, and the name whether who is there is meant.
//! A completion says the name too ([`Ia::evd_dequeue_named`]).
//!
//! The posts here are for what most posts are, one segment and no flags, with the checks of the calls they stand for.
//! They say yes or no, and no means that nothing has happened: the call of the full name then says why, or posts it after all.

use super::Ep;
use super::post::{Operation, Read, Send, Write};
use super::state::EpState;
use crate::error::DatResult;
use crate::handle::EpHandle;
use crate::ia::Ia;
use crate::provider::{DataSegment, Provider, QueuePair, RequestFlags};
use crate::segment::{LmrTriplet, RmrTriplet, Scope, Segment, sealed::Check};
use crate::types::{DtoCookie, MemPrivFlags};

impl<P: Provider> Ia<P> {
    /// Gives an endpoint the name a facade has for it: not 0, and never that of another endpoint of the process.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP.
    pub fn ep_set_name(&mut self, ep: EpHandle, name: u64) -> DatResult<()> {
        self.ep(ep)?;
        self.eps[ep.key].name = name;
        Ok(())
    }

    /// [`Ia::ep_post_send`] of one segment without flags, to the endpoint `name` at [`EpHandle::place`]. Whether it was posted.
    #[inline(always)]
    pub fn named_post_send(
        &mut self,
        (place, name): (u32, u64),
        segment: &LmrTriplet,
        cookie: DtoCookie,
    ) -> bool {
        self.named_post(place, name, segment, Send, cookie)
    }

    /// [`Ia::ep_post_rdma_write`], likewise.
    #[inline(always)]
    pub fn named_post_rdma_write(
        &mut self,
        (place, name): (u32, u64),
        segment: &LmrTriplet,
        cookie: DtoCookie,
        remote: &RmrTriplet,
    ) -> bool {
        self.named_post(place, name, segment, Write(remote), cookie)
    }

    /// [`Ia::ep_post_rdma_read`], likewise.
    #[inline(always)]
    pub fn named_post_rdma_read(
        &mut self,
        (place, name): (u32, u64),
        segment: &LmrTriplet,
        cookie: DtoCookie,
        remote: &RmrTriplet,
    ) -> bool {
        self.named_post(place, name, segment, Read(remote), cookie)
    }

    /// [`Ia::ep_post_recv`], likewise.
    #[inline(always)]
    pub fn named_post_recv(
        &mut self,
        (place, name): (u32, u64),
        segment: &LmrTriplet,
        cookie: DtoCookie,
    ) -> bool {
        let lmrs = &self.lmrs;
        if let Some(ep) = named(self.eps.at_mut(place), name)
            && ep.hot.srq.is_none()
            && let Some(qp) = &mut ep.qp
            && ep.hot.max_recv_iov != 0
            && segment.bytes() != 0
        {
            let scope = Scope {
                lmrs,
                pz: ep.hot.pz,
                need: MemPrivFlags::LOCAL_WRITE,
            };
            return segment.check(scope).is_ok()
                && qp.try_post_recv(segment.data(), cookie).is_ok();
        }
        false
    }

    #[inline(always)]
    fn named_post<O: Operation>(
        &mut self,
        place: u32,
        name: u64,
        segment: &LmrTriplet,
        operation: O,
        cookie: DtoCookie,
    ) -> bool {
        const NO_FLAGS: RequestFlags = RequestFlags {
            suppress: false,
            solicited: false,
            fence: false,
            unsignalled: false,
        };
        let lmrs = &self.lmrs;
        if let Some(ep) = named(self.eps.at_mut(place), name)
            && ep.hot.state == EpState::Connected
            && let Some(qp) = &mut ep.qp
            && (O::BOUNDS_MEMORY || O::max_iov(&ep.hot) != 0)
            && segment.bytes() != 0
            && operation.limit() != Some(0)
        {
            let scope = Scope {
                lmrs,
                pz: ep.hot.pz,
                need: O::RIGHT,
            };
            let checked = if O::BOUNDS_MEMORY {
                segment.check_bounded(scope)
            } else {
                segment.check(scope)
            };
            if checked.is_err() || operation.admit(&ep.hot, segment.bytes()).is_err() {
                return false;
            }
            let bytes = operation.data(segment).bytes;
            let what = || {
                let data = operation.data(segment);
                (operation.op(), DataSegment { bytes, ..data })
            };
            return qp.try_post_request(bytes, cookie, NO_FLAGS, what).is_ok();
        }
        false
    }
}

/// The endpoint of a place, if it has this name.
#[inline(always)]
fn named<K, P: Provider>(at: Option<(K, &mut Ep<P>)>, name: u64) -> Option<&mut Ep<P>> {
    at.map(|(_, ep)| ep).filter(|ep| ep.name == name)
}
