//! Two hosts at one worker: no host gets a byte of the other one.
//!
//! Commands of host A leave A's secret in the page of every command slot (a place) of the worker. The worker uses its
//! places in turn, so that each of B's next commands gets a place with the secret, until all places have been used:
//! then A fills them again. Before each command of B that may use a buffer, commands of A leave the secret in every
//! buffer, too. Then all bytes that B has received, and all bytes of B's disks, are searched for the secret.

use std::fs::File;
use std::path::Path;

use anyhow::{Result, ensure};
use nix::errno::Errno;
use nvmeof::disk::faults::{Of, Orders};
use nvmeof::disk::{Disk, Source};
use nvmeof::model::{NamespaceConfig, QUEUES, SubsystemConfig};
use nvmeof::nvme::command::{admin, io};
use nvmeof::nvme::fabrics::kind;
use nvmeof::nvme::sgl::Sgl;
use nvmeof::nvme::{Cqe, Nqn, Sqe, Status};
use nvmeof::serve::WorkerConfig;
use uuid::Uuid;
use zerocopy::IntoBytes;

use crate::blocks::{range, source};
use crate::host::{Host, Queue, command, transfer};
use crate::world::World;

const SECRET: &[u8; 16] = b"host A's secret!";
/// Length of a byte sequence that counts as a part of the secret.
const PART: usize = 6;
const GUARD: u8 = 0xb5;
/// Offset of B's data in the host's memory, and the size of that area.
const AREA: usize = 1 << 19;
const ROOM: usize = 1 << 18;
/// Size of A's longest transfer in bytes. A's data begins at offset 0 of the host's memory.
const LONG: u32 = 1 << 17;
/// `ios` of the worker, and the number of its places (`src/serve/admission.rs`): twice as many, and those of guests.
const IOS: u32 = 96;
const PLACES: u32 = 2 * IOS + 256 * 4 + 256;
/// Number of commands that A sends at once.
const AT_ONCE: u32 = 8;
/// Number of commands after which A fills all places again: fewer than places, because some places may be in use.
const LAP: u32 = PLACES - 4 * AT_ONCE;

fn secret(bytes: usize) -> Vec<u8> {
    SECRET.iter().copied().cycle().take(bytes).collect()
}

/// Returns whether these bytes contain a part of the secret.
fn is_tainted(bytes: &[u8]) -> bool {
    const PIECE: usize = 256;
    let twice = secret(32);
    let parts: Vec<&[u8]> = twice.windows(PART).take(16).collect();
    // Most bytes do not occur in the secret, so this table skips nearly all comparisons.
    let mut begins = [false; 256];
    for byte in SECRET {
        begins[usize::from(*byte)] = true;
    }
    let is_part = |at: usize| {
        let one = bytes.get(at..at + PART);
        one.is_some_and(|one| begins[usize::from(one[0])] && parts.contains(&one))
    };
    // Most pieces consist of one repeated byte. If the secret does not have that byte, no part begins in such a piece.
    let pieces = (0..).step_by(PIECE).zip(bytes.chunks(PIECE));
    let mut pieces = pieces.filter(|(_, piece)| {
        begins[usize::from(piece[0])] || piece[1..] != piece[..piece.len() - 1]
    });
    pieces.any(|(at, piece)| (at..at + piece.len()).any(is_part))
}

/// Queues of both hosts, which are on one adapter.
struct Tenants {
    host: Host,
    a: Queue,
    admin: Queue,
    b: Queue,
    /// Number of commands since A has filled all places.
    used: u32,
}

impl Tenants {
    fn new(world: &mut World, theirs: &Nqn) -> Result<Self> {
        let mut host = world.host()?;
        let own = world.subsystem.clone();
        let (_admin, controller) = host.controller(&own)?;
        let a = host.io_queue(&own, controller, 1, 16)?;
        host.id = [0x22; 16];
        host.name = "nqn.2026-11.test:host-b".parse()?;
        let (admin, controller) = host.controller(theirs)?;
        let b = host.io_queue(theirs, controller, 1, 4)?;
        Ok(Self {
            host,
            a,
            admin,
            b,
            // No place has the secret yet.
            used: LAP,
        })
    }

    /// Counts commands that are about to be sent. Before the places of the last lap are used up, puts A's secret into
    /// the pages of all places by capsules of A.
    fn spend(&mut self, commands: u32) -> Result<()> {
        self.used += commands;
        if self.used <= LAP {
            return Ok(());
        }
        self.used = commands;
        let page = secret(4096);
        let mut sqe = transfer(io::WRITE, 0, 8);
        sqe.sgl = Sgl::in_capsule(4096);
        for _ in 0..PLACES.div_ceil(AT_ONCE) + 2 {
            for _ in 0..AT_ONCE {
                self.host.send(&mut self.a, sqe, &page)?;
            }
            for _ in 0..AT_ONCE {
                let status = self.host.response(&mut self.a)?.status();
                ensure!(status.is_success(), "{status}");
            }
        }
        Ok(())
    }

    /// Puts A's secret into both buffers by a comparison.
    fn taint(&mut self) -> Result<()> {
        self.spend(2)?;
        let data = self.host.data(0, LONG);
        for opcode in [io::WRITE, io::COMPARE] {
            let sqe = transfer(opcode, 0, LONG >> 9);
            let status = self.host.status(&mut self.a, sqe, data)?;
            ensure!(status.is_success(), "{status}");
        }
        self.host.memory.write_from(AREA, &vec![GUARD; ROOM])?;
        Ok(())
    }

    /// Sends a command of B with in-capsule data; returns the response, and checks that B has not received the secret.
    fn ask(&mut self, is_admin: bool, sqe: Sqe, data: &[u8]) -> Result<Cqe> {
        self.spend(1)?;
        let queue = if is_admin {
            &mut self.admin
        } else {
            &mut self.b
        };
        self.host.send(queue, sqe, data)?;
        let answer = self.host.response(queue)?;
        let there = self.host.memory.read(AREA, ROOM)?;
        let said = (is_tainted(&there), is_tainted(answer.as_bytes()));
        assert_eq!(said, (false, false), "{sqe:?} was answered {answer:?}");
        Ok(answer)
    }

    fn tainted(&mut self, is_admin: bool, sqe: Sqe, data: &[u8]) -> Result<Status> {
        self.taint()?;
        Ok(self.ask(is_admin, sqe, data)?.status())
    }

    /// Returns a command of B on blocks of one of its namespaces, whose data is in B's area.
    fn blocks(&self, nsid: u32, opcode: u8, first: u64, blocks: u32) -> Sqe {
        let mut sqe = transfer(opcode, first, blocks);
        sqe.nsid = nsid.into();
        sqe.sgl = self.host.data(AREA, blocks << 9);
        sqe
    }

    /// Sends a command of B whose data is a list in B's area.
    fn list(&mut self, nsid: u32, mut sqe: Sqe, list: &[u8]) -> Result<Status> {
        self.taint()?;
        sqe.nsid = nsid.into();
        self.host.memory.write_from(AREA, list)?;
        sqe.sgl = self.host.data(AREA, u32::try_from(list.len())?);
        Ok(self.ask(false, sqe, &[])?.status())
    }
}

/// Namespaces of B's subsystem: a null disk, a memory disk (2), a file, and a disk that fails on order.
const NULL: u32 = 1;
const FILE: u32 = 3;
const FAULTY: u32 = 4;

fn subsystem_of_b(world: &World, path: &Path) -> Result<Nqn> {
    const BYTES: u64 = 1 << 20;
    let name: Nqn = "nqn.2026-11.test:disks-of-b".parse()?;
    world.target.with(|model| -> Result<()> {
        model.add_subsystem(SubsystemConfig {
            name: name.clone(),
            serial: "2".to_owned(),
            model: "test".to_owned(),
            any_host: true,
            queues: QUEUES,
        })?;
        let sources = [
            Source::Null(BYTES),
            Source::Memory(BYTES),
            Source::File(path.to_owned()),
            Source::Faulty(BYTES),
        ];
        for (number, source) in (1..).zip(sources) {
            let namespace = NamespaceConfig {
                nsid: Some(number),
                uuid: Uuid::from_u128(16 + u128::from(number)),
                group: 1,
                hosts: None,
                disk: Disk::open(source, 9, false)?,
            };
            model.add_namespace(&name, namespace)?;
        }
        Ok(())
    })?;
    Ok(name)
}

#[test]
fn a_hosts_data_reaches_no_other_host_by_any_command_of_any_disk() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("disk");
    let file = File::create(&path)?;
    file.set_len(1 << 20)?;
    let config = WorkerConfig {
        ios: IOS,
        buffers: 2,
        ..WorkerConfig::default()
    };
    let mut world = World::with(1, Source::Memory(1 << 20), 9, config)?;
    let theirs = subsystem_of_b(&world, &path)?;
    let mut both = Tenants::new(&mut world, &theirs)?;
    both.host.memory.write_from(0, &secret(LONG as usize))?;
    let faults = world
        .target
        .with(|model| model.namespace(&theirs, FAULTY))?;
    let faults = faults.disk().faults().cloned().expect("a faulty disk");
    for nsid in NULL..=FAULTY {
        transfers(&mut both, nsid)?;
        // A command of each opcode, valid or not, with a descriptor of 4 KiB.
        both.taint()?;
        for opcode in 0..=u8::MAX {
            let mut sqe = both.blocks(nsid, opcode, 0, 8);
            if opcode == admin::FABRICS {
                sqe.nsid = 0x06.into();
            }
            both.ask(false, sqe, &[])?;
        }
    }
    // The disk fails its operations.
    for of in [Of::Reads, Of::Writes] {
        faults.order(Some(Orders {
            of,
            error: Some(Errno::EIO),
            ..Orders::default()
        }));
        transfers(&mut both, FAULTY)?;
    }
    faults.order(None);
    // The file is truncated, so that a read ends in the middle.
    file.set_len(100 * 512 + 100)?;
    transfers(&mut both, FILE)?;
    // The writes have extended the file, so it is truncated again.
    file.set_len(100 * 512 + 100)?;
    let status = both.list(FILE, copy(1000), &source(0, 255))?;
    assert_eq!(status, Status::LBA_RANGE.dnr(), "a copy");
    admin_commands(&mut both)?;
    assert!(!is_tainted(&std::fs::read(&path)?), "the file has it");
    drop(both);
    world.stop()?;
    Ok(())
}

fn copy(first: u32) -> Sqe {
    let mut sqe = command(io::COPY);
    sqe.cdw10 = first.into();
    sqe
}

/// Sends all commands on blocks of one of B's namespaces. Their statuses depend on the disk.
fn transfers(both: &mut Tenants, nsid: u32) -> Result<()> {
    for (first, blocks) in [(0, 1), (8, 8), (100, 9), (0, 256), (1900, 148)] {
        for opcode in [io::READ, io::COMPARE, io::WRITE, io::READ] {
            let sqe = both.blocks(nsid, opcode, first, blocks);
            let status = both.tainted(false, sqe, &[])?;
            if nsid == NULL && opcode == io::READ {
                assert_eq!(status, Status::SUCCESS);
                let said = both.host.memory.read(AREA, (blocks << 9) as usize)?;
                assert!(said.iter().all(|byte| *byte == 0), "no zeros at {first}");
            }
        }
        for opcode in [io::VERIFY, io::WRITE_ZEROES] {
            let mut sqe = both.blocks(nsid, opcode, first, blocks);
            sqe.sgl = Sgl::keyed(0, 0, 0, false);
            both.tainted(false, sqe, &[])?;
        }
    }
    // In-capsule data of the whole length, and of less than the command announces.
    let mut sqe = both.blocks(nsid, io::WRITE, 50, 2);
    sqe.sgl = Sgl::in_capsule(1024);
    for there in [1024, 512] {
        both.tainted(false, sqe, &vec![GUARD; there])?;
    }
    both.list(nsid, copy(600), &[source(0, 255), source(40, 1)].concat())?;
    let mut deallocate = command(io::DATASET_MANAGEMENT);
    deallocate.cdw11 = 4.into();
    both.list(nsid, deallocate, &range(300, 8))?;
    for (opcode, bytes) in [
        (io::RESERVATION_REGISTER, 16),
        (io::RESERVATION_RELEASE, 8),
        (io::RESERVATION_ACQUIRE, 16),
    ] {
        both.list(nsid, command(opcode), &vec![0; bytes])?;
    }
    for bytes in [64, 128, 4096, LONG] {
        let mut report = command(io::RESERVATION_REPORT);
        (report.nsid, report.sgl) = (nsid.into(), both.host.data(AREA, bytes));
        (report.cdw10, report.cdw11) = ((bytes / 4 - 1).into(), 1.into());
        both.tainted(false, report, &[])?;
    }
    for nsid in [nsid, u32::MAX] {
        let mut flush = command(io::FLUSH);
        flush.nsid = nsid.into();
        both.tainted(false, flush, &[])?;
    }
    // The whole content of the disk is read.
    for first in (0..2048).step_by(256) {
        let sqe = both.blocks(nsid, io::READ, first, 256);
        both.ask(false, sqe, &[])?;
    }
    Ok(())
}

/// Sends Identify, Get Log Page, features, fabrics commands, and all other opcodes of an admin queue.
fn admin_commands(both: &mut Tenants) -> Result<()> {
    for bytes in [4096, LONG] {
        let data = both.host.data(AREA, bytes);
        for number in 0..=0xff_u32 {
            let mut identify = command(admin::IDENTIFY);
            identify.cdw10 = number.into();
            let mut log = command(admin::GET_LOG_PAGE);
            log.cdw10 = (number | (bytes / 4 - 1) << 16).into();
            let mut feature = command(admin::GET_FEATURES);
            feature.cdw10 = number.into();
            for mut sqe in [identify, log, feature] {
                (sqe.nsid, sqe.sgl) = (1.into(), data);
                if number < 0x20 || number & 0x78 == 0x70 {
                    both.tainted(true, sqe, &[])?;
                } else {
                    both.ask(true, sqe, &[])?;
                }
            }
        }
        both.taint()?;
        for opcode in 0..=u8::MAX {
            // An event request would not be answered.
            if opcode == admin::ASYNC_EVENT {
                continue;
            }
            let mut sqe = command(opcode);
            (sqe.nsid, sqe.sgl) = (1.into(), data);
            if opcode == admin::FABRICS {
                sqe.nsid = u32::from(kind::AUTHENTICATION_RECEIVE).into();
                (sqe.cdw10, sqe.cdw11) = (0xe901_0100.into(), bytes.into());
            }
            both.ask(true, sqe, &[])?;
        }
    }
    Ok(())
}
