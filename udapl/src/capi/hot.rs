//! Posts and dequeues: the calls a program makes millions of times.
//!
//! They are the calls of the Rust interface, made in the fast lane of the adapter if it is open, and else in a turn. What is no handle of
//! ours, or has arguments that cannot be followed, goes elsewhere first: to another provider, or back with what is wrong.

// UNSAFETY: pointers of a C program are read and written.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::slice;

use dat_core::post::{Post, RdmaRead, RdmaWrite, Recv, Send};
use dat_core::{
    CompletionFlags, DatError, EpHandle, EvdHandle, LmrTriplet, Look, ReturnType, RmrTriplet,
    SrqHandle, Subtype,
};

use super::call::{answer, look_up, parameter, said};
use super::event;
use super::foreign::foreign;
use super::table::{Named, find, handle_of};
use super::types::{CEvent, DatContext, DatCount, DatHandle, DatReturn};

/// DAT_QUEUE_EMPTY.
const QUEUE_EMPTY: DatReturn = DatError::new(ReturnType::QueueEmpty, Subtype::None).code();

/// The segments of a post, unless they cannot be followed.
///
/// # Safety
/// `iov` is null or points to `count` segments, which stay as they are while the answer is used.
#[inline(always)]
unsafe fn segments<'a>(count: DatCount, iov: *const LmrTriplet) -> Option<&'a [LmrTriplet]> {
    match usize::try_from(count) {
        Ok(0) => Some(&[]),
        // SAFETY: contract GIVEN, for a vector that is not null.
        Ok(count) if !iov.is_null() => Some(unsafe { slice::from_raw_parts(iov, count) }),
        Ok(_) | Err(_) => None,
    }
}

/// Makes a post in the fast lane if it has one segment and no flags, as most have; `None`: nothing has happened, and [`in_order`] is
/// next.
///
/// # Safety
/// As [`segments`].
// Nothing in it has a drop or panics, so that it needs neither the stack nor many registers.
#[inline(always)]
unsafe fn at_once(
    ep: DatHandle,
    count: DatCount,
    iov: *const LmrTriplet,
    what: impl Post,
    cookie: DatContext,
    flags: u32,
) -> Option<DatReturn> {
    // In one comparison.
    if count.cast_unsigned().wrapping_sub(1) | flags != 0 {
        return None;
    }
    let (adapter, ep) = find::<EpHandle>(ep)?;
    // SAFETY: contract GIVEN, for one segment.
    let iov = slice::from_ref(unsafe { iov.as_ref() }?);
    adapter.fast(|open| {
        let posted = what.at_once(&mut open.ia, ep, iov, cookie, CompletionFlags::empty());
        posted.then_some(0)
    })
}

/// Makes any post to an endpoint of ours; `None`: it is none of ours, or the arguments cannot be followed.
///
/// # Safety
/// As [`segments`].
unsafe fn in_order(
    ep: DatHandle,
    count: DatCount,
    iov: *const LmrTriplet,
    what: impl Post,
    cookie: DatContext,
    flags: u32,
) -> Option<DatReturn> {
    let (adapter, ep) = find::<EpHandle>(ep)?;
    // SAFETY: contract PASSED ON.
    let iov = unsafe { segments(count, iov) }?;
    let flags = CompletionFlags::from_bits_retain(flags);
    Some(adapter.fast_or_in_turn(|open| said(what.in_order(&mut open.ia, ep, iov, cookie, flags))))
}

/// What is wrong with a post that could not be made: the handle, then the number of segments, then where they are, then where the
/// peer's memory is.
fn refused<H: Named>(handle: DatHandle, count: DatCount, iov: *const LmrTriplet) -> DatReturn {
    answer(match look_up::<H>(handle) {
        Err(error) => error,
        Ok(_) if count < 0 => parameter(Subtype::Arg2),
        Ok(_) if count > 0 && iov.is_null() => parameter(Subtype::Arg3),
        Ok(_) => parameter(Subtype::Arg5),
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
    #[inline(never)]
    unsafe fn longer(
        ep: DatHandle,
        count: DatCount,
        iov: *const LmrTriplet,
        cookie: DatContext,
        flags: u32,
    ) -> DatReturn {
        // SAFETY: contract PASSED ON.
        if let Some(answer) = unsafe { in_order(ep, count, iov, Send, cookie, flags) } {
            return answer;
        }
        foreign!(ep_post_send_func(ep, count, iov, cookie, flags));
        refused::<EpHandle>(ep, count, iov)
    }
    // SAFETY: contract PASSED ON.
    let done = unsafe {
        at_once(
            ep_handle,
            num_segments,
            local_iov,
            Send,
            user_cookie,
            completion_flags,
        )
    };
    match done {
        Some(answer) => answer,
        // SAFETY: contract PASSED ON.
        None => unsafe {
            longer(
                ep_handle,
                num_segments,
                local_iov,
                user_cookie,
                completion_flags,
            )
        },
    }
}

/// `dat_ep_post_recv`.
///
/// # Safety
/// `local_iov` is null or points to `num_segments` segments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_recv(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const LmrTriplet,
    user_cookie: DatContext,
    completion_flags: u32,
) -> DatReturn {
    #[inline(never)]
    unsafe fn longer(
        ep: DatHandle,
        count: DatCount,
        iov: *const LmrTriplet,
        cookie: DatContext,
        flags: u32,
    ) -> DatReturn {
        // SAFETY: contract PASSED ON.
        if let Some(answer) = unsafe { in_order(ep, count, iov, Recv, cookie, flags) } {
            return answer;
        }
        foreign!(ep_post_recv_func(ep, count, iov, cookie, flags));
        refused::<EpHandle>(ep, count, iov)
    }
    // SAFETY: contract PASSED ON.
    let done = unsafe {
        at_once(
            ep_handle,
            num_segments,
            local_iov,
            Recv,
            user_cookie,
            completion_flags,
        )
    };
    match done {
        Some(answer) => answer,
        // SAFETY: contract PASSED ON.
        None => unsafe {
            longer(
                ep_handle,
                num_segments,
                local_iov,
                user_cookie,
                completion_flags,
            )
        },
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
    #[inline(never)]
    unsafe fn longer(
        ep: DatHandle,
        count: DatCount,
        iov: *const LmrTriplet,
        cookie: DatContext,
        remote: *const RmrTriplet,
        flags: u32,
    ) -> DatReturn {
        // SAFETY: contract GIVEN.
        if let Some(remote) = unsafe { remote.as_ref() }
            // SAFETY: contract PASSED ON.
            && let Some(answer) = unsafe { in_order(ep, count, iov, RdmaRead(remote), cookie, flags) }
        {
            return answer;
        }
        foreign!(ep_post_rdma_read_func(
            ep, count, iov, cookie, remote, flags
        ));
        refused::<EpHandle>(ep, count, iov)
    }
    // SAFETY: contract GIVEN.
    let remote = unsafe { remote_buffer.as_ref() };
    let done = remote.and_then(|remote| {
        let what = RdmaRead(remote);
        // SAFETY: contract PASSED ON.
        unsafe {
            at_once(
                ep_handle,
                num_segments,
                local_iov,
                what,
                user_cookie,
                completion_flags,
            )
        }
    });
    match done {
        Some(answer) => answer,
        // SAFETY: contract PASSED ON.
        None => unsafe {
            longer(
                ep_handle,
                num_segments,
                local_iov,
                user_cookie,
                remote_buffer,
                completion_flags,
            )
        },
    }
}

/// `dat_ep_post_rdma_write`.
///
/// # Safety
/// As [`dat_ep_post_send`]; `remote_buffer` is null or points to a triplet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_rdma_write(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const LmrTriplet,
    user_cookie: DatContext,
    remote_buffer: *const RmrTriplet,
    completion_flags: u32,
) -> DatReturn {
    #[inline(never)]
    unsafe fn longer(
        ep: DatHandle,
        count: DatCount,
        iov: *const LmrTriplet,
        cookie: DatContext,
        remote: *const RmrTriplet,
        flags: u32,
    ) -> DatReturn {
        // SAFETY: contract GIVEN.
        if let Some(remote) = unsafe { remote.as_ref() }
            // SAFETY: contract PASSED ON.
            && let Some(answer) = unsafe { in_order(ep, count, iov, RdmaWrite(remote), cookie, flags) }
        {
            return answer;
        }
        foreign!(ep_post_rdma_write_func(
            ep, count, iov, cookie, remote, flags
        ));
        refused::<EpHandle>(ep, count, iov)
    }
    // SAFETY: contract GIVEN.
    let remote = unsafe { remote_buffer.as_ref() };
    let done = remote.and_then(|remote| {
        let what = RdmaWrite(remote);
        // SAFETY: contract PASSED ON.
        unsafe {
            at_once(
                ep_handle,
                num_segments,
                local_iov,
                what,
                user_cookie,
                completion_flags,
            )
        }
    });
    match done {
        Some(answer) => answer,
        // SAFETY: contract PASSED ON.
        None => unsafe {
            longer(
                ep_handle,
                num_segments,
                local_iov,
                user_cookie,
                remote_buffer,
                completion_flags,
            )
        },
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
    // What another provider's arguments are is not ours to look at.
    if let Some((adapter, srq)) = find::<SrqHandle>(srq_handle) {
        // SAFETY: contract GIVEN.
        let Some(iov) = (unsafe { segments(num_segments, local_iov) }) else {
            return refused::<SrqHandle>(srq_handle, num_segments, local_iov);
        };
        return adapter.fast_or_in_turn(|open| said(open.ia.srq_post_recv(srq, iov, user_cookie)));
    }
    foreign!(srq_post_recv_func(
        srq_handle,
        num_segments,
        local_iov,
        user_cookie
    ));
    refused::<SrqHandle>(srq_handle, num_segments, local_iov)
}

/// `dat_evd_dequeue`.
///
/// # Safety
/// `event` is null or points to an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_evd_dequeue(evd_handle: DatHandle, event: *mut CEvent) -> DatReturn {
    let look = || {
        let (adapter, evd) = find::<EvdHandle>(evd_handle).filter(|_| !event.is_null())?;
        adapter.fast(|open| {
            let look = open.ia.evd_look(evd, |_, ep, done| {
                // SAFETY: not null, so contract ROOM holds.
                unsafe { event.write(event::plain(evd_handle, handle_of(ep), done)) };
            });
            match look {
                Look::Taken(()) => Some(0),
                Look::Empty => Some(QUEUE_EMPTY),
                Look::Elsewhere => None,
            }
        })
    };
    match look() {
        Some(answer) => answer,
        // SAFETY: contract PASSED ON.
        None => unsafe { dequeue(evd_handle, event) },
    }
}

/// # Safety
/// As [`dat_evd_dequeue`].
#[inline(never)]
unsafe fn dequeue(handle: DatHandle, event: *mut CEvent) -> DatReturn {
    foreign!(evd_dequeue_func(handle, event));
    let (adapter, evd) = match look_up::<EvdHandle>(handle) {
        Ok(found) if !event.is_null() => found,
        Ok(_) => return answer(parameter(Subtype::Arg2)),
        Err(error) => return answer(error),
    };
    adapter.fast_or_in_turn(|open| {
        let taken = open.ia.evd_dequeue(evd);
        // SAFETY: not null, so contract ROOM holds.
        unsafe { event::store(adapter, open, handle, &taken, event) }
    })
}

/// Whether a dequeue found nothing: then it has looked after the whole adapter, and others may have to look too.
pub(super) fn found_nothing(error: DatError) -> bool {
    error.return_type() == ReturnType::QueueEmpty
}
