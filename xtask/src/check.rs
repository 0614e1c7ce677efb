//! `test` and `check`: what a person runs before a commit, and all that CI runs.

use anyhow::Result;

use crate::{conformance, demo, dtest, setup, shell, tidy, vm, wire};

/// Every test of the workspace, then the witnesses on the wire.
pub fn test(filter: Option<&str>) -> Result<()> {
    setup::run()?;
    let mut arguments = vec!["test", "--workspace", "--no-fail-fast"];
    arguments.extend(filter);
    let mut command = shell::cargo(&arguments);
    // Without git (a source archive), the fixed seeds have to do.
    if let Ok(commit) = shell::capture(shell::command("git", &["rev-parse", "HEAD"])) {
        command.env("SIM_COMMIT", commit.trim());
    }
    shell::run(command)?;
    if filter.is_some() {
        return Ok(());
    }
    conformance::check_complete()?;
    let capture = shell::target().join("demo.pcapng");
    demo::run(&demo::Arguments::small(&capture)?)?;
    wire::run(&capture)
}

/// Format, lints, documentation, house rules, tests, and the same through a kernel in a virtual machine.
pub fn run() -> Result<()> {
    shell::run(shell::cargo(&["fmt", "--all", "--check"]))?;
    tidy::run()?;
    shell::run(shell::cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ]))?;
    let mut doc = shell::cargo(&["doc", "--workspace", "--no-deps", "--quiet"]);
    doc.env("RUSTDOCFLAGS", "--deny warnings");
    shell::run(doc)?;
    test(None)?;
    dtest::check()?;
    vm::check()
}
