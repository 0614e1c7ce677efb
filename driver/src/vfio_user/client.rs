//! The driver's side: one connection to a server.
//!
//! Register writes are posted: sent without waiting, in the order of the calls. A write that cannot be sent makes the
//! connection fail, which the next message reports. A server cannot report that it refused a write, because a write has
//! no reply. All other messages wait for their reply, at most [`PATIENCE`](super::socket::PATIENCE). Connecting waits
//! at most as long for a place in the server's queue. A connection that failed once is not used again, because the
//! start of the next message in the stream is unknown. Memory without a descriptor is accessed over another socket
//! ([`twin_client`](super::twin_client)).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zerocopy::{FromBytes, IntoBytes};

use super::error::VfioUserError;
use super::message::{
    self as wire, ANNOUNCED_MAPPINGS, Command, DeviceInfo, DmaMap, DmaUnmap, IrqInfo, RegionAccess,
    RegionInfo, SetIrqs, Twin, Version, length_of,
};
use super::name::function_name;
use super::socket::{self, Message, Socket};
use super::twin_client::TwinClient;
use crate::connecting::connect_within;
use crate::interrupt::{Interrupt, Notices};
use crate::memory::SharedMemory;

mod parking;

pub(crate) use parking::Sockets;
#[cfg(test)]
pub(super) use parking::{RESUME_MESSAGES, UNCLAIMED_MESSAGES};

/// Largest number of MSI-X vectors of a PCI function.
const MAX_VECTORS: u32 = 2048;

struct Connection {
    /// Socket of the connection, or the cause of its failure.
    socket: Result<Arc<Socket>, Lost>,
    next_id: u16,
}

/// The cause of a connection's failure.
#[derive(Clone)]
struct Lost {
    command: Command,
    because: String,
}

/// A connection to a server.
pub(crate) struct Client {
    path: PathBuf,
    /// The function's name.
    name: String,
    /// The twin socket, which serves accesses to memory without a descriptor, if the server has one. It is dropped
    /// before the connection, so that it does not take the end of the connection for a fault of the server.
    twin: Option<TwinClient>,
    connection: Mutex<Connection>,
    /// Number of descriptors the server accepts in one message.
    max_fds: usize,
    /// Number of mappings the server accepts.
    most_mappings: usize,
    vectors: usize,
    notices: Notices,
}

impl Client {
    /// Connects to a server, negotiates the version, and queries the device.
    pub(crate) fn connect(path: &Path) -> Result<Self, VfioUserError> {
        let failed = |call| {
            move |source| VfioUserError::Socket {
                path: path.to_owned(),
                call,
                source,
            }
        };
        let no_server = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        let stream = connect_within(path, socket::PATIENCE).map_err(|source| {
            if no_server.contains(&source.kind()) {
                let path = path.to_owned();
                VfioUserError::NoServer { path, source }
            } else {
                failed("connect")(source)
            }
        })?;
        let socket = Socket::new(stream).map_err(failed("setsockopt"))?;
        let mut client = Self {
            path: path.to_owned(),
            name: function_name(path),
            connection: Mutex::new(Connection {
                socket: Ok(Arc::new(socket)),
                next_id: 0,
            }),
            twin: None,
            max_fds: 1,
            most_mappings: ANNOUNCED_MAPPINGS,
            vectors: 0,
            notices: Notices::default(),
        };
        client.negotiate()?;
        client.identify()?;
        client.notices = Notices {
            error: client.notice(wire::ERROR_NOTICE)?,
            requested: client.notice(wire::REQUEST_NOTICE)?,
        };
        Ok(client)
    }

    fn negotiate(&mut self) -> Result<(), VfioUserError> {
        let ours = Version {
            major: wire::MAJOR.into(),
            minor: wire::MINOR.into(),
        };
        let asked = wire::capabilities(Some(Twin { fd_index: None }));
        let Message { payload, fds, .. } =
            self.ask_message(Command::VERSION, &[ours.as_bytes(), &asked], &[])?;
        let Some((theirs, json)) = socket::split::<Version>(&payload) else {
            return Err(self.nonsense(Command::VERSION, format!("{} bytes", payload.len())));
        };
        if theirs.major.get() != wire::MAJOR || theirs.minor.get() > wire::MINOR {
            let what = format!("version {}.{}", theirs.major, theirs.minor);
            return Err(self.nonsense(Command::VERSION, what));
        }
        self.max_fds = wire::capability(json, "max_msg_fds")
            .unwrap_or(1)
            .clamp(1, wire::MAX_FDS);
        // If the server does not report "max_dma_maps", which is optional, our own limit is assumed.
        self.most_mappings = wire::capability(json, "max_dma_maps").unwrap_or(ANNOUNCED_MAPPINGS);
        if let Some(twin) = wire::twin_socket(json) {
            self.twin = Some(self.take_twin(twin, fds)?);
        }
        Ok(())
    }

    /// Takes the twin socket from the descriptors that came with VERSION. If the server announced the socket but did
    /// not send it, this is an error ("The client must abort").
    fn take_twin(&self, twin: Twin, fds: Vec<OwnedFd>) -> Result<TwinClient, VfioUserError> {
        let place = twin.fd_index.unwrap_or(usize::MAX);
        let count = fds.len();
        let Some(fd) = fds.into_iter().nth(place) else {
            let what = format!("twin_socket at {:?} of {count} descriptors", twin.fd_index);
            return Err(self.nonsense(Command::VERSION, what));
        };
        match &self.lock().socket {
            Ok(main) => TwinClient::new(&self.name, fd, main)
                .map_err(|source| self.transport(Command::VERSION, source)),
            Err(lost) => Err(self.gone(lost)),
        }
    }

    fn identify(&mut self) -> Result<(), VfioUserError> {
        let request = DeviceInfo {
            argsz: length_of::<DeviceInfo>().into(),
            flags: 0.into(),
            num_regions: 0.into(),
            num_irqs: 0.into(),
        };
        let command = Command::DEVICE_GET_INFO;
        let info: DeviceInfo = self.ask_for(command, request.as_bytes())?;
        if info.flags.get() & wire::DEVICE_PCI == 0
            || info.num_regions.get() <= wire::CONFIG_REGION
            || info.num_irqs.get() <= wire::MSIX
        {
            return Err(self.nonsense(command, format!("no PCI function: {info:?}")));
        }
        let count = self.irq_info(wire::MSIX)?.count.get();
        if count > MAX_VECTORS {
            let what = format!("{count} MSI-X vectors");
            return Err(self.nonsense(Command::DEVICE_GET_IRQ_INFO, what));
        }
        self.vectors = count as usize;
        Ok(())
    }

    fn irq_info(&self, index: u32) -> Result<IrqInfo, VfioUserError> {
        let request = IrqInfo {
            argsz: length_of::<IrqInfo>().into(),
            flags: 0.into(),
            index: index.into(),
            count: 0.into(),
        };
        self.ask_for(Command::DEVICE_GET_IRQ_INFO, request.as_bytes())
    }

    /// Makes an eventfd for the notice `index` (error or removal) and gives it to the server. Returns `None` if the
    /// server lacks the notice.
    fn notice(&self, index: u32) -> Result<Option<Interrupt>, VfioUserError> {
        let info = self.irq_info(index)?;
        if info.flags.get() & wire::IRQ_EVENTFD == 0 || info.count.get() == 0 {
            return Ok(None);
        }
        let interrupt = Interrupt::new().map_err(|source| VfioUserError::Socket {
            path: self.path.clone(),
            call: "eventfd",
            source,
        })?;
        self.set_irqs(index, 0, std::slice::from_ref(&interrupt))?;
        Ok(Some(interrupt))
    }

    /// Returns the eventfds through which the server reports errors of the device and removal requests.
    pub(crate) fn notices(&self) -> Notices {
        self.notices.clone()
    }

    /// Returns the socket's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the function's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the maximum number of mappings that the server accepts at a time.
    pub(crate) fn most_mappings(&self) -> u32 {
        u32::try_from(self.most_mappings).unwrap_or(u32::MAX)
    }

    /// Returns the number of MSI-X vectors of the function.
    pub(crate) const fn vectors(&self) -> usize {
        self.vectors
    }

    /// Returns the size of a BAR in bytes; 0 if the BAR does not exist.
    pub(crate) fn bar_bytes(&self, index: u8) -> Result<u64, VfioUserError> {
        let request = RegionInfo {
            argsz: length_of::<RegionInfo>().into(),
            flags: 0.into(),
            index: u32::from(index).into(),
            cap_offset: 0.into(),
            size: 0.into(),
            offset: 0.into(),
        };
        let reply = self.ask(Command::DEVICE_GET_REGION_INFO, &[request.as_bytes()], &[])?;
        // Capabilities of the region may follow. They are not needed, because the BAR is accessed by messages.
        match socket::split::<RegionInfo>(&reply) {
            Some((info, _)) => Ok(info.size.get()),
            None => Err(self.nonsense(
                Command::DEVICE_GET_REGION_INFO,
                format!("{} bytes", reply.len()),
            )),
        }
    }

    /// Reads configuration space.
    pub(crate) fn config_read(&self, offset: u16, out: &mut [u8]) -> Result<(), VfioUserError> {
        self.region_read(wire::CONFIG_REGION, u64::from(offset), out)
    }

    /// Writes configuration space and waits for the reply.
    pub(crate) fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), VfioUserError> {
        let request = access(wire::CONFIG_REGION, u64::from(offset), data.len());
        self.ask(Command::REGION_WRITE, &[request.as_bytes(), data], &[])?;
        Ok(())
    }

    /// Reads a register. If the connection has failed, all bits read as ones, as for a device removed from the bus.
    pub(crate) fn bar_read(&self, index: u8, offset: u64, out: &mut [u8]) {
        if let Err(error) = self.region_read(u32::from(index), offset, out) {
            tracing::error!("register at {offset:#x} of BAR {index}: {error}");
            out.fill(0xff);
        }
    }

    /// Writes a register. If the connection has failed, the write is lost, as for a device removed from the bus.
    pub(crate) fn bar_write(&self, index: u8, offset: u64, data: &[u8]) {
        let request = access(u32::from(index), offset, data.len());
        let payload = [request.as_bytes(), data];
        let sent = self.send(
            &mut self.lock(),
            Command::REGION_WRITE,
            wire::NO_REPLY,
            &payload,
            &[],
        );
        if let Err(error) = sent {
            tracing::error!("register at {offset:#x} of BAR {index}: {error}");
        }
    }

    fn region_read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), VfioUserError> {
        let request = access(region, offset, out.len());
        let reply = self.ask(Command::REGION_READ, &[request.as_bytes()], &[])?;
        match socket::split::<RegionAccess>(&reply) {
            Some((_, data)) if data.len() == out.len() => {
                out.copy_from_slice(data);
                Ok(())
            }
            Some(_) | None => Err(self.nonsense(
                Command::REGION_READ,
                format!("{} bytes for a read of {}", reply.len(), out.len()),
            )),
        }
    }

    /// Performs a function level reset.
    pub(crate) fn reset(&self) -> Result<(), VfioUserError> {
        self.ask(Command::DEVICE_RESET, &[], &[])?;
        Ok(())
    }

    /// Sets the eventfds of all vectors, in as few messages as the server's limit on descriptors allows.
    pub(crate) fn set_interrupts(&self, vectors: &[Interrupt]) -> Result<(), VfioUserError> {
        let mut start = 0;
        for part in vectors.chunks(self.max_fds) {
            start += self.set_irqs(wire::MSIX, start, part)?;
        }
        Ok(())
    }

    /// Sets eventfds for the vectors of an index, the first one being `start`. Returns the number that was set.
    fn set_irqs(
        &self,
        index: u32,
        start: u32,
        vectors: &[Interrupt],
    ) -> Result<u32, VfioUserError> {
        // PANIC: there are at most MAX_FDS and MAX_VECTORS vectors.
        let count = u32::try_from(vectors.len()).expect("a few vectors");
        let request = SetIrqs {
            argsz: length_of::<SetIrqs>().into(),
            flags: wire::SET_EVENTFDS.into(),
            index: index.into(),
            start: start.into(),
            count: count.into(),
        };
        let fds: Vec<BorrowedFd<'_>> = vectors.iter().map(Interrupt::as_fd).collect();
        self.ask(Command::DEVICE_SET_IRQS, &[request.as_bytes()], &fds)?;
        Ok(count)
    }

    /// Maps memory for the device. The server accesses memory that has a descriptor directly, and other memory by
    /// messages.
    pub(crate) fn dma_map(
        &self,
        iova: u64,
        memory: &SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), VfioUserError> {
        // CAST: usize has at most 64 bits on every target Rust has.
        let request = |offset: usize| DmaMap {
            argsz: length_of::<DmaMap>().into(),
            flags: wire::DMA_READ_WRITE.into(),
            offset: (offset as u64).into(),
            iova: iova.into(),
            size: (bytes as u64).into(),
        };
        let Some(fd) = memory.as_fd() else {
            let twin = self
                .twin
                .as_ref()
                .ok_or_else(|| VfioUserError::NoDescriptor {
                    path: self.path.clone(),
                    bytes,
                })?;
            match twin.insert(iova, memory, offset, bytes) {
                Err(over) if over.kind() == io::ErrorKind::NotConnected => {
                    return Err(self.mark_lost(&mut self.lock(), Command::DMA_MAP, over));
                }
                Err(source) => return Err(self.transport(Command::DMA_MAP, source)),
                Ok(()) => {}
            }
            let asked = self.ask(Command::DMA_MAP, &[request(0).as_bytes()], &[]);
            return asked.map(drop).inspect_err(|_| twin.remove(iova));
        };
        let payload = request(offset);
        self.ask(Command::DMA_MAP, &[payload.as_bytes()], &[fd.as_fd()])?;
        Ok(())
    }

    /// Unmaps memory. Access by messages is ended first, regardless of the server's answer.
    pub(crate) fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), VfioUserError> {
        if let Some(twin) = &self.twin {
            twin.remove(iova);
        }
        // CAST: usize has at most 64 bits on every target Rust has.
        let request = DmaUnmap {
            argsz: length_of::<DmaUnmap>().into(),
            flags: 0.into(),
            iova: iova.into(),
            size: (bytes as u64).into(),
        };
        match self.ask(Command::DMA_UNMAP, &[request.as_bytes()], &[]) {
            // A server that has no such mapping may report success, as the kernel's VFIO does, and that 0 bytes were
            // unmapped.
            Ok(reply) => match socket::split::<DmaUnmap>(&reply) {
                Some((done, _)) if done.size.get() == bytes as u64 => Ok(()),
                Some((done, _)) => {
                    let what = format!(
                        "{:#x} of {bytes:#x} bytes at IOVA {iova:#x} were unmapped",
                        done.size
                    );
                    Err(self.nonsense(Command::DMA_UNMAP, what))
                }
                None => {
                    let what = format!("{} bytes", reply.len());
                    Err(self.nonsense(Command::DMA_UNMAP, what))
                }
            },
            // A lost server may still write a file that it received, but that does not affect this process once its own
            // mapping is removed. Access by messages was ended above.
            Err(VfioUserError::Gone { .. } | VfioUserError::Transport { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message and waits for its reply, which must be exactly one object.
    fn ask_for<T: FromBytes>(&self, command: Command, payload: &[u8]) -> Result<T, VfioUserError> {
        let reply = self.ask(command, &[payload], &[])?;
        T::read_from_bytes(&reply)
            .map_err(|_| self.nonsense(command, format!("{} bytes", reply.len())))
    }

    /// Sends a message and waits for its reply's payload.
    fn ask(
        &self,
        command: Command,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, VfioUserError> {
        let reply = self.ask_message(command, payload, fds)?;
        Ok(reply.payload)
    }

    /// Sends a message and waits for its reply.
    fn ask_message(
        &self,
        command: Command,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Message, VfioUserError> {
        let mut connection = self.lock();
        let id = self.send(&mut connection, command, 0, payload, fds)?;
        let received = match &connection.socket {
            Ok(socket) => socket.receive(|| false),
            Err(_) => Ok(None),
        };
        let message = match received {
            Ok(Some(message)) => message,
            Ok(None) => {
                let source = io::Error::new(
                    io::ErrorKind::TimedOut,
                    "no reply, or the connection was closed (a server has one client at a time)",
                );
                return Err(self.mark_lost(&mut connection, command, source));
            }
            Err(source) => return Err(self.mark_lost(&mut connection, command, source)),
        };
        match message.is_reply_to(id, command) {
            Some(Ok(())) => Ok(message),
            Some(Err(errno)) => Err(VfioUserError::Refused {
                path: self.path.clone(),
                command,
                errno,
            }),
            None => {
                let source =
                    io::Error::new(io::ErrorKind::InvalidData, "a reply that makes no sense");
                self.mark_lost(&mut connection, command, source);
                Err(self.nonsense(command, format!("{:?} to message {id}", message.header)))
            }
        }
    }

    /// Marks the connection as failed and stops answering the server's requests for memory. A fault on the twin socket
    /// takes precedence as the cause. Returns the error.
    fn mark_lost(
        &self,
        connection: &mut Connection,
        command: Command,
        source: io::Error,
    ) -> VfioUserError {
        let failure = self.twin.as_ref().and_then(TwinClient::failure);
        let source = failure.map_or(source, io::Error::other);
        connection.socket = Err(Lost {
            command,
            because: source.to_string(),
        });
        if let Some(twin) = &self.twin {
            twin.end();
        }
        self.transport(command, source)
    }

    /// Sends a message. Returns the message's ID.
    fn send(
        &self,
        connection: &mut Connection,
        command: Command,
        flags: u32,
        payload: &[&[u8]],
        fds: &[BorrowedFd<'_>],
    ) -> Result<u16, VfioUserError> {
        let id = connection.next_id;
        connection.next_id = id.wrapping_add(1);
        let socket = match &connection.socket {
            Ok(socket) => socket,
            Err(lost) => return Err(self.gone(lost)),
        };
        let header = (id, command.0, wire::TYPE_COMMAND | flags, 0);
        if let Err(source) = socket::send(socket, header, payload, fds) {
            return Err(self.mark_lost(connection, command, source));
        }
        Ok(id)
    }

    /// Returns the cause of the connection's failure, if it has failed.
    pub(crate) fn lost(&self) -> Option<VfioUserError> {
        let connection = self.lock();
        connection.socket.as_ref().err().map(|lost| self.gone(lost))
    }

    fn gone(&self, lost: &Lost) -> VfioUserError {
        let Lost { command, because } = lost.clone();
        VfioUserError::Gone {
            path: self.path.clone(),
            command,
            because,
        }
    }

    fn transport(&self, command: Command, source: io::Error) -> VfioUserError {
        VfioUserError::Transport {
            path: self.path.clone(),
            command,
            source,
        }
    }

    fn nonsense(&self, command: Command, what: String) -> VfioUserError {
        VfioUserError::Reply {
            path: self.path.clone(),
            command,
            what,
        }
    }
}

fn access(region: u32, offset: u64, bytes: usize) -> RegionAccess {
    // PANIC: an access to a register or to configuration space has at most 8 bytes.
    let count = u32::try_from(bytes).expect("a register's width");
    RegionAccess {
        offset: offset.into(),
        region: region.into(),
        count: count.into(),
    }
}
