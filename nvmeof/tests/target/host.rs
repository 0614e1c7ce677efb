//! A host: our own small initiator, which can also send commands that a kernel's initiator never sends.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nvmeof::nvme::command::{PSDT_SGL, admin, io};
use nvmeof::nvme::fabrics::{ANY_CONTROLLER, ConnectData, csts, kind, property};
use nvmeof::nvme::rdma::{AcceptData, RejectData, RequestData};
use nvmeof::nvme::sgl::Sgl;
use nvmeof::nvme::{Cqe, Nqn, Sqe, Status};
use udapl::endpoint::{EpAttr, EpChange, EpTransport};
use udapl::memory::{LmrCreated, LmrSlice, PzHandle};
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DmaMemory, DtoCookie,
    DtoStatus, EpEvds, EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, OpenOptions, Qos,
    ia_open,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const PATIENCE: Duration = Duration::from_secs(300);
const NONE: CompletionFlags = CompletionFlags::empty();
/// Size of the host's data area in bytes.
pub const DATA: usize = 1 << 20;
/// Offset of the command area, which follows the data. The responses follow the commands.
const COMMANDS: usize = DATA;
const SLOTS: usize = 256;
/// Size of a capsule with a page of in-capsule data.
const CAPSULE: usize = 64 + 4096;
const RESPONSES: usize = COMMANDS + SLOTS * CAPSULE;
const ALL: usize = RESPONSES + SLOTS * 16;

pub const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";
const HOST_ID: [u8; 16] = [0x11; 16];

/// A host with an adapter of its own.
pub struct Host {
    pub ia: Ia,
    pub zone: PzHandle,
    pub memory: DmaMemory,
    pub region: LmrCreated,
    all: LmrSlice,
    target: IpAddr,
    port: u16,
    pub name: Nqn,
    /// Keep-alive time of the next controller in milliseconds; 0 means none.
    pub keep_alive_ms: u32,
    /// Host identifier.
    pub id: [u8; 16],
    slot: usize,
    /// Transport attributes of the host's connections.
    pub transport: EpTransport,
    /// Runs the target and the simulation while the host waits; `None` if they run in threads of their own.
    pub meanwhile: Option<Meanwhile>,
}

/// Function that runs one turn of the target and the simulation.
pub type Meanwhile = Box<dyn FnMut() -> Result<()>>;
/// Number of turns after which a wait fails.
const TURNS: usize = 1_000_000;

/// A queue of a host.
pub struct Queue {
    pub ep: EpHandle,
    pub events: EvdHandle,
    pub number: u16,
    entries: u16,
    next: u16,
}

impl Queue {
    /// Returns the command identifier that the next command gets.
    pub fn sent(&self) -> u16 {
        self.next
    }
}

impl Host {
    pub fn open(adapter: &str, target: IpAddr, port: u16) -> Result<Self> {
        Self::of(ia_open(adapter, &OpenOptions::default())?, target, port)
    }

    /// Makes a host on an open adapter.
    pub fn of(mut ia: Ia, target: IpAddr, port: u16) -> Result<Self> {
        let zone = ia.pz_create()?;
        let memory = udapl::alloc(&ia, ALL)?;
        let rights = MemPrivFlags::LOCAL_READ
            | MemPrivFlags::LOCAL_WRITE
            | MemPrivFlags::REMOTE_READ
            | MemPrivFlags::REMOTE_WRITE;
        let region = ia.lmr_create(memory.clone(), zone, rights)?;
        let all = ia.lmr_slice(region.lmr, 0, ALL as u64)?;
        Ok(Self {
            ia,
            zone,
            memory,
            region,
            all,
            target,
            port,
            name: HOST.parse()?,
            keep_alive_ms: 0,
            slot: 0,
            id: HOST_ID,
            transport: EpTransport::default(),
            meanwhile: None,
        })
    }

    /// Waits for the next event of an EVD.
    fn event(&mut self, events: EvdHandle) -> Result<Event> {
        let Some(meanwhile) = &mut self.meanwhile else {
            return Ok(self.ia.evd_wait(events, PATIENCE, 1)?.0);
        };
        for _ in 0..TURNS {
            if let Some(event) = self.ia.evd_dequeue(events)? {
                return Ok(event);
            }
            meanwhile()?;
            self.ia.progress();
        }
        bail!("no event in {TURNS} turns");
    }

    /// Returns the SGL descriptor of a part of the host's data.
    pub fn data(&self, at: usize, bytes: u32) -> Sgl {
        let address = self.region.registered_address + at as u64;
        Sgl::keyed(address, bytes, self.region.rmr_context, false)
    }

    /// Returns the offset of a slot's capsule.
    pub fn capsule_at(&self, slot: usize) -> usize {
        COMMANDS + slot * CAPSULE
    }

    pub fn part(&self, at: usize, bytes: usize) -> Result<LmrSlice> {
        let part = self.all.part(at as u64, bytes as u64);
        part.context("inside the memory")
    }

    /// Connects; returns the queue, or the status in the private data of the target's rejection.
    pub fn dial(
        &mut self,
        private_data: &[u8],
        entries: u16,
        number: u16,
    ) -> Result<Result<Queue, Option<u16>>> {
        let queue = self.call(private_data, entries, number)?;
        self.answer(queue)
    }

    /// Sends a connection request, whose answer [`Host::answer`] returns.
    pub fn call(&mut self, private_data: &[u8], entries: u16, number: u16) -> Result<Queue> {
        let events = self.ia.evd_create(
            512,
            EvdFlags::CONNECTION | EvdFlags::DTO | EvdFlags::RMR_BIND,
        )?;
        let attr = EpAttr {
            max_recv_dtos: u32::from(entries) + 1,
            max_request_dtos: 2 * u32::from(entries) + 1,
            max_rdma_read_in: 16,
            ..EpAttr::defaults(self.ia.query().ia)
        };
        let ep = self
            .ia
            .ep_create(Some(self.zone), EpEvds::all(events), Some(&attr))?;
        let change = EpChange {
            transport: Some(self.transport),
            ..EpChange::default()
        };
        self.ia.ep_modify(ep, &change)?;
        let to = ConnQual::port(self.port);
        let none = ConnectFlags::empty();
        self.ia.ep_connect(
            ep,
            self.target,
            to,
            PATIENCE,
            private_data,
            Qos::BEST_EFFORT,
            none,
        )?;
        Ok(Queue {
            ep,
            events,
            number,
            entries,
            next: 0,
        })
    }

    /// Waits for the answer to a connection request; returns the same as [`Host::dial`].
    pub fn answer(&mut self, queue: Queue) -> Result<Result<Queue, Option<u16>>> {
        let entries = queue.entries;
        let Event::Connection(event) = self.event(queue.events)? else {
            bail!("no connection event");
        };
        let said = self.ia.ep_private_data(queue.ep)?;
        match event.kind {
            ConnectionEventKind::Established => {
                let (reply, _) = AcceptData::read_from_prefix(said)
                    .map_err(|_| anyhow::anyhow!("a short reply"))?;
                ensure!(reply.controller_receives.get() == entries, "{reply:?}");
                Ok(Ok(queue))
            }
            ConnectionEventKind::PeerRejected => {
                let status = RejectData::read_from_prefix(said)
                    .ok()
                    .map(|(data, _)| data.status.get());
                Ok(Err(status))
            }
            ConnectionEventKind::NonPeerRejected
            | ConnectionEventKind::AcceptCompletionError
            | ConnectionEventKind::Disconnected
            | ConnectionEventKind::Broken
            | ConnectionEventKind::TimedOut
            | ConnectionEventKind::Unreachable => bail!("{:?}", event.kind),
        }
    }

    /// Makes a connection for a queue, without Connect.
    pub fn queue(&mut self, number: u16, entries: u16) -> Result<Queue> {
        let data = RequestData::new(number, entries, 0);
        match self.dial(data.as_bytes(), entries, number)? {
            Ok(queue) => Ok(queue),
            Err(status) => bail!("rejected: {status:?}"),
        }
    }

    /// Sends a command, and returns its response.
    pub fn command(&mut self, queue: &mut Queue, sqe: Sqe) -> Result<Cqe> {
        self.send(queue, sqe, &[])?;
        self.response(queue)
    }

    /// Sends a command with in-capsule data; returns its identifier.
    pub fn send(&mut self, queue: &mut Queue, mut sqe: Sqe, data: &[u8]) -> Result<u16> {
        let cid = queue.next;
        queue.next = queue.next.wrapping_add(1);
        sqe.cid = cid.into();
        // All queues use the same slots in turn, because an event request may occupy its slot for long.
        let slot = self.slot;
        self.slot = (slot + 1) % SLOTS;
        let (at, answer) = (COMMANDS + slot * CAPSULE, RESPONSES + slot * 16);
        self.memory.write_from(at, sqe.as_bytes())?;
        self.memory.write_from(at + 64, data)?;
        let answer = self.part(answer, 16)?;
        let capsule = self.part(at, 64 + data.len())?;
        self.ia
            .ep_post_recv(queue.ep, &[answer], DtoCookie(slot as u64), NONE)?;
        self.ia.ep_post_send(
            queue.ep,
            &[capsule],
            DtoCookie(u64::MAX),
            CompletionFlags::SUPPRESS,
        )?;
        Ok(cid)
    }

    /// Sends a command without data, and posts no receive for its response.
    pub fn send_without_receive(&mut self, queue: &mut Queue, mut sqe: Sqe) -> Result<()> {
        sqe.cid = queue.next.into();
        queue.next = queue.next.wrapping_add(1);
        let slot = self.slot;
        self.slot = (slot + 1) % SLOTS;
        let at = COMMANDS + slot * CAPSULE;
        self.memory.write_from(at, sqe.as_bytes())?;
        let capsule = self.part(at, 64)?;
        let named = DtoCookie(u64::MAX);
        Ok(self.ia.ep_post_send(queue.ep, &[capsule], named, NONE)?)
    }

    /// Disconnects from this side, and frees the endpoint and its EVD.
    pub fn disconnect(&mut self, queue: &Queue) -> Result<()> {
        self.ia.ep_disconnect(queue.ep, CloseFlags::Abrupt)?;
        self.see_off(queue)
    }

    /// Waits until a connection has ended, and frees the endpoint and its EVD.
    pub fn see_off(&mut self, queue: &Queue) -> Result<()> {
        self.expect_end(queue)?;
        self.ia.ep_free(queue.ep)?;
        Ok(self.ia.evd_free(queue.events)?)
    }

    /// Returns the next response.
    pub fn response(&mut self, queue: &mut Queue) -> Result<Cqe> {
        let event = self.event(queue.events)?;
        self.response_of(event)
    }

    /// Returns the next response, if there is one.
    pub fn poll(&mut self, queue: &Queue) -> Result<Option<Cqe>> {
        let event = self.ia.evd_dequeue(queue.events)?;
        event.map(|event| self.response_of(event)).transpose()
    }

    fn response_of(&self, event: Event) -> Result<Cqe> {
        let Event::Dto(done) = event else {
            bail!("no completion");
        };
        ensure!(
            done.status == DtoStatus::Success,
            "{}",
            udapl::explain(&done)
        );
        ensure!(
            done.transferred_length == 16,
            "{} bytes",
            done.transferred_length
        );
        let bytes = self
            .memory
            .read(RESPONSES + usize::try_from(done.cookie.0)? * 16, 16)?;
        Cqe::read_from_bytes(&bytes).map_err(|_| anyhow::anyhow!("16 bytes"))
    }

    /// Waits until a connection has ended. Ignores completions before the end. Fails if the connection is established
    /// instead.
    pub fn expect_end(&mut self, queue: &Queue) -> Result<()> {
        loop {
            if let Event::Connection(event) = self.event(queue.events)? {
                ensure!(event.kind != ConnectionEventKind::Established, "{event:?}");
                return Ok(());
            }
        }
    }

    /// Sends a command with this SGL descriptor; returns its status.
    pub fn status(&mut self, queue: &mut Queue, mut sqe: Sqe, data: Sgl) -> Result<Status> {
        sqe.sgl = data;
        Ok(self.command(queue, sqe)?.status())
    }

    /// Sends Connect, which makes the connection a queue of a controller.
    pub fn connect(&mut self, queue: &mut Queue, subsystem: &Nqn, controller: u16) -> Result<Cqe> {
        self.send_connect(queue, subsystem, controller)?;
        self.response(queue)
    }

    /// Sends Connect without waiting for the response. Its data is at the beginning of the host's memory.
    pub fn send_connect(
        &mut self,
        queue: &mut Queue,
        subsystem: &Nqn,
        controller: u16,
    ) -> Result<()> {
        let data = ConnectData::new(self.id, controller, subsystem.field(), self.name.field());
        self.memory.write_from(0, data.as_bytes())?;
        let mut sqe = command(admin::FABRICS);
        sqe.nsid = u32::from(kind::CONNECT).into();
        sqe.sgl = self.data(0, 1024);
        sqe.cdw10 = (u32::from(queue.number) << 16).into();
        sqe.cdw11 = u32::from(queue.entries - 1).into();
        sqe.cdw12 = if queue.number == 0 {
            self.keep_alive_ms
        } else {
            0
        }
        .into();
        self.send(queue, sqe, &[])?;
        Ok(())
    }

    /// Makes an admin queue with an enabled controller; returns the queue and the controller's number.
    pub fn controller(&mut self, subsystem: &Nqn) -> Result<(Queue, u16)> {
        let mut queue = self.queue(0, 32)?;
        let connected = self.connect(&mut queue, subsystem, ANY_CONTROLLER)?;
        ensure!(connected.status().is_success(), "{}", connected.status());
        let controller = u16::try_from(connected.result.get())?;
        self.set(&mut queue, property::CC, 0x0046_0001)?;
        let status = self.get(&mut queue, property::CSTS)?;
        ensure!(status & u64::from(csts::RDY) != 0, "{status:#x}");
        Ok((queue, controller))
    }

    /// Makes an I/O queue of a controller.
    pub fn io_queue(
        &mut self,
        subsystem: &Nqn,
        controller: u16,
        number: u16,
        entries: u16,
    ) -> Result<Queue> {
        let mut queue = self.queue(number, entries)?;
        let connected = self.connect(&mut queue, subsystem, controller)?;
        ensure!(connected.status().is_success(), "{}", connected.status());
        Ok(queue)
    }

    pub fn set(&mut self, queue: &mut Queue, property: u32, value: u32) -> Result<Cqe> {
        let mut sqe = command(admin::FABRICS);
        sqe.nsid = u32::from(kind::PROPERTY_SET).into();
        sqe.cdw11 = property.into();
        sqe.cdw12 = value.into();
        self.command(queue, sqe)
    }

    pub fn get(&mut self, queue: &mut Queue, property: u32) -> Result<u64> {
        let mut sqe = command(admin::FABRICS);
        sqe.nsid = u32::from(kind::PROPERTY_GET).into();
        sqe.cdw10 = u32::from(property == property::CAP).into();
        sqe.cdw11 = property.into();
        let cqe = self.command(queue, sqe)?;
        ensure!(cqe.status().is_success(), "{}", cqe.status());
        Ok(cqe.result.get())
    }

    /// Sends Identify with this CNS value and namespace.
    pub fn identify(
        &mut self,
        queue: &mut Queue,
        what: u8,
        nsid: u32,
    ) -> Result<(Status, Vec<u8>)> {
        let mut sqe = command(admin::IDENTIFY);
        sqe.nsid = nsid.into();
        sqe.sgl = self.data(0, 4096);
        sqe.cdw10 = u32::from(what).into();
        let cqe = self.command(queue, sqe)?;
        Ok((cqe.status(), self.memory.read(0, 4096)?))
    }

    /// Reads a log page from its beginning.
    pub fn log(&mut self, queue: &mut Queue, page: u8, bytes: u32) -> Result<(Status, Vec<u8>)> {
        let mut sqe = command(admin::GET_LOG_PAGE);
        sqe.nsid = u32::MAX.into();
        sqe.sgl = self.data(0, bytes);
        sqe.cdw10 = (u32::from(page) | (bytes / 4 - 1) << 16).into();
        let cqe = self.command(queue, sqe)?;
        Ok((cqe.status(), self.memory.read(0, bytes as usize)?))
    }

    /// Writes blocks from the host's memory.
    pub fn write(
        &mut self,
        queue: &mut Queue,
        first: u64,
        blocks: u32,
        at: usize,
        bytes: u32,
    ) -> Result<Status> {
        let mut sqe = transfer(io::WRITE, first, blocks);
        sqe.sgl = self.data(at, bytes);
        Ok(self.command(queue, sqe)?.status())
    }

    /// Reads blocks into the host's memory.
    pub fn read(
        &mut self,
        queue: &mut Queue,
        first: u64,
        blocks: u32,
        at: usize,
        bytes: u32,
    ) -> Result<Status> {
        let mut sqe = transfer(io::READ, first, blocks);
        sqe.sgl = self.data(at, bytes);
        Ok(self.command(queue, sqe)?.status())
    }
}

/// Returns a command with this opcode, PSDT 01b and an empty SGL descriptor. All other fields are 0.
pub fn command(opcode: u8) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    sqe.opcode = opcode;
    sqe.flags = PSDT_SGL;
    sqe.sgl = Sgl::keyed(0, 0, 0, false);
    sqe
}

/// Returns a command on blocks of namespace 1.
pub fn transfer(opcode: u8, first: u64, blocks: u32) -> Sqe {
    let mut sqe = command(opcode);
    sqe.nsid = 1.into();
    sqe.cdw10 = u32::try_from(first & 0xffff_ffff).expect("32 bits").into();
    sqe.cdw11 = u32::try_from(first >> 32).expect("32 bits").into();
    sqe.cdw12 = (blocks - 1).into();
    sqe
}
