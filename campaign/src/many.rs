//! Many worlds, on several threads: what they came to does not depend on how many threads there are.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::{Coverage, Failure, Plan, Record, Run, run, shrink};

/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// What many worlds came to.
#[derive(Default)]
pub struct Many {
    /// Worlds that were run.
    pub ran: u64,
    /// What happened in those that held.
    pub coverage: Coverage,
    /// The longest operation of honest neighbours, in turns of theirs, and its world.
    pub longest: Option<(u64, u64)>,
    /// The others, by seed.
    pub failures: Vec<(u64, Failure)>,
}

impl Many {
    fn add(&mut self, seed: u64, outcome: Result<Run, Failure>) {
        self.ran += 1;
        match outcome {
            Ok(run) => {
                self.coverage.add(&run.coverage);
                self.longest = self.longest.max(run.longest.map(|turns| (turns, seed)));
            }
            Err(failure) => self.failures.push((seed, failure)),
        }
    }
}

/// Runs the worlds of these seeds, at most until then, and tells every few seconds how far it is. Failures are shrunk.
pub fn many(
    seeds: &[u64],
    jobs: usize,
    until: Option<Instant>,
    plan: impl Fn(u64) -> Plan + Sync,
    mut tell: impl FnMut(&Many, Duration),
) -> Many {
    let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let started = Instant::now();
    let mut sum = Many::default();
    let (send, receive) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            let send = send.clone();
            scope.spawn(|| {
                let send = send;
                while !over.load(Ordering::Relaxed) {
                    let at = usize::try_from(next.fetch_add(1, Ordering::Relaxed));
                    let Some(&seed) = at.ok().and_then(|at| seeds.get(at)) else {
                        break;
                    };
                    let outcome = run(&plan(seed), Record::Nothing).map_err(shrink);
                    if send.send((seed, outcome)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        let mut told = started;
        for (seed, outcome) in receive {
            sum.add(seed, outcome);
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                tell(&sum, started.elapsed());
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                over.store(true, Ordering::Relaxed);
            }
        }
    });
    sum.failures.sort_by_key(|(seed, _)| *seed);
    sum
}
