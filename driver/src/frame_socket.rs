//! Ethernet frames between processes: a wire that is a UNIX socket.
//!
//! The socket keeps boundaries (`SOCK_SEQPACKET`): one message, one frame. It has two ends and no names but its path.
//! Who comes first listens there, who comes second connects; two that come at once are not both first (module
//! `socket_path`). Who comes third, while the first keeps its listener, is told that both ends are taken. A frame that
//! finds the other side too slow is lost, as on a wire.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, accept4, bind,
    connect, listen, recv, send, shutdown, socket,
};

use crate::accepting;
use crate::socket_path::{Occupant, PathClaim, SocketPathError, TakenPath};

/// The longest frame: a jumbo frame of 9978 bytes, and then some.
pub(crate) const FRAME_BYTES: usize = 16 << 10;

/// One end of a wire. Clones share it.
#[derive(Clone, Debug)]
pub struct FrameSocket {
    fd: Arc<OwnedFd>,
}

/// What was found at a path.
#[derive(Debug)]
pub enum FrameEnd {
    /// The other side listens there, and this is the wire to it.
    Second(FrameSocket),
    /// Nobody was there, so we listen now.
    First(FrameListener),
}

/// Waits for the other side.
#[derive(Debug)]
pub struct FrameListener {
    /// Free again before the socket is closed.
    _taken: TakenPath,
    fd: OwnedFd,
}

impl FrameEnd {
    /// Connects to a path, or listens there if nobody does.
    ///
    /// # Errors
    /// `AddrInUse`: both ends of the wire are taken. Or something else is at the path, which stays as it is
    /// ([`SocketPathError`](crate::SocketPathError)), or what else the system answered.
    pub fn at(path: &Path) -> io::Result<Self> {
        let claim = PathClaim::new(path)?;
        let address = UnixAddr::new(path)?;
        let mut has_met = false;
        if claim.occupant()? == Occupant::Somebody {
            let fd = open_socket()?;
            match connect(fd.as_raw_fd(), &address) {
                Ok(()) => return Ok(Self::Second(FrameSocket::new(fd))),
                // Its socket is there and listens no more: it has met its other end.
                Err(Errno::ECONNREFUSED) => has_met = true,
                // Whoever was there has just left, or is no wire's end: the claim will say.
                Err(Errno::ENOENT | Errno::EPROTOTYPE) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let bound = claim.bind(|_| {
            let fd = open_socket()?;
            bind(fd.as_raw_fd(), &address)?;
            listen(&fd, Backlog::new(1)?)?;
            Ok(fd)
        });
        let (fd, taken) = match bound {
            Err(SocketPathError::InUse { path }) if has_met => {
                let path = path.display();
                let what = format!("{path}: both ends of this wire are taken by other functions");
                return Err(io::Error::new(ErrorKind::AddrInUse, what));
            }
            bound => bound?,
        };
        Ok(Self::First(FrameListener { _taken: taken, fd }))
    }
}

impl FrameListener {
    /// Waits until the other side is there. Nobody else can come then: a third is refused until this is dropped, by
    /// which the path is free again.
    ///
    /// # Errors
    /// What the system answered; EINVAL after [`FrameListener::shut`].
    // UNSAFETY: a descriptor arrives as a number and is taken into ownership.
    #[expect(unsafe_code, reason = "an accepted descriptor")]
    pub fn accept(&self) -> io::Result<FrameSocket> {
        let fd = accepting::next("a wire's end", || {
            Ok(accept4(self.fd.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?)
        })?;
        // SAFETY: the kernel has just made this descriptor for us; nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        self.shut();
        Ok(FrameSocket::new(fd))
    }

    /// Ends the wait of whoever accepts.
    pub fn shut(&self) {
        shut(self.fd.as_raw_fd());
    }
}

/// Ends both directions of a socket. Whoever waits at it is woken.
pub(crate) fn shut(fd: RawFd) {
    // It fails where nobody is connected; who waits there is woken all the same.
    let _none_there = shutdown(fd, Shutdown::Both);
}

fn open_socket() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

impl FrameSocket {
    fn new(fd: OwnedFd) -> Self {
        Self { fd: Arc::new(fd) }
    }

    /// Two ends of a wire within a process.
    ///
    /// # Errors
    /// What the system answered.
    pub fn pair() -> io::Result<[Self; 2]> {
        let (one, other) = nix::sys::socket::socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        Ok([one, other].map(Self::new))
    }

    /// Sends a frame without waiting. False: there was no room, and the frame is lost.
    ///
    /// # Errors
    /// The other side is gone, or the frame is longer than any (EMSGSIZE).
    pub fn send(&self, frame: &[u8]) -> io::Result<bool> {
        if frame.is_empty() || frame.len() > FRAME_BYTES {
            return Err(Errno::EMSGSIZE.into());
        }
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        loop {
            match send(self.fd.as_fd().as_raw_fd(), frame, flags) {
                Ok(_) => return Ok(true),
                Err(Errno::EAGAIN | Errno::ENOBUFS) => return Ok(false),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends a frame, and waits for room so long at most. False: there was none, and the frame is lost.
    ///
    /// # Errors
    /// As [`FrameSocket::send`].
    pub fn send_within(&self, frame: &[u8], patience: Duration) -> io::Result<bool> {
        let until = Instant::now() + patience;
        loop {
            if self.send(frame)? {
                return Ok(true);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut room = [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)];
            match poll(&mut room, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Takes our leave: the other side reads what was sent, and then that nobody is there. Whoever waits for a frame
    /// here is woken.
    pub fn shut(&self) {
        shut(self.fd.as_raw_fd());
    }

    /// Waits for a frame. `None`: the other side is gone.
    ///
    /// # Errors
    /// The frame is longer than any (`InvalidData`; it is lost), or what the system answered.
    pub fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        let mut frame = vec![0; FRAME_BYTES];
        loop {
            // The real length comes back even if it did not fit.
            match recv(self.fd.as_raw_fd(), &mut frame, MsgFlags::MSG_TRUNC) {
                Ok(0) | Err(Errno::ECONNRESET) => return Ok(None),
                Ok(bytes) if bytes > FRAME_BYTES => {
                    let what = format!("a frame of {bytes} bytes");
                    return Err(io::Error::new(ErrorKind::InvalidData, what));
                }
                Ok(bytes) => {
                    frame.truncate(bytes);
                    return Ok(Some(frame));
                }
                Err(Errno::EINTR) => {}
                // The frame waits for memory.
                Err(errno @ (Errno::ENOMEM | Errno::ENOBUFS)) => {
                    tracing::warn!("a wire's end: recv: {errno}; trying again");
                    accepting::pause();
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_first_listens_and_who_comes_second_connects() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wire");
        for _ in 0..2 {
            let FrameEnd::First(listener) = FrameEnd::at(&path).unwrap() else {
                panic!("nobody was there");
            };
            let FrameEnd::Second(second) = FrameEnd::at(&path).unwrap() else {
                panic!("somebody listens");
            };
            let first = listener.accept().unwrap();
            let third = FrameEnd::at(&path).unwrap_err();
            assert_eq!(third.kind(), ErrorKind::AddrInUse);
            assert!(third.to_string().contains("both ends"), "{third}");
            drop(listener);
            assert!(first.send(b"one").unwrap() && first.send(b"two").unwrap());
            assert!(second.send(&[7; 9000]).unwrap());
            assert_eq!(second.receive().unwrap().unwrap(), b"one");
            assert_eq!(second.receive().unwrap().unwrap(), b"two");
            assert_eq!(first.receive().unwrap().unwrap(), [7; 9000]);
            drop(second);
            assert!(first.receive().unwrap().is_none());
            assert!(first.send(b"nobody").is_err());
        }
    }

    #[test]
    fn who_waits_at_a_socket_is_woken_when_it_is_shut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wire");
        let FrameEnd::First(listener) = FrameEnd::at(&path).unwrap() else {
            panic!("nobody was there");
        };
        let [one, other] = FrameSocket::pair().unwrap();
        std::thread::scope(|scope| {
            let accepts = scope.spawn(|| listener.accept());
            let receives = scope.spawn(|| one.receive());
            listener.shut();
            let refused = accepts.join().unwrap().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
            assert!(one.send(b"last words").unwrap());
            one.shut();
            assert!(receives.join().unwrap().unwrap().is_none());
        });
        assert_eq!(other.receive().unwrap().unwrap(), b"last words");
        assert!(other.receive().unwrap().is_none());
        // Who waits afterwards does not wait either.
        assert!(listener.accept().is_err() && one.receive().unwrap().is_none());
    }

    #[test]
    fn a_socket_left_by_the_dead_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wire");
        // As a killed process leaves it: closed, and the path still there.
        let left = open_socket().unwrap();
        bind(left.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&left, Backlog::new(1).unwrap()).unwrap();
        drop(left);
        assert!(path.exists());
        let end = FrameEnd::at(&path).unwrap();
        assert!(matches!(end, FrameEnd::First(_)));
        drop(end);
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_frame_that_finds_no_room_is_lost_and_one_that_is_none_is_refused() {
        let [one, other] = FrameSocket::pair().unwrap();
        let mut sent: u32 = 0;
        while one.send(&[1; 9000]).unwrap() {
            sent += 1;
        }
        for _ in 0..sent {
            assert_eq!(other.receive().unwrap().unwrap().len(), 9000);
        }
        // Whoever waits for room gets it when the other side makes some, and gives up otherwise.
        while one.send(&[1; 9000]).unwrap() {}
        let patience = Duration::from_millis(1);
        assert!(!one.send_within(&[2; 9000], patience).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                one.send_within(&[2; 9000], Duration::from_secs(60))
                    .unwrap()
            });
            while other.receive().unwrap().unwrap() != [2; 9000] {}
        });
        assert!(one.send(&[]).is_err() && one.send(&[0; FRAME_BYTES + 1]).is_err());
        // Somebody who is not us sends what no frame is.
        send(one.fd.as_raw_fd(), &[0; FRAME_BYTES + 1], MsgFlags::empty()).unwrap();
        assert_eq!(other.receive().unwrap_err().kind(), ErrorKind::InvalidData);
        assert!(one.send(b"on it goes").unwrap());
        assert_eq!(other.receive().unwrap().unwrap(), b"on it goes");
    }
}
