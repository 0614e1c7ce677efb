//! Latencies of commands of I/O queues: the time from the loop iteration that receives a command to the loop iteration
//! that polls the completion of its response.
//!
//! One command in 64 is timed, so that most commands do not read the clock. Each worker writes histograms of its own,
//! and other threads read them. All boundaries are powers of two, so histograms of workers and of daemons can be added.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::{Moment, Tally};
use crate::nvme::command::io;

/// One command of this many is timed.
pub(super) const EVERY: u32 = 64;
/// Exponent of the first boundary of a histogram: 2^10 ns, about a microsecond. The next constant is the number of
/// boundaries. The last boundary is 2^35 ns, about 34 s. Longer latencies are only in the count and the sum.
const FIRST: u32 = 10;
const BOUNDARIES: usize = 26;

/// Kinds of commands that have histograms.
pub const KINDS: [&str; 3] = ["read", "write", "other"];

/// Latencies of commands of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Took {
    /// Number of commands that were timed.
    pub count: u64,
    /// Sum of their latencies, in nanoseconds.
    pub nanoseconds: u64,
    /// Number of commands in each bucket: below its boundary, and not below the previous boundary.
    pub(super) buckets: [u64; BOUNDARIES],
}

impl Took {
    /// Returns each boundary in nanoseconds, with the number of commands below it and not below the previous boundary.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        (FIRST..).map(|power| 1 << power).zip(self.buckets)
    }
}

/// The counters of `Took` as atomics, which the worker adds to.
#[derive(Debug, Default)]
struct Counted {
    count: AtomicU64,
    nanoseconds: AtomicU64,
    buckets: [AtomicU64; BOUNDARIES],
}

/// A worker's histograms, one for each of `KINDS`.
#[derive(Debug, Default)]
pub(super) struct Times([Counted; KINDS.len()]);

impl Times {
    pub(super) fn add(&self, opcode: u8, nanoseconds: u64) {
        let kind = match opcode {
            io::READ => 0,
            io::WRITE => 1,
            _ => 2,
        };
        let Counted {
            count,
            nanoseconds: sum,
            buckets,
        } = &self.0[kind];
        Tally::add(count, 1);
        Tally::add(sum, nanoseconds);
        // Exponent of the first power of two that is greater than the latency.
        let power = u64::BITS - nanoseconds.leading_zeros();
        let at = usize::try_from(power.saturating_sub(FIRST)).unwrap_or(usize::MAX);
        if let Some(bucket) = buckets.get(at) {
            Tally::add(bucket, 1);
        }
    }

    /// Sets the histograms, for a worker that is resumed.
    pub(super) fn restore(&self, of: &[Took; KINDS.len()]) {
        for (to, from) in self.0.iter().zip(of) {
            to.count.store(from.count, Ordering::Relaxed);
            to.nanoseconds.store(from.nanoseconds, Ordering::Relaxed);
            for (to, from) in to.buckets.iter().zip(from.buckets) {
                to.store(from, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn read(&self) -> [Took; KINDS.len()] {
        [0, 1, 2].map(|kind| {
            let of: &Counted = &self.0[kind];
            let mut took = Took {
                count: of.count.load(Ordering::Relaxed),
                nanoseconds: of.nanoseconds.load(Ordering::Relaxed),
                ..Took::default()
            };
            for (to, from) in took.buckets.iter_mut().zip(&of.buckets) {
                *to = from.load(Ordering::Relaxed);
            }
            took
        })
    }
}

/// Selects the commands that are timed.
#[derive(Debug)]
pub(super) struct Timing {
    /// Number of commands up to and including the next one that is timed.
    pub left: u32,
}

impl Default for Timing {
    fn default() -> Self {
        // The first command is timed.
        Self { left: 1 }
    }
}

impl Timing {
    /// Begins to time a command, and returns its start time. The next `EVERY` - 1 commands are not timed.
    #[cold]
    pub(super) fn begin(&mut self, now: Moment) -> Moment {
        self.left = EVERY;
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_whose_boundary_is_the_first_above_it() {
        let times = Times::default();
        for (nanoseconds, opcode) in [
            (0, io::READ),
            (1023, io::READ),
            (1024, io::READ),
            (2047, io::READ),
            (1 << 35, io::WRITE),
            (u64::MAX >> 1, io::FLUSH),
        ] {
            times.add(opcode, nanoseconds);
        }
        let [reads, writes, others] = times.read();
        assert_eq!(reads.count, 4);
        assert_eq!(reads.nanoseconds, 1023 + 1024 + 2047);
        let of = |took: &Took| {
            took.buckets()
                .filter(|(_, count)| *count != 0)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&reads), [(1024, 2), (2048, 2)]);
        assert_eq!(writes.buckets().last(), Some((1 << 35, 0)));
        assert_eq!((of(&writes), writes.count), (vec![], 1));
        assert_eq!((of(&others), others.count), (vec![], 1));
    }
}
