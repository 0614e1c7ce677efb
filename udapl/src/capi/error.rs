//! Errors that many calls have in common.

use dat_core::{DatError, HandleType, ReturnType, Subtype};

/// Returns DAT_INVALID_PARAMETER with the argument's subtype.
pub(super) fn parameter(argument: Subtype) -> DatError {
    DatError::new(ReturnType::InvalidParameter, argument)
}

/// Returns DAT_INVALID_HANDLE with this subtype.
pub(super) fn handle_error(subtype: Subtype) -> DatError {
    DatError::new(ReturnType::InvalidHandle, subtype)
}

/// Returns DAT_INVALID_STATE with its reason.
pub(super) const fn state(why: &'static str) -> DatError {
    DatError::new(ReturnType::InvalidState, Subtype::None).because(why)
}

/// Returns DAT_INTERNAL_ERROR with its reason.
pub(super) fn internal(why: &'static str) -> DatError {
    DatError::new(ReturnType::InternalError, Subtype::None).because(why)
}

/// Returns the subtype of DAT_INVALID_HANDLE for a kind of object.
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
