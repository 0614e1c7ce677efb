//! Operations of the card that DAT 1.2 lacks.
//!
//! | Operation | Posted by | Reported by |
//! |---|---|---|
//! | Send with immediate data | [`Ia::ep_post_send_immediate`](dat_core::Ia::ep_post_send_immediate), [`SendImmediate`] | [`DtoDetail::SendImmediate`] at the peer's receive |
//! | RDMA Write with immediate data | [`Ia::ep_post_rdma_write_immediate`](dat_core::Ia::ep_post_rdma_write_immediate), [`RdmaWriteImmediate`] | [`DtoDetail::WriteImmediate`] at the peer's receive |
//! | Send with invalidate | [`Ia::ep_post_send_invalidate`](dat_core::Ia::ep_post_send_invalidate), [`SendInvalidate`] | [`DtoDetail::Invalidated`] at the peer's receive |
//! | fetch-and-add | [`Ia::ep_post_fetch_add`](dat_core::Ia::ep_post_fetch_add), [`FetchAdd`] | the previous value, in the local buffer |
//! | compare-and-swap | [`Ia::ep_post_compare_swap`](dat_core::Ia::ep_post_compare_swap), [`CompareSwap`] | the previous value, in the local buffer |
//! | private data of a rejection | [`Ia::cr_reject_with`](dat_core::Ia::cr_reject_with) | PEER_REJECTED, and [`Ia::ep_private_data`](dat_core::Ia::ep_private_data) |
//!
//! Each post also exists in a [`Batch`](dat_core::Batch). Send with immediate data and Send with invalidate can also
//! take inline data from unregistered memory
//! ([`Ia::ep_post_send_inline_immediate`](dat_core::Ia::ep_post_send_inline_immediate),
//! [`Ia::ep_post_send_inline_invalidate`](dat_core::Ia::ep_post_send_inline_invalidate)).
//!
//! Peers can run atomic operations on a region registered with [`REMOTE_ATOMIC`], if the adapter supports them
//! ([`Ia::has_atomics`](dat_core::Ia::has_atomics)). Peers can invalidate an RMR bound with [`REMOTE_INVALIDATE`].

pub use dat_core::DtoDetail;
pub use dat_core::post::{
    CompareSwap, FetchAdd, RdmaWriteImmediate, SendImmediate, SendInvalidate,
};

use dat_core::MemPrivFlags;

/// Peers may run atomic operations on a region.
pub const REMOTE_ATOMIC: MemPrivFlags = MemPrivFlags::REMOTE_ATOMIC;
/// Peers may invalidate an RMR context with a Send with invalidate.
pub const REMOTE_INVALIDATE: MemPrivFlags = MemPrivFlags::REMOTE_INVALIDATE;
