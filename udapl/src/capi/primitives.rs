//! Primitives for passing data between threads: atomics, locks and fences. Modules that use only these names are also
//! compiled with the primitives of `models`, which try every order of events.

// UNSAFETY: the system call membarrier(2) has no safe wrapper.
#![expect(unsafe_code, reason = "membarrier(2)")]

pub(super) use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering,
};
use core::sync::atomic::{compiler_fence, fence};
use std::sync::LazyLock;
pub(super) use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

pub(super) use driver::Interrupt;
use nix::poll::ppoll;
use nix::sys::time::TimeSpec;

/// True if this process may use membarrier(2), for which it has to register.
static HAS_MEMBARRIER: LazyLock<bool> =
    LazyLock::new(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_ok());

/// Returns whether [`heavy_fence`] is available.
pub(super) fn has_heavy_fence() -> bool {
    *HAS_MEMBARRIER
}

/// This thread's half of an asymmetric fence. It is a compiler fence: it only keeps the order of instructions. The
/// other half is [`heavy_fence`].
#[inline(always)]
pub(super) fn light_fence() {
    compiler_fence(Ordering::SeqCst);
}

/// Executes a full fence in every thread of the process.
///
/// # Errors
/// The errno of membarrier(2). The process is registered, so two errors remain: no memory
/// (`membarrier_private_expedited` in Linux kernel/sched/membarrier.c), for which the slower command needs none, and
/// a seccomp filter installed since.
pub(super) fn heavy_fence() -> Result<(), i32> {
    #[cfg(test)]
    if let Some(errno) = refusal::REFUSED.get() {
        return Err(errno);
    }
    fence(Ordering::SeqCst);
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        .or_else(|_| membarrier(libc::MEMBARRIER_CMD_GLOBAL))?;
    fence(Ordering::SeqCst);
    Ok(())
}

fn membarrier(command: libc::c_int) -> Result<(), i32> {
    // SAFETY: the call takes three numbers and accesses no memory of this process.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if answer == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(error.raw_os_error().unwrap_or(libc::EINVAL))
}

/// Number of yields before a waiting thread sleeps.
const YIELDS: u32 = 64;
/// The first sleep. Each further one is twice as long, up to the longest.
const SLEEP: Duration = Duration::from_micros(50);
const DOUBLED: u32 = 5;

/// Pauses a thread that has found another thread busy for the `count`th time, from 0.
///
/// Yielding is not enough. Under a real-time policy sched_yield(2) yields only to threads of the same priority, but
/// the other thread may have a lower one and need this processor. A sleep frees the processor for any thread. The
/// sleep is ppoll(2), not park, because parking could consume an unpark meant for the program's own code.
pub(super) fn pause(count: u32) {
    match count.checked_sub(YIELDS) {
        None => std::thread::yield_now(),
        Some(count) => {
            // A signal ends it early.
            let _slept = ppoll(
                &mut [],
                Some(TimeSpec::from(SLEEP * (1 << count.min(DOUBLED)))),
                None,
            );
        }
    }
}

#[cfg(test)]
pub(super) mod refusal {
    use std::cell::Cell;

    thread_local! {
        /// Error that membarrier(2) returns in this thread.
        pub(in crate::capi) static REFUSED: Cell<Option<i32>> = const { Cell::new(None) };
    }
}
