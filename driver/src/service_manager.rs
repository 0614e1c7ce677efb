//! The service manager, systemd, and messages to it: lines in a datagram to the socket that `NOTIFY_SOCKET` names
//! (sd_notify(3)), with descriptors for its store (sd_pid_notify_with_fds(3)).
//!
//! systemd handles the datagrams of a service in the order in which they were sent. A message with `BARRIER=1` has the
//! write end of a pipe, which systemd closes when it has handled all earlier messages (sd_notify_barrier(3)). That does
//! not mean that it has accepted them: it drops messages of processes that `NotifyAccess=` excludes, and descriptors
//! for which its store has no room, without a report.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::fcntl::OFlag;
use nix::poll::PollFlags;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::pipe2;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use thiserror::Error;

use crate::clock::{Instant, monotonic_now};
use crate::readable::{pause_for_others, poll_ready};
use crate::rights::caller_variable;

/// Reason why a message did not reach the service manager, or was not handled.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServiceManagerError {
    /// `NOTIFY_SOCKET` is neither an absolute path nor `@` and a name, or is too long.
    #[error(
        "NOTIFY_SOCKET is {address:?}, {} bytes: it must be an absolute path or @NAME of less than 108 bytes",
        address.len()
    )]
    Address {
        /// Value of the variable.
        address: String,
    },
    /// The deadline has passed.
    #[error("the service manager has not {what} before the deadline")]
    Silent {
        /// The missing reaction.
        what: &'static str,
    },
    /// A system call failed.
    #[error("service manager: {call}: {source}")]
    System {
        /// The system call.
        call: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

fn system(call: &'static str) -> impl Fn(nix::errno::Errno) -> ServiceManagerError {
    move |errno| ServiceManagerError::System {
        call,
        source: errno.into(),
    }
}

/// The service manager of this process.
#[derive(Clone, Debug)]
pub struct ServiceManager {
    address: UnixAddr,
    /// Number of places in the store.
    room: Option<u64>,
    /// True if the store has kept a descriptor of this process.
    keeps: bool,
}

impl ServiceManager {
    /// Returns the service manager that `NOTIFY_SOCKET` names; `None` if the variable is not set, or if the program has
    /// more rights than its caller, whose variables are then ignored.
    ///
    /// # Errors
    /// [`ServiceManagerError::Address`].
    pub fn of_environment() -> Result<Option<Self>, ServiceManagerError> {
        let Some(address) = caller_variable("NOTIFY_SOCKET") else {
            return Ok(None);
        };
        let room = caller_variable("FDSTORE").and_then(|room| room.to_str()?.parse().ok());
        Self::at(address.as_bytes(), room).map(Some)
    }

    pub(crate) fn at(address: &[u8], room: Option<u64>) -> Result<Self, ServiceManagerError> {
        let made = match address {
            [b'@', name @ ..] if !name.is_empty() => UnixAddr::new_abstract(name).ok(),
            [b'/', ..] => UnixAddr::new(address).ok(),
            _ => None,
        };
        let address = made.ok_or_else(|| ServiceManagerError::Address {
            address: String::from_utf8_lossy(address).into_owned(),
        })?;
        Ok(Self {
            address,
            room,
            keeps: false,
        })
    }

    /// Returns the number of places in the descriptor store of this service, if the service manager reports it
    /// (`FDSTORE`, systemd 254).
    #[must_use]
    pub const fn store_room(&self) -> Option<u64> {
        self.room
    }

    /// Returns the same service manager, whose store has kept a descriptor of this process.
    pub(crate) fn with_checked_store(&self) -> Self {
        Self {
            keeps: true,
            ..self.clone()
        }
    }

    /// Returns whether descriptors for which there are places are kept: the store has kept one, and the service manager
    /// reports the number of places.
    pub(crate) const fn keeps(&self) -> bool {
        self.keeps && self.room.is_some()
    }

    /// Sends a message: lines of the form `NAME=value`. Waits until `deadline`, of the machine's monotonic clock, if
    /// the service manager's queue is full.
    ///
    /// # Errors
    /// [`ServiceManagerError::Silent`], [`ServiceManagerError::System`].
    pub fn notify(&self, state: &str, deadline: Instant) -> Result<(), ServiceManagerError> {
        self.connect()?.send(state, &[], deadline)
    }

    /// Connects a socket. Its messages arrive in their order.
    pub(crate) fn connect(&self) -> Result<Messenger, ServiceManagerError> {
        let kind = (
            AddressFamily::Unix,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
        );
        let socket = socket(kind.0, kind.1, kind.2, None).map_err(system("socket"))?;
        // poll(2) reports room in the queue of the other side only for a connected socket.
        connect(socket.as_raw_fd(), &self.address).map_err(system("connect to NOTIFY_SOCKET"))?;
        Ok(Messenger { socket })
    }
}

/// A socket that is connected to the service manager.
pub(crate) struct Messenger {
    socket: OwnedFd,
}

impl Messenger {
    /// Sends a message with at most one descriptor.
    fn send(
        &self,
        state: &str,
        fd: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), ServiceManagerError> {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        loop {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fd.is_empty() {
                let fits = control.push(SendAncillaryMessage::ScmRights(fd));
                assert!(fits, "{} descriptors in a message", fd.len());
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let slices = [io::IoSlice::new(state.as_bytes())];
            match sendmsg(&self.socket, &slices, &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(
                    self.socket.as_fd(),
                    PollFlags::POLLOUT,
                    deadline,
                    "received messages",
                )?,
                Err(Errno::TOOMANYREFS) if monotonic_now() < deadline => pause_for_others(),
                Err(errno) => {
                    return Err(ServiceManagerError::System {
                        call: "sendmsg",
                        source: errno.into(),
                    });
                }
            }
        }
    }

    /// Asks the service manager to keep a duplicate of a descriptor. `FDPOLL=0`: it keeps it even if its other end
    /// hangs up.
    pub(crate) fn store(
        &self,
        name: &str,
        fd: BorrowedFd<'_>,
        deadline: Instant,
    ) -> Result<(), ServiceManagerError> {
        let state = format!("FDSTORE=1\nFDNAME={name}\nFDPOLL=0");
        self.send(&state, &[fd], deadline)
    }

    /// Asks the service manager to close all descriptors of a name.
    pub(crate) fn forget(&self, name: &str, deadline: Instant) -> Result<(), ServiceManagerError> {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), &[], deadline)
    }

    /// Waits until the service manager has handled all earlier messages.
    pub(crate) fn barrier(&self, deadline: Instant) -> Result<(), ServiceManagerError> {
        let (ours, theirs) = pipe2(OFlag::O_CLOEXEC).map_err(system("pipe2"))?;
        self.send("BARRIER=1", &[theirs.as_fd()], deadline)?;
        drop(theirs);
        // The read end is never readable. It is hung up when the last write end is closed.
        self.wait(
            ours.as_fd(),
            PollFlags::empty(),
            deadline,
            "handled all messages (BARRIER=1)",
        )
    }

    fn wait(
        &self,
        fd: BorrowedFd<'_>,
        events: PollFlags,
        deadline: Instant,
        what: &'static str,
    ) -> Result<(), ServiceManagerError> {
        match poll_ready(fd, events, deadline) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ServiceManagerError::Silent { what }),
            Err(errno) => Err(system("ppoll")(errno)),
        }
    }
}
