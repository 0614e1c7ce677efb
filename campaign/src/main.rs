//! `cargo xtask campaign`: many worlds, and what they came to.
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

/// Requests of a flood in each turn of the programs: as many as they can take, and more.
const FLOODS: [u32; 3] = [64, 256, 1024];

/// Run seeded worlds of adapters, traffic and faults, and say in which of them something does not hold.
#[derive(Parser)]
#[command(name = "cargo xtask campaign")]
struct Arguments {
    /// Worlds to run, from seed `--first` on.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// One world only.
    #[arg(long)]
    seed: Option<u64>,
    /// End after so many hours, whatever is left.
    #[arg(long)]
    hours: Option<f64>,
    /// Threads; as many as there are processors, if not given. What comes out is the same.
    #[arg(long)]
    jobs: Option<usize>,
    /// Steps of a world.
    #[arg(long, default_value_t = 400)]
    steps: u32,
    /// Functions, instead of 2 to 8 of them: an even number.
    #[arg(long)]
    functions: Option<u16>,
    /// What may happen, instead of a random half: names with commas between them, or none.
    #[arg(long)]
    features: Option<String>,
    /// What may happen in any case besides the random half.
    #[arg(long)]
    with: Option<String>,
    /// Instead: 65,536 requests to connect at one service point, and what is left for others.
    #[arg(long)]
    flood: bool,
    /// Of `--flood` so many requests.
    #[arg(long, default_value_t = 65_536)]
    requests: u32,
    /// Instead: every single fault at every command of a small world.
    #[arg(long)]
    exhaustive: bool,
    /// Of `--exhaustive` one case: side, command and harm, as `1:57:silent`.
    #[arg(long)]
    only: Option<String>,
    /// Tell each call in each state and each command of each call, and not only what never happened.
    #[arg(long)]
    all: bool,
    /// Where the event log of `--seed` goes.
    #[arg(long)]
    log: Option<PathBuf>,
    /// Where goes what was done and heard in `--seed`, when something does not hold.
    #[arg(long)]
    story: Option<PathBuf>,
    /// Where the packets of `--seed` go, as pcapng.
    #[arg(long)]
    pcap: Option<PathBuf>,
    /// Where the logs and packets of worlds go in which something does not hold.
    #[arg(long, default_value = "target/campaign")]
    out: PathBuf,
}

/// Features by their names.
fn features(names: &str) -> anyhow::Result<BTreeSet<Feature>> {
    let parse = |name: &str| {
        name.parse()
            .map_err(|_| anyhow::anyhow!("there is no feature {name:?}"))
    };
    let names = names.split(',').filter(|name| *name != "none");
    names.map(parse).collect()
}

impl Arguments {
    /// Runs one world, and keeps the requested records.
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
        if let (Some(path), Some(failure)) = (&self.story, &failure) {
            fs::write(path, &failure.story)
                .with_context(|| format!("--story {}", path.display()))?;
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

/// Runs every single fault at every command.
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

/// Repeats a failed world, and writes its event log and its packets.
fn keep(out: &Path, failure: &Failure) -> anyhow::Result<()> {
    fs::create_dir_all(out)?;
    let path = |what: &str| out.join(format!("{}.{what}", failure.plan.seed));
    let again = run(
        &failure.plan,
        Record::Packets(File::create(path("pcapng"))?),
    );
    let (log, story) = match again {
        Ok(run) => (run.log, String::new()),
        Err(failure) => (failure.log, failure.story),
    };
    fs::write(path("log"), log)?;
    fs::write(path("story"), story)?;
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
    // A world ends by panic when a check fails; the summary reports these panics.
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
