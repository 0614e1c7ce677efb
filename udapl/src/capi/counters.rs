//! `dat_get_counters` returns the counters of an object, by name. DAT 1.2 has no such call.

// UNSAFETY: writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::CStr;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use dat_core::stats::Named;
use dat_core::{AnyHandle, Subtype};

use super::adapter::object;
use super::answer::call;
use super::argument::{as_count, count, given, put};
use super::error::{handle_error, parameter};
use super::types::{CCounter, DatCount, DatHandle, DatReturn};

/// Counter names as C strings. Their number is bounded, and they are never freed.
static NAMES: Mutex<BTreeMap<&'static str, &'static CStr>> = Mutex::new(BTreeMap::new());

fn name(text: &'static str) -> &'static CStr {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    names.entry(text).or_insert_with(|| {
        let text = CString::new(text).unwrap_or_default();
        Box::leak(text.into_boxed_c_str())
    })
}

/// Returns the counters of an IA, an endpoint, an EVD or an SRQ.
///
/// # Safety
/// `counters` is null or points to `max_counters` counters. `num_counters` is null or points to a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_get_counters(
    dat_handle: DatHandle,
    max_counters: DatCount,
    counters: *mut CCounter,
    num_counters: *mut DatCount,
) -> DatReturn {
    call(|| {
        let room = count(max_counters, Subtype::Arg2)?;
        if room != 0 {
            given(counters, Subtype::Arg3)?;
        }
        given(num_counters, Subtype::Arg4)?;
        let (adapter, ia, object) = object(dat_handle).ok_or(handle_error(Subtype::Handle1))?;
        let named: Named = adapter.with_instance(ia, |open| match object {
            AnyHandle::Ia => Ok(open.ia.stats().named()),
            AnyHandle::Ep(ep) => Ok(open.ia.ep_stats(ep)?.named()),
            AnyHandle::Evd(evd) => Ok(open.ia.evd_stats(evd)?.named()),
            AnyHandle::Srq(srq) => Ok(open.ia.srq_stats(srq)?.named()),
            AnyHandle::Pz(_)
            | AnyHandle::Lmr(_)
            | AnyHandle::Rmr(_)
            | AnyHandle::Cno(_)
            | AnyHandle::Cr(_)
            | AnyHandle::Psp(_)
            | AnyHandle::Rsp(_) => {
                Err(parameter(Subtype::Arg1).because("an object of this kind has no counters"))
            }
        })?;
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        for (at, (text, value)) in named.iter().take(room).enumerate() {
            let counter = CCounter {
                name: name(text).as_ptr(),
                value: *value,
            };
            // SAFETY: contract ROOM: `counters` has `room` elements.
            let place = unsafe { counters.add(at) };
            // SAFETY: likewise.
            unsafe { put(place, counter) };
        }
        // SAFETY: contract ROOM.
        unsafe { put(num_counters, as_count(named.len())) };
        Ok(())
    })
}
