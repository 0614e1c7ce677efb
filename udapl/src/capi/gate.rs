//! Exclusive access to an adapter: one thread at a time.
//!
//! If a provider is registered as not thread safe, DAT requires consumers to make one call at a time. But a thread
//! blocked in `evd_wait` or `cno_wait` must not keep other calls out; it needs access only when it wakes. So there
//! are two ways in:
//!
//! - *Turns*, for everything but the hot path: a lock. A turn also keeps the hot path out.
//! - *The fast lane*, for posts and dequeues: two plain stores and a load, no locked instruction, no fence. Only one
//!   thread at a time may use it, which the consumer guarantees. The lane is closed, and posts take turns too, if the
//!   instance was opened as thread safe, or if it has agents, which run on a library thread.
//!
//! ```text
//!     fast lane                          turn
//!     busy = true                        lock; wanted += 1
//!     (compiler fence)                   membarrier(2): every thread of the process has done a full fence
//!     wanted != 0 ? take a turn          while busy: yield, then sleep
//!     ... the adapter ...                ... the adapter ...
//!     busy = false                       wanted -= 1; unlock
//! ```
//!
//! Either the fast lane's load sees `wanted`; or its store of `busy` came before the fence that membarrier(2)
//! executes in its thread, and the turn sees `busy`. So the turn pays for the store-load fence that the fast lane
//! would need. The lane is closed and opened in a turn, when no thread is in it: a reason to keep it closed is added
//! to `wanted` before the turn removes its own, so that `wanted` is never 0 in between. On a kernel without
//! membarrier(2) the lane stays closed.
//!
//! If membarrier(2) fails later (a new seccomp filter, or no memory), a turn cannot know if a thread is in the lane.
//! Then there are no turns any more, and every call fails.
//!
//! `models` runs this file with primitives that try every order of events.

use std::sync::{PoisonError, TryLockError};

use super::primitives::{
    AtomicBool, AtomicI32, AtomicU32, Mutex, MutexGuard, Ordering, has_heavy_fence, heavy_fence,
    light_fence, pause,
};

#[repr(C)]
pub(super) struct Gate {
    busy: AtomicBool,
    /// Number of turns wanted, plus reasons to keep the fast lane closed.
    wanted: AtomicU32,
    lock: Mutex<()>,
    /// The errno for which there are no turns any more; 0 while there are.
    lost: AtomicI32,
}

/// There are no turns any more: the errno of membarrier(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoTurn(pub(super) i32);

/// A turn; it ends when dropped.
pub(super) struct Turn<'a> {
    gate: &'a Gate,
    _lock: MutexGuard<'a, ()>,
}

impl Gate {
    /// Creates a gate with a closed lane; see [`Gate::open`].
    pub(super) fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            wanted: AtomicU32::new(1),
            lock: Mutex::new(()),
            lost: AtomicI32::new(0),
        }
    }

    /// Opens the fast lane if membarrier(2) is available. Call it in a turn.
    pub(super) fn open(&self) {
        if has_heavy_fence() {
            self.wanted.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Undoes [`Gate::open`]. Call it in a turn, or in the lane itself.
    pub(super) fn close(&self) {
        if has_heavy_fence() {
            self.wanted.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Enters the fast lane, unless it is closed or a thread has or wants a turn. On success the caller must leave
    /// it.
    #[inline(always)]
    pub(super) fn enter(&self) -> bool {
        self.busy.store(true, Ordering::Relaxed);
        light_fence();
        // Acquire: the changes of the last turn are visible in the lane.
        if self.wanted.load(Ordering::Acquire) == 0 {
            return true;
        }
        self.leave();
        false
    }

    /// Leaves the fast lane.
    #[inline(always)]
    pub(super) fn leave(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// Returns whether a thread has or wants a turn, or the lane is closed.
    #[cfg(test)]
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Waits for a turn, until the calls of other threads have ended.
    ///
    /// # Errors
    /// [`NoTurn`]: a thread in the fast lane cannot be kept out.
    pub(super) fn turn(&self) -> Result<Turn<'_>, NoTurn> {
        // A panic in a turn poisons the lock; the code that caught the panic handles what the turn left.
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.turn_behind(lock)
    }

    /// Takes a turn if no thread has one. It waits for a thread in the lane, because posts are short.
    pub(super) fn try_turn(&self) -> Option<Result<Turn<'_>, NoTurn>> {
        match self.lock.try_lock() {
            Ok(lock) => Some(self.turn_behind(lock)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.turn_behind(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn turn_behind<'a>(&'a self, lock: MutexGuard<'a, ()>) -> Result<Turn<'a>, NoTurn> {
        let lost = self.lost.load(Ordering::Relaxed);
        if lost != 0 {
            return Err(NoTurn(lost));
        }
        let closed = self.wanted.fetch_add(1, Ordering::SeqCst) != 0;
        // If the lane was closed before, it is empty already and needs no fence.
        if !closed && let Err(errno) = heavy_fence() {
            // `wanted` is not decremented: the lane stays closed.
            self.lost.store(errno, Ordering::Relaxed);
            return Err(NoTurn(errno));
        }
        let turn = Turn {
            gate: self,
            _lock: lock,
        };
        let mut found_busy = 0u32;
        while self.busy.load(Ordering::Acquire) {
            pause(found_busy);
            found_busy = found_busy.saturating_add(1);
        }
        Ok(turn)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.gate.wanted.fetch_sub(1, Ordering::SeqCst);
    }
}
