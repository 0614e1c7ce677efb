//! The event dispatcher: its queues, its mode, and which streams feed it.

pub mod mode;
pub(crate) mod queue;
pub(crate) mod streams;
