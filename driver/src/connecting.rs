//! Connecting to a listener that may accept nobody.
//!
//! connect(2) waits without limit while the listener's queue is full, which is so if its process is stopped or does not
//! accept. The time limit for sending (`SO_SNDTIMEO`) also limits that wait (socket(7)).

use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::clock::monotonic_now;

/// Shortest time limit of a socket. Zero would be no limit.
const SHORTEST: Duration = Duration::from_micros(1);

/// Connects to a stream socket at a path. Waits at most `patience` for a place in the listener's queue. The returned
/// stream has no time limits.
///
/// # Errors
/// `TimedOut`: the listener's queue stayed full. Other errors: those of connect(2).
pub fn connect_within(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let address = UnixAddr::new(path)?;
    let fd = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let stream = UnixStream::from(fd);
    let until = monotonic_now() + patience;
    loop {
        let left = until - monotonic_now();
        stream.set_write_timeout(Some(left.max(SHORTEST)))?;
        match connect(stream.as_raw_fd(), &address) {
            Ok(()) => {
                stream.set_write_timeout(None)?;
                return Ok(stream);
            }
            // A signal arrived. The limit is for all attempts together.
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                let what = "the queue of this socket is full: its process has stopped, or accepts no connections";
                return Err(io::Error::new(ErrorKind::TimedOut, what));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use nix::sys::socket::{Backlog, bind, listen};

    use super::*;

    /// A listener with a backlog of 1 queues two connections (Linux `net/unix/af_unix.c`, `unix_recvq_full`).
    #[test]
    fn a_listener_that_accepts_nobody_is_not_waited_for_without_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let open = |flags| socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        let address = UnixAddr::new(&path).unwrap();
        let listener = open(SockFlag::SOCK_CLOEXEC);
        bind(listener.as_raw_fd(), &address).unwrap();
        listen(&listener, Backlog::new(1).unwrap()).unwrap();
        let patience = Duration::from_millis(1);
        let mut queued = Vec::new();
        let full = loop {
            let one = open(SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK);
            match connect(one.as_raw_fd(), &address) {
                Ok(()) => queued.push(one),
                Err(errno) => break errno,
            }
        };
        assert_eq!(full, Errno::EAGAIN);
        let error = connect_within(&path, patience).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(
            error.to_string().contains("queue of this socket is full"),
            "{error}"
        );
        let listener = UnixListener::from(listener);
        let accepted = listener.accept().unwrap();
        let connected = connect_within(&path, patience).unwrap();
        assert_eq!(connected.write_timeout().unwrap(), None);
        drop((accepted, listener));
        let refused = connect_within(&path, patience).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        std::fs::remove_file(&path).unwrap();
        let absent = connect_within(&path, patience).unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::NotFound);
    }
}
