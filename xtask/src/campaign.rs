//! `cargo xtask campaign`: seeded worlds of adapters, traffic and faults, and what must hold in them.
//!
//! The worlds are the crate `campaign`; what it takes is told by `cargo xtask campaign --help`.

use anyhow::Result;

use crate::shell;

/// Runs it with these arguments.
pub fn run(arguments: &[String]) -> Result<()> {
    let mut command = shell::cargo(&["run", "--package", "campaign", "--"]);
    command.args(arguments);
    shell::run(command)
}
