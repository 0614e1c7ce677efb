//! Descriptors that whoever started the process has opened for it (sd_listen_fds(3)): sockets, disks, devices.
//!
//! `LISTEN_FDS` says how many there are, from 3 on, `LISTEN_FDNAMES` what they are called, with colons between, and
//! `LISTEN_PID` whom they are for. So a process can have what it may not open.

// UNSAFETY: a number becomes a descriptor that is owned.
#![expect(unsafe_code, reason = "descriptors by their number")]

use std::fs::exists;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::{env, io, process};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// The first one.
const FIRST: RawFd = 3;
/// More than a process is started with.
const MOST: RawFd = 4096;

static HANDED_IN: OnceLock<Vec<(String, OwnedFd)>> = OnceLock::new();

/// Why a descriptor is not to be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandedInError {
    /// Nothing of this name was handed in.
    #[error("no descriptor {name:?} was handed in; there are {}", said(known))]
    Unknown {
        /// The name.
        name: String,
        /// What was.
        known: Vec<String>,
    },
    /// The system has no room for one more descriptor.
    #[error("descriptor {name:?}: {error}")]
    System {
        /// The name.
        name: String,
        /// The system's answer.
        error: io::Error,
    },
}

/// What was handed in, for people.
fn said(known: &[String]) -> String {
    if known.is_empty() {
        "none (LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES would say so)".to_owned()
    } else {
        known.join(", ")
    }
}

/// A copy of the descriptor of this name.
///
/// It has to be asked for once before the process opens anything, or its environment is changed.
///
/// # Errors
/// [`HandedInError`], with the name.
pub fn handed_in(name: &str) -> Result<OwnedFd, HandedInError> {
    let all = HANDED_IN.get_or_init(take);
    let found = all.iter().find(|(known, _)| known == name);
    let (_, descriptor) = found.ok_or_else(|| HandedInError::Unknown {
        name: name.to_owned(),
        known: names_handed_in().map(str::to_owned).collect(),
    })?;
    descriptor
        .try_clone()
        .map_err(|error| HandedInError::System {
            name: name.to_owned(),
            error,
        })
}

/// What they are called.
pub fn names_handed_in() -> impl Iterator<Item = &'static str> {
    let all = HANDED_IN.get_or_init(take);
    all.iter().map(|(name, _)| name.as_str())
}

fn take() -> Vec<(String, OwnedFd)> {
    let number = |name: &str| env::var(name).ok()?.parse::<RawFd>().ok();
    let are_ours =
        number("LISTEN_PID").and_then(|pid| u32::try_from(pid).ok()) == Some(process::id());
    let count = number("LISTEN_FDS").filter(|count| are_ours && (1..=MOST).contains(count));
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut taken = Vec::new();
    for at in FIRST..FIRST + count.unwrap_or(0) {
        let name = names
            .next()
            .filter(|name| !name.is_empty())
            .unwrap_or("unknown")
            .to_owned();
        if !exists(format!("/proc/self/fd/{at}")).unwrap_or(false) {
            tracing::warn!(
                descriptor = at,
                name,
                "LISTEN_FDS counts a descriptor that is not open"
            );
            continue;
        }
        // SAFETY: it is open, and by the protocol ours: nobody else in this process has it, and the OnceLock takes it
        // once.
        let owned = unsafe { OwnedFd::from_raw_fd(at) };
        if let Err(error) = fcntl(&owned, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)) {
            tracing::warn!(descriptor = owned.as_raw_fd(), %error, "programs that are started will have it");
        }
        taken.push((name, owned));
    }
    taken
}
