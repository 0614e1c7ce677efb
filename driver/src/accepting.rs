//! Accepting connections when the system refuses.
//!
//! accept(2) fails for reasons of three kinds, and only one of them ends whoever listens.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use nix::errno::Errno;

use crate::clock::Clock;
use crate::real_clock::RealClock;

/// Between two attempts at something that the system has no room for.
const PAUSE: Duration = Duration::from_millis(100);

/// What it means that `accept` failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The client gave up, or a signal came.
    OfOneClient,
    /// The system, or this process, lacks something that others will give back.
    ForNow,
    /// There is no listener any more.
    ForGood,
}

/// accept(2), "ERRORS".
pub(crate) fn refusal(error: &io::Error) -> Refusal {
    const OF_ONE_CLIENT: [Errno; 3] = [Errno::EINTR, Errno::ECONNABORTED, Errno::EPROTO];
    const FOR_NOW: [Errno; 5] = [
        Errno::EMFILE,
        Errno::ENFILE,
        Errno::ENOBUFS,
        Errno::ENOMEM,
        Errno::EPERM,
    ];
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno) if OF_ONE_CLIENT.contains(&errno) => Refusal::OfOneClient,
        Some(errno) if FOR_NOW.contains(&errno) => Refusal::ForNow,
        _ => Refusal::ForGood,
    }
}

/// The next client, by an `accept`. What the system cannot do now it is asked again. An error is for good.
pub(crate) fn next<T>(
    listener: impl Display,
    mut accept: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    loop {
        let source = match accept() {
            Ok(client) => return Ok(client),
            Err(source) => source,
        };
        match refusal(&source) {
            Refusal::OfOneClient => {}
            Refusal::ForNow => {
                tracing::warn!("{listener}: accept: {source}; trying again");
                pause();
            }
            Refusal::ForGood => return Err(source),
        }
    }
}

/// A while in which others may give something back.
pub(crate) fn pause() {
    let clock = RealClock::new();
    clock.wait(&[], clock.now() + PAUSE);
}
