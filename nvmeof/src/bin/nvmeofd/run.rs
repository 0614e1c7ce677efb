//! The daemon's main thread: it starts what is to be served, and then sleeps until a signal comes.

use std::error::Error;
use std::os::fd::AsFd;
use std::process::ExitCode;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nvmeof::daemon::{Daemon, Settings};

use crate::log;

/// How often the main thread looks whether anybody still serves.
const LOOK: u16 = 500;

/// Serves until a signal says otherwise. `ready` is called when hosts can connect.
pub(crate) fn run(
    settings: &Settings,
    ready: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<ExitCode, Box<dyn Error>> {
    log::begin(settings.log.as_deref());
    // Before there is another thread: they leave these signals to this one.
    let signals = Signals::take()?;
    let daemon = Daemon::start(settings)?;
    ready()?;
    while daemon.serves() {
        if let Some(signal) = signals.wait()? {
            tracing::info!(%signal, "no new connections; those that are there end. A second signal ends at once");
            signals.give_back()?;
            daemon.stop();
            return Ok(ExitCode::SUCCESS);
        }
    }
    tracing::error!("no worker is left: all adapters are gone");
    daemon.stop();
    Ok(ExitCode::FAILURE)
}

/// The signals that the daemon has something to do for.
struct Signals {
    set: SigSet,
    descriptor: SignalFd,
}

impl Signals {
    fn take() -> Result<Self, Errno> {
        let set: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
        set.thread_block()?;
        let descriptor =
            SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { set, descriptor })
    }

    /// The next one, or none for a while.
    fn wait(&self) -> Result<Option<Signal>, Errno> {
        let mut fds = [PollFd::new(self.descriptor.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(LOOK)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        let Some(came) = self.descriptor.read_signal()? else {
            return Ok(None);
        };
        let number = i32::try_from(came.ssi_signo).unwrap_or(0);
        Signal::try_from(number).map(Some)
    }

    /// From now on they do what they do to any process: end it.
    fn give_back(&self) -> Result<(), Errno> {
        self.set.thread_unblock()
    }
}
