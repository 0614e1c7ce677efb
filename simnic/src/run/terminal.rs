//! The terminal that simnic runs in, handed through to the command.

use std::io::{IsTerminal, stdin, stdout};
use std::os::fd::AsFd;

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};

/// The terminal passes every key on, until this is dropped.
pub struct Raw {
    before: Termios,
}

impl Raw {
    /// Both input and output are a terminal: then it is the command's.
    pub fn is_wanted() -> bool {
        stdin().is_terminal() && stdout().is_terminal()
    }

    /// From now on.
    pub fn begin() -> nix::Result<Self> {
        let before = tcgetattr(stdin().as_fd())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(stdin().as_fd(), SetArg::TCSANOW, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that has gone needs nothing.
        let _ = tcsetattr(stdin().as_fd(), SetArg::TCSADRAIN, &self.before);
    }
}

/// Rows and columns.
pub fn size() -> (u16, u16) {
    terminal_size().unwrap_or((24, 80))
}

fn terminal_size() -> Option<(u16, u16)> {
    // stty knows how to ask.
    let mut command = std::process::Command::new("stty");
    command
        .arg("size")
        .stdin(std::process::Stdio::inherit())
        .stderr(std::process::Stdio::null());
    let said = command.output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    parsed(&said)
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
