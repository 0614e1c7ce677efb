//! Measures the cost of an I/O in the target. Workers serve a null disk; the tests' host is on the other end of a
//! simulated wire.
//!
//! ```text
//! cargo xtask nvme bench
//! ```
//!
//! Operations are `read`, `write`, and `inline`, a write whose data is in the capsule.
//!
//! `io OPERATION BYTES DEPTH ROUNDS WORKERS` makes the host send `DEPTH` commands at once to each of `WORKERS`
//! workers, on one queue each, `ROUNDS` times. It prints the number of I/Os, the number of loop iterations of the
//! workers, and how many of these were idle. One thread runs the host and the workers alternately, and time is
//! simulated, so that every run is the same.
//!
//! Under callgrind the cost collected in [`region_iteration`] is the workers' cost. The reader of the profile subtracts
//! the simulator's work for their doorbells (function `notify_listener`), and the idle iterations, whose cost `io idle`
//! measures.
#![forbid(unsafe_code)]

#[path = "../tests/target/host.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod host;
#[path = "../tests/target/world.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod world;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use nvmeof::disk::Source;
use nvmeof::nvme::command::io as opcode;
use nvmeof::nvme::sgl::Sgl;
use nvmeof::serve::{Worker, WorkerConfig, WorkerError};
use udapl::Adapter;
use udapl::adapter::IaConfig;
use udapl::fabric::Fabric;

use host::{Host, Meanwhile, transfer};
use world::{PORT, World};

/// Size of the disk in bytes, and block size as a power of two.
const DISK: u64 = 1 << 30;
const SHIFT: u8 = 12;
/// Simulated time between two loop iterations.
const STEP: Duration = Duration::from_micros(100);
/// Number of loop iterations of a run without I/O.
const IDLE: u32 = 10_000;

/// Runs one loop iteration of a worker: the region that callgrind measures.
#[inline(never)]
fn region_iteration(worker: &mut Worker) -> Result<bool, WorkerError> {
    worker.run_once()
}

/// Number of loop iterations of the workers, and number of those that were idle.
#[derive(Clone, Default)]
struct Iterations(Rc<Cell<(u64, u64)>>);

/// Returns a closure that runs one loop iteration of each worker, and advances the simulated time.
fn others(fabric: Fabric, mut workers: Vec<Worker>, iterations: Iterations) -> Meanwhile {
    Box::new(move || {
        for worker in &mut workers {
            let came = region_iteration(worker)?;
            let (all, idle) = iterations.0.get();
            iterations.0.set((all + 1, idle + u64::from(!came)));
        }
        fabric.sim.advance(STEP);
        Ok(())
    })
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|one| !one.starts_with("--"))
        .collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (operation, bytes, depth, rounds, workers) = match words[..] {
        // `cargo bench` passes no arguments.
        [] => ("read", 4096, 32, 100, 1),
        ["idle"] => ("idle", 4096, 1, 0, 1),
        [operation, bytes, depth, rounds, workers] => (
            operation,
            bytes.parse()?,
            depth.parse()?,
            rounds.parse()?,
            workers.parse()?,
        ),
        _ => bail!("idle, or read or write, bytes, depth, rounds, workers"),
    };
    let code = match operation {
        "read" | "idle" => opcode::READ,
        "write" | "inline" => opcode::WRITE,
        other => bail!("{other}: read, write or inline"),
    };
    let is_inline = operation == "inline";
    let fabric = Fabric::pair(1);
    let mut instances = vec![fabric.open(0)?];
    let adapter = Adapter::of(&instances[0]);
    while instances.len() < usize::from(workers) {
        instances.push(adapter.instance(IaConfig::default())?);
    }
    let mut host = fabric.open(1)?;
    let (folder, disk) = (tempfile::tempdir()?, Source::Null(DISK));
    let config = WorkerConfig::default();
    let (world, serving) = World::of(folder, instances, disk, SHIFT, config)?;
    let iterations = Iterations::default();
    host.progress();
    let mut host = Host::of(host, world.address, PORT)?;
    host.meanwhile = Some(others(fabric, serving, iterations.clone()));
    let load = Load {
        code,
        is_inline,
        bytes,
        depth,
        rounds,
        workers,
    };
    use_disk(&world, host, &iterations, &load)
}

/// The I/O that the host issues.
struct Load {
    code: u8,
    is_inline: bool,
    bytes: u32,
    depth: u16,
    rounds: u32,
    workers: u16,
}

/// Issues the I/O of the load from the host, and prints the results.
fn use_disk(world: &World, mut host: Host, iterations: &Iterations, load: &Load) -> Result<()> {
    let Load {
        bytes,
        depth,
        rounds,
        workers,
        ..
    } = *load;
    let data = if load.is_inline {
        vec![0; usize::try_from(bytes)?]
    } else {
        Vec::new()
    };
    let subsystem = world.subsystem.clone();
    let (_admin, controller) = host.controller(&subsystem)?;
    // There is one queue for each worker, because a new connection goes to the worker with the fewest connections.
    let mut queues = Vec::new();
    for number in 1..=workers {
        queues.push(host.io_queue(&subsystem, controller, number, 64)?);
    }
    if rounds == 0
        && let Some(meanwhile) = &mut host.meanwhile
    {
        for _ in 0..IDLE {
            meanwhile()?;
        }
    }
    let (all, idle) = iterations.0.get();
    for _ in 0..rounds {
        for queue in &mut queues {
            for io in 0..depth {
                let mut sqe = transfer(load.code, u64::from(io) * 64, bytes >> SHIFT);
                sqe.sgl = if load.is_inline {
                    Sgl::in_capsule(bytes)
                } else {
                    host.data(0, bytes)
                };
                host.send(queue, sqe, &data)?;
            }
        }
        for queue in &mut queues {
            for _ in 0..depth {
                let status = host.response(queue)?.status();
                ensure!(status.is_success(), "{status}");
            }
        }
    }
    let ios = u64::from(depth) * u64::from(rounds) * u64::from(workers);
    let (all_after, idle_after) = iterations.0.get();
    println!(
        "{ios} I/Os, {} iterations, {} of them idle; {all} iterations, {idle} of them idle before",
        all_after - all,
        idle_after - idle
    );
    Ok(())
}
