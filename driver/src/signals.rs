//! Blocking of signals in a thread of the program while it executes a blocking call of this library.
//!
//! A blocking call has to end when a signal arrives. If a signal arrived just before the thread sleeps, its handler
//! would run and the thread would still go to sleep. So the thread blocks signals during the call, and unblocks them
//! only while it sleeps ([`Clock::wait_unless_signalled`](crate::Clock::wait_unless_signalled)) or polls for them
//! ([`HeldSignals::let_in`]), as programs do with ppoll(2).
//!
//! A thread inherits its creator's signal mask. So a thread that is started while signals are blocked never receives
//! one: the kernel delivers signals for the process to the program's own threads.

use std::marker::PhantomData;

use nix::errno::Errno;
use nix::poll::ppoll;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::time::TimeSpec;

/// Signals that report a fault of the thread itself. They are delivered at the faulting instruction and never blocked.
const FAULTS: [Signal; 6] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGTRAP,
    Signal::SIGSYS,
];

/// A guard that blocks all signals except faults in the thread that made it, until it is dropped. On drop, the signals
/// that arrived meanwhile are delivered, unless `let_in` or a wait has delivered them before.
#[derive(Debug)]
pub struct HeldSignals {
    /// Signal mask that the thread had before; `None` if it could not be changed.
    before: Option<SigSet>,
    /// Makes the guard `!Send`, because the signal mask belongs to the thread that made the guard.
    _of_this_thread: PhantomData<*const ()>,
}

impl HeldSignals {
    /// Blocks all signals except faults in the calling thread.
    #[must_use]
    pub fn hold() -> Self {
        let mut held = SigSet::all();
        FAULTS.into_iter().for_each(|fault| held.remove(fault));
        // The call fails only if its first argument is invalid.
        let before = held.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok();
        Self {
            before,
            _of_this_thread: PhantomData,
        }
    }

    /// Delivers pending signals. Returns whether one with a handler was delivered.
    #[must_use]
    pub fn let_in(&self) -> bool {
        let at_once = TimeSpec::new(0, 0);
        ppoll(&mut [], Some(at_once), self.before) == Err(Errno::EINTR)
    }

    /// Returns the thread's original signal mask, which a sleeping call sets to let signals in. `None` if the mask was
    /// not changed.
    pub(crate) const fn before(&self) -> Option<SigSet> {
        self.before
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // The call cannot fail, as above.
            let _restored = before.thread_set_mask();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::{Clock, Instant, Woken};
    use crate::interrupt::Interrupt;
    use crate::real_clock::RealClock;

    fn blocked(signal: Signal) -> bool {
        SigSet::thread_get_mask().unwrap().contains(signal)
    }

    #[test]
    fn all_but_faults_are_held_back_and_again_what_was_before() {
        let mut mine = SigSet::empty();
        mine.add(Signal::SIGUSR2);
        mine.thread_block().unwrap();
        {
            let held = HeldSignals::hold();
            assert!(blocked(Signal::SIGINT) && blocked(Signal::SIGUSR2));
            assert!(!FAULTS.into_iter().any(blocked));
            assert!(!held.let_in(), "none has come");
            assert!(blocked(Signal::SIGINT), "held again");
            let inherits = std::thread::spawn(|| blocked(Signal::SIGINT));
            assert!(inherits.join().unwrap());
        }
        assert!(!blocked(Signal::SIGINT) && blocked(Signal::SIGUSR2));
    }

    #[test]
    fn a_wait_that_lets_signals_in_keeps_the_promises_of_any_wait() {
        let (clock, held) = (RealClock::new(), HeldSignals::hold());
        let interrupts = [Interrupt::new().unwrap(), Interrupt::new().unwrap()];
        let deadline = clock.now() + Duration::from_millis(1);
        let woken = clock.wait_unless_signalled(&interrupts, deadline, &held);
        assert_eq!(woken, Woken::Deadline);
        assert!(clock.now() >= deadline);
        interrupts[1].signal();
        let woken = clock.wait_unless_signalled(&interrupts, Instant(u64::MAX), &held);
        assert_eq!(woken, Woken::Interrupt);
        assert_eq!(interrupts[1].take(), 1);
    }
}
