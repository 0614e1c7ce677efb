//! Input that comes from outside of the process: from other processes on this machine, and from files.
//!
//! Any client may connect to a vfio-user server ([`server`]), and any server may answer a client ([`client`]). Any
//! message may arrive at the end of a wire ([`wires`]). Any request may be sent to a control socket
//! ([`control`](mod@control)). A registry reads any `dat.conf` ([`conf`]), any name may be opened as an adapter
//! ([`names`]), and simulated functions are made of any file ([`files`]). No input causes a panic, an unbounded wait or
//! unbounded memory. A refusal has an error code or a reason. Afterwards honest clients are served, and all file
//! descriptors are closed.
//!
//! `FUZZ_ITERATIONS=N` sets the number of executions of each harness.

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

/// Counts and prints the executions of a harness.
struct ExecutionCount {
    name: &'static str,
    begun: Instant,
    done: AtomicUsize,
}

impl ExecutionCount {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            begun: Instant::now(),
            done: AtomicUsize::new(0),
        }
    }

    /// Returns the number of executions: that of `FUZZ_ITERATIONS`, or `usual`.
    fn iterations(usual: usize) -> usize {
        let asked = std::env::var("FUZZ_ITERATIONS").ok();
        asked.map_or(usual, |asked| asked.parse().expect("a number"))
    }

    fn one(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for ExecutionCount {
    fn drop(&mut self) {
        let (done, took) = (self.done.load(Ordering::Relaxed), self.begun.elapsed());
        let seconds = took.as_secs_f64().max(0.001);
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let rate = done as f64 / seconds;
        println!("{}: {done} executions, {rate:.0} a second", self.name);
    }
}

/// Returns the number of descriptors whose target in `/proc/self/fd` contains `kind`. Concurrent tests use descriptors
/// of other kinds.
fn descriptors(kind: &str) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("readable");
    open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|link| link.to_string_lossy().contains(kind))
        .count()
}

/// Lock for tests that count the descriptors of the process.
static COUNTS: Mutex<()> = Mutex::new(());
/// Time limit within which a server's thread must close the descriptors of a client that has gone. It detects a hang
/// and measures nothing.
const CLOSED: Duration = Duration::from_secs(300);

/// Waits until at most `most` descriptors have a target that contains `kind`.
fn wait_for_descriptors(most: usize, kind: &str, what: &str) {
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
