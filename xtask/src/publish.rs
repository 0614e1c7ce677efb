//! `cargo xtask publish-check`: whether crates.io would take a release, and whom the release would break.
//!
//! Every crate that is published is packed as cargo packs it; `--build` builds each from its package alone, which takes
//! minutes. What tools there are then look further: the oldest compiler that `rust-version` promises, if rustup has it,
//! and cargo-semver-checks, which compares the interface of `udapl` with that of the last release.

use anyhow::{Context, Result, ensure};

use crate::{left_out, shell};

/// How much.
#[derive(clap::Args)]
pub struct Arguments {
    /// Build each crate from its package alone.
    #[arg(long)]
    build: bool,
    /// Also with changes that are not committed.
    #[arg(long)]
    allow_dirty: bool,
}

/// Checks.
///
/// # Errors
/// A crate cannot be packed or built, does not build with the oldest compiler, or breaks those who use it.
pub fn run(arguments: &Arguments) -> Result<()> {
    // What has `publish = false` is skipped by cargo itself.
    let mut publish = shell::cargo(&["publish", "--workspace", "--dry-run", "--locked"]);
    if !arguments.build {
        publish.arg("--no-verify");
    }
    if arguments.allow_dirty {
        publish.arg("--allow-dirty");
    }
    shell::run(publish)?;
    oldest_compiler()?;
    interface()?;
    if let Some(table) = left_out::table() {
        println!("{table}");
    }
    Ok(())
}

/// Whether what is published compiles with the oldest compiler that it says.
fn oldest_compiler() -> Result<()> {
    let oldest = env!("CARGO_PKG_RUST_VERSION");
    let toolchain = format!("+{oldest}");
    let there = shell::capture({
        let mut command = shell::command("rustup", &["toolchain", "list"]);
        command.stderr(std::process::Stdio::null());
        command
    });
    let named = |line: &str| {
        line.strip_prefix(oldest)
            .is_some_and(|rest| rest.starts_with(['-', '.']))
    };
    if !there.is_ok_and(|list| list.lines().any(named)) {
        left_out::say(
            &format!("compiling with Rust {oldest}"),
            &format!("it is not here: rustup toolchain install {oldest} --profile minimal"),
        );
        return Ok(());
    }
    let mut check = shell::command(
        "cargo",
        &[&toolchain, "check", "--locked", "--all-features"],
    );
    check.args([
        "--package",
        "udapl",
        "--package",
        "datctl",
        "--package",
        "nvmeof",
    ]);
    check.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    check.env("CARGO_TARGET_DIR", shell::target().join("oldest"));
    shell::run(check)
}

/// Whether the interface of `udapl` breaks programs of the last release, which is the newest tag `v*`.
fn interface() -> Result<()> {
    let what = "the interface compared with the last release";
    let tag = shell::command(
        "git",
        &["describe", "--tags", "--abbrev=0", "--match", "v*"],
    );
    let Ok(tag) = shell::capture({
        let mut command = tag;
        command.stderr(std::process::Stdio::null());
        command
    }) else {
        left_out::say(what, "there is no release yet: no tag v*");
        return Ok(());
    };
    if !shell::exists("cargo-semver-checks") {
        left_out::say(
            what,
            "cargo install --locked cargo-semver-checks, which compiles for minutes",
        );
        return Ok(());
    }
    let tag = tag.trim();
    ensure!(!tag.is_empty(), "git describes a tag without a name");
    shell::run(shell::command(
        "cargo",
        &["semver-checks", "--package", "udapl", "--baseline-rev", tag],
    ))
    .context("what breaks programs needs a new major version")
}
