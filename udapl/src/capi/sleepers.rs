//! Threads that sleep on an adapter, and how other threads wake them.
//!
//! Several threads sleep on the same interrupts of the device. The interrupt wakes all of them, but the first one to
//! check clears the signal and takes the events, which may be for another thread. So it wakes the others, each by an
//! interrupt of its own. A thread that changes, under the lock, a condition that a sleeping thread may wait for also
//! wakes all. So does a thread that breaks the adapter, under the lock or in the lane.
//!
//! No wake-up is lost: a thread registers first, then checks its condition under the lock, and only then sleeps. A
//! thread that changes the condition after the check finds the sleeping thread registered.

use std::sync::PoisonError;

use super::primitives::{AtomicU32, Interrupt, Mutex, MutexGuard, Ordering};

pub(super) struct Sleepers {
    /// Length of `list`, so that an empty list need not be locked.
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

    /// Registers a thread that is about to sleep, until the returned value is dropped.
    pub(super) fn enlist(&self, own: Interrupt) -> Enlisted<'_> {
        self.list().push(own.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
        Enlisted {
            sleepers: self,
            own,
        }
    }

    /// Wakes all registered threads. The caller must hold the lock or be in the lane. `count` then includes every
    /// thread that has registered and has checked its condition under the lock.
    #[inline]
    pub(super) fn kick(&self) {
        if self.count.load(Ordering::Relaxed) != 0 {
            self.wake(None);
        }
    }

    /// Wakes all registered threads except `own`. Called by a thread that has cleared a signal of the device, with
    /// which events of the other threads may have come.
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

/// A registered thread.
pub(super) struct Enlisted<'a> {
    sleepers: &'a Sleepers,
    own: Interrupt,
}

impl Enlisted<'_> {
    /// Clears the thread's own interrupt. Returns the number of its signals. The thread checks its condition in any
    /// case.
    pub(super) fn take(&self) -> u64 {
        self.own.take()
    }
}

impl Drop for Enlisted<'_> {
    fn drop(&mut self) {
        self.sleepers.list().retain(|sleeper| !self.own.is(sleeper));
        self.sleepers.count.fetch_sub(1, Ordering::SeqCst);
    }
}
