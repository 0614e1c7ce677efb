//! `cargo xtask sim --seed N`: repeats the run over a faulty wire with one seed, and writes its event log.
//!
//! The run is the test in `udapl/tests/dat/lossy.rs`, so a seed that failed in that test fails here, too.

use std::path::PathBuf;

use anyhow::Result;

use crate::shell;

/// Options of `cargo xtask sim`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Seed of the run.
    #[arg(long)]
    seed: u64,
    /// Path of the event log [default: target/sim-SEED.log].
    #[arg(long)]
    log: Option<PathBuf>,
}

/// Runs the test with the seed and prints the path of the log.
pub fn run(arguments: &Arguments) -> Result<()> {
    let log = match &arguments.log {
        Some(path) => std::path::absolute(path)?,
        None => shell::target().join(format!("sim-{}.log", arguments.seed)),
    };
    // cargo builds shared crates with the features that the selected packages request, so a build of one package alone
    // would compile them again. This command therefore selects the whole workspace.
    let mut command = shell::cargo(&[
        "test",
        "--workspace",
        "--test",
        "dat",
        "--",
        "lossy::dtos_complete_once",
        "--nocapture",
    ]);
    command
        .env("SIM_SEED", arguments.seed.to_string())
        .env("SIM_LOG", &log);
    shell::run(command)?;
    let text = std::fs::read(&log)?;
    let lines = text.split(|&byte| byte == b'\n').count();
    println!(
        "seed {}: {lines} events in {}",
        arguments.seed,
        log.display()
    );
    Ok(())
}
