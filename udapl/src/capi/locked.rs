//! Programs that lock their memory: lock only the used pages of the handle tables.
//!
//! The tables of handles are 69 MB of address space, and a program uses few of their pages. mlockall(2) would
//! allocate all of them at once. So this module unlocks the pages before the first handle is made, and requests that
//! the kernel locks each page on its first use (mlock2(2) with MLOCK_ONFAULT, Linux 4.4). If a program calls
//! mlockall(2) after it has opened an adapter, all pages are locked, unless it sets MCL_ONFAULT itself.

// UNSAFETY: frees and locks the table's own pages.
#![expect(unsafe_code, reason = "madvise(2), munlock(2), mlock2(2)")]

use core::ffi::c_void;
use core::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::mman::{MmapAdvise, madvise, munlock};

/// Locks only the used pages of these tables, if the process has its memory locked. The caller must first call
/// [`fork::guard`](super::fork::guard), which fails in a child, where this function's lock may be held for ever. The
/// caller must call this function before it makes a handle.
pub(super) fn lock_on_use(tables: impl Iterator<Item = (NonNull<u8>, usize)>) {
    /// True after the first call has finished. No thread makes a handle before.
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
    // SAFETY: unlocking a page does not change its contents.
    if let Err(errno) = unsafe { munlock(at, bytes) } {
        return tracing::warn!("munlock of the table of handles: {errno}; all of it stays locked");
    }
    // SAFETY: the pages belong to a static of atomics that has not been written yet. They are read as zeros before and
    // after the call.
    if let Err(errno) = unsafe { madvise(at, bytes, MmapAdvise::MADV_DONTNEED) } {
        tracing::warn!("madvise(MADV_DONTNEED) of the table of handles: {errno}");
    }
    // SAFETY: locking a page does not change its contents.
    let locked = unsafe { libc::mlock2(at.as_ptr(), bytes, libc::MLOCK_ONFAULT) };
    if let Err(errno) = Errno::result(locked) {
        tracing::warn!("mlock2 of the table of handles: {errno}; its pages are not locked");
    }
}

/// Returns whether pages are locked. Tests this with MADV_COLD, which the kernel (5.4 and later) refuses for locked
/// pages. MADV_COLD is only a hint and changes the contents of no page.
fn is_locked(at: NonNull<c_void>, bytes: usize) -> bool {
    // SAFETY: the call is a hint about this library's pages.
    let hinted = unsafe { madvise(at, bytes, MmapAdvise::MADV_COLD) };
    hinted == Err(Errno::EINVAL)
}
