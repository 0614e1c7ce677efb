//! So many a second, and as many at once after a pause.

use std::time::Duration;

/// What may be done at a bounded rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// What each costs, in time.
    each: Duration,
    /// Up to when all is spent; at most a burst ahead of the time.
    spent: Duration,
    burst: Duration,
}

impl Budget {
    /// `per_second` of them, of which all of a second's may come at once. Nought is one in a second.
    pub(crate) fn new(per_second: u32) -> Self {
        let burst = Duration::from_secs(1);
        let each = burst / per_second.max(1);
        Self {
            each,
            burst: each * per_second.max(1),
            spent: Duration::ZERO,
        }
    }

    /// Takes one, or says when the next may be taken.
    pub(crate) fn take(&mut self, now: Duration) -> Result<(), Duration> {
        let spent = self.spent.max(now) + self.each;
        if spent > now + self.burst {
            return Err(spent - self.burst);
        }
        self.spent = spent;
        Ok(())
    }
}
