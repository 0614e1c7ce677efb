//! Bytes from outside of the process that no card sent: what neighbours on this machine say, and what people write.
//!
//! A vfio-user server hears any client ([`server`]), a client any server ([`client`]); a wire's end gets any message
//! ([`wires`]); a control socket reads any request ([`control`](mod@control)); a registry reads any `dat.conf`
//! ([`conf`]), adapters are opened by any name ([`names`]), and simulated functions made of any file ([`files`]).
//! Nothing panics or waits without a bound, nothing is believed that makes memory grow, what is refused is refused
//! with its place, and afterwards honest neighbours are served and descriptors are all back.
//!
//! `FUZZ_ITERATIONS=N` takes N executions of each instead of a few.

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

/// How many executions of a harness there are.
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

    /// So many, unless the environment says otherwise.
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

/// Descriptors that lead to what `kind` says, as `/proc/self/fd` has it: other tests have others.
fn descriptors(kind: &str) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("readable");
    open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|link| link.to_string_lossy().contains(kind))
        .count()
}

/// Those who count descriptors are alone: they are the process's.
static COUNTS: Mutex<()> = Mutex::new(());
/// The longest that a server's thread takes to close what a client that has gone has left: no measure, but an end.
const CLOSED: Duration = Duration::from_secs(300);

/// Waits until no more than so many descriptors lead there.
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

/// A directory for sockets, in which nobody else ever left one.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}
