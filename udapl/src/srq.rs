//! Shared receive queues: receive buffers that several endpoints take from.
//!
//! An endpoint made with [`Ia::ep_create_with_srq`](crate::Ia::ep_create_with_srq) has no receives of its own: each
//! message that arrives takes the next buffer of its SRQ ([`SrqHandle`]). [`SrqAttr`] sets the number of buffers;
//! [`Ia::srq_resize`](crate::Ia::srq_resize) changes it. [`Ia::srq_set_lw`](crate::Ia::srq_set_lw) sets a low watermark
//! and arms it once: one [`AsyncEvent`](crate::event::AsyncEvent) follows when fewer buffers than that are left. A
//! [`SrqBatch`] posts several buffers by one write of the doorbell record.

pub use dat_core::{SrqAttr, SrqBatch, SrqHandle, SrqParam, SrqState};
