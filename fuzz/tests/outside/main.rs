//! Input from outside of the process that no card sent: from other processes on this machine, and from files.
//!
//! A vfio-user server takes any client ([`server`]), a client any server ([`client`]); a wire's end gets any message
//! ([`wires`]); a control socket reads any request ([`control`](mod@control)); a registry reads any `dat.conf`
//! ([`conf`]), adapters are opened by any name ([`names`]), and simulated functions are made of any file ([`files`]).
//! No input causes a panic, an unbounded wait or unbounded memory; a refusal names the place of the error; afterwards
//! honest clients are served and all descriptors are closed.
//!
//! `FUZZ_ITERATIONS=N` runs N executions of each instead of a few.

mod client;
mod conf;
mod control;
mod files;
mod names;
mod server;
mod wires;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Number of executions of a harness.
struct Effort {
    name: &'static str,
    begun: Instant,
    done: AtomicUsize,
}

impl Effort {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            begun: Instant::now(),
            done: AtomicUsize::new(0),
        }
    }

    /// Returns the number of executions, `usual` unless the environment sets it.
    fn iterations(usual: usize) -> usize {
        let asked = std::env::var("FUZZ_ITERATIONS").ok();
        asked.map_or(usual, |asked| asked.parse().expect("a number"))
    }

    fn one(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Effort {
    fn drop(&mut self) {
        let (done, took) = (self.done.load(Ordering::Relaxed), self.begun.elapsed());
        let seconds = took.as_secs_f64().max(0.001);
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let rate = done as f64 / seconds;
        println!("{}: {done} executions, {rate:.0} a second", self.name);
    }
}

/// Returns the number of descriptors whose target in `/proc/self/fd` is of this kind: other tests have other kinds.
fn descriptors(kind: &str) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("readable");
    open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|link| link.to_string_lossy().contains(kind))
        .count()
}

/// Serializes tests that count descriptors, which are the process's.
static COUNTS: Mutex<()> = Mutex::new(());
/// Limit for a server's thread to close the descriptors of a gone client: a safeguard, not a measurement.
const CLOSED: Duration = Duration::from_secs(300);

/// Waits until no more than `most` descriptors have such a target.
fn fall_to(most: usize, kind: &str, what: &str) {
    let until = Instant::now() + CLOSED;
    loop {
        let open = descriptors(kind);
        if open <= most {
            return;
        }
        assert!(
            Instant::now() < until,
            "{open} descriptors, not {most}: {what}"
        );
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// Returns a fresh directory for sockets.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}
