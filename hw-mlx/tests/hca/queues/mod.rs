//! Queues against a device that only watches: bytes, order, wrapping, reclaiming, and entries nobody
//! should believe.

mod cq;
mod double;
mod receive;
mod send;
mod shared;
