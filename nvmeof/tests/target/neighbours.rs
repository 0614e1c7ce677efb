//! An honest host beside hostile ones: each I/O of the honest host ends within a deadline in simulated time, whatever
//! resources the others occupy.
//!
//! One thread runs everything in simulated time, so that each run is the same. The hostile host has a function and an
//! address of its own, and uses the same worker.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nvmeof::auth::Keys;
use nvmeof::disk::Source;
use nvmeof::nvme::command::{FUSE_FIRST, admin, io};
use nvmeof::nvme::fabrics::{ANY_CONTROLLER, property};
use nvmeof::nvme::rdma::RequestData;
use nvmeof::nvme::{Nqn, Sqe, Status};
use nvmeof::serve::{Room, Worker, WorkerConfig};
use udapl::endpoint::EpTransport;
use udapl::fabric::LinkFaults;
use udapl::fabric::switched::{SwitchConfig, Switched};
use zerocopy::IntoBytes;

use crate::host::{Host, Queue, command, transfer};
use crate::world::{PORT, World};

/// Simulated time between two turns of the worker.
const STEP: Duration = Duration::from_micros(100);
/// Maximum number of turns of an I/O of the honest host: 600 us.
const DEADLINE: u64 = 6;
/// Maximum number of turns of a step in which the honest host connects. The longest step is a connection with Connect,
/// enabling and reading the status. A worker polls its connections only after 127 empty polls of a queue.
const NEWCOMER: u64 = 160;
/// Number of turns in which all messages in flight arrive.
const SETTLED: u64 = 50;
/// Number of turns in which a worker checks the model's timers.
const TICKED: u64 = 2048;

/// An honest host, a hostile host and a worker.
struct Street {
    fabric: Rc<Switched>,
    world: World,
    serving: Rc<RefCell<Vec<Worker>>>,
    turns: Rc<Cell<u64>>,
    honest: Host,
    admin: Queue,
    queue: Queue,
    hostile: Host,
    /// Durations of the honest host's I/Os.
    ios: Waits,
    /// Durations of the honest host's steps when it connects.
    arrivals: Waits,
}

/// Durations of one kind of operation, in turns: the limit, the number of operations, and the longest one.
struct Waits {
    most: u64,
    count: u64,
    longest: u64,
}

impl Waits {
    const fn new(most: u64) -> Self {
        Self {
            most,
            count: 0,
            longest: 0,
        }
    }
}

/// Measures operations that follow each other.
struct Watch<'a> {
    turns: &'a Cell<u64>,
    began: u64,
    waits: &'a mut Waits,
}

impl<'a> Watch<'a> {
    fn start(turns: &'a Cell<u64>, waits: &'a mut Waits) -> Self {
        Self {
            turns,
            began: turns.get(),
            waits,
        }
    }

    /// Records the duration of the operation that has ended, and begins the next one. Fails if the limit is exceeded.
    fn took(&mut self, what: &str) -> Result<()> {
        let now = self.turns.get();
        let took = now - core::mem::replace(&mut self.began, now);
        self.waits.count += 1;
        self.waits.longest = took.max(self.waits.longest);
        let most = self.waits.most;
        ensure!(took <= most, "{what}: {took} turns of {most}");
        Ok(())
    }
}

impl Street {
    fn new(config: WorkerConfig) -> Result<Self> {
        let faults = LinkFaults::default();
        let fabric = Switched::star(7, 3, SwitchConfig::default(), faults)?;
        let fabric = Rc::new(fabric);
        let open = |number| -> Result<_> {
            let options = fabric.options(number).endpoints(2048);
            let mut ia = fabric.open_with(number, &options.context("2048 endpoints")?)?;
            ia.progress();
            Ok(ia)
        };
        // The disk is a null disk, because the duration of other disks' operations depends on the kernel.
        let disk = Source::Null(1 << 20);
        let (world, workers) = World::of(tempfile::tempdir()?, vec![open(0)?], disk, 9, config)?;
        let serving = Rc::new(RefCell::new(workers));
        let turns = Rc::new(Cell::new(0));
        let host = |number| -> Result<Host> {
            let mut host = Host::of(open(number)?, world.address, PORT)?;
            let (fabric, serving, turns) = (fabric.clone(), serving.clone(), turns.clone());
            host.meanwhile = Some(Box::new(move || {
                for worker in serving.borrow_mut().iter_mut() {
                    worker.turn()?;
                }
                turns.set(turns.get() + 1);
                fabric.sim.advance(STEP);
                Ok(())
            }));
            Ok(host)
        };
        let (mut honest, mut hostile) = (host(1)?, host(2)?);
        hostile.name = "nqn.2026-11.test:hostile".parse()?;
        hostile.id = [0x66; 16];
        let subsystem = world.subsystem.clone();
        let (admin, controller) = honest.controller(&subsystem)?;
        let queue = honest.io_queue(&subsystem, controller, 1, 16)?;
        Ok(Self {
            fabric,
            world,
            serving,
            turns,
            honest,
            admin,
            queue,
            hostile,
            ios: Waits::new(DEADLINE),
            arrivals: Waits::new(NEWCOMER),
        })
    }

    /// Runs this many turns of all parties.
    fn pass(&mut self, turns: u64) -> Result<()> {
        for _ in 0..turns {
            let meanwhile = self.hostile.meanwhile.as_mut();
            meanwhile.context("a world of its own")?()?;
            self.hostile.ia.progress();
            self.honest.ia.progress();
        }
        Ok(())
    }

    /// Executes one I/O of each kind for the honest host: short and long reads and writes, and an admin command.
    fn live(&mut self) -> Result<()> {
        let (host, queue) = (&mut self.honest, &mut self.queue);
        let mut watch = Watch::start(&self.turns, &mut self.ios);
        for bytes in [512, 1 << 17] {
            let blocks = bytes >> 9;
            let written = host.write(queue, 0, blocks, 0, bytes)?;
            ensure!(written == Status::SUCCESS, "write of {bytes}: {written}");
            watch.took("write")?;
            let read = host.read(queue, 0, blocks, 0, bytes)?;
            ensure!(read == Status::SUCCESS, "read of {bytes}: {read}");
            watch.took("read")?;
        }
        let alive = host.command(&mut self.admin, command(admin::KEEP_ALIVE))?;
        ensure!(alive.status() == Status::SUCCESS, "{}", alive.status());
        watch.took("keep-alive")?;
        Ok(())
    }

    /// Lets the honest host discover, connect and use a disk.
    fn newcomer(&mut self) -> Result<()> {
        let (host, subsystem) = (&mut self.honest, self.world.subsystem.clone());
        let mut watch = Watch::start(&self.turns, &mut self.arrivals);
        let (mut discovers, _) = host.controller(&Nqn::discovery())?;
        watch.took("a discovery controller")?;
        let (status, _) = host.log(&mut discovers, 0x70, 1024)?;
        ensure!(status == Status::SUCCESS, "{status}");
        watch.took("the discovery log")?;
        host.hang_up(&discovers)?;
        watch.took("the end of discovery")?;
        let (admin, controller) = host.controller(&subsystem)?;
        watch.took("a controller")?;
        let mut queue = host.io_queue(&subsystem, controller, 1, 16)?;
        watch.took("an I/O queue")?;
        let read = host.read(&mut queue, 0, 1, 0, 512)?;
        ensure!(read == Status::SUCCESS, "{read}");
        watch.took("the first read")?;
        host.hang_up(&queue)?;
        watch.took("the end of an I/O queue")?;
        host.hang_up(&admin)?;
        watch.took("the end of a controller")
    }

    fn room(&self) -> Room {
        let rooms = self.world.target.rooms();
        rooms.into_values().next().unwrap_or_default()
    }

    fn controllers(&self) -> usize {
        self.world.target.with(|model| model.controllers().count())
    }

    /// Ends all connections, and checks that all their resources are free.
    fn end(mut self, beside: &str) -> Result<()> {
        self.live()?;
        let Self {
            fabric,
            world,
            serving,
            honest,
            hostile,
            ios,
            arrivals,
            ..
        } = self;
        for (what, waits) in [("I/Os", ios), ("steps of a new connection", arrivals)] {
            let Waits { count, longest, .. } = waits;
            println!("{beside}: {count} {what} of the honest host, the longest in {longest} turns");
        }
        drop((honest, hostile));
        world.target.stop();
        let step = |_: &()| fabric.sim.advance(STEP);
        for mut worker in serving.take() {
            for _ in 0..SETTLED {
                worker.turn()?;
                step(&());
            }
            let over = worker.run()?;
            assert_eq!((over.ios_left, over.buffers_left), (0, 0), "{over:?}");
        }
        Ok(())
    }
}

/// Returns transport attributes that no honest host uses: unlimited RNR retries, each after 655 ms.
fn deaf() -> EpTransport {
    EpTransport {
        rnr_retry: Some(7),
        min_rnr_timer: Some(0),
        ..EpTransport::default()
    }
}

fn property_get() -> Sqe {
    let mut sqe = command(admin::FABRICS);
    sqe.nsid = 4.into();
    sqe.cdw11 = property::CSTS.into();
    sqe
}

#[test]
fn event_requests_of_128_discovery_controllers_hold_up_no_honest_host() -> Result<()> {
    let mut street = Street::new(WorkerConfig::default())?;
    let mut queues = Vec::new();
    for _ in 0..128 {
        let (mut queue, _) = street.hostile.controller(&Nqn::discovery())?;
        for _ in 0..4 {
            let request = command(admin::ASYNC_EVENT);
            street.hostile.send(&mut queue, request, &[])?;
        }
        queues.push(queue);
        street.live()?;
    }
    street.pass(SETTLED)?;
    street.newcomer()?;
    street.end("events")
}

#[test]
fn a_host_that_takes_no_answers_before_connect_holds_up_no_honest_host() -> Result<()> {
    let mut street = Street::new(WorkerConfig::default())?;
    street.hostile.transport = deaf();
    let mut queues = Vec::new();
    for _ in 0..12 {
        let mut queue = street.hostile.queue(0, 32)?;
        for _ in 0..64 {
            // The connection may have ended already.
            if street.hostile.shout(&mut queue, property_get()).is_err() {
                break;
            }
        }
        queues.push(queue);
        street.pass(4)?;
        street.live()?;
    }
    assert!(street.room().overdrawn > 0, "{:?}", street.room());
    street.newcomer()?;
    // Whatever transport attributes the host has, its connections break, and all their resources become free.
    street.fabric.sim.advance(Duration::from_secs(1));
    for queue in &queues {
        street.hostile.expect_end(queue)?;
    }
    street.pass(SETTLED)?;
    assert_eq!(street.room().guests, 0, "{:?}", street.room());
    street.end("no receives before Connect")
}

#[test]
fn a_discovery_host_that_takes_no_answers_holds_up_no_honest_host() -> Result<()> {
    let mut street = Street::new(WorkerConfig::default())?;
    street.hostile.transport = deaf();
    let mut queues = Vec::new();
    for _ in 0..8 {
        let (mut queue, _) = street.hostile.controller(&Nqn::discovery())?;
        for _ in 0..32 {
            if street.hostile.shout(&mut queue, property_get()).is_err() {
                break;
            }
        }
        queues.push(queue);
        street.pass(4)?;
        street.live()?;
    }
    street.newcomer()?;
    for queue in &queues {
        street.hostile.expect_end(queue)?;
    }
    street.end("no receives after Connect to discovery")
}

#[test]
fn first_halves_of_fused_pairs_hold_up_no_honest_host() -> Result<()> {
    let mut street = Street::new(WorkerConfig {
        ios: 512,
        ..WorkerConfig::default()
    })?;
    let subsystem = street.world.subsystem.clone();
    let (_admin, controller) = street.hostile.controller(&subsystem)?;
    let mut queues = Vec::new();
    for number in 1..=64 {
        let mut queue = street.hostile.io_queue(&subsystem, controller, number, 2)?;
        let mut first = transfer(io::COMPARE, 0, 1);
        first.flags |= FUSE_FIRST;
        first.sgl = street.hostile.data(0, 512);
        street.hostile.send(&mut queue, first, &[])?;
        queues.push(queue);
        street.live()?;
    }
    street.newcomer()?;
    street.end("first halves of pairs")
}

/// A host that posts no receives for the responses to long reads does not delay an honest host. Buffers of such reads
/// are occupied until the responses have been sent.
#[test]
fn an_allowed_host_that_takes_no_answers_to_long_reads_holds_up_no_honest_host() -> Result<()> {
    let mut street = Street::new(WorkerConfig::default())?;
    street.hostile.transport = deaf();
    let subsystem = street.world.subsystem.clone();
    let (_admin, controller) = street.hostile.controller(&subsystem)?;
    let mut queues = Vec::new();
    for number in 1..=4 {
        let mut queue = street
            .hostile
            .io_queue(&subsystem, controller, number, 32)?;
        let mut read = transfer(io::READ, 0, 256);
        read.sgl = street.hostile.data(0, 1 << 17);
        for _ in 0..31 {
            street.hostile.shout(&mut queue, read)?;
        }
        queues.push(queue);
        street.pass(4)?;
        street.live()?;
    }
    street.newcomer()?;
    street.end("no receives for long reads")
}

#[test]
fn discovery_controllers_by_the_thousand_lock_no_host_out() -> Result<()> {
    let mut street = Street::new(WorkerConfig::default())?;
    let mut queues = Vec::new();
    for number in 0..1024 {
        let mut queue = street.hostile.queue(0, 32)?;
        let connected = street
            .hostile
            .connect(&mut queue, &Nqn::discovery(), ANY_CONTROLLER)?;
        ensure!(connected.status().is_success(), "{}", connected.status());
        queues.push(queue);
        if number % 64 == 0 {
            street.live()?;
            street.newcomer()?;
        }
    }
    // Property commands every 50 s keep these controllers alive. Other hosts can still connect.
    for _ in 0..4 {
        street.world.target.advance(Duration::from_secs(50));
        let kept = queues.len() - 32;
        for queue in &mut queues[kept..] {
            street.hostile.get(queue, property::CSTS)?;
        }
        let alive = command(admin::KEEP_ALIVE);
        street.honest.command(&mut street.admin, alive)?;
        street.pass(TICKED)?;
        assert_eq!(street.controllers(), 33);
        street.live()?;
        street.newcomer()?;
    }
    street.end("1,024 discovery controllers, renewed by properties")
}

#[test]
fn connections_that_come_and_go_hold_up_no_honest_host_and_leave_nothing() -> Result<()> {
    let mut street = Street::new(WorkerConfig::default())?;
    let before = street.room();
    let subsystem = street.world.subsystem.clone();
    for round in 0..200_u32 {
        let queue = street.hostile.queue(0, 32)?;
        street.hostile.hang_up(&queue)?;
        let (mut admin, controller) = street.hostile.controller(&subsystem)?;
        let queue = street.hostile.io_queue(&subsystem, controller, 1, 128)?;
        street
            .hostile
            .send(&mut admin, command(admin::ASYNC_EVENT), &[])?;
        street.hostile.hang_up(&queue)?;
        street.hostile.hang_up(&admin)?;
        if round % 8 == 0 {
            street.live()?;
        }
    }
    street.pass(TICKED)?;
    assert_eq!(street.room(), before);
    street.end("connections that come and go")
}

#[test]
fn guests_of_one_address_end_each_other_and_others_connect() -> Result<()> {
    let mut street = Street::new(WorkerConfig::default())?;
    let mut queues = Vec::new();
    for number in 0..300 {
        queues.push(street.hostile.queue(number % 128, 2)?);
        if number % 32 == 0 {
            street.live()?;
            street.newcomer()?;
        }
    }
    street.pass(SETTLED)?;
    let room = street.room();
    assert_eq!((room.guests, room.displaced_guests), (128, 172), "{room:?}");
    assert_eq!(
        (room.refused_guests, room.refused_hosts),
        (0, 0),
        "{room:?}"
    );
    street.end("300 connections without Connect")
}

#[test]
fn a_connection_without_connect_ends_after_a_minute() -> Result<()> {
    let mut street = Street::new(WorkerConfig::default())?;
    let queue = street.hostile.queue(0, 32)?;
    street.world.target.advance(Duration::from_secs(59));
    street.pass(TICKED)?;
    assert_eq!(street.room().guests, 1);
    street.world.target.advance(Duration::from_secs(1));
    street.hostile.expect_end(&queue)?;
    street.pass(SETTLED)?;
    assert_eq!(street.room().guests, 0);
    street.end("a connection without Connect")
}

/// Sends a capsule every three seconds, and checks that the connection ends at `until` as it would without traffic. The
/// honest host does its I/O after each capsule.
fn drip(street: &mut Street, queue: &mut Queue, until: Duration) -> Result<()> {
    const EVERY: Duration = Duration::from_secs(3);
    let mut passed = Duration::ZERO;
    while passed + EVERY < until {
        let answer = street.hostile.command(queue, property_get())?;
        ensure!(!answer.status().is_success(), "{}", answer.status());
        street.world.target.advance(EVERY);
        passed += EVERY;
        street.live()?;
        street.pass(TICKED)?;
        street.live()?;
    }
    street.newcomer()?;
    street.hostile.send(queue, property_get(), &[])?;
    street.world.target.advance(EVERY);
    street.pass(TICKED)?;
    street.live()?;
    street.hostile.expect_end(queue)
}

#[test]
fn a_capsule_each_three_seconds_keeps_no_connection_without_connect() -> Result<()> {
    let mut street = Street::new(WorkerConfig::default())?;
    let mut queue = street.hostile.queue(0, 32)?;
    drip(&mut street, &mut queue, Duration::from_secs(60))?;
    assert_eq!(street.room().guests, 0);
    street.end("capsules without Connect, one each 3 s")
}

#[test]
fn a_capsule_each_three_seconds_keeps_no_host_that_has_not_authenticated() -> Result<()> {
    let mut street = Street::new(WorkerConfig::default())?;
    let key = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    let keys = Keys {
        host: key.parse()?,
        controller: None,
        hash: None,
        group: None,
    };
    let name = street.hostile.name.clone();
    let target = &street.world.target;
    target.with(|model| model.set_keys(name, Some(keys)));
    let mut queue = street.hostile.queue(0, 32)?;
    let subsystem = street.world.subsystem.clone();
    let connected = street
        .hostile
        .connect(&mut queue, &subsystem, ANY_CONTROLLER)?;
    ensure!(connected.status().is_success(), "{}", connected.status());
    drip(&mut street, &mut queue, Duration::from_secs(60))?;
    assert_eq!(street.controllers(), 1);
    street.end("capsules without authentication, one each 3 s")
}

/// The controller of a host without keep-alive time ends after an hour without traffic. Such a host has no other
/// deadline, and the target sends it no requests.
#[test]
fn a_host_without_keep_alive_that_dies_is_noticed_after_an_hour() -> Result<()> {
    const MINUTE: Duration = Duration::from_secs(60);
    let mut street = Street::new(WorkerConfig::default())?;
    let before = street.room();
    let subsystem = street.world.subsystem.clone();
    let (_admin, controller) = street.hostile.controller(&subsystem)?;
    let mut queue = street.hostile.io_queue(&subsystem, controller, 1, 128)?;
    street
        .hostile
        .send(&mut queue, transfer(io::READ, 0, 1), &[])?;
    // Workers report the activity of hosts when they check the model's timers.
    street.pass(TICKED)?;
    // From here on the host sends nothing.
    for minute in 1..=60 {
        assert_eq!(street.controllers(), 2, "minute {minute}");
        street.world.target.advance(MINUTE);
        street.live()?;
        street.pass(TICKED)?;
    }
    assert_eq!(street.controllers(), 1);
    street.pass(TICKED)?;
    assert_eq!(street.room(), before);
    street.newcomer()?;
    street.end("a dead host without keep-alive")
}

/// A queue may have twice its entries pending: commands that wait for an answer, and commands whose responses are
/// posted. One command more ends the controller.
#[test]
fn a_host_that_sends_twice_its_entries_and_one_more_without_taking_answers_is_over() -> Result<()> {
    const ENTRIES: u16 = 16;
    let mut street = Street::new(WorkerConfig::default())?;
    let subsystem = street.world.subsystem.clone();
    street.hostile.transport = deaf();
    let (_admin, controller) = street.hostile.controller(&subsystem)?;
    let mut queue = street
        .hostile
        .io_queue(&subsystem, controller, 1, ENTRIES)?;
    let mut flush = command(io::FLUSH);
    flush.nsid = 1.into();
    for _ in 0..2 {
        for _ in 0..ENTRIES {
            street.hostile.shout(&mut queue, flush)?;
        }
        street.pass(4)?;
        assert_eq!((street.room().overdrawn, street.controllers()), (0, 2));
    }
    street.live()?;
    street.hostile.shout(&mut queue, flush)?;
    street.pass(4)?;
    assert_eq!((street.room().overdrawn, street.controllers()), (1, 1));
    street.hostile.expect_end(&queue)?;
    street.end("more commands than entries")
}

#[test]
fn a_queue_that_does_not_fit_is_refused_and_set_features_grants_what_fits() -> Result<()> {
    let mut street = Street::new(WorkerConfig {
        ios: 1024,
        ..WorkerConfig::default()
    })?;
    let subsystem = street.world.subsystem.clone();
    let (mut admin, controller) = street.hostile.controller(&subsystem)?;
    let mut asks = command(admin::SET_FEATURES);
    (asks.cdw10, asks.cdw11) = (7.into(), 0x001f_001f.into());
    let granted = street.hostile.command(&mut admin, asks)?;
    // Of 1,024 entries the honest host has 48. The hostile host may have half of the other 976, which is 488. Less the
    // 32 of its admin queue, three queues of 128 fit.
    assert_eq!(granted.result.get(), 0x0002_0002, "three queues");
    let mut queues = Vec::new();
    for number in 1..=3 {
        queues.push(
            street
                .hostile
                .io_queue(&subsystem, controller, number, 128)?,
        );
    }
    let mut more = street.hostile.queue(4, 128)?;
    let refused = street.hostile.connect(&mut more, &subsystem, controller)?;
    assert_eq!(refused.status(), Status::CONTROLLER_BUSY);
    street.newcomer()?;
    // A refused queue has not changed the quota: after another queue has ended, the queue is accepted.
    street.hostile.hang_up(&queues.remove(0))?;
    street.pass(TICKED)?;
    let room = street.room();
    assert_eq!(room.entries_left, 1024 - 48 - 32 - 256, "{room:?}");
    let again = street.hostile.connect(&mut more, &subsystem, controller)?;
    assert_eq!(again.status(), Status::SUCCESS);
    street.end("more queues than fit")
}

/// An I/O queue with more entries than are left at the worker is rejected before its host is known.
#[test]
fn an_io_queue_that_fits_nowhere_is_rejected_for_want_of_resources() -> Result<()> {
    let mut street = Street::new(WorkerConfig {
        ios: 100,
        ..WorkerConfig::default()
    })?;
    let data = RequestData::new(1, 128, 1);
    let said = street.hostile.dial(data.as_bytes(), 128, 1)?.err();
    assert_eq!(said, Some(Some(6)), "no resources");
    assert_eq!(street.room().refused_hosts, 1);
    street.end("a queue that fits nowhere")
}
