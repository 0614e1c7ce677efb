//! Programs that lock their memory.
//!
//! The tables of handles are 69 MB of address space, of which a program uses the pages where handles live. mlockall(2)
//! makes memory of all of it at once. So before the first handle is given the pages are let off; then they are locked
//! as they are used (mlock2(2) with MLOCK_ONFAULT, Linux 4.4). What is locked only later, by a program that has an
//! adapter open, stays so, unless that program says MCL_ONFAULT itself.

// UNSAFETY: the table's own pages are given back and locked.
#![expect(unsafe_code, reason = "madvise(2), munlock(2), mlock2(2)")]

use core::ffi::c_void;
use core::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::mman::{MmapAdvise, madvise, munlock};

/// Sees to it that only used pages of these tables are locked, if the process has its memory locked. Called after
/// [`fork::guard`](super::fork::guard), so never in a child, which might find the lock held, and before the caller
/// makes a handle.
pub(super) fn let_off(tables: impl Iterator<Item = (NonNull<u8>, usize)>) {
    /// Whether it was done; nobody makes a handle before.
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*done {
        tables.for_each(|(at, bytes)| if_locked(at.cast(), bytes));
        *done = true;
    }
}

fn if_locked(at: NonNull<c_void>, bytes: usize) {
    if !is_locked(at, bytes) {
        return;
    }
    // SAFETY: locked or not, pages hold what they held.
    if let Err(errno) = unsafe { munlock(at, bytes) } {
        return tracing::warn!("munlock of the table of handles: {errno}; all of it stays locked");
    }
    // SAFETY: the pages belong to a static of atomics that nobody has written yet, and are zeros afterwards, as before.
    if let Err(errno) = unsafe { madvise(at, bytes, MmapAdvise::MADV_DONTNEED) } {
        tracing::warn!("madvise(MADV_DONTNEED) of the table of handles: {errno}");
    }
    // SAFETY: as the first.
    let locked = unsafe { libc::mlock2(at.as_ptr(), bytes, libc::MLOCK_ONFAULT) };
    if let Err(errno) = Errno::result(locked) {
        tracing::warn!("mlock2 of the table of handles: {errno}; its pages are not locked");
    }
}

/// Whether pages are locked: then the kernel (5.4 and later) does not take the hint that nobody will need them soon,
/// which elsewhere changes nothing that is in them.
fn is_locked(at: NonNull<c_void>, bytes: usize) -> bool {
    // SAFETY: a hint about pages of our own.
    let hinted = unsafe { madvise(at, bytes, MmapAdvise::MADV_COLD) };
    hinted == Err(Errno::EINVAL)
}
