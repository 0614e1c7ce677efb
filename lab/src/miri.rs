//! `cargo xtask miri`: runs unit tests of rings and tables under Miri.
//!
//! Miri detects errors that a test cannot: an access outside an allocation, a read of uninitialised memory, a pointer
//! used after its target was freed. Miri cannot map files and has no io_uring, so only unit tests that need neither run
//! here. It is several hundred times slower, so tests with random input are left out.

use anyhow::{Result, bail};

use crate::shell;

/// Crates, each with the name parts that select its unit tests.
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

/// Crates, each with the unit tests that use one object from several threads at a time.
// The test of the table of handles is left out, because the table is too large for Miri.
const THREADS: [(&str, &[&str]); 1] = [(
    "udapl",
    &["capi::hand_overs::locks", "capi::hand_overs::upcalls"],
)];

/// Toolchain that has Miri, which is only in nightly toolchains.
const TOOLCHAIN: &str = "+nightly";

/// Runs the tests under Miri.
pub fn run() -> Result<()> {
    // The tests copy memory both as atomic words and as bytes. Miri's emulation of weak memory does not support such
    // mixed accesses and aborts.
    interpret(&RUNS, "-Zmiri-disable-weak-memory-emulation")?;
    threads()
}

/// Runs the tests with several threads in several schedules.
pub fn threads() -> Result<()> {
    interpret(&THREADS, "-Zmiri-many-seeds=0..16")?;
    println!("Miri: 16 orders of each");
    Ok(())
}

fn interpret(runs: &[(&str, &[&str])], flags: &str) -> Result<()> {
    let mut version = shell::command("cargo", &[TOOLCHAIN, "miri", "--version"]);
    // The cargo that runs xtask sets this variable, which would override the toolchain argument.
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
            // The tests use the clock and the environment of the host.
            .env("MIRIFLAGS", format!("-Zmiri-disable-isolation {flags}"))
            .env("CARGO_TARGET_DIR", shell::target().join("miri"));
        shell::run(command)?;
    }
    Ok(())
}
