//! `cargo xtask bench`: the cost of an operation, in instructions and in nanoseconds.
//!
//! `udapl/benches/hotpath.rs` connects two simulated adapters, and runs each operation in a Rust function of its own,
//! named `region_*`. Callgrind counts instructions inside the functions `region_*` only, so set-up and simulator do not
//! count. With an in-process BAR, a register write includes a call that reports it to the simulator
//! ([`LISTENER_CALL`]). With a mapped BAR there is no such call, so its instructions are subtracted and shown
//! separately. Nanoseconds come from a separate native run, in which doorbells are not reported to the simulator.
//!
//! The benchmark fails if an operation exceeds its upper bound.
//!
//! The baseline runs in the same program: a bare loop that writes the same 64-byte WQE, doorbell record and doorbell
//! register with the same fences.

mod handover;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::Table;

use crate::{setup, shell};

/// What to measure.
#[derive(Args, Default)]
pub struct Arguments {
    /// Only native timing, no instruction counts (valgrind is not needed).
    #[arg(long)]
    no_count: bool,
    /// Write the figures as JSON to this file.
    #[arg(long)]
    json: Option<std::path::PathBuf>,
}

/// Upper bounds on instructions per operation that this project guarantees.
const BARS: [(&str, u64); 22] = [
    ("post_rdma_write", 88),
    ("post_rdma_write_any", 106),
    ("post_rdma_write_suppressed", 101),
    ("post_rdma_write_stale", 129),
    ("batch_rdma_write_32", 83),
    ("batch_recv_32", 57),
    ("srq_batch_recv_32", 77),
    ("poll_16", 59),
    ("post_rdma_write_triplet", 106),
    ("post_rdma_read", 89),
    ("post_send", 82),
    ("post_send_inline_64", 108),
    ("post_recv", 63),
    ("post_recv_triplet", 80),
    ("dequeue_one", 77),
    ("dequeue_empty", 44),
    ("evd_wait_ready", 143),
    ("c_dequeue_one", 106),
    ("c_dequeue_empty", 82),
    ("c_post_many_write_32", 137),
    ("c_post_many_recv_32", 110),
    ("c_dequeue_many_16", 66),
];

/// Number of instructions that a call through C may cost beyond the same call through Rust.
///
/// These instructions are for the call by pointer with its arguments and registers, the table of handles, the lane, and
/// the look-up of the IA in memory at each call. The rest of the path is the same as that of a Rust call.
const C_MORE: u64 = 50;

/// Operations through C, each with the Rust operation with which it is compared. Both post one bare triplet.
const THROUGH_C: [(&str, &str); 2] = [
    ("c_post_rdma_write", "post_rdma_write_triplet"),
    ("c_post_recv", "post_recv_triplet"),
];

/// Returns the upper bound on an operation, if it has one: a number, or for an operation through C the measured
/// instructions of the Rust operation (`net`) plus a margin.
fn bar(name: &str, net: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let fixed = BARS.iter().find(|(operation, _)| *operation == name);
    let through_c = THROUGH_C.iter().find(|(operation, _)| *operation == name);
    match (fixed, through_c) {
        (Some((_, bar)), _) => Some(*bar as f64),
        (None, Some((_, rust))) => Some(net(rust)? + C_MORE as f64),
        (None, None) => None,
    }
}

/// Instructions per operation of one region. `told` is the part of them inside [`LISTENER_CALL`].
#[derive(Clone, Copy, Default)]
struct Cost {
    instructions: f64,
    told: f64,
}

/// Builds the benchmark, counts instructions, measures times and prints the table.
pub fn run(arguments: &Arguments) -> Result<()> {
    let program = build("hotpath")?;
    let times = native(&program)?;
    let counts = if arguments.no_count {
        BTreeMap::new()
    } else if shell::exists("valgrind") {
        count(&program, &times)?
    } else {
        setup::run()?;
        println!("bench: valgrind is not installed: instructions are not counted");
        BTreeMap::new()
    };
    let mut table = Table::new();
    table.set_header([
        "operation",
        "instructions",
        "of that told",
        "net",
        "x bare loop",
        "bar",
        "ns",
    ]);
    let net = |name: &str| counts.get(name).map(|cost| cost.instructions - cost.told);
    let mut over = Vec::new();
    let mut json = Vec::new();
    for (name, (nanoseconds, _)) in &times {
        let bare = if name.contains("dequeue") || name.contains("poll") {
            "bare_poll"
        } else {
            "bare_post"
        };
        let bar = bar(name, net);
        let instructions = net(name);
        if let (Some(bar), Some(instructions)) = (bar, instructions)
            && instructions > bar
        {
            over.push(format!(
                "{name}: {instructions:.1} instructions, the bar is {bar:.1}"
            ));
        }
        let cost = counts.get(name).copied().unwrap_or_default();
        let show =
            |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.1}"));
        table.add_row([
            name.clone(),
            show(counts.get(name).map(|cost| cost.instructions)),
            show(counts.get(name).map(|cost| cost.told)),
            show(instructions),
            show(instructions.zip(net(bare)).map(|(own, bare)| own / bare)),
            show(bar),
            format!("{nanoseconds:.1}"),
        ]);
        json.push(serde_json::json!({
            "operation": name,
            "instructions": hundredths(cost.instructions),
            "told": hundredths(cost.told),
            "ns": hundredths(*nanoseconds),
        }));
    }
    println!("{table}");
    println!(
        "net: without the call that tells an in-process simulator of a register write; a mapped BAR has none.\n\
         Through C an operation may cost {C_MORE} instructions more than through Rust, the same triplets and flags.\n\
         For the size of it (callgrind, -O3): rdma-core's libmlx5 needs 253 instructions for ibv_post_send of an\n\
         RDMA Write, 113 for ibv_post_recv, 174 for ibv_poll_cq of one; DAPL above it 423 and about 419."
    );
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_string_pretty(&json)? + "\n")?;
    }
    if !counts.is_empty() {
        match handover::run() {
            Ok(more) => over.extend(more),
            Err(error) => over.push(format!("the bench of a handover: {error:#}")),
        }
    }
    ensure!(over.is_empty(), "over the bar:\n{}", over.join("\n"));
    Ok(())
}

/// Rounds a figure to hundredths, the precision of the table.
fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Builds a benchmark and returns its path.
pub fn build(name: &str) -> Result<std::path::PathBuf> {
    let output = shell::capture(shell::cargo(&[
        "bench",
        "--workspace",
        "--bench",
        name,
        "--no-run",
        "--message-format=json",
    ]))?;
    let mut program = None;
    for line in output.lines() {
        let message: serde_json::Value = serde_json::from_str(line).context("cargo's message")?;
        if message["target"]["name"] == name
            && let Some(path) = message["executable"].as_str()
        {
            program = Some(path.into());
        }
    }
    program.with_context(|| format!("cargo bench named no executable for {name}"))
}

/// Runs the benchmark natively. Each line of its output is `name nanoseconds operations`.
fn native(program: &Path) -> Result<BTreeMap<String, (f64, u64)>> {
    let mut command = shell::command(&program.to_string_lossy(), &[]);
    command.args(["time"]);
    parse_lines(&shell::capture(command)?)
}

fn parse_lines(text: &str) -> Result<BTreeMap<String, (f64, u64)>> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [name, value, operations] = words[..] {
            found.insert(name.to_owned(), (value.parse()?, operations.parse()?));
        }
    }
    ensure!(!found.is_empty(), "the benchmark printed no figures");
    Ok(found)
}

/// Runs each operation alone under callgrind, so that the instructions inside [`LISTENER_CALL`] belong to that
/// operation.
fn count(
    program: &Path,
    operations: &BTreeMap<String, (f64, u64)>,
) -> Result<BTreeMap<String, Cost>> {
    let mut costs = BTreeMap::new();
    for name in operations.keys() {
        eprint!("\rcounting {name:<40}");
        let (printed, inclusive) = counted(program, name, &["count", name])?;
        let (_, done) = printed
            .get(name)
            .context("the counted run did not name its operation")?;
        let total = of_function(&inclusive, &format!("region_{name}"));
        let told = of_function(&inclusive, LISTENER_CALL);
        ensure!(total > 0, "callgrind saw nothing of region_{name}");
        // A send rings the doorbell register.
        ensure!(
            told > 0 || name != "post_send",
            "callgrind saw no `{LISTENER_CALL}` in region_{name}"
        );
        costs.insert(
            name.clone(),
            Cost {
                instructions: total as f64 / *done as f64,
                told: told as f64 / *done as f64,
            },
        );
    }
    eprintln!("\r{:<60}", "");
    Ok(costs)
}

/// Names and figures that a benchmark prints.
type Printed = BTreeMap<String, (f64, u64)>;

/// Runs a benchmark under callgrind, which counts inside `region_NAME` only. Returns what the benchmark prints, and the
/// inclusive cost of each function.
fn counted(
    program: &Path,
    name: &str,
    arguments: &[&str],
) -> Result<(Printed, BTreeMap<String, u64>)> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("out");
    let mut command = shell::command(
        "valgrind",
        &["--quiet", "--tool=callgrind", "--collect-atstart=no"],
    );
    command
        .arg(format!("--toggle-collect=*region_{name}"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(arguments);
    let printed = parse_lines(&shell::capture(command)?)?;
    Ok((printed, inclusive(&std::fs::read_to_string(&out)?)))
}

/// Returns the cost of the first function whose name contains `name`; 0 if there is none.
fn of_function(inclusive: &BTreeMap<String, u64>, name: &str) -> u64 {
    let mut all = inclusive.iter();
    let found = all.find(|(function, _)| function.contains(name));
    found.map_or(0, |(_, cost)| *cost)
}

/// End of the name of the function that passes a register write to an in-process simulator (`driver/src/bar.rs`).
pub const LISTENER_CALL: &str = "::notify_listener";

/// Returns the inclusive cost of each function in a callgrind profile: its own lines plus the calls that it makes. (In
/// callgrind's format, the line after `calls=` has the inclusive cost of the calls.)
pub fn inclusive(profile: &str) -> BTreeMap<String, u64> {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut costs: BTreeMap<String, u64> = BTreeMap::new();
    let mut current = String::new();
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            current = resolve(&mut names, name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            resolve(&mut names, name);
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first))
            && let Some(cost) = line.split_whitespace().nth(1)
            && let Ok(cost) = cost.parse::<u64>()
        {
            *costs.entry(current.clone()).or_default() += cost;
        }
    }
    costs
}

/// Resolves a name in callgrind's format, which is `(12) name` at its first use and `(12)` afterwards.
fn resolve(names: &mut BTreeMap<String, String>, text: &str) -> String {
    match text.split_once(' ') {
        Some((id, name)) => {
            names.insert(id.to_owned(), name.to_owned());
            name.to_owned()
        }
        None => names.get(text).cloned().unwrap_or_else(|| text.to_owned()),
    }
}
