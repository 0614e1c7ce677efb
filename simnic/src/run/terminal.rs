//! The terminal that simnic runs in, handed through to the command. stty(1) knows how to speak to it.

use std::io::{IsTerminal, stdin, stdout};
use std::process::{Command, Stdio};

use anyhow::Result;
use guest::program;

/// The terminal passes every key on, until this is dropped.
pub struct Raw {
    /// As `stty -g` says it.
    before: String,
}

impl Raw {
    /// Both input and output are a terminal: then it is the command's.
    pub fn is_wanted() -> bool {
        stdin().is_terminal() && stdout().is_terminal()
    }

    /// From now on.
    pub fn begin() -> Result<Self> {
        let before = program::capture(stty(&["-g"]))?.trim().to_owned();
        program::capture(stty(&["raw", "-echo"]))?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that has gone needs nothing.
        let _ = program::capture(stty(&[&self.before]));
    }
}

/// Rows and columns.
pub fn size() -> (u16, u16) {
    let said = match stdin().is_terminal() {
        true => program::capture(stty(&["size"])).unwrap_or_default(),
        false => String::new(),
    };
    parsed(&said).unwrap_or((24, 80))
}

/// On the terminal of this process.
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
