//! The calls of an EVD, except `dat_evd_dequeue` (in [`hot`](super::hot)).

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use std::sync::Arc;

use dat_core::{
    CnoHandle, DatError, DatResult, EvdFlags, EvdHandle, EvdWait, EvdWaitStatus, Event, ReturnType,
    SoftwareEvent, Subtype, Timeout, WaitError,
};

use super::adapter::{Adapter, Open};
use super::answer::call;
use super::argument::{as_count, count, given, mask, put};
use super::call::{look_up, on, optional, owned};
use super::error::parameter;
use super::event;
use super::foreign::foreign;
use super::sleep::Taken;
use super::table::{IaName, Reserved, number};
use super::types::{CEvdParam, CEvent, DatCount, DatHandle, DatReturn};

/// `DAT_EVD_FIELD_ALL`.
const ALL: u64 = 0x1f;
/// Event number `DAT_SOFTWARE_EVENT`.
const SOFTWARE: u32 = 0x10001;

/// `dat_evd_create`.
///
/// # Safety
/// `evd_handle` is null or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_evd_create(
    ia_handle: DatHandle,
    evd_min_qlen: DatCount,
    cno_handle: DatHandle,
    evd_flags: u32,
    evd_handle: *mut DatHandle,
) -> DatReturn {
    foreign!(evd_create_func(
        ia_handle,
        evd_min_qlen,
        cno_handle: HandleCno,
        evd_flags,
        evd_handle,
    ));
    call(|| {
        let (adapter, ia) = look_up::<IaName>(ia_handle)?;
        let qlen = count(evd_min_qlen, Subtype::Arg2)?;
        given(evd_handle, Subtype::Arg5)?;
        let reserved = Reserved::new()?;
        let (cno, flags) = (
            optional::<CnoHandle>(ia, cno_handle),
            EvdFlags::from_bits_retain(evd_flags),
        );
        let evd = adapter.with_instance(ia, |open| {
            let evd = open.ia.evd_create_with_cno(qlen, cno, flags)?;
            Ok(open.enter(adapter, reserved, evd))
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(evd_handle, evd) };
        Ok(())
    })
}

/// `dat_evd_query`.
///
/// # Safety
/// `evd_param` is null or points to a `DAT_EVD_PARAM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_evd_query(
    evd_handle: DatHandle,
    evd_param_mask: u32,
    evd_param: *mut CEvdParam,
) -> DatReturn {
    foreign!(evd_query_func(evd_handle, evd_param_mask, evd_param));
    call(|| {
        let (adapter, evd) = look_up::<EvdHandle>(evd_handle)?;
        mask(evd_param_mask.into(), ALL, Subtype::Arg2)?;
        given(evd_param, Subtype::Arg3)?;
        let param = adapter.with(|open| {
            let param = open.ia.evd_query(evd)?;
            Ok(CEvdParam {
                ia_handle: open.ia_handle(),
                evd_qlen: as_count(param.qlen),
                evd_state: param.state.bits(),
                cno_handle: param
                    .cno
                    .map_or(core::ptr::null_mut(), |cno| open.name(adapter, cno)),
                evd_flags: param.flags.bits(),
            })
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(evd_param, param) };
        Ok(())
    })
}

/// `dat_evd_modify_cno`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_evd_modify_cno(evd_handle: DatHandle, cno_handle: DatHandle) -> DatReturn {
    foreign!(evd_modify_cno_func(evd_handle, cno_handle: HandleCno));
    call(|| {
        let (adapter, ia, evd) = owned::<EvdHandle>(evd_handle)?;
        let cno = optional::<CnoHandle>(ia, cno_handle);
        adapter.with(|open| open.ia.evd_modify_cno(evd, cno))
    })
}

/// `dat_evd_enable`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_evd_enable(evd_handle: DatHandle) -> DatReturn {
    foreign!(evd_enable_func(evd_handle));
    on(evd_handle, |open, evd: EvdHandle| open.ia.evd_enable(evd))
}

/// `dat_evd_disable`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_evd_disable(evd_handle: DatHandle) -> DatReturn {
    foreign!(evd_disable_func(evd_handle));
    on(evd_handle, |open, evd: EvdHandle| open.ia.evd_disable(evd))
}

/// `dat_evd_set_unwaitable`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_evd_set_unwaitable(evd_handle: DatHandle) -> DatReturn {
    foreign!(evd_set_unwaitable_func(evd_handle));
    on(evd_handle, |open, evd: EvdHandle| {
        open.ia.evd_set_unwaitable(evd)
    })
}

/// `dat_evd_clear_unwaitable`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_evd_clear_unwaitable(evd_handle: DatHandle) -> DatReturn {
    foreign!(evd_clear_unwaitable_func(evd_handle));
    on(evd_handle, |open, evd: EvdHandle| {
        open.ia.evd_clear_unwaitable(evd)
    })
}

/// `dat_evd_resize`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_evd_resize(evd_handle: DatHandle, evd_min_qlen: DatCount) -> DatReturn {
    foreign!(evd_resize_func(evd_handle, evd_min_qlen));
    on(evd_handle, |open, evd: EvdHandle| {
        let qlen = count(evd_min_qlen, Subtype::Arg2)?;
        open.ia.evd_resize(evd, qlen)
    })
}

/// `dat_evd_post_se`.
///
/// # Safety
/// `event` is null or points to an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_evd_post_se(evd_handle: DatHandle, event: *const CEvent) -> DatReturn {
    foreign!(evd_post_se_func(evd_handle, event));
    call(|| {
        let (adapter, evd) = look_up::<EvdHandle>(evd_handle)?;
        given(event, Subtype::Arg2)?;
        // SAFETY: the pointer is not null, so by contract GIVEN it leads to a value.
        let event = unsafe { &*event };
        if event.event_number != SOFTWARE {
            return Err(parameter(Subtype::Arg2));
        }
        // SAFETY: every member of the union is a number or a pointer that is not dereferenced; the caller initialized
        // it.
        let pointer = unsafe { event.event_data.software_event_data.pointer };
        let word = SoftwareEvent(number(pointer));
        adapter.with(|open| open.ia.evd_post_se(evd, word))
    })
}

/// `dat_evd_free`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_evd_free(evd_handle: DatHandle) -> DatReturn {
    foreign!(evd_free_func(evd_handle));
    on(evd_handle, |open, evd: EvdHandle| {
        open.ia.evd_free(evd)?;
        open.forget(evd);
        Ok(())
    })
}

/// `dat_evd_wait`.
///
/// # Safety
/// `event` and `nmore` are null or point to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_evd_wait(
    evd_handle: DatHandle,
    timeout: u32,
    threshold: DatCount,
    event: *mut CEvent,
    nmore: *mut DatCount,
) -> DatReturn {
    foreign!(evd_wait_func(evd_handle, timeout, threshold, event, nmore));
    // SAFETY: contract PASSED ON.
    unsafe { waited(evd_handle, timeout, threshold, event, nmore, event::made) }
}

/// Waits for an event (`dat_evd_wait`), and converts it with `made` to the type of the caller's DAT version.
///
/// # Safety
/// `out` and `nmore` are null or point to memory for their types.
pub(super) unsafe fn waited<T>(
    evd_handle: DatHandle,
    timeout: u32,
    threshold: DatCount,
    out: *mut T,
    nmore: *mut DatCount,
    made: impl Fn(&'static Adapter, &mut Open, DatHandle, &Event) -> T,
) -> DatReturn {
    call(|| {
        let (adapter, ia, evd) = owned::<EvdHandle>(evd_handle)?;
        let threshold = count(threshold, Subtype::Arg3)?;
        given(out, Subtype::Arg4)?;
        given(nmore, Subtype::Arg5)?;
        let timeout = Timeout::from_micros(timeout);
        let made = |open: &mut Open, event: &Event| made(adapter, open, evd_handle, event);
        match wait(adapter, ia, evd, timeout, threshold, made) {
            Ok((left, event)) => {
                // SAFETY: contract ROOM.
                unsafe { put(out, event) };
                // SAFETY: contract ROOM.
                unsafe { put(nmore, as_count(left)) };
                Ok(())
            }
            Err(failed) => {
                if matches!(
                    failed.return_type(),
                    ReturnType::TimeoutExpired | ReturnType::InterruptedCall
                ) {
                    // SAFETY: contract ROOM.
                    unsafe { put(nmore, as_count(failed.nmore)) };
                }
                Err(failed.error)
            }
        }
    })
}

/// Result of a check: either the number of further events and the first event, or the wait to continue and the time of
/// the next check.
type Checked<T> = Result<(u32, T), (EvdWait, u64)>;

/// Waits for events. The thread does not hold access to the adapter while it sleeps. Returns the number of further
/// events and the first event.
fn wait<T>(
    adapter: &'static Adapter,
    ia: IaName,
    evd: EvdHandle,
    timeout: Timeout,
    threshold: u32,
    made: impl Fn(&mut Open, &Event) -> T,
) -> Result<(u32, T), WaitError> {
    let begun = adapter.with(|open| {
        if let Some((event, left)) = open.ia.evd_wait_at_once(evd, threshold) {
            return Ok(Ok((left, made(open, &event))));
        }
        let wait = open.ia.evd_wait_begin(evd, timeout, threshold)?;
        Ok(Err((
            wait,
            Arc::clone(&open.sleep),
            Arc::clone(&open.instance.siblings),
        )))
    })?;
    let (mut wait, sleep, siblings) = match begun {
        Ok(there) => return Ok(there),
        Err(begun) => begun,
    };
    let sleeper = sleep.enlist();
    let mut taken = Taken::NOTHING;
    loop {
        let checked: DatResult<Option<Result<Checked<T>, WaitError>>> = adapter
            .with_no_wake_if_open(ia, |open| {
                taken.share(&open.ia);
                open.ia.evd_wait_check(wait).map(|status| match status {
                    EvdWaitStatus::Ready(event, left) => Ok((left, made(open, &event))),
                    EvdWaitStatus::Pending(again, until) => Err((again, until)),
                })
            });
        // DAT_ABORT if the program closed the IA while this thread slept.
        let checked = checked.and_then(|checked| checked.ok_or_else(aborted));
        let checked = checked.inspect_err(|_| siblings.take_over(taken));
        match checked?? {
            Ok(ready) => return Ok(ready),
            Err((again, until)) => {
                if siblings.poll_notified(ia) {
                    (wait, taken) = (again, Taken::NOTHING);
                    continue;
                }
                let Ok(by_now) = sleeper.until(until) else {
                    return Err(interrupted(adapter, ia, again));
                };
                (wait, taken) = (again, by_now);
            }
        }
    }
}

/// Cancels a wait because of a signal.
fn interrupted(adapter: &'static Adapter, ia: IaName, wait: EvdWait) -> WaitError {
    let ended = adapter.with_no_wake_if_open(ia, |open| open.ia.evd_wait_cancel(wait));
    // If the program has closed the IA meanwhile, the result is DAT_ABORT as in `wait`.
    ended
        .and_then(|ended| ended.ok_or_else(aborted))
        .unwrap_or_else(WaitError::from)
}

/// Returns DAT_ABORT, because the IA was closed during a wait.
fn aborted() -> DatError {
    DatError::new(ReturnType::Abort, Subtype::None).because("the IA was closed")
}
