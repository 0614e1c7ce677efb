//! Restart without reconnect: each process of the daemon hands its adapter and its hosts over to the next one, by the
//! store of a service manager. The adapter's function and that of the host are behind vfio-user servers.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use control::Client;
use nix::sys::signal::Signal;
use nvmeof::daemon::{Daemon, HandOverError};
use nvmeof::nvme::Status;
use nvmeof::nvme::command::{admin, io};
use serde_json::{Value, json};
use tempfile::TempDir;
use udapl::fabric::Fabric;
use udapl::handover::{self, Offer, Sent};
use udapl::reactor::{Clock, Instant, RealClock};

use crate::card::Card;
use crate::host::{Host, Queue, command, transfer};
use crate::process::{SUBSYSTEM, parsed, subsystem};
use crate::store::{Kept, Manager, Service};

const SERVICE: u16 = 4420;
/// Exit status of a process that is to be started again.
const AGAIN: i32 = 75;
const DONE: Status = Status::SUCCESS;

/// A service, its card, and its files.
struct Unit {
    folder: TempDir,
    card: Card,
    manager: Manager,
    process: Service,
}

/// Returns a namespace on the disk of a folder, and more tables.
fn on_disk(folder: &TempDir, more: &str) -> String {
    let disk = folder.path().join("disk");
    format!(
        "[[subsystem]]\nnqn = \"{SUBSYSTEM}\"\nany_host = true\n[[subsystem.namespace]]\nnsid = 1\nfile = \"{}\"\n{more}",
        disk.display()
    )
}

impl Unit {
    /// Starts a service whose card serves the daemon's function to this many clients.
    fn start(clients: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::File::create(folder.path().join("disk"))?.set_len(1 << 20)?;
        let card = Card::serving(folder.path(), clients)?;
        configure(&folder, &card, &on_disk(&folder, ""))?;
        Self::next((folder, card, Kept::new()))
    }

    fn configure(&self, tables: &str) -> Result<()> {
        configure(&self.folder, &self.card, tables)
    }

    fn client(&self) -> Result<Client> {
        Ok(Client::connect(&self.folder.path().join("control"))?)
    }

    fn status(&self) -> Result<Value> {
        Ok(self.client()?.call("status", Value::Null)?)
    }

    /// Waits until the process ends to be started again. Returns what is in the store.
    fn ended(self) -> Result<(TempDir, Card, Kept)> {
        let Self {
            folder,
            card,
            manager,
            mut process,
        } = self;
        let status = process.wait()?;
        assert_eq!(status.code(), Some(AGAIN), "{status}");
        Ok((folder, card, manager.end()?))
    }

    /// Starts the next process with the descriptors of the store.
    fn next((folder, card, kept): (TempDir, Card, Kept)) -> Result<Self> {
        let duplicates = kept
            .iter()
            .map(|(name, fd)| Ok((name.clone(), fd.try_clone()?)));
        let duplicates = duplicates.collect::<Result<Kept>>()?;
        let manager = Manager::start(&folder.path().join("notify"), kept)?;
        let process = spawn(&folder, &manager, &duplicates)?;
        drop(duplicates);
        manager.wait_for("READY=1")?;
        Ok(Self {
            folder,
            card,
            manager,
            process,
        })
    }

    /// Ends the service by SIGTERM. Nothing is left in the store.
    fn stop(self) -> Result<()> {
        let Self {
            card,
            manager,
            mut process,
            ..
        } = self;
        process.signal(Signal::SIGTERM)?;
        let status = process.wait()?;
        assert!(status.success(), "{status}");
        assert!(manager.end()?.is_empty());
        card.end();
        Ok(())
    }
}

fn settings(folder: &TempDir) -> PathBuf {
    folder.path().join("nvmeofd.toml")
}

fn configure(folder: &TempDir, card: &Card, tables: &str) -> Result<()> {
    let text = format!(
        "[control]\nsocket = \"{}\"\n[[port]]\nid = 1\nadapter = \"{},address={}/24\"\nservice = {SERVICE}\nworkers = 2\nios = 160\nbuffers = 4\n{tables}",
        folder.path().join("control").display(),
        card.names[0],
        Fabric::ipv4(0),
    );
    Ok(fs::write(settings(folder), text)?)
}

fn spawn(folder: &TempDir, manager: &Manager, kept: &Kept) -> Result<Service> {
    manager.spawn(env!("CARGO_BIN_EXE_nvmeofd"), &settings(folder), kept)
}

/// Sends commands for blocks 0 to 7, block by block.
fn send(host: &mut Host, queue: &mut Queue, opcode: u8) -> Result<Vec<u16>> {
    let mut sent = Vec::new();
    for block in 0..8 {
        let mut sqe = transfer(opcode, block, 1);
        sqe.sgl = host.data(usize::try_from(block)? * 512, 512);
        sent.push(host.send(queue, sqe, &[])?);
    }
    Ok(sent)
}

/// Receives answers of commands that must succeed, each once.
fn answered(host: &mut Host, queue: &mut Queue, mut sent: Vec<u16>) -> Result<()> {
    while !sent.is_empty() {
        let answer = host.response(queue)?;
        assert_eq!(answer.status(), DONE);
        let at = sent.iter().position(|one| *one == answer.cid.get());
        sent.swap_remove(at.context("an answer of a command that waits")?);
    }
    Ok(())
}

fn content(round: u8) -> Vec<u8> {
    (0..8)
        .flat_map(|block| [round * 8 + block + 1; 512])
        .collect()
}

/// The queues of a host stay, with commands under way, through several processes; the function is not reset. A
/// namespace that the file has got meanwhile is there afterwards.
#[test]
fn hosts_stay_connected_through_restarts_and_see_a_changed_file() -> Result<()> {
    let mut unit = Unit::start(1)?;
    let mut host = Host::of(unit.card.open(1)?, Fabric::ipv4(0), SERVICE)?;
    host.keep_alive_ms = 60_000;
    let (mut admin, controller) = host.controller(&subsystem())?;
    let mut queues = [
        host.io_queue(&subsystem(), controller, 1, 32)?,
        host.io_queue(&subsystem(), controller, 2, 32)?,
    ];
    let before = unit.card.resets();
    for round in 0..4 {
        let [first, second] = &mut queues;
        host.memory.write_from(0, &content(round))?;
        let writes = send(&mut host, first, io::WRITE)?;
        if round % 2 == 0 {
            unit.process.signal(Signal::SIGUSR2)?;
        } else {
            let asked: Value = unit.client()?.call("restart", Value::Null)?;
            assert_eq!(asked, json!(true));
        }
        let parked = unit.ended()?;
        assert!(!parked.2.is_empty());
        // Nobody drives the adapter now.
        let flush = host.send(second, command(io::FLUSH), &[])?;
        if round == 2 {
            let more = "[[subsystem.namespace]]\nnsid = 2\nnull = 1048576\n";
            configure(&parked.0, &parked.1, &on_disk(&parked.0, more))?;
        }
        if round == 3 {
            fs::write(settings(&parked.0), "[[prot]]")?;
        }
        unit = Unit::next(parked)?;
        answered(&mut host, first, writes)?;
        assert_eq!(host.response(second)?.cid.get(), flush);
        host.memory.write_from(0, &[0; 8 * 512])?;
        let reads = send(&mut host, second, io::READ)?;
        answered(&mut host, second, reads)?;
        assert_eq!(host.memory.read(0, 8 * 512)?, content(round));
        let alive = host.command(&mut admin, command(admin::KEEP_ALIVE))?;
        assert_eq!(alive.status(), DONE);
        let status = unit.status()?;
        assert_eq!(status["controllers"][0]["controller"], controller);
        assert_eq!(status["controllers"][0]["queues"], json!([1, 2]));
        let namespaces = status["subsystems"][0]["namespaces"].as_array();
        let count = namespaces.context("namespaces")?.len();
        assert_eq!(count, 1 + usize::from(round >= 2));
    }
    assert_eq!(unit.card.resets(), before);
    let disk = fs::read(unit.folder.path().join("disk"))?;
    assert_eq!(disk[..8 * 512], content(3));
    drop(host);
    unit.stop()
}

/// A daemon that cannot hand over says why, and goes on; by the signal, it ends as by SIGTERM, to be started again.
#[test]
fn a_restart_that_cannot_keep_the_hosts_is_refused_or_is_an_ordinary_one() -> Result<()> {
    let unit = Unit::start(2)?;
    let more = "[[subsystem.namespace]]\nnsid = 2\nmemory = 1048576\n";
    unit.configure(&on_disk(&unit.folder, more))?;
    unit.process.signal(Signal::SIGHUP)?;
    unit.manager.wait_for("READY=1")?;
    let refused = unit.client()?.call::<Value>("restart", Value::Null);
    let refused = refused.expect_err("a refusal").to_string();
    let why = format!("namespace 2 of {SUBSYSTEM} is memory of this process");
    assert!(refused.contains(&why), "{refused}");
    assert!(unit.status()?["ports"][0]["workers"][0]["serves"] == json!(true));
    unit.process.signal(Signal::SIGUSR2)?;
    let (folder, card, kept) = unit.ended()?;
    assert!(kept.is_empty());
    let unit = Unit::next((folder, card, kept))?;
    // The second function has had no client.
    drop(unit.card.open(1)?);
    unit.stop()
}

fn soon() -> Instant {
    RealClock::new().now() + Duration::from_secs(60)
}

/// Lets a daemon hand itself over by a socket. `next` gets the offer, in another thread.
fn hand_over<T: Send + 'static>(
    daemon: &mut Daemon,
    next: impl FnOnce(Offer) -> Result<T> + Send + 'static,
) -> Result<(Result<Sent, HandOverError>, T)> {
    let (ours, theirs) = UnixStream::pair()?;
    let next = thread::spawn(move || next(handover::receive(theirs.into(), soon())?));
    let receiver = handover::await_receiver(ours.into(), soon())?;
    let limit = Duration::from_secs(60);
    let sent = daemon.hand_over(limit, |snapshot, descriptors| {
        let sent = receiver.send(snapshot, descriptors, soon());
        if let Err(kept) = &sent {
            kept.wait_for_receiver(soon()).expect("it lets go");
        }
        sent
    });
    Ok((sent, next.join().expect("no panic")?))
}

/// A handover that is refused leaves the daemon with its hosts, as often as it is tried. One that is accepted leaves it
/// with nothing.
#[test]
fn a_daemon_whose_handover_is_refused_goes_on_and_can_try_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    fs::File::create(folder.path().join("disk"))?.set_len(1 << 20)?;
    let card = Card::new(folder.path())?;
    // Both daemons are in this process for a moment, and one alone could lock the disk.
    configure(&folder, &card, &on_disk(&folder, "lock = false\n"))?;
    let mut daemon = Daemon::start(&parsed(&settings(&folder))?)?;
    let mut host = Host::of(card.open(1)?, Fabric::ipv4(0), SERVICE)?;
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut queue = host.io_queue(&subsystem(), controller, 1, 32)?;
    let before = card.resets();
    for round in 0..3 {
        host.memory.write_from(0, &content(round))?;
        let writes = send(&mut host, &mut queue, io::WRITE)?;
        let refuse = |offer: Offer| {
            offer.claim.refuse("not today");
            Ok(())
        };
        let (sent, ()) = hand_over(&mut daemon, refuse)?;
        let refused = sent.expect_err("a refusal").to_string();
        assert!(refused.contains("not today"), "{refused}");
        answered(&mut host, &mut queue, writes)?;
        assert_eq!(daemon.workers(1), [(0, true), (1, true)]);
    }
    let writes = send(&mut host, &mut queue, io::WRITE)?;
    let (sent, mut next) = hand_over(&mut daemon, |offer| Ok(Daemon::adopt(offer)?))?;
    assert!(sent?.undecided.is_none());
    assert!(!daemon.serves() && next.serves());
    answered(&mut host, &mut queue, writes)?;
    let again = daemon.hand_over(Duration::ZERO, |_, _| unreachable!("there is no adapter"));
    assert!(
        matches!(again, Err(HandOverError::Adapters { count: 0 })),
        "{again:?}"
    );
    assert_eq!(card.resets(), before);
    drop(host);
    next.end();
    card.end();
    Ok(())
}

/// A daemon with two adapters hands both over. If that is refused, the hosts of both stay with it.
#[test]
fn a_daemon_with_two_adapters_hands_both_over() -> Result<()> {
    let folder = tempfile::tempdir()?;
    fs::File::create(folder.path().join("disk"))?.set_len(1 << 20)?;
    let card = Card::pairs(folder.path(), 2, 1)?;
    // The ports are not in the order of their adapters' names, and the first adapter has two of them.
    let port = |id: u16, side: usize, service: u16, workers: u16| {
        format!(
            "[[port]]\nid = {id}\nadapter = \"{},address={}/24\"\nservice = {service}\nworkers = {workers}\nios = 160\nbuffers = 4\n",
            card.names[side],
            Fabric::ipv4(side),
        )
    };
    let tables = [
        port(1, 2, SERVICE, 2),
        port(2, 0, SERVICE, 1),
        port(3, 0, SERVICE + 1, 1),
        on_disk(&folder, "lock = false\n"),
    ];
    fs::write(settings(&folder), tables.concat())?;
    let mut daemon = Daemon::start(&parsed(&settings(&folder))?)?;
    let before = card.resets();
    let mut hosts = Vec::new();
    for side in [1, 3] {
        let mut host = Host::of(card.open(side)?, Fabric::ipv4(side - 1), SERVICE)?;
        let (admin, controller) = host.controller(&subsystem())?;
        let queue = host.io_queue(&subsystem(), controller, 1, 32)?;
        hosts.push((host, admin, queue));
    }
    for (round, is_refused) in [true, false, true].into_iter().enumerate() {
        let mut under_way = Vec::new();
        for (host, _, queue) in &mut hosts {
            host.memory.write_from(0, &content(u8::try_from(round)?))?;
            under_way.push(send(host, queue, io::WRITE)?);
        }
        if is_refused {
            let refuse = |offer: Offer| {
                offer.claim.refuse("not today");
                Ok(())
            };
            let (sent, ()) = hand_over(&mut daemon, refuse)?;
            let refused = sent.expect_err("a refusal").to_string();
            assert!(refused.contains("not today"), "{refused}");
        } else {
            let (sent, next) = hand_over(&mut daemon, |offer| Ok(Daemon::adopt(offer)?))?;
            assert!(sent?.undecided.is_none());
            daemon = next;
        }
        for ((host, _, queue), sent) in hosts.iter_mut().zip(under_way) {
            answered(host, queue, sent)?;
        }
        assert_eq!(daemon.workers(1).len(), 2);
        assert!(daemon.serves());
    }
    assert_eq!(card.resets(), before);
    drop(hosts);
    daemon.end();
    card.end();
    Ok(())
}

/// A handover that has lost a descriptor is not used: the function is reset, and the daemon serves afresh.
#[test]
fn a_handover_that_is_not_whole_is_a_fresh_start() -> Result<()> {
    let unit = Unit::start(2)?;
    let mut host = Host::of(unit.card.open(1)?, Fabric::ipv4(0), SERVICE)?;
    let (_admin, controller) = host.controller(&subsystem())?;
    let _queue = host.io_queue(&subsystem(), controller, 1, 32)?;
    let before = unit.card.resets();
    unit.process.signal(Signal::SIGUSR2)?;
    let (folder, card, mut kept) = unit.ended()?;
    let memory = kept.iter().position(|(name, _)| name.contains("memory"));
    kept.remove(memory.context("memory")?);
    let unit = Unit::next((folder, card, kept))?;
    assert!(unit.card.resets() > before);
    assert_eq!(unit.status()?["controllers"], json!([]));
    // The host has not noticed yet.
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut queue = host.io_queue(&subsystem(), controller, 1, 32)?;
    assert_eq!(host.read(&mut queue, 0, 1, 0, 512)?, DONE);
    drop(host);
    unit.stop()
}
