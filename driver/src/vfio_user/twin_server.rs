//! The server's end of the twin socket: accesses a client's memory without a descriptor, one message for each access.
//!
//! The device waits for each answer, and the simulator that it belongs to waits with it, as a bus does if the host does
//! not complete a read. So an answer has a time limit ([`PATIENCE`]). If a client exceeds it once, or sends an invalid
//! answer, the client counts as lost: it gets no more requests, and its session ends. A refusal by the client fails
//! only that access.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use zerocopy::IntoBytes;

use super::message::{self as wire, Command, DmaAccess, DmaWritten};
use super::socket::{self, Socket};
use crate::device::MessageMemory;

/// Time that a client has to begin an answer, to send the rest of it, or to read a request; each may take at most twice
/// this time. It is well below the time that other clients of the same simulator wait for their answers
/// ([`socket::PATIENCE`]).
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// Number of data bytes that a client with a twin socket must accept in a message: one page.
const LEAST_DATA: usize = 4096;
/// Number of data bytes that a client accepts if it does not report "max_data_xfer_size".
const USUAL_DATA: usize = 1 << 20;

struct State {
    next_id: u16,
    lost: bool,
}

/// The server's end of the twin socket.
pub(super) struct TwinServer {
    name: String,
    socket: Socket,
    /// Main socket, while the session exists.
    main: Weak<Socket>,
    /// Maximum number of data bytes in a message.
    most: usize,
    state: Mutex<State>,
}

impl std::fmt::Debug for TwinServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TwinServer({})", self.name)
    }
}

impl TwinServer {
    /// Makes a connected pair of sockets: the server's end, and the client's. `json` has the client's capabilities.
    ///
    /// # Errors
    /// Error of the system; EINVAL if the client accepts less than a page in a message.
    pub(super) fn pair(
        name: &str,
        main: &Arc<Socket>,
        json: &[u8],
        patience: Duration,
    ) -> io::Result<(Self, OwnedFd)> {
        let most = wire::capability(json, "max_data_xfer_size").unwrap_or(USUAL_DATA);
        if most < LEAST_DATA {
            return Err(nix::errno::Errno::EINVAL.into());
        }
        let (socket, theirs) = Socket::pair(patience)?;
        let ours = Self {
            name: name.to_owned(),
            socket,
            main: Arc::downgrade(main),
            most: most.min(wire::MAX_DATA),
            state: Mutex::new(State {
                next_id: 0,
                lost: false,
            }),
        };
        Ok((ours, theirs))
    }

    /// Requests one access and waits for the reply's payload.
    fn ask(&self, command: Command, access: DmaAccess, data: &[u8]) -> io::Result<Vec<u8>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.lost {
            return Err(ErrorKind::NotConnected.into());
        }
        let id = state.next_id;
        state.next_id = id.wrapping_add(1);
        let answer = self.exchange(id, command, access, data);
        let lost = match answer {
            Ok(Ok(payload)) => return Ok(payload),
            Ok(Err(refusal)) => return Err(refusal),
            Err(lost) => lost,
        };
        state.lost = true;
        drop(state);
        tracing::warn!("{}: vfio-user client: {command}: {lost}", self.name);
        self.socket.shut_down();
        if let Some(main) = self.main.upgrade() {
            main.shut_down();
        }
        Err(lost)
    }

    /// Sends a request and returns the reply's payload, or the client's refusal. The outer error means that the
    /// connection failed.
    fn exchange(
        &self,
        id: u16,
        command: Command,
        access: DmaAccess,
        data: &[u8],
    ) -> io::Result<io::Result<Vec<u8>>> {
        let request = (id, command.0, wire::TYPE_COMMAND, 0);
        socket::send(&self.socket, request, &[access.as_bytes(), data], &[])?;
        let no_answer = || io::Error::new(ErrorKind::TimedOut, "no answer");
        let reply = self.socket.receive(|| false)?.ok_or_else(no_answer)?;
        let nonsense = || io::Error::new(ErrorKind::InvalidData, "an answer that makes no sense");
        let refused = reply.is_reply_to(id, command).ok_or_else(nonsense)?;
        if let Err(errno) = refused {
            return Ok(Err(errno.into()));
        }
        let (address, count) = (access.address, access.count);
        let makes_sense = match command {
            Command::DMA_READ => {
                socket::split::<DmaAccess>(&reply.payload).is_some_and(|(said, data)| {
                    (said.address, said.count) == (address, count)
                        && data.len() as u64 == count.get()
                })
            }
            _ => socket::split::<DmaWritten>(&reply.payload).is_some_and(|(said, _)| {
                said.address == address && u64::from(said.count.get()) == count.get()
            }),
        };
        if makes_sense {
            Ok(Ok(reply.payload))
        } else {
            Err(nonsense())
        }
    }
}

fn access(iova: u64, bytes: usize) -> DmaAccess {
    // CAST: usize has at most 64 bits on every target Rust has.
    DmaAccess {
        address: iova.into(),
        count: (bytes as u64).into(),
    }
}

impl MessageMemory for TwinServer {
    fn read(&self, iova: u64, out: &mut [u8]) -> io::Result<()> {
        let mut at = iova;
        for piece in out.chunks_mut(self.most) {
            let reply = self.ask(Command::DMA_READ, access(at, piece.len()), &[])?;
            // PANIC: `exchange` has compared the lengths.
            piece.copy_from_slice(&reply[size_of::<DmaAccess>()..]);
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn write(&self, iova: u64, data: &[u8]) -> io::Result<()> {
        let mut at = iova;
        for piece in data.chunks(self.most) {
            self.ask(Command::DMA_WRITE, access(at, piece.len()), piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}
