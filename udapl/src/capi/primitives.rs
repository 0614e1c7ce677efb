//! What hand-overs between threads are made of: the machine's atomics, locks and fences. Modules that use these names
//! and no others are also compiled over the primitives of `models`, where every order of events is tried.

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

/// Whether this process may use membarrier(2); it has to be said before.
static HAS_MEMBARRIER: LazyLock<bool> =
    LazyLock::new(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).is_ok());

/// Whether there is a [`heavy_fence`].
pub(super) fn has_heavy_fence() -> bool {
    *HAS_MEMBARRIER
}

/// This thread's half of an asymmetric fence: what stands before it in the program stands before it in the machine's
/// instructions. The other half is [`heavy_fence`].
#[inline(always)]
pub(super) fn light_fence() {
    compiler_fence(Ordering::SeqCst);
}

/// Every thread of the process has done a full fence.
///
/// # Errors
/// What membarrier(2) answers (errno). It was registered, or nobody would ask; what is left is no memory
/// (`membarrier_private_expedited` in Linux kernel/sched/membarrier.c), for which the slower command needs none, and a
/// filter that somebody has installed since.
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
    // SAFETY: the call takes three numbers and touches no memory of ours.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if answer == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(error.raw_os_error().unwrap_or(libc::EINVAL))
}

/// So often a thread that waits for another one gives way before it sleeps.
const YIELDS: u32 = 64;
/// The first sleep; each further one is twice as long, up to the longest.
const SLEEP: Duration = Duration::from_micros(50);
const DOUBLED: u32 = 5;

/// What a thread does that has found another one busy for the `count`th time, from 0.
///
/// Giving way is not enough: under a real-time policy sched_yield(2) does so only to threads of the same priority, and
/// who is waited for may have a lower one and no other processor. A sleeping thread leaves its processor to anybody. It
/// sleeps in ppoll(2), not parked: what unparks a thread of the program's is not ours to take.
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
        /// What membarrier(2) answers to this thread.
        pub(in crate::capi) static REFUSED: Cell<Option<i32>> = const { Cell::new(None) };
    }
}
