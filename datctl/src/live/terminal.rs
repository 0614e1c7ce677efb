//! A terminal with a screen that changes. It uses the alternate screen, so that the former contents come back. Keys
//! are read at once and not echoed.
//!
//! `q`, Ctrl-C, SIGTERM and SIGHUP end the command. Ctrl-Z restores the terminal and stops the process. Signals are
//! read from a descriptor, so that one poll(2) covers signals, keys and the inspected process.

use std::io::{self, IsTerminal, Write, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::read;

/// Control sequences that enter the alternate screen and hide the cursor, and the reverse (xterm, DECSET 1049 and 25).
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Columns and lines of a terminal that does not report its size.
const USUAL: (usize, usize) = (80, 24);

/// Reasons for the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// A key or a signal that ends the command.
    Quit,
    /// The screen must be drawn again, because its size changed or the process was stopped and continued.
    Redraw,
    /// The other descriptor is readable.
    Other,
    /// The time limit is reached.
    Time,
}

/// A terminal in use. Dropping it restores the terminal's settings.
pub(super) struct Terminal {
    signals: SignalFd,
    /// Former settings; `None` if standard input is no terminal, so that there are no keys to read.
    before: Option<Termios>,
}

impl Terminal {
    /// Enters the alternate screen, and blocks the signals that are then read from a descriptor.
    pub(super) fn enter() -> io::Result<Self> {
        let all = [
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGHUP,
            Signal::SIGWINCH,
            Signal::SIGTSTP,
        ];
        let set: SigSet = all.into_iter().collect();
        set.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let before = stdin().is_terminal().then(|| tcgetattr(stdin()));
        let terminal = Self {
            signals: SignalFd::with_flags(&set, flags)?,
            before: before.transpose()?,
        };
        terminal.take()?;
        Ok(terminal)
    }

    fn take(&self) -> io::Result<()> {
        if let Some(before) = &self.before {
            let mut keys = before.clone();
            keys.local_flags
                .remove(LocalFlags::ICANON | LocalFlags::ECHO);
            tcsetattr(stdin(), SetArg::TCSADRAIN, &keys)?;
        }
        say(ENTER)
    }

    fn give_back(&self) {
        let _ = say(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(stdin(), SetArg::TCSADRAIN, before);
        }
    }

    /// Returns the number of columns and lines.
    pub(super) fn size() -> (usize, usize) {
        let size = terminal_size::terminal_size_of(stdout());
        size.map_or(USUAL, |(width, height)| {
            (usize::from(width.0), usize::from(height.0))
        })
    }

    /// Draws the lines over the former screen, as many as fit.
    pub(super) fn draw(lines: &[String]) -> io::Result<()> {
        let (_, height) = Self::size();
        let lines: Vec<&str> = lines.iter().take(height).map(String::as_str).collect();
        say(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\n")))
    }

    /// Waits for a key, a signal, the other descriptor, or the time limit.
    pub(super) fn wait(&self, other: BorrowedFd<'_>, until: Instant) -> io::Result<Woken> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let keys = stdin();
            let mut fds = vec![
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(other, PollFlags::POLLIN),
            ];
            if self.before.is_some() {
                fds.push(PollFd::new(keys.as_fd(), PollFlags::POLLIN));
            }
            match poll(&mut fds, left) {
                Ok(0) => return Ok(Woken::Time),
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let came = |at: usize| fds.get(at).and_then(|fd| fd.any()).unwrap_or(false);
            let (signal, said, key) = (came(0), came(1), came(2));
            if signal && let Some(woken) = self.signal()? {
                return Ok(woken);
            }
            if key {
                let mut typed = [0; 64];
                let bytes = read(&keys, &mut typed)?;
                // 0 bytes mean that the terminal was closed.
                if bytes == 0 || typed[..bytes].contains(&b'q') {
                    return Ok(Woken::Quit);
                }
            }
            if said {
                return Ok(Woken::Other);
            }
        }
    }

    fn signal(&self) -> io::Result<Option<Woken>> {
        let Some(came) = self.signals.read_signal()? else {
            return Ok(None);
        };
        let number = i32::try_from(came.ssi_signo).unwrap_or(0);
        let signal = Signal::try_from(number)?;
        if signal == Signal::SIGTSTP {
            self.give_back();
            raise(Signal::SIGSTOP)?;
            self.take()?;
        }
        let is_drawn_again = [Signal::SIGTSTP, Signal::SIGWINCH].contains(&signal);
        Ok(Some(if is_drawn_again {
            Woken::Redraw
        } else {
            Woken::Quit
        }))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.give_back();
    }
}

fn say(words: &str) -> io::Result<()> {
    let mut out = stdout().lock();
    out.write_all(words.as_bytes())?;
    out.flush()
}
