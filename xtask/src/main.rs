//! The entry point of all development commands: `cargo xtask COMMAND`.
//!
//! This program runs `demo` itself. Every other command is in `lab`, which needs libraries that take a minute to build.
//! This program needs none of them, so that the demo starts at once.
#![forbid(unsafe_code)]

mod commands;

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let Some(command) = arguments.next() else {
        eprint!("{}", help());
        return ExitCode::from(2);
    };
    let mut rest: Vec<OsString> = arguments.collect();
    match command.to_str() {
        Some("--help" | "-h") => {
            print!("{}", help());
            ExitCode::SUCCESS
        }
        Some("help") if rest.is_empty() => {
            print!("{}", help());
            ExitCode::SUCCESS
        }
        Some("help") => {
            let command = rest.remove(0);
            run_command(&command, &["--help".into()])
        }
        _ => run_command(&command, &rest),
    }
}

/// Replaces this process by a command. Returns only if that is not possible.
fn run_command(command: &OsStr, rest: &[OsString]) -> ExitCode {
    match command.to_str() {
        Some("demo") => {
            let demo = ["run", "--example", "demo", "--"];
            cargo(&demo, None, rest)
        }
        Some(name) if names().any(|known| known == name) => {
            let lab = ["run", "--quiet", "--profile", "test", "--bin", "lab", "--"];
            cargo(&lab, Some(name), rest)
        }
        _ => {
            let command = command.display();
            eprintln!("error: no command \"{command}\": `cargo xtask --help` lists them");
            ExitCode::from(2)
        }
    }
}

/// Replaces this process by cargo, which builds and runs a program of the workspace. `lab` is built with the tests'
/// profile, so that commands and tests share one build. The program runs in the caller's directory, so relative file
/// names refer to that directory. Returns only if cargo cannot be started.
fn cargo(run: &[&str], name: Option<&str>, rest: &[OsString]) -> ExitCode {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let error = Command::new(&program)
        .args(&run[..1])
        .arg("--manifest-path")
        .arg(root().join("Cargo.toml"))
        .args(&run[1..])
        .args(name)
        .args(rest)
        .exec();
    eprintln!("error: cannot start {}: {error}", program.display());
    ExitCode::FAILURE
}

/// Returns the workspace's root.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

fn names() -> impl Iterator<Item = &'static str> {
    let commands = commands::GROUPS.iter().flat_map(|(_, commands)| *commands);
    commands.map(|(name, _)| *name)
}

fn help() -> String {
    let mut text =
        "Usage: cargo xtask COMMAND [ARGUMENTS]; cargo xtask COMMAND --help\n".to_owned();
    for (heading, commands) in commands::GROUPS {
        text += &format!("\n{heading}:\n");
        for (name, effect) in commands {
            text += &format!("  {name:<14} {effect}\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_lists_every_command_within_120_columns() {
        let help = help();
        for name in names() {
            assert!(help.contains(&format!("\n  {name} ")), "{name}");
        }
        for line in help.lines() {
            assert!(line.len() <= 120, "{line}");
        }
    }
}
