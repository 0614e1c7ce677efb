//! Calls for connecting and disconnecting, for service points and for connection requests.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::c_void;
use core::ptr::null_mut;

use dat_core::RspHandle;

use super::cells::{known, provider, shown};
use super::code;
use super::made::shown_new;
use crate::capi;
use crate::capi::adapter::Open;
use crate::capi::call::on;
use crate::capi::records::ReservedPoint;
use crate::capi::table::{handle_of, number};
use crate::capi::types::{CCrParam, CPspParam, CRspParam, DatCount, DatHandle, DatReturn};

/// # Safety
/// The conditions of the DAT 1.2 function that this function calls.
pub(super) unsafe extern "C" fn ep_connect(
    ep_handle: DatHandle,
    remote_ia_address: *const libc::sockaddr,
    remote_conn_qual: u64,
    timeout: u32,
    private_data_size: DatCount,
    private_data: *const c_void,
    qos: u32,
    connect_flags: u32,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    code::shown(unsafe {
        capi::dat_ep_connect(
            known(ep_handle),
            remote_ia_address,
            remote_conn_qual,
            timeout,
            private_data_size,
            private_data,
            qos,
            connect_flags,
        )
    })
}

/// # Safety
/// The conditions of the DAT 1.2 function that this function calls.
pub(super) unsafe extern "C" fn ep_dup_connect(
    ep_handle: DatHandle,
    dup_ep_handle: DatHandle,
    timeout: u32,
    private_data_size: DatCount,
    private_data: *const c_void,
    qos: u32,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    code::shown(unsafe {
        capi::dat_ep_dup_connect(
            known(ep_handle),
            known(dup_ep_handle),
            timeout,
            private_data_size,
            private_data,
            qos,
        )
    })
}

pub(super) extern "C" fn ep_disconnect(ep_handle: DatHandle, disconnect_flags: u32) -> DatReturn {
    code::shown(capi::dat_ep_disconnect(known(ep_handle), disconnect_flags))
}

/// # Safety
/// `psp_handle` is null or points to a handle.
pub(super) unsafe extern "C" fn psp_create(
    ia_handle: DatHandle,
    conn_qual: u64,
    evd_handle: DatHandle,
    psp_flags: u32,
    psp_handle: *mut DatHandle,
) -> DatReturn {
    let make = |place| {
        // SAFETY: `place` is null or points to a local variable.
        unsafe {
            capi::dat_psp_create(
                known(ia_handle),
                conn_qual,
                known(evd_handle),
                psp_flags,
                place,
            )
        }
    };
    // SAFETY: contract ROOM; the DAT 1.2 function in `make` refuses null.
    let answer = unsafe { shown_new(ia_handle, psp_handle, make) };
    code::shown(answer)
}

/// # Safety
/// The pointers are null or point to what the header says.
pub(super) unsafe extern "C" fn psp_create_any(
    ia_handle: DatHandle,
    conn_qual: *mut u64,
    evd_handle: DatHandle,
    psp_flags: u32,
    psp_handle: *mut DatHandle,
) -> DatReturn {
    let make = |place| {
        // SAFETY: contract PASSED ON; `place` is null or points to a local variable.
        unsafe {
            capi::dat_psp_create_any(
                known(ia_handle),
                conn_qual,
                known(evd_handle),
                psp_flags,
                place,
            )
        }
    };
    // SAFETY: contract ROOM; the DAT 1.2 function in `make` refuses null.
    let answer = unsafe { shown_new(ia_handle, psp_handle, make) };
    code::shown(answer)
}

/// # Safety
/// `psp_param` is null or points to a `DAT_PSP_PARAM`.
pub(super) unsafe extern "C" fn psp_query(
    psp_handle: DatHandle,
    psp_param_mask: u32,
    psp_param: *mut CPspParam,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    let answer = unsafe { capi::dat_psp_query(known(psp_handle), psp_param_mask, psp_param) };
    if answer == 0 {
        // SAFETY: the call succeeded, so the pointer is not null and has been written through; contract ROOM.
        let param = unsafe { &mut *psp_param };
        let of = provider(psp_handle);
        param.ia_handle = shown(of, param.ia_handle);
        param.evd_handle = shown(of, param.evd_handle);
    }
    code::shown(answer)
}

pub(super) extern "C" fn psp_free(psp_handle: DatHandle) -> DatReturn {
    code::shown(capi::dat_psp_free(known(psp_handle)))
}

/// # Safety
/// `rsp_handle` is null or points to a handle.
pub(super) unsafe extern "C" fn rsp_create(
    ia_handle: DatHandle,
    conn_qual: u64,
    ep_handle: DatHandle,
    evd_handle: DatHandle,
    rsp_handle: *mut DatHandle,
) -> DatReturn {
    let make = |place| {
        // SAFETY: `place` is null or points to a local variable.
        let answer = unsafe {
            capi::dat_rsp_create(
                known(ia_handle),
                conn_qual,
                known(ep_handle),
                known(evd_handle),
                place,
            )
        };
        if answer == 0 {
            // SAFETY: the call succeeded, so `place` is not null and the call has written a handle.
            let rsp = unsafe { *place };
            // If the handle cannot be recorded, the only effect is that `served` does not find it.
            let _noted = on(rsp, |open, _: RspHandle| {
                open.records.reserved.push(ReservedPoint {
                    conn_qual,
                    evd: number(known(evd_handle)),
                    handle: number(rsp),
                });
                Ok(())
            });
        }
        answer
    };
    // SAFETY: contract ROOM; the DAT 1.2 function in `make` refuses null.
    let answer = unsafe { shown_new(ia_handle, rsp_handle, make) };
    code::shown(answer)
}

/// # Safety
/// `rsp_param` is null or points to a `DAT_RSP_PARAM`.
pub(super) unsafe extern "C" fn rsp_query(
    rsp_handle: DatHandle,
    rsp_param_mask: u32,
    rsp_param: *mut CRspParam,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    let answer = unsafe { capi::dat_rsp_query(known(rsp_handle), rsp_param_mask, rsp_param) };
    if answer == 0 {
        // SAFETY: the call succeeded, so the pointer is not null and has been written through; contract ROOM.
        let param = unsafe { &mut *rsp_param };
        let of = provider(rsp_handle);
        param.ia_handle = shown(of, param.ia_handle);
        param.evd_handle = shown(of, param.evd_handle);
        param.ep_handle = shown(of, param.ep_handle);
    }
    code::shown(answer)
}

/// Returns the handle (DAT 1.2) of the reserved service point at `conn_qual` whose request has arrived on `evd`; null
/// if the program has freed it.
///
/// This service point is spent: DAT 1.2 does not name it in the event, and other service points may use its qualifier.
/// But DAT 2.0 programs get its handle in the event and then free it (dapl's `dapl_cr_callback.c`), and it exists until
/// then. An EVD has its events in order, so the oldest service point of the qualifier and the EVD is the one.
pub(super) fn served(open: &mut Open, conn_qual: u64, evd: DatHandle) -> DatHandle {
    let points = &mut open.records.reserved;
    let is_it = |point: &ReservedPoint| point.conn_qual == conn_qual && point.evd == number(evd);
    match points.iter().position(is_it) {
        Some(at) => handle_of(points.remove(at).handle),
        None => null_mut(),
    }
}

pub(super) extern "C" fn rsp_free(rsp_handle: DatHandle) -> DatReturn {
    code::shown(capi::dat_rsp_free(known(rsp_handle)))
}

/// # Safety
/// `cr_param` is null or points to a `DAT_CR_PARAM`.
pub(super) unsafe extern "C" fn cr_query(
    cr_handle: DatHandle,
    cr_param_mask: u32,
    cr_param: *mut CCrParam,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    let answer = unsafe { capi::dat_cr_query(known(cr_handle), cr_param_mask, cr_param) };
    if answer == 0 {
        // SAFETY: the call succeeded, so the pointer is not null and has been written through; contract ROOM.
        let param = unsafe { &mut *cr_param };
        param.local_ep_handle = shown(provider(cr_handle), param.local_ep_handle);
    }
    code::shown(answer)
}

/// # Safety
/// The conditions of the DAT 1.2 function that this function calls.
pub(super) unsafe extern "C" fn cr_accept(
    cr_handle: DatHandle,
    ep_handle: DatHandle,
    private_data_size: DatCount,
    private_data: *const c_void,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    code::shown(unsafe {
        capi::dat_cr_accept(
            known(cr_handle),
            known(ep_handle),
            private_data_size,
            private_data,
        )
    })
}

/// # Safety
/// `private_data` is null or has `private_data_size` bytes.
pub(super) unsafe extern "C" fn cr_reject(
    cr_handle: DatHandle,
    private_data_size: DatCount,
    private_data: *const c_void,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    code::shown(unsafe {
        capi::dat_cr_reject_with(known(cr_handle), private_data_size, private_data)
    })
}

pub(super) extern "C" fn cr_handoff(cr_handle: DatHandle, handoff: u64) -> DatReturn {
    code::shown(capi::dat_cr_handoff(known(cr_handle), handoff))
}
