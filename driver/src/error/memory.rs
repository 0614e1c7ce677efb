//! Errors of mapping memory.

use nix::errno::Errno;
use thiserror::Error;

use super::errno::ErrnoText;

/// A mapping could not be made.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum MemoryError {
    /// Zero bytes were asked for; a mapping has at least one.
    #[error("a mapping of zero bytes was asked for")]
    Empty,
    /// The size overflows the address space.
    #[error("a mapping of {bytes:#x} bytes does not fit the address space")]
    TooLarge {
        /// Bytes asked for.
        bytes: usize,
    },
    /// A file of another process cannot be mapped safely, or lacks the requested range.
    #[error("a mapping of {bytes:#x} bytes at offset {offset:#x} of a file of {len:#x}: {what}")]
    File {
        /// Bytes asked for.
        bytes: usize,
        /// Offset in the file.
        offset: u64,
        /// Bytes the file has.
        len: u64,
        /// The problem with the file.
        what: &'static str,
    },
    /// A system call failed.
    #[error("{call} for a mapping of {bytes:#x} bytes: {}", ErrnoText(*errno))]
    System {
        /// Name of the system call.
        call: &'static str,
        /// Bytes asked for.
        bytes: usize,
        /// Error of the system call.
        errno: Errno,
    },
}
