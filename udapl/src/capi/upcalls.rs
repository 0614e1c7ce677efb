//! A queue of work for a thread: how the thread is woken, and how it ends.
//!
//! ```text
//!     push: list += work; signal            the thread: while not over:
//!     end:  over = true; signal                 take the list, do the work
//!                                               sleep until signalled; take the signal
//!                                           take the list, do the work
//! ```
//!
//! The thread clears the signal before it reads the list, so that work that is queued later signals again. The thread
//! does all work that was queued before the end, each piece once. If the adapter breaks, the thread ends at once, and
//! drops the queued work.

use std::sync::PoisonError;

use super::primitives::{AtomicBool, Interrupt, Mutex, Ordering};

/// Queue between the thread and the threads that queue work for it.
pub(super) struct Upcalls<T> {
    waiting: Mutex<Vec<T>>,
    wake: Interrupt,
    over: AtomicBool,
}

impl<T> Upcalls<T> {
    /// Creates an empty queue.
    pub(super) fn new(wake: Interrupt) -> Self {
        Self {
            waiting: Mutex::new(Vec::new()),
            wake,
            over: AtomicBool::new(false),
        }
    }

    /// Queues work and wakes the thread.
    pub(super) fn push(&self, work: T) {
        self.waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(work);
        self.wake.signal();
    }

    /// Takes all queued work, oldest first.
    pub(super) fn take(&self) -> Vec<T> {
        core::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether no work is queued.
    #[cfg_attr(test, allow(dead_code, reason = "the models do not ask"))]
    pub(super) fn is_empty(&self) -> bool {
        let waiting = self.waiting.lock();
        waiting.unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Ends the queue and wakes the thread. No work may be queued afterwards.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.wake.signal();
    }

    /// Runs the thread's loop until the end, and returns the work that is left then. `drain` takes the list and does
    /// the work. If it returns false, `end` will never be called: the loop ends at once and returns no work. `sleep`
    /// waits for the signal and clears it.
    pub(super) fn serve(&self, mut drain: impl FnMut() -> bool, mut sleep: impl FnMut()) -> Vec<T> {
        while !self.over.load(Ordering::SeqCst) {
            if !drain() {
                return Vec::new();
            }
            sleep();
        }
        self.take()
    }
}
