//! Runs many simulations on several threads. The results do not depend on the number of threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::{Coverage, Failure, Plan, Record, Run, run, shrink};

/// Minimum time between two lines of progress.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Results of many simulations.
#[derive(Default)]
pub struct Many {
    /// Number of simulations that were run.
    pub ran: u64,
    /// Sum of the coverage of all simulations that did not fail.
    pub coverage: Coverage,
    /// Longest operation of honest neighbours, in their loop iterations, and the seed of its simulation.
    pub longest: Option<(u64, u64)>,
    /// Failed simulations, with their seeds, in the order of the seeds.
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

/// Runs the simulations of these seeds on `jobs` threads until the deadline. Calls `tell` after a simulation, at most
/// every 5 s. Each failed simulation is reduced by `shrink`.
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
        let mut reported_at = started;
        for (seed, outcome) in receive {
            sum.add(seed, outcome);
            if reported_at.elapsed() >= REPORT_EVERY {
                reported_at = Instant::now();
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
