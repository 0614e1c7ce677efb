//! Errors between the two sides. The texts name the message, the socket and the answer.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use thiserror::Error;

use super::message::Command;
use crate::error::{ErrnoText, MemoryError};

/// A vfio-user connection, or a message over it, failed.
#[derive(Debug, Error)]
pub enum VfioUserError {
    /// The socket could not be reached, bound or accepted from.
    #[error("{path}: {call}: {source}")]
    Socket {
        /// The socket.
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
        /// The socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A message could not be sent, or its reply not received.
    #[error("{path}: {command}: {source}")]
    Transport {
        /// The socket.
        path: PathBuf,
        /// The message.
        command: Command,
        /// Error of the system; `TimedOut` if the other side is silent.
        source: io::Error,
    },
    /// The other side refused.
    #[error("{path}: {command}: refused with {}", ErrnoText(*errno))]
    Refused {
        /// The socket.
        path: PathBuf,
        /// The message.
        command: Command,
        /// The error in the reply.
        errno: Errno,
    },
    /// The reply does not match the message.
    #[error("{path}: {command}: reply makes no sense: {what}")]
    Reply {
        /// The socket.
        path: PathBuf,
        /// The message.
        command: Command,
        /// The problem, with the numbers.
        what: String,
    },
    /// The connection failed earlier.
    #[error("{path}: the connection is gone since {command}: {because}")]
    Gone {
        /// The socket.
        path: PathBuf,
        /// The message it failed at.
        command: Command,
        /// The cause.
        because: String,
    },
    /// The memory has no descriptor, and the server has no socket for access by messages.
    #[error(
        "{path}: DMA_MAP of {bytes:#x} bytes: lent memory has no descriptor to give away, and the server has no twin socket to ask for it by messages; use memory of the arena"
    )]
    NoDescriptor {
        /// The socket.
        path: PathBuf,
        /// Bytes to map.
        bytes: usize,
    },
    /// No address space for a BAR.
    #[error("{path}: BAR {index} of {bytes:#x} bytes: {source}")]
    Bar {
        /// The socket.
        path: PathBuf,
        /// BAR number.
        index: u8,
        /// Its size, according to the server.
        bytes: u64,
        /// The cause.
        source: MemoryError,
    },
}
