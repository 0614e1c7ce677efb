//! `cargo xtask miri`: the ring and table code, interpreted by Miri.
//!
//! Miri sees what a test cannot: an access outside an allocation, a read of memory nobody wrote, a pointer used after
//! what it pointed to. It has no files to map and no io_uring, so what runs here are the unit tests that need neither;
//! and it is some hundred times slower, so the tests that try things at random stay out.

use anyhow::{Result, bail};

use crate::shell;

/// A crate, and what the names of its unit tests contain that run.
const RUNS: [(&str, &[&str]); 3] = [
    (
        "driver",
        &[
            "cyclic::",
            "dma_ring::",
            "memory::tests::objects",
            "memory::tests::words",
        ],
    ),
    (
        "dat-core",
        &["slots::", "lmr::table", "evd::", "srq::state", "cm::wire"],
    ),
    (
        "hw-mlx",
        &["cq::", "wqe::", "completion::", "event::", "mkey::"],
    ),
];

/// A crate, and unit tests that use a unit from several threads at a time.
// The table of handles is too large for it.
const THREADS: [(&str, &[&str]); 1] = [(
    "udapl",
    &["capi::hand_overs::turns", "capi::hand_overs::upcalls"],
)];

/// What interprets; Miri is a part of nightly toolchains only.
const TOOLCHAIN: &str = "+nightly";

/// Runs the tests under Miri.
pub fn run() -> Result<()> {
    // Copies are made of atomic words and bytes of the same memory, which Miri's model of old values does not take (it
    // ends itself).
    interpret(&RUNS, "-Zmiri-disable-weak-memory-emulation")?;
    threads()
}

/// Those with several threads, in several orders.
pub fn threads() -> Result<()> {
    interpret(&THREADS, "-Zmiri-many-seeds=0..16")?;
    println!("Miri: 16 orders of each");
    Ok(())
}

fn interpret(runs: &[(&str, &[&str])], flags: &str) -> Result<()> {
    let mut version = shell::command("cargo", &[TOOLCHAIN, "miri", "--version"]);
    // Set by the cargo that runs us, it would decide instead of the argument.
    version.env_remove("RUSTUP_TOOLCHAIN");
    let Ok(version) = shell::capture(version) else {
        bail!("Miri is not here: rustup component add miri rust-src --toolchain nightly");
    };
    println!("miri: {}", version.trim());
    for (package, modules) in runs {
        let mut arguments = vec![TOOLCHAIN, "miri", "test", "--package", package, "--lib"];
        arguments.extend(["--", "--skip", "random"]);
        arguments.extend(*modules);
        let mut command = shell::command("cargo", &arguments);
        command
            .env_remove("RUSTUP_TOOLCHAIN")
            // The clock and the environment are the host's.
            .env("MIRIFLAGS", format!("-Zmiri-disable-isolation {flags}"))
            .env("CARGO_TARGET_DIR", shell::target().join("miri"));
        shell::run(command)?;
    }
    Ok(())
}
