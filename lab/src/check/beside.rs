//! A command of this program that runs beside other checks. Its output is shown when it has ended.

use std::fs::File;
use std::io::{Seek, Write, copy, stdout};
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};

/// The command. If this is dropped, its end is waited for.
pub struct Beside {
    name: &'static str,
    child: Child,
    output: File,
}

impl Beside {
    /// Starts a command.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(name: &'static str) -> Result<Self> {
        let output = tempfile::tempfile()?;
        let child = Command::new(std::env::current_exe()?)
            .arg(name)
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            name,
            child,
            output,
        })
    }

    /// Waits for the end of the command, and shows its output.
    ///
    /// # Errors
    /// It failed.
    pub fn finish(mut self) -> Result<()> {
        let status = self.child.wait()?;
        self.output.rewind()?;
        let mut shown = stdout().lock();
        copy(&mut self.output, &mut shown)?;
        shown.flush()?;
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // Its own children would outlive it if it were killed, and keep cargo's lock.
        let _status = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_is_named_with_its_status() {
        // This program is the test executable, which knows no such test and fails for an option it does not have.
        let beside = Beside::start("--no-such-option").expect("it starts");
        let error = beside.finish().expect_err("it fails").to_string();
        assert!(error.starts_with("--no-such-option ended with"), "{error}");
    }
}
