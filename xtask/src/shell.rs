//! Running other programs, always from the workspace root, with errors that name the command.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The workspace root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
        .to_path_buf()
}

/// Where build products go: honours `CARGO_TARGET_DIR`.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Where build products go, as cargo says it: also when a configuration file names the place.
pub fn target_directory() -> Result<PathBuf> {
    let metadata = capture(cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let folder = metadata["target_directory"].as_str();
    Ok(folder
        .context("cargo metadata names no target_directory")?
        .into())
}

/// A command that runs in the workspace root.
pub fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    command
}

/// The cargo that runs us.
pub fn cargo(arguments: &[&str]) -> Command {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    command(&program, arguments)
}

/// Says what is about to run.
pub fn announce(command: &Command) -> String {
    let shown = show(command);
    eprintln!("$ {shown}");
    shown
}

/// Runs a command with its output shown; an exit status other than 0 is an error.
pub fn run(mut command: Command) -> Result<()> {
    let shown = announce(&command);
    let status = command
        .status()
        .with_context(|| format!("cannot start `{shown}`"))?;
    ensure!(status.success(), "`{shown}` ended with {status}");
    Ok(())
}

/// Runs a command and returns what it printed on standard output.
pub fn capture(mut command: Command) -> Result<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{}`", show(&command)))?;
    ensure!(
        output.status.success(),
        "`{}` ended with {}",
        show(&command),
        output.status
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program is on the path.
pub fn exists(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    })
}

fn show(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}
