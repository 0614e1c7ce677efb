//! The RDMA transport: workers, with connections and the commands on them.
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
//! All workers of an adapter listen at one service. A connection goes to the worker with the fewest, and stays there.
//! A command that reads or writes touches its worker alone. For every other command the worker asks the model. If the
//! model wants something from another worker (a connection is to end, an event is to be reported), it sends a
//! message.

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
