//! The start and the end of connections, with and without errors.

use anyhow::{Context, Result, ensure};
use nvmeof::disk::Source;
use nvmeof::model::Controller;
use nvmeof::nvme::command::{admin, io};
use nvmeof::nvme::fabrics::property;
use nvmeof::nvme::rdma::RequestData;
use nvmeof::nvme::sgl::Sgl;
use nvmeof::nvme::{Status, command::ALL_NAMESPACES};
use nvmeof::serve::WorkerConfig;
use udapl::CloseFlags;
use zerocopy::IntoBytes;

use crate::host::{command, transfer};
use crate::world::World;

#[test]
fn a_connection_that_cannot_be_a_queue_is_rejected_with_the_reason() -> Result<()> {
    let mut world = World::new(1, Source::Null(1 << 20), 9)?;
    let mut host = world.host()?;
    // Status by record format, queue, HRQSIZE and HSQSIZE (RDMA transport, figure 11).
    for (format, queue, receives, sends, status) in [
        (1, 0, 32, 31, 2),
        (0, 129, 32, 31, 3),
        (0, 0, 33, 32, 4),
        (0, 1, 129, 128, 4),
        (0, 1, 1, 0, 4),
        (0, 0, 0, 31, 5),
    ] {
        let mut data = RequestData::new(queue, 2, 0);
        data.format = format.into();
        data.host_receives = receives.into();
        data.host_sends = sends.into();
        let said = host.dial(data.as_bytes(), 32, queue)?.err();
        assert_eq!(said, Some(Some(status)), "{data:?}");
    }
    // The connection manager pads private data with zeros, so private data that is too short has 0 as HRQSIZE.
    assert_eq!(host.dial(&[0; 4], 32, 0)?.err(), Some(Some(5)));
    drop(host);
    world.stop()?;
    Ok(())
}

#[test]
fn a_controller_has_128_queues_and_their_longest_holds_128() -> Result<()> {
    let mut world = World::new(2, Source::Memory(1 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut queues = Vec::new();
    for number in 1..=128 {
        let entries = if number == 128 { 128 } else { 2 };
        queues.push(host.io_queue(&subsystem, controller, number, entries)?);
    }
    for queue in &mut queues {
        assert_eq!(
            host.read(queue, u64::from(queue.number), 1, 0, 512)?,
            Status::SUCCESS
        );
    }
    let mut twice = host.queue(128, 16)?;
    let refused = host.connect(&mut twice, &subsystem, controller)?;
    assert_eq!(refused.status(), Status::SEQUENCE.dnr());
    drop(host);
    let over = world.stop()?;
    assert_eq!(over.iter().map(|one| one.connections).sum::<u64>(), 130);
    assert!(over.iter().all(|one| one.connections >= 64), "{over:?}");
    Ok(())
}

#[test]
fn a_host_whose_keep_alive_stops_loses_all_its_connections() -> Result<()> {
    let mut world = World::new(2, Source::Null(1 << 20), 9)?;
    let mut host = world.host()?;
    // Longer than the connects below, also on a busy machine.
    host.keep_alive_ms = 5000;
    let subsystem = world.subsystem.clone();
    let (admin, controller) = host.controller(&subsystem)?;
    let queue = host.io_queue(&subsystem, controller, 1, 16)?;
    host.expect_end(&admin)?;
    host.expect_end(&queue)?;
    assert_eq!(world.target.with(|model| model.controllers().count()), 0);
    drop(host);
    world.stop()?;
    Ok(())
}

/// Reads and writes keep a controller alive without Keep Alive or any other command on the admin queue (Traffic Based
/// Keep Alive).
#[test]
fn reads_and_writes_alone_keep_a_controller_alive() -> Result<()> {
    /// Upper limit for the number of reads between two reports of a worker.
    const MANY: u32 = 10_000_000;
    let mut world = World::new(2, Source::Null(1 << 20), 9)?;
    let mut host = world.host()?;
    host.keep_alive_ms = 120_000;
    let subsystem = world.subsystem.clone();
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 16)?;
    let heard = || {
        let target = &world.target;
        target.with(|model| model.controller(controller).map(Controller::heard))
    };
    // Connect on the I/O queue counts as traffic in the first round. After it there are only reads.
    for _ in 0..2 {
        let before = heard();
        let mut reads = 0;
        while heard() == before {
            assert_eq!(host.read(&mut queue, 0, 1, 0, 512)?, Status::SUCCESS);
            reads += 1;
            ensure!(reads < MANY, "nothing was heard of {reads} reads");
        }
        assert!(heard() > before);
    }
    drop(host);
    world.stop()?;
    Ok(())
}

#[test]
fn a_reset_ends_io_queues_and_not_the_admin_queue() -> Result<()> {
    let mut world = World::new(1, Source::Null(1 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (mut admin, controller) = host.controller(&subsystem)?;
    let queue = host.io_queue(&subsystem, controller, 1, 16)?;
    let waits = host.send(&mut admin, command(admin::ASYNC_EVENT), &[])?;
    let mut off = command(admin::FABRICS);
    (off.cdw11, off.cdw12) = (property::CC.into(), 0x0046_0000.into());
    host.send(&mut admin, off, &[])?;
    let answers = [host.response(&mut admin)?, host.response(&mut admin)?];
    let aborted = answers
        .iter()
        .find(|one| one.cid.get() == waits)
        .context("the event request")?;
    assert_eq!(aborted.status(), Status::ABORTED);
    host.expect_end(&queue)?;
    assert_eq!(host.get(&mut admin, property::CSTS)?, 0);
    host.set(&mut admin, property::CC, 0x0046_0001)?;
    host.io_queue(&subsystem, controller, 1, 16)?;
    drop(host);
    world.stop()?;
    Ok(())
}

/// If commands need more buffers than there are, all of them end. A connection that breaks meanwhile leaves no buffer
/// in use. Each comparison needs two buffers, and there are three.
#[test]
fn more_ios_than_buffers_all_end_and_a_connection_that_breaks_under_them_leaves_none() -> Result<()>
{
    let config = WorkerConfig {
        ios: 100,
        buffers: 3,
        ..WorkerConfig::default()
    };
    let mut world = World::with(1, Source::Memory(1 << 20), 9, config)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (_admin, controller) = host.controller(&subsystem)?;
    for round in 1..=4_u16 {
        let mut queue = host.io_queue(&subsystem, controller, round, 33)?;
        host.memory.write_from(0, &vec![0; 1 << 17])?;
        for at in 0..32_u64 {
            let opcode = if at % 3 == 0 { io::READ } else { io::COMPARE };
            let mut sqe = transfer(opcode, at * 8, 256);
            sqe.sgl = host.data(0, 1 << 17);
            host.send(&mut queue, sqe, &[])?;
        }
        let answers = if round % 2 == 0 { 5 } else { 32 };
        for _ in 0..answers {
            assert_eq!(host.response(&mut queue)?.status(), Status::SUCCESS);
        }
        host.ia.ep_disconnect(queue.ep, CloseFlags::Abrupt)?;
        host.expect_end(&queue)?;
    }
    let mut flush = command(io::FLUSH);
    flush.nsid = ALL_NAMESPACES.into();
    let mut queue = host.io_queue(&subsystem, controller, 9, 16)?;
    assert_eq!(
        host.status(&mut queue, flush, Sgl::keyed(0, 0, 0, false))?,
        Status::SUCCESS
    );
    drop(host);
    world.stop()?;
    Ok(())
}

#[test]
fn a_capsule_without_a_command_or_more_commands_than_entries_end_the_controller() -> Result<()> {
    let mut world = World::new(1, Source::Null(1 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (admin, controller) = host.controller(&subsystem)?;
    let queue = host.io_queue(&subsystem, controller, 1, 16)?;
    let short = host.part(0, 63)?;
    host.ia.ep_post_send(
        queue.ep,
        &[short],
        udapl::DtoCookie(1),
        udapl::CompletionFlags::empty(),
    )?;
    host.expect_end(&queue)?;
    host.expect_end(&admin)?;
    // A queue of two entries with two outstanding event requests ends if it gets more commands.
    let mut admin = host.queue(0, 2)?;
    let connected = host.connect(&mut admin, &subsystem, 0xffff)?;
    ensure!(connected.status().is_success(), "{}", connected.status());
    host.set(&mut admin, property::CC, 0x0046_0001)?;
    for _ in 0..2 {
        host.send(&mut admin, command(admin::ASYNC_EVENT), &[])?;
    }
    let capsule = host.part(host.capsule_at(1), 64)?;
    for cookie in 0..3 {
        let sent = host.ia.ep_post_send(
            admin.ep,
            &[capsule],
            udapl::DtoCookie(cookie),
            udapl::CompletionFlags::empty(),
        );
        if sent.is_err() {
            break;
        }
    }
    host.expect_end(&admin)?;
    drop(host);
    world.stop()?;
    Ok(())
}
