//! `cargo xtask nvme bench`: the cost of an I/O in the NVMe target, in instructions.
//!
//! In `nvmeof/benches/io.rs` a host repeatedly sends a given number of commands at once to workers with a null disk.
//! Callgrind counts the instructions of the workers' iterations in two runs with different numbers of rounds, so that
//! the cost before the first command is subtracted. The calls that report register writes to the simulator, and
//! iterations without work, are subtracted, too. The result is the same in each run.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use comfy_table::Table;

use crate::{bench, setup, shell};

/// A row of the table.
struct Row {
    operation: &'static str,
    bytes: u32,
    /// Number of commands outstanding at each worker.
    at_once: u64,
    workers: u64,
    /// Number of rounds of the shorter run. The longer run has four times as many.
    rounds: u64,
    /// Upper bound on the instructions of an I/O; `None` for a row without a bound.
    bar: Option<u32>,
}

const fn row(operation: &'static str, bytes: u32, at_once: u64, workers: u64) -> Row {
    Row {
        operation,
        bytes,
        at_once,
        workers,
        // Large transfers get fewer rounds, since the simulator moves every byte.
        rounds: if bytes > 4096 { 2 } else { 10 },
        bar: None,
    }
}

impl Row {
    const fn bar(self, most: u32) -> Self {
        Self {
            bar: Some(most),
            ..self
        }
    }
}

/// Rows of the table. `inline` is a write whose data is in the capsule.
///
/// A bar is a few per cent above the figure, because a new compiler may choose other registers. The bar of 32 reads at
/// once is the aim that was set for them. It is 2 per cent above their figure.
const ROWS: [Row; 12] = [
    row("read", 4096, 1, 1).bar(2920),
    row("read", 4096, 32, 1).bar(1700),
    row("write", 4096, 1, 1),
    row("write", 4096, 32, 1).bar(2260),
    row("inline", 4096, 1, 1),
    row("inline", 4096, 32, 1).bar(1600),
    row("read", 131_072, 1, 1),
    row("read", 131_072, 32, 1),
    row("write", 131_072, 1, 1),
    row("write", 131_072, 32, 1),
    row("read", 4096, 32, 2),
    row("read", 4096, 32, 4),
];
/// Figures of one run under callgrind.
struct Counted {
    ios: u64,
    idle: u64,
    /// Instructions of the workers' iterations, without the calls that report register writes to the simulator.
    instructions: f64,
}

/// Counts the instructions of each row and prints the table.
pub fn bench() -> Result<()> {
    setup::run()?;
    let program = bench::build("io")?;
    let idle = count(&program, &["idle"])?;
    ensure!(idle.idle > 0, "no turn was idle");
    let cost_of_idle = idle.instructions / idle.idle as f64;
    let mut table = Table::new();
    table.set_header(["I/O", "bytes", "at once", "workers", "instructions"]);
    let mut over = Vec::new();
    for row in ROWS {
        let Row {
            operation,
            bytes,
            at_once,
            workers,
            rounds,
            bar,
        } = row;
        eprint!(
            "\rcounting {operation} of {bytes} bytes, {at_once} at once, {workers} workers    "
        );
        let run = |rounds: u64| {
            let numbers = [bytes.into(), at_once, rounds, workers].map(|one: u64| one.to_string());
            let [bytes, at_once, rounds, workers] = numbers;
            count(&program, &[operation, &bytes, &at_once, &rounds, &workers])
        };
        let (short, long) = (run(rounds)?, run(4 * rounds)?);
        let ios = (long.ios - short.ios) as f64;
        let idle = long.idle as f64 - short.idle as f64;
        let each = (long.instructions - short.instructions - idle * cost_of_idle) / ios;
        if let Some(bar) = bar
            && each > bar.into()
        {
            over.push(format!(
                "{operation} of {bytes} bytes, {at_once} at once: {each:.0} instructions, the bar is {bar}"
            ));
        }
        table.add_row([
            operation.to_owned(),
            bytes.to_string(),
            at_once.to_string(),
            workers.to_string(),
            format!("{each:.0}"),
        ]);
    }
    eprintln!("\r{:<60}", "");
    println!("{table}");
    println!(
        "An iteration in which nothing came costs {cost_of_idle:.0} instructions, and is taken off."
    );
    if !over.is_empty() {
        bail!("{}", over.join("\n"));
    }
    Ok(())
}

fn count(program: &Path, arguments: &[&str]) -> Result<Counted> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("profile");
    let mut command = shell::command(
        "valgrind",
        &["--quiet", "--tool=callgrind", "--collect-atstart=no"],
    );
    command
        .arg("--toggle-collect=*region_iteration*")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(arguments);
    let printed = shell::capture(command)?;
    let numbers = printed
        .split(|c: char| !c.is_ascii_digit())
        .filter(|word| !word.is_empty());
    let numbers: Vec<u64> = numbers.filter_map(|word| word.parse().ok()).collect();
    let [ios, _, idle, _, idle_before] = numbers[..] else {
        bail!("{printed:?} is no result");
    };
    let inclusive = bench::inclusive(&std::fs::read_to_string(&out)?);
    let of = |name: &str| {
        let all = inclusive
            .iter()
            .filter(|(function, _)| function.contains(name));
        all.map(|(_, cost)| *cost).max().unwrap_or(0)
    };
    let iterations = of("region_iteration");
    ensure!(iterations > 0, "callgrind saw no iteration");
    Ok(Counted {
        ios,
        idle: idle + idle_before,
        instructions: iterations
            .checked_sub(of(bench::LISTENER_CALL))
            .context("the reports of register writes cost more than all")?
            as f64,
    })
}
