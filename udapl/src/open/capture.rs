//! `,pcap=FILE`: captures the wire of a simulated function in a file for Wireshark.
//!
//! One file has one world: all functions linked within a process are captured together, in the file of the first name
//! that asks. A function whose wire leaves the process has a world of its own, so the process at the other end writes
//! its own file, too; both use wall-clock time, and `mergecap` merges them. Each frame is written out at once,
//! because the process may end at any moment.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hw_sim::Sim;

use super::OpenError;

/// Creates or truncates the file. Nothing else in this process writes to it while it is open.
fn begin(path: &Path) -> io::Result<File> {
    // Opening a pipe without a reader would block.
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            "it is not a regular file",
        ));
    }
    let options = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .to_owned();
    let file = options.open(path)?;
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => io::Error::new(
            ErrorKind::ResourceBusy,
            "another capture is being written to it",
        ),
        TryLockError::Error(error) => error,
    })?;
    file.set_len(0)?;
    Ok(file)
}

/// Returns the time stamp for the present moment: the wall clock, or the world's time if it is virtual.
fn now(virtual_time: bool) -> Duration {
    let of_day = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    of_day
        .ok()
        .filter(|_| !virtual_time)
        .unwrap_or(Duration::ZERO)
}

/// Makes the error: the wire is captured in another file than asked for, or it was opened without a capture.
pub(super) fn captured_elsewhere(name: &str, asked: &Path, there: Option<&Path>) -> OpenError {
    let there = match there {
        Some(there) => format!("its wire is captured in {} already", there.display()),
        None => "its wire is open without a capture: give pcap= when it is first opened".to_owned(),
    };
    OpenError::Capture {
        name: name.to_owned(),
        path: asked.to_owned(),
        error: io::Error::new(ErrorKind::AlreadyExists, there),
    }
}

/// Captures a world if the options ask for it. `known` is the file of an earlier capture of this world.
///
/// # Errors
/// [`OpenError::Capture`]: the file cannot be written, or the world is captured in another file.
pub(super) fn capture(
    name: &str,
    asked: Option<&PathBuf>,
    known: &mut Option<PathBuf>,
    sim: &Sim,
    virtual_time: bool,
) -> Result<(), OpenError> {
    let Some(path) = asked else {
        return Ok(());
    };
    // A capture that ended (its file was removed or its disk was full) may start again.
    let goes_on = known
        .as_ref()
        .filter(|there| sim.is_captured() && there.exists());
    if goes_on == Some(path) {
        return Ok(());
    }
    if let Some(other) = goes_on {
        return Err(captured_elsewhere(name, path, Some(other)));
    }
    let failed = |error| OpenError::Capture {
        name: name.to_owned(),
        path: path.clone(),
        error,
    };
    let file = begin(path).map_err(failed)?;
    let begun = sim.pcap_live(file, now(virtual_time));
    begun.map_err(|error| failed(io::Error::other(error)))?;
    *known = Some(path.clone());
    Ok(())
}
