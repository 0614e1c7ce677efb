//! Tests of commands without a transport: the host's memory is a vector, and host and target call each other directly.
//! The disks are real memory disks, accessed by the worker's ring.

mod copy;
mod fused;
mod limits;
mod masks;
mod ranges;
mod ssds;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use udapl::Ia;
use udapl::fabric::Fabric;
use udapl::memory::alloc_buffer;
use uuid::Uuid;
use zerocopy::FromZeros;

use super::{
    Commands, DataBuffer, Disks, Do, Event, Fence, Issuer, Layout, Lock, LockOwner, Memory, Owner,
    PAGE, QueueId, Scope, State, Step,
};
use crate::disk::faults::{Faults, LONGEST_DELAY, Of, Orders};
use crate::disk::{Disk, Source};
use crate::model::{
    Connected, MAX_TRANSFER_SHIFT, Model, Moment, Namespace, NamespaceConfig, Place, QUEUES,
    SubsystemConfig,
};
use crate::nvme::command::{PSDT_SGL, io as opcode};
use crate::nvme::fabrics::{ANY_CONTROLLER, Connect, ConnectData};
use crate::nvme::sgl::Sgl;
use crate::nvme::{Nqn, Sqe, Status};

const DONE: Status = Status::SUCCESS;
const BYTES: u64 = 1 << 20;
const BLOCK: usize = 512;
/// Number of commands and of buffers of the table.
const COMMANDS: u32 = 16;
const BUFFERS: u32 = 8;

const QUEUE: QueueId = QueueId {
    place: 0,
    generation: 0,
};

/// Commands whose lock every worker has passed.
#[derive(Debug, Default)]
struct Locked(Mutex<Vec<u32>>);

impl LockOwner for Locked {
    fn locked(&self, io: u32) {
        self.0.lock().expect("no panic").push(io);
    }
}

/// A host, the commands of a target, and the connection between them.
struct Loop {
    commands: Commands,
    model: Model,
    subsystem: Nqn,
    connected: Connected,
    list: u32,
    /// Memory of the host. The address in a descriptor is an offset into it.
    host: Vec<u8>,
    /// First command of a pair, which waits for the second.
    first: Option<u32>,
    /// True if data is fetched only by a call of [`Loop::fetch`].
    holds_fetches: bool,
    fetches: Vec<u32>,
    locked: Arc<Locked>,
    fences: Vec<Fence>,
    /// Status of each answered command, by command identifier.
    answers: BTreeMap<u16, Status>,
    cid: u16,
    /// The target's clock.
    now: Moment,
    /// The adapter instance, whose arena holds the target's memory.
    _ia: Ia,
}

impl Loop {
    fn new(source: Source) -> Self {
        let address = IpAddr::from(Ipv4Addr::LOCALHOST);
        let subsystem: Nqn = "nqn.2026-11.test:disks".parse().expect("a name");
        let host: Nqn = "nqn.2026-11.test:host".parse().expect("a name");
        let mut model = Model::new();
        let port = vec![SocketAddr::new(address, 4420)];
        model.add_port(1, port).expect("a port");
        let config = SubsystemConfig {
            name: subsystem.clone(),
            serial: "1".to_owned(),
            model: "test".to_owned(),
            any_host: true,
            queues: QUEUES,
        };
        model.add_subsystem(config).expect("a subsystem");
        let place = Place {
            port: 1,
            worker: 0,
            queue: 0,
            entries: 32,
            source: address,
        };
        let mut sqe = Sqe::new_zeroed();
        sqe.cdw11 = 31.into();
        let names = (subsystem.field(), host.field());
        let data = ConnectData::new([1; 16], ANY_CONTROLLER, names.0, names.1);
        let connected = model.connect(place, Connect::of(&sqe), &data, Moment::ZERO);
        let connected = connected.expect("a controller");

        let ia = Fabric::pair(1).open(0).expect("an adapter");
        let alloc = |bytes: u32| {
            let (bytes, align) = (bytes as usize, PAGE as usize);
            alloc_buffer(&ia, bytes, align).expect("memory")
        };
        let layout = Layout {
            pages_at: 0,
            buffers: BUFFERS,
            transfer_shift: MAX_TRANSFER_SHIFT,
        };
        let (pages, buffers) = (alloc(COMMANDS * PAGE), alloc(layout.buffers_bytes()));
        let mut disks = Disks::new(32).expect("a ring");
        let memory_of_disks = [pages.clone(), buffers.clone()];
        disks.pin(&memory_of_disks).expect("a ring");
        let memory = Memory::new(pages, buffers, layout);
        let mut commands = Commands::new(COMMANDS, BUFFERS, memory, disks);
        let list = commands
            .lists
            .add_user(connected.namespaces.as_ref().expect("a list"));
        let mut this = Self {
            commands,
            model,
            subsystem,
            connected,
            list,
            host: vec![0; 1 << 20],
            first: None,
            holds_fetches: false,
            fetches: Vec::new(),
            locked: Arc::default(),
            fences: Vec::new(),
            answers: BTreeMap::new(),
            cid: 0,
            now: Moment::ZERO,
            _ia: ia,
        };
        this.add_namespace(source);
        this
    }

    fn add_namespace(&mut self, source: Source) -> Arc<Namespace> {
        let config = NamespaceConfig {
            nsid: Some(1),
            uuid: Uuid::from_u128(1),
            group: 1,
            hosts: None,
            disk: Disk::open(source, 9, false).expect("a disk"),
        };
        let added = self.model.add_namespace(&self.subsystem, config);
        assert_eq!(added.expect("a namespace"), 1);
        self.namespace()
    }

    fn remove_namespace(&mut self) {
        let removed = self.model.remove_namespace(&self.subsystem, 1);
        removed.expect("a namespace");
    }

    /// Delays the next operation of this kind on the faulty disk until the orders are withdrawn.
    fn hold_next(&self, of: Of) -> Arc<Faults> {
        let namespace = self.namespace();
        let faults = namespace.disk().faults().expect("a faulty disk");
        faults.order(Some(Orders {
            of,
            delay: LONGEST_DELAY,
            times: Some(1),
            ..Orders::default()
        }));
        Arc::clone(faults)
    }

    fn namespace(&self) -> Arc<Namespace> {
        let namespace = self.model.namespace(&self.subsystem, 1);
        namespace.expect("a namespace")
    }

    fn with_issuer<T>(&mut self, act: impl FnOnce(&mut Commands, &Issuer<'_>) -> T) -> T {
        let issuer = Issuer {
            list: self.list,
            access: &self.connected.access,
            host_id: &self.connected.host_id,
            host: &self.connected.host,
            owner: Owner::default(),
        };
        act(&mut self.commands, &issuer)
    }

    /// Sends a command. Returns its command identifier, and its index in the table.
    fn send(&mut self, mut sqe: Sqe, data: Sgl) -> (u16, u32) {
        self.cid += 1;
        (sqe.cid, sqe.sgl) = (self.cid.into(), data);
        let mut numbers = (0..).zip(&mut self.commands.ios);
        let free = numbers.find(|(_, io)| io.state() == State::Free);
        let (at, io) = free.expect("a free place");
        io.sqe = sqe;
        io.begin(QUEUE, 0);
        io.data = sqe.sgl.data().expect("a descriptor");
        let act = match self.first.take() {
            Some(first) if self.commands.is_second(at) => {
                self.with_issuer(|commands, issuer| commands.pair(first, at, issuer))
            }
            first => {
                if let Some(first) = first {
                    self.carry_out(first, Do::Refuse(Status::MISSING_FUSED.dnr()));
                }
                self.with_issuer(|commands, issuer| commands.begin(at, issuer))
            }
        };
        self.carry_out(at, act);
        (self.cid, at)
    }

    fn carry_out(&mut self, at: u32, act: Do) {
        let io = &mut self.commands.ios[at as usize];
        match act {
            Do::Fetch => {
                io.step(Step::Fetch);
                self.fetches.push(at);
                if !self.holds_fetches {
                    self.fetch();
                }
            }
            Do::Put => {
                let (bytes, data) = (io.bytes as usize, io.buffer.expect("data"));
                let to = usize::try_from(io.sqe.sgl.address.get()).expect("an offset");
                let (buffer, from) = self.commands.memory.at(data);
                buffer.read_bytes(from, &mut self.host[to..to + bytes]);
                self.end(at);
            }
            Do::Respond => self.end(at),
            Do::Refuse(status) => {
                io.answer(status, 0, false);
                let partner = self.commands.fail_partner(at);
                self.end(at);
                if let Some(partner) = partner {
                    self.carry_out(partner, Do::Refuse(Status::FAILED_FUSED.dnr()));
                }
            }
            Do::First => self.first = Some(at),
            Do::Lock(namespace) => {
                let block = io.sqe.first_block();
                let owner = Arc::clone(&self.locked);
                let lock = namespace
                    .lock(block, 0)
                    .then(|| Arc::new(Lock::new(&namespace, Scope::Block(block), 1, owner, at)));
                let fence = lock
                    .clone()
                    .map(|lock| self.commands.fence(lock, |_, _| true));
                self.fences.extend(fence);
                self.commands.lock(at, lock);
            }
            Do::Again => {
                let host = Some(&self.connected.host);
                self.commands.charge_step(at, host, || self.now);
                self.drive(at, Event::Again);
            }
            Do::Limit => {
                let now = self.now;
                let act = self.with_issuer(|commands, issuer| commands.reserve(at, now, issuer));
                self.carry_out(at, act);
            }
            Do::Compared => {
                let act = self.with_issuer(|commands, issuer| commands.compared(at, issuer));
                self.carry_out(at, act);
            }
            Do::Others => loop {
                let others = self.commands.take_others();
                if others.is_empty() {
                    break;
                }
                for (other, act) in others {
                    self.carry_out(other, act);
                }
            },
            Do::Wait => {}
            Do::Drop => {
                io.step(Step::Drop);
                self.release(at);
            }
            other @ (Do::Buffer(_) | Do::Disk(_) | Do::Model | Do::Pair | Do::Block) => {
                panic!("{other:?}")
            }
        }
    }

    fn drive(&mut self, at: u32, event: Event) {
        let act = self.with_issuer(|commands, issuer| commands.drive(at, event, issuer));
        self.carry_out(at, act);
    }

    /// Fetches the data of all commands that wait for it.
    fn fetch(&mut self) {
        for at in core::mem::take(&mut self.fetches) {
            let io = &mut self.commands.ios[at as usize];
            let from = usize::try_from(io.sqe.sgl.address.get()).expect("an offset");
            let (bytes, data) = (io.bytes as usize, io.buffer.expect("a place"));
            let (buffer, to) = self.commands.memory.at(data);
            buffer.write_bytes(to, &self.host[from..from + bytes]);
            io.step(Step::Fetched);
            self.drive(at, Event::Fetched);
        }
    }

    fn end(&mut self, at: u32) {
        let io = &mut self.commands.ios[at as usize];
        io.step(Step::Post);
        io.step(Step::Sent);
        self.answers.insert(io.sqe.cid.get(), io.status);
        self.release(at);
    }

    fn release(&mut self, at: u32) {
        if let Some(lock) = self.commands.release(at) {
            if let Scope::Block(block) = lock.scope() {
                lock.namespace().unlock(*block);
            }
            for _ in 0..self.commands.blocked() {
                let at = self.commands.unblock().expect("a command");
                self.drive(at, Event::Unblocked);
            }
        }
    }

    /// Processes events until this command is answered. Returns its status.
    fn answer(&mut self, cid: u16) -> Status {
        for _ in 0..100_000 {
            if let Some(status) = self.answers.remove(&cid) {
                return status;
            }
            self.run_once();
            if !self.answers.contains_key(&cid) {
                let slept = self.commands.disks.sleep(&[], Duration::from_millis(1));
                slept.expect("a ring");
            }
        }
        panic!("command {cid} is not answered: {:?}", self.commands.ios);
    }

    fn run_once(&mut self) {
        self.commands.disks.poll().expect("a ring");
        while let Some(ended) = self.commands.disks.next() {
            let at = ended.io;
            let act = self.commands.disk_done(ended);
            self.carry_out(at, act);
        }
        let commands = &self.commands;
        self.fences.retain_mut(|fence| !commands.pass(fence));
        let locked = core::mem::take(&mut *self.locked.0.lock().expect("no panic"));
        for at in locked {
            let act = self.with_issuer(|commands, issuer| commands.locked(at, Some(issuer)));
            self.carry_out(at, act);
        }
        while let Some(at) = self.commands.buffers.next() {
            self.commands.ios[at as usize].step(Step::BufferFree);
            let act = self.with_issuer(|commands, issuer| commands.buffer_free(at, issuer));
            self.carry_out(at, act);
        }
    }

    fn command(&mut self, sqe: Sqe, data: Sgl) -> Status {
        let (cid, _) = self.send(sqe, data);
        self.answer(cid)
    }

    fn write(&mut self, first: u64, content: &[u8]) -> Status {
        self.host[65536..65536 + content.len()].copy_from_slice(content);
        let blocks = u32::try_from(content.len() / BLOCK).expect("few");
        let data = memory(65536, content.len());
        self.command(transfer(opcode::WRITE, first, blocks), data)
    }

    fn read(&mut self, first: u64, blocks: u32) -> Vec<u8> {
        let bytes = blocks as usize * BLOCK;
        let data = memory(65536, bytes);
        let status = self.command(transfer(opcode::READ, first, blocks), data);
        assert_eq!(status, DONE);
        self.host[65536..65536 + bytes].to_vec()
    }

    /// Reads blocks, and returns the first byte of each.
    fn blocks(&mut self, first: u64, blocks: u32) -> Vec<u8> {
        let all = self.read(first, blocks);
        all.chunks(BLOCK).map(|block| block[0]).collect()
    }

    /// Asserts that every entry and every buffer is free.
    fn assert_free(&self) {
        let busy = self
            .commands
            .ios
            .iter()
            .find(|io| io.state() != State::Free);
        assert!(busy.is_none(), "{busy:?}");
        assert_eq!(self.commands.buffers.free(), BUFFERS as usize);
    }
}

/// Makes a descriptor of the host's memory.
fn memory(at: usize, bytes: usize) -> Sgl {
    let bytes = u32::try_from(bytes).expect("24 bits");
    Sgl::keyed(at as u64, bytes, 7, false)
}

fn no_data() -> Sgl {
    Sgl::keyed(0, 0, 0, false)
}

fn command(opcode: u8) -> Sqe {
    let mut sqe = Sqe::new_zeroed();
    (sqe.opcode, sqe.flags, sqe.nsid) = (opcode, PSDT_SGL, 1.into());
    sqe
}

fn transfer(opcode: u8, first: u64, blocks: u32) -> Sqe {
    let mut sqe = command(opcode);
    sqe.cdw10 = u32::try_from(first).expect("32 bits").into();
    sqe.cdw12 = (blocks - 1).into();
    sqe
}
