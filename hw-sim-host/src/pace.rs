//! How a world's time follows the machine's, where functions have a wire to another process.
//!
//! Who moves such a world is now and then not given the processor for long. If the world's time then made up for it,
//! timers would run out, one after the other, before an answer that waits at the wire is looked at; so what was missed
//! is missed, and the world is behind from then on.

use std::time::{Duration, Instant};

/// The most that the world's time moves on at once.
const STEP: Duration = Duration::from_millis(2);

/// By how much a world's time is to move on, asked again and again.
#[derive(Debug)]
pub struct Pace {
    /// When it was asked last.
    before: Instant,
}

impl Pace {
    /// From now on.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { before: now }
    }

    /// What has passed since this was last asked, but not more than 2 ms, and what is more than that never comes.
    pub fn step(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.before);
        self.before = now;
        passed.min(STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_was_missed_is_not_made_up_for() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let mut pace = Pace::new(start);
        let millisecond = Duration::from_millis(1);
        assert_eq!(pace.step(after(1)), millisecond);
        let late = pace.step(after(10_001));
        assert_eq!(late, STEP, "ten seconds without the processor");
        assert_eq!(pace.step(after(10_002)), millisecond, "nothing is owed");
        assert_eq!(pace.step(after(5)), Duration::ZERO, "it never goes back");
    }
}
