//! What an I/O costs in the target: a worker on a null disk, and the tests' host on the other end of a simulated wire.
//!
//! ```text
//! cargo xtask nvme bench
//! ```
//!
//! `io OPERATION BYTES DEPTH ROUNDS` has the host send `DEPTH` commands at once, `ROUNDS` times, and prints how many
//! I/Os and turns of the worker there were, and in how many of them nothing came. Under callgrind what is collected in
//! [`region_turn`] is the worker's; what the simulator does with its doorbells is taken off by who reads the profile
//! (functions named `tell`), and so are the turns in which nothing came, by what `io idle` costs.
#![forbid(unsafe_code)]

#[path = "../tests/target/host.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod host;
#[path = "../tests/target/world.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod world;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use nvmeof::disk::Source;
use nvmeof::nvme::command::io as opcode;
use nvmeof::serve::{Worker, WorkerConfig, WorkerError};

use host::transfer;
use world::World;

/// Bytes of the disk, and of a block.
const DISK: u64 = 1 << 30;
const SHIFT: u8 = 12;

/// What is counted.
#[inline(never)]
fn region_turn(worker: &mut Worker) -> Result<bool, WorkerError> {
    worker.turn()
}

#[derive(Default)]
struct Turns {
    over: AtomicBool,
    all: AtomicU64,
    idle: AtomicU64,
}

/// Turns until all is over.
fn serve(mut worker: Worker, turns: &Turns) -> Result<(), WorkerError> {
    while !turns.over.load(Ordering::Acquire) {
        let came = region_turn(&mut worker)?;
        turns.all.fetch_add(1, Ordering::Relaxed);
        turns.idle.fetch_add(u64::from(!came), Ordering::Relaxed);
        if !came {
            // Under callgrind one thread runs at a time.
            std::thread::yield_now();
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|one| !one.starts_with("--"))
        .collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (operation, bytes, depth, rounds) = match words[..] {
        // As `cargo bench` starts it.
        [] => ("read", 4096, 32, 100),
        ["idle"] => ("idle", 4096, 1, 0),
        [operation, bytes, depth, rounds] => {
            (operation, bytes.parse()?, depth.parse()?, rounds.parse()?)
        }
        _ => bail!("idle, or read or write, bytes, depth, rounds"),
    };
    let code = match operation {
        "read" | "idle" => opcode::READ,
        "write" => opcode::WRITE,
        other => bail!("{other}: read or write"),
    };
    let (mut world, workers) =
        World::unserved(1, Source::Null(DISK), SHIFT, WorkerConfig::default())?;
    let turns = Turns::default();
    std::thread::scope(|scope| {
        let served: Vec<_> = workers
            .into_iter()
            .map(|worker| scope.spawn(|| serve(worker, &turns)))
            .collect();
        let used = use_disk(&mut world, &turns, code, bytes, depth, rounds);
        turns.over.store(true, Ordering::Release);
        for worker in served {
            worker.join().expect("no panic").context("the worker")?;
        }
        used
    })
}

/// The host's part; what it comes to is printed.
fn use_disk(
    world: &mut World,
    turns: &Turns,
    code: u8,
    bytes: u32,
    depth: u16,
    rounds: u32,
) -> Result<()> {
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 64)?;
    let (all, idle) = (
        turns.all.load(Ordering::Relaxed),
        turns.idle.load(Ordering::Relaxed),
    );
    if rounds == 0 {
        while turns.all.load(Ordering::Relaxed) < all + 10_000 {
            std::hint::spin_loop();
        }
    }
    for _ in 0..rounds {
        for io in 0..depth {
            let mut sqe = transfer(code, u64::from(io) * 64, bytes >> SHIFT);
            sqe.sgl = host.data(0, bytes);
            host.send(&mut queue, sqe, &[])?;
        }
        for _ in 0..depth {
            let status = host.response(&mut queue)?.status();
            ensure!(status.is_success(), "{status}");
        }
    }
    let ios = u64::from(depth) * u64::from(rounds);
    println!(
        "{ios} I/Os, {} turns, {} of them idle; {all} turns, {idle} of them idle before",
        turns.all.load(Ordering::Relaxed) - all,
        turns.idle.load(Ordering::Relaxed) - idle
    );
    Ok(())
}
