//! Signals that end a command in an orderly way: SIGINT (Ctrl-C), SIGTERM and SIGHUP.
//!
//! A separate thread waits for the signals. The command checks [`Stop`] at points where it can end. A second signal
//! ends the process at once, unless it arrives together with the first, because timeout(1) sends two. A signal that is
//! ignored when the program begins stays ignored, like Ctrl-C in a background job of a shell.

use std::error::Error;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

/// Exit status after a second signal of any kind: 128 plus the number of SIGINT, as in shells.
const ENDED: i32 = 130;

/// Time after the first signal in which further signals are considered part of it.
const TOGETHER: Duration = Duration::from_millis(500);

/// A flag that requests a command to end.
pub struct Stop(Option<Arc<AtomicBool>>);

impl Stop {
    /// Makes a flag that is never set.
    pub const fn never() -> Self {
        Self(None)
    }

    /// Makes a flag that another thread sets.
    pub const fn by(flag: Arc<AtomicBool>) -> Self {
        Self(Some(flag))
    }

    /// Makes a flag that a signal sets. Blocks the signals in this thread and all threads started later, and starts the
    /// thread that waits for them.
    ///
    /// # Errors
    /// No thread can be started, or /proc is missing.
    pub fn on_signals() -> Result<Self, Box<dyn Error>> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let ignored = status
            .lines()
            .find_map(|line| line.strip_prefix("SigIgn:"))
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .ok_or("/proc/self/status: no SigIgn")?;
        let mut asked = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            if ignored >> (signal as i32 - 1) & 1 == 0 {
                asked.add(signal);
            }
        }
        asked.thread_block()?;
        let over = Arc::new(AtomicBool::new(false));
        let signals_over = Arc::clone(&over);
        let wait = move || {
            let mut first = None;
            loop {
                let signal = match asked.wait() {
                    Ok(signal) => signal,
                    Err(errno) => return tracing::error!("sigwait: {errno}"),
                };
                signals_over.store(true, Ordering::Release);
                if first.get_or_insert_with(Instant::now).elapsed() > TOGETHER {
                    tracing::warn!("{signal} again: ending at once");
                    exit(ENDED);
                }
                tracing::info!("{signal}: ending");
            }
        };
        thread::Builder::new().name("signals".into()).spawn(wait)?;
        Ok(Self(Some(over)))
    }

    /// Returns whether the flag is set.
    pub fn is_asked(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|over| over.load(Ordering::Acquire))
    }
}
