//! Builds our programs for guests and for the host beside them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

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

/// Builds test programs of `udapl`, `datctl` and `hw-nvme`, and returns them under the names test-PROGRAM.
pub fn test_programs(names: &[&str]) -> Result<Vec<Program>> {
    let mut build = cargo_test();
    build.args(["--message-format", "json-render-diagnostics"]);
    for name in names {
        build.args(["--test", name]);
    }
    let mut programs: Vec<Program> = Vec::new();
    for line in shell::capture(build)?.lines() {
        let message: serde_json::Value = serde_json::from_str(line).context("cargo's message")?;
        let (Some(path), Some(name)) = (
            message["executable"].as_str(),
            message["target"]["name"].as_str(),
        ) else {
            continue;
        };
        let source = Path::new(message["target"]["src_path"].as_str().unwrap_or_default());
        let suites = ["udapl/tests", "datctl/tests", "hw-nvme/tests"]
            .map(|folder| shell::root().join(folder));
        if suites.iter().any(|folder| source.starts_with(folder)) {
            programs.push((format!("test-{name}"), path.into()));
        }
    }
    for name in names {
        let name = format!("test-{name}");
        ensure!(
            programs.iter().any(|(program, _)| *program == name),
            "cargo test --no-run built no {name}"
        );
    }
    Ok(programs)
}

/// Builds the NVMe target with the features of the tests, and returns its path.
pub fn nvmeofd() -> Result<PathBuf> {
    let mut build = cargo_test();
    build.args(["--test", "target"]);
    shell::run(build)?;
    Ok(shell::target_directory()?.join("debug/nvmeofd"))
}
