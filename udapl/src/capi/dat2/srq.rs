//! The calls of an SRQ.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use super::cells::{known, provider, shown};
use super::code;
use super::made::shown_new;
use super::post::Segments;
use super::types::CLmrTriplet;
use crate::capi;
use crate::capi::types::{CSrqAttr, CSrqParam, DatContext, DatCount, DatHandle, DatReturn};

/// # Safety
/// `srq_attr` and `srq_handle` are null or point to what the header says.
pub(super) unsafe extern "C" fn create(
    ia_handle: DatHandle,
    pz_handle: DatHandle,
    srq_attr: *const CSrqAttr,
    srq_handle: *mut DatHandle,
) -> DatReturn {
    let make = |place| {
        // SAFETY: contract PASSED ON; `place` is null or points to a local variable.
        unsafe { capi::dat_srq_create(known(ia_handle), known(pz_handle), srq_attr, place) }
    };
    // SAFETY: contract ROOM; the DAT 1.2 function in `make` refuses null.
    let answer = unsafe { shown_new(ia_handle, srq_handle, make) };
    code::shown(answer)
}

/// # Safety
/// `srq_param` is null or points to a `DAT_SRQ_PARAM`.
pub(super) unsafe extern "C" fn query(
    srq_handle: DatHandle,
    srq_param_mask: u32,
    srq_param: *mut CSrqParam,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    let answer = unsafe { capi::dat_srq_query(known(srq_handle), srq_param_mask, srq_param) };
    if answer == 0 {
        // SAFETY: the call succeeded, so the pointer is not null and has been written through; contract ROOM.
        let param = unsafe { &mut *srq_param };
        let of = provider(srq_handle);
        param.ia_handle = shown(of, param.ia_handle);
        param.pz_handle = shown(of, param.pz_handle);
        // DAT 2.0 swaps the numbers of OPERATIONAL and ERROR.
        param.srq_state = 1 - param.srq_state.min(1);
    }
    code::shown(answer)
}

pub(super) extern "C" fn resize(srq_handle: DatHandle, srq_max_recv_dto: DatCount) -> DatReturn {
    code::shown(capi::dat_srq_resize(known(srq_handle), srq_max_recv_dto))
}

pub(super) extern "C" fn set_lw(srq_handle: DatHandle, low_watermark: DatCount) -> DatReturn {
    code::shown(capi::dat_srq_set_lw(known(srq_handle), low_watermark))
}

pub(super) extern "C" fn free(srq_handle: DatHandle) -> DatReturn {
    code::shown(capi::dat_srq_free(known(srq_handle)))
}

/// # Safety
/// `local_iov` is null or points to `num_segments` segments.
pub(super) unsafe extern "C" fn post_recv(
    srq_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const CLmrTriplet,
    user_cookie: DatContext,
) -> DatReturn {
    // SAFETY: contract GIVEN.
    let segments = match unsafe { Segments::new(num_segments, local_iov) } {
        Ok(segments) => segments,
        Err(refused) => return refused,
    };
    // SAFETY: `segments` is local.
    code::shown(unsafe {
        capi::dat_srq_post_recv(
            known(srq_handle),
            segments.count(),
            segments.pointer(),
            user_cookie,
        )
    })
}
