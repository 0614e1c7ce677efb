//! `cargo xtask campaign`: runs many simulations and reports their results.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use campaign::{
    Case, Failure, Feature, Many, Plan, Record, case, exhaustive, flood_table, many, run,
};
use clap::Parser;
use mlx_prm::Opcode;

/// Numbers of requests per turn of the floods: from a rate that the programs can handle to higher rates.
const FLOODS: [u32; 3] = [64, 256, 1024];

/// Run simulations of adapters, traffic and faults, one for each seed, and report those in which a check fails.
#[derive(Parser)]
#[command(name = "cargo xtask campaign")]
struct Arguments {
    /// Number of simulations, from seed `--first` on.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run one simulation only, with this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// End after this many hours, even if seeds are left.
    #[arg(long)]
    hours: Option<f64>,
    /// Number of threads; by default, the number of processors. The results do not depend on it.
    #[arg(long)]
    jobs: Option<usize>,
    /// Number of steps of a simulation.
    #[arg(long, default_value_t = 400)]
    steps: u32,
    /// Number of functions, an even number; by default, 2 to 8, depending on the seed.
    #[arg(long)]
    functions: Option<u16>,
    /// Features, instead of a random half: names separated by commas, or none.
    #[arg(long)]
    features: Option<String>,
    /// Features that are added to the random half in any case.
    #[arg(long)]
    with: Option<String>,
    /// Instead: flood one service point with 65,536 connection requests, and report the service that others get.
    #[arg(long)]
    flood: bool,
    /// Number of requests of `--flood`.
    #[arg(long, default_value_t = 65_536)]
    requests: u32,
    /// Instead: run every single fault at every command of a small simulation.
    #[arg(long)]
    exhaustive: bool,
    /// Run one case of `--exhaustive` only: side, command and harm, as `1:57:silent`.
    #[arg(long)]
    only: Option<String>,
    /// Also print how often each call was made in each state, and each command in each call.
    #[arg(long)]
    all: bool,
    /// File for the event log of `--seed`.
    #[arg(long)]
    log: Option<PathBuf>,
    /// File for the actions and events of `--seed`, if a check fails.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// File for the packets of `--seed`, as pcapng.
    #[arg(long)]
    pcap: Option<PathBuf>,
    /// Folder for the logs and packets of simulations in which a check fails.
    #[arg(long, default_value = "target/campaign")]
    out: PathBuf,
}

/// Parses names of features, separated by commas.
fn features(names: &str) -> anyhow::Result<BTreeSet<Feature>> {
    let parse = |name: &str| {
        name.parse()
            .map_err(|_| anyhow::anyhow!("there is no feature {name:?}"))
    };
    let names = names.split(',').filter(|name| *name != "none");
    names.map(parse).collect()
}

impl Arguments {
    /// Runs one simulation, and writes the requested records.
    fn one(&self, plan: &Plan) -> anyhow::Result<ExitCode> {
        let record = match &self.pcap {
            Some(path) => Record::Packets(
                File::create(path).with_context(|| format!("--pcap {}", path.display()))?,
            ),
            None => Record::Log,
        };
        let (log, failure, coverage) = match run(plan, record) {
            Ok(run) => (run.log, None, Some(run.coverage)),
            Err(failure) => (failure.log.clone(), Some(failure), None),
        };
        if let (Some(path), Some(failure)) = (&self.trace, &failure) {
            fs::write(path, &failure.trace)
                .with_context(|| format!("--trace {}", path.display()))?;
        }
        if let Some(path) = &self.log {
            fs::write(path, &log).with_context(|| format!("--log {}", path.display()))?;
        }
        if let Some(coverage) = coverage {
            println!("{}\n{}", coverage.calls_table(), coverage.table());
        }
        Ok(match failure {
            Some(failure) => {
                println!("{failure}");
                ExitCode::FAILURE
            }
            None => ExitCode::SUCCESS,
        })
    }
}

fn parse_case(text: &str) -> Option<Case> {
    let mut parts = text.split(':');
    let case = Case {
        side: parts.next()?.parse().ok().filter(|side| *side < 2)?,
        command: parts.next()?.parse().ok()?,
        harm: parts.next()?.parse().ok()?,
    };
    parts.next().is_none().then_some(case)
}

/// Runs every single fault at every command of a small simulation, or only the case `only`.
fn small(only: Option<&str>) -> anyhow::Result<ExitCode> {
    if let Some(text) = only {
        let one = parse_case(text).with_context(|| format!("--only {text}: no such case"))?;
        return Ok(match case(one) {
            Ok((met, whole)) => {
                let (call, opcode) = met;
                println!(
                    "harmed {:?} of {call}; the script went through: {whole}",
                    Opcode(opcode)
                );
                ExitCode::SUCCESS
            }
            Err(what) => {
                println!("{what}");
                ExitCode::FAILURE
            }
        });
    }
    let started = Instant::now();
    let sum = exhaustive(|done, all| {
        if done % 500 == 0 {
            eprintln!("{done} of {all} worlds");
        }
    });
    println!("How often the script went through with a command harmed:");
    println!("{}", sum.table());
    for (case, what) in &sum.failures {
        let Case {
            side,
            command,
            harm,
        } = case;
        println!(
            "{what}\n  again: cargo xtask campaign --exhaustive --only {side}:{command}:{harm}"
        );
    }
    println!(
        "{} worlds in {:.0?}, {} of them failed",
        sum.worlds,
        started.elapsed(),
        sum.failures.len()
    );
    Ok(if sum.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Repeats a failed simulation, and writes its event log, its trace and its packets.
fn keep(out: &Path, failure: &Failure) -> anyhow::Result<()> {
    fs::create_dir_all(out)?;
    let path = |what: &str| out.join(format!("{}.{what}", failure.plan.seed));
    let again = run(
        &failure.plan,
        Record::Packets(File::create(path("pcapng"))?),
    );
    let (log, trace) = match again {
        Ok(run) => (run.log, String::new()),
        Err(failure) => (failure.log, failure.trace),
    };
    fs::write(path("log"), log)?;
    fs::write(path("trace"), trace)?;
    fs::write(path("txt"), format!("{failure}\n"))?;
    Ok(())
}

fn summary(sum: &Many, all: bool, took: Duration) {
    println!("{}", sum.coverage.table());
    if all {
        println!("{}", sum.coverage.calls_table());
        println!("{}", sum.coverage.commands_table());
    }
    let zeros = sum.coverage.zeros();
    println!("What never happened ({} lines):", zeros.len());
    for line in zeros {
        println!("  {line}");
    }
    if let Some((turns, seed)) = sum.longest {
        println!(
            "Honest neighbours waited {turns} turns at most for an operation, in world {seed}."
        );
    }
    println!(
        "{} worlds in {took:.0?}, {:.1} each second, {} of them failed",
        sum.ran,
        sum.ran as f64 / took.as_secs_f64().max(0.001),
        sum.failures.len()
    );
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    // A failed check ends a simulation by a panic. The summary reports these panics, so they are not printed here.
    std::panic::set_hook(Box::new(|_| {}));
    if arguments.flood {
        println!("{}", flood_table(arguments.requests, &FLOODS));
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.exhaustive {
        return small(arguments.only.as_deref());
    }
    let only = arguments.features.as_deref().map(features).transpose()?;
    let with = features(arguments.with.as_deref().unwrap_or("none"))?;
    let plan = |seed| {
        let mut plan = Plan::of(seed, arguments.steps);
        if let Some(only) = &only {
            plan.features.clone_from(only);
        }
        plan.features.extend(&with);
        if let Some(functions) = arguments.functions {
            plan.functions = functions;
        }
        plan
    };
    if let Some(seed) = arguments.seed {
        return arguments.one(&plan(seed));
    }
    let seeds: Vec<u64> = (arguments.first..arguments.first + arguments.seeds).collect();
    let started = Instant::now();
    let until = arguments
        .hours
        .map(|hours| started + Duration::from_secs_f64(hours * 3600.0));
    let jobs = arguments
        .jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let mut told = 0;
    let sum = many(&seeds, jobs, until, plan, |sum, took| {
        for (_, failure) in sum.failures.iter().skip(told) {
            eprintln!("{failure}");
        }
        told = sum.failures.len();
        eprintln!(
            "{} of {} worlds, {} failed, {:.1} each second",
            sum.ran,
            seeds.len(),
            sum.failures.len(),
            sum.ran as f64 / took.as_secs_f64()
        );
    });
    for (_, failure) in &sum.failures {
        println!("{failure}");
        keep(&arguments.out, failure)
            .with_context(|| format!("--out {}", arguments.out.display()))?;
    }
    summary(&sum, arguments.all, started.elapsed());
    Ok(if sum.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
