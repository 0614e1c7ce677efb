//! Sleeping in `evd_wait` and `cno_wait`, without access to the adapter.
//!
//! A waiting thread gives up access to the adapter while it sleeps. It is woken by the function's interrupts, or by a
//! thread that has changed the adapter's state ([`Sleep::kick`]): a thread that has posted a software event, closed the
//! adapter, or taken the interrupt itself ([`Sleepers`]). A thread that has taken an interrupt reports that to the
//! driver when it next accesses the adapter ([`Taken`]). A spurious wake-up is harmless: the thread checks its
//! condition and sleeps again.
//!
//! A signal with a handler ends the wait, with SA_RESTART or without, as it ends poll(2). From its first sleep on,
//! the thread blocks signals except while it sleeps, so that it misses none.

use core::cell::OnceCell;
use std::sync::Arc;

use driver::{Clock, Held, HeldSignals, Instant, Interrupt, Woken};

use super::sleepers::{Enlisted, Sleepers};
use crate::Ia;

/// Interrupts and clock for sleeping on an adapter.
pub(super) struct Sleep {
    clock: Arc<dyn Clock>,
    /// Interrupts of the function: the device's vectors first.
    interrupts: Vec<Interrupt>,
    /// Number of the device's vectors in `interrupts`. A woken thread clears these; the other interrupts are left for
    /// [`Ia::progress`](dat_core::Ia::progress).
    vectors: usize,
    sleepers: Sleepers,
}

impl Sleep {
    pub(super) fn new(ia: &Ia) -> Self {
        let hca = ia.provider().hca();
        Self {
            clock: hca.function().clock(),
            interrupts: hca.interrupts().to_vec(),
            vectors: hca.vectors(),
            sleepers: Sleepers::new(),
        }
    }

    /// Stops the function's clock, if its time is virtual, until the returned value is dropped.
    pub(super) fn hold_time(&self) -> Held {
        Held::new(&self.clock)
    }

    /// Registers a thread that is about to wait, until the returned value is dropped.
    pub(super) fn enlist(&self) -> Sleeper<'_> {
        let mut interrupts = self.interrupts.clone();
        // If no eventfd is left, only the function's interrupts or the limit of one second wake the thread.
        let own = Interrupt::new().ok();
        interrupts.extend(own.clone());
        Sleeper {
            sleep: self,
            own: own.map(|own| self.sleepers.enlist(own)),
            interrupts,
            signals: OnceCell::new(),
        }
    }

    /// Wakes all sleeping threads.
    #[inline]
    pub(super) fn kick(&self) {
        self.sleepers.kick();
    }
}

/// A waiting thread.
pub(super) struct Sleeper<'a> {
    sleep: &'a Sleep,
    own: Option<Enlisted<'a>>,
    /// Interrupts of the function, then the thread's own interrupt.
    interrupts: Vec<Interrupt>,
    signals: OnceCell<HeldSignals>,
}

/// The function's interrupts that a thread has taken, that is, cleared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    taken: bool,
    /// Index of the last vector taken. Other instances may share this vector; they do not share the wakeup.
    last: Option<usize>,
}

impl Taken {
    pub(super) const NOTHING: Self = Self {
        taken: false,
        last: None,
    };

    /// Clears the signals of the vectors and of the last interrupt, the wakeup. The next access processes everything,
    /// however many signals there were.
    pub(super) fn by(interrupts: &[Interrupt]) -> Self {
        // The wakeup is not shared with other instances.
        let Some((wakeup, vectors)) = interrupts.split_last() else {
            return Self::NOTHING;
        };
        let mut taken = wakeup.take() > 0;
        let mut last = None;
        for (at, vector) in vectors.iter().enumerate() {
            if vector.take() > 0 {
                (taken, last) = (true, Some(at));
            }
        }
        Self { taken, last }
    }

    /// Reports to the driver that a shared interrupt was taken, so that other instances check for events, too. The
    /// caller must hold the lock, and must call this before it checks for events itself.
    pub(super) fn share(self, ia: &Ia) {
        if let Some(at) = self.last {
            ia.provider().hca().interrupt_taken(at);
        }
    }
}

/// Error: a signal has arrived, which ends the wait.
#[derive(Debug)]
pub(super) struct Signalled;

impl Sleeper<'_> {
    /// Returns whether a thread has woken this one since the last call.
    #[cfg(test)]
    pub(super) fn is_kicked(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.take() != 0)
    }

    /// Sleeps until an event may have arrived, or until the deadline on the function's clock. Then the caller must
    /// check for events.
    ///
    /// # Errors
    /// A signal has arrived. Interrupts are not cleared, so that the next check finds them.
    pub(super) fn until(&self, deadline: u64) -> Result<Taken, Signalled> {
        let signals = self.signals.get_or_init(HeldSignals::hold);
        // Deliver pending signals first. Otherwise an interrupt that stays signalled could delay them without limit.
        if signals.let_in() {
            return Err(Signalled);
        }
        let clock = &self.sleep.clock;
        let woken = clock.wait_unless_signalled(&self.interrupts, Instant(deadline), signals);
        if woken == Woken::Signal {
            return Err(Signalled);
        }
        let taken = Taken::by(&self.interrupts[..self.sleep.vectors]);
        if let Some(own) = &self.own {
            let _kicks = own.take();
        }
        if taken.taken {
            self.sleep.sleepers.taken_by(self.own.as_ref());
        }
        Ok(taken)
    }
}
