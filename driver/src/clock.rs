//! Time and sleeping, behind one trait.
//!
//! Nothing above this crate asks the machine for the time or sleeps on its own: it asks its [`Function`]'s clock.
//! On hardware that is [`RealClock`]; a simulated function brings its own, whose time moves only when
//! somebody waits, and a run is repeatable.
//!
//! [`Function`]: crate::Function

use std::marker::PhantomData;
use std::ops::{Add, Sub};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

use crate::interrupt::Interrupt;
use crate::reactor::{Reactor, Wake};
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

    /// This thread is at something that has limits of time, until it [goes on](Self::go_on) as often: a clock of virtual time
    /// stands still meanwhile, unless the thread waits itself.
    fn hold_still(&self) {}

    /// The end of what [`hold_still`](Self::hold_still) began.
    fn go_on(&self) {}

    /// Sleeps as [`wait`](Self::wait) does, in a thread that holds signals back: they are let in while it sleeps, and one that
    /// comes ends the wait. A clock of virtual time does not sleep, and lets none in.
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

/// The machine's monotonic clock. Waits through an io_uring.
#[derive(Default)]
pub struct RealClock {
    /// Rings not in use: one for every thread that has waited at the same time as others.
    idle: Mutex<Vec<Reactor>>,
}

impl RealClock {
    /// A clock.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            idle: Mutex::new(Vec::new()),
        }
    }
}

/// The machine's monotonic time.
pub(crate) fn monotonic_now() -> Instant {
    // The call fails only for clocks the kernel does not know.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    Instant(now.map_or(0, nanoseconds))
}

impl Clock for RealClock {
    fn now(&self) -> Instant {
        monotonic_now()
    }

    fn wait(&self, interrupts: &[Interrupt], deadline: Instant) -> bool {
        let idle = self.idle.lock().ok().and_then(|mut idle| idle.pop());
        let waited = idle
            .map_or_else(|| Reactor::new(64), Ok)
            .and_then(|mut reactor| {
                let wake = reactor.wait(interrupts, deadline)?;
                if let Ok(mut idle) = self.idle.lock() {
                    idle.push(reactor);
                }
                Ok(wake == Wake::Interrupt)
            });
        waited.unwrap_or_else(|error| {
            tracing::warn!("waiting with poll: {error}");
            poll_until(interrupts, deadline, None) == Woken::Interrupt
        })
    }

    fn wait_unless_signalled(
        &self,
        interrupts: &[Interrupt],
        deadline: Instant,
        signals: &HeldSignals,
    ) -> Woken {
        poll_until(interrupts, deadline, Some(signals))
    }
}

/// Waits without a ring, which containers and small memory limits deny, and which has no say over signals: once around
/// ppoll(2). Without `signals` no signal ends the wait.
fn poll_until(interrupts: &[Interrupt], deadline: Instant, signals: Option<&HeldSignals>) -> Woken {
    let mut fds: Vec<PollFd<'_>> = interrupts
        .iter()
        .map(|interrupt| PollFd::new(interrupt.as_fd(), PollFlags::POLLIN))
        .collect();
    let mask = signals.and_then(HeldSignals::before);
    loop {
        let left = deadline.since(monotonic_now()).min(MAX_WAIT);
        match ppoll(&mut fds, Some(TimeSpec::from(left)), mask) {
            Ok(0) => return Woken::Deadline,
            Ok(_) => return Woken::Interrupt,
            Err(Errno::EINTR) if signals.is_some() => return Woken::Signal,
            Err(Errno::EINTR) => {}
            Err(errno) => {
                tracing::error!("ppoll of {} interrupts: {errno}", interrupts.len());
                let pending = interrupts.iter().any(Interrupt::is_pending);
                return if pending {
                    Woken::Interrupt
                } else {
                    Woken::Deadline
                };
            }
        }
    }
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

    #[test]
    fn the_real_clock_does_not_run_backwards() {
        let clock = RealClock::new();
        let first = clock.now();
        assert!(first > Instant(0));
        assert!(clock.now() >= first);
    }

    #[test]
    fn waiting_without_a_ring_keeps_the_same_promises() {
        let interrupts = [Interrupt::new().unwrap(), Interrupt::new().unwrap()];
        let deadline = monotonic_now() + Duration::from_millis(1);
        assert_eq!(poll_until(&interrupts, deadline, None), Woken::Deadline);
        assert!(monotonic_now() >= deadline);
        interrupts[1].signal();
        let woken = poll_until(&interrupts, Instant(u64::MAX), None);
        assert_eq!(woken, Woken::Interrupt);
        assert_eq!(interrupts[1].take(), 1);
    }
}
