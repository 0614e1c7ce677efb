//! Requests that InfiniBand has and DAT 1.2 lacks (IBTA volume 1, chapter 9 "Transport layer"): immediate data,
//! invalidation of a peer's key, atomic operations of 8 bytes.
//!
//! These requests are checked in the same order as the others, and complete on the request EVD. Sends and RDMA Writes
//! with immediate data or invalidation use the fast path, as plain ones do. The completion of the peer's receive
//! reports the immediate data or the invalidated key ([`DtoDetail`](crate::DtoDetail)).
//!
//! The limits on outstanding RDMA Reads (`max_rdma_read_in`, `max_rdma_read_out`) also apply to atomic operations,
//! because the responder keeps its responses to both.

use super::request::{sends, writes};
use super::{AtOnce, Bounds};
use crate::object::lmr::segment::{RmrTriplet, Segment};
use crate::provider::RequestOp;
use crate::refusal::Refusal;
use crate::types::MemPrivFlags;

/// Length of the operand of an atomic operation, in bytes.
const ATOMIC_BYTES: u64 = 8;

/// A Send with immediate data.
#[derive(Clone, Copy, Debug)]
pub struct SendImmediate(pub u32);
/// A Send that invalidates this RMR context of the peer.
#[derive(Clone, Copy, Debug)]
pub struct SendInvalidate(pub u32);
/// An RDMA Write with immediate data.
#[derive(Clone, Copy, Debug)]
pub struct RdmaWriteImmediate<'a>(pub &'a RmrTriplet, pub u32);
/// Adds to a number in the peer's memory, and returns the old value.
#[derive(Clone, Copy, Debug)]
pub struct FetchAdd<'a> {
    /// Location of the number: 8 bytes at a multiple of 8, in the byte order of the peer's host.
    pub remote: &'a RmrTriplet,
    /// The summand, modulo 2^64.
    pub add: u64,
}
/// Replaces a number in the peer's memory if it has the expected value, and returns the old value.
#[derive(Clone, Copy, Debug)]
pub struct CompareSwap<'a> {
    /// Location of the number: 8 bytes at a multiple of 8, in the byte order of the peer's host.
    pub remote: &'a RmrTriplet,
    /// The expected value.
    pub compare: u64,
    /// The new value.
    pub swap: u64,
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
        impl super::request::Operation for $what {
            const RIGHT: MemPrivFlags = MemPrivFlags::LOCAL_WRITE;
            const BAD_FLAGS: Refusal = Refusal::RdmaFlags;
            const SOLICITS: bool = false;
            const IS_ATOMIC: bool = true;

            fn max_iov(_bounds: &Bounds) -> u32 {
                1
            }

            // An atomic operation never uses the fast path.
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
