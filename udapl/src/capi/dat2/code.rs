//! Return codes: DAT 2.0 uses other numbers than DAT 1.2 for some subtypes and for DAT_NOT_IMPLEMENTED.

use crate::capi::types::DatReturn;

const TYPE: u32 = 0x3fff_0000;
const SUBTYPE: u32 = 0xffff;
const CLASS_ERROR: u32 = 0x8000_0000;
/// `DAT_NOT_IMPLEMENTED` in DAT 1.2, and in DAT 2.0.
const NOT_IMPLEMENTED: [u32; 2] = [0x0fff_0000, 0x3fff_0000];
/// `DAT_INVALID_HANDLE_SRQ`; DAT 2.0 inserts `DAT_INVALID_HANDLE_CSP` after it.
const LAST_BEFORE_CSP: u32 = 25;
/// `DAT_INVALID_STATE_SRQ_IN_USE` in DAT 1.2; DAT 2.0 inserts `DAT_INVALID_STATE_SRQ_SHUTDOWN` after it.
const LAST_BEFORE_SHUTDOWN: u32 = 86;
/// `DAT_INVALID_PARAMETER`.
const PARAMETER: u32 = 0x0006_0000;
/// `DAT_INVALID_ARG1` in DAT 2.0.
const ARG1: u32 = 37;
/// `DAT_QUEUE_EMPTY`.
pub(super) const QUEUE_EMPTY: DatReturn = 0x000d_0000;

/// Returns DAT_NOT_IMPLEMENTED.
pub(super) const fn not_implemented() -> DatReturn {
    CLASS_ERROR | NOT_IMPLEMENTED[1]
}

/// Returns DAT_MODEL_NOT_SUPPORTED.
pub(super) const fn not_supported() -> DatReturn {
    CLASS_ERROR | 0x0009_0000
}

/// Returns DAT_INVALID_PARAMETER with the subtype of an argument, which is counted from 1.
pub(super) const fn bad_argument(number: u32) -> DatReturn {
    CLASS_ERROR | PARAMETER | (ARG1 + number - 1)
}

/// Converts a return code of DAT 1.2 to the code of DAT 2.0.
pub(super) const fn shown(value: DatReturn) -> DatReturn {
    let (kind, subtype) = (value & TYPE, value & SUBTYPE);
    let kind = if kind == NOT_IMPLEMENTED[0] {
        NOT_IMPLEMENTED[1]
    } else {
        kind
    };
    let subtype = match subtype {
        _ if subtype <= LAST_BEFORE_CSP => subtype,
        _ if subtype <= LAST_BEFORE_SHUTDOWN => subtype + 1,
        _ => subtype + 2,
    };
    (value & !(TYPE | SUBTYPE)) | kind | subtype
}

/// Converts a return code of a DAT 1.2 call whose DAT 2.0 form has more arguments. `places` holds, for each argument
/// of DAT 1.2, its position among the arguments of DAT 2.0.
pub(super) fn moved(value: DatReturn, places: &[u32]) -> DatReturn {
    let value = shown(value);
    let argument = (value & SUBTYPE).wrapping_sub(ARG1) as usize;
    match places.get(argument) {
        Some(place) if value & TYPE == PARAMETER => bad_argument(*place),
        _ => value,
    }
}

/// Converts the return code of `dat_evd_dequeue`. DAT_QUEUE_EMPTY is returned without the error class bit, because
/// programs compare the whole value with DAT_QUEUE_EMPTY (dapl's `dtest.c`, `collect_event`).
pub(super) const fn dequeued(value: DatReturn) -> DatReturn {
    if value & TYPE == QUEUE_EMPTY {
        return QUEUE_EMPTY;
    }
    shown(value)
}

#[cfg(test)]
mod tests {
    use dat_core::{DatError, ReturnType, Subtype};

    use super::*;

    #[test]
    fn subtypes_keep_their_names_and_get_the_numbers_of_dat_2_0() {
        // The numbers are those of DAT 2.0's dat_error.h, counted from DAT_NO_SUBTYPE.
        for (subtype, number) in [
            (Subtype::None, 0),
            (Subtype::HandleIa, 11),
            (Subtype::HandleSrq, 25),
            (Subtype::Handle1, 27),
            (Subtype::Arg1, 37),
            (Subtype::Arg10, 46),
            (Subtype::StateEpUnconnected, 47),
            (Subtype::StateSrqInUse, 87),
            (Subtype::PrivilegesRead, 89),
            (Subtype::NameNotRegistered, 100),
            (Subtype::ThreadSafetyNotFound, 103),
        ] {
            let value = DatError::new(ReturnType::InvalidHandle, subtype).code();
            assert_eq!(shown(value), 0x8005_0000 | number, "{subtype:?}");
        }
        assert_eq!(shown(0), 0);
        assert_eq!(shown(0x8fff_0000), not_implemented());
        assert_eq!(not_implemented(), 0xbfff_0000);
    }

    #[test]
    fn an_argument_is_counted_as_in_the_call_of_dat_2_0() {
        let value = |subtype| DatError::new(ReturnType::InvalidParameter, subtype).code();
        assert_eq!(moved(value(Subtype::Arg2), &[1, 3]), bad_argument(3));
        assert_eq!(moved(value(Subtype::Arg4), &[1, 3]), bad_argument(4));
        assert_eq!(bad_argument(1), 0x8006_0025);
        let other = DatError::new(ReturnType::InvalidHandle, Subtype::HandlePz).code();
        assert_eq!(moved(other, &[1, 3]), shown(other));
    }

    #[test]
    fn an_empty_queue_is_a_bare_type() {
        assert_eq!(dequeued(0x800d_0000), 0x000d_0000);
        assert_eq!(dequeued(0x8005_001a), 0x8005_001b);
    }
}
