//! Requests and receives, as an endpoint and its queue pair handle them.
//!
//! Most posts are correct, have one segment, and go to a connected endpoint. For these posts, [`Ep::request_at_once`]
//! and [`Ep::recv_at_once`] are the fast path: they make the checks in the fastest order, and return only whether they
//! posted. The ordered path handles all other posts and finds the error.

use super::{AtOnce, Bounds, Ep};
use crate::object::lmr::segment::{RmrTriplet, Scope, Segment};
use crate::object::lmr::table::LmrTable;
use crate::provider::{
    DataSegment, MAX_SEGMENT_BYTES, Provider, QueuePair, RequestFlags, RequestOp,
};
use crate::refusal::Refusal;
use crate::types::{CompletionFlags, DtoCookie, MemPrivFlags};

/// A Send (`dat_ep_post_send`).
#[derive(Clone, Copy, Debug)]
pub struct Send;
/// An RDMA Write to the peer's memory (`dat_ep_post_rdma_write`).
#[derive(Clone, Copy, Debug)]
pub struct RdmaWrite<'a>(pub &'a RmrTriplet);
/// An RDMA Read of the peer's memory (`dat_ep_post_rdma_read`).
#[derive(Clone, Copy, Debug)]
pub struct RdmaRead<'a>(pub &'a RmrTriplet);
/// A receive (`dat_ep_post_recv`).
#[derive(Clone, Copy, Debug)]
pub struct Recv;

impl<P: Provider> Ep<P> {
    /// Posts a request if it has one segment and passes all checks, the endpoint is connected, and the queue has a free
    /// slot. Otherwise does nothing and returns false. Without `RING` the caller must ring the doorbell later, by
    /// [`QueuePair::ring_last`].
    #[inline(always)]
    pub(crate) fn request_at_once<const RING: bool, S: Segment, O: Operation>(
        &mut self,
        lmrs: &LmrTable,
        iov: &[S],
        operation: O,
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> bool {
        if let [one] = iov
            && flags.bits() & self.hot.request_flags_refused == 0
            && let Some(qp) = self.qp.get_mut()
            && operation.fits(&self.hot.at_once, one)
            && one.is_good(Scope {
                lmrs,
                pz: self.hot.pz,
                need: O::RIGHT,
            })
        {
            let (op, data) = (operation.op(), operation.data(one));
            // Flags that are not known at compile time are mostly empty at run time. In that case no flag value is
            // computed.
            let posted = if flags.is_empty() {
                qp.post_one::<RING>(op, data, cookie.0, RequestFlags::NONE)
            } else {
                qp.post_one::<RING>(op, data, cookie.0, request_flags::<O>(flags))
            };
            return posted.is_ok();
        }
        false
    }
}

impl<P: Provider> Ep<P> {
    /// Posts a receive if it has one segment and passes all checks. Otherwise does nothing and returns false. Without
    /// `PUBLISH` the caller must update the doorbell record later, by [`QueuePair::publish_recvs`].
    #[inline(always)]
    pub(crate) fn recv_at_once<const PUBLISH: bool, S: Segment>(
        &mut self,
        lmrs: &LmrTable,
        iov: &[S],
        cookie: DtoCookie,
        flags: CompletionFlags,
    ) -> bool {
        let unsignalled = flags.contains(CompletionFlags::UNSIGNALLED);
        if let [one] = iov
            && flags.bits() & self.hot.recv_flags_refused == 0
            && let Some(qp) = self.qp.get_mut()
            && one.has_up_to(self.hot.at_once.recv)
            && one.is_good(Scope {
                lmrs,
                pz: self.hot.pz,
                need: MemPrivFlags::LOCAL_WRITE,
            })
        {
            return qp
                .post_one_recv::<PUBLISH>(one.data(), cookie.0, unsignalled)
                .is_ok();
        }
        false
    }
}

/// Converts DAT's completion flags to the provider's request flags.
#[inline(always)]
pub(crate) fn request_flags<O: Operation>(flags: CompletionFlags) -> RequestFlags {
    RequestFlags {
        suppress: flags.contains(CompletionFlags::SUPPRESS),
        solicited: O::SOLICITS && flags.contains(CompletionFlags::SOLICITED_WAIT),
        fence: flags.contains(CompletionFlags::BARRIER_FENCE),
        unsignalled: flags.contains(CompletionFlags::UNSIGNALLED),
    }
}

/// A request as the consumer states it, with the properties of its kind.
pub(crate) trait Operation: Copy {
    /// Right that the request needs on local memory.
    const RIGHT: MemPrivFlags;
    /// Refusal of a request with flags that are not allowed.
    const BAD_FLAGS: Refusal;
    /// True if SOLICITED_WAIT has an effect for this kind of request.
    const SOLICITS: bool;
    /// True if the request needs a device with atomic operations.
    const IS_ATOMIC: bool = false;

    /// Returns the maximum number of segments of this kind of request.
    fn max_iov(bounds: &Bounds) -> u32;

    /// Returns whether the request can take the fast path with this segment. This requires that the endpoint is
    /// connected, that one segment is allowed, that the segment has bytes, and that [`Operation::admit`] would succeed
    /// ([`AtOnce`]).
    fn fits(self, most: &AtOnce, one: &impl Segment) -> bool;

    /// Checks the lengths of a request; `total` is the length of its local memory in bytes.
    fn admit(self, bounds: &Bounds, total: u64) -> Result<(), Refusal>;

    /// Returns the operation for the provider.
    fn op(self) -> RequestOp;

    /// Returns the number of bytes of local memory to use; `None` means all.
    fn limit(self) -> Option<u64>;

    /// Returns the only segment of an admitted request, shortened to the bytes that the request uses.
    #[inline(always)]
    fn data<S: Segment>(self, one: &S) -> DataSegment {
        let mut data = one.data();
        if let Some(limit) = self.limit() {
            // CAST: `limit` is not more than the segment's length, a `u32`: `fits` or `admit` has compared them.
            #[expect(clippy::cast_possible_truncation, reason = "at most a u32")]
            {
                data.bytes = limit as u32;
            }
        }
        data
    }
}

/// Implements [`Operation`] for Sends, with or without immediate data or invalidation.
macro_rules! sends {
    ($($what:ty: $op:expr;)*) => {$(
        impl $crate::object::ep::request::Operation for $what {
            const RIGHT: MemPrivFlags = MemPrivFlags::LOCAL_READ;
            const BAD_FLAGS: Refusal = Refusal::Flags;
            const SOLICITS: bool = true;

            #[inline(always)]
            fn max_iov(bounds: &Bounds) -> u32 {
                bounds.max_request_iov
            }

            #[inline(always)]
            fn fits(self, most: &AtOnce, one: &impl Segment) -> bool {
                one.has_up_to(most.send)
            }

            #[inline(always)]
            fn admit(self, bounds: &Bounds, total: u64) -> Result<(), Refusal> {
                if total > bounds.max_send_bytes {
                    return Err(Refusal::LongMessage);
                }
                Ok(())
            }

            #[inline(always)]
            fn op(self) -> RequestOp {
                ($op)(self)
            }

            #[inline(always)]
            fn limit(self) -> Option<u64> {
                None
            }
        }
    )*};
}

/// Implements [`Operation`] for RDMA Writes, with or without immediate data. The first field of the type is the target.
macro_rules! writes {
    ($($what:ty: $solicits:literal, $op:expr;)*) => {$(
        impl $crate::object::ep::request::Operation for $what {
            const RIGHT: MemPrivFlags = MemPrivFlags::LOCAL_READ;
            const BAD_FLAGS: Refusal = Refusal::RdmaFlags;
            const SOLICITS: bool = $solicits;

            #[inline(always)]
            fn max_iov(bounds: &Bounds) -> u32 {
                bounds.max_write_iov
            }

            #[inline(always)]
            fn fits(self, most: &AtOnce, one: &impl Segment) -> bool {
                one.has_up_to(most.write) && one.bytes() <= self.0.segment_length
            }

            #[inline(always)]
            fn admit(self, bounds: &Bounds, total: u64) -> Result<(), Refusal> {
                if total > bounds.max_write_bytes {
                    return Err(Refusal::LongTransfer);
                }
                if total > self.0.segment_length {
                    return Err(Refusal::Length);
                }
                Ok(())
            }

            #[inline(always)]
            fn op(self) -> RequestOp {
                ($op)(self)
            }

            #[inline(always)]
            fn limit(self) -> Option<u64> {
                None
            }
        }
    )*};
}

pub(crate) use {sends, writes};

sends! {
    Send: |_| RequestOp::Send;
}

writes! {
    RdmaWrite<'_>: false, |write: RdmaWrite<'_>| RequestOp::RdmaWrite {
        address: write.0.target_address,
        rmr_context: write.0.rmr_context,
    };
}

impl Operation for RdmaRead<'_> {
    const RIGHT: MemPrivFlags = MemPrivFlags::LOCAL_WRITE;
    const BAD_FLAGS: Refusal = Refusal::RdmaFlags;
    const SOLICITS: bool = false;

    #[inline(always)]
    fn max_iov(bounds: &Bounds) -> u32 {
        bounds.max_read_iov
    }

    // The sink may be longer than the source, so the check of the sink's length does not limit the source.
    #[inline(always)]
    fn fits(self, most: &AtOnce, one: &impl Segment) -> bool {
        let (wanted, bytes) = (self.0.segment_length, one.bytes());
        wanted.wrapping_sub(1) < u64::from(most.read)
            && bytes >= wanted
            && bytes <= MAX_SEGMENT_BYTES
    }

    #[inline(always)]
    fn admit(self, bounds: &Bounds, total: u64) -> Result<(), Refusal> {
        if self.0.segment_length > bounds.max_read_bytes {
            return Err(Refusal::LongTransfer);
        }
        if total < self.0.segment_length {
            return Err(Refusal::Length);
        }
        if bounds.max_reads_out == 0 {
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
