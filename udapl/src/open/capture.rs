//! `,pcap=FILE`: captures the wire of a simulated function in a file for Wireshark.
//!
//! One file holds one simulation (`Sim`): all functions linked within a process are captured together, in the file of
//! the first name with this option. A function whose wire leads to another process has a simulation of its own,
//! so the process at the other end writes its own file, too. Both files have wall-clock times, and `mergecap` merges
//! them. Each frame is written at once, because the process may end at any moment.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hw_sim::Sim;
use hw_sim_host::open_locked;

use super::OpenError;

/// Opens and locks the file, and truncates it. Fails if another capture holds the lock.
fn begin(path: &Path) -> io::Result<File> {
    // Opening a pipe without a reader would block.
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            "it is not a regular file",
        ));
    }
    let file = open_locked(path)?;
    file.set_len(0)?;
    Ok(file)
}

/// Returns the time stamp for the present moment: the wall clock, or 0 if the simulation's time is virtual (the capture
/// then has the simulation's own times).
fn now(virtual_time: bool) -> Duration {
    let of_day = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    of_day
        .ok()
        .filter(|_| !virtual_time)
        .unwrap_or(Duration::ZERO)
}

/// Returns the error that the wire is already captured in another file, or was opened without a capture.
pub(super) fn other_capture(name: &str, asked: &Path, there: Option<&Path>) -> OpenError {
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

/// Starts the capture of a simulation if the options ask for one. `known` is the file of an earlier capture of this
/// simulation, and is set to the file of the new one.
///
/// # Errors
/// [`OpenError::Capture`]: the file cannot be written, or the simulation is captured in another file.
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
        return Err(other_capture(name, path, Some(other)));
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
