//! Sleeping without an io_uring, by ppoll(2).

use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::clock::{Instant, MAX_WAIT, monotonic_now};

/// Sleeps without an io_uring until one of `readable` is readable, or `deadline` has passed; at most [`MAX_WAIT`]. No
/// signal ends the sleep. Returns whether one of them is readable.
pub(crate) fn poll_readable<'a>(
    readable: impl Iterator<Item = BorrowedFd<'a>>,
    deadline: Instant,
) -> Result<bool, Errno> {
    let mut fds: Vec<PollFd<'_>> = readable
        .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
        .collect();
    poll(&mut fds, deadline.min(monotonic_now() + MAX_WAIT))
}

/// Sleeps without an io_uring until a descriptor is ready for `events`, has an error or was hung up, or `deadline` has
/// passed. No signal ends the sleep. Returns whether the descriptor is ready.
pub(crate) fn poll_ready(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    deadline: Instant,
) -> Result<bool, Errno> {
    poll(&mut [PollFd::new(fd, events)], deadline)
}

/// Sleeps after a call was refused because all processes of the user together have reached a limit. The caller repeats
/// the call, within its time limit. ETOOMANYREFS: more descriptors than RLIMIT_NOFILE are in messages that were not
/// received (unix(7)). ENOMEM: RLIMIT_MEMLOCK is used up.
pub(crate) fn pause_for_others() {
    // An error ends the sleep early.
    let _slept = poll(&mut [], monotonic_now() + Duration::from_millis(1));
}

fn poll(fds: &mut [PollFd<'_>], deadline: Instant) -> Result<bool, Errno> {
    loop {
        let now = monotonic_now();
        // A longer sleep is divided, because not every duration fits into a `timespec`.
        let left = deadline.since(now).min(MAX_WAIT);
        match ppoll(fds, Some(TimeSpec::from(left)), None) {
            Ok(0) if now + left < deadline => {}
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
