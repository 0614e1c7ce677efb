//! `cargo xtask nvme bench`: what an I/O costs in the NVMe target, in instructions.
//!
//! `nvmeof/benches/io.rs` has a host send so many commands at once, again and again, to a worker with a null disk. Its
//! turns are counted by callgrind, twice with another number of rounds, so that what comes before the first command is
//! taken off; so is what a simulator is told of registers, and turns in which nothing came.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use comfy_table::Table;

use crate::{bench, setup, shell};

/// What the table has: operation, bytes, commands at once.
const ROWS: [(&str, &str, u64); 6] = [
    ("read", "4096", 1),
    ("read", "4096", 32),
    ("write", "4096", 1),
    ("write", "4096", 32),
    ("read", "131072", 8),
    ("write", "131072", 8),
];
/// Rounds of the shorter run; the longer one has four times as many.
const ROUNDS: u64 = 50;

/// What a run printed and cost.
struct Counted {
    ios: u64,
    idle: u64,
    /// Instructions of the worker's turns, without what a simulator was told.
    instructions: f64,
}

/// Counts, and prints a table.
pub fn bench() -> Result<()> {
    setup::run()?;
    let program = bench::build("nvmeof", "io")?;
    let idle = count(&program, &["idle"])?;
    ensure!(idle.idle > 0, "no turn was idle");
    let cost_of_idle = idle.instructions / idle.idle as f64;
    let mut table = Table::new();
    table.set_header(["I/O", "bytes", "at once", "instructions", "idle turns"]);
    for (operation, bytes, depth) in ROWS {
        eprint!("\rcounting {operation} of {bytes} bytes, {depth} at once    ");
        let run = |rounds: u64| {
            let (depth, rounds) = (depth.to_string(), rounds.to_string());
            count(&program, &[operation, bytes, &depth, &rounds])
        };
        let (short, long) = (run(ROUNDS)?, run(4 * ROUNDS)?);
        let ios = (long.ios - short.ios) as f64;
        let idle = long.idle as f64 - short.idle as f64;
        let each = (long.instructions - short.instructions - idle * cost_of_idle) / ios;
        table.add_row([
            operation.to_owned(),
            bytes.to_owned(),
            depth.to_string(),
            format!("{each:.0}"),
            format!("{idle:.0}"),
        ]);
    }
    eprintln!("\r{:<60}", "");
    println!("{table}");
    println!(
        "A turn in which nothing came costs {cost_of_idle:.0} instructions, and is taken off."
    );
    Ok(())
}

fn count(program: &Path, arguments: &[&str]) -> Result<Counted> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("profile");
    let mut command = shell::command(
        "valgrind",
        &[
            "--quiet",
            "--tool=callgrind",
            "--fair-sched=yes",
            "--collect-atstart=no",
        ],
    );
    command
        .arg("--toggle-collect=*region_turn*")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(arguments);
    let printed = shell::capture(command)?;
    let numbers = printed
        .split(|c: char| !c.is_ascii_digit())
        .filter(|word| !word.is_empty());
    let numbers: Vec<u64> = numbers.filter_map(|word| word.parse().ok()).collect();
    let [ios, _, idle, _, idle_before] = numbers[..] else {
        anyhow::bail!("{printed:?} is no result");
    };
    let inclusive = bench::inclusive(&std::fs::read_to_string(&out)?);
    let of = |name: &str| {
        let all = inclusive
            .iter()
            .filter(|(function, _)| function.contains(name));
        all.map(|(_, cost)| *cost).max().unwrap_or(0)
    };
    let turns = of("region_turn");
    ensure!(turns > 0, "callgrind saw no turn");
    Ok(Counted {
        ios,
        idle: idle + idle_before,
        instructions: turns
            .checked_sub(of("::tell"))
            .context("more told than done")? as f64,
    })
}
