//! `cargo xtask campaign`: many worlds, and what they came to.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use campaign::{Coverage, Feature, Plan, run, shrink};
use clap::Parser;

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
    /// Steps of a world.
    #[arg(long, default_value_t = 400)]
    steps: u32,
    /// What may happen, instead of a random half: names with commas between them, or none.
    #[arg(long)]
    features: Option<String>,
    /// Where the event log of `--seed` goes.
    #[arg(long)]
    log: Option<PathBuf>,
    /// Where the packets of `--seed` go, as pcapng.
    #[arg(long)]
    pcap: Option<PathBuf>,
}

impl Arguments {
    fn plan(&self, seed: u64) -> anyhow::Result<Plan> {
        let mut plan = Plan::of(seed, self.steps);
        if let Some(names) = &self.features {
            plan.features = BTreeSet::new();
            for name in names.split(',').filter(|name| *name != "none") {
                let feature: Feature = name
                    .parse()
                    .map_err(|_| anyhow::anyhow!("--features: there is no {name:?}"))?;
                plan.features.insert(feature);
            }
        }
        Ok(plan)
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    // Panics are what worlds end by when something does not hold; the summary tells of them.
    std::panic::set_hook(Box::new(|_| {}));
    let seeds: Vec<u64> = match arguments.seed {
        Some(seed) => vec![seed],
        None => (arguments.first..arguments.first + arguments.seeds).collect(),
    };
    let started = Instant::now();
    let until = arguments
        .hours
        .map(|hours| started + Duration::from_secs_f64(hours * 3600.0));
    let (mut coverage, mut failures, mut ran) = (Coverage::default(), Vec::new(), 0_u64);
    for seed in seeds {
        if until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        let capture = arguments.pcap.as_ref().map(File::create).transpose()?;
        ran += 1;
        match run(&arguments.plan(seed)?, capture) {
            Ok(world) => {
                coverage.add(&world.coverage);
                if let Some(path) = &arguments.log {
                    std::fs::write(path, &world.log)?;
                }
            }
            Err(failure) => {
                let least = if arguments.seed.is_some() {
                    failure
                } else {
                    shrink(failure)
                };
                println!("{least}");
                failures.push(least);
            }
        }
    }
    println!("{}", coverage.table());
    println!(
        "{ran} worlds in {:.0?}, {} of them failed",
        started.elapsed(),
        failures.len()
    );
    Ok(if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
