//! Errors of workers.

use udapl::error::{DmaError, NotClosed};
use udapl::reactor::ReactorError;
use udapl::{DatError, Ia};

/// Reason why a worker cannot be created, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The adapter refused a call.
    #[error("{0}")]
    Adapter(#[from] DatError),
    /// DMA memory cannot be allocated.
    #[error("{0}")]
    Memory(#[from] DmaError),
    /// The reactor of the disks failed.
    #[error("{0}")]
    Reactor(#[from] ReactorError),
    /// The event descriptor that wakes the worker cannot be created.
    #[error("a descriptor to be woken by: {0}")]
    Wakeup(#[from] std::io::Error),
    /// The adapter cannot be closed.
    #[error("{0}")]
    Close(Box<NotClosed<Ia>>),
    /// A number of [`super::WorkerConfig`] is out of range.
    #[error("{what} of a worker: {number}, there can be {least} to {most}")]
    Range {
        /// Name of the field.
        what: &'static str,
        /// Requested value.
        number: u32,
        /// Minimum.
        least: u32,
        /// Maximum.
        most: u32,
    },
    /// The device is dead, or the system has requested its release.
    #[error("the adapter is gone")]
    Gone,
}
