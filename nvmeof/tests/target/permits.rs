//! Conditions that refuse a command on blocks: write protection, reservations, ANA state, and a namespace that was
//! removed or shrunk. Each command is tried under each condition, which exists before the command or begins between its
//! steps.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use nvmeof::disk::faults::{LONGEST_DELAY, Of, Orders};
use nvmeof::disk::{Disk, Handle, Source};
use nvmeof::model::NamespaceConfig;
use nvmeof::nvme::command::{FUSE_FIRST, FUSE_SECOND, admin, io};
use nvmeof::nvme::log::Access;
use nvmeof::nvme::sgl::Sgl;
use nvmeof::nvme::{Cqe, Nqn, Sqe, Status};
use uuid::Uuid;

use crate::blocks::{pattern, range, source};
use crate::host::{Host, Queue, command, transfer};
use crate::reservations::reserve;
use crate::world::World;

const DONE: Status = Status::SUCCESS;
const FAILED: Status = Status::FAILED_FUSED.dnr();
const BYTES: u64 = 1 << 20;
/// First block of the commands, and first source block of Copy.
const AT: u64 = 64;
const FROM: u8 = 128;
/// Number of blocks of a namespace that was shrunk.
const SHORT: u64 = 8;

/// Role of the acting host in reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Holder,
    Registrant,
    Other,
}

/// Condition that refuses commands.
#[derive(Clone, Copy, Debug)]
enum Way {
    Nothing,
    Protected,
    Reserved(u32, Who),
    Access(Access),
    Gone,
    Shorter,
}

fn ways() -> Vec<Way> {
    let mut all = vec![Way::Nothing, Way::Protected, Way::Gone, Way::Shorter];
    for state in [
        Access::NonOptimized,
        Access::Inaccessible,
        Access::PersistentLoss,
        Access::Change,
    ] {
        all.push(Way::Access(state));
    }
    for kind in 1..=6 {
        for who in [Who::Holder, Who::Registrant, Who::Other] {
            all.push(Way::Reserved(kind, who));
        }
    }
    all
}

/// Action of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Reads,
    Writes,
    Flushes,
    FlushesAll,
    /// Compare and Write.
    Pair,
    Reports,
    Registers,
    Acquires,
    Preempts,
    Releases,
}

const COMMANDS: [(&str, Does); 17] = [
    ("read", Does::Reads),
    ("compare", Does::Reads),
    ("verify", Does::Reads),
    ("write", Does::Writes),
    ("write in capsule", Does::Writes),
    ("write zeroes", Does::Writes),
    ("write zeroes, deallocate", Does::Writes),
    ("deallocate", Does::Writes),
    ("copy", Does::Writes),
    ("flush", Does::Flushes),
    ("flush all", Does::FlushesAll),
    ("compare and write", Does::Pair),
    ("report", Does::Reports),
    ("register", Does::Registers),
    ("acquire", Does::Acquires),
    ("preempt", Does::Preempts),
    ("release", Does::Releases),
];

/// Returns the expected statuses of a command. The second is that of a pair's second command.
fn expected(does: Does, way: Way) -> (Status, Status) {
    let conflict = Status::RESERVATION.dnr();
    let blocks = matches!(does, Does::Reads | Does::Writes | Does::Pair);
    let status = match way {
        Way::Nothing | Way::Access(Access::Optimized | Access::NonOptimized) => DONE,
        Way::Access(Access::Inaccessible) => Status::ANA_INACCESSIBLE,
        Way::Access(Access::PersistentLoss) => Status::ANA_LOSS,
        Way::Access(Access::Change) => Status::ANA_CHANGE,
        // If all namespaces are flushed and there is none, the command succeeds.
        Way::Gone if does == Does::FlushesAll => DONE,
        Way::Gone => Status::INVALID_NAMESPACE.dnr(),
        Way::Shorter if blocks => Status::LBA_RANGE.dnr(),
        Way::Shorter => DONE,
        Way::Protected if does == Does::Writes => Status::WRITE_PROTECTED.dnr(),
        Way::Protected if does == Does::Pair => return (FAILED, Status::WRITE_PROTECTED.dnr()),
        Way::Protected => DONE,
        // Base specification, "Command Behavior in the Presence of a Reservation".
        Way::Reserved(kind, who) => {
            let may_write = who == Who::Holder || who == Who::Registrant && kind > 2;
            let may_read = may_write || kind % 2 == 1;
            let may = match does {
                Does::Reads => may_read,
                Does::Writes | Does::Flushes | Does::FlushesAll => may_write,
                Does::Pair if may_read && !may_write => return (FAILED, conflict),
                Does::Pair => may_write,
                Does::Reports | Does::Registers => true,
                Does::Preempts | Does::Releases => who != Who::Other,
                // The command acquires the same type again. With an All Registrants type each registrant is a holder.
                Does::Acquires => who == Who::Holder || who == Who::Registrant && kind > 4,
            };
            if may { DONE } else { conflict }
        }
    };
    match (does, way) {
        // Without a reservation no host is registered, so the host's key does not match.
        (Does::Acquires | Does::Preempts | Does::Releases, way)
            if status == DONE && !matches!(way, Way::Reserved(..)) =>
        {
            (conflict, DONE)
        }
        (Does::Pair, _) if status != DONE => (status, FAILED),
        _ => (status, DONE),
    }
}

/// Three hosts with an I/O queue each, in the order of [`Who`], and the admin queue of the first.
struct Hosts {
    host: Host,
    admin: Queue,
    queues: Vec<Queue>,
    subsystem: Nqn,
}

impl Hosts {
    fn new(world: &mut World) -> Result<Self> {
        let mut host = world.host()?;
        let subsystem = world.subsystem.clone();
        let mut queues = Vec::new();
        let mut first = None;
        for number in 1..=3 {
            host.id = [number; 16];
            host.name = format!("nqn.2026-11.test:host{number}").parse()?;
            let (admin, controller) = host.controller(&subsystem)?;
            queues.push(host.io_queue(&subsystem, controller, 1, 16)?);
            first.get_or_insert(admin);
        }
        let admin = first.context("an admin queue")?;
        Ok(Self {
            host,
            admin,
            queues,
            subsystem,
        })
    }

    fn queue(&mut self, who: Who) -> (&mut Host, &mut Queue) {
        (&mut self.host, &mut self.queues[who as usize])
    }

    /// Sends a reservation command of one host, which must succeed.
    fn reserves(&mut self, who: Who, opcode: u8, dword: u32, keys: [u8; 2]) -> Result<()> {
        let (host, queue) = self.queue(who);
        assert_eq!(reserve(host, queue, opcode, dword, keys)?, DONE);
        Ok(())
    }

    /// Registers the holder with key 1 and the registrant with key 2; then the holder acquires the reservation.
    fn hold(&mut self, kind: u32) -> Result<()> {
        self.reserves(Who::Holder, io::RESERVATION_REGISTER, 0, [0, 1])?;
        self.reserves(Who::Registrant, io::RESERVATION_REGISTER, 0, [0, 2])?;
        self.reserves(Who::Holder, io::RESERVATION_ACQUIRE, kind << 8, [1, 0])
    }

    fn protect(&mut self) -> Result<()> {
        let mut protect = command(admin::SET_FEATURES);
        protect.nsid = 1.into();
        (protect.cdw10, protect.cdw11) = (0x84.into(), 1.into());
        let answer = self.host.command(&mut self.admin, protect)?;
        assert_eq!(answer.status(), DONE);
        Ok(())
    }

    /// Replaces namespace 1, or adds it if there is none, and makes the access to its group optimized.
    fn replace(&mut self, world: &World, source: Source) -> Result<()> {
        world.target.with(|model| -> Result<()> {
            if model.namespace(&self.subsystem, 1).is_ok() {
                model.remove_namespace(&self.subsystem, 1)?;
                for removed in model.take_removed() {
                    removed.disk().give_up();
                }
            }
            let namespace = NamespaceConfig {
                nsid: Some(1),
                uuid: Uuid::from_u128(1),
                group: 1,
                hosts: None,
                disk: Disk::open(source, 9, false)?,
            };
            model.add_namespace(&self.subsystem, namespace)?;
            model.set_access(1, 1, Access::Optimized)?;
            Ok(())
        })
    }
}

/// Returns the opcode, dword 10 and the keys of a reservation command: the actor's own key, and for a preemption also
/// the holder's, or 0 if the type is one of All Registrants.
fn reservation(does: Does, way: Way) -> (u8, u32, [u8; 2]) {
    let (kind, who) = match way {
        Way::Reserved(kind, who) => (kind, who),
        Way::Nothing | Way::Protected | Way::Access(_) | Way::Gone | Way::Shorter => {
            (1, Who::Other)
        }
    };
    let own = who as u8 + 1;
    let theirs = if kind > 4 { 0 } else { 1 };
    match does {
        Does::Registers => (io::RESERVATION_REGISTER, 0, [0, own]),
        Does::Acquires => (io::RESERVATION_ACQUIRE, kind << 8, [own, 0]),
        Does::Preempts => (io::RESERVATION_ACQUIRE, kind << 8 | 1, [own, theirs]),
        Does::Reads
        | Does::Writes
        | Does::Flushes
        | Does::FlushesAll
        | Does::Pair
        | Does::Reports
        | Does::Releases => (io::RESERVATION_RELEASE, kind << 8, [own, 0]),
    }
}

/// Sends a command with its data; returns its status, or the statuses of both commands of a pair.
fn act(
    host: &mut Host,
    queue: &mut Queue,
    name: &str,
    way: Way,
    before: &[u8],
) -> Result<(Status, Status)> {
    // The host's memory has the disk's content at 0, and the new data at 8 KiB.
    let old = usize::try_from(AT * 512)?;
    host.memory.write_from(0, &before[old..old + 4096])?;
    host.memory.write_from(8192, &[0xee; 4096])?;
    let (old, new) = (host.data(0, 4096), host.data(8192, 4096));
    let none = Sgl::keyed(0, 0, 0, false);
    let list = host.data(16384, 32);
    let (sqe, data) = match name {
        "read" => (transfer(io::READ, AT, 8), host.data(32768, 4096)),
        "compare" => (transfer(io::COMPARE, AT, 8), old),
        "verify" => (transfer(io::VERIFY, AT, 8), none),
        "write" => (transfer(io::WRITE, AT, 8), new),
        "write in capsule" => {
            let mut sqe = transfer(io::WRITE, AT, 8);
            sqe.sgl = Sgl::in_capsule(4096);
            host.send(queue, sqe, &[0xee; 4096])?;
            return Ok((host.response(queue)?.status(), DONE));
        }
        "write zeroes" => (transfer(io::WRITE_ZEROES, AT, 8), none),
        "write zeroes, deallocate" => {
            let mut sqe = transfer(io::WRITE_ZEROES, AT, 8);
            sqe.cdw12 = (sqe.cdw12.get() | 1 << 25).into();
            (sqe, none)
        }
        "deallocate" => {
            host.memory.write_from(16384, &range(AT, 8))?;
            let mut sqe = command(io::DATASET_MANAGEMENT);
            (sqe.nsid, sqe.cdw11) = (1.into(), 4.into());
            (sqe, host.data(16384, 16))
        }
        "copy" => {
            host.memory.write_from(16384, &source(FROM, 8))?;
            (copy(1), list)
        }
        "flush" | "flush all" => {
            let mut sqe = command(io::FLUSH);
            sqe.nsid = if name == "flush" { 1 } else { u32::MAX }.into();
            (sqe, none)
        }
        "compare and write" => {
            let sent = pair(host, queue)?;
            return both(host, queue, sent);
        }
        "report" => {
            let mut sqe = command(io::RESERVATION_REPORT);
            sqe.nsid = 1.into();
            (sqe.cdw10, sqe.cdw11) = (15.into(), 1.into());
            (sqe, host.data(32768, 64))
        }
        _ => {
            let of = COMMANDS.iter().find(|(known, _)| *known == name);
            let does = of.context("a command")?.1;
            let (opcode, dword, keys) = reservation(does, way);
            return Ok((reserve(host, queue, opcode, dword, keys)?, DONE));
        }
    };
    Ok((host.status(queue, sqe, data)?, DONE))
}

fn copy(ranges: u32) -> Sqe {
    let mut sqe = command(io::COPY);
    (sqe.nsid, sqe.cdw10) = (1.into(), u32::try_from(AT).expect("32 bits").into());
    sqe.cdw12 = (ranges - 1).into();
    sqe
}

/// Sends a fused pair: block `AT` is compared with the beginning of the host's memory, and overwritten with the data at
/// 8 KiB.
fn pair(host: &mut Host, queue: &mut Queue) -> Result<[u16; 2]> {
    let (mut compare, mut write) = (transfer(io::COMPARE, AT, 1), transfer(io::WRITE, AT, 1));
    (compare.sgl, write.sgl) = (host.data(0, 512), host.data(8192, 512));
    compare.flags |= FUSE_FIRST;
    write.flags |= FUSE_SECOND;
    Ok([
        host.send(queue, compare, &[])?,
        host.send(queue, write, &[])?,
    ])
}

/// Returns the statuses of a pair, in the order in which it was sent.
fn both(host: &mut Host, queue: &mut Queue, sent: [u16; 2]) -> Result<(Status, Status)> {
    let said: [Cqe; 2] = [host.response(queue)?, host.response(queue)?];
    let [first, second] = sent.map(|cid| {
        let of = said.iter().find(|one| one.cid.get() == cid);
        of.expect("an answer of each").status()
    });
    Ok((first, second))
}

fn write_all(path: &Path, content: &[u8]) -> Result<()> {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    Ok(file.write_all_at(content, 0)?)
}

#[test]
fn each_command_is_kept_away_by_each_way_of_protection_and_changes_nothing_then() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("disk");
    let before = pattern(0x5a, usize::try_from(BYTES)?);
    write_all(&path, &before)?;
    let disk = || Source::File(path.clone());
    let mut world = World::new(2, disk(), 9)?;
    let mut hosts = Hosts::new(&mut world)?;
    let subsystem = hosts.subsystem.clone();
    for (name, does) in COMMANDS {
        for way in ways() {
            write_all(&path, &before)?;
            hosts.replace(&world, disk())?;
            let mut who = Who::Other;
            match way {
                Way::Nothing => {}
                Way::Protected => hosts.protect()?,
                Way::Reserved(kind, of) => {
                    hosts.hold(kind)?;
                    who = of;
                }
                Way::Access(state) => {
                    world.target.with(|model| model.set_access(1, 1, state))?;
                }
                Way::Gone => {
                    let gone = world
                        .target
                        .with(|model| model.remove_namespace(&subsystem, 1));
                    gone?;
                }
                Way::Shorter => {
                    File::options()
                        .write(true)
                        .open(&path)?
                        .set_len(SHORT * 512)?;
                    let resized = world.target.resize_namespace(&subsystem, 1);
                    assert_eq!(resized?, SHORT);
                }
            }
            let there = std::fs::read(&path)?;
            let (host, queue) = hosts.queue(who);
            let said = act(host, queue, name, way, &before)?;
            assert_eq!(said, expected(does, way), "{name}, {way:?}");
            let has_changed = std::fs::read(&path)? != there;
            let writes = matches!(does, Does::Writes | Does::Pair) && said == (DONE, DONE);
            assert_eq!(has_changed, writes, "{name}, {way:?}: what is on the disk");
        }
    }
    drop(hosts);
    world.stop()?;
    Ok(())
}

/// A change of a namespace while a command is between two of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Protected,
    Reserved,
    Access(Access),
    Gone,
    Another,
    Shorter,
}

impl Meanwhile {
    fn happens(self, hosts: &mut Hosts, world: &World, disk: &std::fs::File) -> Result<Status> {
        let subsystem = hosts.subsystem.clone();
        match self {
            Self::Protected => {
                hosts.protect()?;
                Ok(Status::WRITE_PROTECTED.dnr())
            }
            Self::Reserved => {
                hosts.hold(2)?;
                Ok(Status::RESERVATION.dnr())
            }
            Self::Access(state) => {
                world.target.with(|model| model.set_access(1, 1, state))?;
                Ok(match state {
                    Access::Inaccessible => Status::ANA_INACCESSIBLE,
                    Access::PersistentLoss => Status::ANA_LOSS,
                    Access::Optimized | Access::NonOptimized | Access::Change => Status::ANA_CHANGE,
                })
            }
            Self::Gone => {
                let gone = world
                    .target
                    .with(|model| model.remove_namespace(&subsystem, 1));
                gone?;
                Ok(Status::INVALID_NAMESPACE.dnr())
            }
            Self::Another => {
                hosts.replace(world, Source::Faulty(BYTES))?;
                Ok(Status::INVALID_NAMESPACE.dnr())
            }
            Self::Shorter => {
                disk.set_len(SHORT * 512)?;
                let resized = world.target.resize_namespace(&subsystem, 1);
                assert_eq!(resized?, SHORT);
                // The file gets its old length again, because its content is checked below.
                disk.set_len(BYTES)?;
                Ok(Status::LBA_RANGE.dnr())
            }
        }
    }
}

const MEANWHILE: [Meanwhile; 8] = [
    Meanwhile::Protected,
    Meanwhile::Reserved,
    Meanwhile::Access(Access::Inaccessible),
    Meanwhile::Access(Access::PersistentLoss),
    Meanwhile::Access(Access::Change),
    Meanwhile::Gone,
    Meanwhile::Another,
    Meanwhile::Shorter,
];

/// Delays the first disk operation of a command, makes a change meanwhile, and then lets the command continue. `of`:
/// kind of the delayed operation. Returns the command's statuses, the status that the change should cause, and the
/// contents of the disk and of its replacement.
fn between(
    hosts: &mut Hosts,
    world: &World,
    of: Of,
    meanwhile: Meanwhile,
    send: impl FnOnce(&mut Host, &mut Queue) -> Result<Vec<u16>>,
) -> Result<(Vec<Status>, Status, [Vec<u8>; 2])> {
    hosts.replace(world, Source::Faulty(BYTES))?;
    let before = pattern(0x5a, usize::try_from(BYTES)?);
    let namespace = world
        .target
        .with(|model| model.namespace(&hosts.subsystem, 1))?;
    let Handle::Faulty(file, faults) = namespace.disk().handle()? else {
        anyhow::bail!("a faulty disk");
    };
    file.as_std().write_all_at(&before, 0)?;
    faults.order(Some(Orders {
        of,
        delay: LONGEST_DELAY,
        times: Some(1),
        ..Orders::default()
    }));
    let (host, queue) = hosts.queue(Who::Other);
    let old = usize::try_from(AT * 512)?;
    host.memory.write_from(0, &before[old..old + 4096])?;
    host.memory.write_from(8192, &[0xee; 4096])?;
    let sent = send(host, queue)?;
    // The disk has executed the operation and delays only its completion: the worker's ring has completed later
    // operations.
    while faults.struck() == 0 {
        std::thread::yield_now();
    }
    let (host, queue) = hosts.queue(Who::Holder);
    for _ in 0..16 {
        assert_eq!(host.read(queue, 0, 1, 65536, 512)?, DONE);
    }
    let worth = meanwhile.happens(hosts, world, file.as_std())?;
    faults.order(None);
    let (host, queue) = hosts.queue(Who::Other);
    let mut said = Vec::new();
    for _ in &sent {
        said.push(host.response(queue)?);
    }
    let answers = sent.iter().map(|cid| {
        let of = said.iter().find(|one| one.cid.get() == *cid);
        of.expect("an answer of each").status()
    });
    let content = |file: &std::fs::File| -> Result<Vec<u8>> {
        let mut bytes = vec![0; before.len()];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    };
    let now = world
        .target
        .with(|model| model.namespace(&hosts.subsystem, 1));
    let other = match now.as_ref().map(|one| one.disk().handle()) {
        Ok(Ok(Handle::Faulty(file, _))) => content(file.as_std())?,
        _ => Vec::new(),
    };
    Ok((answers.collect(), worth, [content(file.as_std())?, other]))
}

#[test]
fn a_command_of_several_steps_begins_no_write_that_is_not_permitted_any_more() -> Result<()> {
    let mut world = World::new(1, Source::Faulty(BYTES), 9)?;
    let mut hosts = Hosts::new(&mut world)?;
    let before = pattern(0x5a, usize::try_from(BYTES)?);
    let none = vec![0; before.len()];
    let two_ranges = |host: &mut Host, queue: &mut Queue| {
        let list = [source(FROM, 8), source(FROM + 8, 8)].concat();
        host.memory.write_from(16384, &list)?;
        let mut sqe = copy(2);
        sqe.sgl = host.data(16384, 64);
        Ok(vec![host.send(queue, sqe, &[])?])
    };
    for meanwhile in MEANWHILE {
        // If the change comes in a Copy's first read, no block is written. If it comes in the first write, the second
        // range is not written.
        for (of, written) in [(Of::Reads, 0), (Of::Writes, 8 * 512)] {
            let (said, worth, [disk, other]) =
                between(&mut hosts, &world, of, meanwhile, two_ranges)?;
            assert_eq!(said, [worth], "a copy, {of:?}, {meanwhile:?}");
            let (to, from) = (usize::try_from(AT * 512)?, usize::from(FROM) * 512);
            let mut wanted = before.clone();
            wanted.copy_within(from..from + written, to);
            if meanwhile == Meanwhile::Shorter {
                wanted[usize::try_from(SHORT * 512)?..].fill(0);
            }
            assert!(
                disk == wanted,
                "a copy, {of:?}, {meanwhile:?}: what is there"
            );
            if meanwhile == Meanwhile::Another {
                assert!(other == none, "a copy went on to another namespace");
            }
        }
        // The change comes between the read and the write of a pair.
        let send = |host: &mut Host, queue: &mut Queue| Ok(pair(host, queue)?.to_vec());
        let (said, worth, [disk, other]) = between(&mut hosts, &world, Of::Reads, meanwhile, send)?;
        assert_eq!(said, [FAILED, worth], "a pair, {meanwhile:?}");
        let mut wanted = before.clone();
        if meanwhile == Meanwhile::Shorter {
            wanted[usize::try_from(SHORT * 512)?..].fill(0);
        }
        assert!(disk == wanted, "a pair, {meanwhile:?}: what is there");
        if meanwhile == Meanwhile::Another {
            assert!(other == none, "a pair went on to another namespace");
        }
        // Verify reads in pieces of 128 KiB. Write protection does not affect Verify.
        let send = |host: &mut Host, queue: &mut Queue| {
            Ok(vec![host.send(
                queue,
                transfer(io::VERIFY, AT, 1000),
                &[],
            )?])
        };
        let (said, worth, _) = between(&mut hosts, &world, Of::Reads, meanwhile, send)?;
        let worth = if meanwhile == Meanwhile::Protected {
            DONE
        } else {
            worth
        };
        assert_eq!(said, [worth], "verification, {meanwhile:?}");
    }
    drop(hosts);
    world.stop()?;
    Ok(())
}
