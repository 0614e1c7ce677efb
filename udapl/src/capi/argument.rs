//! Arguments: numbers and pointers of a C program, checked before they are used, and what is written where its pointers
//! say.

// UNSAFETY: pointers of a C program are read and written.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::c_char;

use dat_core::{DatResult, Subtype};

use super::answer::parameter;
use super::types::DatCount;

/// A `DAT_COUNT` that is none below zero.
pub(super) fn count(value: DatCount, argument: Subtype) -> DatResult<u32> {
    u32::try_from(value).map_err(|_| parameter(argument))
}

/// A number as a `DAT_COUNT`, as large as that gets.
pub(super) fn as_count(value: impl TryInto<DatCount>) -> DatCount {
    value.try_into().unwrap_or(DatCount::MAX)
}

/// Private data, or anything else a size and a pointer say.
///
/// # Safety
/// `data` is null or points to `size` bytes, which nobody changes while the result is used.
pub(super) unsafe fn bytes<'a>(
    size: DatCount,
    data: *const core::ffi::c_void,
    size_argument: Subtype,
    data_argument: Subtype,
) -> DatResult<&'a [u8]> {
    let size = usize::try_from(size).map_err(|_| parameter(size_argument))?;
    if size == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(parameter(data_argument));
    }
    // SAFETY: contract GIVEN.
    Ok(unsafe { core::slice::from_raw_parts(data.cast(), size) })
}

/// Writes what a call returns.
///
/// # Safety
/// `out` is null or points to a place for it.
pub(super) unsafe fn put<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: contract ROOM, for a pointer that is not null.
        unsafe { out.write(value) };
    }
}

/// Refuses a null pointer.
pub(super) fn given<T>(pointer: *const T, argument: Subtype) -> DatResult<()> {
    if pointer.is_null() {
        return Err(parameter(argument));
    }
    Ok(())
}

/// Refuses bits that are in no mask of this kind.
pub(super) fn mask(value: u64, all: u64, argument: Subtype) -> DatResult<()> {
    if value & !all != 0 {
        return Err(parameter(argument));
    }
    Ok(())
}

/// A text in 256 bytes, cut off if it must be, with a NUL.
pub(super) fn text(text: &str) -> [c_char; 256] {
    let mut out = [0; 256];
    let bytes = text.bytes().take_while(|&byte| byte != 0);
    for (to, from) in out.iter_mut().take(255).zip(bytes) {
        *to = from.cast_signed();
    }
    out
}
