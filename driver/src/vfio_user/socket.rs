//! Messages over a stream socket, with the descriptors that come along.
//!
//! A message is sent with one `sendmsg`, its descriptors at its first byte. Reading takes exactly the bytes of one
//! message, header first, so the descriptors that arrive meanwhile are that message's. They are owned
//! from the moment they are here: whoever does not use them closes them by dropping the message.
//!
//! Both directions have a bound: the other side may be idle between messages for as long as it likes, but a message that
//! has begun is finished within [`PATIENCE`], and so is a send.

// UNSAFETY: descriptors arrive as numbers and are taken into ownership.
#![expect(unsafe_code, reason = "received descriptors")]

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};
use zerocopy::{FromBytes, IntoBytes};

use super::message::{HEADER_BYTES, Header, MAX_FDS, MAX_PAYLOAD};

/// How long the other side may take to read what it asked for, or to finish what it began.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A received message.
pub(crate) struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// One end of a connection.
pub(crate) struct Socket {
    stream: UnixStream,
}

impl Socket {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream })
    }

    /// Sends the parts as one message.
    pub(crate) fn send(&self, parts: &[&[u8]], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
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
            // The descriptors go with the first byte.
            let control = if sent == 0 && !raw.is_empty() {
                &rights[..]
            } else {
                &[]
            };
            match sendmsg::<UnixAddr>(
                self.stream.as_raw_fd(),
                &slices,
                control,
                MsgFlags::MSG_NOSIGNAL,
                None,
            ) {
                Ok(bytes) => sent += bytes,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(timed(errno)),
            }
        }
        Ok(())
    }

    /// Receives the next message. `None` if the other side closed the connection between two messages, or if `idle`
    /// says no when nothing has arrived for a while.
    pub(crate) fn receive(&self, mut idle: impl FnMut() -> bool) -> io::Result<Option<Message>> {
        let mut fds = Vec::new();
        let mut header = [0; HEADER_BYTES];
        let mut have = 0;
        while have < HEADER_BYTES {
            match self.read(&mut header[have..], &mut fds) {
                Ok(0) if have == 0 => return Ok(None),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => have += bytes,
                Err(error) if have == 0 && error.kind() == ErrorKind::TimedOut => {
                    if !idle() {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error),
            }
        }
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
        let mut have = 0;
        while have < payload_bytes {
            match self.read(&mut payload[have..], &mut fds)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                bytes => have += bytes,
            }
        }
        Ok(Some(Message {
            header,
            payload,
            fds,
        }))
    }

    /// One `recvmsg`. More descriptors than a message may have are an error, as are descriptors that did not
    /// fit this process's table.
    fn read(&self, out: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut control = cmsg_space!([RawFd; MAX_FDS]);
        loop {
            let mut slices = [IoSliceMut::new(out)];
            let received = recvmsg::<UnixAddr>(
                self.stream.as_raw_fd(),
                &mut slices,
                Some(&mut control),
                MsgFlags::MSG_CMSG_CLOEXEC,
            );
            let received = match received {
                Ok(received) => received,
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(timed(errno)),
            };
            for message in received.cmsgs()? {
                if let ControlMessageOwned::ScmRights(raw) = message {
                    for fd in raw {
                        // SAFETY: the kernel just installed this descriptor in our table for us; the number is read
                        // once, and nobody else was told of it.
                        fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
                    }
                }
            }
            if fds.len() > MAX_FDS {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    format!("a message with {} descriptors", fds.len()),
                ));
            }
            return Ok(received.bytes);
        }
    }
}

/// The bound of a socket shows as EAGAIN.
fn timed(errno: Errno) -> io::Error {
    if errno == Errno::EAGAIN {
        io::Error::new(
            ErrorKind::TimedOut,
            format!("the other side is silent for {PATIENCE:?}"),
        )
    } else {
        errno.into()
    }
}

/// The object a payload begins with, and what follows.
pub(crate) fn split<T: FromBytes>(payload: &[u8]) -> Option<(T, &[u8])> {
    T::read_from_prefix(payload).ok()
}

/// A header.
pub(crate) fn header(
    id: u16,
    command: u16,
    payload_bytes: usize,
    flags: u32,
    error: u32,
) -> Header {
    // PANIC: payloads are at most MAX_PAYLOAD.
    let size = u32::try_from(HEADER_BYTES + payload_bytes).expect("a message below 4 GiB");
    Header {
        id: id.into(),
        command: command.into(),
        size: size.into(),
        flags: flags.into(),
        error: error.into(),
    }
}

/// The bytes of a message: header and parts of the payload.
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
