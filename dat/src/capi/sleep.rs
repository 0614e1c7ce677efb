//! Sleeping in `evd_wait` and `cno_wait`, outside of the adapter.
//!
//! Who waits lets go of the adapter while it sleeps. It is woken by the function's interrupts, or by somebody of this
//! process who has done something with the adapter meanwhile ([`Sleep::kick`]): posted a software event, closed it,
//! taken in the very interrupt. Of several who sleep the function wakes all, but the first to look takes the interrupt and
//! what came with it; so it wakes the others. Waking up early is harmless, the waiter looks and sleeps on.
//!
//! A signal that the program has a handler for ends the wait, however the handler was set up (SA_RESTART or not), as it does
//! with poll(2). From the first sleep on the waiter holds signals back but where it sleeps, so that none is missed.

use core::cell::OnceCell;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use driver::{Clock, HeldSignals, Instant, Interrupt, Woken};

use crate::Ia;

/// How threads sleep on an adapter.
pub(super) struct Sleep {
    clock: Arc<dyn Clock>,
    /// The function's.
    interrupts: Vec<Interrupt>,
    /// How many of those are the device's, and are taken by who is woken by them; the others are left for
    /// [`Ia::progress`](dat_core::Ia::progress).
    vectors: usize,
    /// How many there are in `sleepers`, for those who would find none.
    count: AtomicU32,
    sleepers: Mutex<Vec<Interrupt>>,
}

impl Sleep {
    pub(super) fn new(ia: &Ia) -> Self {
        let hca = ia.provider().hca();
        Self {
            clock: hca.function().clock(),
            interrupts: hca.interrupts().to_vec(),
            vectors: hca.vectors(),
            count: AtomicU32::new(0),
            sleepers: Mutex::new(Vec::new()),
        }
    }

    /// A thread is going to wait, until what is returned is dropped.
    pub(super) fn enlist(&self) -> Sleeper<'_> {
        let mut interrupts = self.interrupts.clone();
        // Without one a sleeper is woken by the function, or after a second at the latest.
        let own = Interrupt::new().ok();
        interrupts.extend(own.clone());
        if let Some(own) = &own {
            self.list().push(own.clone());
            self.count.fetch_add(1, Ordering::SeqCst);
        }
        Sleeper {
            sleep: self,
            own,
            interrupts,
            signals: OnceCell::new(),
        }
    }

    /// Wakes who sleeps.
    #[inline]
    pub(super) fn kick(&self) {
        if self.count.load(Ordering::Relaxed) != 0 {
            self.wake(None);
        }
    }

    #[cold]
    fn wake(&self, except: Option<&Interrupt>) {
        for sleeper in self.list().iter() {
            if except.is_none_or(|except| !same(except, sleeper)) {
                sleeper.signal();
            }
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<Interrupt>> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that waits.
pub(super) struct Sleeper<'a> {
    sleep: &'a Sleep,
    own: Option<Interrupt>,
    /// The function's, and its own.
    interrupts: Vec<Interrupt>,
    signals: OnceCell<HeldSignals>,
}

/// A signal came, and the wait is over.
#[derive(Debug)]
pub(super) struct Signalled;

impl Sleeper<'_> {
    /// Sleeps until there is something to look at, and until then at the latest, on the function's clock. Then it has to look.
    ///
    /// # Errors
    /// A signal has come. What else has come is left for who looks next.
    pub(super) fn until(&self, deadline: u64) -> Result<(), Signalled> {
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
        let mut taken = 0;
        for vector in self.interrupts.iter().take(self.sleep.vectors) {
            // A look takes in all there is, however often it was signalled.
            taken += vector.take();
        }
        let _kicks = self.own.as_ref().map(Interrupt::take);
        // What we have taken nobody else wakes by, and it may be theirs.
        if taken != 0 && self.sleep.count.load(Ordering::Relaxed) > 1 {
            self.sleep.wake(self.own.as_ref());
        }
        Ok(())
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            self.sleep.list().retain(|sleeper| !same(own, sleeper));
            self.sleep.count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn same(one: &Interrupt, other: &Interrupt) -> bool {
    use std::os::fd::AsRawFd;
    one.as_fd().as_raw_fd() == other.as_fd().as_raw_fd()
}
