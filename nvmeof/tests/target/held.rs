//! Holds: workers end what they have begun, and can be parked and resumed. The simulation, the workers and the host
//! take turns in one thread.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nvmeof::disk::faults::{Faults, LONGEST_DELAY, Of, Orders};
use nvmeof::disk::{Disk, Source};
use nvmeof::model::{Model, NamespaceConfig};
use nvmeof::nvme::command::{FUSE_FIRST, FUSE_SECOND, admin, io};
use nvmeof::nvme::feature::EVENTS;
use nvmeof::nvme::{Nqn, Status};
use nvmeof::serve::{
    Room, Served, Target, TargetParkError, TargetSnapshot, Worker, WorkerConfig, WorkerParkError,
    WorkerResumeError, WorkerSnapshot,
};
use udapl::adapter::IaConfig;
use udapl::fabric::Fabric;
use udapl::{Adapter, Ia};
use uuid::Uuid;

use crate::host::{Host, Queue, command, transfer};
use crate::world::{PORT, World, configure};

const DONE: Status = Status::SUCCESS;
/// Simulated time of a turn.
const STEP: Duration = Duration::from_micros(10);
/// Number of turns in which messages surely arrive.
const ENOUGH: usize = 200;
/// Number of turns after which a wait fails. A real disk may need many.
const TURNS: usize = 1_000_000;

type Workers = Rc<RefCell<Vec<Worker>>>;

pub struct Turns {
    world: World,
    workers: Workers,
    pub host: Host,
    pub subsystem: Nqn,
    pub admin: Queue,
    controller: u16,
}

fn config() -> WorkerConfig {
    WorkerConfig {
        ios: 160,
        buffers: 4,
        ..WorkerConfig::default()
    }
}

impl Turns {
    pub fn new(workers: usize, source: Source) -> Result<Self> {
        let fabric = Fabric::pair(1);
        let mut ias = vec![fabric.open(0)?];
        let adapter = Adapter::of(&ias[0]);
        while ias.len() < workers {
            ias.push(adapter.instance(IaConfig::default())?);
        }
        ias[0].progress();
        let peer = fabric.open(1)?;
        let (world, workers) = World::of(tempfile::tempdir()?, ias, source, 9, config())?;
        let workers = Rc::new(RefCell::new(workers));
        let mut host = Host::of(peer, world.address, PORT)?;
        let moved = Rc::clone(&workers);
        host.meanwhile = Some(Box::new(move || {
            for worker in moved.borrow_mut().iter_mut() {
                worker.run_once()?;
            }
            fabric.sim.advance(STEP);
            Ok(())
        }));
        let subsystem = world.subsystem.clone();
        let (admin, controller) = host.controller(&subsystem)?;
        Ok(Self {
            world,
            workers,
            host,
            subsystem,
            admin,
            controller,
        })
    }

    pub fn queue(&mut self, number: u16) -> Result<Queue> {
        self.host
            .io_queue(&self.subsystem, self.controller, number, 32)
    }

    fn room(&self) -> Room {
        let rooms = self.target().rooms();
        rooms.into_values().next().unwrap_or_default()
    }

    pub fn target(&self) -> &Target {
        &self.world.target
    }

    /// Passes as many turns as messages surely need.
    pub fn pass_enough(&mut self) -> Result<()> {
        self.pass(ENOUGH)
    }

    fn pass(&mut self, turns: usize) -> Result<()> {
        for _ in 0..turns {
            self.host.meanwhile.as_mut().context("turns")?()?;
            self.host.ia.progress();
        }
        Ok(())
    }

    fn is_quiet(&self) -> bool {
        self.workers.borrow().iter().all(Worker::quiet)
    }

    /// Passes turns until all workers are quiet.
    pub fn until_quiet(&mut self) -> Result<()> {
        for _ in 0..TURNS {
            if self.is_quiet() {
                return Ok(());
            }
            self.pass(1)?;
        }
        anyhow::bail!("workers that are not quiet");
    }

    /// Parks all workers, and resumes them from bytes.
    fn park_and_resume(&mut self) -> Result<()> {
        let all: Vec<Worker> = self.workers.borrow_mut().drain(..).collect();
        let mut parked: Vec<(Ia, Vec<u8>)> = Vec::new();
        for worker in all {
            let (ia, snapshot) = worker.park().map_err(|refused| refused.1)?;
            parked.push((ia, postcard::to_allocvec(&snapshot)?));
        }
        assert_eq!(self.target().parked_workers().len(), parked.len());
        self.target().park()?;
        for (ia, bytes) in parked {
            let snapshot: WorkerSnapshot = postcard::from_bytes(&bytes)?;
            let worker =
                Worker::resume(self.target(), ia, &snapshot).map_err(|refused| refused.1)?;
            self.workers.borrow_mut().push(worker);
        }
        Ok(())
    }

    fn faults(&self) -> Result<Arc<Faults>> {
        self.world.faults()
    }

    /// Returns the statuses of commands, in the order in which they were sent. Each is answered once, and no other is.
    pub fn answers(&mut self, queue: &mut Queue, sent: &[u16]) -> Result<Vec<Status>> {
        let mut said = Vec::new();
        for _ in sent {
            said.push(self.host.response(queue)?);
        }
        self.pass(ENOUGH)?;
        ensure!(
            self.host.ia.evd_dequeue(queue.events)?.is_none(),
            "an answer too many"
        );
        let of = |cid: &u16| said.iter().find(|one| one.cid.get() == *cid);
        let all = sent.iter().map(|cid| of(cid).map(|one| one.status()));
        all.collect::<Option<Vec<_>>>().context("an answer of each")
    }

    /// Enables events of changed namespaces, and sends an event request. Returns its identifier.
    fn ask_for_events(&mut self) -> Result<u16> {
        let mut enable = command(admin::SET_FEATURES);
        (enable.cdw10, enable.cdw11) = (u32::from(EVENTS).into(), (1 << 8).into());
        let enabled = self.host.command(&mut self.admin, enable)?;
        assert_eq!(enabled.status(), DONE);
        self.host
            .send(&mut self.admin, command(admin::ASYNC_EVENT), &[])
    }

    /// Sends writes of `count` blocks, each with bytes of its own, which are in the host's memory.
    fn send_writes(&mut self, queue: &mut Queue, count: u8) -> Result<Vec<u16>> {
        let mut sent = Vec::new();
        for number in 0..count {
            let at = usize::from(number) * 512;
            self.host.memory.write_from(at, &[number + 1; 512])?;
            let mut sqe = transfer(io::WRITE, number.into(), 1);
            sqe.sgl = self.host.data(at, 512);
            sent.push(self.host.send(queue, sqe, &[])?);
        }
        Ok(sent)
    }

    /// Checks the blocks that [`Self::send_writes`] has written.
    fn check_blocks(&mut self, queue: &mut Queue, count: u8) -> Result<()> {
        for number in 0..count {
            assert_eq!(self.host.read(queue, number.into(), 1, 1 << 16, 512)?, DONE);
            assert_eq!(self.host.memory.read(1 << 16, 512)?, [number + 1; 512]);
        }
        Ok(())
    }

    pub fn end(self) -> Result<()> {
        self.target().stop();
        drop(self.host);
        let all: Vec<Worker> = self.workers.borrow_mut().drain(..).collect();
        for worker in all {
            let over = worker.run()?;
            assert_eq!((over.ios_left, over.buffers_left), (0, 0), "{over:?}");
        }
        Ok(())
    }
}

#[test]
fn commands_that_come_during_a_hold_are_carried_out_after_its_release() -> Result<()> {
    let mut turns = Turns::new(1, Source::Memory(1 << 20))?;
    let mut queue = turns.queue(1)?;
    turns.target().hold();
    turns.until_quiet()?;
    let sent = turns.send_writes(&mut queue, 20)?;
    turns.pass(ENOUGH)?;
    assert!(turns.is_quiet());
    assert!(turns.host.ia.evd_dequeue(queue.events)?.is_none());
    turns.target().release();
    let answers = turns.answers(&mut queue, &sent)?;
    assert_eq!(answers, vec![DONE; 20]);
    turns.check_blocks(&mut queue, 20)?;
    turns.end()
}

#[test]
fn workers_are_parked_and_resumed_with_queues_event_requests_and_capsules() -> Result<()> {
    for workers in [1, 2] {
        let mut turns = Turns::new(workers, Source::Memory(1 << 20))?;
        let mut queues = [turns.queue(1)?, turns.queue(2)?];
        let waits = turns.ask_for_events()?;
        for round in 0..3 {
            let mut sent = vec![turns.send_writes(&mut queues[0], 20)?];
            turns.pass(round * 7)?;
            turns.target().hold();
            turns.until_quiet()?;
            // Some of these are dequeued before the parking, and the others after the resumption.
            sent.push(turns.send_writes(&mut queues[1], 10)?);
            turns.pass(ENOUGH)?;
            let more = turns.send_writes(&mut queues[1], 10)?;
            sent[1].extend(more);
            let before = turns.target().done();
            turns.park_and_resume()?;
            assert_eq!(turns.target().done(), before, "counters");
            turns.target().release();
            for (queue, sent) in queues.iter_mut().zip(&sent) {
                assert_eq!(turns.answers(queue, sent)?, vec![DONE; sent.len()]);
                turns.check_blocks(queue, 10)?;
            }
        }
        let second = NamespaceConfig {
            nsid: Some(2),
            uuid: Uuid::from_u128(2),
            group: 1,
            hosts: None,
            disk: Disk::open(Source::Memory(1 << 20), 9, false)?,
        };
        let subsystem = turns.subsystem.clone();
        turns
            .target()
            .with(|model| model.add_namespace(&subsystem, second))?;
        let event = turns.host.response(&mut turns.admin)?;
        assert_eq!((event.cid.get(), event.result.get()), (waits, 0x0004_0002));
        turns.end()?;
    }
    Ok(())
}

/// Receives belong to all connections, and during a hold none comes back. So the entries of a queue are its limit then,
/// too.
#[test]
fn a_host_that_sends_more_than_its_entries_during_a_hold_is_over() -> Result<()> {
    let mut turns = Turns::new(1, Source::Memory(1 << 20))?;
    let mut queue = turns.queue(1)?;
    turns.target().hold();
    turns.until_quiet()?;
    for sent in 1..=33 {
        assert_eq!(turns.room().overdrawn, 0, "{sent}");
        let flush = command(io::FLUSH);
        turns.host.send_without_receive(&mut queue, flush)?;
        turns.pass(ENOUGH)?;
    }
    assert_eq!(turns.room().overdrawn, 1);
    let controllers = turns.target().with(|model| model.controllers().count());
    assert_eq!(controllers, 0);
    // Its receives have come back already, so a worker without capsules is parked.
    turns.park_and_resume()?;
    turns.target().release();
    let (admin, controller) = turns.host.controller(&turns.subsystem)?;
    (turns.admin, turns.controller) = (admin, controller);
    let mut queue = turns.queue(1)?;
    let sent = turns.send_writes(&mut queue, 20)?;
    assert_eq!(turns.answers(&mut queue, &sent)?, vec![DONE; 20]);
    turns.end()
}

/// A connection without Connect is a guest, and has four commands at most.
#[test]
fn a_guest_that_sends_five_capsules_during_a_hold_is_disconnected() -> Result<()> {
    let mut turns = Turns::new(1, Source::Memory(1 << 20))?;
    let mut guest = turns.host.queue(0, 32)?;
    turns.pass(ENOUGH)?;
    turns.target().hold();
    turns.until_quiet()?;
    for sent in 1..=5 {
        assert_eq!(turns.room().overdrawn, 0, "{sent}");
        let flush = command(io::FLUSH);
        turns.host.send_without_receive(&mut guest, flush)?;
        turns.pass(ENOUGH)?;
    }
    turns.host.expect_end(&guest)?;
    assert_eq!(turns.room().overdrawn, 1);
    let controllers = turns.target().with(|model| model.controllers().count());
    assert_eq!(controllers, 1, "the host has its controller");
    turns.target().release();
    turns.end()
}

/// The capsules of a connection that ends during a hold are dropped at once: their receives belong to all.
#[test]
fn a_host_that_disconnects_during_a_hold_leaves_no_capsule() -> Result<()> {
    let mut turns = Turns::new(1, Source::Memory(1 << 20))?;
    let mut queue = turns.queue(1)?;
    turns.target().hold();
    turns.until_quiet()?;
    for _ in 0..10 {
        let flush = command(io::FLUSH);
        turns.host.send_without_receive(&mut queue, flush)?;
    }
    turns.pass(ENOUGH)?;
    turns.host.disconnect(&queue)?;
    turns.pass(ENOUGH)?;
    let worker = turns.workers.borrow_mut().pop().context("a worker")?;
    let (ia, snapshot) = worker.park().map_err(|refused| refused.1)?;
    let shown = format!("{snapshot:?}");
    assert!(shown.contains(" arrived: []"), "{shown}");
    let worker = Worker::resume(turns.target(), ia, &snapshot).map_err(|refused| refused.1)?;
    turns.workers.borrow_mut().push(worker);
    turns.target().release();
    turns.end()
}

#[test]
fn an_event_of_a_hold_is_reported_after_it() -> Result<()> {
    let mut turns = Turns::new(1, Source::Memory(1 << 20))?;
    let waits = turns.ask_for_events()?;
    turns.pass(ENOUGH)?;
    turns.target().hold();
    turns.until_quiet()?;
    let subsystem = turns.subsystem.clone();
    turns
        .target()
        .with(|model| model.remove_namespace(&subsystem, 1))?;
    turns.pass(ENOUGH)?;
    assert!(turns.host.ia.evd_dequeue(turns.admin.events)?.is_none());
    turns.park_and_resume()?;
    turns.target().release();
    let event = turns.host.response(&mut turns.admin)?;
    assert_eq!((event.cid.get(), event.result.get()), (waits, 0x0004_0002));
    turns.end()
}

/// The hold begins at each of the first turns of the commands: while data is fetched, at the disk, and while responses
/// are sent.
#[test]
fn commands_under_way_at_a_hold_end_first_whatever_they_wait_for() -> Result<()> {
    let mut turns = Turns::new(1, Source::Memory(1 << 20))?;
    let mut queue = turns.queue(1)?;
    for at in 0..60 {
        let sent = turns.send_writes(&mut queue, 3)?;
        let mut sqe = transfer(io::READ, 0, 256);
        sqe.sgl = turns.host.data(1 << 17, 1 << 17);
        let long = turns.host.send(&mut queue, sqe, &[])?;
        turns.pass(at)?;
        turns.target().hold();
        turns.until_quiet()?;
        turns.park_and_resume()?;
        turns.target().release();
        let all = [&sent[..], &[long]].concat();
        assert_eq!(turns.answers(&mut queue, &all)?, vec![DONE; 4], "{at}");
        turns.check_blocks(&mut queue, 3)?;
    }
    turns.end()
}

#[test]
fn a_worker_whose_disk_is_slow_is_not_parked_and_goes_on() -> Result<()> {
    let mut turns = Turns::new(1, Source::Faulty(1 << 20))?;
    let mut queue = turns.queue(1)?;
    let faults = turns.faults()?;
    faults.order(Some(Orders {
        of: Of::Writes,
        delay: LONGEST_DELAY,
        ..Orders::default()
    }));
    let sent = turns.send_writes(&mut queue, 5)?;
    turns.pass(ENOUGH)?;
    turns.target().hold();
    turns.pass(ENOUGH)?;
    assert!(!turns.is_quiet());
    let worker = turns.workers.borrow_mut().pop().context("a worker")?;
    let refused = worker.park().err().context("a refusal")?;
    let (worker, error) = *refused;
    let WorkerParkError::Busy { commands, .. } = error else {
        anyhow::bail!("{error}");
    };
    assert_eq!(commands, 5);
    turns.workers.borrow_mut().push(worker);
    // A release at any time, and another hold.
    turns.target().release();
    turns.pass(ENOUGH)?;
    turns.target().hold();
    turns.pass(ENOUGH)?;
    faults.order(None);
    turns.until_quiet()?;
    turns.park_and_resume()?;
    turns.target().release();
    assert_eq!(turns.answers(&mut queue, &sent)?, [DONE; 5]);
    turns.check_blocks(&mut queue, 5)?;
    turns.end()
}

#[test]
fn a_fused_pair_whose_second_comes_during_or_after_the_hold_is_carried_out() -> Result<()> {
    let mut turns = Turns::new(1, Source::Memory(1 << 20))?;
    let mut queue = turns.queue(1)?;
    let part = |host: &Host, opcode, flags, at| {
        let mut sqe = transfer(opcode, 5, 1);
        sqe.flags |= flags;
        sqe.sgl = host.data(at, 512);
        sqe
    };
    for round in 0..3_u8 {
        turns.host.memory.write_from(0, &[round; 512])?;
        turns.host.memory.write_from(512, &[round + 1; 512])?;
        let first = part(&turns.host, io::COMPARE, FUSE_FIRST, 0);
        let mut second = part(&turns.host, io::WRITE, FUSE_SECOND, 512);
        if round == 2 {
            second = part(&turns.host, io::WRITE, 0, 512);
        }
        let mut sent = vec![turns.host.send(&mut queue, first, &[])?];
        turns.pass(ENOUGH)?;
        turns.target().hold();
        turns.until_quiet()?;
        if round == 0 {
            sent.push(turns.host.send(&mut queue, second, &[])?);
            turns.pass(ENOUGH)?;
        }
        turns.park_and_resume()?;
        turns.target().release();
        if round != 0 {
            turns.pass(ENOUGH)?;
            sent.push(turns.host.send(&mut queue, second, &[])?);
        }
        let wanted = match round {
            2 => Status::MISSING_FUSED.dnr(),
            _ => DONE,
        };
        assert_eq!(turns.answers(&mut queue, &sent)?, [wanted, DONE], "{round}");
        assert_eq!(turns.host.read(&mut queue, 5, 1, 1024, 512)?, DONE);
        assert_eq!(turns.host.memory.read(1024, 512)?, [round + 1; 512]);
    }
    turns.end()
}

/// A pair's lock takes effect when all workers have confirmed it, a parked one among them.
#[test]
fn a_pair_waits_for_a_parked_worker_until_it_is_forgotten() -> Result<()> {
    let mut turns = Turns::new(2, Source::Memory(1 << 20))?;
    // The first worker has the admin queue, the second one queue 1, and the first one queue 2.
    let _of_second = turns.queue(1)?;
    let mut queue = turns.queue(2)?;
    turns.target().hold();
    turns.until_quiet()?;
    let worker = turns.workers.borrow_mut().pop().context("a worker")?;
    let id = worker.id();
    let parked = worker.park().map_err(|refused| refused.1)?;
    turns.target().release();
    turns.host.memory.write_from(0, &[0; 512])?;
    let mut sent = Vec::new();
    for (opcode, flags) in [(io::COMPARE, FUSE_FIRST), (io::WRITE, FUSE_SECOND)] {
        let mut sqe = transfer(opcode, 5, 1);
        sqe.flags |= flags;
        sqe.sgl = turns.host.data(0, 512);
        sent.push(turns.host.send(&mut queue, sqe, &[])?);
    }
    turns.pass(ENOUGH)?;
    assert!(turns.host.ia.evd_dequeue(queue.events)?.is_none());
    turns.target().forget_worker(id);
    assert_eq!(turns.answers(&mut queue, &sent)?, [DONE; 2]);
    drop(parked);
    turns.end()
}

#[test]
fn a_connection_that_ends_during_a_hold_leaves_nothing() -> Result<()> {
    let mut turns = Turns::new(1, Source::Memory(1 << 20))?;
    let mut queues = [turns.queue(1)?, turns.queue(2)?];
    let mut first = transfer(io::COMPARE, 5, 1);
    first.flags |= FUSE_FIRST;
    first.sgl = turns.host.data(0, 512);
    for queue in &mut queues {
        turns.host.send(queue, first, &[])?;
    }
    turns.pass(ENOUGH)?;
    turns.target().hold();
    turns.until_quiet()?;
    for queue in &mut queues {
        turns.send_writes(queue, 5)?;
    }
    turns.pass(ENOUGH)?;
    // One ends before the parking, and one after the resumption.
    turns.host.disconnect(&queues[0])?;
    turns.pass(ENOUGH)?;
    turns.park_and_resume()?;
    turns.host.disconnect(&queues[1])?;
    turns.target().release();
    turns.pass(ENOUGH)?;
    let mut again = turns.queue(1)?;
    let sent = turns.send_writes(&mut again, 5)?;
    assert_eq!(turns.answers(&mut again, &sent)?, [DONE; 5]);
    turns.end()
}

/// One bit in each byte of a snapshot is changed, a different one each time. If the snapshot is accepted, the worker is
/// parked again.
#[test]
fn a_snapshot_with_a_changed_bit_is_refused_or_makes_a_worker() -> Result<()> {
    let mut turns = Turns::new(1, Source::Memory(1 << 20))?;
    let mut queue = turns.queue(1)?;
    turns.ask_for_events()?;
    turns.host.memory.write_from(0, &[0; 512])?;
    let mut first = transfer(io::COMPARE, 5, 1);
    first.flags |= FUSE_FIRST;
    first.sgl = turns.host.data(0, 512);
    let mut sent = vec![turns.host.send(&mut queue, first, &[])?];
    turns.pass(ENOUGH)?;
    turns.target().hold();
    turns.until_quiet()?;
    sent.push(turns.host.send(&mut queue, first, &[])?);
    turns.pass(ENOUGH)?;
    let worker = turns.workers.borrow_mut().pop().context("a worker")?;
    let (mut ia, snapshot) = worker.park().map_err(|refused| refused.1)?;
    let bytes = postcard::to_allocvec(&snapshot)?;
    let (mut refused, mut accepted) = (0, 0);
    for at in 0..bytes.len() {
        for bit in [at % 8, (at / 8 + 3) % 8] {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            let Ok(snapshot) = postcard::from_bytes::<WorkerSnapshot>(&changed) else {
                refused += 1;
                continue;
            };
            ia = match Worker::resume(turns.target(), ia, &snapshot) {
                Ok(worker) => {
                    accepted += 1;
                    worker.park().map_err(|refused| refused.1)?.0
                }
                Err(error) => {
                    refused += 1;
                    error.0
                }
            };
        }
    }
    assert!(
        refused > accepted && accepted > 0,
        "{refused} refused, {accepted} accepted"
    );
    let worker = Worker::resume(turns.target(), ia, &snapshot).map_err(|refused| refused.1)?;
    turns.workers.borrow_mut().push(worker);
    turns.target().release();
    let mut second = transfer(io::WRITE, 5, 1);
    second.flags |= FUSE_SECOND;
    second.sgl = turns.host.data(0, 512);
    sent.push(turns.host.send(&mut queue, second, &[])?);
    // The second pair writes what the first block has.
    let missing = Status::MISSING_FUSED.dnr();
    assert_eq!(turns.answers(&mut queue, &sent)?, [missing, DONE, DONE]);
    turns.end()
}

#[test]
fn a_snapshot_of_a_target_with_a_changed_bit_is_refused_or_makes_a_target() -> Result<()> {
    let mut turns = Turns::new(1, Source::Memory(1 << 20))?;
    let _queue = turns.queue(1)?;
    turns.ask_for_events()?;
    turns.target().hold();
    turns.until_quiet()?;
    let running = turns.target().park();
    assert!(
        matches!(running, Err(TargetParkError::Worker { worker: 0 })),
        "{running:?}"
    );
    let worker = turns.workers.borrow_mut().pop().context("a worker")?;
    let (ia, of_worker) = worker.park().map_err(|refused| refused.1)?;
    let snapshot = turns.target().park()?;
    let model = || -> Result<Model> {
        let mut model = Model::new();
        let disk = Source::Memory(1 << 20);
        configure(&mut model, turns.world.address, &config(), disk, 9)?;
        Ok(model)
    };
    let bytes = postcard::to_allocvec(&snapshot)?;
    let mut refused = 0;
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        let snapshot = postcard::from_bytes::<TargetSnapshot>(&changed).ok();
        let made = snapshot.map(|snapshot| Target::resume(model()?, &snapshot).map_err(Into::into));
        refused += usize::from(made.is_none_or(|made: Result<_>| made.is_err()));
    }
    assert!(refused > bytes.len() / 4, "{refused} of {}", bytes.len());
    // A model without controllers has no queue of the worker's.
    let empty = Target::resume(model()?, &Target::new(model()?).park()?)?;
    let refusal = Worker::resume(&empty, ia, &of_worker)
        .err()
        .context("a refusal")?;
    let (ia, error) = *refusal;
    assert!(
        matches!(error, WorkerResumeError::Unknown { .. }),
        "{error}"
    );
    let target = Target::resume(model()?, &snapshot)?;
    let worker = Worker::resume(&target, ia, &of_worker).map_err(|refused| refused.1)?;
    assert_eq!(target.done()[&0], turns.target().done()[&0]);
    drop(worker);
    Ok(())
}

/// Threads of workers pause when all are quiet, and go on after the release.
#[test]
fn threads_of_workers_pause_and_go_on() -> Result<()> {
    let (mut world, workers) = World::unserved(2, Source::Memory(1 << 20), 9, config())?;
    let subsystem = world.subsystem.clone();
    let start = |mut worker: Worker| {
        std::thread::spawn(move || {
            let served = worker.run_or_pause();
            (worker, served)
        })
    };
    let mut threads: Vec<_> = workers.into_iter().map(start).collect();
    let mut host = world.host()?;
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 32)?;
    for round in 0..5 {
        let mut sqe = transfer(io::READ, round, 8);
        sqe.sgl = host.data(0, 4096);
        let mut sent = vec![host.send(&mut queue, sqe, &[])?];
        world.target.hold();
        sent.push(host.send(&mut queue, sqe, &[])?);
        let mut paused = Vec::new();
        for thread in threads {
            let (worker, served) = thread.join().expect("no panic");
            assert_eq!(served?, Served::Paused);
            paused.push(worker);
        }
        sent.push(host.send(&mut queue, sqe, &[])?);
        world.target.release();
        threads = paused.into_iter().map(start).collect();
        for _ in &sent {
            // A worker that has failed keeps its connections until it is ended, so the host learns nothing of it.
            let answer = host.response(&mut queue).map_err(|error| {
                let ended = threads.drain(..).filter(JoinHandle::is_finished);
                let ended = ended.map(|thread| thread.join().expect("no panic").1);
                let ended = Vec::from_iter(ended);
                error.context(format!("workers that ended in round {round}: {ended:?}"))
            })?;
            assert!(sent.contains(&answer.cid.get()) && answer.status() == DONE);
        }
    }
    drop(host);
    world.target.stop();
    for thread in threads {
        let (worker, served) = thread.join().expect("no panic");
        worker.end(served)?;
    }
    Ok(())
}
