//! The machine's clock, and sleeping by it.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::backend::Backend;
use crate::clock::{Clock, Instant, MAX_WAIT, Woken, monotonic_now};
use crate::function::Function;
use crate::interrupt::Interrupt;
use crate::reactor::{Reactor, Wake};
use crate::signals::HeldSignals;

/// The machine's monotonic clock. [`Clock::wait`] for interrupts uses an io_uring, or ppoll(2) without one. A wait that
/// a signal may end, and a wait without interrupts, use ppoll(2).
#[derive(Default)]
pub struct RealClock {
    /// Reactors not in use. There are as many reactors as threads that ever waited at the same time.
    idle: Mutex<Vec<Reactor>>,
}

impl RealClock {
    /// Makes a clock.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            idle: Mutex::new(Vec::new()),
        }
    }
}

impl Clock for RealClock {
    fn now(&self) -> Instant {
        monotonic_now()
    }

    fn wait(&self, interrupts: &[Interrupt], deadline: Instant) -> bool {
        if interrupts.is_empty() {
            poll_until(interrupts, None, deadline, None);
            return false;
        }
        let idle = self.idle.lock().ok().and_then(|mut idle| idle.pop());
        let waited = idle
            .map_or_else(|| Reactor::of_any_thread(64), Ok)
            .and_then(|mut reactor| {
                let wake = reactor.wait(interrupts, deadline)?;
                if let Ok(mut idle) = self.idle.lock() {
                    idle.push(reactor);
                }
                Ok(wake == Wake::Interrupt)
            });
        waited.unwrap_or_else(|error| {
            tracing::warn!("waiting with poll: {error}");
            poll_until(interrupts, None, deadline, None) == Some(Woken::Interrupt)
        })
    }

    fn wait_unless_signalled(
        &self,
        interrupts: &[Interrupt],
        deadline: Instant,
        signals: &HeldSignals,
    ) -> Woken {
        poll_until(interrupts, None, deadline, Some(signals)).unwrap_or(Woken::Deadline)
    }
}

/// Waits by one ppoll(2), which sets the signal mask for the sleep. It needs no io_uring, which containers and small
/// memory limits may deny. Without `signals` no signal ends the wait. `None`: `other` is ready, and no interrupt.
pub(crate) fn poll_until(
    interrupts: &[Interrupt],
    other: Option<BorrowedFd<'_>>,
    deadline: Instant,
    signals: Option<&HeldSignals>,
) -> Option<Woken> {
    let vectors = interrupts.iter().map(Interrupt::as_fd);
    let mut fds: Vec<PollFd<'_>> = vectors
        .chain(other)
        .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
        .collect();
    let mask = signals.and_then(HeldSignals::before);
    loop {
        let left = deadline.since(monotonic_now()).min(MAX_WAIT);
        match ppoll(&mut fds, Some(TimeSpec::from(left)), mask) {
            Ok(0) => return Some(Woken::Deadline),
            Ok(_) => {
                let mut vectors = fds.iter().take(interrupts.len());
                let interrupted = vectors.any(|fd| fd.any().unwrap_or(true));
                return interrupted.then_some(Woken::Interrupt);
            }
            Err(Errno::EINTR) if signals.is_some() => return Some(Woken::Signal),
            Err(Errno::EINTR) => {}
            Err(errno) => {
                tracing::error!("ppoll of {} interrupts: {errno}", interrupts.len());
                let pending = interrupts.iter().any(Interrupt::is_pending);
                return Some(if pending {
                    Woken::Interrupt
                } else {
                    Woken::Deadline
                });
            }
        }
    }
}

impl Function {
    /// Returns the clock of this function: the machine's, or that of the simulation.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        match self.backend() {
            Backend::InProcess(device) => device.clock(),
            Backend::VfioUser(_) | Backend::Vfio(_) => Arc::new(RealClock::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_real_clock_does_not_run_backwards() {
        let clock = RealClock::new();
        let first = clock.now();
        assert!(first > Instant(0));
        assert!(clock.now() >= first);
    }

    #[test]
    fn a_sleep_makes_no_ring() {
        let clock = RealClock::new();
        let deadline = clock.now() + Duration::from_millis(1);
        assert!(!clock.wait(&[], deadline));
        assert!(clock.now() >= deadline);
        assert!(clock.idle.lock().unwrap().is_empty());
    }

    #[test]
    fn waiting_without_a_ring_keeps_the_same_promises() {
        let interrupts = [Interrupt::new().unwrap(), Interrupt::new().unwrap()];
        let deadline = monotonic_now() + Duration::from_millis(1);
        assert_eq!(
            poll_until(&interrupts, None, deadline, None),
            Some(Woken::Deadline)
        );
        assert!(monotonic_now() >= deadline);
        interrupts[1].signal();
        let woken = |other| poll_until(&interrupts, other, Instant(u64::MAX), None);
        assert_eq!(woken(None), Some(Woken::Interrupt));
        let other = Interrupt::new().unwrap();
        other.signal();
        assert_eq!(woken(Some(other.as_fd())), Some(Woken::Interrupt));
        assert_eq!(interrupts[1].take(), 1);
        assert_eq!(woken(Some(other.as_fd())), None, "no interrupt is pending");
    }
}
