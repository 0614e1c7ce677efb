//! Support for calls that create an object: converts the new handle of DAT 1.2 to a handle of DAT 2.0.

// UNSAFETY: writes a handle through a C program's pointer.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ptr::null_mut;

use super::cells::{provider, shown};
use crate::capi::types::{DatHandle, DatReturn};

/// Creates an object with `make` and writes the program's handle to `out`. The new handle gets the provider of
/// `parent`. Returns the DAT 1.2 code that `make` returned.
///
/// # Safety
/// `out` is null or points to a handle. If `out` is null, `make` gets null and must refuse it; otherwise `make` gets
/// memory for a handle of DAT 1.2.
pub(super) unsafe fn shown_new(
    parent: DatHandle,
    out: *mut DatHandle,
    make: impl FnOnce(*mut DatHandle) -> DatReturn,
) -> DatReturn {
    let mut made = null_mut();
    let answer = make(if out.is_null() { out } else { &raw mut made });
    if answer == 0 && !out.is_null() {
        // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
        unsafe { out.write(shown(provider(parent), made)) };
    }
    answer
}
