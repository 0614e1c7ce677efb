//! The end of an operation of a disk.

use udapl::reactor::ReactorError;

/// A completed operation.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Index of the command.
    pub io: u32,
    /// Number of bytes moved, or the error.
    pub result: Result<usize, ReactorError>,
}
