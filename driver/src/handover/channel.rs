//! Messages of a handover over a connected UNIX stream socket, with their descriptors.
//!
//! A message is a header of 16 bytes and at most [`MAX_TEXT`] bytes of text. Its descriptors are attached to its first
//! byte. The receiver reads exactly the bytes of one message, so the descriptors that it receives meanwhile belong to
//! that message. They are owned as soon as they are received: when a message is refused, they are closed.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::poll::PollFlags;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::MAX_REASON;
use super::error::HandoverError;
use crate::clock::{Instant, monotonic_now};
use crate::readable::{pause_for_others, poll_ready};

/// Maximum number of descriptors in a message (unix(7), `SCM_RIGHTS`; Linux `include/net/scm.h`, `SCM_MAX_FD`).
pub(super) const MAX_FDS: usize = 253;
/// Maximum length of a message's text.
const MAX_TEXT: usize = MAX_REASON;
/// Step of a message that is sent.
pub(super) const TO_SEND: &str = "to send";
const MAGIC: [u8; 4] = *b"hand";
const HEADER_BYTES: usize = 16;
/// Space for the descriptors of a message, and for the credentials that the kernel adds if the program has set
/// `SO_PASSCRED`.
const CONTROL_BYTES: usize = rustix::cmsg_space!(ScmRights(MAX_FDS), ScmCredentials(1));

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 4],
    kind: U32,
    number: U32,
    text_bytes: U32,
}
static_assertions::const_assert_eq!(size_of::<Header>(), HEADER_BYTES);

/// Kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Kind {
    /// The receiver is ready. The number has the lowest version of the protocol that it knows, in the upper 16 bits,
    /// and the highest.
    Ready = 1,
    /// The sender offers the file of the handover, which is attached. The number is that of the descriptors.
    Offer = 2,
    /// Descriptors. The number is that of the descriptors in this message.
    Descriptors = 3,
    /// The receiver has claimed the handover, and goes on with the functions.
    Adopted = 4,
    /// The receiver refuses the handover, and has not claimed it; or the sender knows no version of the receiver's. The
    /// text is the reason.
    Refused = 5,
    /// The receiver has claimed the handover, and cannot go on with the functions. The text is the reason.
    Failed = 6,
}

impl Kind {
    fn of(number: u32) -> Option<Self> {
        let all = [
            Self::Ready,
            Self::Offer,
            Self::Descriptors,
            Self::Adopted,
            Self::Refused,
            Self::Failed,
        ];
        all.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// A message. `number` has another meaning for each kind.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) number: u32,
    pub(super) text: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

/// Waits until a socket is ready for the events. Returns false if the deadline has passed.
pub(super) type Wait<'a> = dyn FnMut(BorrowedFd<'_>, PollFlags) -> io::Result<bool> + 'a;

/// Returns a wait with a deadline. After the deadline, a socket does not count as ready even if it is: otherwise a peer
/// that sends single bytes would prolong it.
pub(super) fn until(
    deadline: Instant,
) -> impl FnMut(BorrowedFd<'_>, PollFlags) -> io::Result<bool> {
    move |fd, events| Ok(monotonic_now() < deadline && poll_ready(fd, events, deadline)?)
}

/// One end of the socket.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Takes a connected socket whose other end was made by this user or by root (unix(7), `SO_PEERCRED`).
    pub(super) fn new(socket: OwnedFd) -> Result<Self, HandoverError> {
        let peer = getsockopt(&socket, PeerCredentials)
            .map_err(|errno| HandoverError::system("getsockopt(SO_PEERCRED)")(errno.into()))?;
        check_peer(peer.pid(), peer.uid(), geteuid().as_raw())?;
        let kind = rustix::net::sockopt::socket_type(&socket)
            .map_err(|errno| HandoverError::system("getsockopt(SO_TYPE)")(errno.into()))?;
        if kind != rustix::net::SocketType::STREAM {
            let source = io::Error::from(io::ErrorKind::Unsupported);
            return Err(HandoverError::system(
                "getsockopt(SO_TYPE) of the handover's socket, which is no stream socket",
            )(source));
        }
        Ok(Self { socket })
    }

    /// Sends a message.
    pub(super) fn send(
        &self,
        step: &'static str,
        (kind, number, text): (Kind, u32, &[u8]),
        fds: &[BorrowedFd<'_>],
        wait: &mut Wait<'_>,
    ) -> Result<(), HandoverError> {
        // PANIC: callers send at most MAX_TEXT bytes.
        let text_bytes = u32::try_from(text.len()).expect("a short text");
        let header = Header {
            magic: MAGIC,
            kind: (kind as u32).into(),
            number: number.into(),
            text_bytes: text_bytes.into(),
        };
        let bytes = [header.as_bytes(), text].concat();
        let mut sent = 0;
        while sent < bytes.len() {
            let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if sent == 0 && !fds.is_empty() {
                let fits = control.push(SendAncillaryMessage::ScmRights(fds));
                assert!(fits, "{} descriptors in a message", fds.len());
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let slices = [IoSlice::new(&bytes[sent..])];
            match sendmsg(&self.socket, &slices, &mut control, flags) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(step, PollFlags::POLLOUT, wait)?,
                Err(errno @ Errno::TOOMANYREFS) => {
                    pause_for_others();
                    // The socket has room: this call only checks whether the time is up.
                    match self.wait(step, PollFlags::POLLOUT, wait) {
                        Err(HandoverError::Silent { .. }) => {
                            return Err(HandoverError::system("sendmsg")(errno.into()));
                        }
                        checked => checked?,
                    }
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(HandoverError::HungUp { step }),
                Err(errno) => return Err(HandoverError::system("sendmsg")(errno.into())),
            }
        }
        Ok(())
    }

    /// Sends the receiver's answer if the socket has room for it. At most [`MAX_REASON`] bytes of the reason are sent.
    /// The sender of a handover has sent everything and reads, so there is room unless it has died.
    pub(super) fn answer(&self, kind: Kind, reason: &str) {
        let mut length = reason.len().min(MAX_REASON);
        while !reason.is_char_boundary(length) {
            length -= 1;
        }
        let answer = (kind, 0, &reason.as_bytes()[..length]);
        if let Err(error) = self.send(TO_SEND, answer, &[], &mut |_, _| Ok(false)) {
            tracing::debug!("the sender does not learn the answer, {kind:?} {reason:?}: {error}");
        }
    }

    /// Ends this end's direction, so that the other end does not wait for messages. The other end can still send.
    pub(super) fn end_sending(&self) {
        // The call fails if the other end has hung up.
        let _over = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }

    /// Waits until the other end is closed. This end has [ended](Self::end_sending) its direction.
    pub(super) fn wait_for_hang_up(&self, deadline: Instant) -> Result<(), HandoverError> {
        let is_over = poll_ready(self.socket.as_fd(), PollFlags::empty(), deadline)
            .map_err(|errno| HandoverError::system("ppoll")(errno.into()))?;
        let step = "for the other process to close its end";
        is_over.then_some(()).ok_or(HandoverError::Silent { step })
    }

    /// Receives a message.
    pub(super) fn receive(
        &self,
        step: &'static str,
        wait: &mut Wait<'_>,
    ) -> Result<Message, HandoverError> {
        let mut fds = Vec::new();
        let mut header = [0; HEADER_BYTES];
        self.fill(step, &mut header, &mut fds, wait)?;
        // PANIC: the array has the header's size, and every bit pattern is a header.
        let header = Header::read_from_bytes(&header).expect("a header's bytes");
        let unexpected = |what: String| Err(HandoverError::Unexpected { step, what });
        if header.magic != MAGIC {
            return unexpected(format!("{:02x?}, which begins no message", header.magic));
        }
        let Some(kind) = Kind::of(header.kind.get()) else {
            return unexpected(format!("a message of kind {}", header.kind));
        };
        let text_bytes = usize::try_from(header.text_bytes.get()).unwrap_or(usize::MAX);
        if text_bytes > MAX_TEXT {
            return unexpected(format!(
                "a text of {text_bytes} bytes, the limit is {MAX_TEXT}"
            ));
        }
        let mut text = vec![0; text_bytes];
        self.fill(step, &mut text, &mut fds, wait)?;
        Ok(Message {
            kind,
            number: header.number.get(),
            text,
            fds,
        })
    }

    fn fill(
        &self,
        step: &'static str,
        out: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        wait: &mut Wait<'_>,
    ) -> Result<(), HandoverError> {
        let mut filled = 0;
        while filled < out.len() {
            self.wait(step, PollFlags::POLLIN, wait)?;
            let mut space = [MaybeUninit::uninit(); CONTROL_BYTES];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let mut slices = [IoSliceMut::new(&mut out[filled..])];
            let received = match recvmsg(&self.socket, &mut slices, &mut control, flags) {
                Ok(received) => received,
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(Errno::CONNRESET) => return Err(HandoverError::HungUp { step }),
                Err(errno) => return Err(HandoverError::system("recvmsg")(errno.into())),
            };
            // All received descriptors must be owned before an error is returned: if the list was truncated, the kernel
            // has still installed the part that fitted.
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    fds.extend(rights);
                }
            }
            if received.flags.contains(ReturnFlags::CTRUNC) {
                return Err(HandoverError::Cut { step });
            }
            if fds.len() > MAX_FDS {
                return Err(HandoverError::Unexpected {
                    step,
                    what: format!("a message with more than {MAX_FDS} descriptors"),
                });
            }
            match received.bytes {
                0 => return Err(HandoverError::HungUp { step }),
                bytes => filled += bytes,
            }
        }
        Ok(())
    }

    fn wait(
        &self,
        step: &'static str,
        events: PollFlags,
        wait: &mut Wait<'_>,
    ) -> Result<(), HandoverError> {
        match wait(self.socket.as_fd(), events) {
            Ok(true) => Ok(()),
            Ok(false) => Err(HandoverError::Silent { step }),
            Err(source) => Err(HandoverError::system("ppoll")(source)),
        }
    }
}

/// Checks that the other end belongs to this user or to root.
pub(super) fn check_peer(pid: i32, uid: u32, own: u32) -> Result<(), HandoverError> {
    // A socket without a peer has user 4294967295. Process 0 may also be one of another PID namespace.
    if uid == own || uid == 0 {
        return Ok(());
    }
    Err(HandoverError::Peer { pid, uid, own })
}
