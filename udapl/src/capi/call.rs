//! What the handles of a call name, and a call on that in a turn.

use dat_core::{DatError, DatResult, HandleType};

use super::adapter::{Adapter, Open, find, find_owned};
use super::answer::{call, handle_error, subtype_of};
use super::fork;
use super::table::{IaName, Named};
use super::types::{DatHandle, DatReturn};

/// What a handle names, or DAT_INVALID_HANDLE with the subtype of the kind.
pub(super) fn look_up<H: Named>(handle: DatHandle) -> DatResult<(&'static Adapter, H)> {
    find(handle).ok_or_else(|| unknown(H::KIND))
}

/// What a handle names, with the instance it belongs to.
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

/// What a second handle of a call on an instance names. One that names nothing, or nothing of that instance, becomes
/// one the IA will refuse, in the order of its own checks and with the subtype of the place.
pub(super) fn other<H: Named>(ia: IaName, handle: DatHandle) -> H {
    match find_owned(handle) {
        Some((_, owner, object)) if owner == ia => object,
        // No IA has the number 0.
        Some(_) | None => H::from_parts(0, 0),
    }
}

/// What a second handle of a call names, where null means none.
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
