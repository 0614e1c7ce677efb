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

/// Simulated time between two iterations of the worker.
const STEP: Duration = Duration::from_micros(100);
/// Maximum number of turns of an I/O of the honest host: 600 us.
const DEADLINE: u64 = 6;
/// Maximum number of turns of a step in which the honest host connects. The longest step is a connection with Connect,
/// enabling and reading the status. A worker handles connection messages only after 127 polls of an empty queue.
const NEWCOMER: u64 = 160;
/// Number of iterations in which all messages in flight arrive.
const DRAIN_ITERATIONS: u64 = 50;
/// Number of turns within which a worker checks the model's timers at least once.
const TICKED: u64 = 2048;

/// An honest host, a hostile host and a worker.
struct Setup {
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

impl Setup {
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
                    worker.run_once()?;
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
        host.disconnect(&discovers)?;
        watch.took("the end of discovery")?;
        let (admin, controller) = host.controller(&subsystem)?;
        watch.took("a controller")?;
        let mut queue = host.io_queue(&subsystem, controller, 1, 16)?;
        watch.took("an I/O queue")?;
        let read = host.read(&mut queue, 0, 1, 0, 512)?;
        ensure!(read == Status::SUCCESS, "{read}");
        watch.took("the first read")?;
        host.disconnect(&queue)?;
        watch.took("the end of an I/O queue")?;
        host.disconnect(&admin)?;
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
            for _ in 0..DRAIN_ITERATIONS {
                worker.run_once()?;
                step(&());
            }
            let over = worker.run()?;
            assert_eq!((over.ios_left, over.buffers_left), (0, 0), "{over:?}");
        }
        Ok(())
    }
}

/// Returns transport attributes that no honest host uses: unlimited RNR retries, each after 655 ms.
fn without_receives() -> EpTransport {
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
    let mut setup = Setup::new(WorkerConfig::default())?;
    let mut queues = Vec::new();
    for _ in 0..128 {
        let (mut queue, _) = setup.hostile.controller(&Nqn::discovery())?;
        for _ in 0..4 {
            let request = command(admin::ASYNC_EVENT);
            setup.hostile.send(&mut queue, request, &[])?;
        }
        queues.push(queue);
        setup.live()?;
    }
    setup.pass(DRAIN_ITERATIONS)?;
    setup.newcomer()?;
    setup.end("events")
}

#[test]
fn a_host_that_takes_no_answers_before_connect_holds_up_no_honest_host() -> Result<()> {
    let mut setup = Setup::new(WorkerConfig::default())?;
    setup.hostile.transport = without_receives();
    let mut queues = Vec::new();
    for _ in 0..12 {
        let mut queue = setup.hostile.queue(0, 32)?;
        for _ in 0..64 {
            // The connection may have ended already.
            if setup
                .hostile
                .send_without_receive(&mut queue, property_get())
                .is_err()
            {
                break;
            }
        }
        queues.push(queue);
        setup.pass(4)?;
        setup.live()?;
    }
    assert!(setup.room().overdrawn > 0, "{:?}", setup.room());
    setup.newcomer()?;
    // Whatever transport attributes the host has, its connections break, and all their resources become free.
    setup.fabric.sim.advance(Duration::from_secs(1));
    for queue in &queues {
        setup.hostile.expect_end(queue)?;
    }
    setup.pass(DRAIN_ITERATIONS)?;
    assert_eq!(setup.room().guests, 0, "{:?}", setup.room());
    setup.end("no receives before Connect")
}

#[test]
fn a_discovery_host_that_takes_no_answers_holds_up_no_honest_host() -> Result<()> {
    let mut setup = Setup::new(WorkerConfig::default())?;
    setup.hostile.transport = without_receives();
    let mut queues = Vec::new();
    for _ in 0..8 {
        let (mut queue, _) = setup.hostile.controller(&Nqn::discovery())?;
        for _ in 0..32 {
            if setup
                .hostile
                .send_without_receive(&mut queue, property_get())
                .is_err()
            {
                break;
            }
        }
        queues.push(queue);
        setup.pass(4)?;
        setup.live()?;
    }
    setup.newcomer()?;
    for queue in &queues {
        setup.hostile.expect_end(queue)?;
    }
    setup.end("no receives after Connect to discovery")
}

#[test]
fn first_halves_of_fused_pairs_hold_up_no_honest_host() -> Result<()> {
    let mut setup = Setup::new(WorkerConfig {
        ios: 512,
        ..WorkerConfig::default()
    })?;
    let subsystem = setup.world.subsystem.clone();
    let (_admin, controller) = setup.hostile.controller(&subsystem)?;
    let mut queues = Vec::new();
    for number in 1..=64 {
        let mut queue = setup.hostile.io_queue(&subsystem, controller, number, 2)?;
        let mut first = transfer(io::COMPARE, 0, 1);
        first.flags |= FUSE_FIRST;
        first.sgl = setup.hostile.data(0, 512);
        setup.hostile.send(&mut queue, first, &[])?;
        queues.push(queue);
        setup.live()?;
    }
    setup.newcomer()?;
    setup.end("first halves of pairs")
}

/// A host that posts no receives for the responses to long reads does not delay an honest host. Buffers of such reads
/// are occupied until the responses have been sent.
#[test]
fn an_allowed_host_that_takes_no_answers_to_long_reads_holds_up_no_honest_host() -> Result<()> {
    let mut setup = Setup::new(WorkerConfig::default())?;
    setup.hostile.transport = without_receives();
    let subsystem = setup.world.subsystem.clone();
    let (_admin, controller) = setup.hostile.controller(&subsystem)?;
    let mut queues = Vec::new();
    for number in 1..=4 {
        let mut queue = setup.hostile.io_queue(&subsystem, controller, number, 32)?;
        let mut read = transfer(io::READ, 0, 256);
        read.sgl = setup.hostile.data(0, 1 << 17);
        for _ in 0..31 {
            setup.hostile.send_without_receive(&mut queue, read)?;
        }
        queues.push(queue);
        setup.pass(4)?;
        setup.live()?;
    }
    setup.newcomer()?;
    setup.end("no receives for long reads")
}

/// Makes discovery controllers for a host, whose connections are made at the same time: the worker looks for connection
/// requests only once in 128 turns.
fn crowd(host: &mut Host, count: usize) -> Result<Vec<Queue>> {
    let data = RequestData::new(0, 32, 0);
    let calls = (0..count).map(|_| host.call(data.as_bytes(), 32, 0));
    let calls = calls.collect::<Result<Vec<_>>>()?;
    let mut queues = Vec::new();
    for call in calls {
        queues.push(host.answer(call)?.ok().context("rejected")?);
    }
    for queue in &mut queues {
        host.send_connect(queue, &Nqn::discovery(), ANY_CONTROLLER)?;
    }
    for queue in &mut queues {
        let status = host.response(queue)?.status();
        ensure!(status.is_success(), "{status}");
    }
    Ok(queues)
}

#[test]
fn discovery_controllers_by_the_thousand_lock_no_host_out() -> Result<()> {
    /// Number of controllers that are made at a time, and maximum number that an address keeps.
    const CROWD: usize = 16;
    const KEPT: usize = 32;
    let mut setup = Setup::new(WorkerConfig::default())?;
    let mut queues = Vec::new();
    for number in 0..1024 / CROWD {
        queues.extend(crowd(&mut setup.hostile, CROWD)?);
        // The oldest controllers of the address have ended for the new ones.
        let ended = queues.len().saturating_sub(KEPT);
        for queue in queues.drain(..ended) {
            setup.hostile.see_off(&queue)?;
        }
        if number % 4 == 0 {
            setup.live()?;
            setup.newcomer()?;
        }
    }
    assert_eq!((queues.len(), setup.controllers()), (KEPT, KEPT + 1));
    // Property commands every 50 s keep these controllers alive. Other hosts can still connect.
    for _ in 0..4 {
        setup.world.target.advance(Duration::from_secs(50));
        for queue in &mut queues {
            setup.hostile.get(queue, property::CSTS)?;
        }
        let alive = command(admin::KEEP_ALIVE);
        setup.honest.command(&mut setup.admin, alive)?;
        setup.pass(TICKED)?;
        assert_eq!(setup.controllers(), 33);
        setup.live()?;
        setup.newcomer()?;
    }
    setup.end("1,024 discovery controllers, renewed by properties")
}

#[test]
fn connections_that_come_and_go_hold_up_no_honest_host_and_leave_nothing() -> Result<()> {
    let mut setup = Setup::new(WorkerConfig::default())?;
    let before = setup.room();
    let subsystem = setup.world.subsystem.clone();
    for round in 0..200_u32 {
        let queue = setup.hostile.queue(0, 32)?;
        setup.hostile.disconnect(&queue)?;
        let (mut admin, controller) = setup.hostile.controller(&subsystem)?;
        let queue = setup.hostile.io_queue(&subsystem, controller, 1, 128)?;
        setup
            .hostile
            .send(&mut admin, command(admin::ASYNC_EVENT), &[])?;
        setup.hostile.disconnect(&queue)?;
        setup.hostile.disconnect(&admin)?;
        if round % 8 == 0 {
            setup.live()?;
        }
    }
    setup.pass(TICKED)?;
    assert_eq!(setup.room(), before);
    setup.end("connections that come and go")
}

#[test]
fn guests_of_one_address_end_each_other_and_others_connect() -> Result<()> {
    let mut setup = Setup::new(WorkerConfig::default())?;
    let mut queues = Vec::new();
    for number in 0..300 {
        queues.push(setup.hostile.queue(number % 128, 2)?);
        if number % 32 == 0 {
            setup.live()?;
            setup.newcomer()?;
        }
    }
    setup.pass(DRAIN_ITERATIONS)?;
    let room = setup.room();
    assert_eq!((room.guests, room.displaced_guests), (128, 172), "{room:?}");
    assert_eq!(
        (room.refused_guests, room.refused_hosts),
        (0, 0),
        "{room:?}"
    );
    setup.end("300 connections without Connect")
}

#[test]
fn a_connection_without_connect_ends_after_a_minute() -> Result<()> {
    let mut setup = Setup::new(WorkerConfig::default())?;
    let queue = setup.hostile.queue(0, 32)?;
    setup.world.target.advance(Duration::from_secs(59));
    setup.pass(TICKED)?;
    assert_eq!(setup.room().guests, 1);
    setup.world.target.advance(Duration::from_secs(1));
    setup.hostile.expect_end(&queue)?;
    setup.pass(DRAIN_ITERATIONS)?;
    assert_eq!(setup.room().guests, 0);
    setup.end("a connection without Connect")
}

/// Sends a capsule every three seconds, and checks that the connection ends at `until` as it would without traffic. The
/// honest host does its I/O after each capsule.
fn drip(setup: &mut Setup, queue: &mut Queue, until: Duration) -> Result<()> {
    const EVERY: Duration = Duration::from_secs(3);
    let mut passed = Duration::ZERO;
    while passed + EVERY < until {
        let answer = setup.hostile.command(queue, property_get())?;
        ensure!(!answer.status().is_success(), "{}", answer.status());
        setup.world.target.advance(EVERY);
        passed += EVERY;
        setup.live()?;
        setup.pass(TICKED)?;
        setup.live()?;
    }
    setup.newcomer()?;
    setup.hostile.send(queue, property_get(), &[])?;
    setup.world.target.advance(EVERY);
    setup.pass(TICKED)?;
    setup.live()?;
    setup.hostile.expect_end(queue)
}

#[test]
fn a_capsule_each_three_seconds_keeps_no_connection_without_connect() -> Result<()> {
    let mut setup = Setup::new(WorkerConfig::default())?;
    let mut queue = setup.hostile.queue(0, 32)?;
    drip(&mut setup, &mut queue, Duration::from_secs(60))?;
    assert_eq!(setup.room().guests, 0);
    setup.end("capsules without Connect, one each 3 s")
}

#[test]
fn a_capsule_each_three_seconds_keeps_no_host_that_has_not_authenticated() -> Result<()> {
    let mut setup = Setup::new(WorkerConfig::default())?;
    let key = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    let keys = Keys {
        host: key.parse()?,
        controller: None,
        hash: None,
        group: None,
    };
    let name = setup.hostile.name.clone();
    let target = &setup.world.target;
    target.with(|model| model.set_keys(name, Some(keys)));
    let mut queue = setup.hostile.queue(0, 32)?;
    let subsystem = setup.world.subsystem.clone();
    let connected = setup
        .hostile
        .connect(&mut queue, &subsystem, ANY_CONTROLLER)?;
    ensure!(connected.status().is_success(), "{}", connected.status());
    drip(&mut setup, &mut queue, Duration::from_secs(60))?;
    assert_eq!(setup.controllers(), 1);
    setup.end("capsules without authentication, one each 3 s")
}

/// The controller of a host without keep-alive time ends after an hour without traffic. Such a host has no other
/// deadline, and the target sends it no requests.
#[test]
fn a_host_without_keep_alive_that_dies_is_noticed_after_an_hour() -> Result<()> {
    const MINUTE: Duration = Duration::from_secs(60);
    let mut setup = Setup::new(WorkerConfig::default())?;
    let before = setup.room();
    let subsystem = setup.world.subsystem.clone();
    let (_admin, controller) = setup.hostile.controller(&subsystem)?;
    let mut queue = setup.hostile.io_queue(&subsystem, controller, 1, 128)?;
    setup
        .hostile
        .send(&mut queue, transfer(io::READ, 0, 1), &[])?;
    // Workers report the activity of hosts when they check the model's timers.
    setup.pass(TICKED)?;
    // From here on the host sends nothing.
    for minute in 1..=60 {
        assert_eq!(setup.controllers(), 2, "minute {minute}");
        setup.world.target.advance(MINUTE);
        setup.live()?;
        setup.pass(TICKED)?;
    }
    assert_eq!(setup.controllers(), 1);
    setup.pass(TICKED)?;
    assert_eq!(setup.room(), before);
    setup.newcomer()?;
    setup.end("a dead host without keep-alive")
}

/// A queue may have twice its entries pending: commands that wait for an answer, and commands whose responses are
/// posted. One command more ends the controller.
#[test]
fn a_host_that_sends_twice_its_entries_and_one_more_without_taking_answers_is_over() -> Result<()> {
    const ENTRIES: u16 = 16;
    let mut setup = Setup::new(WorkerConfig::default())?;
    let subsystem = setup.world.subsystem.clone();
    setup.hostile.transport = without_receives();
    let (_admin, controller) = setup.hostile.controller(&subsystem)?;
    let mut queue = setup.hostile.io_queue(&subsystem, controller, 1, ENTRIES)?;
    let mut flush = command(io::FLUSH);
    flush.nsid = 1.into();
    for _ in 0..2 {
        for _ in 0..ENTRIES {
            setup.hostile.send_without_receive(&mut queue, flush)?;
        }
        setup.pass(4)?;
        assert_eq!((setup.room().overdrawn, setup.controllers()), (0, 2));
    }
    setup.live()?;
    setup.hostile.send_without_receive(&mut queue, flush)?;
    setup.pass(4)?;
    assert_eq!((setup.room().overdrawn, setup.controllers()), (1, 1));
    setup.hostile.expect_end(&queue)?;
    setup.end("more commands than entries")
}

#[test]
fn a_queue_that_does_not_fit_is_refused_and_set_features_grants_what_fits() -> Result<()> {
    let mut setup = Setup::new(WorkerConfig {
        ios: 1024,
        ..WorkerConfig::default()
    })?;
    let subsystem = setup.world.subsystem.clone();
    let (mut admin, controller) = setup.hostile.controller(&subsystem)?;
    let mut asks = command(admin::SET_FEATURES);
    (asks.cdw10, asks.cdw11) = (7.into(), 0x001f_001f.into());
    let granted = setup.hostile.command(&mut admin, asks)?;
    // Of 1,024 entries the honest host has 48. The hostile host may have half of the other 976, which is 488. Less the
    // 32 of its admin queue, three queues of 128 fit.
    assert_eq!(granted.result.get(), 0x0002_0002, "three queues");
    let mut queues = Vec::new();
    for number in 1..=3 {
        queues.push(
            setup
                .hostile
                .io_queue(&subsystem, controller, number, 128)?,
        );
    }
    let mut more = setup.hostile.queue(4, 128)?;
    let refused = setup.hostile.connect(&mut more, &subsystem, controller)?;
    assert_eq!(refused.status(), Status::CONTROLLER_BUSY);
    setup.newcomer()?;
    // A refused queue has not changed the quota: after another queue has ended, the queue is accepted.
    setup.hostile.disconnect(&queues.remove(0))?;
    setup.pass(TICKED)?;
    let room = setup.room();
    assert_eq!(room.entries_left, 1024 - 48 - 32 - 256, "{room:?}");
    let again = setup.hostile.connect(&mut more, &subsystem, controller)?;
    assert_eq!(again.status(), Status::SUCCESS);
    setup.end("more queues than fit")
}

/// An I/O queue with more entries than are left at the worker is rejected before its host is known.
#[test]
fn an_io_queue_that_fits_nowhere_is_rejected_for_want_of_resources() -> Result<()> {
    let mut setup = Setup::new(WorkerConfig {
        ios: 100,
        ..WorkerConfig::default()
    })?;
    let data = RequestData::new(1, 128, 1);
    let said = setup.hostile.dial(data.as_bytes(), 128, 1)?.err();
    assert_eq!(said, Some(Some(6)), "no resources");
    assert_eq!(setup.room().refused_hosts, 1);
    setup.end("a queue that fits nowhere")
}
