//! Posts and dequeues: the calls a program makes millions of times.
//!
//! They go by the fast lane of the adapter if it is open. A post of one segment without flags and a dequeue that finds the
//! success of a DTO, which most are, are made at once: everything that stands against that leads to the longer way,
//! from its beginning, which says why not, or does it after all, and which takes its turn if it has to.
//!
//! What is done at once holds nothing that has a drop, calls nothing else and hands the arguments on as they came, or as
//! numbers where they are known by then, so that it needs neither the stack nor many registers.

// UNSAFETY: pointers of a C program are read and written.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::slice;

use dat_core::{
    CompletionFlags, DatError, DatResult, EpHandle, EvdHandle, LmrTriplet, ReturnType, RmrTriplet,
    SrqHandle, Subtype,
};

use super::adapter::Open;
use super::call::{answer, call, caught, look_up, parameter, said};
use super::event;
use super::foreign::foreign;
use super::table::{Named, find, find_place, handle_of, number};
use super::types::{CEvent, DatContext, DatCount, DatHandle, DatReturn};
use crate::Ia;

/// DAT_QUEUE_EMPTY.
const QUEUE_EMPTY: DatReturn = DatError::new(ReturnType::QueueEmpty, Subtype::None).code();

/// The segment of a post that has one, and no flags: most have.
///
/// # Safety
/// `iov` is null or points to `count` segments.
#[inline(always)]
unsafe fn plain<'a>(count: DatCount, iov: *const LmrTriplet, flags: u32) -> Option<&'a LmrTriplet> {
    // In one comparison.
    if count.cast_unsigned().wrapping_sub(1) | flags != 0 {
        return None;
    }
    // SAFETY: contract GIVEN.
    unsafe { iov.as_ref() }
}

/// A plain post by the fast lane, or else the longer way.
#[inline(always)]
fn at_once(
    ep: DatHandle,
    post: impl FnOnce(&mut Ia, (u32, u64)) -> bool,
    longer: impl Fn() -> DatReturn,
) -> DatReturn {
    let Some((adapter, place)) = find_place::<EpHandle>(ep) else {
        return longer();
    };
    let post = |open: &mut Open| post(&mut open.ia, (place, number(ep))).then_some(0);
    adapter.fast(post, longer)
}

/// Any post, on any adapter.
///
/// # Safety
/// `iov` is null or points to `count` segments.
unsafe fn post<H: Named>(
    handle: DatHandle,
    count: DatCount,
    iov: *const LmrTriplet,
    post: impl Fn(&mut Ia, H, &[LmrTriplet]) -> DatResult<()>,
) -> DatReturn {
    caught(|| {
        let (adapter, object) = match look_up::<H>(handle) {
            Ok(found) => found,
            Err(error) => return answer(error),
        };
        let Ok(count) = usize::try_from(count) else {
            return answer(parameter(Subtype::Arg2));
        };
        let iov = if count == 0 {
            &[]
        } else if iov.is_null() {
            return answer(parameter(Subtype::Arg3));
        } else {
            // SAFETY: contract GIVEN, for a vector that is not null.
            unsafe { slice::from_raw_parts(iov, count) }
        };
        adapter.fast(
            |open| Some(said(post(&mut open.ia, object, iov))),
            || said(adapter.turn(|open| post(&mut open.ia, object, iov))),
        )
    })
}

/// The handle is checked before the pointer.
#[cold]
fn no_remote(ep: DatHandle) -> DatReturn {
    call(|| {
        look_up::<EpHandle>(ep)?;
        Err(parameter(Subtype::Arg5))
    })
}

/// `dat_ep_post_send`.
///
/// # Safety
/// `local_iov` is null or points to `num_segments` segments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_send(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const LmrTriplet,
    user_cookie: DatContext,
    completion_flags: u32,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    let longer = |count, flags| unsafe { send(ep_handle, count, local_iov, user_cookie, flags) };
    // SAFETY: contract GIVEN.
    let Some(one) = (unsafe { plain(num_segments, local_iov, completion_flags) }) else {
        return longer(num_segments, completion_flags);
    };
    at_once(
        ep_handle,
        |ia, ep| ia.named_post_send(ep, one, user_cookie),
        || longer(1, 0),
    )
}

/// # Safety
/// As [`dat_ep_post_send`].
#[inline(never)]
unsafe fn send(
    ep: DatHandle,
    count: DatCount,
    iov: *const LmrTriplet,
    cookie: DatContext,
    flags: u32,
) -> DatReturn {
    foreign!(ep_post_send_func(ep, count, iov, cookie, flags));
    let flags = CompletionFlags::from_bits_retain(flags);
    // SAFETY: contract PASSED ON.
    unsafe {
        post(ep, count, iov, |ia, ep: EpHandle, iov| {
            ia.ep_post_send(ep, iov, cookie, flags)
        })
    }
}

/// `dat_ep_post_recv`.
///
/// # Safety
/// As [`dat_ep_post_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_recv(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const LmrTriplet,
    user_cookie: DatContext,
    completion_flags: u32,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    let longer = |count, flags| unsafe { recv(ep_handle, count, local_iov, user_cookie, flags) };
    // SAFETY: contract GIVEN.
    let Some(one) = (unsafe { plain(num_segments, local_iov, completion_flags) }) else {
        return longer(num_segments, completion_flags);
    };
    at_once(
        ep_handle,
        |ia, ep| ia.named_post_recv(ep, one, user_cookie),
        || longer(1, 0),
    )
}

/// # Safety
/// As [`dat_ep_post_send`].
#[inline(never)]
unsafe fn recv(
    ep: DatHandle,
    count: DatCount,
    iov: *const LmrTriplet,
    cookie: DatContext,
    flags: u32,
) -> DatReturn {
    foreign!(ep_post_recv_func(ep, count, iov, cookie, flags));
    let flags = CompletionFlags::from_bits_retain(flags);
    // SAFETY: contract PASSED ON.
    unsafe {
        post(ep, count, iov, |ia, ep: EpHandle, iov| {
            ia.ep_post_recv(ep, iov, cookie, flags)
        })
    }
}

/// `dat_ep_post_rdma_read`.
///
/// # Safety
/// As [`dat_ep_post_send`]; `remote_buffer` is null or points to a triplet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_rdma_read(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const LmrTriplet,
    user_cookie: DatContext,
    remote_buffer: *const RmrTriplet,
    completion_flags: u32,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    let longer = |count, flags| unsafe {
        rdma_read(
            ep_handle,
            count,
            local_iov,
            user_cookie,
            remote_buffer,
            flags,
        )
    };
    // SAFETY: contract GIVEN.
    let Some(one) = (unsafe { plain(num_segments, local_iov, completion_flags) }) else {
        return longer(num_segments, completion_flags);
    };
    // SAFETY: contract GIVEN.
    let Some(remote) = (unsafe { remote_buffer.as_ref() }) else {
        return longer(1, 0);
    };
    at_once(
        ep_handle,
        |ia, ep| ia.named_post_rdma_read(ep, one, user_cookie, remote),
        || longer(1, 0),
    )
}

/// # Safety
/// As [`dat_ep_post_rdma_read`].
#[inline(never)]
unsafe fn rdma_read(
    ep: DatHandle,
    count: DatCount,
    iov: *const LmrTriplet,
    cookie: DatContext,
    remote: *const RmrTriplet,
    flags: u32,
) -> DatReturn {
    foreign!(ep_post_rdma_read_func(
        ep, count, iov, cookie, remote, flags
    ));
    let flags = CompletionFlags::from_bits_retain(flags);
    // SAFETY: contract GIVEN.
    let Some(remote) = (unsafe { remote.as_ref() }) else {
        return no_remote(ep);
    };
    // SAFETY: contract PASSED ON.
    unsafe {
        post(ep, count, iov, |ia, ep: EpHandle, iov| {
            ia.ep_post_rdma_read(ep, iov, cookie, remote, flags)
        })
    }
}

/// `dat_ep_post_rdma_write`.
///
/// # Safety
/// As [`dat_ep_post_rdma_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_rdma_write(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const LmrTriplet,
    user_cookie: DatContext,
    remote_buffer: *const RmrTriplet,
    completion_flags: u32,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    let longer = |count, flags| unsafe {
        rdma_write(
            ep_handle,
            count,
            local_iov,
            user_cookie,
            remote_buffer,
            flags,
        )
    };
    // SAFETY: contract GIVEN.
    let Some(one) = (unsafe { plain(num_segments, local_iov, completion_flags) }) else {
        return longer(num_segments, completion_flags);
    };
    // SAFETY: contract GIVEN.
    let Some(remote) = (unsafe { remote_buffer.as_ref() }) else {
        return longer(1, 0);
    };
    at_once(
        ep_handle,
        |ia, ep| ia.named_post_rdma_write(ep, one, user_cookie, remote),
        || longer(1, 0),
    )
}

/// # Safety
/// As [`dat_ep_post_rdma_read`].
#[inline(never)]
unsafe fn rdma_write(
    ep: DatHandle,
    count: DatCount,
    iov: *const LmrTriplet,
    cookie: DatContext,
    remote: *const RmrTriplet,
    flags: u32,
) -> DatReturn {
    foreign!(ep_post_rdma_write_func(
        ep, count, iov, cookie, remote, flags
    ));
    let flags = CompletionFlags::from_bits_retain(flags);
    // SAFETY: contract GIVEN.
    let Some(remote) = (unsafe { remote.as_ref() }) else {
        return no_remote(ep);
    };
    // SAFETY: contract PASSED ON.
    unsafe {
        post(ep, count, iov, |ia, ep: EpHandle, iov| {
            ia.ep_post_rdma_write(ep, iov, cookie, remote, flags)
        })
    }
}

/// `dat_srq_post_recv`.
///
/// # Safety
/// As [`dat_ep_post_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_srq_post_recv(
    srq_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const LmrTriplet,
    user_cookie: DatContext,
) -> DatReturn {
    foreign!(srq_post_recv_func(
        srq_handle,
        num_segments,
        local_iov,
        user_cookie
    ));
    // SAFETY: contract PASSED ON.
    unsafe {
        post(
            srq_handle,
            num_segments,
            local_iov,
            |ia, srq: SrqHandle, iov| ia.srq_post_recv(srq, iov, user_cookie),
        )
    }
}

/// `dat_evd_dequeue`.
///
/// # Safety
/// `event` is null or points to an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_evd_dequeue(evd_handle: DatHandle, event: *mut CEvent) -> DatReturn {
    // SAFETY: contract PASSED ON.
    let longer = || unsafe { dequeue(evd_handle, event) };
    if event.is_null() {
        return longer();
    }
    let Some((adapter, evd)) = find::<EvdHandle>(evd_handle) else {
        return longer();
    };
    let dequeue = |open: &mut Open| {
        let taken = open.ia.evd_dequeue_named(evd, |ep, done| {
            // SAFETY: not null, so contract ROOM holds.
            unsafe { event.write(event::plain(evd_handle, handle_of(ep), done)) };
        });
        taken.map(|taken| if taken { 0 } else { QUEUE_EMPTY })
    };
    adapter.fast(dequeue, longer)
}

/// # Safety
/// As [`dat_evd_dequeue`].
#[inline(never)]
unsafe fn dequeue(evd_handle: DatHandle, event: *mut CEvent) -> DatReturn {
    foreign!(evd_dequeue_func(evd_handle, event));
    caught(|| {
        let (adapter, evd) = match look_up::<EvdHandle>(evd_handle) {
            Ok(found) => found,
            Err(error) => return answer(error),
        };
        if event.is_null() {
            return answer(parameter(Subtype::Arg2));
        }
        let dequeue = |open: &mut Open| {
            let taken = open.ia.evd_dequeue(evd);
            // SAFETY: not null, so contract ROOM holds.
            unsafe { event::store(adapter, open, evd_handle, &taken, event) }
        };
        adapter.fast(
            |open| Some(dequeue(open)),
            || {
                adapter
                    .turn(|open| Ok(dequeue(open)))
                    .unwrap_or_else(answer)
            },
        )
    })
}

/// Whether a dequeue found nothing: then it has looked after the whole adapter, and others may have to look too.
pub(super) fn found_nothing(error: DatError) -> bool {
    error.return_type() == ReturnType::QueueEmpty
}
