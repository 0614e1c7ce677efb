//! How many lines of the log a peer, or a stranger on the network, can cause.
//!
//! Whoever knocks often enough fills a disk with what is said of each knock. Each kind of such line has a budget: the
//! first [`LINES`] within [`PERIOD`] are written, the others are counted, and the first line of the kind that is
//! written after that says how many were not.

use core::time::Duration;

use crate::provider::Nanos;

/// Lines of a kind that are written within a period.
pub const LINES: u32 = 8;
/// How long a period lasts from its first line on.
pub const PERIOD: Duration = Duration::from_secs(10);

/// The budget of one kind of line.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogBudget {
    /// When the period is over; 0 before the first one.
    over_at: Nanos,
    /// Lines written in it.
    written: u32,
    /// Lines not written since the last one that was.
    unlogged: u64,
}

impl LogBudget {
    /// Whether a line is to be written, and how many of its kind were not since the last one that was.
    pub fn take(&mut self, now: Nanos) -> Option<u64> {
        if now >= self.over_at {
            let period = u64::try_from(PERIOD.as_nanos()).unwrap_or(u64::MAX);
            self.over_at = now.saturating_add(period);
            self.written = 0;
        }
        if self.written == LINES {
            self.unlogged += 1;
            return None;
        }
        self.written += 1;
        Some(core::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn a_period_has_eight_lines_and_the_next_one_says_how_many_there_were_besides() {
        let mut budget = LogBudget::default();
        let written = (0..100).filter(|n| budget.take(SECOND + n) == Some(0));
        assert_eq!(written.count(), 8);
        assert_eq!(budget.take(11 * SECOND - 1), None);
        assert_eq!(budget.take(11 * SECOND), Some(93));
        assert_eq!(budget.take(11 * SECOND), Some(0));
    }

    #[test]
    fn lines_far_apart_are_all_written() {
        let mut budget = LogBudget::default();
        assert!((0..1000).all(|n| budget.take(n * 10 * SECOND) == Some(0)));
    }
}
