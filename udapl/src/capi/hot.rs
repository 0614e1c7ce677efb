//! Posts and dequeues: the calls a program makes millions of times.
//!
//! Each call makes the same call of the Rust interface: in the adapter's fast lane if the lane is open, otherwise
//! under the lock (see `gate`). A closure `elsewhere` handles two cases: a handle that is not of this library, which
//! may belong to another provider; and invalid arguments, which need a detailed error.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::{ptr, slice};

use dat_core::post::{Post, RdmaRead, RdmaWrite, Recv, Send};
use dat_core::{
    CompletionFlags, DtoCookie, EpHandle, EvdHandle, FastPoll, LmrTriplet, RmrTriplet, SrqHandle,
    Subtype,
};

use super::adapter::find;
use super::answer::{answer, caught, code_of};
use super::call::look_up;
use super::error::parameter;
use super::event;
use super::foreign::foreign;
use super::table::{Named, handle_of};
use super::types::{CEvent, DatContext, DatCount, DatHandle, DatReturn};

/// Returns the segments of a post; `None` if the count is negative, or if the vector is null and the count is not 0.
///
/// # Safety
/// `iov` is null or points to `count` segments, which do not change while the result is used.
#[inline(always)]
pub(super) unsafe fn segments<'a>(
    count: DatCount,
    iov: *const LmrTriplet,
) -> Option<&'a [LmrTriplet]> {
    match usize::try_from(count) {
        Ok(0) => Some(&[]),
        // SAFETY: the vector is not null, so by contract GIVEN it has `count` segments.
        Ok(count) if !iov.is_null() => Some(unsafe { slice::from_raw_parts(iov, count) }),
        Ok(_) | Err(_) => None,
    }
}

/// Arguments of a post.
#[derive(Clone, Copy)]
pub(super) struct Request<W> {
    pub(super) ep: DatHandle,
    pub(super) count: DatCount,
    pub(super) iov: *const LmrTriplet,
    /// Kind of post with its operands; `None` if the caller's pointer to the peer's memory is null.
    pub(super) what: Option<W>,
    pub(super) cookie: DatContext,
    pub(super) flags: u32,
}

impl<W: Post> Request<W> {
    /// Posts the request. Calls `elsewhere` if the endpoint is not of this library, or if the arguments are invalid.
    ///
    /// # Safety
    /// That of [`segments`].
    #[inline(always)]
    pub(super) unsafe fn post(self, elsewhere: impl FnOnce(Self) -> DatReturn) -> DatReturn {
        /// Handles the posts that `at_once` does not. The request is passed as separate arguments, so that the usual
        /// path keeps it in registers and writes none of it to memory.
        ///
        /// # Safety
        /// That of [`segments`].
        #[inline(never)]
        unsafe fn longer<W: Post>(
            ep: DatHandle,
            count: DatCount,
            iov: *const LmrTriplet,
            what: Option<W>,
            cookie: DatContext,
            flags: u32,
            elsewhere: impl FnOnce(Request<W>) -> DatReturn,
        ) -> DatReturn {
            let request = Request {
                ep,
                count,
                iov,
                what,
                cookie,
                flags,
            };
            caught(|| {
                // SAFETY: contract PASSED ON.
                let done = unsafe { request.any() };
                done.unwrap_or_else(|| elsewhere(request))
            })
        }
        // SAFETY: contract PASSED ON.
        if let Some(answer) = unsafe { self.at_once() } {
            return answer;
        }
        let Self {
            ep,
            count,
            iov,
            what,
            cookie,
            flags,
        } = self;
        // SAFETY: contract PASSED ON.
        unsafe { longer(ep, count, iov, what, cookie, flags, elsewhere) }
    }

    /// Posts the request in the fast lane if it has one segment and no flags, as most requests have. Returns `None` if
    /// nothing was posted; then the caller must use [`Self::any`].
    ///
    /// # Safety
    /// That of [`segments`].
    // The function has no drop and no panic, so that it needs no stack and few registers.
    #[inline(always)]
    unsafe fn at_once(self) -> Option<DatReturn> {
        // This one comparison tests count == 1 && flags == 0.
        if self.count.cast_unsigned().wrapping_sub(1) | self.flags != 0 {
            return None;
        }
        let (what, (adapter, ep)) = (self.what?, find::<EpHandle>(self.ep)?);
        // SAFETY: contract GIVEN, for one segment.
        let iov = slice::from_ref(unsafe { self.iov.as_ref() }?);
        adapter.fast(|open| {
            let flags = CompletionFlags::empty();
            let posted = what.at_once(&mut open.ia, ep, iov, DtoCookie(self.cookie), flags);
            posted.then_some(0)
        })
    }

    /// Posts any request to an endpoint of this library. Returns `None` if the endpoint belongs to another library or
    /// the arguments are invalid.
    ///
    /// # Safety
    /// That of [`segments`].
    unsafe fn any(self) -> Option<DatReturn> {
        let (what, (adapter, ep)) = (self.what?, find::<EpHandle>(self.ep)?);
        // SAFETY: contract PASSED ON.
        let iov = unsafe { segments(self.count, self.iov) }?;
        let flags = CompletionFlags::from_bits_retain(self.flags);
        Some(adapter.fast_or_locked(|open| {
            code_of(what.post(&mut open.ia, ep, iov, DtoCookie(self.cookie), flags))
        }))
    }
}

/// Returns the error of a post that was refused. Checks in this order: the handle, the number of segments, the pointer
/// to the segments. If these are valid, the pointer to the peer's memory is the invalid argument.
pub(super) fn refused<H: Named>(
    handle: DatHandle,
    count: DatCount,
    iov: *const LmrTriplet,
) -> DatReturn {
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
    let request = Request {
        ep: ep_handle,
        count: num_segments,
        iov: local_iov,
        what: Some(Send),
        cookie: user_cookie,
        flags: completion_flags,
    };
    let elsewhere = |request: Request<Send>| {
        let Request {
            ep,
            count,
            iov,
            cookie,
            flags,
            ..
        } = request;
        foreign!(ep_post_send_func(ep, count, iov, cookie, flags));
        refused::<EpHandle>(ep, count, iov)
    };
    // SAFETY: contract PASSED ON.
    unsafe { request.post(elsewhere) }
}

/// `dat_ep_post_recv`.
///
/// # Safety
/// That of [`dat_ep_post_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_recv(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const LmrTriplet,
    user_cookie: DatContext,
    completion_flags: u32,
) -> DatReturn {
    let request = Request {
        ep: ep_handle,
        count: num_segments,
        iov: local_iov,
        what: Some(Recv),
        cookie: user_cookie,
        flags: completion_flags,
    };
    let elsewhere = |request: Request<Recv>| {
        let Request {
            ep,
            count,
            iov,
            cookie,
            flags,
            ..
        } = request;
        foreign!(ep_post_recv_func(ep, count, iov, cookie, flags));
        refused::<EpHandle>(ep, count, iov)
    };
    // SAFETY: contract PASSED ON.
    unsafe { request.post(elsewhere) }
}

/// `dat_ep_post_rdma_read`.
///
/// # Safety
/// That of [`dat_ep_post_send`]; `remote_buffer` is null or points to a triplet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_rdma_read(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const LmrTriplet,
    user_cookie: DatContext,
    remote_buffer: *const RmrTriplet,
    completion_flags: u32,
) -> DatReturn {
    let request = Request {
        ep: ep_handle,
        count: num_segments,
        iov: local_iov,
        // SAFETY: contract GIVEN.
        what: unsafe { remote_buffer.as_ref() }.map(RdmaRead),
        cookie: user_cookie,
        flags: completion_flags,
    };
    let elsewhere = |request: Request<RdmaRead<'_>>| {
        let Request {
            ep,
            count,
            iov,
            what,
            cookie,
            flags,
        } = request;
        let remote = what.map_or(ptr::null(), |RdmaRead(remote)| ptr::from_ref(remote));
        foreign!(ep_post_rdma_read_func(
            ep, count, iov, cookie, remote, flags
        ));
        refused::<EpHandle>(ep, count, iov)
    };
    // SAFETY: contract PASSED ON.
    unsafe { request.post(elsewhere) }
}

/// `dat_ep_post_rdma_write`.
///
/// # Safety
/// That of [`dat_ep_post_rdma_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_rdma_write(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const LmrTriplet,
    user_cookie: DatContext,
    remote_buffer: *const RmrTriplet,
    completion_flags: u32,
) -> DatReturn {
    let request = Request {
        ep: ep_handle,
        count: num_segments,
        iov: local_iov,
        // SAFETY: contract GIVEN.
        what: unsafe { remote_buffer.as_ref() }.map(RdmaWrite),
        cookie: user_cookie,
        flags: completion_flags,
    };
    let elsewhere = |request: Request<RdmaWrite<'_>>| {
        let Request {
            ep,
            count,
            iov,
            what,
            cookie,
            flags,
        } = request;
        let remote = what.map_or(ptr::null(), |RdmaWrite(remote)| ptr::from_ref(remote));
        foreign!(ep_post_rdma_write_func(
            ep, count, iov, cookie, remote, flags
        ));
        refused::<EpHandle>(ep, count, iov)
    };
    // SAFETY: contract PASSED ON.
    unsafe { request.post(elsewhere) }
}

/// `dat_srq_post_recv`.
///
/// # Safety
/// That of [`dat_ep_post_send`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_srq_post_recv(
    srq_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const LmrTriplet,
    user_cookie: DatContext,
) -> DatReturn {
    caught(|| {
        // If the SRQ belongs to another provider, this library must not read the segments.
        if let Some((adapter, srq)) = find::<SrqHandle>(srq_handle) {
            // SAFETY: contract GIVEN.
            let Some(iov) = (unsafe { segments(num_segments, local_iov) }) else {
                return refused::<SrqHandle>(srq_handle, num_segments, local_iov);
            };
            return adapter.fast_or_locked(|open| {
                code_of(open.ia.srq_post_recv(srq, iov, DtoCookie(user_cookie)))
            });
        }
        foreign!(srq_post_recv_func(
            srq_handle,
            num_segments,
            local_iov,
            user_cookie
        ));
        refused::<SrqHandle>(srq_handle, num_segments, local_iov)
    })
}

/// `dat_evd_dequeue`.
///
/// # Safety
/// `event` is null or points to an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_evd_dequeue(evd_handle: DatHandle, event: *mut CEvent) -> DatReturn {
    let poll = || {
        let (adapter, evd) = find::<EvdHandle>(evd_handle).filter(|_| !event.is_null())?;
        adapter.fast(|open| {
            let polled = open.ia.evd_poll_fast(evd, |_, ep, done| {
                // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
                unsafe { event.write(event::plain(evd_handle, handle_of(ep), done)) };
            });
            match polled {
                FastPoll::Taken(()) => Some(0),
                FastPoll::Empty => Some(event::QUEUE_EMPTY),
                FastPoll::Elsewhere => None,
            }
        })
    };
    match poll() {
        Some(answer) => answer,
        // SAFETY: contract PASSED ON.
        None => unsafe { dequeue(evd_handle, event) },
    }
}

/// # Safety
/// That of [`dat_evd_dequeue`].
#[inline(never)]
unsafe fn dequeue(handle: DatHandle, event: *mut CEvent) -> DatReturn {
    caught(|| {
        foreign!(evd_dequeue_func(handle, event));
        let (adapter, evd) = match look_up::<EvdHandle>(handle) {
            Ok(found) if !event.is_null() => found,
            Ok(_) => return answer(parameter(Subtype::Arg2)),
            Err(error) => return answer(error),
        };
        adapter.fast_or_locked(|open| {
            let taken = open.ia.evd_dequeue(evd).and_then(event::there);
            // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
            unsafe { event::store(adapter, open, handle, &taken, event) }
        })
    })
}
