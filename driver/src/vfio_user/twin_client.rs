//! The client's end of the twin socket: memory without a descriptor, read and written for the server.
//!
//! Memory that has a descriptor a server maps. What a program has got from its allocator has none, so the server asks
//! for each access: DMA_READ and DMA_WRITE (libvfio-user, `docs/vfio-user.rst`), on a socket of their own that the
//! server has made for VERSION ("twin_socket"). A thread answers, from the first such memory on: a device moves data
//! when it likes, also while the program sleeps, computes, or waits for the device to answer a message. The program's
//! own messages go over the other socket and know nothing of this.
//!
//! ```text
//!   LentMemory --- DMA_MAP, no descriptor --->        Device::dma_map_by_message
//!   the thread <--- DMA_READ, DMA_WRITE ----          MessageMemory::read, write
//!              ---- data, or an errno ------>
//! ```
//!
//! The server is believed nothing. An access reaches one region that is mapped, and of memory that is lent the very
//! bytes that are so at that moment, or nothing. It copies under the locks that a region is taken out and bytes are
//! given back under: who does that waits for one copy of 64 KiB at most, and then nobody reaches them. Regions are
//! mapped for both directions, as all memory is; what a peer may do its key says. A server that sends what is no
//! request, or hangs up here, is lost on both sockets; who loses the server on the other one ends this, too, regions
//! and all.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use zerocopy::IntoBytes;

use super::message::{self as wire, Command, DmaAccess};
use super::socket::{self, Message, Socket};
use crate::extents::Open;
use crate::memory::SharedMemory;
use crate::signals::HeldSignals;

/// A piece of memory that the server may ask for.
struct Region {
    memory: SharedMemory,
    offset: usize,
    bytes: usize,
}

#[derive(Default)]
struct State {
    /// By I/O address.
    regions: BTreeMap<u64, Region>,
    /// Nothing is answered any more, and nothing mapped.
    over: bool,
    /// What the server did, if that is why.
    failure: Option<String>,
}

/// What the thread and the client share.
struct Shared {
    name: String,
    socket: Socket,
    /// The other socket, as long as there is a client.
    main: Weak<Socket>,
    state: Mutex<State>,
}

/// The client's end.
pub(super) struct TwinClient {
    shared: Arc<Shared>,
    /// From the first region on.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl TwinClient {
    /// Takes the descriptor that a server has sent.
    pub(super) fn new(name: &str, fd: OwnedFd, main: &Arc<Socket>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            socket: Socket::new(UnixStream::from(fd))?,
            main: Arc::downgrade(main),
            state: Mutex::default(),
        });
        let thread = Mutex::new(None);
        Ok(Self { shared, thread })
    }

    /// Lets the server ask for memory.
    ///
    /// # Errors
    /// The system starts no thread. The connection is over.
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

    /// Takes memory back, if it is there. From now on nobody reaches it.
    pub(super) fn remove(&self, iova: u64) {
        self.shared.state().regions.remove(&iova);
    }

    /// Takes all memory back and answers nothing any more.
    pub(super) fn end(&self) {
        self.shared.end(None);
    }

    /// What the server did here, if the connection is over for that.
    pub(super) fn failure(&self) -> Option<String> {
        self.shared.state().failure.clone()
    }

    fn start(&self) -> io::Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            // The program's signals are for its own threads.
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
        let thread = self.thread.get_mut();
        let thread = thread.unwrap_or_else(PoisonError::into_inner).take();
        // It is woken, and has nothing to wait for any more.
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(
                "{}: the thread of the twin socket panicked",
                self.shared.name
            );
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, failure: Option<String>) {
        let mut state = self.state();
        if !state.over {
            state.over = true;
            state.failure = failure;
            state.regions.clear();
        }
        drop(state);
        self.socket.hang_up();
    }

    /// Answers until it is over.
    fn run(&self) {
        let failure = match self.answer_all() {
            Ok(()) => "the server hung up".to_owned(),
            Err(error) => error.to_string(),
        };
        if self.state().over {
            return;
        }
        tracing::error!("{}: twin socket: {failure}", self.name);
        self.end(Some(format!("twin socket: {failure}")));
        if let Some(main) = self.main.upgrade() {
            main.hang_up();
        }
    }

    fn answer_all(&self) -> io::Result<()> {
        while let Some(message) = self.socket.receive(|| !self.state().over)? {
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
            let (flags, error) = socket::verdict(&answer);
            let header = (header.id.get(), command.0, flags, error);
            let (access, data) = match &answer {
                Ok((access, data)) => (access.as_bytes(), &data[..]),
                Err(_) => (&[][..], &[][..]),
            };
            socket::send(&self.socket, header, &[access, data], &[])?;
        }
        Ok(())
    }

    /// Does what is asked for; what the reply says.
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
        // Let go of when the copy is made.
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
        // Its last byte last, as a bus lets programs see it that watch that byte.
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
    /// The memory at an I/O address, and where in it, if one region has all of it.
    fn find(&self, address: u64, count: usize) -> Option<(&SharedMemory, usize)> {
        let (&start, region) = self.regions.range(..=address).next_back()?;
        let inside = usize::try_from(address - start).ok()?;
        (inside <= region.bytes && count <= region.bytes - inside)
            .then(|| (&region.memory, region.offset + inside))
    }
}

/// The answer to an access of memory that its owner has unmapped or replaced.
fn gone(error: std::io::Error) -> Errno {
    tracing::warn!("{error}");
    Errno::EFAULT
}
