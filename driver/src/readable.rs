//! Sleeping without an io_uring, by ppoll(2).

use std::os::fd::BorrowedFd;

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
    let deadline = deadline.min(monotonic_now() + MAX_WAIT);
    let mut fds: Vec<PollFd<'_>> = readable
        .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
        .collect();
    loop {
        let left = deadline.since(monotonic_now());
        match ppoll(&mut fds, Some(TimeSpec::from(left)), None) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
