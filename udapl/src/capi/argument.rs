//! Arguments of a C program: checks of numbers and pointers, and writes through pointers.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::c_char;

use dat_core::{DatResult, Subtype};

use super::error::parameter;
use super::types::DatCount;

/// Converts a `DAT_COUNT`; refuses a negative one.
pub(super) fn count(value: DatCount, argument: Subtype) -> DatResult<u32> {
    u32::try_from(value).map_err(|_| parameter(argument))
}

/// Converts a number to a `DAT_COUNT`, limited to the largest one.
pub(super) fn as_count(value: impl TryInto<DatCount>) -> DatCount {
    value.try_into().unwrap_or(DatCount::MAX)
}

/// Returns the bytes at a pointer, such as private data.
///
/// # Safety
/// `data` is null or points to `size` bytes, which no thread changes while the result is used.
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

/// Writes a result through a pointer, unless it is null.
///
/// # Safety
/// `out` is null or points to memory for a `T`.
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

/// Refuses a value with bits that no mask of this kind has.
pub(super) fn mask(value: u64, all: u64, argument: Subtype) -> DatResult<()> {
    if value & !all != 0 {
        return Err(parameter(argument));
    }
    Ok(())
}

/// Copies a text into 256 bytes with a terminating NUL. A text that is too long is truncated.
pub(super) fn text(text: &str) -> [c_char; 256] {
    let mut out = [0; 256];
    let bytes = text.bytes().take_while(|&byte| byte != 0);
    for (to, from) in out.iter_mut().take(255).zip(bytes) {
        *to = from.cast_signed();
    }
    out
}
