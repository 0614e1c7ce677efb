//! Everything a person types: `cargo xtask COMMAND`.
//!
//! `demo` is carried out here. Every other command is one of `lab`, which needs libraries that take a minute to build;
//! this program needs none, so that the demo begins at once.
#![forbid(unsafe_code)]

mod commands;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let Some(command) = arguments.next() else {
        eprint!("{}", help());
        return ExitCode::from(2);
    };
    let rest: Vec<OsString> = arguments.collect();
    match command.to_str() {
        Some("--help" | "-h") => {
            print!("{}", help());
            ExitCode::SUCCESS
        }
        Some("help") if rest.is_empty() => {
            print!("{}", help());
            ExitCode::SUCCESS
        }
        Some("demo") => cargo(&["run", "--example", "demo", "--"], None, &rest),
        Some(name) if names().any(|known| known == name) => {
            cargo(&["run", "--quiet", "--bin", "lab", "--"], Some(name), &rest)
        }
        _ => {
            eprintln!(
                "error: no command {:?}: `cargo xtask --help` lists them",
                command.display()
            );
            ExitCode::from(2)
        }
    }
}

/// Runs cargo for the whole workspace, so that every command and the tests have one build in common. The program runs
/// where the caller is: file names mean the caller's files.
fn cargo(run: &[&str], name: Option<&str>, rest: &[OsString]) -> ExitCode {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(&program)
        .args(&run[..1])
        .arg("--manifest-path")
        .arg(root().join("Cargo.toml"))
        .args(&run[1..])
        .args(name)
        .args(rest)
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        // Cargo, or the program that it ran, has told the reason.
        Ok(status) => ExitCode::from(
            status
                .code()
                .and_then(|code| u8::try_from(code).ok())
                .unwrap_or(1),
        ),
        Err(error) => {
            eprintln!("error: cannot start {}: {error}", program.display());
            ExitCode::FAILURE
        }
    }
}

/// The workspace's root.
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
