//! Answers: what a call came to, as a number. A panic becomes one here, too.

use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use dat_core::{DatError, DatResult, HandleType, ReturnType, Subtype};

use super::cancel::Uncancelled;
use super::last_error;
use super::types::DatReturn;

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

/// Runs a call that may block, or changes what there is, as all but posts and dequeues do: its thread is not cancelled
/// meanwhile.
pub(super) fn whole(work: impl FnOnce() -> DatReturn) -> DatReturn {
    let _held = Uncancelled::hold();
    caught(work)
}

/// Runs such a call that says what is wrong.
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

/// The number of an error, which is kept for [`last_error`].
#[cold]
#[inline(never)]
pub(super) fn answer(error: DatError) -> DatReturn {
    tracing::debug!(%error, "refused");
    last_error::note(error);
    error.code()
}

/// DAT_INVALID_PARAMETER.
pub(super) fn parameter(argument: Subtype) -> DatError {
    DatError::new(ReturnType::InvalidParameter, argument)
}

/// DAT_INVALID_HANDLE.
pub(super) fn handle_error(subtype: Subtype) -> DatError {
    DatError::new(ReturnType::InvalidHandle, subtype)
}

/// DAT_INTERNAL_ERROR.
pub(super) fn internal(why: &'static str) -> DatError {
    DatError::new(ReturnType::InternalError, Subtype::None).because(why)
}

/// DAT_INVALID_HANDLE with the subtype of a kind.
pub(super) const fn subtype_of(kind: HandleType) -> Subtype {
    match kind {
        HandleType::Cr => Subtype::HandleCr,
        HandleType::Ep => Subtype::HandleEp,
        HandleType::Evd => Subtype::Handle1,
        HandleType::Ia => Subtype::HandleIa,
        HandleType::Lmr => Subtype::HandleLmr,
        HandleType::Psp => Subtype::HandlePsp,
        HandleType::Pz => Subtype::HandlePz,
        HandleType::Rmr => Subtype::HandleRmr,
        HandleType::Rsp => Subtype::HandleRsp,
        HandleType::Cno => Subtype::HandleCno,
        HandleType::Srq => Subtype::HandleSrq,
    }
}
