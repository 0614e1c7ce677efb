//! The device's side: any [`Device`] behind a socket.
//!
//! The server has one client at a time; the next one waits in the listener's queue. A session is a loop that receives
//! one message and sends one answer. A client's resources are bounded: one message with at most 64 KiB of data, one
//! eventfd per vector, [`MAX_MAPPINGS`](super::client_memory::MAX_MAPPINGS) mappings whose pages are the client's own,
//! in at most [`MAX_IMPORTS`](super::client_memory::MAX_IMPORTS) imports of files.
//! When the session ends, for any reason, the server resets the device, removes the client's eventfds and unmaps the
//! client's memory, in that order. A client that requests a twin socket gets one, and serves accesses to its memory
//! without a descriptor there.
//!
//! Region accesses become the accesses that the device would receive on the bus: a BAR write is a store of its width
//! into the BAR's memory and then [`Device::bar_written`], a BAR read is a load; configuration accesses are split into
//! aligned pieces of 4, 2 and 1 bytes.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use zerocopy::IntoBytes;

use super::client_memory::ClientMemory;
use super::error::VfioUserError;
use super::message::{
    self as wire, Command, DeviceInfo, DmaMap, DmaUnmap, IrqInfo, RegionAccess, RegionInfo,
    SetIrqs, Twin, Version, length_of,
};
use super::socket::{self, Message, Socket};
use super::twin_server::{self, TwinServer};
use crate::accepting;
use crate::clock::{Instant, monotonic_now};
use crate::device::{CONFIG_BYTES, Device, MessageMemory};
use crate::event_signaller::EventSignaller;
use crate::interrupt::{Interrupt, Notices};
use crate::memory::SharedMemory;

/// Number of BARs of a function.
const BARS: u8 = 6;

/// A server that gives other processes access to a device through a socket.
pub struct Server {
    device: Arc<dyn Device>,
    listener: UnixListener,
    patience: Duration,
    /// Time limit for a client's answer to a memory access.
    dma_patience: Duration,
    now: fn() -> Instant,
}

impl Server {
    /// Serves one client after the other. Returns the error when the listener fails.
    pub fn serve(device: Arc<dyn Device>, listener: UnixListener) -> VfioUserError {
        let server = Self::new(device, listener);
        loop {
            if let Err(error) = server.serve_next() {
                return error;
            }
        }
    }

    /// Makes a server that has accepted no client yet.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, listener: UnixListener) -> Self {
        Self {
            device,
            listener,
            patience: socket::PATIENCE,
            dma_patience: twin_server::PATIENCE,
            now: monotonic_now,
        }
    }

    /// Sets the clock that measures the time limits, for tests.
    #[cfg(test)]
    pub(super) const fn by(mut self, now: fn() -> Instant) -> Self {
        self.now = now;
        self
    }

    /// Sets a shorter time limit for messages and for memory accesses, for tests.
    #[cfg(test)]
    pub(super) const fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self.dma_patience = patience;
        self
    }

    /// Accepts the next client and serves it until it disconnects.
    ///
    /// # Errors
    /// The listener failed permanently. A client's fault only ends its session and is logged. After a temporary failure
    /// of the system the accept is retried.
    pub fn serve_next(&self) -> Result<(), VfioUserError> {
        let accepted = accepting::next(self.device.name(), || self.listener.accept());
        let (stream, _) = accepted.map_err(|source| VfioUserError::Socket {
            path: self.path(),
            call: "accept",
            source,
        })?;
        self.serve_stream(stream);
        Ok(())
    }

    /// Returns the listener.
    #[cfg(test)]
    pub(super) const fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Serves a client that is already connected.
    pub(super) fn serve_stream(&self, stream: UnixStream) {
        let name = self.device.name().to_owned();
        let socket = match Socket::with_patience(stream, self.patience) {
            Ok(socket) => socket.by(self.now),
            Err(error) => {
                tracing::error!("{name}: vfio-user client: {error}");
                return;
            }
        };
        tracing::info!("{name}: vfio-user client connected");
        let device = Arc::clone(&self.device);
        let mut session = Session::new(device, socket, self.dma_patience);
        match session.run() {
            Ok(()) => tracing::info!("{name}: vfio-user client gone"),
            Err(error) => tracing::warn!("{name}: vfio-user client dropped: {error}"),
        }
    }

    fn path(&self) -> PathBuf {
        self.listener
            .local_addr()
            .ok()
            .and_then(|address| address.as_pathname().map(PathBuf::from))
            .unwrap_or_default()
    }
}

/// The session of one client.
struct Session {
    device: Arc<dyn Device>,
    socket: Arc<Socket>,
    dma_patience: Duration,
    bars: [Option<SharedMemory>; BARS as usize],
    /// True once VERSION has been exchanged. Until then every other message is refused.
    negotiated: bool,
    /// Eventfds of the MSI-X vectors; empty until the client sets one.
    vectors: Vec<Interrupt>,
    notices: Notices,
    memory: ClientMemory,
    /// Twin socket for memory without a descriptor, if the client has requested one.
    twin: Option<Arc<TwinServer>>,
    /// Thread that signals the client's eventfds; started with the first eventfd.
    signaller: Option<EventSignaller>,
}

/// Reply to a client.
#[derive(Default)]
struct Reply {
    payload: Vec<u8>,
    /// Descriptor that is sent with the reply.
    fd: Option<OwnedFd>,
}

impl Session {
    fn new(device: Arc<dyn Device>, socket: Socket, dma_patience: Duration) -> Self {
        let mut bars = [const { None }; BARS as usize];
        for (index, bar) in (0..BARS).zip(&mut bars) {
            *bar = device.bar(index);
        }
        Self {
            device,
            socket: Arc::new(socket),
            dma_patience,
            bars,
            negotiated: false,
            vectors: Vec::new(),
            notices: Notices::default(),
            memory: ClientMemory::default(),
            twin: None,
            signaller: None,
        }
    }

    /// Imports an eventfd of the client.
    fn interrupt(&mut self, fd: OwnedFd) -> Result<Interrupt, Errno> {
        let signaller = match self.signaller.take() {
            Some(signaller) => signaller,
            None => EventSignaller::start().map_err(errno)?,
        };
        Interrupt::imported(fd, self.signaller.insert(signaller)).map_err(errno)
    }

    /// Answers messages until the client disconnects.
    fn run(&mut self) -> io::Result<()> {
        loop {
            // A client that has not yet sent VERSION must not block other clients for long.
            let negotiated = self.negotiated;
            let Some(message) = self.socket.receive(|| negotiated)? else {
                return Ok(());
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
            let answer = self.answer(command, message);
            if let Err(errno) = answer {
                tracing::debug!("{}: {command} refused: {errno}", self.device.name());
            }
            if flags & wire::NO_REPLY == 0 {
                let (flags, error) = socket::reply_status(&answer);
                let header = (header.id.get(), header.command.get(), flags, error);
                let Reply { payload, fd } = answer.unwrap_or_default();
                let fd = fd.as_ref().map(AsFd::as_fd);
                socket::send(&self.socket, header, &[&payload], fd.as_slice())?;
            }
            if !self.negotiated {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    format!("{command} instead of a VERSION we speak"),
                ));
            }
        }
    }

    /// Executes a message. Returns the reply.
    fn answer(&mut self, command: Command, message: Message) -> Result<Reply, Errno> {
        if self.negotiated == (command == Command::VERSION) {
            return Err(Errno::EINVAL);
        }
        let takes_fds = [Command::DMA_MAP, Command::DEVICE_SET_IRQS].contains(&command);
        if !takes_fds && !message.fds.is_empty() {
            return Err(Errno::EINVAL);
        }
        let payload = &message.payload[..];
        let answer = match command {
            Command::VERSION => return self.version(payload),
            Command::DMA_MAP => self.dma_map(message),
            Command::DMA_UNMAP => self.dma_unmap(payload),
            Command::DEVICE_GET_INFO => Self::device_info(payload),
            Command::DEVICE_GET_REGION_INFO => self.region_info(payload),
            Command::DEVICE_GET_IRQ_INFO => self.irq_info(payload),
            Command::DEVICE_SET_IRQS => self.set_irqs(message),
            Command::REGION_READ => self.region_read(payload),
            Command::REGION_WRITE => self.region_write(payload),
            Command::DEVICE_RESET => {
                if !payload.is_empty() {
                    return Err(Errno::EINVAL);
                }
                self.device.reset();
                Ok(Vec::new())
            }
            _ => Err(Errno::EOPNOTSUPP),
        };
        Ok(Reply {
            payload: answer?,
            fd: None,
        })
    }

    fn version(&mut self, payload: &[u8]) -> Result<Reply, Errno> {
        let (theirs, json) = socket::split::<Version>(payload).ok_or(Errno::EINVAL)?;
        if theirs.major.get() != wire::MAJOR {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let (mut twin, mut fd) = (None, None);
        if wire::twin_socket(json).is_some() {
            let (name, patience) = (self.device.name(), self.dma_patience);
            let pair = TwinServer::pair(name, &self.socket, json, patience);
            let (ours, theirs) = pair.map_err(errno)?;
            (self.twin, fd) = (Some(Arc::new(ours)), Some(theirs));
            twin = Some(Twin { fd_index: Some(0) });
        }
        self.negotiated = true;
        let ours = Version {
            major: wire::MAJOR.into(),
            minor: wire::MINOR.min(theirs.minor.get()).into(),
        };
        let mut payload = ours.as_bytes().to_vec();
        payload.extend_from_slice(&wire::capabilities(twin));
        Ok(Reply { payload, fd })
    }

    fn dma_map(&mut self, message: Message) -> Result<Vec<u8>, Errno> {
        let request: DmaMap = exact(&message.payload)?;
        let mut fds = message.fds.into_iter();
        let (fd, None) = (fds.next(), fds.next()) else {
            return Err(Errno::EINVAL);
        };
        let twin = self.twin.clone().map(|twin| twin as Arc<dyn MessageMemory>);
        self.memory.map(&*self.device, &request, fd, twin)?;
        Ok(Vec::new())
    }

    fn dma_unmap(&mut self, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut reply: DmaUnmap = exact(payload)?;
        let (iova, size) = (reply.iova.get(), reply.size.get());
        match reply.flags.get() {
            0 => reply.size = self.memory.unmap(&*self.device, iova, size)?.into(),
            wire::UNMAP_ALL if iova == 0 && size == 0 => self.memory.unmap_all(&*self.device),
            _ => return Err(Errno::EINVAL),
        }
        Ok(reply.as_bytes().to_vec())
    }

    fn device_info(payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let request: DeviceInfo = at_least(payload)?;
        let reply = DeviceInfo {
            argsz: length_of::<DeviceInfo>().into(),
            flags: (wire::DEVICE_PCI | wire::DEVICE_RESETTABLE).into(),
            num_regions: wire::REGIONS.into(),
            num_irqs: wire::IRQS.into(),
        };
        fits(request.argsz.get(), &reply)
    }

    fn region_info(&self, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let request: RegionInfo = at_least(payload)?;
        let index = request.index.get();
        let size = match index {
            wire::CONFIG_REGION => CONFIG_BYTES as u64,
            // CAST: usize has at most 64 bits on every target Rust has.
            index if index <= wire::LAST_BAR => {
                self.bar(index).map_or(0, |memory| memory.len() as u64)
            }
            index if index < wire::REGIONS => 0,
            _ => return Err(Errno::EINVAL),
        };
        let flags = if size == 0 {
            0
        } else {
            wire::REGION_READ_WRITE
        };
        let reply = RegionInfo {
            argsz: length_of::<RegionInfo>().into(),
            flags: flags.into(),
            index: index.into(),
            cap_offset: 0.into(),
            size: size.into(),
            offset: 0.into(),
        };
        fits(request.argsz.get(), &reply)
    }

    fn irq_info(&self, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let request: IrqInfo = at_least(payload)?;
        let index = request.index.get();
        let (flags, count) = match index {
            wire::MSIX => (wire::IRQ_EVENTFD, self.vector_count()?),
            wire::ERROR_NOTICE | wire::REQUEST_NOTICE => (wire::IRQ_EVENTFD, 1),
            index if index < wire::IRQS => (0, 0),
            _ => return Err(Errno::EINVAL),
        };
        let reply = IrqInfo {
            argsz: length_of::<IrqInfo>().into(),
            flags: flags.into(),
            index: index.into(),
            count: count.into(),
        };
        fits(request.argsz.get(), &reply)
    }

    fn vector_count(&self) -> Result<u32, Errno> {
        u32::try_from(self.device.interrupt_count()).map_err(|_| Errno::EOVERFLOW)
    }

    fn set_irqs(&mut self, message: Message) -> Result<Vec<u8>, Errno> {
        let request: SetIrqs = exact(&message.payload)?;
        let (flags, index) = (request.flags.get(), request.index.get());
        let (start, count) = (request.start.get(), request.count.get());
        if index >= wire::IRQS {
            return Err(Errno::EINVAL);
        }
        let nothing =
            flags == wire::SET_NOTHING && (start, count) == (0, 0) && message.fds.is_empty();
        if let wire::ERROR_NOTICE | wire::REQUEST_NOTICE = index {
            if !nothing && (flags, start, count) != (wire::SET_EVENTFDS, 0, 1) {
                return Err(Errno::EINVAL);
            }
            return self.set_notice(index, message.fds);
        }
        if nothing {
            if index == wire::MSIX {
                self.vectors.clear();
                self.device.set_interrupts(Vec::new());
            }
            return Ok(Vec::new());
        }
        let end = start.checked_add(count).ok_or(Errno::EINVAL)?;
        if flags != wire::SET_EVENTFDS
            || index != wire::MSIX
            || count == 0
            || end > self.vector_count()?
        {
            return Err(Errno::EINVAL);
        }
        let (start, end) = (start as usize, end as usize);
        if !message.fds.is_empty() && message.fds.len() != end - start {
            return Err(Errno::EINVAL);
        }
        // A vector without a descriptor gets an eventfd that no thread reads. The list of vectors grows to the last one
        // that was ever set. Either all vectors of the message change or none does.
        let mut vectors = self.vectors.clone();
        while vectors.len() < end {
            vectors.push(Interrupt::new().map_err(errno)?);
        }
        if message.fds.is_empty() {
            for vector in &mut vectors[start..end] {
                *vector = Interrupt::new().map_err(errno)?;
            }
        }
        for (vector, fd) in vectors[start..end].iter_mut().zip(message.fds) {
            *vector = self.interrupt(fd)?;
        }
        self.vectors.clone_from(&vectors);
        self.device.set_interrupts(vectors);
        Ok(Vec::new())
    }

    /// Sets the eventfd of the error notice or the removal notice. Without a descriptor the notice is disabled.
    fn set_notice(&mut self, index: u32, fds: Vec<OwnedFd>) -> Result<Vec<u8>, Errno> {
        let mut fds = fds.into_iter();
        let (first, None) = (fds.next(), fds.next()) else {
            return Err(Errno::EINVAL);
        };
        let interrupt = first.map(|fd| self.interrupt(fd)).transpose()?;
        if index == wire::ERROR_NOTICE {
            self.notices.error = interrupt;
        } else {
            self.notices.requested = interrupt;
        }
        self.device.set_notices(self.notices.clone());
        Ok(Vec::new())
    }

    fn bar(&self, region: u32) -> Option<&SharedMemory> {
        let index = usize::try_from(region).ok()?;
        self.bars.get(index)?.as_ref()
    }

    fn region_read(&self, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let request: RegionAccess = exact(payload)?;
        let count = usize::try_from(request.count.get()).map_err(|_| Errno::EINVAL)?;
        if count == 0 || count > wire::MAX_DATA {
            return Err(Errno::EINVAL);
        }
        let (region, offset) = (request.region.get(), request.offset.get());
        let mut data = vec![0; count];
        if region == wire::CONFIG_REGION {
            for (at, from, bytes) in config_pieces(offset, count)? {
                self.device.config_read(at, &mut data[from..from + bytes]);
            }
        } else {
            let memory = self.bar(region).ok_or(Errno::EINVAL)?;
            load(memory, inside(memory, offset, count)?, &mut data);
        }
        let mut reply = request.as_bytes().to_vec();
        reply.append(&mut data);
        Ok(reply)
    }

    fn region_write(&self, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let (request, data) = socket::split::<RegionAccess>(payload).ok_or(Errno::EINVAL)?;
        let (region, offset) = (request.region.get(), request.offset.get());
        if data.is_empty() || usize::try_from(request.count.get()) != Ok(data.len()) {
            return Err(Errno::EINVAL);
        }
        if region == wire::CONFIG_REGION {
            for (at, from, bytes) in config_pieces(offset, data.len())? {
                self.device.config_write(at, &data[from..from + bytes]);
            }
        } else {
            let memory = self.bar(region).ok_or(Errno::EINVAL)?;
            let at = inside(memory, offset, data.len())?;
            let index = u8::try_from(region).map_err(|_| Errno::EINVAL)?;
            if data.len() > 8 {
                return Err(Errno::EINVAL);
            }
            store(memory, at, data);
            self.device.bar_written(index, offset, data);
        }
        Ok(request.as_bytes().to_vec())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.device.reset();
        self.device.set_interrupts(Vec::new());
        self.device.set_notices(Notices::default());
        self.memory.unmap_all(&*self.device);
    }
}

fn errno(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw)
}

/// Parses the payload as exactly one object.
fn exact<T: zerocopy::FromBytes>(payload: &[u8]) -> Result<T, Errno> {
    T::read_from_bytes(payload).map_err(|_| Errno::EINVAL)
}

/// Parses the payload as one object, which more bytes may follow.
fn at_least<T: zerocopy::FromBytes>(payload: &[u8]) -> Result<T, Errno> {
    socket::split(payload)
        .map(|(object, _)| object)
        .ok_or(Errno::EINVAL)
}

/// Returns the bytes of `reply`; EINVAL if `argsz`, the client's buffer size, is too small.
fn fits<T: IntoBytes + zerocopy::Immutable>(argsz: u32, reply: &T) -> Result<Vec<u8>, Errno> {
    if argsz < length_of::<T>() {
        return Err(Errno::EINVAL);
    }
    Ok(reply.as_bytes().to_vec())
}

/// Converts an offset to an index into the memory; EINVAL unless all `bytes` bytes are inside.
fn inside(memory: &SharedMemory, offset: u64, bytes: usize) -> Result<usize, Errno> {
    usize::try_from(offset)
        .ok()
        .filter(|&at| memory.contains(at, bytes))
        .ok_or(Errno::EINVAL)
}

/// Splits a configuration access into naturally aligned pieces of 4, 2 and 1 bytes. Each has its offset, its index in
/// the data, and its length.
fn config_pieces(offset: u64, bytes: usize) -> Result<Vec<(u16, usize, usize)>, Errno> {
    let start = usize::try_from(offset)
        .ok()
        .filter(|&start| bytes <= CONFIG_BYTES && start <= CONFIG_BYTES - bytes)
        .ok_or(Errno::EINVAL)?;
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < bytes {
        let at = start + done;
        let width = [4, 2, 1]
            .into_iter()
            .find(|&width| at.is_multiple_of(width) && width <= bytes - done)
            .unwrap_or(1);
        let at = u16::try_from(at).map_err(|_| Errno::EINVAL)?;
        pieces.push((at, done, width));
        done += width;
    }
    Ok(pieces)
}

/// Reads BAR memory. An aligned read of 4 or 8 bytes is a single access.
fn load(memory: &SharedMemory, at: usize, out: &mut [u8]) {
    let aligned = (memory.address() + at).is_multiple_of(out.len().max(1));
    match out.len() {
        8 if aligned => out.copy_from_slice(&memory.load_be64(at).to_be_bytes()),
        4 if aligned => out.copy_from_slice(&memory.load_be32(at).to_be_bytes()),
        _ => memory.read_bytes(at, out),
    }
}

/// Writes BAR memory. An aligned write of 4 or 8 bytes is a single access.
fn store(memory: &SharedMemory, at: usize, data: &[u8]) {
    let aligned = (memory.address() + at).is_multiple_of(data.len().max(1));
    match (data.try_into(), data.try_into()) {
        (Ok(word), _) if aligned => memory.store_be64(at, u64::from_be_bytes(word)),
        (_, Ok(word)) if aligned => memory.store_be32(at, u32::from_be_bytes(word)),
        _ => memory.write_bytes(at, data),
    }
}
