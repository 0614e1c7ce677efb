//! What calls that make an object have in common: a handle of DAT 1.2 comes back, and the program is given its own for
//! it.

// UNSAFETY: a handle is written where a C program says.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ptr::null_mut;

use super::cells::{provider, shown};
use crate::capi::types::{DatHandle, DatReturn};

/// Makes an object of `parent`, whose provider is the new one's too, and puts the program's handle for it at `out`. The
/// answer is that of `make`, in the numbers of DAT 1.2.
///
/// # Safety
/// `out` is null or points to a handle. `make` is given a place for a handle of DAT 1.2, or null, which it refuses.
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
