//! Ethernet frames between processes: a wire that is a UNIX socket with shared memory beside it.
//!
//! The socket keeps message boundaries (`SOCK_SEQPACKET`): one message, one frame. The wire has two ends, and its path
//! is its only name. The first process listens at the path, and the second connects; if two start at once, only one of
//! them becomes the first (module `socket_path`). While the second is connected, it occupies another path, `PATH.2`. A
//! third process finds `PATH.2` occupied, even if the first has not accepted the second yet, or finds that the first
//! does not listen any more because it is connected. In both cases the third gets the error that both ends are taken.
//! A frame is lost if the other side is too slow, as on a wire.
//!
//! The first side offers memory for two rings ([`frame_ring`](crate::frame_ring)). Each side then announces on the
//! socket that its frames will be in its ring, and sends all later frames through the ring:
//!
//! ```text
//!    first                               second
//!      |--- offer, with the memory -------->|      frames go over the socket, both ways
//!      |<------------ frames by memory -----|      from here on frames of the second are in its ring
//!      |--- frames by memory -------------->|      and frames of the first in the first's
//!      |<--- wake / wake ------------------>|      to a side whose flag in the memory says that it sleeps
//! ```
//!
//! The socket still carries these control messages and the end of the connection. A side takes all frames that were
//! sent before the end, and only then reports the end. The control messages are shorter than the header of a frame. A
//! peer that does not know them (an older version, a foreign program) drops them as broken frames, and all frames go
//! over the socket. An unknown control message is dropped here, too.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, accept4, bind,
    connect, listen, send, shutdown, socket,
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::accepting;
use crate::clock::{Instant as Moment, Woken, monotonic_now};
use crate::frame_ring::{FRAME_BYTES, RINGS_BYTES, Reader, Side, Writer, fresh};
use crate::interrupt::Interrupt;
use crate::memory::SharedMemory;
use crate::real_clock::poll_until;
use crate::signals::HeldSignals;
use crate::socket_path::{Occupant, PathClaim, SocketPathError, TakenPath};

/// Prefix of a control message. One byte with the message's kind follows.
const CONTROL_PREFIX: &[u8; 7] = b"frames1";
/// Offers the memory, which comes with the message.
const OFFER: u8 = 1;
/// Announces that all later frames of the sender are in the sender's ring.
const BY_MEMORY: u8 = 2;
/// Wakes the receiver: there is a frame in the ring.
const WAKE: u8 = 3;
const CONTROL_BYTES: usize = CONTROL_PREFIX.len() + 1;

/// Maximum number of messages that one call of `FrameSocket::take` receives. A peer that sends control messages without
/// end does not keep a thread in the call.
const MAX_MESSAGES: usize = 16;

/// Time between two checks of a sender for free space in its full ring.
const FREE_SPACE_CHECK: Duration = Duration::from_micros(50);

/// One end of a wire. Clones share it.
#[derive(Clone, Debug)]
pub struct FrameSocket {
    end: Arc<End>,
}

#[derive(Debug)]
struct End {
    /// Path of the second end. This field is declared, and so dropped, before the socket: the path is freed first.
    _taken: Option<TakenPath>,
    fd: OwnedFd,
    /// Writer of our ring, once this side sends its frames by memory. The lock keeps frames in order.
    sends: Mutex<Option<Writer>>,
    /// Reader of the other side's ring, once that side has announced that it sends its frames by memory.
    reader: OnceLock<Reader>,
    /// Shared memory and our side of it. The holder of the lock may take frames.
    taking: Mutex<Option<(SharedMemory, Side)>>,
}

/// Result of taking a frame without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// A frame.
    Frame,
    /// No frame yet.
    Nothing,
    /// The other side is gone; no more frames will come.
    Gone,
}

/// Reason why a wait at a wire ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// A frame has arrived by memory.
    ByMemory,
    /// The socket is readable: a frame, a control message, or the end.
    AtSocket,
    /// The wait ended for another reason: an interrupt, the deadline or a signal.
    Not(Woken),
}

/// Our end of the wire at a path.
#[derive(Debug)]
pub enum FrameEnd {
    /// The other side listens at the path, and this socket is connected to it.
    Second(FrameSocket),
    /// Nothing listened at the path, so this side listens now.
    First(FrameListener),
}

/// Listener that waits for the other side.
#[derive(Debug)]
pub struct FrameListener {
    /// Our path. This field is declared, and so dropped, before the socket: the path is freed first.
    _taken: TakenPath,
    fd: OwnedFd,
}

impl FrameEnd {
    /// Connects to a path, or listens there if there is no listener.
    ///
    /// # Errors
    /// `AddrInUse`: both ends of the wire are taken, or the first end has not accepted earlier connections that have
    /// ended. [`SocketPathError`](crate::SocketPathError): something else is at the path, and stays unchanged. Other
    /// errors: a system call failed.
    pub fn at(path: &Path) -> io::Result<Self> {
        let claim = PathClaim::new(path)?;
        let address = UnixAddr::new(path)?;
        let mut was_refused = false;
        if claim.occupant()? == Occupant::Process {
            let second = FrameSocket::named(&second(path)).map_err(|error| {
                let error = io::Error::from(error);
                if error.kind() == ErrorKind::AddrInUse {
                    both_ends_taken(path)
                } else {
                    error
                }
            })?;
            match connect(second.fd(), &address) {
                Ok(()) => return Ok(Self::Second(second)),
                // The socket exists but does not listen any more: the first end is connected already.
                Err(Errno::ECONNREFUSED) => was_refused = true,
                // The listener's queue is full of connections that are closed already: only one second end exists at a
                // time.
                Err(Errno::EAGAIN) => return Err(not_accepted(path)),
                // The listener has just closed, or the path is no end of a wire. In the second case `claim.bind` below
                // fails.
                Err(Errno::ENOENT | Errno::EPROTOTYPE) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let bound = claim.bind(|_| {
            let fd = open_socket(SockFlag::empty())?;
            bind(fd.as_raw_fd(), &address)?;
            listen(&fd, Backlog::new(1)?)?;
            Ok(fd)
        });
        let (fd, taken) = match bound {
            Err(SocketPathError::InUse { path }) if was_refused => {
                return Err(both_ends_taken(&path));
            }
            bound => bound?,
        };
        Ok(Self::First(FrameListener { _taken: taken, fd }))
    }
}

/// Returns the path of the second end.
fn second(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".2");
    name.into()
}

fn both_ends_taken(path: &Path) -> io::Error {
    let path = path.display();
    let what = format!(
        "{path}: both ends of this wire are taken by other functions: three or more programs need a switch, \
         `datctl sim serve --socket A --socket B --socket C --switch rate=100G`, and each opens \
         vfio-user:SOCKET,address=IP/24"
    );
    io::Error::new(ErrorKind::AddrInUse, what)
}

fn not_accepted(path: &Path) -> io::Error {
    let what = format!(
        "{}: the first end of this wire has not accepted earlier connections, which have ended",
        path.display()
    );
    io::Error::new(ErrorKind::AddrInUse, what)
}

impl FrameListener {
    /// Waits until the other side connects. Only one side can connect: a third side is refused until this listener is
    /// dropped, which frees the path.
    ///
    /// # Errors
    /// Error of the system; EINVAL after [`FrameListener::shut`].
    // UNSAFETY: a descriptor arrives as a number and is taken into ownership.
    #[expect(unsafe_code, reason = "an accepted descriptor")]
    pub fn accept(&self) -> io::Result<FrameSocket> {
        let fd = accepting::next("a wire's end", || {
            Ok(accept4(self.fd.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?)
        })?;
        // SAFETY: the kernel has just made this descriptor for us; no other code knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        self.shut();
        let socket = FrameSocket::new(fd);
        socket.offer();
        Ok(socket)
    }

    /// Wakes threads that wait in [`accept`](Self::accept).
    pub fn shut(&self) {
        shut(self.fd.as_raw_fd());
    }
}

/// Shuts down both directions of a socket, which wakes threads that wait for it.
pub(crate) fn shut(fd: RawFd) {
    // An unconnected socket returns an error, but its waiters are woken nevertheless.
    let _none_there = shutdown(fd, Shutdown::Both);
}

fn open_socket(flags: SockFlag) -> nix::Result<OwnedFd> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FrameSocket {
    fn new(fd: OwnedFd) -> Self {
        Self::at_name(fd, None)
    }

    fn at_name(fd: OwnedFd, taken: Option<TakenPath>) -> Self {
        let end = End {
            _taken: taken,
            fd,
            sends: Mutex::default(),
            reader: OnceLock::new(),
            taking: Mutex::default(),
        };
        Self { end: Arc::new(end) }
    }

    /// Makes a socket at a path of its own, not connected yet. The socket is nonblocking: the caller connects it while
    /// the caller holds the lock of another path, and connect(2) waits without limit if the listener's queue is full.
    /// All other calls on the socket ask not to wait, so this flag changes nothing for them.
    fn named(path: &Path) -> Result<Self, SocketPathError> {
        let (fd, taken) = PathClaim::new(path)?.bind(|path| {
            let fd = open_socket(SockFlag::SOCK_NONBLOCK)?;
            bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
            Ok(fd)
        })?;
        Ok(Self::at_name(fd, Some(taken)))
    }

    fn fd(&self) -> RawFd {
        self.end.fd.as_raw_fd()
    }

    /// Makes two ends of a wire within a process; all their frames go over the socket.
    ///
    /// # Errors
    /// Error of the system.
    pub fn pair() -> io::Result<[Self; 2]> {
        let (one, other) = nix::sys::socket::socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        Ok([one, other].map(Self::new))
    }

    /// Offers shared memory to the other side. If this fails, all frames go over the socket.
    fn offer(&self) {
        let memory = match fresh() {
            Ok(memory) => memory,
            Err(error) => {
                tracing::warn!("a wire without shared memory: {error}");
                return;
            }
        };
        let Some(file) = memory.as_fd() else {
            return;
        };
        match self.send_control(OFFER, &[file]) {
            Ok(()) => *locked(&self.end.taking) = Some((memory, Side::Maker)),
            Err(error) => tracing::warn!("a wire without shared memory: {error}"),
        }
    }

    /// Sends a control message; fails instead of waiting if the socket is full.
    fn send_control(&self, word: u8, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes = [word; CONTROL_BYTES];
        bytes[..CONTROL_PREFIX.len()].copy_from_slice(CONTROL_PREFIX);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match sendmsg(&self.end.fd, &[IoSlice::new(&bytes)], &mut control, flags) {
                Ok(CONTROL_BYTES) => return Ok(()),
                // A message sent in part is useless.
                Ok(_) => return Err(ErrorKind::WriteZero.into()),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Announces that this side sends its frames through the ring, and does so from now on. If the announcement cannot
    /// be sent, frames stay on the socket.
    fn send_by_memory(&self, memory: &SharedMemory, side: Side) {
        let mut sends = locked(&self.end.sends);
        if sends.is_some() {
            return;
        }
        match self.send_control(BY_MEMORY, &[]) {
            Ok(()) => *sends = Some(Writer::new(memory.clone(), side)),
            Err(error) => tracing::debug!("frames go over the socket: {error}"),
        }
    }

    /// Returns whether the other side's frames come by memory.
    #[must_use]
    pub fn is_by_memory(&self) -> bool {
        self.end.reader.get().is_some()
    }

    /// Sends a frame without waiting. Returns false if the ring or the socket is full; then the frame is lost.
    ///
    /// # Errors
    /// EMSGSIZE: the frame is empty, exceeds the longest frame, or is a control message. Other errors: the other side
    /// has ended or has corrupted the shared memory, or a system call failed.
    pub fn send(&self, frame: &[u8]) -> io::Result<bool> {
        let is_control = frame.len() == CONTROL_BYTES && frame.starts_with(CONTROL_PREFIX);
        if frame.is_empty() || frame.len() > FRAME_BYTES || is_control {
            return Err(Errno::EMSGSIZE.into());
        }
        let mut sends = locked(&self.end.sends);
        if let Some(writer) = &mut *sends {
            let pushed = writer.push(frame).map_err(io::Error::other)?;
            if pushed
                && writer.must_wake()
                && let Err(error) = self.send_control(WAKE, &[])
            {
                // The next frame sends the wake that this one could not send.
                writer.wake_failed();
                let is_gone = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
                if is_gone.contains(&error.kind()) {
                    return Err(error);
                }
            }
            return Ok(pushed);
        }
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        loop {
            match send(self.fd(), frame, flags) {
                Ok(_) => return Ok(true),
                Err(Errno::EAGAIN | Errno::ENOBUFS) => return Ok(false),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends a frame, and waits up to `patience` while the ring or the socket is full. Returns false if it stayed full;
    /// then the frame is lost.
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
            if locked(&self.end.sends).is_some() {
                // No event reports free space in the ring, so it is checked repeatedly.
                poll_until(
                    &[],
                    None,
                    monotonic_now() + FREE_SPACE_CHECK.min(left),
                    None,
                );
                continue;
            }
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut room = [PollFd::new(self.end.fd.as_fd(), PollFlags::POLLOUT)];
            match poll(&mut room, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Shuts the wire down: the other side reads the frames sent so far, and then the end. Threads that wait for a
    /// frame here are woken.
    pub fn shut(&self) {
        shut(self.fd());
    }

    /// Returns whether a frame has arrived by memory. Costs one read of the memory.
    #[must_use]
    pub fn has_some(&self) -> bool {
        self.end.reader.get().is_some_and(Reader::has_some)
    }

    /// Requests that the other side send a wake message with its next frame by memory, which ends a sleep of this side.
    /// Returns false if the ring already has a frame.
    #[must_use]
    pub fn arm(&self) -> bool {
        self.end.reader.get().is_none_or(Reader::arm)
    }

    /// Takes a frame that has arrived by memory, without a system call. Returns false if there is none.
    ///
    /// # Errors
    /// The other side has corrupted the shared memory.
    pub fn take_by_memory(&self, frame: &mut Vec<u8>) -> io::Result<bool> {
        let Some(reader) = self.end.reader.get() else {
            return Ok(false);
        };
        let _taking = locked(&self.end.taking);
        reader.pop(frame).map_err(io::Error::other)
    }

    /// Takes a frame, without waiting for one. After [`Taken::Nothing`] the socket may still be readable, because the
    /// call handles a limited number of control messages.
    ///
    /// # Errors
    /// A frame exceeds the longest frame (`InvalidData`; it is lost), the other side has corrupted the shared memory,
    /// or another error of the system.
    pub fn take(&self, frame: &mut Vec<u8>) -> io::Result<Taken> {
        let mut taking = locked(&self.end.taking);
        let by_memory = |frame: &mut Vec<u8>| match self.end.reader.get() {
            Some(reader) => reader.pop(frame).map_err(io::Error::other),
            None => Ok(false),
        };
        for _ in 0..MAX_MESSAGES {
            if by_memory(frame)? {
                return Ok(Taken::Frame);
            }
            frame.resize(FRAME_BYTES, 0);
            let (bytes, given) = match self.message(frame)? {
                None => return Ok(Taken::Nothing),
                // The last frame may have arrived since the read of the ring above.
                Some((0, _)) if by_memory(frame)? => return Ok(Taken::Frame),
                Some((0, _)) => return Ok(Taken::Gone),
                Some(message) => message,
            };
            if bytes > FRAME_BYTES {
                let what = format!("a frame of {bytes} bytes");
                return Err(io::Error::new(ErrorKind::InvalidData, what));
            }
            frame.truncate(bytes);
            match frame.strip_prefix(CONTROL_PREFIX) {
                Some(&[word]) => self.handle_control(word, given, &mut taking),
                _ => return Ok(Taken::Frame),
            }
        }
        Ok(Taken::Nothing)
    }

    /// Receives the next message at the socket: its length and a descriptor that came with it. A length of 0 means
    /// that the other side is gone. `None`: there is no message.
    fn message(&self, bytes: &mut [u8]) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = recvmsg(
                &self.end.fd,
                &mut [IoSliceMut::new(bytes)],
                &mut control,
                flags,
            );
            match received {
                Ok(received) => {
                    // This process owns all received descriptors; unused ones are closed.
                    let given = control.drain().find_map(|message| {
                        if let RecvAncillaryMessage::ScmRights(mut rights) = message {
                            rights.next()
                        } else {
                            None
                        }
                    });
                    // With TRUNC the real length is returned even if the message did not fit.
                    return Ok(Some((received.bytes, given)));
                }
                Err(rustix::io::Errno::CONNRESET) => return Ok(Some((0, None))),
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR) => {}
                // The frame stays queued until the system has memory.
                Err(errno @ (rustix::io::Errno::NOMEM | rustix::io::Errno::NOBUFS)) => {
                    tracing::warn!("a wire's end: recvmsg: {errno}; trying again");
                    accepting::pause();
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Handles a control message. Ignores an unexpected message.
    fn handle_control(
        &self,
        word: u8,
        given: Option<OwnedFd>,
        taking: &mut Option<(SharedMemory, Side)>,
    ) {
        match (word, given) {
            (OFFER, Some(file)) if taking.is_none() => {
                match SharedMemory::imported(file, 0, RINGS_BYTES) {
                    Ok(memory) => {
                        self.send_by_memory(&memory, Side::Other);
                        *taking = Some((memory, Side::Other));
                    }
                    Err(error) => tracing::warn!("frames go over the socket: {error}"),
                }
            }
            (BY_MEMORY, _) => {
                if let Some((memory, side)) = taking {
                    self.end
                        .reader
                        .get_or_init(|| Reader::new(memory.clone(), *side));
                    self.send_by_memory(memory, *side);
                }
            }
            _ => {}
        }
    }

    /// Waits until there may be a frame to take. `looks` is the time for which this thread polls the memory before it
    /// sleeps.
    ///
    /// # Errors
    /// Error of the system.
    pub fn wait(&self, looks: Duration) -> io::Result<Arrived> {
        if let Some(reader) = self.end.reader.get() {
            let until = Instant::now() + looks;
            loop {
                if reader.has_some() {
                    return Ok(Arrived::ByMemory);
                }
                if Instant::now() >= until {
                    break;
                }
                (0..64).for_each(|_| std::hint::spin_loop());
            }
            if !reader.arm() {
                return Ok(Arrived::ByMemory);
            }
        }
        let mut frames = [PollFd::new(self.end.fd.as_fd(), PollFlags::POLLIN)];
        match poll(&mut frames, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(Arrived::AtSocket),
            Err(Errno::ENOMEM) => {
                accepting::pause();
                Ok(Arrived::AtSocket)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sleeps until an interrupt is pending, a signal arrives, the deadline has passed, or there may be a frame to
    /// take.
    #[must_use]
    pub fn wait_beside(
        &self,
        interrupts: &[Interrupt],
        deadline: Moment,
        signals: Option<&HeldSignals>,
    ) -> Arrived {
        let has_some = self.end.reader.get().is_some_and(|reader| !reader.arm());
        let is_over = monotonic_now() >= deadline;
        if has_some || is_over {
            // A constant stream of frames must not hide the interrupts and the deadline of the wait.
            return match poll_until(interrupts, None, Moment(0), signals) {
                Some(Woken::Deadline) if !is_over => Arrived::ByMemory,
                woken => Arrived::Not(woken.unwrap_or(Woken::Deadline)),
            };
        }
        match poll_until(interrupts, Some(self.end.fd.as_fd()), deadline, signals) {
            None => Arrived::AtSocket,
            Some(woken) => Arrived::Not(woken),
        }
    }

    /// Waits for a frame. `None`: the other side is gone.
    ///
    /// # Errors
    /// As [`FrameSocket::take`].
    pub fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        let mut frame = Vec::new();
        loop {
            match self.take(&mut frame)? {
                Taken::Frame => return Ok(Some(frame)),
                Taken::Gone => return Ok(None),
                Taken::Nothing => {
                    self.wait(Duration::ZERO)?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_process_listens_and_the_second_connects() {
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
    fn a_third_is_refused_before_the_first_has_accepted_the_second() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wire");
        let FrameEnd::First(listener) = FrameEnd::at(&path).unwrap() else {
            panic!("nobody was there");
        };
        let FrameEnd::Second(second) = FrameEnd::at(&path).unwrap() else {
            panic!("somebody listens");
        };
        for _ in 0..2 {
            let third = FrameEnd::at(&path).unwrap_err();
            assert_eq!(third.kind(), ErrorKind::AddrInUse);
            let said = third.to_string();
            assert!(said.contains("both ends"), "{said}");
            assert!(said.contains("datctl sim serve --socket A"), "{said}");
            assert!(said.contains("--switch rate=100G"), "{said}");
        }
        // If a second end closes before the first has accepted it, its path is free again.
        drop(second);
        let FrameEnd::Second(second) = FrameEnd::at(&path).unwrap() else {
            panic!("somebody listens");
        };
        assert!(listener.accept().unwrap().receive().unwrap().is_none());
        drop(listener);
        assert!(second.receive().unwrap().is_none(), "to come again");
        drop(second);
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    }

    /// A listener with a backlog of 1 queues two connections, and a connection that is closed before it is accepted
    /// stays in the queue (Linux `net/unix/af_unix.c`, `unix_recvq_full`).
    #[test]
    fn a_first_that_accepts_nobody_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wire");
        let FrameEnd::First(listener) = FrameEnd::at(&path).unwrap() else {
            panic!("nobody was there");
        };
        for _ in 0..2 {
            let left = FrameEnd::at(&path).unwrap();
            assert!(matches!(left, FrameEnd::Second(_)));
        }
        let refused = FrameEnd::at(&path).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        let said = refused.to_string();
        assert!(
            said.contains("wire: the first end") && said.contains("not accepted"),
            "{said}"
        );
        assert!(listener.accept().unwrap().receive().unwrap().is_none());
        drop(listener);
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn the_name_of_a_second_that_was_killed_is_taken_by_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wire");
        let left = open_socket(SockFlag::empty()).unwrap();
        bind(left.as_raw_fd(), &UnixAddr::new(&second(&path)).unwrap()).unwrap();
        drop(left);
        let FrameEnd::First(_listener) = FrameEnd::at(&path).unwrap() else {
            panic!("nobody was there");
        };
        assert!(matches!(FrameEnd::at(&path).unwrap(), FrameEnd::Second(_)));
    }

    #[test]
    fn a_thread_that_waits_at_a_socket_is_woken_when_it_is_shut() {
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
        // A later wait returns at once, too.
        assert!(listener.accept().is_err() && one.receive().unwrap().is_none());
    }

    #[test]
    fn a_socket_left_by_a_killed_process_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wire");
        // The state that a killed process leaves: the socket closed, and the path still there.
        let left = open_socket(SockFlag::empty()).unwrap();
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
        // A sender that waits for space continues when the other side takes frames, and otherwise gives up.
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
        // A foreign program sends a message that is no frame.
        send(one.fd(), &[0; FRAME_BYTES + 1], MsgFlags::empty()).unwrap();
        assert_eq!(other.receive().unwrap_err().kind(), ErrorKind::InvalidData);
        assert!(one.send(b"on it goes").unwrap());
        assert_eq!(other.receive().unwrap().unwrap(), b"on it goes");
    }

    fn first_and_second() -> [FrameSocket; 2] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("wire");
        let FrameEnd::First(listener) = FrameEnd::at(&path).unwrap() else {
            panic!("nobody was there");
        };
        let FrameEnd::Second(second) = FrameEnd::at(&path).unwrap() else {
            panic!("somebody listens");
        };
        [listener.accept().unwrap(), second]
    }

    #[test]
    fn frames_go_by_memory_once_both_have_said_so_and_none_overtakes_another() {
        let [first, second] = first_and_second();
        assert!(first.send(b"one").unwrap());
        assert_eq!(second.receive().unwrap().unwrap(), b"one");
        assert!(second.send(&[2; FRAME_BYTES]).unwrap());
        assert!(!first.is_by_memory(), "it has not been told");
        assert!(first.send(b"three").unwrap());
        assert_eq!(first.receive().unwrap().unwrap(), [2; FRAME_BYTES]);
        assert!(first.is_by_memory());
        assert!(first.send(b"four").unwrap());
        assert_eq!(second.receive().unwrap().unwrap(), b"three");
        assert!(!second.has_some(), "it has not been told");
        assert_eq!(second.receive().unwrap().unwrap(), b"four");
        assert!(second.is_by_memory());
        assert!(first.send(b"five").unwrap());
        let mut frame = Vec::new();
        assert!(second.has_some() && second.take_by_memory(&mut frame).unwrap());
        assert_eq!(frame, b"five");
        // Two sides that sleep answer each other's frames.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let frame = second.receive().unwrap().unwrap();
                    assert!(second.send(&frame).unwrap());
                }
            });
            for turn in 0..1000_u32 {
                assert!(first.send(&turn.to_be_bytes()).unwrap());
                assert_eq!(first.receive().unwrap().unwrap(), turn.to_be_bytes());
            }
        });
        // A frame sent before the end is received.
        assert!(first.send(b"last words").unwrap());
        first.shut();
        assert_eq!(second.receive().unwrap().unwrap(), b"last words");
        assert!(second.receive().unwrap().is_none());
    }

    #[test]
    fn a_sleeper_whose_wake_up_another_thread_took_is_woken_by_the_next_frame() {
        let [first, second] = first_and_second();
        second.take(&mut Vec::new()).unwrap();
        first.take(&mut Vec::new()).unwrap();
        second.take(&mut Vec::new()).unwrap();
        let is_woken = || {
            let mut socket = [PollFd::new(second.end.fd.as_fd(), PollFlags::POLLIN)];
            poll(&mut socket, PollTimeout::ZERO).unwrap() == 1
        };
        let take = || second.take(&mut Vec::new()).unwrap();
        assert!(second.arm());
        assert!(first.send(b"one").unwrap() && is_woken());
        assert_eq!([take(), take()], [Taken::Frame, Taken::Nothing]);
        assert!(first.send(b"two").unwrap() && !is_woken());
        assert!(!second.arm(), "one has come");
        assert_eq!(take(), Taken::Frame);
        assert!(second.arm());
        assert!(first.send(b"three").unwrap() && is_woken());
    }

    /// A wake message that the full socket refuses is sent with the next frame.
    #[test]
    fn a_wake_that_found_no_room_is_sent_with_the_next_frame() {
        let [first, second] = first_and_second();
        second.take(&mut Vec::new()).unwrap();
        first.take(&mut Vec::new()).unwrap();
        second.take(&mut Vec::new()).unwrap();
        assert!(second.arm());
        while first.send_control(WAKE, &[]).is_ok() {}
        assert!(first.send(b"one").unwrap(), "the frame is in the ring");
        while second.message(&mut [0; FRAME_BYTES]).unwrap().is_some() {}
        assert!(first.send(b"two").unwrap());
        let mut socket = [PollFd::new(second.end.fd.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut socket, PollTimeout::ZERO).unwrap(), 1);
    }

    /// A peer that sends nothing but control messages does not keep a thread that takes a frame.
    #[test]
    fn a_call_that_takes_a_frame_ends_however_many_control_messages_arrive() {
        let [one, other] = FrameSocket::pair().unwrap();
        while one.send_control(WAKE, &[]).is_ok() {}
        assert_eq!(other.take(&mut Vec::new()).unwrap(), Taken::Nothing);
        let mut socket = [PollFd::new(other.end.fd.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut socket, PollTimeout::ZERO).unwrap(), 1);
        assert!(one.send(b"a frame").unwrap());
        assert_eq!(other.receive().unwrap().unwrap(), b"a frame");
    }

    #[test]
    fn a_full_ring_takes_a_frame_when_the_other_side_has_made_room() {
        let [first, second] = first_and_second();
        assert!(second.take(&mut Vec::new()).unwrap() == Taken::Nothing);
        assert!(first.take(&mut Vec::new()).unwrap() == Taken::Nothing);
        while first.send(&[1; 9000]).unwrap() {}
        assert!(!first.send_within(&[2; 9000], FREE_SPACE_CHECK).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let patience = Duration::from_secs(60);
                assert!(first.send_within(&[2; 9000], patience).unwrap());
            });
            while second.receive().unwrap().unwrap() != [2; 9000] {}
        });
    }

    #[test]
    fn a_wait_beside_a_wire_is_ended_by_frames_interrupts_and_time() {
        let [first, second] = first_and_second();
        second.take(&mut Vec::new()).unwrap();
        first.take(&mut Vec::new()).unwrap();
        second.take(&mut Vec::new()).unwrap();
        let interrupts = [Interrupt::new().unwrap()];
        let wait = |until| second.wait_beside(&interrupts, until, None);
        assert_eq!(wait(Moment(0)), Arrived::Not(Woken::Deadline));
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(first.send(b"frame").unwrap()));
            let arrived = wait(Moment(u64::MAX));
            let by_either = matches!(arrived, Arrived::AtSocket | Arrived::ByMemory);
            assert!(by_either, "{arrived:?}");
        });
        assert_eq!(second.receive().unwrap().unwrap(), b"frame");
        // Frames do not hide an interrupt or the deadline.
        assert!(first.send(b"more").unwrap());
        assert_eq!(wait(Moment(u64::MAX)), Arrived::ByMemory);
        assert_eq!(wait(Moment(0)), Arrived::Not(Woken::Deadline));
        interrupts[0].signal();
        assert_eq!(wait(Moment(u64::MAX)), Arrived::Not(Woken::Interrupt));
        assert_eq!(interrupts[0].take(), 1);
        assert_eq!(second.receive().unwrap().unwrap(), b"more");
        interrupts[0].signal();
        let mut waits = std::iter::repeat_with(|| {
            assert_eq!(second.take(&mut Vec::new()).unwrap(), Taken::Nothing);
            wait(Moment(u64::MAX))
        });
        let woken = waits.find(|arrived| *arrived != Arrived::AtSocket);
        assert_eq!(woken, Some(Arrived::Not(Woken::Interrupt)));
    }

    #[test]
    fn a_word_out_of_turn_and_memory_that_is_none_change_nothing() {
        let [one, other] = FrameSocket::pair().unwrap();
        let file = nix::sys::memfd::memfd_create("no", nix::sys::memfd::MFdFlags::empty());
        let file = file.unwrap();
        for word in [BY_MEMORY, WAKE, OFFER, 0, 99] {
            one.send_control(word, &[]).unwrap();
        }
        // The offered file could be truncated while it is mapped, so the offer is refused.
        one.send_control(OFFER, &[file.as_fd()]).unwrap();
        one.send_control(BY_MEMORY, &[]).unwrap();
        assert!(one.send(b"a frame").unwrap());
        assert_eq!(other.receive().unwrap().unwrap(), b"a frame");
        assert!(!other.is_by_memory());
        assert!(other.send(b"another").unwrap());
        assert_eq!(one.receive().unwrap().unwrap(), b"another");
        let word = one.send(b"frames1\x02").unwrap_err();
        assert_eq!(word.raw_os_error(), Some(Errno::EMSGSIZE as i32));
        // A longer frame that begins like a control message is an ordinary frame.
        assert!(one.send(b"frames1 is no word").unwrap());
        assert_eq!(other.receive().unwrap().unwrap(), b"frames1 is no word");
    }
}
