//! Ethernet frames between processes as UNIX datagrams: one datagram, one frame, no connection.
//!
//! This is the wire format of foreign programs, such as QEMU's `-netdev dgram,local.type=unix,remote.type=unix`. Each
//! side has a path of its own and knows the other's. Neither side learns when the other starts or ends: a frame is
//! lost if the other side is absent or too slow.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, UnixAddr, sendto};

use crate::clock::monotonic_now;
use crate::frame_ring::FRAME_BYTES;
use crate::socket_path::{PathClaim, TakenPath};

/// Our end of a wire of datagrams. Clones share it.
#[derive(Clone, Debug)]
pub struct FrameDatagrams {
    /// Our path. This field is declared, and so dropped, before the socket: the path is freed first.
    _here: Arc<TakenPath>,
    socket: Arc<UnixDatagram>,
    there: UnixAddr,
    /// True once [`shut`](Self::shut) was called. The system then reports the end like an empty datagram, as 0 bytes.
    is_shut: Arc<AtomicBool>,
}

impl FrameDatagrams {
    /// Binds to the path `here`; frames will go to `there`.
    ///
    /// # Errors
    /// Something else is at `here`, which stays unchanged ([`SocketPathError`](crate::SocketPathError)), or another
    /// error of the system.
    pub fn bind(here: &Path, there: &Path) -> io::Result<Self> {
        let there = UnixAddr::new(there)?;
        let (socket, here) = PathClaim::new(here)?.bind(|here| UnixDatagram::bind(here))?;
        Ok(Self {
            _here: Arc::new(here),
            socket: Arc::new(socket),
            there,
            is_shut: Arc::default(),
        })
    }

    /// Sends a frame. Waits up to `patience` for space in the socket queue of the other side, which holds few frames.
    /// Returns false if the other side was absent or its queue stayed full; then the frame is lost.
    ///
    /// # Errors
    /// The frame is empty or exceeds the longest frame (EMSGSIZE), or another error of the system.
    pub fn send_within(&self, frame: &[u8], patience: Duration) -> io::Result<bool> {
        if frame.is_empty() || frame.len() > FRAME_BYTES {
            return Err(Errno::EMSGSIZE.into());
        }
        let fd = self.socket.as_fd().as_raw_fd();
        let begin = monotonic_now();
        let elapsed = || monotonic_now().since(begin);
        let sent = uninterrupted(patience, elapsed, |left| {
            let mut flags = MsgFlags::MSG_NOSIGNAL;
            if left.is_zero() {
                flags |= MsgFlags::MSG_DONTWAIT;
            } else {
                self.socket.set_write_timeout(Some(left))?;
            }
            Ok(sendto(fd, frame, &self.there, flags))
        });
        match sent? {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ECONNREFUSED | Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Shuts the socket down, which wakes threads that wait for a frame here.
    pub fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
        crate::frame_socket::shut(self.socket.as_fd().as_raw_fd());
    }

    /// Waits for a frame and returns it.
    ///
    /// # Errors
    /// This end was [shut](Self::shut), and all frames that came before were received (`NotConnected`). The datagram is
    /// empty or exceeds the longest frame (`InvalidData`; the datagram is lost), or another error of the system.
    pub fn receive(&self) -> io::Result<Vec<u8>> {
        // The extra byte reveals a datagram that is longer than any frame.
        let mut frame = vec![0; FRAME_BYTES + 1];
        loop {
            match self.socket.recv(&mut frame) {
                Ok(bytes @ 1..=FRAME_BYTES) => {
                    frame.truncate(bytes);
                    return Ok(frame);
                }
                Ok(0) if self.is_shut.load(Ordering::SeqCst) => {
                    let what = "this end of the wire was shut";
                    return Err(io::Error::new(ErrorKind::NotConnected, what));
                }
                Ok(bytes) => {
                    let what = format!("a datagram of {bytes} bytes or more is no frame");
                    return Err(io::Error::new(ErrorKind::InvalidData, what));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Repeats a system call that signals interrupt. `call` gets the part of `patience` that is left; `elapsed` is the time
/// since the first call.
fn uninterrupted<T>(
    patience: Duration,
    elapsed: impl Fn() -> Duration,
    mut call: impl FnMut(Duration) -> io::Result<nix::Result<T>>,
) -> io::Result<nix::Result<T>> {
    let mut left = patience;
    loop {
        match call(left)? {
            Err(Errno::EINTR) => left = patience.saturating_sub(elapsed()),
            done => return Ok(done),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn frames_go_both_ways_and_are_lost_without_a_receiver() {
        let directory = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| directory.path().join(name));
        let one = FrameDatagrams::bind(&a, &b).unwrap();
        assert!(!one.send_within(b"too early", NOW).unwrap());
        let other = FrameDatagrams::bind(&b, &a).unwrap();
        assert!(one.send_within(b"one", NOW).unwrap() && one.send_within(&[7; 9000], NOW).unwrap());
        assert!(other.send_within(b"two", NOW).unwrap());
        assert_eq!(other.receive().unwrap(), b"one");
        assert_eq!(other.receive().unwrap(), [7; 9000]);
        assert_eq!(one.receive().unwrap(), b"two");
        while one.send_within(b"more", NOW).unwrap() {}
        std::thread::scope(|scope| {
            scope.spawn(|| while other.receive().unwrap() != b"last" {});
            let long = Duration::from_secs(60);
            assert!(
                one.send_within(b"last", long).unwrap(),
                "there was room in the end"
            );
        });
        drop(other);
        assert!(!one.send_within(b"too late", NOW).unwrap());
    }

    #[test]
    fn signals_do_not_prolong_the_wait_for_space() {
        let second = Duration::from_secs(1);
        let (now, mut waits) = (Cell::new(Duration::ZERO), Vec::new());
        let done = uninterrupted(
            5 * second / 2,
            || now.get(),
            |left| {
                waits.push(left);
                now.set(now.get() + second);
                Ok(if left.is_zero() {
                    Err(Errno::EAGAIN)
                } else {
                    Err::<(), _>(Errno::EINTR)
                })
            },
        );
        assert_eq!(done.unwrap(), Err(Errno::EAGAIN));
        assert_eq!(waits, [5 * second / 2, 3 * second / 2, second / 2, NOW]);
    }

    #[test]
    fn a_path_of_a_killed_process_is_taken_and_one_in_use_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| directory.path().join(name));
        let first = FrameDatagrams::bind(&a, &b).unwrap();
        let error = FrameDatagrams::bind(&a, &b).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        drop(first);
        assert!(!a.exists(), "who closes takes the path along");
        // The path remains, as after a process was killed.
        drop(UnixDatagram::bind(&a).unwrap());
        assert!(a.exists());
        assert!(FrameDatagrams::bind(&a, &b).is_ok());
    }

    #[test]
    fn a_datagram_that_is_no_frame_is_refused_in_both_directions() {
        let directory = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| directory.path().join(name));
        let one = FrameDatagrams::bind(&a, &b).unwrap();
        assert!(
            one.send_within(&[], NOW).is_err()
                && one.send_within(&[0; FRAME_BYTES + 1], NOW).is_err()
        );
        let stranger = UnixDatagram::unbound().unwrap();
        for wrong in [&[][..], &[0; FRAME_BYTES + 1], &[0; 2 * FRAME_BYTES]] {
            stranger.send_to(wrong, &a).unwrap();
            assert_eq!(one.receive().unwrap_err().kind(), ErrorKind::InvalidData);
        }
        stranger.send_to(b"on it goes", &a).unwrap();
        assert_eq!(one.receive().unwrap(), b"on it goes");
    }

    /// recv(2) returns 0 for an empty datagram, and for the end of a socket that was shut down.
    #[test]
    fn an_end_that_is_shut_is_no_datagram_and_comes_after_the_last_frame() {
        let directory = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| directory.path().join(name));
        let one = FrameDatagrams::bind(&a, &b).unwrap();
        let other = FrameDatagrams::bind(&b, &a).unwrap();
        assert!(other.send_within(b"last words", NOW).unwrap());
        std::thread::scope(|scope| {
            let receives = scope.spawn(|| {
                assert_eq!(one.receive().unwrap(), b"last words");
                one.receive().unwrap_err().kind()
            });
            one.clone().shut();
            assert_eq!(receives.join().unwrap(), ErrorKind::NotConnected);
        });
        assert_eq!(one.receive().unwrap_err().kind(), ErrorKind::NotConnected);
    }
}
