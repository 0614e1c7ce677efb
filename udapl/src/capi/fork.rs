//! Processes that fork: a child cannot use its parent's adapters.
//!
//! A child of fork(2) has a copy of this library's memory, but it cannot use the adapters. The device uses the parent's
//! pages. The child does not inherit mappings of the device (`driver::mapping`). The library's threads do not run in
//! the child, and a thread of the parent may have held a lock. So handles of the parent must be invalid in a child. The
//! kernel ensures this: the table of handles is memory that a child finds zeroed (MADV_WIPEONFORK, Linux 4.14),
//! whichever system call made the child. Every call looks its handle up in that table, so this costs a post nothing.
//! Calls without a handle, and calls that look a handle up elsewhere, call [`not_a_child`] or [`is_child`] before they
//! take a lock: openings, the registry, and the registry's lookup of other libraries' handles.
//!
//! After vfork(2) or posix_spawn(3) a child shares its parent's memory until it executes another program; nothing is
//! copied or wiped.

// UNSAFETY: calls madvise(2) for the table's own pages.
#![expect(unsafe_code, reason = "madvise(2)")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::OnceLock;

use dat_core::{DatError, DatResult, ReturnType, Subtype};
use nix::sys::mman::{MmapAdvise, madvise};

/// A value that fills whole pages, as madvise(2) requires.
// Pages have 4 KiB on x86-64. They may have 64 KiB on 64-bit Arm, whose linkers support this alignment.
#[cfg_attr(target_arch = "aarch64", repr(C, align(65536)))]
#[cfg_attr(not(target_arch = "aarch64"), repr(C, align(4096)))]
pub(super) struct Wiped<T>(pub(super) T);

/// Mark of a process that has opened adapters: 1 in that process, wiped to 0 in its children.
static OPENED_HERE: Wiped<AtomicU32> = Wiped(AtomicU32::new(0));
/// True if this process or an ancestor has opened adapters.
static OPENED_HERE_OR_ABOVE: AtomicBool = AtomicBool::new(false);

/// Prevents children from inheriting the handles: the kernel wipes the pages of `table` in a child.
///
/// # Errors
/// DAT_INSUFFICIENT_RESOURCES|DEVICE: this process was forked from one that had adapters open, and cannot open any.
/// DAT_INSUFFICIENT_RESOURCES|MEMORY: the system refuses MADV_WIPEONFORK.
pub(super) fn guard(table: impl Iterator<Item = (NonNull<u8>, usize)>) -> DatResult<()> {
    /// Set when all madvise(2) calls have succeeded. After a failure the next call tries again.
    static ADVISED: OnceLock<()> = OnceLock::new();
    not_a_child()?;
    if ADVISED.get().is_none() {
        let advised = table
            .chain([wiped(&OPENED_HERE)])
            .try_for_each(|(at, bytes)| {
                // SAFETY: the pages belong to a static of atomics, for which zeros are valid values. Only a child that
                // is forked later finds them zeroed.
                unsafe { madvise(at.cast(), bytes, MmapAdvise::MADV_WIPEONFORK) }
            });
        if let Err(errno) = advised {
            tracing::error!("madvise(MADV_WIPEONFORK): {errno}");
            return Err(no(Subtype::ResourceMemory).because(
                "madvise(MADV_WIPEONFORK) is refused, without which a child process would have the handles",
            ));
        }
        let _by_another_thread_too = ADVISED.set(());
    }
    OPENED_HERE.0.store(1, Ordering::Relaxed);
    OPENED_HERE_OR_ABOVE.store(true, Ordering::Release);
    Ok(())
}

/// Returns an error in a forked child. A call without a handle must check this before its first lock, because the
/// thread that holds the lock may not exist in the child.
///
/// # Errors
/// DAT_INSUFFICIENT_RESOURCES|DEVICE, as in [`guard`].
pub(super) fn not_a_child() -> DatResult<()> {
    if is_child() {
        return Err(no(Subtype::ResourceDevice).because(
            "this process was forked from one with adapters open, and can open none before it executes a program",
        ));
    }
    Ok(())
}

fn no(subtype: Subtype) -> DatError {
    DatError::new(ReturnType::InsufficientResources, subtype)
}

/// Returns whether this process was forked from one that had adapters open.
pub(super) fn is_child() -> bool {
    // `guard` stores `OPENED_HERE` first. So if `OPENED_HERE_OR_ABOVE` is true and `OPENED_HERE` is 0, the kernel has
    // wiped `OPENED_HERE`.
    OPENED_HERE_OR_ABOVE.load(Ordering::Acquire) && OPENED_HERE.0.load(Ordering::Relaxed) == 0
}

/// Returns the address and the size in bytes of a static.
pub(super) fn wiped<T>(what: &'static Wiped<T>) -> (NonNull<u8>, usize) {
    (NonNull::from(what).cast(), size_of::<Wiped<T>>())
}
