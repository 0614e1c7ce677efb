//! Descriptors that the parent has opened for this process (sd_listen_fds(3)): sockets, disks, devices.
//!
//! `LISTEN_FDS` is the number of descriptors; the first has number 3. `LISTEN_FDNAMES` has their names, separated by
//! colons. `LISTEN_PID` is the process that they are for. So a process can use files that it may not open itself.
//!
//! A file that is handed in stays open, and callers get copies. The descriptors of a handover are different: a copy
//! that stays here would keep their device from being reset, so they are taken once (module `handover`).

// UNSAFETY: a number becomes a descriptor that is owned.
#![expect(unsafe_code, reason = "descriptors by their number")]

use std::fs::exists;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{env, io, process};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::snapshot::NamedFd;

/// Number of the first descriptor that is handed in.
const FIRST: RawFd = 3;
/// Highest value of `LISTEN_FDS` that is accepted: the kernel's default of `fs.nr_open`, above which no process has
/// descriptors. With a higher value no descriptor is taken.
const MOST: RawFd = 1 << 20;

/// Value of `LISTEN_FDS` that was refused.
static REFUSED: OnceLock<String> = OnceLock::new();

static HANDED_IN: OnceLock<Vec<HandedIn>> = OnceLock::new();

/// A descriptor that was handed in.
struct HandedIn {
    name: String,
    /// `None` once the descriptor was taken.
    fd: Mutex<Option<OwnedFd>>,
}

impl HandedIn {
    /// Calls `f` with the descriptor, or with `None` if it was taken.
    fn with<T>(&self, f: impl FnOnce(&mut Option<OwnedFd>) -> T) -> T {
        f(&mut self.fd.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_there(&self) -> bool {
        self.with(|fd| fd.is_some())
    }
}

/// Reason why a descriptor is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandedInError {
    /// No descriptor of this name was handed in.
    #[error("no descriptor {name:?} was handed in; there are {}", said(known))]
    Unknown {
        /// The name.
        name: String,
        /// The names that were handed in.
        known: Vec<String>,
    },
    /// The descriptor could not be duplicated.
    #[error("descriptor {name:?}: {error}")]
    System {
        /// The name.
        name: String,
        /// Error of the system.
        error: io::Error,
    },
}

/// Returns the text for the names of the descriptors in an error.
fn said(known: &[String]) -> String {
    if known.is_empty() {
        "none (LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES would say so)".to_owned()
    } else {
        known.join(", ")
    }
}

/// Returns a copy of the descriptor of this name.
///
/// The first call must come before the process opens anything or changes its environment.
///
/// # Errors
/// [`HandedInError`], with the name.
pub fn handed_in(name: &str) -> Result<OwnedFd, HandedInError> {
    let all = HANDED_IN.get_or_init(read);
    let mut named = all.iter().filter(|one| one.name == name);
    let copy = named.find_map(|one| one.with(|fd| Some(fd.as_ref()?.try_clone())));
    let copy = copy.ok_or_else(|| HandedInError::Unknown {
        name: name.to_owned(),
        known: names_handed_in().map(str::to_owned).collect(),
    })?;
    copy.map_err(|error| HandedInError::System {
        name: name.to_owned(),
        error,
    })
}

/// Returns the names of all descriptors, except those that were taken ([`take_stored`](crate::handover::take_stored)).
pub fn names_handed_in() -> impl Iterator<Item = &'static str> {
    let all = HANDED_IN.get_or_init(read);
    all.iter()
        .filter(|one| one.is_there())
        .map(|one| one.name.as_str())
}

/// Takes the descriptors whose names are selected, in their order. They are not copies: [`handed_in`] does not return
/// them any more, and the caller closes them.
///
/// The first call must come before the process opens anything or changes its environment.
pub(crate) fn take_handed_in(is_selected: impl Fn(&str) -> bool) -> Vec<NamedFd> {
    let all = HANDED_IN.get_or_init(read);
    all.iter()
        .filter(|one| is_selected(&one.name))
        .filter_map(|one| {
            let name = one.name.clone();
            one.with(Option::take).map(|fd| NamedFd { name, fd })
        })
        .collect()
}

/// Returns the value of `LISTEN_FDS` if it is for this process and is no valid number. The first call must come before
/// the process opens anything or changes its environment.
pub(crate) fn refused_count() -> Option<&'static str> {
    HANDED_IN.get_or_init(read);
    REFUSED.get().map(String::as_str)
}

fn read() -> Vec<HandedIn> {
    let number = |name: &str| env::var(name).ok()?.parse::<RawFd>().ok();
    let are_ours =
        number("LISTEN_PID").and_then(|pid| u32::try_from(pid).ok()) == Some(process::id());
    let count = number("LISTEN_FDS").filter(|count| are_ours && (1..=MOST).contains(count));
    if are_ours && count.is_none() {
        let given = env::var_os("LISTEN_FDS").unwrap_or_default();
        let given = given.to_string_lossy().into_owned();
        let given = REFUSED.get_or_init(|| given);
        tracing::warn!(
            ?given,
            most = MOST,
            "LISTEN_FDS is no number from 1 to `most`: no descriptor is taken"
        );
    }
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
        // SAFETY: the descriptor is open, and the protocol gives it to us: no other code in this process has it. The
        // OnceLock makes this code run only once.
        let owned = unsafe { OwnedFd::from_raw_fd(at) };
        if let Err(error) = fcntl(&owned, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)) {
            tracing::warn!(descriptor = owned.as_raw_fd(), %error, "cannot be made close-on-exec: child programs will inherit it");
        }
        taken.push(HandedIn {
            name,
            fd: Mutex::new(Some(owned)),
        });
    }
    taken
}
