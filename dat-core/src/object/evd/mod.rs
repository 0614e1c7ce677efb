//! The event dispatcher: its queues, its mode, and the event streams that it receives.

pub mod mode;
pub(crate) mod queue;
pub(crate) mod streams;
