//! Errors of vfio-user. The texts name the message, the socket and the answer.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use thiserror::Error;

use super::message::Command;
use crate::error::{ErrnoText, MemoryError};

/// A vfio-user connection, or a message over it, failed.
#[derive(Debug, Error)]
pub enum VfioUserError {
    /// A system call that sets up the connection failed.
    #[error("{path}: {call}: {source}")]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// The system call.
        call: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// The socket does not exist, or no server has it open.
    #[error(
        "{path}: no server there: `datctl sim serve --socket {path}` starts one for a simulated function ({source})"
    )]
    NoServer {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A message could not be sent, or its reply could not be received.
    #[error("{path}: {command}: {source}")]
    Transport {
        /// Path of the socket.
        path: PathBuf,
        /// The message.
        command: Command,
        /// Error of the system; `TimedOut` if the other side did not answer in time.
        source: io::Error,
    },
    /// The other side refused the message.
    #[error("{path}: {command}: refused with {}", ErrnoText(*errno))]
    Refused {
        /// Path of the socket.
        path: PathBuf,
        /// The message.
        command: Command,
        /// The error in the reply.
        errno: Errno,
    },
    /// The reply does not match the message.
    #[error("{path}: {command}: reply makes no sense: {what}")]
    Reply {
        /// Path of the socket.
        path: PathBuf,
        /// Command of the message.
        command: Command,
        /// The problem, with the numbers.
        what: String,
    },
    /// The connection failed earlier.
    #[error("{path}: the connection is gone since {command}: {because}")]
    Gone {
        /// Path of the socket.
        path: PathBuf,
        /// Command of the message at which the connection failed.
        command: Command,
        /// The cause.
        because: String,
    },
    /// The memory has no descriptor, and the server has no socket for access by messages.
    #[error(
        "{path}: DMA_MAP of {bytes:#x} bytes: lent memory has no descriptor to give away, and the server has no twin socket to ask for it by messages; use memory of the arena"
    )]
    NoDescriptor {
        /// Path of the socket.
        path: PathBuf,
        /// Bytes to map.
        bytes: usize,
    },
    /// Address space for a BAR could not be reserved.
    #[error("{path}: BAR {index} of {bytes:#x} bytes: {source}")]
    Bar {
        /// Path of the socket.
        path: PathBuf,
        /// BAR number.
        index: u8,
        /// Size in bytes that the server reports.
        bytes: u64,
        /// The cause.
        source: MemoryError,
    },
}
