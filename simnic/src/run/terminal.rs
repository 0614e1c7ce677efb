//! Passing the terminal of simnic through to the command, by means of stty(1).

use std::io::{IsTerminal, stdin, stdout};
use std::process::{Command, Stdio};

use anyhow::Result;
use guest::program;

/// Raw mode of the terminal. Dropping this restores the previous settings.
pub struct Raw {
    /// Previous settings, in the format of `stty -g`.
    before: String,
}

impl Raw {
    /// Returns whether input and output are both a terminal. Then the terminal is passed through.
    pub fn is_wanted() -> bool {
        stdin().is_terminal() && stdout().is_terminal()
    }

    /// Enters raw mode.
    pub fn begin() -> Result<Self> {
        let before = program::capture(stty(&["-g"]))?.trim().to_owned();
        program::capture(stty(&["raw", "-echo"]))?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // An error is ignored, because it means that the terminal is closed.
        let _ = program::capture(stty(&[&self.before]));
    }
}

/// Returns the rows and columns of the terminal; 24 and 80 if they are unknown.
pub fn size() -> (u16, u16) {
    let said = match stdin().is_terminal() {
        true => program::capture(stty(&["size"])).unwrap_or_default(),
        false => String::new(),
    };
    parsed(&said).unwrap_or((24, 80))
}

/// Returns a stty command for the terminal of this process.
fn stty(words: &[&str]) -> Command {
    let mut command = Command::new("stty");
    command.args(words).stdin(Stdio::inherit());
    command
}

fn parsed(said: &str) -> Option<(u16, u16)> {
    let (rows, columns) = said.trim().split_once(' ')?;
    let size = (rows.parse().ok()?, columns.parse().ok()?);
    (size.0 > 0 && size.1 > 0).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_without_a_size_has_none() {
        assert_eq!(parsed("50 132\n"), Some((50, 132)));
        assert_eq!(parsed("0 0\n"), None);
        assert_eq!(parsed(""), None);
    }
}
