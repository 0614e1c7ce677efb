//! Disks that answer late: other commands do not wait for them, and namespaces and connections can end meanwhile.

use anyhow::{Context, Result};
use nvmeof::disk::faults::{LONGEST_DELAY, Of, Orders};
use nvmeof::disk::{Disk, Source};
use nvmeof::model::NamespaceConfig;
use nvmeof::nvme::command::{admin, io};
use nvmeof::nvme::fabrics::property;
use nvmeof::nvme::{Sqe, Status};
use nvmeof::serve::WorkerConfig;
use udapl::CloseFlags;
use uuid::Uuid;

use crate::host::{Host, command, transfer};
use crate::world::World;

/// Returns orders that delay operations of this kind by [`LONGEST_DELAY`].
fn hang(of: Of) -> Option<Orders> {
    Some(Orders {
        of,
        delay: LONGEST_DELAY,
        ..Orders::default()
    })
}

fn read_of(host: &Host, nsid: u32, bytes: u32) -> Sqe {
    let mut sqe = transfer(io::READ, 0, bytes >> 9);
    sqe.nsid = nsid.into();
    sqe.sgl = host.data(0, bytes);
    sqe
}

#[test]
fn a_disk_that_hangs_holds_up_neither_another_disk_nor_other_commands_of_its_own() -> Result<()> {
    let mut world = World::new(1, Source::Faulty(1 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let second = NamespaceConfig {
        nsid: Some(2),
        uuid: Uuid::from_u128(2),
        group: 1,
        hosts: None,
        disk: Disk::open(Source::Memory(1 << 20), 9, false)?,
    };
    world
        .target
        .with(|model| model.add_namespace(&subsystem, second))?;
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 32)?;
    let faults = world.faults()?;
    faults.order(hang(Of::Writes));
    let mut write = transfer(io::WRITE, 0, 1);
    write.sgl = host.data(0, 512);
    let mut slow: Vec<u16> = Vec::new();
    for _ in 0..8 {
        slow.push(host.send(&mut queue, write, &[])?);
    }
    for round in 0..64 {
        let sqe = read_of(&host, 1 + round % 2, 4096 << (round % 3));
        let cid = host.send(&mut queue, sqe, &[])?;
        let answer = host.response(&mut queue)?;
        assert_eq!((answer.cid.get(), answer.status()), (cid, Status::SUCCESS));
    }
    assert_eq!(faults.struck(), 8);
    faults.order(None);
    for _ in 0..8 {
        let answer = host.response(&mut queue)?;
        assert_eq!(answer.status(), Status::SUCCESS);
        slow.retain(|cid| *cid != answer.cid.get());
    }
    assert!(slow.is_empty(), "{slow:?}");
    drop(host);
    world.stop()?;
    Ok(())
}

/// The checks that a command passed on arrival are repeated after it has waited.
#[test]
fn a_write_that_waited_while_its_namespace_was_protected_is_refused() -> Result<()> {
    let config = WorkerConfig {
        buffers: 2,
        ..WorkerConfig::default()
    };
    let mut world = World::with(1, Source::Faulty(1 << 20), 9, config)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (mut admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 16)?;
    let faults = world.faults()?;
    faults.order(hang(Of::Reads));
    // Both buffers are in use by delayed reads, so the write waits for one.
    let mut write = transfer(io::WRITE, 0, 256);
    write.sgl = host.data(0, 1 << 17);
    host.memory.write_from(0, &vec![0x55; 1 << 17])?;
    for sqe in [read_of(&host, 1, 1 << 17), read_of(&host, 1, 1 << 17)] {
        host.send(&mut queue, sqe, &[])?;
    }
    let waits = host.send(&mut queue, write, &[])?;
    // A later command of the queue has been answered, so the write has arrived.
    let mut flush = command(io::FLUSH);
    flush.nsid = 1.into();
    let flushed = host.send(&mut queue, flush, &[])?;
    assert_eq!(host.response(&mut queue)?.cid.get(), flushed);
    let mut protect = command(admin::SET_FEATURES);
    protect.nsid = 1.into();
    (protect.cdw10, protect.cdw11) = (0x84.into(), 1.into());
    assert_eq!(host.command(&mut admin, protect)?.status(), Status::SUCCESS);
    faults.order(None);
    for _ in 0..3 {
        let answer = host.response(&mut queue)?;
        let wanted = if answer.cid.get() == waits {
            Status::WRITE_PROTECTED.dnr()
        } else {
            Status::SUCCESS
        };
        assert_eq!(answer.status(), wanted, "{answer:?}");
    }
    drop(host);
    world.stop()?;
    Ok(())
}

#[test]
fn abort_reset_disconnection_and_removal_do_not_wait_for_a_disk_that_hangs() -> Result<()> {
    let mut world = World::new(1, Source::Faulty(1 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (mut admin, controller) = host.controller(&subsystem)?;
    let faults = world.faults()?;
    faults.order(hang(Of::All));
    // The commands of each of three connections use a buffer, a page, and two buffers.
    let mut compare = transfer(io::COMPARE, 0, 256);
    compare.sgl = host.data(0, 1 << 17);
    let hangs = [read_of(&host, 1, 1 << 17), read_of(&host, 1, 512), compare];
    let mut queues = Vec::new();
    for number in 1..=3 {
        let mut queue = host.io_queue(&subsystem, controller, number, 16)?;
        for sqe in hangs {
            host.send(&mut queue, sqe, &[])?;
        }
        queues.push(queue);
    }
    // Dword 10 of Abort has the command identifier and the queue. Bit 0 of the result is set if the command was not
    // aborted.
    let mut abort = command(admin::ABORT);
    abort.cdw10 = 1.into();
    let answer = host.command(&mut admin, abort)?;
    assert_eq!((answer.status(), answer.result.get()), (Status::SUCCESS, 1));
    // The host disconnects.
    let [first, second, third] = &queues[..] else {
        anyhow::bail!("three queues");
    };
    host.ia.ep_disconnect(first.ep, CloseFlags::Abrupt)?;
    host.expect_end(first)?;
    let mut again = host.io_queue(&subsystem, controller, 1, 16)?;
    // The namespace is removed, and another one takes its number.
    world
        .target
        .with(|model| model.remove_namespace(&subsystem, 1))?;
    assert_eq!(
        host.command(&mut again, read_of(&host, 1, 512))?.status(),
        Status::INVALID_NAMESPACE.dnr()
    );
    let next = NamespaceConfig {
        nsid: Some(1),
        uuid: Uuid::from_u128(2),
        group: 1,
        hosts: None,
        disk: Disk::open(Source::Memory(1 << 20), 9, false)?,
    };
    world
        .target
        .with(|model| model.add_namespace(&subsystem, next))?;
    assert_eq!(
        host.command(&mut again, read_of(&host, 1, 512))?.status(),
        Status::SUCCESS
    );
    // The host resets the controller.
    host.set(&mut admin, property::CC, 0x0046_0000)?;
    host.expect_end(second)?;
    host.expect_end(third)?;
    assert_eq!(host.get(&mut admin, property::CSTS)?, 0);
    host.set(&mut admin, property::CC, 0x0046_0001)?;
    let mut queue = host.io_queue(&subsystem, controller, 2, 16)?;
    assert_eq!(
        host.command(&mut queue, read_of(&host, 1, 1 << 17))?
            .status(),
        Status::SUCCESS
    );
    assert_eq!(faults.struck(), 9);
    // All delayed operations complete now; `stop` checks that all slots and buffers are free.
    faults.order(None);
    drop(host);
    world.stop()?;
    Ok(())
}

#[test]
fn a_worker_ends_in_time_although_a_disk_hangs_and_says_what_it_left() -> Result<()> {
    let mut world = World::new(1, Source::Faulty(1 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 16)?;
    world.faults()?.order(hang(Of::Reads));
    let hangs = read_of(&host, 1, 1 << 17);
    host.send(&mut queue, hangs, &[])?;
    // A later operation without delay has been answered, so the read is at the disk.
    assert_eq!(host.write(&mut queue, 0, 1, 0, 512)?, Status::SUCCESS);
    let over = world.end()?;
    let over = over.first().context("a worker")?;
    assert_eq!((over.ios_left, over.buffers_left), (1, 1), "{over:?}");
    Ok(())
}
