//! The options of `simnic fabric`.

use std::fs;
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hw_sim::{Sim, SimConfig};

use super::plan::{Plan, Topology};
use crate::simulated::duration;
use crate::switch::SwitchOptions;

/// Options of `simnic fabric`.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Topology: incast:N (N functions send to one), pairs:N (each to one of its own), round:N (each to the next),
    /// ring:N (N switches in a circle).
    #[arg(long, default_value = "incast:4")]
    topology: Topology,
    /// Settings of the switches, a list like
    /// rate=25G,buffer=256K,ecn=5K/200K/1%,pfc,xoff=32K,xon=24K,headroom=64K,watchdog=1ms.
    #[arg(long, value_name = "SETTINGS", default_value = "rate=10G,buffer=256K")]
    switch: SwitchOptions,
    /// Duration of sending.
    #[arg(long, default_value = "10ms", value_parser = duration)]
    time: Duration,
    /// Delay of the begin of each flow after the previous one.
    #[arg(long, default_value = "0us", value_parser = duration)]
    stagger: Duration,
    /// Propagation delay of every cable.
    #[arg(long, default_value = "1us", value_parser = duration)]
    delay: Duration,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for a picture of queue depths and rates.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Record all input of the functions and switches in this file, for `simnic replay`.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Executes the plan that the options describe. Returns the table, and writes the picture to its file.
///
/// # Errors
/// `--time` is more than 10 s, the picture or the recording cannot be written, or an error of [`run`](super::run).
pub fn print(options: &Options) -> Result<String> {
    let config = options.switch.config();
    let plan = Plan {
        seed: options.seed,
        rate_bps: config.rate_bps,
        delay: options.delay,
        buffer: config.buffer,
        ecn: config.ecn,
        pfc: config.pfc,
        time: options.time,
        stagger: options.stagger,
        ..Plan::new(options.topology)
    };
    let most = Duration::from_secs(10);
    ensure!(
        plan.time <= most,
        "--time: {most:?} at most, which is long enough for any picture"
    );
    let sim = Sim::new(SimConfig {
        seed: plan.seed,
        event_log: false,
    });
    if let Some(path) = &options.record {
        let file = fs::File::create(path).with_context(|| path.display().to_string())?;
        sim.record(
            BufWriter::new(file),
            &format!("simnic fabric: {}", plan.words()),
        )?;
    }
    let outcome = super::run_in(&plan, sim.clone())?;
    if let Some(path) = &options.record {
        ensure!(
            sim.flush_record(),
            "{}: the recording has ended early",
            path.display()
        );
    }
    if let Some(path) = &options.svg {
        let drawn = super::draw(&plan, &outcome);
        fs::write(path, drawn).with_context(|| path.display().to_string())?;
    }
    Ok(format!("{}\n\n{}", plan.words(), outcome.table(&plan)))
}
