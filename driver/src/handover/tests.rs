use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::channel::{Channel, Kind, MAX_FDS};
use super::file::HandoverFile;
use super::socket::{await_receiver_by, receive_by};
use super::*;
use crate::clock::{Instant, monotonic_now};

mod conversation;
mod deaths;
mod descriptor_store;
mod files;
mod functions;
mod hostile;
mod processes;
mod stored;

const SNAPSHOT: &[u8] = b"a snapshot";

/// Returns a deadline that no test reaches unless it fails.
fn far() -> Instant {
    monotonic_now() + Duration::from_secs(300)
}

/// Returns false unless the socket is ready: the deadline passes as soon as a process would have to wait.
fn at_once(fd: BorrowedFd<'_>, events: PollFlags) -> io::Result<bool> {
    let mut fds = [PollFd::new(fd, events)];
    Ok(poll(&mut fds, PollTimeout::ZERO)? > 0)
}

/// Lets one test at a time have hundreds of descriptors, because the usual limit of a process is 1024 (RLIMIT_NOFILE).
fn many_descriptors() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a connection. A drop would not, if a child process that another test forks has a copy of the socket.
fn hang_up(socket: &impl AsFd) {
    use std::os::fd::AsRawFd;
    let socket = socket.as_fd().as_raw_fd();
    nix::sys::socket::shutdown(socket, nix::sys::socket::Shutdown::Both).expect("a connection");
}

/// Makes a connected pair of sockets.
fn pair() -> (OwnedFd, OwnedFd) {
    let (one, other) = UnixStream::pair().expect("a pair");
    (one.into(), other.into())
}

/// Makes a file with this content.
fn memory(content: &str) -> OwnedFd {
    let fd = memfd_create("test", MFdFlags::MFD_CLOEXEC).expect("a memfd");
    let mut file = File::from(fd);
    file.write_all(content.as_bytes()).expect("a write");
    file.into()
}

/// Returns the content of a file that [`memory`] has made.
fn content(fd: &OwnedFd) -> String {
    use std::os::unix::fs::FileExt;
    let file = File::from(fd.try_clone().expect("a duplicate"));
    let length = file.metadata().expect("fstat").len();
    let mut bytes = vec![0; usize::try_from(length).expect("a length")];
    file.read_exact_at(&mut bytes, 0).expect("a read");
    String::from_utf8(bytes).expect("text")
}

/// Makes `count` descriptors with the names `memory-0` and so on. Each file contains its name.
fn descriptors(count: usize) -> Vec<NamedFd> {
    let named = (0..count).map(|number| {
        let name = format!("memory-{number}");
        let fd = memory(&name);
        NamedFd { name, fd }
    });
    named.collect()
}

/// Checks that these are the descriptors that [`descriptors`] makes.
fn assert_are_all(found: &[NamedFd], count: usize) {
    assert_eq!(found.len(), count);
    for (number, named) in found.iter().enumerate() {
        assert_eq!(named.name, format!("memory-{number}"));
        assert_eq!(content(&named.fd), named.name);
    }
}

/// The read end of a pipe whose write end is handed over. It shows whether the write end is still open.
struct Watch(File);

impl Watch {
    fn new(name: &str) -> (Self, NamedFd) {
        let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).expect("a pipe");
        let named = NamedFd {
            name: name.to_owned(),
            fd: write,
        };
        (Self(read.into()), named)
    }

    /// Waits until the write end is closed everywhere. A child process that another test starts at this moment has a
    /// copy until it executes its program.
    fn wait_until_closed(mut self) {
        let is_over = crate::readable::poll_ready(self.0.as_fd(), PollFlags::POLLIN, far());
        assert!(is_over.expect("a poll"), "a descriptor has leaked");
        let mut byte = [0];
        assert_eq!(self.0.read(&mut byte).expect("a read"), 0);
    }
}

/// Sends bytes with descriptors, as no peer of ours would.
fn send_raw(socket: &impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let slices = [io::IoSlice::new(bytes)];
    let sent = sendmsg(socket, &slices, &mut control, SendFlags::NOSIGNAL).expect("a message");
    assert_eq!(sent, bytes.len());
}

/// Makes a message of one header.
fn header(kind: u32, number: u32, text_bytes: u32) -> Vec<u8> {
    use zerocopy::IntoBytes;
    use zerocopy::little_endian::U32;
    let numbers = [kind, number, text_bytes].map(U32::new);
    [&b"hand"[..], numbers.as_bytes()].concat()
}

/// One end of a socket in the hands of a test, which sends and receives single messages.
struct Peer {
    channel: Channel,
    socket: OwnedFd,
}

impl Drop for Peer {
    fn drop(&mut self) {
        hang_up(&self.socket);
    }
}

impl Peer {
    fn new(socket: OwnedFd) -> Self {
        let ours = socket.try_clone().expect("a duplicate");
        Self {
            channel: Channel::new(socket).expect("a socket"),
            socket: ours,
        }
    }

    /// Waits until the other end has hung up.
    fn wait_for_hang_up(&self) {
        let nothing = self
            .channel
            .receive("for nothing", &mut super::channel::until(far()));
        assert!(
            matches!(nothing, Err(HandoverError::HungUp { .. })),
            "{nothing:?}"
        );
    }

    fn send(&self, kind: Kind, number: u32, text: &[u8], fds: &[BorrowedFd<'_>]) {
        let sent = self
            .channel
            .send("to send", (kind, number, text), fds, &mut at_once);
        sent.expect("a message");
    }

    fn receive(&self) -> super::channel::Message {
        self.channel
            .receive("for a message", &mut at_once)
            .expect("a message")
    }

    /// Receives the file of the handover.
    fn file(&self) -> HandoverFile {
        let mut offer = self.receive();
        assert_eq!(offer.kind, Kind::Offer);
        let fd = offer.fds.pop().expect("a file");
        let (file, contents) = HandoverFile::read(fd).expect("a file");
        assert_eq!(contents.snapshot, SNAPSHOT);
        file
    }
}
