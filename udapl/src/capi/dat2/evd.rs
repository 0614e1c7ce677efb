//! The calls of an EVD, and the conversion of events to DAT 2.0.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ptr::null_mut;

use dat_core::{DtoStatus, EvdHandle, Event, Subtype};

use super::cells::{known, provider, shown};
use super::ia::size;
use super::made::shown_new;
use super::provider::Provider;
use super::types::{CCrArrival, CDtoCompletion, CEvent, CEventData};
use super::{code, connect, ext};
use crate::capi::adapter::{Adapter, Open};
use crate::capi::answer::call;
use crate::capi::argument::given;
use crate::capi::call::look_up;
use crate::capi::event::there;
use crate::capi::table::number;
use crate::capi::types::{
    CAsync, CConnection, CEvdParam, CRmrCompletion, DatCount, DatHandle, DatReturn, operation,
};
use crate::capi::{self, event, types};

/// # Safety
/// `evd_handle` is null or points to a handle.
pub(super) unsafe extern "C" fn create(
    ia_handle: DatHandle,
    evd_min_qlen: DatCount,
    cno_handle: DatHandle,
    evd_flags: u32,
    evd_handle: *mut DatHandle,
) -> DatReturn {
    let make = |place| {
        // SAFETY: `place` is null or points to a local variable.
        unsafe {
            capi::dat_evd_create(
                known(ia_handle),
                evd_min_qlen,
                known(cno_handle),
                evd_flags,
                place,
            )
        }
    };
    // SAFETY: contract ROOM; the DAT 1.2 function in `make` refuses null.
    let answer = unsafe { shown_new(ia_handle, evd_handle, make) };
    code::shown(answer)
}

/// # Safety
/// `evd_param` is null or points to a `DAT_EVD_PARAM`.
pub(super) unsafe extern "C" fn query(
    evd_handle: DatHandle,
    evd_param_mask: u32,
    evd_param: *mut CEvdParam,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    let answer = unsafe { capi::dat_evd_query(known(evd_handle), evd_param_mask, evd_param) };
    if answer == 0 {
        // SAFETY: the call succeeded, so the pointer is not null and has been written through; contract ROOM.
        let param = unsafe { &mut *evd_param };
        let of = provider(evd_handle);
        param.ia_handle = shown(of, param.ia_handle);
        param.cno_handle = shown(of, param.cno_handle);
    }
    code::shown(answer)
}

pub(super) extern "C" fn modify_cno(evd_handle: DatHandle, cno_handle: DatHandle) -> DatReturn {
    code::shown(capi::dat_evd_modify_cno(
        known(evd_handle),
        known(cno_handle),
    ))
}

macro_rules! plain {
    ($($name:ident = $call:ident;)*) => {
        $(pub(super) extern "C" fn $name(evd_handle: DatHandle) -> DatReturn {
            code::shown(capi::$call(known(evd_handle)))
        })*
    };
}

plain! {
    enable = dat_evd_enable;
    disable = dat_evd_disable;
    set_unwaitable = dat_evd_set_unwaitable;
    clear_unwaitable = dat_evd_clear_unwaitable;
    free = dat_evd_free;
}

pub(super) extern "C" fn resize(evd_handle: DatHandle, evd_min_qlen: DatCount) -> DatReturn {
    code::shown(capi::dat_evd_resize(known(evd_handle), evd_min_qlen))
}

/// # Safety
/// `event` is null or points to an event.
pub(super) unsafe extern "C" fn post_se(evd_handle: DatHandle, event: *const CEvent) -> DatReturn {
    if event.is_null() {
        // SAFETY: the call accepts a null pointer.
        return code::shown(unsafe { capi::dat_evd_post_se(known(evd_handle), core::ptr::null()) });
    }
    // SAFETY: the pointer is not null, so by contract GIVEN it leads to a value.
    let given = unsafe { &*event };
    // SAFETY: every member of the union is a number or a pointer that is not dereferenced; the caller initialized it.
    let software_event_data = unsafe { given.event_data.software_event_data };
    let event = types::CEvent {
        event_number: given.event_number,
        evd_handle: null_mut(),
        event_data: types::CEventData {
            software_event_data,
        },
    };
    // SAFETY: the pointer leads to a local event.
    code::shown(unsafe { capi::dat_evd_post_se(known(evd_handle), &raw const event) })
}

/// # Safety
/// `event` is null or points to an event.
pub(super) unsafe extern "C" fn dequeue(evd_handle: DatHandle, event: *mut CEvent) -> DatReturn {
    let of = provider(evd_handle);
    let inside = known(evd_handle);
    code::dequeued(call(|| {
        let (adapter, evd) = look_up::<EvdHandle>(inside)?;
        given(event, Subtype::Arg2)?;
        let taken = adapter.with(|open| {
            let taken = open.ia.evd_dequeue(evd).and_then(there)?;
            Ok(made(of, adapter, open, inside, &taken))
        })?;
        // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
        unsafe { event.write(taken) };
        Ok(())
    }))
}

/// # Safety
/// `event` and `nmore` are null or point to what the header says.
pub(super) unsafe extern "C" fn wait(
    evd_handle: DatHandle,
    timeout: u32,
    threshold: DatCount,
    event: *mut CEvent,
    nmore: *mut DatCount,
) -> DatReturn {
    let of = provider(evd_handle);
    let made = |adapter: &'static Adapter, open: &mut Open, evd: DatHandle, event: &Event| {
        made(of, adapter, open, evd, event)
    };
    // SAFETY: contract PASSED ON.
    code::shown(unsafe {
        capi::evd::waited(known(evd_handle), timeout, threshold, event, nmore, made)
    })
}

/// Returns the operation of an endpoint's completed request, or a Send if the request was not recorded.
fn operation_of(open: &mut Open, ep: DatHandle, cookie: u64, success: bool) -> u32 {
    let operations = open.records.operations.get_mut(&number(ep));
    operations
        .and_then(|operations| operations.take(cookie, success))
        .unwrap_or(operation::SEND)
}

/// Converts an event from DAT 1.2 to DAT 2.0.
fn made(
    of: *mut Provider,
    adapter: &'static Adapter,
    open: &mut Open,
    evd: DatHandle,
    event: &Event,
) -> CEvent {
    let before = event::made(adapter, open, evd, event);
    let data = before.event_data;
    let mut extension = None;
    let event_data = match event {
        Event::Dto(done) => {
            // SAFETY: `event::made` sets this member of the union for this kind of event.
            let inside = unsafe { data.dto_completion_event_data.ep_handle };
            let success = done.status == DtoStatus::Success;
            let operation = if done.request {
                let operation = operation_of(open, inside, done.cookie.0, success);
                extension = ext::of_request(operation, success);
                operation
            } else {
                let (operation, data) = ext::of_receive(done.detail);
                extension = data;
                operation
            };
            CEventData {
                dto_completion_event_data: CDtoCompletion {
                    ep_handle: shown(of, inside),
                    user_cookie: done.cookie.0,
                    // CAST: the discriminant is DAT's number.
                    status: done.status as u32,
                    transfered_length: size(done.transferred_length),
                    operation,
                    rmr_context: done.detail.invalidated().unwrap_or(0),
                },
            }
        }
        Event::RmrBind(_) => {
            // SAFETY: `event::made` sets this member of the union for this kind of event.
            let data = unsafe { data.rmr_completion_event_data };
            CEventData {
                rmr_completion_event_data: CRmrCompletion {
                    rmr_handle: shown(of, data.rmr_handle),
                    ..data
                },
            }
        }
        Event::ConnectionRequest(request) => {
            // SAFETY: `event::made` sets this member of the union for this kind of event.
            let data = unsafe { data.cr_arrival_event_data };
            let point = if request.psp.is_none() {
                connect::served(open, data.conn_qual, evd)
            } else {
                data.sp_handle
            };
            CEventData {
                cr_arrival_event_data: CCrArrival {
                    sp_handle: shown(of, point),
                    local_ia_address_ptr: data.local_ia_address_ptr,
                    conn_qual: data.conn_qual,
                    cr_handle: shown(of, data.cr_handle),
                    truncate_flag: 0,
                },
            }
        }
        Event::Connection(_) => {
            // SAFETY: `event::made` sets this member of the union for this kind of event.
            let data = unsafe { data.connect_event_data };
            CEventData {
                connect_event_data: CConnection {
                    ep_handle: shown(of, data.ep_handle),
                    ..data
                },
            }
        }
        Event::Async(_) => {
            // SAFETY: `event::made` sets this member of the union for this kind of event.
            let data = unsafe { data.asynch_error_event_data };
            CEventData {
                asynch_error_event_data: CAsync {
                    dat_handle: shown(of, data.dat_handle),
                    ..data
                },
            }
        }
        Event::Software(_) => CEventData {
            // SAFETY: `event::made` sets this member of the union for this kind of event.
            software_event_data: unsafe { data.software_event_data },
        },
    };
    CEvent {
        event_number: if extension.is_some() {
            ext::EVENT
        } else {
            before.event_number
        },
        evd_handle: shown(of, before.evd_handle),
        event_data,
        event_extension_data: extension.unwrap_or([0; 8]),
    }
}
