//! Memory: allocation for DMA, registration, windows for peers, and protection zones.
//!
//! The device reaches only memory that was allocated for it or lent to it. [`alloc`](crate::alloc), [`alloc_aligned`]
//! and [`alloc_buffer`] allocate from the adapter's arena, [`pool`] from pages and a NUMA node of the program's choice.
//! [`LentMemory`] is memory that the program allocated itself; creating it is `unsafe`.
//!
//! A local memory region ([`LmrHandle`]) registers memory in a protection zone ([`PzHandle`]), with the rights of
//! [`MemPrivFlags`](crate::MemPrivFlags). A post names parts of a region: by an [`LmrSlice`], which is checked once, or
//! by an [`LmrTriplet`], DAT's three numbers. Peers reach a region, or a window of it ([`RmrHandle`]), by an
//! [`RmrTriplet`]. Endpoints use only regions and windows of their own zone.

pub use dat_core::{
    LmrCreated, LmrHandle, LmrParam, LmrSlice, LmrTriplet, MemType, PzHandle, RmrBinding,
    RmrCookie, RmrHandle, RmrParam, RmrTriplet, Segment, SharedMemoryId,
};
pub use driver::{Bytes, DmaBuffer, DmaPool, LentMemory, PageSize, PoolBuilder};

pub use crate::arena::{alloc_aligned, alloc_buffer, pool};
