//! `cargo xtask demo`: the main job, which is the example `demo` of crate `udapl`.
//!
//! What it takes is told by `cargo xtask demo --help`.

use std::path::Path;

use anyhow::Result;

use crate::shell;

/// Runs it where the caller is, so that file names mean the caller's files.
pub fn run(arguments: &[String]) -> Result<()> {
    // Of the whole workspace, so that a test run afterwards, or before, has the same build in common.
    shell::run(shell::cargo(&["build", "--workspace", "--example", "demo"]))?;
    let program = shell::target_directory()?.join("debug/examples/demo");
    let mut command = shell::command(&program.to_string_lossy(), &[]);
    command
        .args(arguments)
        .current_dir(std::env::current_dir()?);
    shell::run(command)
}

/// A short run over a small file of the repository, for the checks on its capture.
pub fn small(capture: &Path) -> Result<()> {
    let file = shell::root().join("Cargo.lock");
    let [file, capture] = [&file, capture].map(|path| path.to_string_lossy().into_owned());
    run(&[file, "--chunk=10000".into(), format!("--pcap={capture}")])
}
