//! Workers: connections, and the I/Os on them.
//!
//! ```text
//!   Target ------ the model, behind a lock                          cold
//!     |
//!     +-- Worker  one thread, one instance of an adapter             hot, nobody else's
//!           Ia        an event dispatcher, a shared receive queue
//!           Admission who may have how much of all that follows
//!           Ios       a place for each command that can be here at once: capsule, response, 4 KiB of data
//!           Buffers   128 KiB each, for longer data
//!           Queues    a connection each
//!           Disks     an io_uring, which its disks share
//! ```
//!
//! All workers of an adapter listen at one service; a connection goes to the one with the fewest, and stays there.
//! What a worker does for a command that reads or writes touches the worker alone. For every other command it asks
//! the model. What the model wants done elsewhere (another worker's connection is to end, an event is to be told)
//! comes as a message.

mod admission;
mod answer;
mod authenticate;
mod buffers;
mod connection;
mod disks;
mod event;
mod execute;
mod fused;
mod inbox;
mod io;
mod layout;
mod queue;
mod steps;
mod target;
mod times;
mod worker;

pub use admission::Room;
pub use target::Target;
pub use times::{KINDS, Took};
pub use worker::{Over, Worker, WorkerConfig, WorkerError};
