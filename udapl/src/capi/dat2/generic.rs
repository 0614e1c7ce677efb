//! Calls for handles of any kind, and calls that exist only in DAT 2.0.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::{c_char, c_int, c_void};

use super::cells::known;
use super::code::{bad_argument, not_implemented, shown};
use super::types::{CComm, CRmrTriplet};
use crate::capi;
use crate::capi::types::{DatBoolean, DatContext, DatCount, DatHandle, DatReturn};

pub(super) extern "C" fn set_consumer_context(
    dat_handle: DatHandle,
    context: DatContext,
) -> DatReturn {
    shown(capi::dat_set_consumer_context(known(dat_handle), context))
}

/// # Safety
/// The conditions of the DAT 1.2 function that this function calls.
pub(super) unsafe extern "C" fn get_consumer_context(
    dat_handle: DatHandle,
    context: *mut DatContext,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    shown(unsafe { capi::dat_get_consumer_context(known(dat_handle), context) })
}

/// # Safety
/// The conditions of the DAT 1.2 function that this function calls.
pub(super) unsafe extern "C" fn get_handle_type(
    dat_handle: DatHandle,
    handle_type: *mut u32,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    shown(unsafe { capi::dat_get_handle_type(known(dat_handle), handle_type) })
}

/// Writes false to `answer`: no adapter is a failover adapter of another adapter.
///
/// # Safety
/// `answer` is null or points to a boolean.
pub(super) unsafe extern "C" fn ia_ha_related(
    ia_handle: DatHandle,
    _provider: *const c_char,
    answer: *mut DatBoolean,
) -> DatReturn {
    if answer.is_null() {
        return bad_argument(3);
    }
    let mut kind = 0;
    // SAFETY: the pointer leads to a local variable.
    let found = unsafe { get_handle_type(ia_handle, &raw mut kind) };
    if found == 0 {
        // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
        unsafe { answer.write(0) };
    }
    found
}

macro_rules! not_implemented {
    ($($name:ident($($argument:ty),*))*) => {
        $(pub(super) extern "C" fn $name($(_: $argument),*) -> DatReturn {
            not_implemented()
        })*
    };
}

not_implemented! {
    csp_create(DatHandle, *const CComm, *const libc::sockaddr, DatHandle, *mut DatHandle)
    csp_query(DatHandle, u32, *mut c_void)
    csp_free(DatHandle)
    ep_common_connect(DatHandle, *const libc::sockaddr, u32, DatCount, *const c_void)
    rmr_create_for_ep(DatHandle, *mut DatHandle)
    ep_post_rdma_read_to_rmr(DatHandle, *const CRmrTriplet, DatContext, *const CRmrTriplet, u32)
    cno_fd_create(DatHandle, *mut c_int, *mut DatHandle)
    cno_trigger(DatHandle, *mut DatHandle)
}
