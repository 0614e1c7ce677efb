//! Builds our programs for guests and for the host beside them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::image::Program;
use crate::shell;

/// Returns a command that builds tests without running them. Its packages and features equal those of the command that
/// runs all tests, so that nothing is built twice.
pub fn cargo_test() -> Command {
    shell::cargo(&["test", "--workspace", "--no-run"])
}

/// Builds datctl with the features of the tests, and returns its path.
pub fn datctl() -> Result<PathBuf> {
    let mut build = cargo_test();
    build.args(["--test", "vfio_user"]);
    shell::run(build)?;
    Ok(shell::target_directory()?.join("debug/datctl"))
}

/// Builds an example, and returns its name and path. `cargo test --example` would build only the tests in the example,
/// and would not update the program.
pub fn example(name: &str) -> Result<Program> {
    shell::run(shell::cargo(&[
        "build",
        shell::TESTED,
        "--workspace",
        "--example",
        name,
    ]))?;
    let path = shell::target_directory()?.join("debug/examples").join(name);
    Ok((name.to_owned(), path))
}

/// Builds the NVMe target with the features of the tests, and returns its path.
pub fn nvmeofd() -> Result<PathBuf> {
    let mut build = cargo_test();
    build.args(["--test", "target"]);
    shell::run(build)?;
    Ok(shell::target_directory()?.join("debug/nvmeofd"))
}
