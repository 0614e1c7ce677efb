//! Coupling of virtual time to real time, for functions with a wire to another process.
//!
//! The operating system may not schedule the thread that advances virtual time for a while. If virtual time then
//! advanced by all of that time at once, timers would expire before the thread reads answers that have arrived at the
//! wire. So a step is limited, and virtual time stays behind real time by the rest.

use std::time::{Duration, Instant};

/// Largest step of virtual time.
const STEP: Duration = Duration::from_millis(2);

/// Computes the steps of virtual time from real time.
#[derive(Debug)]
pub struct Pace {
    /// Real time of the last step.
    before: Instant,
}

impl Pace {
    /// Creates a pace that starts at the real time `now`.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { before: now }
    }

    /// Returns the real time since the last step, limited to 2 ms. The rest is dropped.
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
