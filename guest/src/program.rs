//! Runs other programs. Errors contain the command.

use std::io::{BufRead, BufReader, Read, Write, stderr};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;

use anyhow::{Context, Result, ensure};

/// Number of lines of a failed program's standard error that the error repeats.
const TAIL: usize = 12;

/// Prints the command that is about to run, and returns its text.
pub fn announce(command: &Command) -> String {
    let shown = show(command);
    // A command runs even if nobody reads its announcement.
    let _ = writeln!(stderr(), "$ {shown}");
    shown
}

/// Runs a command that writes to this program's output.
///
/// # Errors
/// The command cannot be started, or its exit status is not 0.
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
/// The command cannot be started, or it did not end with exit status 0.
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

/// Runs a command without showing its output. Returns its standard output.
///
/// # Errors
/// The command cannot be started, or its exit status is not 0. Then the error has the end of its standard error.
pub fn quietly(mut command: Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", show(&command)))?;
    succeeded(&command, output.status, &output.stderr)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command without showing its output. Calls `on_line` with each line of its standard output as soon as the line
/// arrives.
///
/// # Errors
/// As [`quietly`].
pub fn followed(mut command: Command, mut on_line: impl FnMut(&str)) -> Result<()> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", show(&command)))?;
    let mut errors = child.stderr.take().context("its errors")?;
    let errors = thread::spawn(move || {
        let mut said = Vec::new();
        // If reading fails, the error message has only the part of the errors that was read.
        let _ = errors.read_to_end(&mut said);
        said
    });
    let output = child.stdout.take().context("its output")?;
    for line in BufReader::new(output).lines() {
        on_line(&line?);
    }
    let status = child.wait()?;
    succeeded(&command, status, &errors.join().unwrap_or_default())
}

fn succeeded(command: &Command, status: ExitStatus, errors: &[u8]) -> Result<()> {
    let said = String::from_utf8_lossy(errors);
    let lines: Vec<&str> = said.lines().collect();
    ensure!(
        status.success(),
        "`{}` ended with {status}:\n{}",
        show(command),
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    );
    Ok(())
}

/// Returns whether a program is in PATH.
pub fn exists(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    })
}

/// Returns the command on one line. Only the first line of a multi-line argument, such as a script, is included.
pub fn show(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        let argument = argument.to_string_lossy();
        text.push(' ');
        match argument.trim().split_once('\n') {
            Some((first, _)) => text.push_str(&format!("{} …", first.trim())),
            None => text.push_str(&argument),
        }
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

    #[test]
    fn what_is_followed_is_heard_line_by_line_and_fails_with_one_line_of_its_script() {
        let mut command = Command::new("sh");
        command.args(["-c", "\n echo one\n echo two\n echo why >&2\n exit 3\n"]);
        let mut lines = Vec::new();
        let error = followed(command, |line| lines.push(line.to_owned()));
        let error = error.expect_err("it failed").to_string();
        assert_eq!(lines, ["one", "two"]);
        assert_eq!(error, "`sh -c echo one …` ended with exit status: 3:\nwhy");
    }
}
