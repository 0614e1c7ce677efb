//! Requests that DAT 1.2 does not have and InfiniBand does (IBTA volume 1, chapter 9 "Transport layer"): immediate data, invalidation of
//! a peer's key, atomic operations of 8 bytes.
//!
//! They are requests like the others: checked in the same order, completed on the request EVD, and those that are Sends or RDMA Writes
//! but for four bytes more are posted at once like these. What arrives with a message is told by the receive's completion
//! ([`DtoDetail`](crate::DtoDetail)).
//!
//! Atomic operations are limited by the depth of RDMA Reads in both directions, since the responder keeps what it answered for
//! either (`max_rdma_read_in`, `max_rdma_read_out`).

use super::post::{Post, posts, sends, writes};
use super::{AtOnce, Bounds};
use crate::error::{DatError, DatResult};
use crate::handle::EpHandle;
use crate::ia::Ia;
use crate::provider::{Provider, RequestOp};
use crate::refusal::Refusal;
use crate::segment::{RmrTriplet, Segment};
use crate::types::{CompletionFlags, DtoCookie, MemPrivFlags};

/// Bytes an atomic operation works on.
const ATOMIC_BYTES: u64 = 8;

/// A Send with immediate data.
#[derive(Clone, Copy, Debug)]
pub struct SendImmediate(pub u32);
/// A Send that invalidates this RMR context of the peer's.
#[derive(Clone, Copy, Debug)]
pub struct SendInvalidate(pub u32);
/// An RDMA Write to the peer's memory with immediate data.
#[derive(Clone, Copy, Debug)]
pub struct RdmaWriteImmediate<'a>(pub &'a RmrTriplet, pub u32);
/// Adds to a number in the peer's memory, and tells what it was.
#[derive(Clone, Copy, Debug)]
pub struct FetchAdd<'a> {
    /// The number: 8 bytes at a multiple of 8, in the order of the peer's host.
    pub remote: &'a RmrTriplet,
    /// What to add, modulo 2^64.
    pub add: u64,
}
/// Replaces a number in the peer's memory if it is as expected, and tells what it was.
#[derive(Clone, Copy, Debug)]
pub struct CompareSwap<'a> {
    /// The number: 8 bytes at a multiple of 8, in the order of the peer's host.
    pub remote: &'a RmrTriplet,
    /// What is expected.
    pub compare: u64,
    /// What replaces it.
    pub swap: u64,
}

posts! {
    SendImmediate: Ia::request_at_once, request_in_order;
    SendInvalidate: Ia::request_at_once, request_in_order;
    RdmaWriteImmediate<'_>: Ia::request_at_once, request_in_order;
    FetchAdd<'_>: Ia::request_at_once, request_in_order;
    CompareSwap<'_>: Ia::request_at_once, request_in_order;
}

sends! {
    SendImmediate: |send: SendImmediate| RequestOp::SendImmediate(send.0);
    SendInvalidate: |send: SendInvalidate| RequestOp::SendInvalidate { rmr_context: send.0 };
}

writes! {
    RdmaWriteImmediate<'_>: true, |write: RdmaWriteImmediate<'_>| RequestOp::RdmaWriteImmediate {
        address: write.0.target_address,
        rmr_context: write.0.rmr_context,
        immediate: write.1,
    };
}

macro_rules! atomics {
    ($($what:ty: $op:expr;)*) => {$(
        impl super::post::Operation for $what {
            const RIGHT: MemPrivFlags = MemPrivFlags::LOCAL_WRITE;
            const BAD_FLAGS: Refusal = Refusal::RdmaFlags;
            const SOLICITS: bool = false;
            const IS_ATOMIC: bool = true;

            fn max_iov(_bounds: &Bounds) -> u32 {
                1
            }

            // Everything about them is looked at in order.
            #[inline(always)]
            fn fits(self, _most: &AtOnce, _one: &impl Segment) -> bool {
                false
            }

            fn admit(self, bounds: &Bounds, total: u64) -> Result<(), Refusal> {
                if total != ATOMIC_BYTES || self.remote.segment_length < ATOMIC_BYTES {
                    return Err(Refusal::AtomicResult);
                }
                if !self.remote.target_address.is_multiple_of(ATOMIC_BYTES) {
                    return Err(Refusal::AtomicAddress);
                }
                if bounds.max_reads_out == 0 {
                    return Err(Refusal::NoReads);
                }
                Ok(())
            }

            fn op(self) -> RequestOp {
                ($op)(self)
            }

            fn limit(self) -> Option<u64> {
                None
            }
        }
    )*};
}

atomics! {
    FetchAdd<'_>: |fetch: FetchAdd<'_>| RequestOp::FetchAdd {
        address: fetch.remote.target_address,
        rmr_context: fetch.remote.rmr_context,
        add: fetch.add,
    };
    CompareSwap<'_>: |swap: CompareSwap<'_>| RequestOp::CompareSwap {
        address: swap.remote.target_address,
        rmr_context: swap.remote.rmr_context,
        compare: swap.compare,
        swap: swap.swap,
    };
}

/// The segments of an atomic operation are its result's.
#[cold]
fn of_result(error: DatError) -> DatError {
    if error.argument() == Some("iov") {
        error.naming("result")
    } else {
        error
    }
}

impl<P: Provider> Ia<P> {
    /// Whether the device has atomic operations of 8 bytes, and regions may be registered with [`MemPrivFlags::REMOTE_ATOMIC`].
    #[must_use]
    pub fn has_atomics(&self) -> bool {
        self.provider.limits().atomics
    }

    /// Sends the bytes of `iov` as one message with immediate data, which the completion of the peer's receive tells.
    ///
    /// # Errors
    /// As [`Ia::ep_post_send`].
    #[inline]
    pub fn ep_post_send_immediate<S: Segment>(
        &mut self,
        ep: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        immediate: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        SendImmediate(immediate).post(self, ep, iov, cookie, flags)
    }

    /// Sends the bytes of `iov` as one message that takes a context of the peer's from the memory it stands for, before the peer's
    /// receive completes, which tells the context. It must be one that the peer lets be invalidated: a window bound with
    /// [`MemPrivFlags::REMOTE_INVALIDATE`], or what a kernel has registered fast. Any other breaks the connection
    /// (DAT_DTO_ERR_REMOTE_ACCESS).
    ///
    /// # Errors
    /// As [`Ia::ep_post_send`].
    #[inline]
    pub fn ep_post_send_invalidate<S: Segment>(
        &mut self,
        ep: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        rmr_context: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        SendInvalidate(rmr_context).post(self, ep, iov, cookie, flags)
    }

    /// Writes the bytes of `iov` to the peer's memory and then completes a receive of the peer's, which tells the immediate data and
    /// how many bytes were written. SOLICITED_WAIT means what it means for a Send.
    ///
    /// # Errors
    /// As [`Ia::ep_post_rdma_write`].
    #[inline]
    pub fn ep_post_rdma_write_immediate<S: Segment>(
        &mut self,
        ep: EpHandle,
        iov: &[S],
        cookie: DtoCookie,
        remote: &RmrTriplet,
        immediate: u32,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        RdmaWriteImmediate(remote, immediate).post(self, ep, iov, cookie, flags)
    }

    /// Adds `add` to the number at the peer, atomically towards other such operations of the peer's device. What it was is in `result`,
    /// 8 bytes, when the request completes.
    ///
    /// # Errors
    /// As [`Ia::ep_post_rdma_read`], with one segment. DAT_LENGTH_ERROR: `result` has not 8 bytes, or `remote` has less.
    /// DAT_INVALID_PARAMETER|ARG5: the remote address is no multiple of 8. DAT_MODEL_NOT_SUPPORTED: not [`Ia::has_atomics`].
    pub fn ep_post_fetch_add<S: Segment>(
        &mut self,
        ep: EpHandle,
        result: &[S],
        cookie: DtoCookie,
        remote: &RmrTriplet,
        add: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        FetchAdd { remote, add }
            .post(self, ep, result, cookie, flags)
            .map_err(of_result)
    }

    /// Replaces the number at the peer by `swap` if it is `compare`, likewise.
    ///
    /// # Errors
    /// As [`Ia::ep_post_fetch_add`].
    #[expect(clippy::too_many_arguments, reason = "an RDMA post and two operands")]
    pub fn ep_post_compare_swap<S: Segment>(
        &mut self,
        ep: EpHandle,
        result: &[S],
        cookie: DtoCookie,
        remote: &RmrTriplet,
        compare: u64,
        swap: u64,
        flags: CompletionFlags,
    ) -> DatResult<()> {
        let swap = CompareSwap {
            remote,
            compare,
            swap,
        };
        swap.post(self, ep, result, cookie, flags)
            .map_err(of_result)
    }
}
