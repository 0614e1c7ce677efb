//! Calls that post. DAT 2.0's triplets have another field order and shorter lengths than those of DAT 1.2.

// UNSAFETY: reads through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use dat_core::{CompletionFlags, DatResult, DtoCookie, EpHandle, LmrTriplet, RmrTriplet};

use super::cells::known;
use super::code;
use super::types::{CLmrTriplet, CRmrTriplet};
use crate::capi::adapter::Open;
use crate::capi::call::on;
use crate::capi::operations::Operations;
use crate::capi::table::number;
use crate::capi::types::{DatBoolean, DatContext, DatCount, DatHandle, DatReturn, operation};

/// Maximum number of segments of a post. Every device's limit is smaller.
const MOST: usize = 64;

const NOTHING: LmrTriplet = LmrTriplet {
    lmr_context: 0,
    virtual_address: 0,
    segment_length: 0,
};

/// Converts an LMR triplet to DAT 1.2.
pub(super) fn local(given: &CLmrTriplet) -> LmrTriplet {
    LmrTriplet {
        lmr_context: given.lmr_context,
        virtual_address: given.virtual_address,
        segment_length: given.segment_length.into(),
    }
}

pub(super) fn remote(given: &CRmrTriplet) -> RmrTriplet {
    RmrTriplet {
        rmr_context: given.rmr_context,
        target_address: given.virtual_address,
        segment_length: given.segment_length.into(),
    }
}

/// An I/O vector of a post, converted to DAT 1.2.
pub(super) struct Segments {
    list: [LmrTriplet; MOST],
    count: usize,
}

impl Segments {
    /// Converts the caller's I/O vector.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG2: `count` is negative or too large. |ARG3: `iov` is null, but `count` is not 0.
    ///
    /// # Safety
    /// `iov` is null or points to `count` segments.
    #[inline]
    pub(super) unsafe fn new(count: DatCount, iov: *const CLmrTriplet) -> Result<Self, DatReturn> {
        let count = usize::try_from(count)
            .ok()
            .filter(|&count| count <= MOST)
            .ok_or(code::bad_argument(2))?;
        if count > 0 && iov.is_null() {
            return Err(code::bad_argument(3));
        }
        let mut list = [NOTHING; MOST];
        for (at, segment) in list.iter_mut().take(count).enumerate() {
            // SAFETY: `at` is less than `count`, so contract GIVEN covers this segment.
            *segment = local(unsafe { &*iov.wrapping_add(at) });
        }
        Ok(Self { list, count })
    }

    fn slice(&self) -> &[LmrTriplet] {
        &self.list[..self.count]
    }

    pub(super) fn count(&self) -> DatCount {
        // CAST: the count is at most 64.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            reason = "at most 64"
        )]
        {
            self.count as DatCount
        }
    }

    pub(super) fn pointer(&self) -> *const LmrTriplet {
        self.list.as_ptr()
    }
}

/// Posts a request, and records its operation, which the completion event must name.
///
/// # Safety
/// That of [`Segments::new`].
pub(super) unsafe fn request(
    ep_handle: DatHandle,
    (num_segments, local_iov): (DatCount, *const CLmrTriplet),
    cookie: DatContext,
    completion_flags: u32,
    operation: u32,
    post: impl FnOnce(&mut Open, EpHandle, &[LmrTriplet], CompletionFlags) -> DatResult<()>,
) -> DatReturn {
    // SAFETY: contract GIVEN.
    let segments = match unsafe { Segments::new(num_segments, local_iov) } {
        Ok(segments) => segments,
        Err(refused) => return refused,
    };
    let flags = CompletionFlags::from_bits_retain(completion_flags);
    let inside = known(ep_handle);
    code::shown(on(inside, |open, ep: EpHandle| {
        post(open, ep, segments.slice(), flags)?;
        if let Some(operations) = open.records.operations.get_mut(&number(inside)) {
            operations.push(cookie, operation, flags.contains(CompletionFlags::SUPPRESS));
        } else {
            // The limit is the endpoint's actual one, which the provider chose.
            let queried = open.ia.ep_query(ep)?;
            let evd = queried.request_evd.map(|evd| open.ia.evd_query(evd));
            let waiting = evd.transpose()?.map_or(0, |evd| evd.qlen);
            let limit = queried.attr.max_request_dtos;
            let mut operations = Operations::new(limit as usize, waiting as usize);
            operations.push(cookie, operation, flags.contains(CompletionFlags::SUPPRESS));
            open.records.operations.insert(number(inside), operations);
        }
        Ok(())
    }))
}

/// # Safety
/// `local_iov` is null or points to `num_segments` segments.
pub(super) unsafe extern "C" fn send(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const CLmrTriplet,
    user_cookie: DatContext,
    completion_flags: u32,
) -> DatReturn {
    let post = |open: &mut Open, ep, iov: &[LmrTriplet], flags| {
        open.ia.ep_post_send(ep, iov, DtoCookie(user_cookie), flags)
    };
    // SAFETY: contract PASSED ON.
    unsafe {
        request(
            ep_handle,
            (num_segments, local_iov),
            user_cookie,
            completion_flags,
            operation::SEND,
            post,
        )
    }
}

/// Posts a Send that can also invalidate an RMR context of the peer.
///
/// # Safety
/// That of [`send`].
pub(super) unsafe extern "C" fn send_with_invalidate(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const CLmrTriplet,
    user_cookie: DatContext,
    completion_flags: u32,
    invalidate_flag: DatBoolean,
    rmr_context: u32,
) -> DatReturn {
    if invalidate_flag != 0 {
        let post = |open: &mut Open, ep, iov: &[LmrTriplet], flags| {
            let ia = &mut open.ia;
            ia.ep_post_send_invalidate(ep, iov, DtoCookie(user_cookie), rmr_context, flags)
        };
        // SAFETY: contract PASSED ON.
        return unsafe {
            request(
                ep_handle,
                (num_segments, local_iov),
                user_cookie,
                completion_flags,
                operation::SEND,
                post,
            )
        };
    }
    // SAFETY: contract PASSED ON.
    unsafe {
        send(
            ep_handle,
            num_segments,
            local_iov,
            user_cookie,
            completion_flags,
        )
    }
}

/// # Safety
/// That of [`send`].
pub(super) unsafe extern "C" fn recv(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const CLmrTriplet,
    user_cookie: DatContext,
    completion_flags: u32,
) -> DatReturn {
    // SAFETY: contract GIVEN.
    let segments = match unsafe { Segments::new(num_segments, local_iov) } {
        Ok(segments) => segments,
        Err(refused) => return refused,
    };
    let flags = CompletionFlags::from_bits_retain(completion_flags);
    code::shown(on(known(ep_handle), |open, ep: EpHandle| {
        open.ia
            .ep_post_recv(ep, segments.slice(), DtoCookie(user_cookie), flags)
    }))
}

/// # Safety
/// That of [`send`]; `remote_buffer` is null or points to a triplet.
pub(super) unsafe extern "C" fn rdma_read(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const CLmrTriplet,
    user_cookie: DatContext,
    remote_buffer: *const CRmrTriplet,
    completion_flags: u32,
) -> DatReturn {
    // SAFETY: contract GIVEN.
    let Some(buffer) = (unsafe { remote_buffer.as_ref() }) else {
        return code::bad_argument(5);
    };
    let buffer = remote(buffer);
    let post = |open: &mut Open, ep, iov: &[LmrTriplet], flags| {
        open.ia
            .ep_post_rdma_read(ep, iov, DtoCookie(user_cookie), &buffer, flags)
    };
    // SAFETY: contract PASSED ON.
    unsafe {
        request(
            ep_handle,
            (num_segments, local_iov),
            user_cookie,
            completion_flags,
            operation::RDMA_READ,
            post,
        )
    }
}

/// # Safety
/// That of [`rdma_read`].
pub(super) unsafe extern "C" fn rdma_write(
    ep_handle: DatHandle,
    num_segments: DatCount,
    local_iov: *const CLmrTriplet,
    user_cookie: DatContext,
    remote_buffer: *const CRmrTriplet,
    completion_flags: u32,
) -> DatReturn {
    // SAFETY: contract GIVEN.
    let Some(buffer) = (unsafe { remote_buffer.as_ref() }) else {
        return code::bad_argument(5);
    };
    let buffer = remote(buffer);
    let post = |open: &mut Open, ep, iov: &[LmrTriplet], flags| {
        open.ia
            .ep_post_rdma_write(ep, iov, DtoCookie(user_cookie), &buffer, flags)
    };
    // SAFETY: contract PASSED ON.
    unsafe {
        request(
            ep_handle,
            (num_segments, local_iov),
            user_cookie,
            completion_flags,
            operation::RDMA_WRITE,
            post,
        )
    }
}
