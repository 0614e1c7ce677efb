//! The calls of a CNO.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::mem::MaybeUninit;
use core::ptr::null_mut;

use super::cells::{known, provider, shown, shown_before};
use super::code;
use super::made::shown_new;
use super::types::{CCnoParam, proxy};
use crate::capi;
use crate::capi::types::{CAgent, DatHandle, DatReturn};

/// All valid bits of `DAT_CNO_PARAM_MASK`. The header numbers the fields 1, 2 and 3, and `DAT_CNO_FIELD_ALL` is 4.
const ALL: u32 = 7;
/// `DAT_CNO_FIELD_ALL` in DAT 1.2.
const ALL_BEFORE: u32 = 3;

/// # Safety
/// The conditions of the DAT 1.2 function that this function calls.
pub(super) unsafe extern "C" fn create(
    ia_handle: DatHandle,
    agent: CAgent,
    cno_handle: *mut DatHandle,
) -> DatReturn {
    let make = |place| {
        // SAFETY: contract AGENT; `place` is null or points to a local variable.
        unsafe { capi::cno::create(known(ia_handle), agent, shown_before, place) }
    };
    // SAFETY: contract ROOM; the DAT 1.2 function in `make` refuses null.
    let answer = unsafe { shown_new(ia_handle, cno_handle, make) };
    code::shown(answer)
}

/// # Safety
/// The conditions of the DAT 1.2 function that this function calls.
pub(super) unsafe extern "C" fn modify_agent(cno_handle: DatHandle, agent: CAgent) -> DatReturn {
    // SAFETY: contract AGENT.
    code::shown(unsafe { capi::cno::modify_agent(known(cno_handle), agent, shown_before) })
}

/// # Safety
/// `cno_param` is null or points to a `DAT_CNO_PARAM`.
pub(super) unsafe extern "C" fn query(
    cno_handle: DatHandle,
    cno_param_mask: u32,
    cno_param: *mut CCnoParam,
) -> DatReturn {
    if cno_param_mask & !ALL != 0 {
        return code::bad_argument(2);
    }
    if cno_param.is_null() {
        return code::bad_argument(3);
    }
    let mut param = MaybeUninit::uninit();
    // SAFETY: the pointer leads to a local variable.
    let answer = unsafe { capi::dat_cno_query(known(cno_handle), ALL_BEFORE, param.as_mut_ptr()) };
    if answer == 0 {
        // SAFETY: the call succeeded, so it has written the value.
        let param = unsafe { param.assume_init() };
        let proxy_type = match param.agent.proxy_agent_func {
            Some(_) => proxy::AGENT,
            None => proxy::NONE,
        };
        let param = CCnoParam {
            ia_handle: shown(provider(cno_handle), param.ia_handle),
            proxy_type,
            proxy: param.agent,
        };
        // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
        unsafe { cno_param.write(param) };
    }
    code::shown(answer)
}

pub(super) extern "C" fn free(cno_handle: DatHandle) -> DatReturn {
    code::shown(capi::dat_cno_free(known(cno_handle)))
}

/// # Safety
/// `evd_handle` is null or points to a handle.
pub(super) unsafe extern "C" fn wait(
    cno_handle: DatHandle,
    timeout: u32,
    evd_handle: *mut DatHandle,
) -> DatReturn {
    if evd_handle.is_null() {
        return code::bad_argument(3);
    }
    let mut evd = null_mut();
    // SAFETY: the pointer leads to a local variable.
    let answer = unsafe { capi::dat_cno_wait(known(cno_handle), timeout, &raw mut evd) };
    // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
    unsafe { evd_handle.write(shown(provider(cno_handle), evd)) };
    code::shown(answer)
}
