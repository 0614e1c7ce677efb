//! The RDMA transport: workers, their connections, and the commands on them.
//!
//! ```text
//!   Target ------ the model, behind a lock                          cold
//!     |
//!     +-- Worker  one thread, one instance of an adapter             hot, not shared
//!           Ia         an event dispatcher, a shared receive queue
//!           Admission  the share of each party in all that follows
//!           Memory     of each command that can be pending: capsule, response, 4 KiB of data; longer buffers
//!           Queues     a connection each
//!           Commands   the commands themselves, their namespaces and disks (`io`)
//! ```
//!
//! All workers of an adapter listen at one service. The adapter gives a new connection to the worker with the fewest
//! connections, and the connection stays at that worker. A command that reads or writes blocks uses the data of its
//! worker only. For every other command the worker calls the model. If the model needs another worker to act (to end a
//! connection, to report an event), it sends that worker a message.

mod admission;
mod authenticate;
mod connection;
mod error;
mod event;
mod inbox;
mod lanes;
mod layout;
mod queue;
mod receive;
mod respond;
mod target;
mod times;
mod worker;

pub use admission::Room;
pub use error::WorkerError;
pub use target::{Over, Target};
pub use times::{KINDS, Took};
pub use worker::{Worker, WorkerConfig};
