//! Requests and completions of RDMA as plain data, exchanged between the driver of a network adapter and the code
//! that posts to its queues.
//!
//! The crate has types and functions on their values. A request reaches the queue as the value that the caller made,
//! without conversion.
//! [`dat-core`](https://docs.rs/dat-core) re-exports these types under DAT's names; a driver without DAT uses them
//! under their own names.
//!
//! | module | holds |
//! |---|---|
//! | `request` | segments, requests and their flags, receives, windows, sizes of queues |
//! | `completion` | data of a completion besides its status, and the short form of most completions |
//! | `path` | path to a peer, and parameters that connect a queue pair to the peer |
//! | `address` | addresses of an adapter |
//! | `access` | access rights to memory |
//! | `number` | numbers of queue pairs and of packets |
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;

mod access;
mod address;
mod completion;
mod number;
mod path;
mod request;

pub use access::Access;
pub use address::{Address, Vlan};
pub use completion::{Detail, Plain, QueuePairCounts};
pub use number::{Psn, Qpn};
pub use path::{MadAddress, Path, ReadyToReceive, ReadyToSend};
pub use request::{
    DataSegment, InlineError, PostedRecv, QueueFull, QueueSizes, RequestFlags, RequestOp,
    WindowTarget,
};
