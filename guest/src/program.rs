//! Running other programs, with errors that name the command.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Lines of its error stream that an error repeats of a program that was run quietly.
const TAIL: usize = 12;

/// Says what is about to run.
pub fn announce(command: &Command) -> String {
    let shown = show(command);
    eprintln!("$ {shown}");
    shown
}

/// Runs a command with its output shown.
///
/// # Errors
/// It cannot be started, or its exit status is not 0.
pub fn run(mut command: Command) -> Result<()> {
    let shown = announce(&command);
    let status = command
        .status()
        .with_context(|| format!("cannot start `{shown}`"))?;
    ensure!(status.success(), "`{shown}` ended with {status}");
    Ok(())
}

/// Runs a command and returns what it printed on standard output.
///
/// # Errors
/// It cannot be started, or its exit status is not 0.
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

/// Runs a command of which nothing is shown unless it fails; what it printed on standard output.
///
/// # Errors
/// It cannot be started, or its exit status is not 0: then with the end of its error stream.
pub fn quietly(mut command: Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", show(&command)))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    ensure!(
        output.status.success(),
        "`{}` ended with {}:\n{}",
        show(&command),
        output.status,
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_quietly_says_the_end_of_what_it_had_to_say() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo shown; seq 100 >&2; exit 3"]);
        let error = quietly(command).expect_err("it failed").to_string();
        assert!(error.contains("exit status: 3"), "{error}");
        assert!(
            error.ends_with("\n99\n100") && !error.contains("\n88\n"),
            "{error}"
        );
    }
}
