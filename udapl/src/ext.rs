//! What DAT 1.2 does not have and the card does.
//!
//! | What | Posted by | Told |
//! |---|---|---|
//! | Send with immediate data | [`Ia::ep_post_send_immediate`](dat_core::Ia::ep_post_send_immediate), [`SendImmediate`] | [`DtoDetail::SendImmediate`] at the peer's receive |
//! | RDMA Write with immediate data | [`Ia::ep_post_rdma_write_immediate`](dat_core::Ia::ep_post_rdma_write_immediate), [`RdmaWriteImmediate`] | [`DtoDetail::WriteImmediate`] at the peer's receive |
//! | Send with invalidate | [`Ia::ep_post_send_invalidate`](dat_core::Ia::ep_post_send_invalidate), [`SendInvalidate`] | [`DtoDetail::Invalidated`] at the peer's receive |
//! | fetch-and-add | [`Ia::ep_post_fetch_add`](dat_core::Ia::ep_post_fetch_add), [`FetchAdd`] | what it was, in the result's memory |
//! | compare-and-swap | [`Ia::ep_post_compare_swap`](dat_core::Ia::ep_post_compare_swap), [`CompareSwap`] | what it was, in the result's memory |
//! | private data of a rejection | [`Ia::cr_reject_with`](dat_core::Ia::cr_reject_with) | PEER_REJECTED, and [`Ia::ep_private_data`](dat_core::Ia::ep_private_data) |
//!
//! Each has its place in a [`Batch`](dat_core::Batch) too, and the first and the third take data that lies in no region
//! ([`Ia::ep_post_send_inline_immediate`](dat_core::Ia::ep_post_send_inline_immediate),
//! [`Ia::ep_post_send_inline_invalidate`](dat_core::Ia::ep_post_send_inline_invalidate)).
//!
//! A region is open to atomic operations if it was registered with [`REMOTE_ATOMIC`], on an adapter that has them
//! ([`Ia::has_atomics`](dat_core::Ia::has_atomics)); an RMR to invalidation if it was bound with [`REMOTE_INVALIDATE`].

pub use dat_core::DtoDetail;
pub use dat_core::post::{
    CompareSwap, FetchAdd, RdmaWriteImmediate, SendImmediate, SendInvalidate,
};

use dat_core::MemPrivFlags;

/// Peers may run atomic operations on a region.
pub const REMOTE_ATOMIC: MemPrivFlags = MemPrivFlags::REMOTE_ATOMIC;
/// Peers may invalidate the context of an RMR by a Send.
pub const REMOTE_INVALIDATE: MemPrivFlags = MemPrivFlags::REMOTE_INVALIDATE;
