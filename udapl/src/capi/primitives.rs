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

/// True if this process may use membarrier(2). The first access registers the process for it.
static HAS_MEMBARRIER: LazyLock<bool> =
    LazyLock::new(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_ok());

/// Returns whether [`heavy_fence`] is available.
pub(super) fn has_heavy_fence() -> bool {
    *HAS_MEMBARRIER
}

/// Executes this thread's half of an asymmetric fence. This half is a compiler fence: it only keeps the order of
/// instructions. The other half is [`heavy_fence`].
#[inline(always)]
pub(super) fn light_fence() {
    compiler_fence(Ordering::SeqCst);
}

/// Executes a full fence in every thread of the process.
///
/// # Errors
/// The errno of membarrier(2). The process is registered, so two errors are possible. One is lack of memory
/// (`membarrier_private_expedited` in Linux kernel/sched/membarrier.c), after which the slower command is tried, which
/// needs none. The other one comes from a seccomp filter that was installed since.
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
/// Duration of the first sleep. Each further sleep is twice as long as the one before, up to `DOUBLED` times.
const SLEEP: Duration = Duration::from_micros(50);
const DOUBLED: u32 = 5;

/// Pauses a thread that has found another thread busy for the `count`th time, from 0. The first pauses yield, the later
/// ones sleep.
///
/// Yielding alone is not enough. Under a real-time policy sched_yield(2) yields only to threads of the same priority,
/// but the other thread may have a lower priority and need this processor. A sleep frees the processor for any thread.
/// The sleep is ppoll(2), not park, because parking could consume an unpark meant for the program's own code.
pub(super) fn pause(count: u32) {
    match count.checked_sub(YIELDS) {
        None => std::thread::yield_now(),
        Some(count) => {
            // A signal ends the sleep early, which is harmless.
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
        /// Errno that `heavy_fence` returns in this thread, for tests.
        pub(in crate::capi) static REFUSED: Cell<Option<i32>> = const { Cell::new(None) };
    }
}
