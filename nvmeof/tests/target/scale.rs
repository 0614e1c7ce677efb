//! Many hosts at once, and the resources that they leave behind.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nvmeof::disk::Source;
use nvmeof::nvme::Status;
use nvmeof::nvme::command::{admin, io};
use nvmeof::serve::WorkerConfig;

use crate::host::{command, transfer};
use crate::world::World;

/// Number of concurrent controllers, and of I/O queues of each.
const CONTROLLERS: u16 = 128;
const QUEUES: u16 = 8;
const PATIENCE: Duration = Duration::from_secs(300);

#[test]
fn as_many_controllers_with_eight_queues_each_are_served_and_nothing_is_left_of_them() -> Result<()>
{
    // Each of two workers needs about half of 128 x (32 + 8 x 2) entries, 3072. The other 128 are a reserve, because
    // the connections are distributed by their number and not by their entries.
    let config = WorkerConfig {
        ios: 3200,
        ..WorkerConfig::default()
    };
    let mut world = World::with(2, Source::Memory(16 << 20), 9, config)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let mut admins = Vec::new();
    let mut queues = Vec::new();
    for number in 0..CONTROLLERS {
        // Each host is listed by name, so that it counts as a party of its own.
        host.name = format!("nqn.2026-11.test:host{number}").parse()?;
        host.id[..2].copy_from_slice(&number.to_be_bytes());
        let name = host.name.clone();
        world
            .target
            .with(|model| model.allow_host(&subsystem, name))?;
        let (admin, controller) = host.controller(&subsystem)?;
        for number in 1..=QUEUES {
            queues.push(host.io_queue(&subsystem, controller, number, 2)?);
        }
        admins.push(admin);
    }
    let there = world.target.with(|model| {
        let queues = model.controllers().map(|one| one.queues().count());
        (model.controllers().count(), queues.sum::<usize>())
    });
    assert_eq!(there, (128, 1024));
    // Each queue sends one command at the same time. Some commands need a buffer.
    for (number, queue) in (0_u64..).zip(&mut queues) {
        let bytes = if number % 4 == 0 { 8192 } else { 512 };
        let mut sqe = transfer(io::READ, number % 1024, bytes >> 9);
        sqe.sgl = host.data(0, bytes);
        host.send(queue, sqe, &[])?;
    }
    for queue in &mut queues {
        assert_eq!(host.response(queue)?.status(), Status::SUCCESS);
    }
    // From here on the hosts send nothing, and their keep-alive times expire.
    for admin in &mut admins {
        let mut keep_alive = command(admin::SET_FEATURES);
        (keep_alive.cdw10, keep_alive.cdw11) = (0x0f.into(), 1000.into());
        assert_eq!(host.command(admin, keep_alive)?.status(), Status::SUCCESS);
    }
    drop(host);
    let until = Instant::now() + PATIENCE;
    let left = || {
        let controllers = world.target.with(|model| model.controllers().count());
        let done = world.target.done();
        (
            controllers,
            done.values().map(|one| one.queues).sum::<u64>(),
        )
    };
    while left() != (0, 0) {
        ensure!(
            Instant::now() < until,
            "controllers and connections left: {:?}",
            left()
        );
        std::thread::yield_now();
    }
    let over = world.stop()?;
    assert_eq!(over.iter().map(|one| one.connections).sum::<u64>(), 128 * 9);
    Ok(())
}
