//! Who may touch an adapter: one thread at a time.
//!
//! DAT asks consumers of a provider that is registered as not thread safe to make one call at a time. A thread that is
//! blocked in `evd_wait` or `cno_wait` is in a call and yet must not keep the others out; it takes its turns when it
//! wakes. So there are two ways in:
//!
//! - *Turns*, for everything but the hot path: a lock. Whoever takes it also keeps the hot path out.
//! - *The fast lane*, for posts and dequeues: two plain stores and a load, no locked instruction, no fence. It is for
//!   one thread at a time, which the consumer sees to; with an adapter that was opened as thread safe, or more than once, or
//!   that has agents, which a thread of ours calls, it is closed, and posts take turns too.
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
//!
//! Where it had one and refuses it later (a seccomp filter that the program has installed since, or no memory), nobody knows
//! whether somebody is in the lane: there is no turn, then or ever again, and nobody goes on.

// UNSAFETY: the system call membarrier(2) has no safe wrapper.
#![expect(unsafe_code, reason = "membarrier(2)")]

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering, compiler_fence, fence};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

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
    pub(super) const fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            wanted: AtomicU32::new(1),
            lock: Mutex::new(()),
            lost: AtomicI32::new(0),
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
    ///
    /// # Errors
    /// [`NoTurn`]: who is in the fast lane cannot be kept out.
    pub(super) fn turn(&self) -> Result<Turn<'_>, NoTurn> {
        // A turn that panicked has poisoned the lock; what it left is dealt with by who caught the panic.
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
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
        while self.busy.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        Ok(turn)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.gate.wanted.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether this process may use membarrier(2); it has to be said before.
static HAS_MEMBARRIER: LazyLock<bool> =
    LazyLock::new(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_ok());

/// Every thread of the process has done a full fence.
///
/// # Errors
/// What membarrier(2) answers. It was registered, or the lane would be closed; what is left is no memory
/// (`membarrier_private_expedited` in Linux kernel/sched/membarrier.c), for which the slower command needs none, and a filter
/// that somebody has installed since.
fn heavy_fence() -> Result<(), i32> {
    #[cfg(test)]
    if let Some(errno) = tests::REFUSED.get() {
        return Err(errno);
    }
    fence(Ordering::SeqCst);
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        .or_else(|_| membarrier(libc::MEMBARRIER_CMD_GLOBAL))?;
    fence(Ordering::SeqCst);
    Ok(())
}

fn membarrier(command: libc::c_int) -> Result<(), i32> {
    // SAFETY: the call takes three numbers and touches no memory of ours.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if answer == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(error.raw_os_error().unwrap_or(libc::EINVAL))
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// What membarrier(2) answers to this thread.
        pub(in crate::capi) static REFUSED: Cell<Option<i32>> = const { Cell::new(None) };
    }

    #[test]
    fn without_the_fence_there_is_no_turn_then_or_later_and_the_lane_is_closed() {
        let gate = Gate::new();
        gate.open();
        if !gate.enter() {
            return; // no membarrier(2), no lane
        }
        REFUSED.set(Some(libc::EPERM));
        assert_eq!(
            gate.turn().map(drop),
            Err(NoTurn(libc::EPERM)),
            "somebody is in the lane"
        );
        REFUSED.set(None);
        gate.leave();
        assert_eq!(gate.turn().map(drop), Err(NoTurn(libc::EPERM)));
        assert!(!gate.enter());
    }

    #[test]
    fn a_closed_lane_needs_no_fence() {
        let gate = Gate::new();
        REFUSED.set(Some(libc::ENOMEM));
        assert_eq!(gate.turn().map(drop), Ok(()));
        REFUSED.set(None);
        assert_eq!(gate.turn().map(drop), Ok(()));
    }
}
