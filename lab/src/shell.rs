//! Runs other programs, always from the workspace root, with errors that name the command.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
pub use guest::program::{announce, capture, exists, run};

/// Returns the workspace root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("lab lies in the workspace")
        .to_path_buf()
}

/// Returns the directory of build products: `CARGO_TARGET_DIR`, or `target` in the workspace root.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Returns the directory of build products that cargo reports, which takes cargo's configuration files into account.
pub fn target_directory() -> Result<PathBuf> {
    let metadata = capture(cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let folder = metadata["target_directory"].as_str();
    Ok(folder
        .context("cargo metadata names no target_directory")?
        .into())
}

/// Returns a command that runs in the workspace root.
pub fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    command
}

/// Argument of cargo for a build that uses what the tests' build has compiled: optimised, unlike profile `dev`.
pub const TESTED: &str = "--profile=test";

/// Returns a command for the cargo that runs xtask.
pub fn cargo(arguments: &[&str]) -> Command {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    command(&program, arguments)
}
