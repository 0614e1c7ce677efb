//! Hostile hosts against the model of an NVMe over Fabrics target. Three hosts connect, send commands and lose
//! connections in any order. One host is allowed; one is allowed but must use a key that the test's hosts do not know;
//! one is not allowed.
//!
//! No input causes a panic. An answer fits into the host's buffer. The number of outstanding Asynchronous Event
//! Requests is bounded. The host that is not allowed gets only discovery controllers. The host that cannot authenticate
//! gets only authentication messages. Nothing is left once all connections are closed. An honest host has a subsystem
//! and an address of its own: it connects, discovers, sends commands and disconnects. If the target rejects it without
//! DNR (Do Not Retry), it retries a second later. The number of its tries is bounded.

use bolero::{TypeGenerator, check};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::extent;
use crate::honest::Longest;
use nvmeof::auth::Key;
use nvmeof::disk::{Disk, Source};
use nvmeof::model::{
    Limit, Model, Moment, Namespace, NamespaceConfig, Outcome, Place, QUEUES, SubsystemConfig,
};
use nvmeof::nvme::fabrics::{Connect, ConnectData};
use nvmeof::nvme::{Nqn, Sqe, Status};
use uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

const ALLOWED: &str = "nqn.2026-11.test:allowed";
const KEYED: &str = "nqn.2026-11.test:keyed";
const STRANGER: &str = "nqn.2026-11.test:stranger";
const HOSTS: [&str; 3] = [ALLOWED, KEYED, STRANGER];
const DISKS: &str = "nqn.2026-11.test:disks";
const HONEST: &str = "nqn.2026-11.test:honest";
const HONEST_DISKS: &str = "nqn.2026-11.test:honest-disks";
const HONEST_SOURCE: [u8; 4] = [192, 0, 2, 9];
/// Lowest controller ID of the honest host. The steps `Command`, `Authenticate` and `Lose` use lower IDs.
const HOSTILE: u16 = 5;
/// Number of tries until a Connect or a command of the honest host succeeds.
const MOST_TRIES: u64 = 1;
/// Number of tries after which the honest host gives up.
const PATIENCE: u64 = 60;
static BESIDE: Longest = Longest::new("hostile NVMe hosts", "tries", MOST_TRIES);
const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
/// Valid opcodes of admin, fabrics and reservation commands.
const OPCODES: [u8; 16] = [
    0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7f, 0x7f, 0x0d, 0x0e, 0x11, 0x15, 0x02, 0x06, 0x0c,
];

#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Number {
    Small(u8),
    Shifted(u8, u8),
    All,
    Any(u32),
}

impl Number {
    fn value(self) -> u32 {
        match self {
            Self::Small(number) => (number % 16).into(),
            Self::Shifted(number, by) => u32::from(number) << (by % 25),
            Self::All => u32::MAX,
            Self::Any(number) => number,
        }
    }
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
struct Command {
    controller: u8,
    queue: u8,
    opcode: u8,
    any_opcode: bool,
    flags: Option<u8>,
    nsid: Number,
    dwords: [Number; 6],
    room: u16,
    data: [u8; 16],
}

#[derive(Clone, Copy, Debug, TypeGenerator)]
enum Step {
    /// A host connects its admin queue and enables the controller, as specified.
    Arrive {
        host: u8,
        discovery: bool,
    },
    Connect {
        host: u8,
        discovery: bool,
        queue: u8,
        place: u8,
        size: u16,
        controller: u8,
        format: Option<u16>,
        /// Byte of the Connect data that is changed: index and new value.
        spoil: Option<(u16, u8)>,
    },
    Command(Command),
    Authenticate {
        controller: u8,
        queue: u8,
        send: bool,
        message: [u8; 40],
        bytes: u16,
        room: u16,
    },
    Lose {
        controller: u8,
        queue: u8,
    },
    Wait(u16),
    Namespace {
        nsid: u8,
        add: bool,
    },
    Access {
        group: u8,
        state: u8,
    },
    /// A namespace is shown to some of the hosts: a bit for each. `None`: to all.
    Show {
        nsid: u8,
        hosts: Option<u8>,
    },
    Limit {
        rate: Option<u8>,
    },
    Forbid,
}

fn name(text: &str) -> Nqn {
    text.parse().expect("a name")
}

fn world() -> Model {
    let mut model = Model::new();
    let at = "192.0.2.1:4420".parse().expect("an address");
    model.add_port(1, vec![at]).expect("a port");
    let config = SubsystemConfig {
        name: name(DISKS),
        serial: "1".to_owned(),
        model: "m".to_owned(),
        any_host: false,
        queues: QUEUES,
    };
    model.add_subsystem(config).expect("a subsystem");
    for host in [ALLOWED, KEYED] {
        model
            .allow_host(&name(DISKS), name(host))
            .expect("a subsystem");
    }
    let own = SubsystemConfig {
        name: name(HONEST_DISKS),
        serial: "2".to_owned(),
        model: "m".to_owned(),
        any_host: false,
        queues: QUEUES,
    };
    model.add_subsystem(own).expect("a subsystem");
    let allowed = model.allow_host(&name(HONEST_DISKS), name(HONEST));
    allowed.expect("a subsystem");
    let host: Key = KEY.parse().expect("a key");
    let keys = nvmeof::auth::Keys {
        host,
        controller: None,
        hash: None,
        group: None,
    };
    model.set_keys(name(KEYED), Some(keys));
    add(&mut model, 1);
    let one = namespace(9);
    let added = model.add_namespace(&name(HONEST_DISKS), one);
    added.expect("a subsystem");
    model
}

fn add(model: &mut Model, nsid: u8) {
    // The subsystem may have this namespace already.
    let _ = model.add_namespace(&name(DISKS), namespace(nsid));
}

fn namespace(nsid: u8) -> NamespaceConfig {
    NamespaceConfig {
        nsid: Some(nsid.into()),
        uuid: Uuid::from_u128(u128::from(nsid) + 1),
        group: 1 + u32::from(nsid % 16),
        hosts: None,
        disk: Disk::open(Source::Null(1 << 20), 9, false).expect("a disk"),
    }
}

fn host_id(host: u8) -> [u8; 16] {
    [1 + host % 3; 16]
}

struct Run {
    model: Model,
    now: Moment,
    steps: u64,
    /// Controller, queue and connection number of each accepted connection of a hostile host.
    connections: Vec<(u16, u16, u64)>,
    /// Controller of the honest host, and the number of its connection.
    honest: Option<(u16, u64)>,
}

/// Repeats an operation of the honest host, once a second, while the target's status allows a retry (DNR is clear).
fn honest_tries<T>(
    (model, now): (&mut Model, &mut Moment),
    mut operation: impl FnMut(&mut Model, Moment) -> Result<T, Status>,
) -> T {
    for tries in 1..=PATIENCE {
        match operation(model, *now) {
            Ok(done) => {
                BESIDE.took(tries);
                return done;
            }
            Err(status) => assert_ne!(status, status.dnr(), "the honest host: {status}"),
        }
        *now += Moment::from_secs(1);
        model.expire(*now);
    }
    panic!("the honest host gives up after {PATIENCE} tries");
}

/// Connects a queue of the honest host. Enables the controller after an admin queue.
fn honest_connects(
    (model, now): (&mut Model, &mut Moment),
    (subsystem, queue, controller): (&str, u16, u16),
) -> (u16, u64) {
    let place = Place {
        port: 1,
        worker: 0,
        queue,
        entries: 32,
        source: IpAddr::from(HONEST_SOURCE),
    };
    let connect = Connect {
        format: 0,
        queue,
        size: 31,
        attributes: 0,
        keep_alive_ms: 120_000,
    };
    let (of, host) = (name(subsystem).field(), name(HONEST).field());
    let data = ConnectData::new([9; 16], controller, of, host);
    let connected = honest_tries((model, now), |model, now| {
        let connected = model.connect(place, connect, &data, now);
        connected.map_err(|refused| refused.status)
    });
    if queue == 0 {
        honest_asks((model, now), connected.controller, &enable(), 0);
    }
    (connected.controller, connected.connection)
}

/// Sends a command of the honest host, which must succeed.
fn honest_asks((model, now): (&mut Model, &mut Moment), id: u16, sqe: &Sqe, room: u32) {
    assert!(id >= HOSTILE);
    honest_tries((model, now), |model, now| {
        let Outcome::Answered(answer) = model.command(id, 0, sqe, room, now) else {
            panic!("{sqe:?} waits");
        };
        if !answer.status.is_success() {
            return Err(answer.status);
        }
        assert_eq!(answer.data.len(), room as usize, "{sqe:?}");
        Ok(())
    });
}

fn enable() -> Sqe {
    let mut enable = sqe(0x7f, 0x40, 0, [0, 0x14, 0x0046_0001, 0, 0, 0]);
    enable.sgl = nvmeof::nvme::sgl::Sgl::keyed(0, 0, 0, false);
    enable
}

impl Run {
    fn new() -> Self {
        Self {
            model: world(),
            now: Moment::ZERO,
            steps: 0,
            connections: Vec::new(),
            honest: None,
        }
    }

    /// Runs the honest host once: it connects if necessary, connects and disconnects further queues and controllers,
    /// and sends Keep Alive, Identify and Get Log Page.
    fn live(&mut self) {
        let Self { model, now, .. } = self;
        let mut connects = |model: &mut Model, at| honest_connects((model, now), at);
        let there = self.honest;
        let there = there.unwrap_or_else(|| connects(model, (HONEST_DISKS, 0, 0xffff)));
        let (id, _) = *self.honest.insert(there);
        let (_, io) = connects(model, (HONEST_DISKS, 1, id));
        model.queue_lost(id, 1, io);
        let (discovers, discovery) = connects(model, (DISCOVERY, 0, 0xffff));
        let (another, admin) = connects(model, (HONEST_DISKS, 0, 0xffff));
        model.queue_lost(another, 0, admin);
        let mut asks = |opcode, id, nsid, dword, room| {
            let sqe = sqe(opcode, 0x40, nsid, [dword, 0, 0, 0, 0, 0]);
            honest_asks((model, now), id, &sqe, room);
        };
        asks(0x18, id, 0, 0, 0);
        asks(0x06, id, 9, 0, 4096);
        asks(0x06, id, 0, 1, 4096);
        asks(0x02, discovers, 0, 0x70 | 0xff << 16, 1024);
        model.queue_lost(discovers, 0, discovery);
    }

    /// Closes all connections, and checks that no controller and no authentication is left.
    fn end(mut self) {
        let (honest, connection) = self.honest.expect("it lives");
        self.model.queue_lost(honest, 0, connection);
        for (id, queue, connection) in self.connections {
            self.model.queue_lost(id, queue, connection);
        }
        assert!(
            (0..8).all(|id| (0..4).all(|queue| self.model.is_authenticated(id, queue))),
            "an exchange is left"
        );
        assert_eq!(self.model.controllers().count(), 0);
        STEPS.fetch_add(self.steps, Ordering::Relaxed);
    }

    fn connect(&mut self, place: Place, connect: Connect, data: &ConnectData) {
        let Ok(connected) = self.model.connect(place, connect, data, self.now) else {
            return;
        };
        let of = (connected.controller, connected.queue, connected.connection);
        self.connections.push(of);
        let controller = self
            .model
            .controller(connected.controller)
            .expect("it is there");
        assert!(
            controller.host().as_str() != STRANGER || controller.is_discovery(),
            "a stranger has a controller"
        );
        assert_eq!(
            connected.must_authenticate,
            controller.host().as_str() == KEYED
        );
        assert!(connected.entries <= place.entries);
    }

    fn answered(&mut self, id: u16, sqe: &Sqe, outcome: &Outcome, room: u32) {
        let is_keyed = self
            .model
            .controller(id)
            .is_some_and(|one| one.host().as_str() == KEYED);
        match outcome {
            Outcome::Waits => {
                WAITED.fetch_add(1, Ordering::Relaxed);
                assert!(!is_keyed);
                assert_eq!(sqe.opcode, 0x0c);
            }
            Outcome::Preempted(_) | Outcome::Abort { .. } => assert!(!is_keyed),
            Outcome::Answered(answer) => {
                SUCCEEDED.fetch_add(answer.status.is_success().into(), Ordering::Relaxed);
                assert!(answer.data.len() as u64 <= u64::from(room), "{sqe:?}");
                assert!(answer.status.is_success() || answer.data.is_empty());
                if is_keyed && !matches!(sqe.fabrics_type(), 5 | 6) {
                    assert!(!answer.status.is_success(), "{sqe:?}");
                }
                if answer.status.is_success() {
                    self.check_hidden(id, sqe, &answer.data);
                }
            }
        }
    }

    /// Lets each controller read the list, and the structure, the descriptors, the health and a feature of a namespace.
    fn look_at(&mut self, nsid: u32) {
        let ids: Vec<u16> = self.model.controllers().map(|one| one.id()).collect();
        for id in ids {
            for (opcode, nsid, dword) in [
                (0x06, 0, 0x02),
                (0x06, nsid, 0x00),
                (0x06, nsid, 0x03),
                (0x06, nsid, 0x08),
                (0x02, nsid, 0x02 | 127 << 16),
                (0x0a, nsid, 0x84),
            ] {
                let sqe = sqe(opcode, 0x40, nsid, [dword, 0, 0, 0, 0, 0]);
                let outcome = self.model.command(id, 0, &sqe, 4096, self.now);
                self.answered(id, &sqe, &outcome, 4096);
            }
        }
    }

    /// Checks that the answer to a command of the admin queue shows nothing of a namespace that the host does not see.
    fn check_hidden(&self, id: u16, sqe: &Sqe, data: &[u8]) {
        let Some(controller) = self.model.controller(id) else {
            return;
        };
        let mut all = self.model.subsystems();
        let Some(of) = all.find(|of| of.name() == controller.subsystem()) else {
            return;
        };
        let mut namespaces = of.namespaces();
        let nsid = sqe.nsid.get();
        let is_hidden = |one: &Namespace| !one.is_visible_to(controller.host());
        let is_of_hidden = of.namespace(nsid).is_some_and(|one| is_hidden(&one));
        let kind = sqe.cdw10.get() & 0xff;
        match (sqe.opcode, kind) {
            // The list of active namespaces.
            (0x06, 0x02) => {
                let (list, _) = data.as_chunks::<4>();
                let shows = |one: &Namespace| {
                    list.contains(&zerocopy::little_endian::U32::new(one.nsid()).to_bytes())
                };
                assert!(!namespaces.any(|one| is_hidden(&one) && shows(&one)));
            }
            // Structures of an inactive namespace are zeros.
            (0x06, 0x00 | 0x05 | 0x08) if is_of_hidden => {
                assert!(data.iter().all(|byte| *byte == 0), "{sqe:?}");
            }
            // Descriptors, controllers, health, and features of one namespace.
            (0x06, 0x03 | 0x12) | (0x02, 0x02) | (0x09 | 0x0a, 0x05 | 0x82..=0x84)
                if is_of_hidden && !(sqe.opcode == 0x0a && sqe.cdw10.get() >> 8 & 7 == 3) =>
            {
                panic!("{sqe:?} of a hidden namespace");
            }
            _ => return,
        }
        let has_hidden = of.namespaces().any(|one| is_hidden(&one));
        HIDDEN.fetch_add(has_hidden.into(), Ordering::Relaxed);
    }

    fn step(&mut self, step: Step) {
        self.steps += 1;
        let host = match step {
            Step::Arrive { host, .. } | Step::Connect { host, .. } => host % 3,
            Step::Command(_)
            | Step::Authenticate { .. }
            | Step::Lose { .. }
            | Step::Wait(_)
            | Step::Namespace { .. }
            | Step::Access { .. }
            | Step::Show { .. }
            | Step::Limit { .. }
            | Step::Forbid => 0,
        };
        let source = std::net::IpAddr::from([192, 0, 2, 10 + host]);
        let place = |queue| Place {
            port: 1,
            worker: 0,
            queue,
            entries: if queue == 0 { 32 } else { 128 },
            source,
        };
        let subsystem = |discovery| name(if discovery { DISCOVERY } else { DISKS });
        match step {
            Step::Arrive { host, discovery } => {
                let connect = Connect {
                    format: 0,
                    queue: 0,
                    size: 31,
                    attributes: 0,
                    keep_alive_ms: 5000,
                };
                let nqn = name(HOSTS[usize::from(host % 3)]).field();
                let data =
                    ConnectData::new(host_id(host), 0xffff, subsystem(discovery).field(), nqn);
                self.connect(place(0), connect, &data);
                let newest = self
                    .model
                    .controllers()
                    .map(|one| one.id())
                    .max()
                    .unwrap_or(0);
                if newest < HOSTILE || Some(newest) != self.honest.map(|(id, _)| id) {
                    let outcome = self.model.command(newest, 0, &enable(), 0, self.now);
                    self.answered(newest, &enable(), &outcome, 0);
                }
            }
            Step::Connect {
                host,
                discovery,
                queue,
                place: at,
                size,
                controller,
                format,
                spoil,
            } => {
                let connect = Connect {
                    format: format.unwrap_or(0),
                    queue: (queue % 4).into(),
                    size,
                    attributes: queue,
                    keep_alive_ms: u32::from(size) * 100,
                };
                let nqn = name(HOSTS[usize::from(host % 3)]).field();
                let id = if controller == 0 {
                    0xffff
                } else {
                    u16::from(controller % 5)
                };
                let mut data =
                    ConnectData::new(host_id(host), id, subsystem(discovery).field(), nqn);
                if let Some((at, byte)) = spoil {
                    data.as_mut_bytes()[usize::from(at) % 1024] = byte;
                }
                self.connect(place((at % 4).into()), connect, &data);
            }
            Step::Command(command) => {
                let opcode = if command.any_opcode {
                    command.opcode
                } else {
                    OPCODES[usize::from(command.opcode) % OPCODES.len()]
                };
                let flags = command.flags.unwrap_or(0x40);
                let sqe = sqe(
                    opcode,
                    flags,
                    command.nsid.value(),
                    command.dwords.map(Number::value),
                );
                let (id, room) = (
                    u16::from(command.controller % 5),
                    u32::from(command.room) * 2,
                );
                let queue = u16::from(command.queue % 3);
                let keyed = !self.model.is_authenticated(id, queue);
                let outcome = if matches!(opcode, 0x0d | 0x0e | 0x11 | 0x15) && !keyed && queue != 0
                {
                    let keys = [command.data[0] % 3, command.data[8] % 3].map(u64::from);
                    self.model.reserve(id, queue, &sqe, keys, room)
                } else {
                    self.model.command(id, 0, &sqe, room, self.now)
                };
                if queue == 0 || !matches!(opcode, 0x0d | 0x0e | 0x11 | 0x15) {
                    self.answered(id, &sqe, &outcome, room);
                }
            }
            Step::Authenticate {
                controller,
                queue,
                send,
                message,
                bytes,
                room,
            } => {
                let mut sqe = sqe(
                    0x7f,
                    0x40,
                    if send { 5 } else { 6 },
                    [0xe901_0100, bytes.into(), 0, 0, 0, 0],
                );
                sqe.cid = 1.into();
                let (id, room) = (u16::from(controller % 5), room.into());
                let mut said = message.to_vec();
                // A DH-HMAC-CHAP negotiation that the target accepts: SHA-256, no DH group.
                if message[0] < 128 {
                    said = vec![0; 72];
                    (said[7], said[8], said[10], said[11], said[12]) = (1, 1, 1, 1, 1);
                    said[4..6].copy_from_slice(&message[..2]);
                }
                let outcome = self
                    .model
                    .authenticate(id, (queue % 3).into(), &sqe, &said, room);
                self.answered(id, &sqe, &outcome, room);
            }
            Step::Lose { controller, queue } => {
                // This connection may have ended already, and a newer connection may have the queue.
                let (id, queue) = (u16::from(controller % 5), u16::from(queue % 4));
                let theirs = |one: &&(u16, u16, u64)| (one.0, one.1) == (id, queue);
                if let Some(&(.., connection)) = self.connections.iter().find(theirs) {
                    self.model.queue_lost(id, queue, connection);
                }
            }
            Step::Wait(ms) => {
                self.now += Moment::from_millis(ms.into());
                self.model.expire(self.now);
            }
            Step::Namespace { nsid, add: true } => add(&mut self.model, nsid % 8),
            Step::Namespace { nsid, add: false } => {
                let _ = self.model.remove_namespace(&name(DISKS), (nsid % 8).into());
            }
            Step::Access { group, state } => {
                use nvmeof::nvme::log::Access;
                let states = [Access::Optimized, Access::Inaccessible, Access::Change];
                let _ = self
                    .model
                    .set_access(1, group.into(), states[usize::from(state % 3)]);
            }
            Step::Show { nsid, hosts } => {
                let shown = |bits: u8| {
                    let hosts = HOSTS.iter().enumerate();
                    let shown = hosts.filter(move |(at, _)| bits & 1 << at != 0);
                    shown.map(|(_, host)| name(host)).collect()
                };
                // The subsystem may not have this namespace.
                let nsid = u32::from(nsid % 8);
                let hosts = hosts.map(shown);
                let _ = self.model.set_hosts(&name(DISKS), nsid, hosts);
                self.look_at(nsid);
            }
            Step::Limit { rate } => {
                let limit = rate.map(|rate| Limit {
                    ios_per_second: Some(rate.into()),
                    bytes_per_second: None,
                    burst: Limit::USUAL_BURST,
                });
                let set = self.model.limit_host(&name(DISKS), &name(ALLOWED), limit);
                assert_eq!(set.is_ok(), limit.is_none_or(|limit| limit.is_valid()));
            }
            Step::Forbid => {
                let _ = self.model.forbid_host(&name(DISKS), &name(ALLOWED));
                self.model
                    .allow_host(&name(DISKS), name(ALLOWED))
                    .expect("a subsystem");
            }
        }
        let ids: Vec<u16> = self.model.controllers().map(|one| one.id()).collect();
        for id in ids {
            let mut told = 0;
            while self.model.next_event(id).is_some() {
                told += 1;
            }
            assert!(told <= 4, "more events than requests");
        }
        self.model.take_notices();
    }
}

fn sqe(opcode: u8, flags: u8, nsid: u32, dwords: [u32; 6]) -> Sqe {
    let mut sqe = Sqe::read_from_bytes(&[0; 64]).expect("64 bytes");
    (sqe.opcode, sqe.flags, sqe.nsid) = (opcode, flags, nsid.into());
    [
        sqe.cdw10, sqe.cdw11, sqe.cdw12, sqe.cdw13, sqe.cdw14, sqe.cdw15,
    ] = dwords.map(Into::into);
    sqe
}

/// Returns the number of iterations: that of `FUZZ_ITERATIONS`, or `usual`. The harness of the hosts fails if `STEPS`,
/// `SUCCEEDED` (commands), `WAITED` (event requests) or `HIDDEN`, summed over all iterations, is too low for their
/// number.
fn iterations(usual: usize) -> usize {
    let asked = std::env::var("FUZZ_ITERATIONS").ok();
    asked.map_or(usual, |asked| asked.parse().expect("a number"))
}

static SUCCEEDED: AtomicU64 = AtomicU64::new(0);
static WAITED: AtomicU64 = AtomicU64::new(0);
static STEPS: AtomicU64 = AtomicU64::new(0);
/// Number of answers about namespaces of a subsystem that has one which the host does not see.
static HIDDEN: AtomicU64 = AtomicU64::new(0);

#[test]
fn hostile_hosts_get_answers_that_fit_and_nothing_that_is_not_theirs() {
    let worlds = iterations(extent(50_000, 0).0);
    check!()
        .with_type::<[Step; 24]>()
        .with_iterations(worlds)
        .for_each(|steps| {
            let mut run = Run::new();
            let first = [(0, false), (1, false), (2, true), (0, true)];
            let first = first.map(|(host, discovery)| Step::Arrive { host, discovery });
            for step in first {
                run.step(step);
            }
            run.live();
            for (number, step) in steps.iter().enumerate() {
                run.step(*step);
                if number % 4 == 0 || matches!(step, Step::Wait(_)) {
                    run.live();
                }
            }
            run.end();
        });
    let done = [&STEPS, &SUCCEEDED, &WAITED, &HIDDEN];
    let done = done.map(|count| count.load(Ordering::Relaxed));
    println!("{done:?}");
    // Each iteration has 24 random steps. The other bounds are averages over many iterations.
    let worlds = worlds as u64;
    let least = [worlds * 20, worlds * 2, worlds * 6 / 1_000, worlds / 50];
    let is_enough = done.iter().zip(least).all(|(done, least)| *done >= least);
    assert!(is_enough, "{done:?}, not {least:?}");
    BESIDE.report();
}

/// A hostile host fills a pool by connecting one controller after another: discovery controllers, controllers of a host
/// that does not authenticate, or controllers of an allowed host. The honest host, which needs a discovery controller
/// and I/O controllers, still gets them.
#[test]
fn crowds_of_controllers_keep_no_honest_host_waiting() {
    for (host, discovery) in [(2, true), (1, false), (0, false)] {
        let mut run = Run::new();
        let first = Step::Arrive {
            host: 0,
            discovery: true,
        };
        (1..HOSTILE).for_each(|_| run.step(first));
        let subsystem = name(if discovery { DISCOVERY } else { DISKS }).field();
        let host_name = name(HOSTS[usize::from(host)]).field();
        let data = ConnectData::new(host_id(host), 0xffff, subsystem, host_name);
        let connect = Connect {
            format: 0,
            queue: 0,
            size: 31,
            attributes: 0,
            keep_alive_ms: 120_000,
        };
        for number in 0..1_200_u16 {
            let [_, source] = number.to_be_bytes();
            let place = Place {
                port: 1,
                worker: 0,
                queue: 0,
                entries: 32,
                source: IpAddr::from([198, 51, 100, source]),
            };
            run.connect(place, connect, &data);
            if number % 16 == 0 {
                run.live();
            }
        }
        let (there, displaced) = (run.model.controllers().count(), run.model.displaced());
        assert!(
            displaced >= 900 || there >= 512,
            "host {host}: {there} controllers, {displaced} displaced"
        );
        run.end();
    }
    BESIDE.report();
}

/// Arbitrary bytes are parsed as a command, private data of a connection request, a key, an NQN and a status without a
/// panic.
#[test]
fn bytes_of_any_kind_are_looked_at_without_a_panic() {
    check!()
        .with_type::<([u8; 32], [u8; 32], Vec<u8>)>()
        .with_iterations(iterations(200_000))
        .for_each(|(low, high, more)| {
            let bytes = [*low, *high].concat();
            let sqe = Sqe::read_from_bytes(&bytes).expect("64 bytes");
            let _ = (sqe.sgl.data(), sqe.direction(), Connect::of(&sqe));
            let _ = (
                sqe.first_block(),
                sqe.blocks(),
                nvmeof::nvme::log::Wanted::of(&sqe),
            );
            let _ = nvmeof::nvme::rdma::RequestData::parse(more);
            let _ = String::from_utf8_lossy(more).parse::<Key>();
            let mut field = [0; 256];
            for (to, from) in field.iter_mut().zip(bytes.iter().chain(more)) {
                *to = *from;
            }
            if let Ok(name) = Nqn::of_field(&field) {
                assert!(field.starts_with(name.as_str().as_bytes()));
            }
            let status = Status::of_field(u16::from(low[0]) | u16::from(low[1]) << 8);
            assert_eq!(
                status.field() >> 1,
                (u16::from(low[0]) | u16::from(low[1]) << 8) >> 1
            );
        });
}
