//! The client's end of the twin socket: memory without a descriptor, accessed on behalf of the server.
//!
//! A server maps memory that has a descriptor. Memory from a program's allocator has none, so the server sends a
//! message for each access: DMA_READ and DMA_WRITE (libvfio-user, `docs/vfio-user.rst`), on a separate socket that
//! the server has made for VERSION ("twin_socket"). A thread answers these messages, because a device moves data at
//! any time, even while the program sleeps, computes, or waits for a reply of the device. The thread starts when the
//! first memory without a descriptor is mapped. The program's own messages use the main socket and are independent of
//! the thread.
//!
//! ```text
//!   LentMemory --- DMA_MAP, no descriptor --->        Device::dma_map_by_message
//!   the thread <--- DMA_READ, DMA_WRITE ----          MessageMemory::read, write
//!              ---- data, or an errno ------>
//! ```
//!
//! The server is not trusted. An access must lie in one mapped region, and for lent memory within the bytes that are
//! lent at that moment. The thread copies the bytes while it holds the locks that are also taken to remove a region and
//! to give back lent bytes. So these operations wait for one copy of 64 KiB at most, and no access is possible after
//! them. Regions are mapped for both directions, as all memory is; a peer's access is limited by its key. If a server
//! sends anything but a request, or closes this socket, both connections fail. If the main connection fails, this one
//! ends too, and all regions are removed.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use zerocopy::IntoBytes;

use super::message::{self as wire, Command, DmaAccess};
use super::socket::{self, Message, Socket};
use crate::clock::Instant;
use crate::extents::Open;
use crate::interrupt::Interrupt;
use crate::memory::SharedMemory;
use crate::readable::poll_readable;
use crate::signals::HeldSignals;

/// A piece of memory that the server may access.
struct Region {
    memory: SharedMemory,
    offset: usize,
    bytes: usize,
}

#[derive(Default)]
struct State {
    /// Regions by I/O address.
    regions: BTreeMap<u64, Region>,
    /// True once the connection is over: no request is answered, and no region can be inserted.
    over: bool,
    /// Fault of the server that ended the connection, if there was one.
    failure: Option<String>,
    /// True while another process has the function: this one does not shut the socket down.
    parted: bool,
}

/// State shared by the thread and the client.
struct Shared {
    name: String,
    socket: Socket,
    /// Main socket, while the client has it.
    main: Weak<Socket>,
    state: Mutex<State>,
    /// Signalled to end the thread between two messages.
    stop: Interrupt,
}

/// The client's end of the twin socket.
pub(super) struct TwinClient {
    shared: Arc<Shared>,
    /// Answering thread; `None` until the first region is inserted.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl TwinClient {
    /// Makes the client's end from the descriptor that a server has sent.
    pub(super) fn new(name: &str, fd: OwnedFd, main: &Arc<Socket>) -> io::Result<Self> {
        Self::over(name, Socket::new(UnixStream::from(fd))?, main, false)
    }

    /// Makes the client's end from a socket that belongs to another process until [`adopt`](Self::adopt).
    pub(super) fn of_another(name: &str, socket: Socket, main: &Arc<Socket>) -> io::Result<Self> {
        Self::over(name, socket, main, true)
    }

    fn over(name: &str, socket: Socket, main: &Arc<Socket>, parted: bool) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            socket,
            main: Arc::downgrade(main),
            state: Mutex::new(State {
                parted,
                ..State::default()
            }),
            stop: Interrupt::new()?,
        });
        let thread = Mutex::new(None);
        Ok(Self { shared, thread })
    }

    /// Adds a region that the server may access.
    ///
    /// # Errors
    /// The system could not start a thread, or the connection is over.
    pub(super) fn insert(
        &self,
        iova: u64,
        memory: &SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> io::Result<()> {
        self.start()?;
        let mut state = self.shared.state();
        if state.over {
            return Err(ErrorKind::NotConnected.into());
        }
        let memory = memory.clone();
        let region = Region {
            memory,
            offset,
            bytes,
        };
        state.regions.insert(iova, region);
        Ok(())
    }

    /// Removes a region, if it exists. After this the server cannot access it.
    pub(super) fn remove(&self, iova: u64) {
        self.shared.state().regions.remove(&iova);
    }

    /// Returns the descriptor of the socket.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.socket.as_fd()
    }

    /// Takes the socket over.
    pub(super) fn adopt(&self) {
        self.shared.state().parted = false;
    }

    /// Stops answering, between two messages. The socket is not shut down. No memory without a descriptor is mapped at
    /// this time, so the server has nothing to request.
    pub(super) fn part(&self) {
        let mut state = self.shared.state();
        state.end();
        state.parted = true;
        drop(state);
        self.shared.stop.signal();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        self.join(thread);
    }

    /// Waits for the end of the thread, which was stopped.
    fn join(&self, mut thread: MutexGuard<'_, Option<JoinHandle<()>>>) {
        if thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(
                "{}: the thread of the twin socket panicked",
                self.shared.name
            );
        }
    }

    /// Removes all regions and stops answering.
    pub(super) fn end(&self) {
        self.shared.end();
    }

    /// Returns the fault of the server that ended the connection, if there was one.
    pub(super) fn failure(&self) -> Option<String> {
        self.shared.state().failure.clone()
    }

    fn start(&self) -> io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            // The thread blocks all signals, so that the program's own threads receive them.
            let _held = HeldSignals::hold();
            let started = thread::Builder::new().name("dma".into());
            *thread = Some(started.spawn(move || shared.run())?);
        }
        Ok(())
    }
}

impl Drop for TwinClient {
    fn drop(&mut self) {
        self.end();
        // `end` has woken the thread, and it returns at once.
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        self.join(thread);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes all regions, and shuts the socket down unless another process has it.
    fn end(&self) {
        let mut state = self.state();
        state.end();
        if !state.parted {
            self.socket.shut_down();
        }
    }

    /// Ends both connections because of a fault of the server, unless this one is over already. The lock is held until
    /// both sockets are shut down, because [`TwinClient::part`] hands both over, and does so before or after that.
    fn fail(&self, failure: String) {
        let mut state = self.state();
        if state.over {
            return;
        }
        state.end();
        state.failure = Some(failure.clone());
        self.socket.shut_down();
        if let Some(main) = self.main.upgrade() {
            main.shut_down();
        }
        drop(state);
        tracing::error!("{}: {failure}", self.name);
    }

    /// Answers requests until the connection is over.
    fn run(&self) {
        let failure = match self.answer_all() {
            Ok(()) => "the server hung up".to_owned(),
            Err(error) => error.to_string(),
        };
        self.fail(format!("twin socket: {failure}"));
    }

    /// Waits until the server has sent something or hung up. Returns false if the thread is to end.
    fn wait(&self) -> io::Result<bool> {
        let ends = [self.socket.as_fd(), self.stop.as_fd()];
        while !poll_readable(ends.into_iter(), Instant(u64::MAX))? {}
        Ok(!self.stop.is_pending())
    }

    fn answer_all(&self) -> io::Result<()> {
        while self.wait()? {
            let Some(message) = self.socket.receive(|| !self.state().over)? else {
                break;
            };
            let header = message.header;
            let flags = header.flags.get();
            if flags & wire::TYPE_MASK != wire::TYPE_COMMAND {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    format!("a message with flags {flags:#x} is no command"),
                ));
            }
            let command = Command(header.command.get());
            let answer = self.answer(command, &message);
            if let Err(errno) = answer {
                tracing::debug!("{}: {command} refused: {errno}", self.name);
            }
            if flags & wire::NO_REPLY != 0 {
                continue;
            }
            let (flags, error) = socket::reply_status(&answer);
            let header = (header.id.get(), command.0, flags, error);
            let (access, data) = match &answer {
                Ok((access, data)) => (access.as_bytes(), &data[..]),
                Err(_) => (&[][..], &[][..]),
            };
            socket::send(&self.socket, header, &[access, data], &[])?;
        }
        Ok(())
    }

    /// Executes a request. Returns the contents of the reply.
    fn answer(&self, command: Command, message: &Message) -> Result<(DmaAccess, Vec<u8>), Errno> {
        let (access, data) = socket::split::<DmaAccess>(&message.payload).ok_or(Errno::EINVAL)?;
        let count = usize::try_from(access.count.get()).map_err(|_| Errno::EINVAL)?;
        let carries = match command {
            Command::DMA_READ => 0,
            Command::DMA_WRITE => count,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        if count == 0 || count > wire::MAX_DATA || data.len() != carries || !message.fds.is_empty()
        {
            return Err(Errno::EINVAL);
        }
        let state = self.state();
        let (memory, at) = state
            .find(access.address.get(), count)
            .ok_or(Errno::EFAULT)?;
        // The lock of the lent bytes is held until the copy is done.
        let lent = memory.open().map(Open::lock);
        let start = memory.address() + at;
        if lent
            .as_ref()
            .is_some_and(|lent| !lent.covers(&(start..start + count)))
        {
            return Err(Errno::EFAULT);
        }
        if command == Command::DMA_READ {
            let mut out = vec![0; count];
            memory.try_read_bytes(at, &mut out).map_err(gone)?;
            return Ok((access, out));
        }
        // The last byte is written last, as on a bus, because some programs poll that byte.
        let last = count - 1;
        memory.try_write_bytes(at, &data[..last]).map_err(gone)?;
        fence(Ordering::Release);
        memory
            .try_write_bytes(at + last, &data[last..])
            .map_err(gone)?;
        Ok((access, Vec::new()))
    }
}

impl State {
    /// Removes all regions, and lets no region be inserted.
    fn end(&mut self) {
        self.over = true;
        self.regions.clear();
    }

    /// Returns the memory at an I/O address and the offset in it; `None` unless one region contains the whole access.
    fn find(&self, address: u64, count: usize) -> Option<(&SharedMemory, usize)> {
        let (&start, region) = self.regions.range(..=address).next_back()?;
        let inside = usize::try_from(address - start).ok()?;
        (inside <= region.bytes && count <= region.bytes - inside)
            .then(|| (&region.memory, region.offset + inside))
    }
}

/// Logs an access to memory that its owner has unmapped or replaced, and returns the errno for it.
fn gone(error: std::io::Error) -> Errno {
    tracing::warn!("{error}");
    Errno::EFAULT
}
