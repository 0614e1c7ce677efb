//! A terminal that shows a screen which changes: it is the alternate one, so that what was there before comes back, and
//! keys come at once and are not shown.
//!
//! `q`, Ctrl-C, SIGTERM and SIGHUP end it; Ctrl-Z stops the process with the terminal as it was. Signals are taken from
//! a descriptor, together with keys and with what the process that is looked at says, so nothing is waited for twice.

use std::io::{self, IsTerminal, Write, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::read;

/// The alternate screen without a cursor, and back (xterm's control sequences, DECSET 1049 and 25).
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Columns and lines of a terminal that does not say.
const USUAL: (usize, usize) = (80, 24);

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// A person wants it to end.
    Quit,
    /// The screen is to be drawn again: it has another size, or it was left.
    Redraw,
    /// The other descriptor has something.
    Other,
    /// It is time.
    Time,
}

/// A terminal in use. It is as before when this is dropped.
pub(super) struct Terminal {
    signals: SignalFd,
    /// What it was set to before; `None`: there are no keys to be read.
    before: Option<Termios>,
}

impl Terminal {
    /// Takes the terminal.
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

    /// Columns and lines.
    pub(super) fn size() -> (usize, usize) {
        let size = terminal_size::terminal_size_of(stdout());
        size.map_or(USUAL, |(width, height)| {
            (usize::from(width.0), usize::from(height.0))
        })
    }

    /// Draws lines over what is there, as many as there is room for.
    pub(super) fn draw(lines: &[String]) -> io::Result<()> {
        let (_, height) = Self::size();
        let lines: Vec<&str> = lines.iter().take(height).map(String::as_str).collect();
        say(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\n")))
    }

    /// Waits for a person, the other descriptor, or the time.
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
                // 0 bytes: the terminal has gone.
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
