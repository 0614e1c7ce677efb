//! Sleeping in `evd_wait` and `cno_wait`, outside of the adapter.
//!
//! Who waits lets go of the adapter while it sleeps. It is woken by the function's interrupts, or by somebody of this
//! process who has done something with the adapter meanwhile ([`Sleep::kick`]): posted a software event, closed it,
//! taken in the very interrupt ([`Sleepers`]). Who has taken an interrupt says so in its next look ([`Taken`]). Waking
//! up early is harmless, the waiter looks and sleeps on.
//!
//! A signal that the program has a handler for ends the wait, however the handler was set up (SA_RESTART or not), as it
//! does with poll(2). From the first sleep on the waiter holds signals back but where it sleeps, so that none is
//! missed.

use core::cell::OnceCell;
use std::sync::Arc;

use driver::{Clock, Held, HeldSignals, Instant, Interrupt, Woken};

use super::sleepers::{Enlisted, Sleepers};
use crate::Ia;

/// How threads sleep on an adapter.
pub(super) struct Sleep {
    clock: Arc<dyn Clock>,
    /// The function's.
    interrupts: Vec<Interrupt>,
    /// How many of those are the device's, and are taken by who is woken by them; the others are left for
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

    /// The function's clock, if that is one of virtual time, stands still until what is returned is dropped.
    pub(super) fn hold_time(&self) -> Held {
        Held::new(&self.clock)
    }

    /// A thread is going to wait, until what is returned is dropped.
    pub(super) fn enlist(&self) -> Sleeper<'_> {
        let mut interrupts = self.interrupts.clone();
        // Without one a sleeper is woken by the function, or after a second at the latest.
        let own = Interrupt::new().ok();
        interrupts.extend(own.clone());
        Sleeper {
            sleep: self,
            own: own.map(|own| self.sleepers.enlist(own)),
            interrupts,
            signals: OnceCell::new(),
        }
    }

    /// Wakes who sleeps.
    #[inline]
    pub(super) fn kick(&self) {
        self.sleepers.kick();
    }
}

/// A thread that waits.
pub(super) struct Sleeper<'a> {
    sleep: &'a Sleep,
    own: Option<Enlisted<'a>>,
    /// The function's, and its own.
    interrupts: Vec<Interrupt>,
    signals: OnceCell<HeldSignals>,
}

/// Which of the function's interrupts a sleeper has taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    taken: bool,
    /// The last of the vectors in the list, which is the one that others may share.
    last: Option<usize>,
}

impl Taken {
    pub(super) const NOTHING: Self = Self {
        taken: false,
        last: None,
    };

    /// Takes what is signalled of vectors and, behind them, the wakeup. A look takes in all there is, however often it
    /// was.
    pub(super) fn by(interrupts: &[Interrupt]) -> Self {
        // The wakeup is the instance's alone.
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

    /// Has other instances look whose interrupt it may have been, too. In a turn, before one's own look.
    pub(super) fn share(self, ia: &Ia) {
        if let Some(at) = self.last {
            ia.provider().hca().interrupt_taken(at);
        }
    }
}

/// A signal came, and the wait is over.
#[derive(Debug)]
pub(super) struct Signalled;

impl Sleeper<'_> {
    /// Sleeps until there is something to look at, and until then at the latest, on the function's clock. Then it has
    /// to look.
    ///
    /// # Errors
    /// A signal has come. What else has come is left for who looks next.
    pub(super) fn until(&self, deadline: u64) -> Result<Taken, Signalled> {
        let signals = self.signals.get_or_init(HeldSignals::hold);
        // What wakes us all the time must not keep them out.
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
            own.take();
        }
        if taken.taken {
            self.sleep.sleepers.taken_by(self.own.as_ref());
        }
        Ok(taken)
    }
}
