//! The file of a capture or a recording, to which one process writes at a time.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Opens or creates a file for writing, without truncating it, and locks it if it is a regular file. If the file system
/// has no locks, the file is not locked.
///
/// # Errors
/// The file cannot be opened. `ResourceBusy`: another capture or recording is being written to it.
pub fn open_locked(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file = options
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    if file.metadata()?.is_file()
        && let Err(TryLockError::WouldBlock) = file.try_lock()
    {
        return Err(io::Error::new(
            ErrorKind::ResourceBusy,
            "another capture or recording is being written to it",
        ));
    }
    Ok(file)
}
