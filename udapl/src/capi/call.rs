//! Looks up the handles of a call, and runs it under the lock.

use dat_core::{DatError, DatResult, HandleType};

use super::adapter::{Adapter, Open, find, find_owned};
use super::answer::call;
use super::error::{handle_error, subtype_of};
use super::fork;
use super::table::{IaName, Named};
use super::types::{DatHandle, DatReturn};

/// Returns the object of a handle; otherwise DAT_INVALID_HANDLE with the subtype of the kind.
pub(super) fn look_up<H: Named>(handle: DatHandle) -> DatResult<(&'static Adapter, H)> {
    find(handle).ok_or_else(|| unknown(H::KIND))
}

/// Returns the object of a handle and its instance; otherwise DAT_INVALID_HANDLE with the subtype of the kind.
pub(super) fn owned<H: Named>(handle: DatHandle) -> DatResult<(&'static Adapter, IaName, H)> {
    find_owned(handle).ok_or_else(|| unknown(H::KIND))
}

/// Returns the error of a handle that has no object of this kind.
#[cold]
fn unknown(kind: HandleType) -> DatError {
    let error = handle_error(subtype_of(kind));
    if fork::is_child() {
        return error.because("the handle is the parent's: an adapter is not inherited by fork");
    }
    error
}

/// Returns the object of a handle argument after the first. If the handle has no object, or an object of another
/// instance, returns a handle that the IA refuses. So the IA's own checks decide the order and the subtypes of errors.
pub(super) fn other<H: Named>(ia: IaName, handle: DatHandle) -> H {
    match find_owned(handle) {
        Some((_, owner, object)) if owner == ia => object,
        // No IA has the number 0.
        Some(_) | None => H::from_parts(0, 0),
    }
}

/// Like [`other`], for a handle that may be null.
pub(super) fn optional<H: Named>(ia: IaName, handle: DatHandle) -> Option<H> {
    (!handle.is_null()).then(|| other(ia, handle))
}

/// Runs a call on a handle's object, under the lock.
pub(super) fn on<H: Named>(
    handle: DatHandle,
    work: impl FnOnce(&mut Open, H) -> DatResult<()>,
) -> DatReturn {
    call(|| {
        let (adapter, object) = look_up::<H>(handle)?;
        adapter.with(|open| work(open, object))
    })
}
