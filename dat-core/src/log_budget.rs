//! Limits on the log lines that a peer, or an unknown host on the network, can cause.
//!
//! Without a limit, a host that sends often enough could fill a disk with log lines. Each kind of line has a budget:
//! the first [`LINES`] lines within [`PERIOD`] are written, the others are only counted. The next line of the kind that
//! is written reports the number of lines that were not written.

use core::time::Duration;

use crate::provider::Nanos;

/// Number of lines of a kind that are written within a period.
pub const LINES: u32 = 8;
/// Duration of a period, measured from its first line.
pub const PERIOD: Duration = Duration::from_secs(10);

/// The budget of one kind of line.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogBudget {
    /// End of the current period; 0 before the first period.
    over_at: Nanos,
    /// Number of lines written in the period.
    written: u32,
    /// Number of suppressed lines since the last written line.
    unlogged: u64,
}

impl LogBudget {
    /// Returns the number of lines of this kind that were suppressed since the last written line. Returns `None` if
    /// this line must be suppressed, too.
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
