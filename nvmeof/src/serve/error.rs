//! Errors of workers.

use udapl::error::{DmaError, NotClosed};
use udapl::reactor::ReactorError;
use udapl::{DatError, Ia};

/// Why there is no worker, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The adapter refuses a call.
    #[error("{0}")]
    Adapter(#[from] DatError),
    /// There is no memory.
    #[error("{0}")]
    Memory(#[from] DmaError),
    /// The ring for the disks fails.
    #[error("{0}")]
    Reactor(#[from] ReactorError),
    /// There is no descriptor to wake the worker by.
    #[error("a descriptor to be woken by: {0}")]
    Wakeup(#[from] std::io::Error),
    /// The adapter cannot be closed.
    #[error("{0}")]
    Close(Box<NotClosed<Ia>>),
    /// A number of [`super::WorkerConfig`] is out of range.
    #[error("{what} of a worker: {number}, there can be {least} to {most}")]
    Range {
        /// The field.
        what: &'static str,
        /// The number asked for.
        number: u32,
        /// The least there can be.
        least: u32,
        /// The most there can be.
        most: u32,
    },
    /// The adapter is dead, or is wanted back.
    #[error("the adapter is gone")]
    Gone,
}
