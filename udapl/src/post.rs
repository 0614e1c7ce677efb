//! Posts as values, among them operations of the card that DAT 1.2 lacks.
//!
//! Most programs post by the methods of the [`Ia`](crate::Ia) and of a [`Batch`](crate::endpoint::Batch). [`Post`] is
//! for code that holds an operation as a value and chooses the endpoint later.
//!
//! | Operation beyond DAT 1.2 | Posted by | Reported by |
//! |---|---|---|
//! | Send with immediate data | [`Ia::ep_post_send_immediate`], [`SendImmediate`] | [`DtoDetail::SendImmediate`] at the peer's receive |
//! | RDMA Write with immediate data | [`Ia::ep_post_rdma_write_immediate`], [`RdmaWriteImmediate`] | [`DtoDetail::WriteImmediate`] at the peer's receive |
//! | Send with invalidate | [`Ia::ep_post_send_invalidate`], [`SendInvalidate`] | [`DtoDetail::Invalidated`] at the peer's receive |
//! | fetch-and-add | [`Ia::ep_post_fetch_add`], [`FetchAdd`] | the previous value, in the local buffer |
//! | compare-and-swap | [`Ia::ep_post_compare_swap`], [`CompareSwap`] | the previous value, in the local buffer |
//!
//! Send with immediate data and Send with invalidate can also take inline data from unregistered memory
//! ([`Ia::ep_post_send_inline_immediate`], [`Ia::ep_post_send_inline_invalidate`]).
//!
//! Peers can run atomic operations on a region registered with [`MemPrivFlags::REMOTE_ATOMIC`], if the adapter
//! supports them ([`Ia::has_atomics`]). Peers can invalidate an RMR bound with [`MemPrivFlags::REMOTE_INVALIDATE`].
//!
//! [`Ia::ep_post_send_immediate`]: dat_core::Ia::ep_post_send_immediate
//! [`Ia::ep_post_rdma_write_immediate`]: dat_core::Ia::ep_post_rdma_write_immediate
//! [`Ia::ep_post_send_invalidate`]: dat_core::Ia::ep_post_send_invalidate
//! [`Ia::ep_post_fetch_add`]: dat_core::Ia::ep_post_fetch_add
//! [`Ia::ep_post_compare_swap`]: dat_core::Ia::ep_post_compare_swap
//! [`Ia::ep_post_send_inline_immediate`]: dat_core::Ia::ep_post_send_inline_immediate
//! [`Ia::ep_post_send_inline_invalidate`]: dat_core::Ia::ep_post_send_inline_invalidate
//! [`Ia::has_atomics`]: dat_core::Ia::has_atomics
//! [`DtoDetail::SendImmediate`]: crate::event::DtoDetail::SendImmediate
//! [`DtoDetail::WriteImmediate`]: crate::event::DtoDetail::WriteImmediate
//! [`DtoDetail::Invalidated`]: crate::event::DtoDetail::Invalidated
//! [`MemPrivFlags::REMOTE_ATOMIC`]: crate::MemPrivFlags::REMOTE_ATOMIC
//! [`MemPrivFlags::REMOTE_INVALIDATE`]: crate::MemPrivFlags::REMOTE_INVALIDATE

pub use dat_core::post::{
    CompareSwap, FetchAdd, Post, RdmaRead, RdmaWrite, RdmaWriteImmediate, Recv, Send,
    SendImmediate, SendInvalidate,
};
