//! The RDMA transport: workers, their connections, and the commands on them.
//!
//! ```text
//!   Target ------ the model, behind a lock                          cold
//!     |
//!     +-- Worker  one thread, one instance of an adapter             hot, not shared
//!           Ia         an event dispatcher, a shared receive queue
//!           Admission  the quotas of parties for connections, slots and buffers
//!           Memory     of each command that can be pending: capsule, response, 4 KiB of data; longer buffers
//!           Queues     the connections
//!           Commands   the commands themselves, their namespaces and disks (`io`)
//! ```
//!
//! All workers of a port listen at one service. The adapter gives a new connection to the worker with the fewest
//! connections, and the connection stays at that worker. Commands of I/O queues, except reservation commands, use only
//! the data of their worker. For every other command the worker calls the model. If another worker must act as a result
//! (to end a connection, to report an event), [`Target`] sends that worker a message.

mod abort;
mod admission;
mod authenticate;
mod config;
mod connection;
mod error;
mod event;
mod hold;
mod inbox;
mod lanes;
mod layout;
mod parking;
mod queue;
mod receive;
mod respond;
mod search;
mod target;
mod times;
mod worker;

pub use admission::Room;
pub use config::WorkerConfig;
pub use error::WorkerError;
pub use parking::{WorkerParkError, WorkerResumeError, WorkerSnapshot};
pub use target::{Over, Target, TargetParkError, TargetResumeError, TargetSnapshot};
pub use times::{KINDS, Took};
pub use worker::{Served, Worker};
