//! Accepting connections, and handling the failures of accept(2).
//!
//! accept(2) fails for three kinds of reasons. Only one of them ends the listener.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use nix::errno::Errno;

use crate::clock::Clock;
use crate::real_clock::RealClock;

/// Pause between two attempts while the system lacks a resource, 100 ms.
const PAUSE: Duration = Duration::from_millis(100);

/// Kind of a failure of `accept`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AcceptFailure {
    /// The client gave up, or a signal arrived. Only this attempt failed.
    OneClient,
    /// The system or this process lacks a resource that may become free again, or a firewall rule forbids the
    /// connection (`EPERM`).
    Temporary,
    /// The listener no longer works.
    Permanent,
}

/// Classifies an error of `accept` (accept(2), "ERRORS").
fn classify(error: &io::Error) -> AcceptFailure {
    const ONE_CLIENT: [Errno; 3] = [Errno::EINTR, Errno::ECONNABORTED, Errno::EPROTO];
    const TEMPORARY: [Errno; 5] = [
        Errno::EMFILE,
        Errno::ENFILE,
        Errno::ENOBUFS,
        Errno::ENOMEM,
        Errno::EPERM,
    ];
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno) if ONE_CLIENT.contains(&errno) => AcceptFailure::OneClient,
        Some(errno) if TEMPORARY.contains(&errno) => AcceptFailure::Temporary,
        _ => AcceptFailure::Permanent,
    }
}

/// Returns the next client that `accept` returns. Calls `accept` again at once after a failure of one client, and
/// after a pause of 100 ms after a temporary failure. Returns only permanent errors.
pub(crate) fn next<T>(
    listener: impl Display,
    accept: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    next_pausing(listener, accept, pause)
}

/// Does the same as [`next`], and pauses by calling `pause`.
pub(crate) fn next_pausing<T>(
    listener: impl Display,
    mut accept: impl FnMut() -> io::Result<T>,
    mut pause: impl FnMut(),
) -> io::Result<T> {
    loop {
        let source = match accept() {
            Ok(client) => return Ok(client),
            Err(source) => source,
        };
        match classify(&source) {
            AcceptFailure::OneClient => {}
            AcceptFailure::Temporary => {
                tracing::warn!("{listener}: accept: {source}; trying again");
                pause();
            }
            AcceptFailure::Permanent => return Err(source),
        }
    }
}

/// Pauses before another attempt at an operation that failed for lack of a resource.
pub(crate) fn pause() {
    let clock = RealClock::new();
    clock.wait(&[], clock.now() + PAUSE);
}
