//! Queues against a device that only observes: bytes, order, wrapping, reclaiming, and invalid entries.

mod cq;
mod double;
mod receive;
mod send;
mod shared;
