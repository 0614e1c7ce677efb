//! The calls of an endpoint, except posts (`post`) and connecting (`connect`).

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};

use dat_core::EpAttr;

use super::cells::{known, provider, shown};
use super::code;
use super::ia::size;
use super::made::shown_new;
use super::types::{CComm, CEpAttr, CEpParam};
use crate::capi;
use crate::capi::call::look_up;
use crate::capi::table::IaName;
use crate::capi::types::{self, DatBoolean, DatCount, DatHandle, DatReturn};

/// `DAT_EP_FIELD_ALL`.
const ALL: u64 = 0x7fff_ffff;
/// `DAT_EP_FIELD_ALL` of DAT 1.2.
const ALL_BEFORE: u64 = 0x7fff_f7ff;
/// `DAT_EP_FIELD_COMM`, which DAT 1.2 lacks. The bits above it, up to the attributes, are one position lower in DAT
/// 1.2.
const COMM: u64 = 0x4;
const BELOW_COMM: u64 = 0x3;
const ABOVE_COMM: u64 = 0xff8;
const ATTRIBUTES: u64 = 0x7fff_f000;

/// Converts a mask of endpoint fields to DAT 1.2.
const fn mask(given: u64) -> u64 {
    (given & (BELOW_COMM | ATTRIBUTES)) | (given & ABOVE_COMM) >> 1
}

/// `DAT_HW_DEFAULT`: the endpoint has no watermark.
const NO_WATERMARK: DatCount = -1;
/// Default number of outstanding RDMA Reads in each direction (dapl's `dapl_ep_util.c`, `IB_RDMA_DEFAULT`). DAT 2.0
/// programs rely on this number without requesting it.
const READS: u32 = 4;

/// Returns the attributes of an endpoint that the program creates without attributes.
fn defaults(ia: DatHandle) -> Option<types::CEpAttr> {
    let (adapter, _) = look_up::<IaName>(ia).ok()?;
    let attr = adapter.with(|open| {
        let ia = open.ia.query().ia;
        let mut attr = EpAttr::defaults(ia);
        attr.max_rdma_read_in = READS.min(ia.max_rdma_read_per_ep_in);
        attr.max_rdma_read_out = READS.min(ia.max_rdma_read_per_ep_out);
        Ok(capi::ep::c_attr(&attr))
    });
    attr.ok()
}

/// Returns the attributes for DAT 1.2. With `given`, these are the program's attributes, but with the adapter's maximum
/// sizes of messages and RDMA transfers. Without `given`, these are the defaults.
fn wanted(ia: DatHandle, given: Option<&CEpAttr>) -> Option<types::CEpAttr> {
    let defaults = defaults(ia)?;
    let longest = (defaults.max_message_size, defaults.max_rdma_size);
    Some(given.map_or(defaults, |given| before(given, longest)))
}

/// Converts attributes to DAT 1.2. The sizes become at least `message` and `rdma`.
fn before(given: &CEpAttr, (message, rdma): (u64, u64)) -> types::CEpAttr {
    types::CEpAttr {
        service_type: given.service_type,
        max_message_size: message.max(given.max_message_size.into()),
        max_rdma_size: rdma.max(given.max_rdma_size.into()),
        qos: given.qos,
        recv_completion_flags: given.recv_completion_flags,
        request_completion_flags: given.request_completion_flags,
        max_recv_dtos: given.max_recv_dtos,
        max_request_dtos: given.max_request_dtos,
        max_recv_iov: given.max_recv_iov,
        max_request_iov: given.max_request_iov,
        max_rdma_read_in: given.max_rdma_read_in,
        max_rdma_read_out: given.max_rdma_read_out,
        // DAT 2.0 programs leave this field 0 when they do not set it.
        srq_soft_hw: match given.srq_soft_hw {
            0 => NO_WATERMARK,
            mark => mark,
        },
        max_rdma_read_iov: given.max_rdma_read_iov,
        max_rdma_write_iov: given.max_rdma_write_iov,
        ep_transport_specific_count: given.ep_transport_specific_count,
        ep_transport_specific: given.ep_transport_specific,
        ep_provider_specific_count: given.ep_provider_specific_count,
        ep_provider_specific: given.ep_provider_specific,
    }
}

fn after(attr: &types::CEpAttr) -> CEpAttr {
    CEpAttr {
        service_type: attr.service_type,
        max_message_size: size(attr.max_message_size),
        max_rdma_size: size(attr.max_rdma_size),
        qos: attr.qos,
        recv_completion_flags: attr.recv_completion_flags,
        request_completion_flags: attr.request_completion_flags,
        max_recv_dtos: attr.max_recv_dtos,
        max_request_dtos: attr.max_request_dtos,
        max_recv_iov: attr.max_recv_iov,
        max_request_iov: attr.max_request_iov,
        max_rdma_read_in: attr.max_rdma_read_in,
        max_rdma_read_out: attr.max_rdma_read_out,
        srq_soft_hw: attr.srq_soft_hw,
        max_rdma_read_iov: attr.max_rdma_read_iov,
        max_rdma_write_iov: attr.max_rdma_write_iov,
        ep_transport_specific_count: attr.ep_transport_specific_count,
        ep_transport_specific: attr.ep_transport_specific,
        ep_provider_specific_count: attr.ep_provider_specific_count,
        ep_provider_specific: attr.ep_provider_specific,
    }
}

/// # Safety
/// `ep_attributes` is null or points to attributes; `ep_handle` is null or points to a handle.
pub(super) unsafe extern "C" fn create(
    ia_handle: DatHandle,
    pz_handle: DatHandle,
    recv_evd_handle: DatHandle,
    request_evd_handle: DatHandle,
    connect_evd_handle: DatHandle,
    ep_attributes: *const CEpAttr,
    ep_handle: *mut DatHandle,
) -> DatReturn {
    let ia = known(ia_handle);
    // SAFETY: contract GIVEN.
    let attr = unsafe { ep_attributes.as_ref() };
    let attr = wanted(ia, attr);
    let make = |place| {
        // SAFETY: `attr` is null or points to local attributes; `place` is null or points to a local variable.
        unsafe {
            capi::dat_ep_create(
                ia,
                known(pz_handle),
                known(recv_evd_handle),
                known(request_evd_handle),
                known(connect_evd_handle),
                attr.as_ref().map_or(null(), core::ptr::from_ref),
                place,
            )
        }
    };
    // SAFETY: contract ROOM; the DAT 1.2 function in `make` refuses null.
    let answer = unsafe { shown_new(ia_handle, ep_handle, make) };
    code::shown(answer)
}

/// # Safety
/// That of [`create`].
pub(super) unsafe extern "C" fn create_with_srq(
    ia_handle: DatHandle,
    pz_handle: DatHandle,
    recv_evd_handle: DatHandle,
    request_evd_handle: DatHandle,
    connect_evd_handle: DatHandle,
    srq_handle: DatHandle,
    ep_attributes: *const CEpAttr,
    ep_handle: *mut DatHandle,
) -> DatReturn {
    let ia = known(ia_handle);
    // SAFETY: contract GIVEN.
    let attr = unsafe { ep_attributes.as_ref() };
    let attr = attr.and_then(|attr| wanted(ia, Some(attr)));
    let make = |place| {
        // SAFETY: `attr` is null or points to local attributes; `place` is null or points to a local variable.
        unsafe {
            capi::dat_ep_create_with_srq(
                ia,
                known(pz_handle),
                known(recv_evd_handle),
                known(request_evd_handle),
                known(connect_evd_handle),
                known(srq_handle),
                attr.as_ref().map_or(null(), core::ptr::from_ref),
                place,
            )
        }
    };
    // SAFETY: contract ROOM; the DAT 1.2 function in `make` refuses null.
    let answer = unsafe { shown_new(ia_handle, ep_handle, make) };
    code::shown(answer)
}

/// # Safety
/// `ep_param` is null or points to a `DAT_EP_PARAM`.
pub(super) unsafe extern "C" fn query(
    ep_handle: DatHandle,
    ep_param_mask: u64,
    ep_param: *mut CEpParam,
) -> DatReturn {
    if ep_param_mask & !ALL != 0 {
        return code::bad_argument(2);
    }
    if ep_param.is_null() {
        return code::bad_argument(3);
    }
    let mut param = MaybeUninit::uninit();
    // SAFETY: the pointer leads to a local variable.
    let answer = unsafe { capi::dat_ep_query(known(ep_handle), ALL_BEFORE, param.as_mut_ptr()) };
    if answer == 0 {
        // SAFETY: the call succeeded, so it has written the value.
        let param = unsafe { param.assume_init() };
        let of = provider(ep_handle);
        let param = CEpParam {
            ia_handle: shown(of, param.ia_handle),
            ep_state: param.ep_state,
            comm: CComm {
                domain: 0,
                type_: 0,
                protocol: 0,
            },
            local_ia_address_ptr: param.local_ia_address_ptr,
            local_port_qual: param.local_port_qual,
            remote_ia_address_ptr: param.remote_ia_address_ptr,
            remote_port_qual: param.remote_port_qual,
            pz_handle: shown(of, param.pz_handle),
            recv_evd_handle: shown(of, param.recv_evd_handle),
            request_evd_handle: shown(of, param.request_evd_handle),
            connect_evd_handle: shown(of, param.connect_evd_handle),
            srq_handle: shown(of, param.srq_handle),
            ep_attr: after(&param.ep_attr),
        };
        // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
        unsafe { ep_param.write(param) };
    }
    code::shown(answer)
}

/// # Safety
/// `ep_param` is null or points to a `DAT_EP_PARAM`.
pub(super) unsafe extern "C" fn modify(
    ep_handle: DatHandle,
    ep_param_mask: u64,
    ep_param: *const CEpParam,
) -> DatReturn {
    if ep_param_mask & (!ALL | COMM) != 0 {
        return code::bad_argument(2);
    }
    // SAFETY: contract GIVEN.
    let Some(given) = (unsafe { ep_param.as_ref() }) else {
        return code::bad_argument(3);
    };
    let param = types::CEpParam {
        ia_handle: null_mut(),
        ep_state: 0,
        local_ia_address_ptr: null_mut(),
        local_port_qual: 0,
        remote_ia_address_ptr: null_mut(),
        remote_port_qual: 0,
        pz_handle: known(given.pz_handle),
        recv_evd_handle: known(given.recv_evd_handle),
        request_evd_handle: known(given.request_evd_handle),
        connect_evd_handle: known(given.connect_evd_handle),
        srq_handle: known(given.srq_handle),
        ep_attr: before(&given.ep_attr, (0, 0)),
    };
    // SAFETY: the pointer leads to a local structure.
    code::shown(unsafe {
        capi::dat_ep_modify(known(ep_handle), mask(ep_param_mask), &raw const param)
    })
}

/// # Safety
/// The conditions of the DAT 1.2 function that this function calls.
pub(super) unsafe extern "C" fn get_status(
    ep_handle: DatHandle,
    ep_state: *mut u32,
    recv_idle: *mut DatBoolean,
    request_idle: *mut DatBoolean,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    code::shown(unsafe {
        capi::dat_ep_get_status(known(ep_handle), ep_state, recv_idle, request_idle)
    })
}

/// # Safety
/// The conditions of the DAT 1.2 function that this function calls.
pub(super) unsafe extern "C" fn recv_query(
    ep_handle: DatHandle,
    nbufs_allocated: *mut DatCount,
    bufs_alloc_span: *mut DatCount,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    code::shown(unsafe {
        capi::dat_ep_recv_query(known(ep_handle), nbufs_allocated, bufs_alloc_span)
    })
}

pub(super) extern "C" fn set_watermark(
    ep_handle: DatHandle,
    soft_high_watermark: DatCount,
    hard_high_watermark: DatCount,
) -> DatReturn {
    code::shown(capi::dat_ep_set_watermark(
        known(ep_handle),
        soft_high_watermark,
        hard_high_watermark,
    ))
}

pub(super) extern "C" fn reset(ep_handle: DatHandle) -> DatReturn {
    code::shown(capi::dat_ep_reset(known(ep_handle)))
}

pub(super) extern "C" fn free(ep_handle: DatHandle) -> DatReturn {
    code::shown(capi::dat_ep_free(known(ep_handle)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_of_a_mask_are_those_of_the_same_names_in_dat_1_2() {
        // These fields exist in both headers: DAT_EP_FIELD_EP_STATE, _LOCAL_IA_ADDRESS_PTR, _PZ_HANDLE, _SRQ_HANDLE,
        // _EP_ATTR_QOS.
        for (given, bit) in [
            (0x2, 0x2),
            (0x8, 0x4),
            (0x80, 0x40),
            (0x800, 0x400),
            (0x8000, 0x8000),
            (COMM, 0),
            (ALL, ALL_BEFORE),
        ] {
            assert_eq!(mask(given), bit, "{given:#x}");
        }
    }
}
