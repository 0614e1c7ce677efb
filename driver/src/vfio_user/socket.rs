//! Messages over a stream socket, with their descriptors.
//!
//! A message is sent with one `sendmsg`, with its descriptors attached to the first byte. The receiver reads exactly
//! the bytes of one message, header first, so the descriptors received meanwhile belong to that message. They are owned
//! as soon as they are received, even those of a refused message: dropping the message closes the unused descriptors.
//!
//! Both directions have a time limit. The other side may be idle between messages for any time. But it must complete a
//! message that has begun within twice [`PATIENCE`], even if its bytes arrive one by one, and so must a send.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};
use zerocopy::{FromBytes, IntoBytes};

use super::message::{
    Command, ERROR, HEADER_BYTES, Header, MAX_FDS, MAX_PAYLOAD, TYPE_MASK, TYPE_REPLY,
};
use crate::clock::{Instant, monotonic_now};
use crate::readable::pause_for_others;

/// Time that the other side has to read a message, or to complete one that has begun.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Length of the longest message that [`Socket::discard_next`] drops. Replies with a register have at most 40 bytes.
const LONGEST_DISCARDED: usize = 256;

/// Length of the longest message that is received while the connection is shared. A process that has not claimed a
/// function asks for registers, and the longest reply is the description of a region with its capabilities.
const LONGEST_SHARED: usize = 4096;

/// Pause between two looks at a queue that has a part of a message.
const PEEK_PAUSE_MS: u8 = 1;

/// A received message.
pub(crate) struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

impl Message {
    /// Returns `None` if this message is not the reply to message `id`, `Some(Err)` with the errno if it is a refusal.
    pub(crate) fn is_reply_to(&self, id: u16, command: Command) -> Option<Result<(), Errno>> {
        let (header, flags) = (&self.header, self.header.flags.get());
        let is_it = header.id.get() == id
            && header.command.get() == command.0
            && flags & TYPE_MASK == TYPE_REPLY;
        is_it.then(|| {
            if flags & ERROR == 0 {
                return Ok(());
            }
            let errno = i32::try_from(header.error.get());
            Err(errno.map_or(Errno::UnknownErrno, Errno::from_raw))
        })
    }
}

/// Returns the flags and the errno for the header of a reply with this result.
pub(crate) fn reply_status<T>(answer: &Result<T, Errno>) -> (u32, u32) {
    match answer {
        Ok(_) => (TYPE_REPLY, 0),
        // An errno is a positive number, so the conversion does not change it.
        Err(errno) => (TYPE_REPLY | ERROR, (*errno as i32).unsigned_abs()),
    }
}

/// One end of a connection.
pub(crate) struct Socket {
    stream: UnixStream,
    patience: Duration,
    now: fn() -> Instant,
    /// True while other processes may use the connection after this one. Then a message is taken from the queue as a
    /// whole, because the rest of a message would end the connection for all.
    is_shared: AtomicBool,
}

impl Socket {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        Self::with_patience(stream, PATIENCE)
    }

    /// Makes a socket with a time limit other than `PATIENCE`.
    pub(crate) fn with_patience(stream: UnixStream, patience: Duration) -> io::Result<Self> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self {
            stream,
            patience,
            now: monotonic_now,
            is_shared: AtomicBool::new(false),
        })
    }

    /// Says whether other processes may use the connection after this one.
    pub(crate) fn set_shared(&self, is_shared: bool) {
        self.is_shared.store(is_shared, Ordering::Relaxed);
    }

    /// Sets the clock that measures the time limits.
    pub(crate) fn by(mut self, now: fn() -> Instant) -> Self {
        self.now = now;
        self
    }

    /// Makes a connected pair: our end, and the descriptor of the other end, which is to be sent to another process.
    pub(crate) fn pair(patience: Duration) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self::with_patience(ours, patience)?, theirs.into()))
    }

    /// Returns the descriptor.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Checks that the other side is connected and has sent nothing that was not received.
    pub(crate) fn check_quiet(&self) -> io::Result<()> {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(&self.stream, &mut byte, flags) {
            Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno.into()),
            Ok((_, 0)) => Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "the other side has hung up",
            )),
            Ok(_) => Err(io::Error::new(
                ErrorKind::InvalidData,
                "the other side has sent something that was not asked for, or a reply was not received",
            )),
        }
    }

    /// Receives and drops the next message, if all of it has arrived and `is_expected` returns true for its header.
    /// Does not wait. Returns false if no message was dropped.
    ///
    /// If the message has descriptors for which this process has no room (RLIMIT_NOFILE), its header is dropped, its
    /// payload stays unread, and the result is an error.
    pub(crate) fn discard_next(
        &self,
        is_expected: impl FnOnce(&Header) -> bool,
    ) -> io::Result<bool> {
        let mut start = [0; LONGEST_DISCARDED];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let Ok((_, bytes)) = recv(&self.stream, &mut start, flags) else {
            return Ok(false);
        };
        let Some((header, _)) = split::<Header>(&start[..bytes]) else {
            return Ok(false);
        };
        let size = usize::try_from(header.size.get()).unwrap_or(usize::MAX);
        if !(HEADER_BYTES..=bytes).contains(&size) || !is_expected(&header) {
            return Ok(false);
        }
        Ok(self.receive(|| false)?.is_some())
    }

    /// Shuts the connection down, which wakes waiters at both ends.
    pub(crate) fn shut_down(&self) {
        // The call fails if the connection is already shut down.
        let _over = self.stream.shutdown(Shutdown::Both);
    }

    /// Sends the concatenated parts as one message, with descriptors.
    pub(crate) fn send(&self, parts: &[&[u8]], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let begun = (self.now)();
        let mut sent = 0;
        while sent < total {
            let mut skip = sent;
            let slices: Vec<IoSlice<'_>> = parts
                .iter()
                .filter_map(|part| {
                    let gone = skip.min(part.len());
                    skip -= gone;
                    part.get(gone..)
                        .filter(|rest| !rest.is_empty())
                        .map(IoSlice::new)
                })
                .collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            // The descriptors are attached to the first byte.
            if sent == 0 && !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(too_many(fds.len()));
            }
            match sendmsg(&self.stream, &slices, &mut control, SendFlags::NOSIGNAL) {
                Ok(bytes) => sent += bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno @ rustix::io::Errno::TOOMANYREFS) => {
                    self.check(begun).map_err(|_late| io::Error::from(errno))?;
                    pause_for_others();
                }
                Err(errno) => return Err(self.timed(errno)),
            }
            if sent < total {
                self.check(begun)?;
            }
        }
        Ok(())
    }

    /// Receives the next message. Returns `None` if the other side closed the connection between two messages, or if
    /// nothing arrived within the time limit and `idle` returned false.
    pub(crate) fn receive(&self, mut idle: impl FnMut() -> bool) -> io::Result<Option<Message>> {
        if self.is_shared.load(Ordering::Relaxed) {
            return self.receive_whole();
        }
        let mut fds = Vec::new();
        let mut header = [0; HEADER_BYTES];
        let first = loop {
            match self.read(&mut header, &mut fds) {
                Ok(0) => return Ok(None),
                Ok(bytes) => break bytes,
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    if !idle() {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error),
            }
        };
        let begun = (self.now)();
        self.fill(&mut header[first..], &mut fds, begun)?;
        // PANIC: the array has the header's size, and every bit pattern is a header.
        let header = Header::read_from_bytes(&header).expect("a header's bytes");
        let size = usize::try_from(header.size.get()).unwrap_or(usize::MAX);
        let payload_bytes = size
            .checked_sub(HEADER_BYTES)
            .filter(|&bytes| bytes <= MAX_PAYLOAD);
        let Some(payload_bytes) = payload_bytes else {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("a message of {size:#x} bytes"),
            ));
        };
        let mut payload = vec![0; payload_bytes];
        self.fill(&mut payload, &mut fds, begun)?;
        Ok(Some(Message {
            header,
            payload,
            fds,
        }))
    }

    /// Receives the next message of at most [`LONGEST_SHARED`] bytes, once all of it has arrived. Until then, it stays
    /// in the queue, also if this process dies.
    fn receive_whole(&self) -> io::Result<Option<Message>> {
        let mut bytes = [0; LONGEST_SHARED];
        if self.peek(&mut bytes[..1])? == 0 {
            return Ok(None);
        }
        let begun = (self.now)();
        let header = self.peek_all(&mut bytes[..HEADER_BYTES], begun)?;
        // PANIC: the slice has the header's size, and every bit pattern is a header.
        let header = Header::read_from_bytes(header).expect("a header's bytes");
        let size = usize::try_from(header.size.get()).unwrap_or(usize::MAX);
        if !(HEADER_BYTES..=LONGEST_SHARED).contains(&size) {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!(
                    "a message of {size:#x} bytes, and at most {LONGEST_SHARED:#x} are expected"
                ),
            ));
        }
        self.peek_all(&mut bytes[..size], begun)?;
        let mut fds = Vec::new();
        let first = self.read(&mut bytes[..size], &mut fds)?;
        // The kernel ends a read behind descriptors, although there are further bytes.
        self.fill(&mut bytes[first..size], &mut fds, begun)?;
        Ok(Some(Message {
            header,
            payload: bytes[HEADER_BYTES..size].to_vec(),
            fds,
        }))
    }

    /// Copies bytes from the queue without taking them, and returns their number. Waits for the first one. Returns 0 if
    /// the other side has closed the connection.
    fn peek(&self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match recv(&self.stream, &mut *out, RecvFlags::PEEK) {
                Ok((_, bytes)) => return Ok(bytes.min(out.len())),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(self.timed(errno)),
            }
        }
    }

    /// Waits until as many bytes of a message have arrived as `out` has, and copies them without taking them from the
    /// queue. The message began to arrive at `begun`. `MSG_WAITALL` does not wait beside `MSG_PEEK`
    /// (Linux `unix_stream_read_generic`), and poll(2) cannot wait for a number of bytes, so the queue is looked at
    /// again and again.
    fn peek_all<'a>(&self, out: &'a mut [u8], begun: Instant) -> io::Result<&'a [u8]> {
        while self.peek(out)? < out.len() {
            self.check(begun)?;
            // A hang-up is reported although no event is asked for.
            let mut closed = [PollFd::new(self.stream.as_fd(), PollFlags::empty())];
            match poll(&mut closed, PEEK_PAUSE_MS) {
                // Bytes may have arrived before the close.
                Ok(1) if self.peek(out)? < out.len() => {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(out)
    }

    /// Fills `out` with further bytes of a message that began to arrive at `begun`.
    fn fill(&self, out: &mut [u8], fds: &mut Vec<OwnedFd>, begun: Instant) -> io::Result<()> {
        let mut have = 0;
        while have < out.len() {
            match self.read(&mut out[have..], fds)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                bytes => have += bytes,
            }
            if have < out.len() {
                self.check(begun)?;
            }
        }
        Ok(())
    }

    /// Makes one `recvmsg`. It is an error if a message has more descriptors than allowed, or if this process's
    /// descriptor table had too few free entries.
    fn read(&self, out: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut slices = [IoSliceMut::new(out)];
            match recvmsg(
                &self.stream,
                &mut slices,
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(received) => break received,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(self.timed(errno)),
            }
        };
        // All received descriptors must be owned before an error is returned: if the list was truncated, the kernel has
        // still installed the part that fitted.
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                format!(
                    "descriptors were cut off: more than {MAX_FDS} in a message, or no room for them here (RLIMIT_NOFILE)"
                ),
            ));
        }
        if fds.len() > MAX_FDS {
            return Err(too_many(fds.len()));
        }
        Ok(received.bytes)
    }

    /// Returns an error if the message that began at `begun` has exceeded its time limit.
    fn check(&self, begun: Instant) -> io::Result<()> {
        if (self.now)().since(begun) < self.patience {
            return Ok(());
        }
        Err(io::Error::new(
            ErrorKind::TimedOut,
            format!("a message is not finished after {:?}", self.patience),
        ))
    }

    /// Converts an error. EAGAIN means that the socket's timeout expired.
    fn timed(&self, errno: rustix::io::Errno) -> io::Error {
        if errno == rustix::io::Errno::AGAIN {
            io::Error::new(
                ErrorKind::TimedOut,
                format!("the other side is silent for {:?}", self.patience),
            )
        } else {
            errno.into()
        }
    }
}

fn too_many(fds: usize) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        format!("a message with {fds} descriptors, the limit is {MAX_FDS}"),
    )
}

/// Splits a payload into the object it begins with, and the rest.
pub(crate) fn split<T: FromBytes>(payload: &[u8]) -> Option<(T, &[u8])> {
    T::read_from_prefix(payload).ok()
}

/// Makes a header.
pub(crate) fn header(
    id: u16,
    command: u16,
    payload_bytes: usize,
    flags: u32,
    error: u32,
) -> Header {
    // PANIC: payloads are shorter than MAX_PAYLOAD.
    let size = u32::try_from(HEADER_BYTES + payload_bytes).expect("a message below 4 GiB");
    Header {
        id: id.into(),
        command: command.into(),
        size: size.into(),
        flags: flags.into(),
        error: error.into(),
    }
}

/// Sends a message that consists of a header and the parts of its payload, with descriptors.
pub(crate) fn send(
    socket: &Socket,
    (id, command, flags, error): (u16, u16, u32, u32),
    payload: &[&[u8]],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = payload.iter().map(|part| part.len()).sum();
    let header = header(id, command, bytes, flags, error);
    let mut parts = vec![header.as_bytes()];
    parts.extend_from_slice(payload);
    socket.send(&parts, fds)
}
