//! What every call has in common: its number, its panics, its arguments.

// UNSAFETY: pointers of a C program are read and written.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use dat_core::{DatError, DatResult, HandleType, ReturnType, Subtype};

use super::adapter::{Adapter, Open, handle_error, internal, subtype_of};
use super::cancel::Uncancelled;
use super::fork;
use super::table::{IaName, Named, find, find_owned};
use super::types::{DatCount, DatHandle, DatReturn};

/// Runs a call; its answer as a number. A panic ends here.
pub(super) fn caught(work: impl FnOnce() -> DatReturn) -> DatReturn {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(answer) => answer,
        Err(_) => panicked(),
    }
}

#[cold]
#[inline(never)]
pub(super) fn panicked() -> DatReturn {
    answer(internal("a call has failed inside the library"))
}

/// The same for a call that may block, or changes what there is: all but posts and dequeues.
pub(super) fn whole(work: impl FnOnce() -> DatReturn) -> DatReturn {
    let _held = Uncancelled::hold();
    caught(work)
}

/// The same for a call that says what is wrong.
pub(super) fn call(work: impl FnOnce() -> DatResult<()>) -> DatReturn {
    whole(|| said(work()))
}

/// What came of a call, as a number.
pub(super) fn said(result: DatResult<()>) -> DatReturn {
    match result {
        Ok(()) => 0,
        Err(error) => answer(error),
    }
}

/// The number of an error.
#[cold]
#[inline(never)]
pub(super) fn answer(error: DatError) -> DatReturn {
    tracing::debug!(%error, "refused");
    error.code()
}

/// DAT_INVALID_PARAMETER.
pub(super) fn parameter(argument: Subtype) -> DatError {
    DatError::new(ReturnType::InvalidParameter, argument)
}

/// What a handle names, or DAT_INVALID_HANDLE with the subtype of the kind.
pub(super) fn look_up<H: Named>(handle: DatHandle) -> DatResult<(&'static Adapter, H)> {
    find(handle).ok_or_else(|| unknown(H::KIND))
}

/// The same with the instance it belongs to.
pub(super) fn owned<H: Named>(handle: DatHandle) -> DatResult<(&'static Adapter, IaName, H)> {
    find_owned(handle).ok_or_else(|| unknown(H::KIND))
}

/// The error of a handle that names nothing of a kind.
#[cold]
fn unknown(kind: HandleType) -> DatError {
    let error = handle_error(subtype_of(kind));
    if fork::is_child() {
        return error.because("the handle is the parent's: an adapter is not inherited by fork");
    }
    error
}

/// What a second handle of a call on an instance names. One that names nothing, or nothing of that instance, becomes one
/// the IA will refuse, in the order of its own checks and with the subtype of the place.
pub(super) fn other<H: Named>(ia: IaName, handle: DatHandle) -> H {
    match find_owned(handle) {
        Some((_, owner, object)) if owner == ia => object,
        // No IA has the number 0.
        Some(_) | None => H::from_parts(0, 0),
    }
}

/// The same where null means none.
pub(super) fn optional<H: Named>(ia: IaName, handle: DatHandle) -> Option<H> {
    (!handle.is_null()).then(|| other(ia, handle))
}

/// A call on what a handle names, in a turn.
pub(super) fn on<H: Named>(
    handle: DatHandle,
    work: impl FnOnce(&mut Open, H) -> DatResult<()>,
) -> DatReturn {
    call(|| {
        let (adapter, object) = look_up::<H>(handle)?;
        adapter.turn(|open| work(open, object))
    })
}

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
