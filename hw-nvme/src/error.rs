//! Errors and causes of the end of a controller.

use core::time::Duration;

use driver::{BarError, DmaError, FunctionError};
use nvme_types::Status;
use thiserror::Error;

/// Reason why a controller cannot be used any more. Its commands end without a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Cause {
    /// All registers read as ones: the function was removed, or its link is down.
    #[error("it is gone: its registers read as ones")]
    Gone,
    /// CSTS.CFS: an error that no completion can report.
    #[error("it has a fatal error (CSTS.CFS)")]
    Fatal,
    /// It has not become ready, or has not stopped.
    #[error("CSTS.RDY has not become {} within {} ms", u8::from(*.wanted), limit.as_millis())]
    Ready {
        /// Wanted value.
        wanted: bool,
        /// Time limit.
        limit: Duration,
    },
    /// It has not completed its shutdown (CSTS.SHST).
    #[error("CSTS.SHST has not become 2 within {} ms", limit.as_millis())]
    ShutDown {
        /// Time limit.
        limit: Duration,
    },
    /// A command was not answered in time.
    #[error("a command with opcode {opcode:#04x} of queue {queue} has no answer after {} ms", limit.as_millis())]
    Silent {
        /// Number of the queue.
        queue: u16,
        /// Opcode.
        opcode: u8,
        /// Time limit.
        limit: Duration,
    },
    /// It was stopped by [`Controller::stop`](crate::Controller::stop), or dropped.
    #[error("it was stopped")]
    Stopped,
    /// A completion of a command that was not given or not fetched, or with numbers beyond their limits.
    #[error(
        "queue {queue} has an impossible completion: CID {cid:#06x}, SQID {sqid}, SQHD {sq_head}"
    )]
    Impossible {
        /// Number of the queue.
        queue: u16,
        /// Command identifier of the completion.
        cid: u16,
        /// Queue that it names.
        sqid: u16,
        /// Head that it names.
        sq_head: u16,
    },
}

/// Reason why a controller or a queue was not opened, or an admin command failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NvmeError {
    /// The function refused.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// BAR 0 is too small.
    #[error("BAR 0: {0}")]
    Bar(#[from] BarError),
    /// There is no memory for queues.
    #[error(transparent)]
    Memory(#[from] DmaError),
    /// The controller cannot be used any more.
    #[error("{name}: {cause}")]
    Ended {
        /// Name of the function.
        name: String,
        /// The reason.
        cause: Cause,
    },
    /// The controller is of a kind that this driver does not support.
    #[error("{name}: {what}")]
    Unsupported {
        /// Name of the function.
        name: String,
        /// Reason, with the number.
        what: String,
    },
    /// A command failed.
    #[error("{name}: {command} failed: {status}")]
    Status {
        /// Name of the function.
        name: String,
        /// The command, with its numbers.
        command: String,
        /// The status.
        status: Status,
    },
    /// The controller was not opened, and its function cannot be stopped: it may still access memory that was mapped
    /// for it.
    #[error("{error}; and it cannot be stopped: {stop}")]
    NotStopped {
        /// The reason why it was not opened.
        error: Box<NvmeError>,
        /// The reason why it was not stopped.
        stop: FunctionError,
    },
    /// An argument is out of range.
    #[error("{what}")]
    Argument {
        /// Reason, with the number.
        what: String,
    },
}
