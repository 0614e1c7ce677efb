//! A target whose adapter is parked and resumed, with another target and other workers. The adapter's function and that
//! of the host are each behind a vfio-user server, because functions of this process cannot be parked.

use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use nvmeof::disk::{Disk, Source};
use nvmeof::model::{Model, NamespaceConfig};
use nvmeof::nvme::command::{admin, io};
use nvmeof::nvme::feature::EVENTS;
use nvmeof::nvme::{Sqe, Status};
use nvmeof::serve::{Served, Target, TargetSnapshot, Worker, WorkerConfig, WorkerSnapshot};
use udapl::handover::{self, Parked, Resumed};
use uuid::Uuid;

use crate::card::Card;
use crate::host::{Host, Queue, command, transfer};
use crate::world::{PORT, World, configure};

const DONE: Status = Status::SUCCESS;
const SHIFT: u8 = 9;
/// Number of times that the target is parked.
const ROUNDS: u8 = 4;

type Serving = JoinHandle<(Worker, Result<Served, nvmeof::serve::WorkerError>)>;

fn serve(mut worker: Worker) -> Serving {
    thread::spawn(move || {
        let served = worker.run_or_pause();
        (worker, served)
    })
}

/// Holds a target and parks its worker, its adapter and itself. Returns what goes to the next process.
fn park(target: &Target, serving: Serving) -> Result<Parked> {
    target.hold();
    let (worker, served) = serving.join().expect("no panic");
    assert_eq!(served?, Served::Paused);
    let (ia, snapshot) = worker.park().map_err(|refused| refused.1)?;
    let words = postcard::to_allocvec(&(target.park()?, snapshot))?;
    Ok(handover::park(ia, &words)?)
}

/// Goes on with a parked target, in a new model and with new workers.
fn resume(model: Model, parked: Parked) -> Result<(Target, Serving)> {
    let Resumed { ia, words } = handover::resume(parked)?;
    let (of_target, of_worker): (TargetSnapshot, WorkerSnapshot) = postcard::from_bytes(&words)?;
    let target = Target::resume(model, &of_target)?;
    let worker = Worker::resume(&target, ia, &of_worker).map_err(|refused| refused.1)?;
    Ok((target, serve(worker)))
}

/// Reads or writes of blocks of the disk, each block with bytes of its own.
fn transfer_of(host: &Host, opcode: u8, block: u8) -> Sqe {
    let mut sqe = transfer(opcode, block.into(), 1);
    sqe.sgl = host.data(usize::from(block) * 512, 512);
    sqe
}

/// Receives answers of commands that must succeed, each once.
fn answered(host: &mut Host, queue: &mut Queue, mut sent: Vec<u16>) -> Result<()> {
    while !sent.is_empty() {
        let answer = host.response(queue)?;
        assert_eq!(answer.status(), DONE);
        let cid = answer.cid.get();
        let at = sent.iter().position(|one| *one == cid);
        sent.swap_remove(at.context("an answer of a command that waits")?);
    }
    Ok(())
}

#[test]
fn a_target_goes_from_adapter_to_adapter_under_io_and_the_hosts_queues_stay() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("disk");
    std::fs::File::create(&path)?.set_len(1 << 20)?;
    let card = Card::new(folder.path())?;
    let (ia, peer) = (card.open(0)?, card.open(1)?);
    let address = ia.query().ia.ia_address;
    let config = WorkerConfig {
        ios: 160,
        buffers: 4,
        ..WorkerConfig::default()
    };
    let disk = || Source::File(path.clone());
    let (world, mut workers) = World::of(tempfile::tempdir()?, vec![ia], disk(), SHIFT, config)?;
    let subsystem = world.subsystem.clone();
    let mut target = world.target.clone();
    drop(world);
    let mut serving = serve(workers.pop().context("a worker")?);
    let mut host = Host::of(peer, address, PORT)?;
    host.keep_alive_ms = 60_000;
    let (mut admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 32)?;
    let mut enable = command(admin::SET_FEATURES);
    (enable.cdw10, enable.cdw11) = (u32::from(EVENTS).into(), (1 << 8).into());
    assert_eq!(host.command(&mut admin, enable)?.status(), DONE);
    let waits = host.send(&mut admin, command(admin::ASYNC_EVENT), &[])?;
    let mut commands = 0;
    let resets = card.resets();
    for round in 0..ROUNDS {
        let mut sent = Vec::new();
        for block in 0..16 {
            let at = usize::from(block) * 512;
            host.memory.write_from(at, &[round * 16 + block + 1; 512])?;
            let write = transfer_of(&host, io::WRITE, block);
            sent.push(host.send(&mut queue, write, &[])?);
        }
        let before = target.now();
        let parked = park(&target, serving)?;
        // These come while no process has the adapter.
        for block in 16..24 {
            let at = usize::from(block) * 512;
            host.memory.write_from(at, &[round * 16 + block + 1; 512])?;
            let write = transfer_of(&host, io::WRITE, block);
            sent.push(host.send(&mut queue, write, &[])?);
        }
        // The old target ends, with the locks of its disks.
        drop(target);
        let mut model = Model::new();
        configure(&mut model, address, &config, disk(), SHIFT)?;
        (target, serving) = resume(model, parked)?;
        assert!(target.now() >= before);
        answered(&mut host, &mut queue, sent)?;
        let zeros = vec![0; 24 * 512];
        host.memory.write_from(0, &zeros)?;
        let mut sent = Vec::new();
        for block in 0..24 {
            let read = transfer_of(&host, io::READ, block);
            sent.push(host.send(&mut queue, read, &[])?);
        }
        answered(&mut host, &mut queue, sent)?;
        for block in 0..24 {
            let read = host.memory.read(usize::from(block) * 512, 512)?;
            assert_eq!(read, [round * 16 + block + 1; 512], "block {block}");
        }
        let alive = host.command(&mut admin, command(admin::KEEP_ALIVE))?;
        assert_eq!(alive.status(), DONE);
        commands += 48;
    }
    assert!(target.done()[&0].commands >= commands);
    assert_eq!(card.resets(), resets);
    let second = NamespaceConfig {
        nsid: Some(2),
        uuid: Uuid::from_u128(2),
        group: 1,
        hosts: None,
        disk: Disk::open(Source::Memory(1 << 20), SHIFT, false)?,
    };
    target.with(|model| model.add_namespace(&subsystem, second))?;
    let event = host.response(&mut admin)?;
    assert_eq!((event.cid.get(), event.result.get()), (waits, 0x0004_0002));
    // New connections are accepted.
    let mut another = host.io_queue(&subsystem, controller, 2, 16)?;
    assert_eq!(host.read(&mut another, 0, 1, 0, 512)?, DONE);
    drop(host);
    target.stop();
    let (worker, served) = serving.join().expect("no panic");
    let over = worker.end(served)?;
    assert_eq!((over.ios_left, over.buffers_left), (0, 0), "{over:?}");
    card.end();
    Ok(())
}

/// After a parking that is given up, the same target goes on.
#[test]
fn a_parking_that_is_given_up_leaves_the_target_with_its_queues() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let card = Card::new(folder.path())?;
    let (ia, peer) = (card.open(0)?, card.open(1)?);
    let config = WorkerConfig {
        ios: 160,
        buffers: 4,
        ..WorkerConfig::default()
    };
    let disk = Source::Memory(1 << 20);
    let (world, mut workers) = World::of(tempfile::tempdir()?, vec![ia], disk, SHIFT, config)?;
    let (target, subsystem) = (world.target.clone(), world.subsystem.clone());
    let serving = serve(workers.pop().context("a worker")?);
    let mut host = Host::of(peer, world.address, PORT)?;
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 32)?;
    let parked = park(&target, serving)?;
    let write = transfer_of(&host, io::WRITE, 3);
    let sent = host.send(&mut queue, write, &[])?;
    let Resumed { ia, words } = handover::resume(parked)?;
    let (_, snapshot): (TargetSnapshot, WorkerSnapshot) = postcard::from_bytes(&words)?;
    let worker = Worker::resume(&target, ia, &snapshot).map_err(|refused| refused.1)?;
    // Without the release, the worker would pause again at once.
    target.release();
    let serving = serve(worker);
    answered(&mut host, &mut queue, vec![sent])?;
    drop(host);
    target.stop();
    let (worker, served) = serving.join().expect("no panic");
    worker.end(served)?;
    card.end();
    Ok(())
}
