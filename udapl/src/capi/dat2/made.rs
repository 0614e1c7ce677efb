//! Calls that make an object: they convert the new handle of DAT 1.2 to a handle of DAT 2.0.

// UNSAFETY: writes a handle through a C program's pointer.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ptr::null_mut;

use super::cells::{provider, shown};
use crate::capi::types::{DatHandle, DatReturn};

/// Makes an object of `parent`, with the same provider, and writes the program's handle to `out`. Returns the code of
/// `make`, as in DAT 1.2.
///
/// # Safety
/// `out` is null or points to a handle. `make` gets memory for a handle of DAT 1.2, or null, which it must refuse.
pub(super) unsafe fn shown_new(
    parent: DatHandle,
    out: *mut DatHandle,
    make: impl FnOnce(*mut DatHandle) -> DatReturn,
) -> DatReturn {
    let mut made = null_mut();
    let answer = make(if out.is_null() { out } else { &raw mut made });
    if answer == 0 && !out.is_null() {
        // SAFETY: not null, and contract ROOM.
        unsafe { out.write(shown(provider(parent), made)) };
    }
    answer
}
