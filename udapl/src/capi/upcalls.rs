//! Work that calls leave for a thread: how it comes to know of it, and of the end.
//!
//! ```text
//!     tell: list += work; signal            the thread: while not over:
//!     end:  over = true; signal                 take the list, do the work
//!                                               sleep until signalled; take the signal
//!                                           take the list, do the work
//! ```
//!
//! The signal is taken before the list is looked at, so that work that comes after the look is signalled again. What is
//! told before the end is done, by the thread, once.

use std::sync::PoisonError;

use super::primitives::{AtomicBool, Interrupt, Mutex, Ordering};

/// What the thread and those who tell it share.
pub(super) struct Upcalls<T> {
    waiting: Mutex<Vec<T>>,
    wake: Interrupt,
    over: AtomicBool,
}

impl<T> Upcalls<T> {
    /// None yet.
    pub(super) fn new(wake: Interrupt) -> Self {
        Self {
            waiting: Mutex::new(Vec::new()),
            wake,
            over: AtomicBool::new(false),
        }
    }

    /// There is something to do.
    pub(super) fn tell(&self, work: T) {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(work);
        self.wake.signal();
    }

    /// What there is to do, oldest first.
    pub(super) fn take(&self) -> Vec<T> {
        core::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Nobody tells of anything any more.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.wake.signal();
    }

    /// What the thread does: has `look` take the list and do what it can, until it is over or `look` says that nobody
    /// will say so; `sleep` sleeps until it is signalled, and takes the signal. What is left in the end.
    pub(super) fn serve(&self, mut look: impl FnMut() -> bool, mut sleep: impl FnMut()) -> Vec<T> {
        while !self.over.load(Ordering::SeqCst) {
            if !look() {
                return Vec::new();
            }
            sleep();
        }
        self.take()
    }
}
