//! Who may touch an adapter: one thread at a time.
//!
//! DAT asks consumers of a provider that is registered as not thread safe to make one call at a time. A thread that is
//! blocked in `evd_wait` or `cno_wait` is in a call and yet must not keep the others out; it takes its turns when it
//! wakes. So there are two ways in:
//!
//! - *Turns*, for everything but the hot path: a lock. Whoever takes it also keeps the hot path out.
//! - *The fast lane*, for posts and dequeues: two plain stores and a load, no locked instruction, no fence. It is for
//!   one thread at a time, which the consumer sees to; with an adapter that was opened as thread safe, or more than once,
//!   it is closed, and posts take turns too.
//!
//! ```text
//!     fast lane                          turn
//!     busy = true                        lock; wanted += 1
//!     (compiler fence)                   membarrier(2): every thread of the process has done a full fence
//!     wanted != 0 ? take a turn          while busy: yield
//!     ... the adapter ...                ... the adapter ...
//!     busy = false                       wanted -= 1; unlock
//! ```
//!
//! Either the fast lane's load sees `wanted`, or its store of `busy` came before the fence that membarrier(2) puts into its
//! thread, and the turn sees it: the store-load fence the fast lane would need is paid by whoever takes a turn.
//! The lane is closed and opened in a turn, so nobody is in it then: a reason to keep it closed is added to `wanted` before
//! the turn takes its own away, and there is no moment in between. Where the kernel has no membarrier(2) it stays closed.

// UNSAFETY: the system call membarrier(2) has no safe wrapper.
#![expect(unsafe_code, reason = "membarrier(2)")]

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence, fence};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

#[repr(C)]
pub(super) struct Gate {
    busy: AtomicBool,
    /// Turns asked for, and reasons to keep the fast lane closed.
    wanted: AtomicU32,
    lock: Mutex<()>,
}

/// A turn, until it is dropped.
pub(super) struct Turn<'a> {
    gate: &'a Gate,
    _lock: MutexGuard<'a, ()>,
}

impl Gate {
    /// Closed; see [`Gate::open`].
    pub(super) const fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            wanted: AtomicU32::new(1),
            lock: Mutex::new(()),
        }
    }

    /// Opens the fast lane, if it can be had. In a turn.
    pub(super) fn open(&self) {
        if *HAS_MEMBARRIER {
            self.wanted.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Closes what [`Gate::open`] opened. In a turn, or in the lane itself.
    pub(super) fn close(&self) {
        if *HAS_MEMBARRIER {
            self.wanted.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Enters the fast lane, unless it is closed or somebody has or wants a turn. Who is in it leaves it.
    #[inline(always)]
    pub(super) fn enter(&self) -> bool {
        self.busy.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
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

    /// Waits for a turn: as long as the calls of others last.
    pub(super) fn turn(&self) -> Turn<'_> {
        // A turn that panicked has poisoned the lock; what it left is dealt with by who caught the panic.
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = self.wanted.fetch_add(1, Ordering::SeqCst) != 0;
        let turn = Turn {
            gate: self,
            _lock: lock,
        };
        // Who keeps the lane closed has made sure of it once and for all.
        if !closed {
            heavy_fence();
        }
        while self.busy.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        turn
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.gate.wanted.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether this process may use membarrier(2); it has to be said before.
static HAS_MEMBARRIER: LazyLock<bool> =
    LazyLock::new(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED));

fn heavy_fence() {
    fence(Ordering::SeqCst);
    // It was registered, or the lane would be closed; it fails for nothing else.
    let _done = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    fence(Ordering::SeqCst);
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes three numbers and touches no memory of ours.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    answer == 0
}
