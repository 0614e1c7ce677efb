//! Posts and dequeues: the calls a program makes millions of times.
//!
//! They go by the fast lane of the adapter if it is open. A post of one segment, which most are, is compiled by itself; all
//! others share the longer way, which takes its turn if it has to.

// UNSAFETY: pointers of a C program are read and written.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::slice;

use dat_core::{
    CompletionFlags, DatError, DatResult, EpHandle, EvdHandle, LmrTriplet, ReturnType, RmrTriplet,
    SrqHandle, Subtype,
};

use super::adapter::{Open, handle_error};
use super::call::{answer, call, caught, parameter};
use super::event;
use super::table::{Named, find};
use super::types::{CEvent, DatContext, DatCount, DatHandle, DatReturn};

/// A post: on which object, and by which call.
trait Post<H: Named>: Copy {
    /// The subtype of a bad handle.
    const BAD: Subtype;
    fn post(self, open: &mut Open, object: H, iov: &[LmrTriplet]) -> DatResult<()>;
}

/// Posts an I/O vector of the caller's.
///
/// # Safety
/// `iov` is null or points to `count` segments.
#[inline(always)]
unsafe fn post<H: Named, P: Post<H>>(
    handle: DatHandle,
    count: DatCount,
    iov: *const LmrTriplet,
    post: P,
) -> DatReturn {
    if count == 1
        && !iov.is_null()
        && let Some((adapter, object)) = find::<H>(handle)
        && let Some(mut lane) = adapter.fast()
    {
        // SAFETY: not null, so the caller's promise holds for one segment.
        let one = slice::from_ref(unsafe { &*iov });
        return caught(move || {
            let posted = post.post(lane.open(), object, one);
            lane.leave();
            match posted {
                Ok(()) => 0,
                Err(error) => answer(error),
            }
        });
    }
    // SAFETY: the caller's promise.
    unsafe { post_slowly(handle, count, iov, post) }
}

/// The same for any number of segments, and for an adapter without a fast lane.
///
/// # Safety
/// As [`post`].
#[inline(never)]
unsafe fn post_slowly<H: Named, P: Post<H>>(
    handle: DatHandle,
    count: DatCount,
    iov: *const LmrTriplet,
    post: P,
) -> DatReturn {
    call(|| {
        let (adapter, object) = find::<H>(handle).ok_or(handle_error(P::BAD))?;
        let count = usize::try_from(count).map_err(|_| parameter(Subtype::Arg2))?;
        let iov = if count == 0 {
            &[]
        } else if iov.is_null() {
            return Err(parameter(Subtype::Arg3));
        } else {
            // SAFETY: the caller's promise, for a vector that is not null.
            unsafe { slice::from_raw_parts(iov, count) }
        };
        if let Some(mut lane) = adapter.fast() {
            let posted = post.post(lane.open(), object, iov);
            lane.leave();
            return posted;
        }
        adapter.turn(|open| post.post(open, object, iov))
    })
}

#[derive(Clone, Copy)]
struct Send(DatContext, CompletionFlags);
#[derive(Clone, Copy)]
struct Recv(DatContext, CompletionFlags);
#[derive(Clone, Copy)]
struct Read<'a>(DatContext, &'a RmrTriplet, CompletionFlags);
#[derive(Clone, Copy)]
struct Write<'a>(DatContext, &'a RmrTriplet, CompletionFlags);
#[derive(Clone, Copy)]
struct SharedRecv(DatContext);

impl Post<EpHandle> for Send {
    const BAD: Subtype = Subtype::HandleEp;
    #[inline(always)]
    fn post(self, open: &mut Open, ep: EpHandle, iov: &[LmrTriplet]) -> DatResult<()> {
        open.ia.ep_post_send(ep, iov, self.0, self.1)
    }
}

impl Post<EpHandle> for Recv {
    const BAD: Subtype = Subtype::HandleEp;
    #[inline(always)]
    fn post(self, open: &mut Open, ep: EpHandle, iov: &[LmrTriplet]) -> DatResult<()> {
        open.ia.ep_post_recv(ep, iov, self.0, self.1)
    }
}

impl Post<EpHandle> for Read<'_> {
    const BAD: Subtype = Subtype::HandleEp;
    #[inline(always)]
    fn post(self, open: &mut Open, ep: EpHandle, iov: &[LmrTriplet]) -> DatResult<()> {
        open.ia.ep_post_rdma_read(ep, iov, self.0, self.1, self.2)
    }
}

impl Post<EpHandle> for Write<'_> {
    const BAD: Subtype = Subtype::HandleEp;
    #[inline(always)]
    fn post(self, open: &mut Open, ep: EpHandle, iov: &[LmrTriplet]) -> DatResult<()> {
        open.ia.ep_post_rdma_write(ep, iov, self.0, self.1, self.2)
    }
}

impl Post<SrqHandle> for SharedRecv {
    const BAD: Subtype = Subtype::HandleSrq;
    #[inline(always)]
    fn post(self, open: &mut Open, srq: SrqHandle, iov: &[LmrTriplet]) -> DatResult<()> {
        open.ia.srq_post_recv(srq, iov, self.0)
    }
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
    let flags = CompletionFlags::from_bits_retain(completion_flags);
    // SAFETY: the caller's promise.
    unsafe { post(ep_handle, num_segments, local_iov, Send(user_cookie, flags)) }
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
    let flags = CompletionFlags::from_bits_retain(completion_flags);
    // SAFETY: the caller's promise.
    unsafe { post(ep_handle, num_segments, local_iov, Recv(user_cookie, flags)) }
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
    let flags = CompletionFlags::from_bits_retain(completion_flags);
    // SAFETY: the caller's promise.
    let Some(remote) = (unsafe { remote_buffer.as_ref() }) else {
        return no_remote(ep_handle);
    };
    let read = Read(user_cookie, remote, flags);
    // SAFETY: the caller's promise.
    unsafe { post(ep_handle, num_segments, local_iov, read) }
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
    let flags = CompletionFlags::from_bits_retain(completion_flags);
    // SAFETY: the caller's promise.
    let Some(remote) = (unsafe { remote_buffer.as_ref() }) else {
        return no_remote(ep_handle);
    };
    let write = Write(user_cookie, remote, flags);
    // SAFETY: the caller's promise.
    unsafe { post(ep_handle, num_segments, local_iov, write) }
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
    // SAFETY: the caller's promise.
    unsafe { post(srq_handle, num_segments, local_iov, SharedRecv(user_cookie)) }
}

/// The handle is checked before the pointer.
#[cold]
fn no_remote(ep: DatHandle) -> DatReturn {
    call(|| {
        find::<EpHandle>(ep).ok_or(handle_error(Subtype::HandleEp))?;
        Err(parameter(Subtype::Arg5))
    })
}

/// `dat_evd_dequeue`.
///
/// # Safety
/// `event` is null or points to an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_evd_dequeue(evd_handle: DatHandle, event: *mut CEvent) -> DatReturn {
    if !event.is_null()
        && let Some((adapter, evd)) = find::<EvdHandle>(evd_handle)
        && let Some(mut lane) = adapter.fast()
    {
        return caught(move || {
            let open = lane.open();
            let taken = open.ia.evd_dequeue(evd);
            // SAFETY: not null, so the caller's promise holds.
            let done = unsafe { event::store_plain(adapter, open, evd_handle, taken, event) };
            lane.leave();
            done
        });
    }
    // SAFETY: the caller's promise.
    unsafe { dequeue_slowly(evd_handle, event) }
}

/// # Safety
/// As [`dat_evd_dequeue`].
#[inline(never)]
unsafe fn dequeue_slowly(evd_handle: DatHandle, event: *mut CEvent) -> DatReturn {
    call(|| {
        let (adapter, evd) = find::<EvdHandle>(evd_handle).ok_or(handle_error(Subtype::Handle1))?;
        if event.is_null() {
            return Err(parameter(Subtype::Arg2));
        }
        let taken = adapter.turn(|open| {
            let taken = open.ia.evd_dequeue(evd)?;
            Ok(event::made(adapter, open, evd_handle, &taken))
        })?;
        // SAFETY: not null, so the caller's promise holds.
        unsafe { event.write(taken) };
        Ok(())
    })
}

/// Whether a dequeue found nothing: then it has looked after the whole adapter, and others may have to look too.
pub(super) fn found_nothing(error: DatError) -> bool {
    error.return_type() == ReturnType::QueueEmpty
}
