//! `,pcap=FILE`: what passes on the wire of a simulated function, in a file that Wireshark opens.
//!
//! A file is one world's: functions that are linked within a process are captured together, once, by whichever of their
//! names asks first. A function whose wire leaves the process has a world of its own, so the process at the other end
//! writes a file of its own, too; in both the time is that of day, and `mergecap` lays one beside the other. Each frame
//! is written out at once, since a process may end at any moment.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hw_sim::Sim;

use super::OpenError;

/// The file, begun anew. Nobody else writes to it as long as it is open.
fn begin(path: &Path) -> io::Result<File> {
    // To a pipe nobody might listen.
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no file"));
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

/// What the present moment is called in a file. In virtual time it is the world's.
fn now(virtual_time: bool) -> Duration {
    let of_day = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    of_day
        .ok()
        .filter(|_| !virtual_time)
        .unwrap_or(Duration::ZERO)
}

/// An adapter's wire is captured in another file than is asked for, or in none, and its frames so far are lost.
pub(super) fn captured_elsewhere(name: &str, asked: &Path, there: Option<&Path>) -> OpenError {
    let there = match there {
        Some(there) => format!("its wire is captured in {} already", there.display()),
        None => "its wire is open and not captured: who opens it first says pcap=".to_owned(),
    };
    OpenError::Capture {
        name: name.to_owned(),
        path: asked.to_owned(),
        error: io::Error::new(ErrorKind::AlreadyExists, there),
    }
}

/// Captures a world, whose capture of before is `known`, if that is asked for.
///
/// # Errors
/// [`OpenError::Capture`]: the file, or the world is captured into another one.
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
    // One that has ended, since its file was removed or its disk was full, may begin anew.
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
