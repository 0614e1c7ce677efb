//! `cargo xtask sim --seed N`: replays one seed of the run over a faulty wire, and writes its event log.
//!
//! The run itself is the test in `udapl/tests/dat/lossy.rs`, so a seed that failed there fails here.

use std::path::PathBuf;

use anyhow::Result;

use crate::shell;

/// Which world.
#[derive(clap::Args)]
pub struct Arguments {
    /// The seed.
    #[arg(long)]
    seed: u64,
    /// Where to put the event log [default: target/sim-SEED.log].
    #[arg(long)]
    log: Option<PathBuf>,
}

/// Replays the seed and prints the path of the log.
pub fn run(arguments: &Arguments) -> Result<()> {
    let log = match &arguments.log {
        Some(path) => std::path::absolute(path)?,
        None => shell::target().join(format!("sim-{}.log", arguments.seed)),
    };
    // Builds the whole workspace. cargo builds shared crates with the features that the selected packages ask for, so
    // one package alone would need a build of its own.
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
