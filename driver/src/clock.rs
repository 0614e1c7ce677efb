//! Time and sleeping, behind one trait.
//!
//! A driver above this crate reads the time and sleeps only through the clock of its [`Function`], never through the
//! system. On hardware that clock is [`RealClock`]. A simulated function has a clock of its own, whose time advances
//! only while a thread waits, so that a run is repeatable.
//!
//! [`Function`]: crate::Function
//! [`RealClock`]: crate::RealClock

use std::marker::PhantomData;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::interrupt::Interrupt;
use crate::signals::HeldSignals;

/// Longest duration of a single wait. Every wait is bounded.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// A point in time: nanoseconds since an arbitrary origin, which differs from clock to clock.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Instant(pub u64);

impl Instant {
    /// Returns the time `duration` later, or the largest representable time if that overflows.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanoseconds(duration)))
    }

    /// Returns the time that has passed since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Self;
    /// Returns the time `duration` later, saturating.
    fn add(self, duration: Duration) -> Self {
        self.saturating_add(duration)
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    /// Returns the time `duration` earlier, saturating at zero.
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanoseconds(duration)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    /// Returns the time that has passed since `earlier`, saturating at zero.
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

/// Reason why a wait that admits signals ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// An interrupt is pending; it stays signalled.
    Interrupt,
    /// The deadline has passed.
    Deadline,
    /// A signal handler of the program ran.
    Signal,
}

/// Time and sleeping.
pub trait Clock: Send + Sync {
    /// Returns the current time.
    fn now(&self) -> Instant;

    /// Sleeps until one of `interrupts` is signalled or `deadline` has passed, and at most [`MAX_WAIT`]. Returns
    /// whether an interrupt is pending; it stays signalled.
    fn wait(&self, interrupts: &[Interrupt], deadline: Instant) -> bool;

    /// Stops a clock of virtual time while this thread does work that is subject to time limits. Time then passes only
    /// while this thread itself waits. Each call is ended by one call of [`go_on`](Self::go_on).
    fn hold_still(&self) {}

    /// Ends the effect of one call of [`hold_still`](Self::hold_still).
    fn go_on(&self) {}

    /// Sleeps as [`wait`](Self::wait) does, in a thread that blocks signals: the signals are unblocked during the
    /// sleep, and a signal that arrives ends the wait. A clock of virtual time does not sleep and admits no signals.
    fn wait_unless_signalled(
        &self,
        interrupts: &[Interrupt],
        deadline: Instant,
        _signals: &HeldSignals,
    ) -> Woken {
        if self.wait(interrupts, deadline) {
            Woken::Interrupt
        } else {
            Woken::Deadline
        }
    }
}

/// A guard that [holds a clock still](Clock::hold_still) until the guard is dropped.
pub struct Held {
    clock: Arc<dyn Clock>,
    /// Makes the guard `!Send`: it belongs to the thread that made it.
    _of_this_thread: PhantomData<*const ()>,
}

impl Held {
    /// Holds the clock still until the returned guard is dropped.
    #[must_use]
    pub fn new(clock: &Arc<dyn Clock>) -> Self {
        clock.hold_still();
        Self {
            clock: Arc::clone(clock),
            _of_this_thread: PhantomData,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.clock.go_on();
    }
}

/// Reads the machine's monotonic clock.
pub(crate) fn monotonic_now() -> Instant {
    // The call fails only for clocks the kernel does not know.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    Instant(now.map_or(0, nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_saturate_at_both_ends() {
        let late = Instant(u64::MAX - 5);
        assert_eq!(late + Duration::from_nanos(3), Instant(u64::MAX - 2));
        assert_eq!(late + Duration::MAX, Instant(u64::MAX));
        assert_eq!(Instant(7) - Duration::from_nanos(3), Instant(4));
        assert_eq!(Instant(7) - Duration::MAX, Instant(0));
        assert_eq!(Instant(9) - Instant(4), Duration::from_nanos(5));
        assert_eq!(Instant(4).since(Instant(9)), Duration::ZERO);
    }
}
