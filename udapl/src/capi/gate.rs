//! Exclusive access to an adapter: one thread at a time.
//!
//! If a provider is registered as not thread safe, DAT requires consumers to make one call at a time. But a thread
//! blocked in `evd_wait` or `cno_wait` must not block other calls. It needs access only when it wakes. So there are two
//! kinds of access:
//!
//! - The *lock*, for everything but the hot path. It also excludes the hot path.
//! - The *fast lane*, for posts and dequeues: two plain stores and a load, no locked instruction, no fence. Only one
//!   thread at a time may use it, which the consumer guarantees. The lane is closed, and posts take the lock too, if
//!   the instance was opened as thread safe, or if it has agents, which run on a library thread.
//!
//! ```text
//!     fast lane                          lock
//!     busy = true                        lock; wanted += 1
//!     (compiler fence)                   membarrier(2): every thread of the process has done a full fence
//!     wanted != 0 ? take the lock        while busy: yield, then sleep
//!     ... the adapter ...                ... the adapter ...
//!     busy = false                       wanted -= 1; unlock
//! ```
//!
//! There are two cases. Either the load in the fast lane sees `wanted`. Or the fast lane's store of `busy` came before
//! the fence that membarrier(2) executes in its thread, and the locking thread sees `busy`. So that thread executes the
//! store-load fence that the fast lane would need. A thread closes and opens the lane while it holds the lock, when no
//! thread is in the lane. A thread that panics in the lane also closes the lane. To keep the lane closed, the thread
//! adds a count to `wanted` before unlocking removes the lock's own count, so that `wanted` is never 0 in between. On a
//! kernel without membarrier(2) the lane stays closed.
//!
//! If membarrier(2) fails later (a new seccomp filter, or no memory), the locking thread cannot detect whether a thread
//! is in the lane. From then on the lock is refused, and every call fails.
//!
//! `models` compiles this file with primitives that try every order of events.

use std::sync::{PoisonError, TryLockError};

use super::primitives::{
    AtomicBool, AtomicI32, AtomicU32, Mutex, MutexGuard, Ordering, has_heavy_fence, heavy_fence,
    light_fence, pause,
};

#[repr(C)]
pub(super) struct Gate {
    busy: AtomicBool,
    /// 1 while a thread holds the lock or waits for the lane to be left, plus 1 for each reason to keep the lane
    /// closed.
    wanted: AtomicU32,
    lock: Mutex<()>,
    /// Errno of membarrier(2) once it has failed; 0 before. While it is not 0, the lock is refused.
    lost: AtomicI32,
}

/// Error: the lock is refused from now on, because membarrier(2) failed with this errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockLost(pub(super) i32);

/// The lock of a gate: exclusive access, which ends when the value is dropped.
pub(super) struct GateGuard<'a> {
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

    /// Opens the fast lane if membarrier(2) is available. The caller must hold the lock.
    pub(super) fn open(&self) {
        if has_heavy_fence() {
            self.wanted.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Undoes [`Gate::open`]. The caller must hold the lock or be in the lane.
    pub(super) fn close(&self) {
        if has_heavy_fence() {
            self.wanted.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Enters the fast lane, unless it is closed or a thread holds or waits for the lock. After true the caller must
    /// call `Gate::exit`.
    #[inline(always)]
    pub(super) fn enter(&self) -> bool {
        self.busy.store(true, Ordering::Relaxed);
        light_fence();
        // Acquire: the changes made under the lock are visible in the lane.
        if self.wanted.load(Ordering::Acquire) == 0 {
            return true;
        }
        self.exit();
        false
    }

    /// Leaves the fast lane.
    #[inline(always)]
    pub(super) fn exit(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// Returns whether a thread holds or waits for the lock, or the lane is closed.
    #[cfg(test)]
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Takes the lock. Waits until the calls of other threads have ended.
    ///
    /// # Errors
    /// [`LockLost`]: membarrier(2) fails, so a thread in the fast lane cannot be excluded.
    pub(super) fn lock(&self) -> Result<GateGuard<'_>, LockLost> {
        // A panic under the lock poisons it. The code that catches the panic handles the state after it.
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.exclude_lane(lock)
    }

    /// Takes the lock, or returns `None` if another thread holds it. Waits for a thread in the lane, because posts are
    /// short.
    pub(super) fn try_lock(&self) -> Option<Result<GateGuard<'_>, LockLost>> {
        match self.lock.try_lock() {
            Ok(lock) => Some(self.exclude_lane(lock)),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.exclude_lane(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn exclude_lane<'a>(&'a self, lock: MutexGuard<'a, ()>) -> Result<GateGuard<'a>, LockLost> {
        let lost = self.lost.load(Ordering::Relaxed);
        if lost != 0 {
            return Err(LockLost(lost));
        }
        let closed = self.wanted.fetch_add(1, Ordering::SeqCst) != 0;
        // If the lane was closed before, no thread is in it, and no fence is needed.
        if !closed && let Err(errno) = heavy_fence() {
            // `wanted` is not decremented: the lane stays closed.
            self.lost.store(errno, Ordering::Relaxed);
            return Err(LockLost(errno));
        }
        let guard = GateGuard {
            gate: self,
            _lock: lock,
        };
        let mut found_busy = 0u32;
        while self.busy.load(Ordering::Acquire) {
            pause(found_busy);
            found_busy = found_busy.saturating_add(1);
        }
        Ok(guard)
    }
}

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        self.gate.wanted.fetch_sub(1, Ordering::SeqCst);
    }
}
