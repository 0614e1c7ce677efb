//! Rate limit of a number of actions per second. After one second without an action, that number is allowed at once.

use std::time::Duration;

use crate::bounds::Bounds;
use crate::resume_error::ResumeError;

/// Time in which a budget that was used up is whole again.
const BURST: Duration = Duration::from_secs(1);

/// Limit on the rate of an action.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Time that one action uses up.
    each: Duration,
    /// Time up to which the budget is used up; at most `burst` later than the current time.
    spent: Duration,
    burst: Duration,
}

impl Budget {
    /// Makes a budget of `per_second` actions per second. The actions of one second are allowed at once after one
    /// second without an action. Zero counts as one per second.
    pub(crate) fn new(per_second: u32) -> Self {
        let each = BURST / per_second.max(1);
        Self {
            each,
            burst: each * per_second.max(1),
            spent: Duration::ZERO,
        }
    }

    /// Takes one action from the budget. If there is none left, returns the time at which the next action is allowed.
    pub(crate) fn take(&mut self, now: Duration) -> Result<(), Duration> {
        let spent = self.spent.max(now) + self.each;
        if spent > now + self.burst {
            return Err(spent - self.burst);
        }
        self.spent = spent;
        Ok(())
    }

    /// Returns the time up to which the budget is used up, for another process.
    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    /// Sets the time up to which the budget is used up, from a snapshot.
    ///
    /// # Errors
    /// The budget could not be used up to that time.
    pub(crate) fn resume(
        &mut self,
        item: &str,
        spent: Duration,
        bounds: &Bounds,
    ) -> Result<(), ResumeError> {
        bounds.timer(item, "end of the used budget", spent, BURST)?;
        // A burst may be nanoseconds shorter than a second, depending on the configuration's rate.
        self.spent = spent.min(bounds.parked.saturating_add(self.burst));
        Ok(())
    }
}
