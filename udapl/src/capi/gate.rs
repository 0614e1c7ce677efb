//! Who may touch an adapter: one thread at a time.
//!
//! DAT asks consumers of a provider that is registered as not thread safe to make one call at a time. A thread that is
//! blocked in `evd_wait` or `cno_wait` is in a call and yet must not keep the others out; it takes its turns when it
//! wakes. So there are two ways in:
//!
//! - *Turns*, for everything but the hot path: a lock. Whoever takes it also keeps the hot path out.
//! - *The fast lane*, for posts and dequeues: two plain stores and a load, no locked instruction, no fence. It is for
//!   one thread at a time, which the consumer sees to; with an instance that was opened as thread safe, or that has
//!   agents, which a thread of ours calls, it is closed, and posts take turns too.
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
//! Either the fast lane's load sees `wanted`, or its store of `busy` came before the fence that membarrier(2) puts into
//! its thread, and the turn sees it: the store-load fence the fast lane would need is paid by whoever takes a turn. The
//! lane is closed and opened in a turn, so nobody is in it then: a reason to keep it closed is added to `wanted` before
//! the turn takes its own away, and there is no moment in between. Where the kernel has no membarrier(2) it stays
//! closed.
//!
//! Where it had one and refuses it later (a seccomp filter that the program has installed since, or no memory), nobody
//! knows whether somebody is in the lane: there is no turn, then or ever again, and nobody goes on.
//!
//! `models` puts this file over primitives that try every order of events.

use std::sync::{PoisonError, TryLockError};

use super::primitives::{
    AtomicBool, AtomicI32, AtomicU32, Mutex, MutexGuard, Ordering, has_heavy_fence, heavy_fence,
    light_fence, pause,
};

#[repr(C)]
pub(super) struct Gate {
    busy: AtomicBool,
    /// Turns asked for, and reasons to keep the fast lane closed.
    wanted: AtomicU32,
    lock: Mutex<()>,
    /// Why there are no turns any more (errno); 0 while there are.
    lost: AtomicI32,
}

/// There is no turn any more: what membarrier(2) answers (errno).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoTurn(pub(super) i32);

/// A turn, until it is dropped.
pub(super) struct Turn<'a> {
    gate: &'a Gate,
    _lock: MutexGuard<'a, ()>,
}

impl Gate {
    /// Closed; see [`Gate::open`].
    pub(super) fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            wanted: AtomicU32::new(1),
            lock: Mutex::new(()),
            lost: AtomicI32::new(0),
        }
    }

    /// Opens the fast lane, if it can be had. In a turn.
    pub(super) fn open(&self) {
        if has_heavy_fence() {
            self.wanted.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Closes what [`Gate::open`] opened. In a turn, or in the lane itself.
    pub(super) fn close(&self) {
        if has_heavy_fence() {
            self.wanted.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Enters the fast lane, unless it is closed or somebody has or wants a turn. Who is in it leaves it.
    #[inline(always)]
    pub(super) fn enter(&self) -> bool {
        self.busy.store(true, Ordering::Relaxed);
        light_fence();
        // Acquire: what the last turn did comes before what we do.
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

    /// Somebody has or wants a turn, or the lane is closed.
    #[cfg(test)]
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Waits for a turn: as long as the calls of others last.
    ///
    /// # Errors
    /// [`NoTurn`]: who is in the fast lane cannot be kept out.
    pub(super) fn turn(&self) -> Result<Turn<'_>, NoTurn> {
        // A turn that panicked has poisoned the lock; what it left is dealt with by who caught the panic.
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.turn_behind(lock)
    }

    /// Takes a turn if nobody has one. Who is in the lane is waited for, as that is short.
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
        // Who keeps the lane closed has made sure of it once and for all.
        if !closed && let Err(errno) = heavy_fence() {
            // The lane stays closed to whoever comes by.
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
