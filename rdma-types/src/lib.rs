//! Requests and completions of RDMA as plain data, exchanged between the driver of a network adapter and the code
//! that posts to its queues.
//!
//! Nothing acts here, and nothing is translated twice: a request goes from the caller to the queue as the value
//! it was made as. [`dat-core`](https://docs.rs/dat-core) names these types under DAT's names; a driver without DAT
//! uses them as they are.
//!
//! | module | holds |
//! |---|---|
//! | `request` | segments, requests and their flags, receives, windows, sizes of queues |
//! | `completion` | what comes with a completion, and the short form that most have |
//! | `path` | the way to a peer, and what connects a queue pair to it |
//! | `address` | an adapter's own addresses |
//! | `access` | rights in memory |
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

mod access;
mod address;
mod completion;
mod path;
mod request;

pub use access::Access;
pub use address::{Address, Vlan, same_network};
pub use completion::{Detail, Plain, QueuePairCounts};
pub use path::{MadAddress, Path, ReadyToReceive, ReadyToSend};
pub use request::{
    DataSegment, InlineError, PostedRecv, QueueFull, QueueSizes, RequestFlags, RequestOp,
    WindowTarget,
};
