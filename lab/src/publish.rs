//! `cargo xtask publish-check`: checks that crates.io would accept a release, and that the release breaks no user.
//!
//! Every published crate is packed as cargo packs it; `--build` builds each from its package alone, which takes
//! minutes. Two more checks run if their tools are installed: the build with the oldest compiler that `rust-version`
//! promises (needs rustup with that toolchain), and cargo-semver-checks, which compares the interface of `udapl` with
//! that of the last release.
//!
//! `cargo xtask check` runs only [`library_alone`]: the library as an embedder compiles it.

use anyhow::{Context, Result, ensure};

use crate::{left_out, shell};

/// Options of `cargo xtask publish-check`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Build each crate from its package alone.
    #[arg(long)]
    build: bool,
    /// Allow changes that are not committed.
    #[arg(long)]
    allow_dirty: bool,
}

/// Runs the checks.
///
/// # Errors
/// A crate cannot be packed or built, does not build with the oldest compiler, or breaks its users.
pub fn run(arguments: &Arguments) -> Result<()> {
    // cargo skips crates with `publish = false` itself.
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

/// Version of the oldest supported compiler.
const OLDEST: &str = env!("CARGO_PKG_RUST_VERSION");

/// Checks that the workspace compiles with the oldest compiler, including tests and benchmarks.
fn oldest_compiler() -> Result<()> {
    match oldest() {
        Some(toolchain) => shell::run(apart(
            Some(&toolchain),
            &["--workspace", "--all-targets", "--all-features"],
        )),
        None => Ok(()),
    }
}

/// Checks that the library compiles without its features, as an embedder compiles it. Uses the oldest compiler if that
/// is installed.
///
/// # Errors
/// The library does not compile.
pub fn library_alone() -> Result<()> {
    let library = ["--package", "udapl", "--no-default-features"];
    shell::run(apart(oldest().as_deref(), &library))
}

/// Returns rustup's name of the oldest compiler's toolchain. If it is not installed, reports the checks left out.
fn oldest() -> Option<String> {
    let there = shell::capture({
        let mut command = shell::command("rustup", &["toolchain", "list"]);
        command.stderr(std::process::Stdio::null());
        command
    });
    let found = there.ok().and_then(|list| toolchain(&list, OLDEST));
    if found.is_none() {
        left_out::say(
            &format!("compiling with Rust {OLDEST}"),
            &format!("it is not here: rustup toolchain install {OLDEST} --profile minimal"),
        );
    }
    found
}

/// Returns the name of the toolchain with this version in rustup's list.
fn toolchain(list: &str, version: &str) -> Option<String> {
    let names = list.lines().filter_map(|line| line.split(' ').next());
    let of_version = |name: &&str| {
        name.strip_prefix(version)
            .is_some_and(|rest| rest.starts_with(['-', '.']))
    };
    names.filter(of_version).map(str::to_owned).next()
}

/// Returns a `cargo check` command for this toolchain, or for the current one. It has a target directory of its own.
fn apart(toolchain: Option<&str>, arguments: &[&str]) -> std::process::Command {
    let mut check = shell::command("cargo", &[]);
    check.args(toolchain.map(|name| format!("+{name}")));
    check.args(["check", "--locked"]).args(arguments);
    check.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    check.env("CARGO_TARGET_DIR", shell::target().join("oldest"));
    check
}

/// Checks with cargo-semver-checks that a program written for the last release still compiles. The last release is the
/// newest tag `v*`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toolchain_is_found_by_its_version_and_not_by_the_beginning_of_another() {
        let list = "stable-x86_64-unknown-linux-gnu (default)\n1.910.0-x86_64-unknown-linux-gnu\n\
                    1.91.0-x86_64-unknown-linux-gnu (active)\n";
        let found = toolchain(list, "1.91");
        assert_eq!(found.as_deref(), Some("1.91.0-x86_64-unknown-linux-gnu"));
        assert_eq!(toolchain(list, "1.9"), None);
    }
}
