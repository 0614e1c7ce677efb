//! Who sleeps on an adapter, and how others wake them.
//!
//! Several sleep on the same interrupts of the device. All are woken, but the first to look takes the signal, and in
//! its look what came with it, which may be another's: so it wakes the others, each by a signal of its own. Whoever
//! does something in a turn that a sleeper may wait for wakes all, too.
//!
//! No wakeup is lost, because a sleeper is on the list before it looks, in a turn, and looks again before it sleeps:
//! who comes by later finds it there.

use std::sync::PoisonError;

use super::primitives::{AtomicU32, Interrupt, Mutex, MutexGuard, Ordering};

pub(super) struct Sleepers {
    /// How many there are in `list`, for those who would find none.
    count: AtomicU32,
    list: Mutex<Vec<Interrupt>>,
}

impl Sleepers {
    pub(super) fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            list: Mutex::new(Vec::new()),
        }
    }

    /// A thread is going to sleep, now and again, until what is returned is dropped.
    pub(super) fn enlist(&self, own: Interrupt) -> Enlisted<'_> {
        self.list().push(own.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
        Enlisted {
            sleepers: self,
            own,
        }
    }

    /// Wakes all. In a turn.
    #[inline]
    pub(super) fn kick(&self) {
        if self.count.load(Ordering::Relaxed) != 0 {
            self.wake(None);
        }
    }

    /// A sleeper has taken a signal of the device's: what came with it may be others'.
    pub(super) fn taken_by(&self, own: Option<&Enlisted<'_>>) {
        let others = u32::from(own.is_some());
        if self.count.load(Ordering::Relaxed) > others {
            self.wake(own);
        }
    }

    #[cold]
    fn wake(&self, except: Option<&Enlisted<'_>>) {
        for sleeper in self.list().iter() {
            if except.is_none_or(|except| !except.own.is(sleeper)) {
                sleeper.signal();
            }
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<Interrupt>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that is woken by others.
pub(super) struct Enlisted<'a> {
    sleepers: &'a Sleepers,
    own: Interrupt,
}

impl Enlisted<'_> {
    /// It was woken, or not; it looks anyway.
    pub(super) fn take(&self) {
        let _kicks = self.own.take();
    }
}

impl Drop for Enlisted<'_> {
    fn drop(&mut self) {
        self.sleepers.list().retain(|sleeper| !self.own.is(sleeper));
        self.sleepers.count.fetch_sub(1, Ordering::SeqCst);
    }
}
