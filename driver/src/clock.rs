//! Time and sleeping, behind one trait.
//!
//! Nothing above this crate asks the machine for the time or sleeps on its own: it asks its [`Function`]'s clock.
//! On hardware that is [`RealClock`]; a simulated function brings its own, whose time moves only when
//! somebody waits, and a run is repeatable.
//!
//! [`Function`]: crate::Function

use std::marker::PhantomData;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::interrupt::Interrupt;
use crate::signals::HeldSignals;

/// The longest a single wait takes: no wait is without a bound.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// A point in time: nanoseconds since an arbitrary origin, which differs from clock to clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The time `duration` later; the end of time if there is no such.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanoseconds(duration)))
    }

    /// The time that has passed since `earlier`; zero if it is later.
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
    /// Saturates.
    fn add(self, duration: Duration) -> Self {
        self.saturating_add(duration)
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    /// Saturates.
    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanoseconds(duration)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    /// Saturates.
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

/// Why a wait that lets signals in is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// An interrupt is pending; it is left signalled.
    Interrupt,
    /// The deadline has come.
    Deadline,
    /// A handler of the program's has taken a signal.
    Signal,
}

/// Time and sleeping.
pub trait Clock: Send + Sync {
    /// The time.
    fn now(&self) -> Instant;

    /// Sleeps until one of `interrupts` is signalled or `deadline` has come, and at most [`MAX_WAIT`].
    /// Returns whether an interrupt is pending; it is left signalled.
    fn wait(&self, interrupts: &[Interrupt], deadline: Instant) -> bool;

    /// This thread is at something that has limits of time, until it [goes on](Self::go_on) as often: a clock of
    /// virtual time stands still meanwhile, unless the thread waits itself.
    fn hold_still(&self) {}

    /// The end of what [`hold_still`](Self::hold_still) began.
    fn go_on(&self) {}

    /// Sleeps as [`wait`](Self::wait) does, in a thread that holds signals back: they are let in while it sleeps, and
    /// one that comes ends the wait. A clock of virtual time does not sleep, and lets none in.
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

/// A clock that is [held still](Clock::hold_still), until this is dropped.
pub struct Held {
    clock: Arc<dyn Clock>,
    /// It is the thread's, and may not go to another one.
    _of_this_thread: PhantomData<*const ()>,
}

impl Held {
    /// Holds it.
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

/// The machine's monotonic time.
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
