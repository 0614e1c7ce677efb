//! Calls that DAT 1.2 lacks: posting several requests with one doorbell, and dequeuing several events in one call.
//! An operation has its number from DAT 2.0's DAT_DTOS or DAT_IB_DTOS. Sends that neither has get numbers of our own.
//!
//! Each call works like the single calls in the same order, and stops at the first error. Handles of other providers
//! are refused: their tables of functions have no such calls.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::mem::MaybeUninit;
use core::slice;

use dat_core::post::{CompareSwap, FetchAdd};
use dat_core::provider::Provider;
use dat_core::{
    Batch, CompletionFlags, DatResult, DtoCookie, EpHandle, EvdHandle, LmrTriplet, RmrTriplet,
    SrqHandle, Subtype,
};

use super::adapter::{Adapter, Open};
use super::answer::{answer, caught, code_of};
use super::argument::{as_count, put};
use super::call::look_up;
use super::error::parameter;
use super::event;
use super::hot::segments;
use super::table::{Named, handle_of};
use super::types::{CEvent, CPost, DatCount, DatHandle, DatReturn, operation};

impl CPost {
    /// Returns the segments of the post.
    ///
    /// # Safety
    /// `local_iov` is null or points to `num_segments` segments.
    #[inline(always)]
    unsafe fn segments<'a>(&self) -> DatResult<&'a [LmrTriplet]> {
        // SAFETY: contract PASSED ON.
        unsafe { segments(self.num_segments, self.local_iov) }.ok_or(parameter(Subtype::Arg3))
    }

    /// Adds the post to a batch.
    ///
    /// # Safety
    /// That of [`CPost::segments`]; `remote_buffer` is null or points to a triplet.
    #[inline(always)]
    unsafe fn add<P: Provider>(&self, batch: &mut Batch<'_, P>) -> DatResult<()> {
        // SAFETY: contract PASSED ON.
        let iov = unsafe { self.segments() }?;
        let (cookie, flags) = (
            DtoCookie(self.user_cookie),
            CompletionFlags::from_bits_retain(self.completion_flags),
        );
        // SAFETY: contract GIVEN.
        let remote = unsafe { self.remote_buffer.as_ref() };
        match (self.operation, remote) {
            (operation::SEND, _) => batch.send(iov, cookie, flags),
            (operation::RECEIVE, _) => batch.recv(iov, cookie, flags),
            (operation::RDMA_WRITE, Some(remote)) => batch.rdma_write(iov, cookie, remote, flags),
            (operation::RDMA_READ, Some(remote)) => batch.rdma_read(iov, cookie, remote, flags),
            (_, remote) => self.add_beyond_dat(batch, iov, remote),
        }
    }

    /// Adds the post to a batch, if its operation is one that DAT 1.2 lacks.
    // This is a separate function, so that the usual posts do not need its registers and stack.
    #[inline(never)]
    fn add_beyond_dat<P: Provider>(
        &self,
        batch: &mut Batch<'_, P>,
        iov: &[LmrTriplet],
        remote: Option<&RmrTriplet>,
    ) -> DatResult<()> {
        let (cookie, flags) = (
            DtoCookie(self.user_cookie),
            CompletionFlags::from_bits_retain(self.completion_flags),
        );
        let &Self {
            value,
            operand,
            swap,
            ..
        } = self;
        match (self.operation, remote) {
            (operation::SEND_IMMEDIATE, _) => batch.send_immediate(iov, cookie, value, flags),
            (operation::SEND_INVALIDATE, _) => batch.send_invalidate(iov, cookie, value, flags),
            (operation::RDMA_WRITE_IMMED, Some(remote)) => {
                batch.rdma_write_immediate(iov, cookie, remote, value, flags)
            }
            (operation::FETCH_ADD, Some(remote)) => {
                let fetch = FetchAdd {
                    remote,
                    add: operand,
                };
                batch.fetch_add(iov, cookie, fetch, flags)
            }
            (operation::CMP_SWAP, Some(remote)) => {
                let swap = CompareSwap {
                    remote,
                    compare: operand,
                    swap,
                };
                batch.compare_swap(iov, cookie, swap, flags)
            }
            (_, _) => Err(parameter(Subtype::Arg3)),
        }
    }
}

/// Returns a slice of the caller's array.
///
/// # Safety
/// `list` is null or points to `count` elements, which do not change while the result is used.
unsafe fn listed<'a, T>(count: DatCount, list: *const T) -> DatResult<&'a [T]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the list is not null, so by contract GIVEN it has `count` elements.
        Ok(count) if !list.is_null() => Ok(unsafe { slice::from_raw_parts(list, count) }),
        Ok(_) => Err(parameter(Subtype::Arg3)),
        Err(_) => Err(parameter(Subtype::Arg2)),
    }
}

/// Posts the elements of an array with `post`, and writes to `posted` the number of successful posts, which `post`
/// counts.
///
/// # Safety
/// `posts` as in [`listed`], `posted` as in [`put`].
#[inline(always)]
unsafe fn post_many<H: Named>(
    handle: DatHandle,
    (count, posts): (DatCount, *const CPost),
    posted: *mut DatCount,
    post: impl Fn(&mut Open, H, &[CPost], &mut usize) -> DatResult<()>,
) -> DatReturn {
    caught(|| {
        let found = look_up::<H>(handle).and_then(|found| {
            // SAFETY: contract PASSED ON.
            Ok((found, unsafe { listed(count, posts) }?))
        });
        let ((adapter, object), posts) = match found {
            Ok(found) => found,
            Err(error) => return answer(error),
        };
        adapter.fast_or_locked(|open| {
            let mut done = 0;
            let answered = post(open, object, posts, &mut done);
            // SAFETY: contract PASSED ON.
            unsafe { put(posted, as_count(done)) };
            code_of(answered)
        })
    })
}

/// Posts to an endpoint in the order of the array: requests with one doorbell, receives with one update of the
/// doorbell record. Writes the number of successful posts to `num_posted`. Returns the first error: that of the single
/// call, or DAT_INVALID_PARAMETER|ARG3 for a post with an unknown operation, invalid segments or a missing remote
/// buffer.
///
/// # Safety
/// `posts` is null or points to `num_posts` posts with the pointers of
/// [`dat_ep_post_rdma_write`](super::dat_ep_post_rdma_write); `num_posted` is null or points to a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ep_post_many(
    ep_handle: DatHandle,
    num_posts: DatCount,
    posts: *const CPost,
    num_posted: *mut DatCount,
) -> DatReturn {
    let post = |open: &mut Open, ep: EpHandle, posts: &[CPost], done: &mut usize| {
        open.ia.batch(ep, |batch| {
            posts.iter().try_for_each(|post| {
                // SAFETY: contract GIVEN.
                unsafe { post.add(batch) }?;
                *done += 1;
                Ok(())
            })
        })
    };
    // SAFETY: contract PASSED ON.
    unsafe { post_many(ep_handle, (num_posts, posts), num_posted, post) }
}

/// Posts receive buffers to an SRQ, like [`dat_ep_post_many`]. A post with another operation than DAT_POST_RECV, or
/// with flags, is refused with DAT_INVALID_PARAMETER|ARG3.
///
/// # Safety
/// That of [`dat_ep_post_many`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_srq_post_many(
    srq_handle: DatHandle,
    num_posts: DatCount,
    posts: *const CPost,
    num_posted: *mut DatCount,
) -> DatReturn {
    let post = |open: &mut Open, srq: SrqHandle, posts: &[CPost], done: &mut usize| {
        open.ia.srq_batch(srq, |batch| {
            posts.iter().try_for_each(|post| {
                if (post.operation, post.completion_flags) != (operation::RECEIVE, 0) {
                    return Err(parameter(Subtype::Arg3));
                }
                // SAFETY: contract GIVEN.
                batch.recv(unsafe { post.segments() }?, DtoCookie(post.user_cookie))?;
                *done += 1;
                Ok(())
            })
        })
    };
    // SAFETY: contract PASSED ON.
    unsafe { post_many(srq_handle, (num_posts, posts), num_posted, post) }
}

/// Dequeues up to `max_events` events, oldest first. Writes their number to `num_events`; 0 is no error.
///
/// # Safety
/// `events` is null or points to memory for `max_events` events; `num_events` is null or points to a count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_evd_dequeue_many(
    evd_handle: DatHandle,
    max_events: DatCount,
    events: *mut CEvent,
    num_events: *mut DatCount,
) -> DatReturn {
    caught(|| {
        let (adapter, evd) = match look_up::<EvdHandle>(evd_handle) {
            Ok(found) => found,
            Err(error) => return answer(error),
        };
        let room = match usize::try_from(max_events) {
            Ok(room) if room == 0 || !events.is_null() => room,
            Ok(_) => return answer(parameter(Subtype::Arg3)),
            Err(_) => return answer(parameter(Subtype::Arg2)),
        };
        if num_events.is_null() {
            return answer(parameter(Subtype::Arg4));
        }
        adapter.fast_or_locked(|open| {
            let places = if room == 0 {
                &mut []
            } else {
                // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
                unsafe { slice::from_raw_parts_mut(events.cast(), room) }
            };
            let taken = take(adapter, open, (evd_handle, evd), places);
            // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
            unsafe { num_events.write(as_count(taken.unwrap_or(0))) };
            code_of(taken.map(|_| ()))
        })
    })
}

/// Fills an array with dequeued events and returns their number.
fn take(
    adapter: &'static Adapter,
    open: &mut Open,
    (handle, evd): (DatHandle, EvdHandle),
    places: &mut [MaybeUninit<CEvent>],
) -> DatResult<usize> {
    let mut taken = 0;
    while let Some(places) = places.get_mut(taken..).filter(|places| !places.is_empty()) {
        let run = open.ia.evd_poll_fast_each(evd, places, |_, ep, done| {
            MaybeUninit::new(event::plain(handle, handle_of(ep), done))
        });
        taken += run.taken;
        let Some(place) = places.get_mut(run.taken) else {
            break;
        };
        if run.empty && taken != 0 {
            break;
        }
        let event = match open.ia.evd_dequeue(evd) {
            Ok(Some(event)) => {
                open.request_forwarding();
                event
            }
            Ok(None) => {
                open.progressed();
                return Ok(taken);
            }
            Err(_) if taken != 0 => return Ok(taken),
            Err(error) => return Err(error),
        };
        place.write(event::made(adapter, open, handle, &event));
        taken += 1;
    }
    Ok(taken)
}
