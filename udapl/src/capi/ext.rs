//! Calls that DAT 1.2 lacks: immediate data, invalidation of a peer's context, atomic operations, and completions
//! with these details. [`dat_core::post`] and the methods of the [`Ia`](crate::Ia) document them.
//!
//! Handles of other providers are refused: their tables of functions have no such calls.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::mem::MaybeUninit;
use core::ptr::null_mut;

use dat_core::post::{
    CompareSwap, FetchAdd, Post, RdmaWriteImmediate, SendImmediate, SendInvalidate,
};
use dat_core::{DtoDetail, EpHandle, EvdHandle, Event, LmrTriplet, RmrTriplet, Subtype};

use super::adapter::{Adapter, Open};
use super::answer::{answer, caught};
use super::argument::put;
use super::call::look_up;
use super::error::parameter;
use super::evd::waited;
use super::event::{self, there};
use super::hot::{Request, refused};
use super::types::{CDtoDetail, CEvent, DatContext, DatCount, DatHandle, DatReturn};

/// Posts a request to an endpoint of this library; refuses an endpoint of another library.
///
/// # Safety
/// That of [`dat_ep_post_send`](super::dat_ep_post_send).
#[inline(always)]
unsafe fn post<W: Post>(request: Request<W>) -> DatReturn {
    let elsewhere = |request: Request<W>| {
        if request.what.is_none() && look_up::<EpHandle>(request.ep).is_ok() {
            return answer(parameter(Subtype::Arg5));
        }
        refused::<EpHandle>(request.ep, request.count, request.iov)
    };
    // SAFETY: contract PASSED ON.
    unsafe { request.post(elsewhere) }
}

/// Posts a Send with immediate data.
///
/// # Safety
/// That of [`dat_ep_post_send`](super::dat_ep_post_send).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_send_immediate(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const LmrTriplet,
    user_cookie: DatContext,
    immediate: u32,
    completion_flags: u32,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    unsafe {
        post(Request {
            ep: ep_handle,
            count: num_segments,
            iov: local_iov,
            what: Some(SendImmediate(immediate)),
            cookie: user_cookie,
            flags: completion_flags,
        })
    }
}

/// Posts a Send that invalidates an RMR context of the peer.
///
/// # Safety
/// That of [`dat_ep_post_send`](super::dat_ep_post_send).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_send_invalidate(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const LmrTriplet,
    user_cookie: DatContext,
    rmr_context: u32,
    completion_flags: u32,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    unsafe {
        post(Request {
            ep: ep_handle,
            count: num_segments,
            iov: local_iov,
            what: Some(SendInvalidate(rmr_context)),
            cookie: user_cookie,
            flags: completion_flags,
        })
    }
}

/// Posts an RDMA Write with immediate data.
///
/// # Safety
/// That of [`dat_ep_post_rdma_write`](super::dat_ep_post_rdma_write).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_rdma_write_immediate(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const LmrTriplet,
    user_cookie: DatContext,
    remote_buffer: *const RmrTriplet,
    immediate: u32,
    completion_flags: u32,
) -> DatReturn {
    // SAFETY: contract GIVEN.
    let remote = unsafe { remote_buffer.as_ref() };
    // SAFETY: contract PASSED ON.
    unsafe {
        post(Request {
            ep: ep_handle,
            count: num_segments,
            iov: local_iov,
            what: remote.map(|remote| RdmaWriteImmediate(remote, immediate)),
            cookie: user_cookie,
            flags: completion_flags,
        })
    }
}

/// Posts a fetch-and-add on an 8-byte number in the peer's memory.
///
/// # Safety
/// `result` and `remote_buffer` are null or point to a triplet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_fetch_add(
    ep_handle: DatHandle,
    result: *const LmrTriplet,
    user_cookie: DatContext,
    remote_buffer: *const RmrTriplet,
    add: u64,
    completion_flags: u32,
) -> DatReturn {
    // SAFETY: contract GIVEN.
    let remote = unsafe { remote_buffer.as_ref() };
    // SAFETY: contract PASSED ON, with `result` as the only segment.
    unsafe {
        post(Request {
            ep: ep_handle,
            count: 1,
            iov: result,
            what: remote.map(|remote| FetchAdd { remote, add }),
            cookie: user_cookie,
            flags: completion_flags,
        })
    }
}

/// Posts a compare-and-swap on an 8-byte number in the peer's memory.
///
/// # Safety
/// That of [`dat_ep_post_fetch_add`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_compare_swap(
    ep_handle: DatHandle,
    result: *const LmrTriplet,
    user_cookie: DatContext,
    remote_buffer: *const RmrTriplet,
    compare: u64,
    swap: u64,
    completion_flags: u32,
) -> DatReturn {
    // SAFETY: contract GIVEN.
    let remote = unsafe { remote_buffer.as_ref() };
    // SAFETY: contract PASSED ON, with `result` as the only segment.
    unsafe {
        post(Request {
            ep: ep_handle,
            count: 1,
            iov: result,
            what: remote.map(|remote| CompareSwap {
                remote,
                compare,
                swap,
            }),
            cookie: user_cookie,
            flags: completion_flags,
        })
    }
}

/// Converts the details of a completion (DTO or RMR bind) to C. Other events have no details.
fn detail_of(event: &Event) -> CDtoDetail {
    let detail = match event {
        Event::Dto(done) => done.detail,
        Event::RmrBind(done) => DtoDetail::of_syndrome(done.syndrome),
        Event::ConnectionRequest(_)
        | Event::Connection(_)
        | Event::Async(_)
        | Event::Software(_) => DtoDetail::None,
    };
    let (kind, value) = match detail {
        DtoDetail::None => (0, 0),
        DtoDetail::Failed(syndrome, vendor) => (1, u32::from(syndrome) | u32::from(vendor) << 8),
        DtoDetail::SendImmediate(data) => (2, data),
        DtoDetail::WriteImmediate(data) => (3, data),
        DtoDetail::Invalidated(rmr_context) => (4, rmr_context),
    };
    CDtoDetail { kind, value }
}

/// Works like `dat_evd_dequeue`, and also returns the details of the completion.
///
/// # Safety
/// `event` and `detail` are null or point to memory for their types.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_evd_dequeue_with_detail(
    evd_handle: DatHandle,
    event: *mut CEvent,
    detail: *mut CDtoDetail,
) -> DatReturn {
    caught(|| {
        let (adapter, evd) = match look_up::<EvdHandle>(evd_handle) {
            Ok(found) if !event.is_null() => found,
            Ok(_) => return answer(parameter(Subtype::Arg2)),
            Err(error) => return answer(error),
        };
        adapter.fast_or_locked(|open| {
            let taken = open.ia.evd_dequeue(evd).and_then(there);
            if let Ok(event) = &taken {
                // SAFETY: contract ROOM.
                unsafe { put(detail, detail_of(event)) };
            }
            // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
            unsafe { event::store(adapter, open, evd_handle, &taken, event) }
        })
    })
}

/// Works like `dat_evd_wait`, and also returns the details of the completion.
///
/// # Safety
/// `event`, `nmore` and `detail` are null or point to memory for their types.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_evd_wait_with_detail(
    evd_handle: DatHandle,
    timeout: u32,
    threshold: DatCount,
    event: *mut CEvent,
    nmore: *mut DatCount,
    detail: *mut CDtoDetail,
) -> DatReturn {
    let made = |adapter: &'static Adapter, open: &mut Open, evd: DatHandle, taken: &Event| {
        let told = detail_of(taken);
        (event::made(adapter, open, evd, taken), told)
    };
    let mut both = MaybeUninit::<(CEvent, CDtoDetail)>::uninit();
    let out = if event.is_null() {
        null_mut()
    } else {
        both.as_mut_ptr()
    };
    // SAFETY: `out` is null or points to a local variable; contract PASSED ON for `nmore`.
    let answer = unsafe { waited(evd_handle, timeout, threshold, out, nmore, made) };
    if answer == 0 {
        // SAFETY: the call succeeded, so it has written the value.
        let (taken, told) = unsafe { both.assume_init() };
        // SAFETY: contract ROOM.
        unsafe { put(event, taken) };
        // SAFETY: contract ROOM.
        unsafe { put(detail, told) };
    }
    answer
}
