//! `dat_extension_op`: dapl's extensions for InfiniBand (`dat_ib_extensions.h`), version 2.0.1: RDMA Write with
//! immediate data, fetch-and-add, compare-and-swap.
//!
//! Such a request completes with a DAT_IB_DTO_EVENT, whose extension data name the type of the operation. A receive
//! with immediate data also completes with a DAT_IB_DTO_EVENT. Programs find the available operations in the
//! provider's named attributes. The other operations of the header (unreliable datagrams, counters, collectives)
//! return DAT_NOT_IMPLEMENTED.

// UNSAFETY: reads through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::c_int;

use dat_core::{
    CompletionFlags, DatResult, DtoCookie, DtoDetail, EpHandle, LmrTriplet, RmrTriplet,
};

use super::code;
use super::post::{remote, request};
use super::types::{CLmrTriplet, CRmrTriplet};
use super::variadic::{VaList, number, pointer};
use crate::capi::adapter::Open;
use crate::capi::types::{DatContext, DatCount, DatHandle, DatReturn, operation};

/// `DAT_EXTENSION_IB`: the provider's extensions are those for InfiniBand.
pub(super) const KIND: u32 = 1;
/// `extension_version` of the provider: 2.0.1.
pub(super) const VERSION: DatCount = 201;
/// Event number `DAT_IB_DTO_EVENT`.
pub(super) const EVENT: u32 = 0x4_0000;

/// Operation numbers of `DAT_IB_OP`.
mod op {
    pub const FETCH_AND_ADD: i32 = 0;
    pub const CMP_AND_SWAP: i32 = 1;
    pub const RDMA_WRITE_IMMED: i32 = 2;
}

/// Type numbers of `DAT_IB_EXT_TYPE`.
mod ext_type {
    pub const FETCH_AND_ADD: u32 = 0;
    pub const CMP_AND_SWAP: u32 = 1;
    pub const RDMA_WRITE_IMMED: u32 = 2;
    pub const RDMA_WRITE_IMMED_DATA: u32 = 3;
    pub const RECV_IMMED_DATA: u32 = 4;
}

/// `DAT_IB_EXTENSION_EVENT_DATA`: type in bytes 3:0, status in 7:4, immediate data in 11:8.
pub(super) type Data = [u64; 8];

const fn data(kind: u32, success: bool, immediate: u32) -> Data {
    // The status is DAT_OP_SUCCESS (0) or DAT_IB_OP_ERR (1). CAST: a bool widens to 0 or 1.
    let status = !success as u64;
    [
        kind as u64 | status << 32,
        immediate as u64,
        0,
        0,
        0,
        0,
        0,
        0,
    ]
}

/// Returns the extension data of a completed request, or `None` if its operation is not an extension.
pub(super) const fn of_request(operation: u32, success: bool) -> Option<Data> {
    let kind = match operation {
        operation::RDMA_WRITE_IMMED => ext_type::RDMA_WRITE_IMMED,
        operation::FETCH_ADD => ext_type::FETCH_AND_ADD,
        operation::CMP_SWAP => ext_type::CMP_AND_SWAP,
        _ => return None,
    };
    Some(data(kind, success, 0))
}

/// Returns the operation number of a completed receive, and the extension data of its event if it has immediate data.
pub(super) const fn of_receive(detail: DtoDetail) -> (u32, Option<Data>) {
    match detail {
        DtoDetail::WriteImmediate(immediate) => (
            operation::RECV_IMMED,
            Some(data(ext_type::RDMA_WRITE_IMMED_DATA, true, immediate)),
        ),
        DtoDetail::SendImmediate(immediate) => (
            operation::RECV_MSG_IMMED,
            Some(data(ext_type::RECV_IMMED_DATA, true, immediate)),
        ),
        DtoDetail::Invalidated(_) => (operation::RECEIVE_WITH_INVALIDATE, None),
        DtoDetail::None | DtoDetail::Failed(..) => (operation::RECEIVE, None),
    }
}

/// Arguments of all extended operations.
struct Common {
    ep: DatHandle,
    count: DatCount,
    iov: *const CLmrTriplet,
    cookie: DatContext,
    buffer: *const CRmrTriplet,
    flags: u32,
    operation: u32,
}

/// Converts the arguments and posts the operation through `post`.
///
/// # Safety
/// `iov` is null or points to `count` segments. `buffer` is null or points to a triplet.
unsafe fn posted(
    common: &Common,
    post: impl FnOnce(&mut Open, EpHandle, &[LmrTriplet], &RmrTriplet, CompletionFlags) -> DatResult<()>,
) -> DatReturn {
    // SAFETY: contract GIVEN.
    let Some(buffer) = (unsafe { common.buffer.as_ref() }) else {
        return code::bad_argument(5);
    };
    let buffer = remote(buffer);
    let post = |open: &mut Open, ep, iov: &[LmrTriplet], flags| post(open, ep, iov, &buffer, flags);
    // SAFETY: contract PASSED ON.
    unsafe {
        request(
            common.ep,
            (common.count, common.iov),
            common.cookie,
            common.flags,
            common.operation,
            post,
        )
    }
}

/// Executes an extended operation (`handle_extendedop_func`). The registry calls the provider of the endpoint `handle`.
///
/// # Safety
/// `arguments` is null or holds the operation's arguments (the macros of `dat_ib_extensions.h`). Each pointer among
/// the arguments is null or leads to a value of its type.
pub(super) unsafe extern "C" fn extended_op(
    handle: DatHandle,
    operation: c_int,
    arguments: *mut VaList,
) -> DatReturn {
    // SAFETY: contract GIVEN.
    let Some(list) = (unsafe { arguments.as_mut() }) else {
        return code::not_implemented();
    };
    let atomic = |operation, [iov, cookie, buffer, flags]: [u64; 4]| Common {
        ep: handle,
        count: 1,
        iov: pointer(iov),
        cookie,
        buffer: pointer(buffer),
        flags: number(flags),
        operation,
    };
    match operation {
        op::FETCH_AND_ADD => {
            // SAFETY: contract GIVEN. Arguments: add_value, local triplet, cookie, remote triplet, flags.
            let [add, iov, cookie, buffer, flags] = unsafe { list.take() };
            let common = atomic(operation::FETCH_ADD, [iov, cookie, buffer, flags]);
            let post = |open: &mut Open, ep, result: &[LmrTriplet], remote: &RmrTriplet, flags| {
                let ia = &mut open.ia;
                ia.ep_post_fetch_add(ep, result, DtoCookie(cookie), remote, add, flags)
            };
            // SAFETY: contract PASSED ON.
            unsafe { posted(&common, post) }
        }
        op::CMP_AND_SWAP => {
            // SAFETY: contract GIVEN. Arguments: cmp_value, swap_value, local triplet, cookie, remote triplet,
            // flags.
            let [compare, swap, iov, cookie, buffer, flags] = unsafe { list.take() };
            let common = atomic(operation::CMP_SWAP, [iov, cookie, buffer, flags]);
            let post = |open: &mut Open, ep, result: &[LmrTriplet], remote: &RmrTriplet, flags| {
                let ia = &mut open.ia;
                ia.ep_post_compare_swap(ep, result, DtoCookie(cookie), remote, compare, swap, flags)
            };
            // SAFETY: contract PASSED ON.
            unsafe { posted(&common, post) }
        }
        op::RDMA_WRITE_IMMED => {
            // SAFETY: contract GIVEN. Arguments: number of segments, local triplets, cookie, remote triplet,
            // immediate data, flags.
            let [count, iov, cookie, buffer, immediate, flags] = unsafe { list.take() };
            let common = Common {
                ep: handle,
                count: number(count).cast_signed(),
                iov: pointer(iov),
                cookie,
                buffer: pointer(buffer),
                flags: number(flags),
                operation: operation::RDMA_WRITE_IMMED,
            };
            let immediate = number(immediate);
            let post = |open: &mut Open, ep, iov: &[LmrTriplet], remote: &RmrTriplet, flags| {
                let ia = &mut open.ia;
                ia.ep_post_rdma_write_immediate(
                    ep,
                    iov,
                    DtoCookie(cookie),
                    remote,
                    immediate,
                    flags,
                )
            };
            // SAFETY: contract PASSED ON.
            unsafe { posted(&common, post) }
        }
        _ => code::not_implemented(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Extension data have the numbers and offsets of DAT 2.0's `dat_ib_extensions.h` and `dat.h`.
    #[test]
    fn extension_data_say_type_status_and_immediate_data_at_their_places() {
        let (operation, data) = of_receive(DtoDetail::WriteImmediate(0x7788));
        let data = data.expect("extension data");
        assert_eq!((operation, data[0], data[1]), (9, 3, 0x7788));
        let (operation, data) = of_receive(DtoDetail::SendImmediate(1));
        assert_eq!((operation, data.map(|data| data[0])), (12, Some(4)));
        assert_eq!(of_receive(DtoDetail::Invalidated(7)), (4, None));
        assert_eq!(of_receive(DtoDetail::None), (3, None));
        for (operation, kind) in [(8, 2), (10, 0), (11, 1)] {
            let told = |success| of_request(operation, success).map(|data| data[0]);
            assert_eq!(told(true), Some(kind));
            assert_eq!(told(false), Some(kind | 1 << 32));
        }
        assert_eq!(of_request(operation::RDMA_WRITE, true), None);
    }
}
