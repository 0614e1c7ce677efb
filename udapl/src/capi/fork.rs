//! Processes that fork.
//!
//! A child of fork(2) has a copy of this library's memory, but not the adapter: the device goes on with the parent's
//! pages, mappings of the device are not inherited (`driver::mapping`), none of the library's threads runs there, and a
//! lock may be held for ever by a thread that is not there. So a handle of the parent's is none in a child. The kernel
//! sees to that: the table of handles is memory that a child finds empty (MADV_WIPEONFORK, Linux 4.14), whoever made
//! the child and however, and no call gets further than the table. Nothing is asked for on the way of a post. Calls
//! without a handle, and those that look elsewhere for what the table does not have, ask [`not_a_child`] or
//! [`is_child`] before they take a lock: openings, the registry and what it knows of other libraries' handles.
//!
//! A child that has the parent's memory itself until it executes another program (vfork(2), posix_spawn(3)) has no
//! copy, and nothing is wiped.

// UNSAFETY: madvise(2) about the table's own pages.
#![expect(unsafe_code, reason = "madvise(2)")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::OnceLock;

use dat_core::{DatError, DatResult, ReturnType, Subtype};
use nix::sys::mman::{MmapAdvise, madvise};

/// What fills pages of its own, which the advice is given for.
// Pages of x86-64 are small ones; those of 64-bit Arm may have 64 KiB, which linkers there allow for.
#[cfg_attr(target_arch = "aarch64", repr(C, align(65536)))]
#[cfg_attr(not(target_arch = "aarch64"), repr(C, align(4096)))]
pub(super) struct Wiped<T>(pub(super) T);

/// Not 0 in a process that has had adapters open.
static HERE: Wiped<AtomicU32> = Wiped(AtomicU32::new(0));
/// Whether this process or one that it is a child of has had adapters open.
static HERE_OR_ABOVE: AtomicBool = AtomicBool::new(false);

/// Sees to it that what is opened from now on is not inherited: the pages of the `table` of handles.
///
/// # Errors
/// DAT_INSUFFICIENT_RESOURCES|DEVICE: this process is a child of one that had adapters open, and has no use of them.
/// DAT_INSUFFICIENT_RESOURCES|MEMORY: the system cannot wipe memory.
pub(super) fn guard(table: impl Iterator<Item = (NonNull<u8>, usize)>) -> DatResult<()> {
    /// What was refused once may be given later.
    static ADVISED: OnceLock<()> = OnceLock::new();
    not_a_child()?;
    if ADVISED.get().is_none() {
        let advised = table.chain([wiped(&HERE)]).try_for_each(|(at, bytes)| {
            // SAFETY: the pages belong to a static that is made of atomics, for which zeros are good values, and only a
            // later child finds them so.
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
    HERE.0.store(1, Ordering::Relaxed);
    HERE_OR_ABOVE.store(true, Ordering::Release);
    Ok(())
}

/// Asked before the first lock of a call that needs no handle: in a child its holder may be gone.
///
/// # Errors
/// DAT_INSUFFICIENT_RESOURCES|DEVICE, as by [`guard`].
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

/// Whether this process was forked from one that had adapters open.
pub(super) fn is_child() -> bool {
    // Who sees the second store has seen the first, or what the kernel made of it.
    HERE_OR_ABOVE.load(Ordering::Acquire) && HERE.0.load(Ordering::Relaxed) == 0
}

/// The pages of a static.
pub(super) fn wiped<T>(what: &'static Wiped<T>) -> (NonNull<u8>, usize) {
    (NonNull::from(what).cast(), size_of::<Wiped<T>>())
}
