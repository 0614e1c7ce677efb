//! Signals that end a command in good order: SIGINT (Ctrl-C), SIGTERM and SIGHUP.
//!
//! A thread of its own waits for them; the command looks at [`Stop`] where it can end. A second signal ends the process
//! at once, unless it comes with the first, as timeout(1) sends two. What is ignored when the program begins stays
//! ignored, as Ctrl-C is by what a shell has put into the background.

use std::error::Error;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

/// Exit status of whom Ctrl-C ends: 128 and the signal's number, as shells say it.
const ENDED: i32 = 130;

/// Signals that come so soon behind the first belong to it.
const TOGETHER: Duration = Duration::from_millis(500);

/// Whether the end was asked for.
pub struct Stop(Option<Arc<AtomicBool>>);

impl Stop {
    /// Nobody asks.
    pub const fn never() -> Self {
        Self(None)
    }

    /// Another thread asks, by this flag.
    pub const fn by(flag: Arc<AtomicBool>) -> Self {
        Self(Some(flag))
    }

    /// A signal asks. Threads that are made later leave these signals to the one made here.
    ///
    /// # Errors
    /// No thread can be made, or /proc is not there.
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
        let tells = Arc::clone(&over);
        let wait = move || {
            let mut first = None;
            loop {
                let signal = match asked.wait() {
                    Ok(signal) => signal,
                    Err(errno) => return tracing::error!("sigwait: {errno}"),
                };
                tells.store(true, Ordering::Release);
                if first.get_or_insert_with(Instant::now).elapsed() > TOGETHER {
                    tracing::warn!("{signal} again: the end at once");
                    exit(ENDED);
                }
                tracing::info!("{signal}: the end");
            }
        };
        thread::Builder::new().name("signals".into()).spawn(wait)?;
        Ok(Self(Some(over)))
    }

    /// The end was asked for.
    pub fn is_asked(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|over| over.load(Ordering::Acquire))
    }
}
