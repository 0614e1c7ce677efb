//! Rate limit: a number per second, of which as many at once after a pause.

use std::time::Duration;

/// Limit on the rate of an action.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Time that one action costs.
    each: Duration,
    /// Time up to which the budget is spent; at most a burst ahead of the current time.
    spent: Duration,
    burst: Duration,
}

impl Budget {
    /// Makes a budget of `per_second` actions, of which those of one second may come at once. Zero counts as one per
    /// second.
    pub(crate) fn new(per_second: u32) -> Self {
        let burst = Duration::from_secs(1);
        let each = burst / per_second.max(1);
        Self {
            each,
            burst: each * per_second.max(1),
            spent: Duration::ZERO,
        }
    }

    /// Takes one action, or returns when the next may be taken.
    pub(crate) fn take(&mut self, now: Duration) -> Result<(), Duration> {
        let spent = self.spent.max(now) + self.each;
        if spent > now + self.burst {
            return Err(spent - self.burst);
        }
        self.spent = spent;
        Ok(())
    }
}
