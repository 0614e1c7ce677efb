//! `cargo xtask sim --seed N`: one seed of the run over a faulty wire, and what happened in it.
//!
//! The run itself is the test in `udapl/tests/dat/lossy.rs`, so that a seed that failed there fails here.

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

/// Replays and says where the log is.
pub fn run(arguments: &Arguments) -> Result<()> {
    let log = match &arguments.log {
        Some(path) => std::path::absolute(path)?,
        None => shell::target().join(format!("sim-{}.log", arguments.seed)),
    };
    // The whole workspace, for cargo builds what crates share with the features that the selected packages ask for: of
    // one package alone it would be built anew.
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
