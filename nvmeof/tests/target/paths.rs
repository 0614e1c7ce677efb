//! Two functions as two paths to one namespace: failover of a host with multipath.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use nvmeof::disk::Source;
use nvmeof::nvme::Status;
use nvmeof::nvme::command::{admin, io};
use nvmeof::nvme::log::{Access, page};
use nvmeof::serve::{Worker, WorkerConfig, WorkerError};

use crate::host::{Host, Queue, command, transfer};
use crate::world::World;

const BLOCKS: u16 = 256;
const AT_ONCE: usize = 8;

/// Returns the ANA state of group 1 on a path. The page's first descriptor is at byte 16, and the state at byte 16 of
/// the descriptor.
fn access(host: &mut Host, admin: &mut Queue) -> Result<u8> {
    let (status, said) = host.log(admin, page::ACCESS, 56)?;
    ensure!(status.is_success(), "{status}");
    Ok(said[32] & 0xf)
}

fn stamp(block: u16) -> [u8; 512] {
    let mut bytes = [0x5a; 512];
    bytes[..2].copy_from_slice(&block.to_be_bytes());
    bytes
}

/// Sends a write of a block, with data from the block's own part of the host's memory.
fn write(host: &mut Host, queue: &mut Queue, block: u16) -> Result<u16> {
    let at = usize::from(block) * 512;
    host.memory.write_from(at, &stamp(block))?;
    let mut sqe = transfer(io::WRITE, block.into(), 1);
    sqe.sgl = host.data(at, 512);
    host.send(queue, sqe, &[])
}

/// Runs a worker until it must stop. The worker then ends its connections, or, if `is_sudden`, is dropped without
/// ending them.
fn serve(mut worker: Worker, goes: &AtomicBool, is_sudden: bool) -> Result<(), WorkerError> {
    if !is_sudden {
        return worker.run().map(|_| ());
    }
    while !goes.load(Ordering::Acquire) {
        worker.run_once()?;
    }
    Ok(())
}

fn go_on_over_the_second_path(is_sudden: bool) -> Result<()> {
    let disk = Source::Memory(1 << 20);
    let (mut world, workers) = World::unserved(1, disk, 9, WorkerConfig::default())?;
    let (target, goes) = (world.target.clone(), Arc::new(AtomicBool::new(false)));
    let first = workers.into_iter().map(|worker| {
        let (id, goes) = (worker.id(), Arc::clone(&goes));
        (
            id,
            std::thread::spawn(move || serve(worker, &goes, is_sudden)),
        )
    });
    let first: Vec<_> = first.collect();
    let subsystem = world.subsystem.clone();
    let mut near = world.host()?;
    let mut far = world.second_path()?;
    target.with(|model| model.set_access(2, 1, Access::NonOptimized))?;
    let (mut near_admin, near_id) = near.controller(&subsystem)?;
    let (mut far_admin, far_id) = far.controller(&subsystem)?;
    assert_ne!(near_id, far_id);
    let mut near_queue = near.io_queue(&subsystem, near_id, 1, 32)?;
    let mut far_queue = far.io_queue(&subsystem, far_id, 1, 32)?;
    assert_eq!(access(&mut near, &mut near_admin)?, 1, "optimized");
    assert_eq!(access(&mut far, &mut far_admin)?, 2, "not optimized");
    let mut listen = command(admin::SET_FEATURES);
    (listen.cdw10, listen.cdw11) = (0x0b.into(), 0x800.into());
    assert_eq!(
        far.command(&mut far_admin, listen)?.status(),
        Status::SUCCESS
    );
    far.send(&mut far_admin, command(admin::ASYNC_EVENT), &[])?;

    // Blocks whose writes are in flight on the path in use, by command identifier.
    let (mut under_way, mut next, mut is_near) = (BTreeMap::new(), 0, true);
    let acknowledged = AtomicUsize::new(0);
    while acknowledged.load(Ordering::Relaxed) < usize::from(BLOCKS) {
        let (host, queue) = if is_near {
            (&mut near, &mut near_queue)
        } else {
            (&mut far, &mut far_queue)
        };
        let mut is_open = true;
        while is_open && next < BLOCKS && under_way.len() < AT_ONCE {
            match write(host, queue, next) {
                Ok(cid) => {
                    under_way.insert(cid, next);
                    next += 1;
                }
                Err(error) => {
                    ensure!(is_near, "{error}");
                    is_open = false;
                }
            }
        }
        match host.response(queue) {
            Ok(answer) => {
                ensure!(answer.status().is_success(), "{}", answer.status());
                under_way.remove(&answer.cid.get());
                let before = acknowledged.fetch_add(1, Ordering::Relaxed);
                if before == 64 {
                    goes.store(true, Ordering::Release);
                    if !is_sudden {
                        first.iter().for_each(|(id, _)| target.stop_worker(*id));
                    }
                }
            }
            // The path has failed: blocks without acknowledgement are written again on the second path.
            Err(error) => {
                ensure!(is_near, "{error}");
                is_near = false;
                let again: Vec<u16> = core::mem::take(&mut under_way).into_values().collect();
                for block in again {
                    under_way.insert(write(&mut far, &mut far_queue, block)?, block);
                }
            }
        }
    }
    assert!(!is_near, "the first path is gone");
    for (_, thread) in first {
        thread.join().expect("no panic")?;
    }
    // The controller of the first path has ended. The second path becomes optimized.
    assert_eq!(target.with(|model| model.controllers().count()), 1);
    target.with(|model| model.set_access(2, 1, Access::Optimized))?;
    assert_eq!(far.response(&mut far_admin)?.result.get(), 0x000c_0302);
    assert_eq!(access(&mut far, &mut far_admin)?, 1);
    for block in 0..BLOCKS {
        let status = far.read(&mut far_queue, block.into(), 1, 1 << 19, 512)?;
        assert_eq!(status, Status::SUCCESS);
        assert_eq!(far.memory.read(1 << 19, 512)?, stamp(block), "{block}");
    }
    drop((near, far));
    world.stop()?;
    Ok(())
}

#[test]
fn writes_go_on_over_the_second_function_when_the_first_is_taken_away() -> Result<()> {
    go_on_over_the_second_path(false)
}

#[test]
fn writes_go_on_over_the_second_function_when_the_first_is_gone_without_a_word() -> Result<()> {
    go_on_over_the_second_path(true)
}
