//! Opening, querying and closing an adapter.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;
use core::ptr::null_mut;

use super::cells::{known, provider, shown};
use super::provider::{Provider, info_of, of_name};
use super::types::{CIaAttr, CProviderAttr, SCOPE_PZ};
use super::{cells, code, ext};
use crate::capi;
use crate::capi::answer::answer;
use crate::capi::argument::as_count;
use crate::capi::types::{CNamedAttr, DatCount, DatHandle, DatReturn};

/// Masks `DAT_IA_FIELD_ALL` and `DAT_PROVIDER_FIELD_ALL`.
const IA_ALL: u64 = 0x3f_ffff_ffff;
const PROVIDER_ALL: u64 = 0x7fff_ffff;
/// Masks `DAT_IA_FIELD_ALL` and `DAT_PROVIDER_FIELD_ALL` of DAT 1.2.
const IA_ALL_BEFORE: u64 = 0x7_ffff_ffff;
const PROVIDER_ALL_BEFORE: u64 = 0x3ff_ffff;
/// Value of `DAT_PZ_SHAREABLE` in DAT 1.2, then in DAT 2.0. `DAT_PZ_UNIQUE` is 0 in both.
const SHAREABLE: [u32; 2] = [2, 1];
/// Return code for a provider name that is not registered: the error class, DAT_PROVIDER_NOT_FOUND and its subtype.
const NOT_REGISTERED: DatReturn = 0x800a_0064;

/// Named attributes that DAT 2.0 programs read from an InfiniBand provider (dapl's `openib_common/util.c`).
struct Attributes([CNamedAttr; 5]);

/// Number of attributes at the end of the array that are reported only if the device has atomic operations.
const ATOMIC_ATTRIBUTES: usize = 2;

// SAFETY: the pointers lead to constant strings, which no thread changes.
unsafe impl Sync for Attributes {}

static ATTRIBUTES: Attributes = Attributes([
    CNamedAttr {
        name: c"DAT_IB_RDMA_READ".as_ptr(),
        value: c"TRUE".as_ptr(),
    },
    CNamedAttr {
        name: c"DAT_IB_CONNECTIVITY_MODE".as_ptr(),
        value: c"DIRECT".as_ptr(),
    },
    CNamedAttr {
        name: c"DAT_IB_IMMED_DATA".as_ptr(),
        value: c"TRUE".as_ptr(),
    },
    CNamedAttr {
        name: c"DAT_IB_FETCH_AND_ADD".as_ptr(),
        value: c"TRUE".as_ptr(),
    },
    CNamedAttr {
        name: c"DAT_IB_CMP_AND_SWAP".as_ptr(),
        value: c"TRUE".as_ptr(),
    },
]);

/// Opens an adapter (`dat_ia_open`). The registry has already chosen this provider by the version, and passes only the
/// name.
///
/// # Safety
/// `name` is null or a string; the other pointers are null or point to handles.
pub(super) unsafe extern "C" fn open(
    name: *const c_char,
    async_evd_min_qlen: DatCount,
    async_evd_handle: *mut DatHandle,
    ia_handle: *mut DatHandle,
) -> DatReturn {
    if name.is_null() {
        return code::bad_argument(1);
    }
    // SAFETY: the pointer is not null, so by contract TEXT it leads to a string.
    let Ok(name) = (unsafe { CStr::from_ptr(name) }).to_str() else {
        return code::bad_argument(1);
    };
    let (device, provider) = match of_name(name) {
        Ok(Some(found)) => found,
        Ok(None) => return NOT_REGISTERED,
        Err(error) => return code::shown(answer(error)),
    };
    let provider = core::ptr::from_ref(provider).cast_mut();
    if async_evd_handle.is_null() {
        return code::bad_argument(3);
    }
    // SAFETY: the pointer is not null, so by contract GIVEN it leads to a value.
    let given = unsafe { *async_evd_handle };
    let mut evd = known(given);
    // SAFETY: `evd` is a local variable; contract PASSED ON for `ia_handle`.
    let answer =
        unsafe { capi::ia::open_device(&device, async_evd_min_qlen, &raw mut evd, ia_handle) };
    if answer != 0 {
        return code::shown(answer);
    }
    if known(given) != evd {
        // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
        unsafe { async_evd_handle.write(shown(provider, evd)) };
    }
    // SAFETY: the call succeeded, so the pointer is not null and has been written through; contract ROOM.
    let ia_handle = unsafe { &mut *ia_handle };
    *ia_handle = shown(provider, *ia_handle);
    0
}

/// `dat_ia_close`.
pub(super) extern "C" fn close(ia_handle: DatHandle, ia_flags: u32) -> DatReturn {
    code::shown(capi::dat_ia_close(known(ia_handle), ia_flags))
}

/// `dat_ia_query`.
///
/// # Safety
/// The pointers are null or point to what the header says.
pub(super) unsafe extern "C" fn query(
    ia_handle: DatHandle,
    async_evd_handle: *mut DatHandle,
    ia_attr_mask: u64,
    ia_attributes: *mut CIaAttr,
    provider_attr_mask: u64,
    provider_attributes: *mut CProviderAttr,
) -> DatReturn {
    let mut evd = null_mut();
    let mut ia = MaybeUninit::uninit();
    let mut attr = MaybeUninit::uninit();
    // SAFETY: the pointer leads to a local variable.
    let answer = unsafe {
        capi::dat_ia_query(
            known(ia_handle),
            &raw mut evd,
            IA_ALL_BEFORE,
            ia.as_mut_ptr(),
            PROVIDER_ALL_BEFORE,
            attr.as_mut_ptr(),
        )
    };
    if answer != 0 {
        return code::shown(answer);
    }
    // SAFETY: the call succeeded, so it has written the value.
    let ia = unsafe { ia.assume_init() };
    // SAFETY: as above.
    let attr = unsafe { attr.assume_init() };
    if ia_attr_mask & !IA_ALL != 0 {
        return code::bad_argument(3);
    }
    if ia_attr_mask != 0 && ia_attributes.is_null() {
        return code::bad_argument(4);
    }
    if provider_attr_mask & !PROVIDER_ALL != 0 {
        return code::bad_argument(5);
    }
    if provider_attr_mask != 0 && provider_attributes.is_null() {
        return code::bad_argument(6);
    }
    let of = provider(ia_handle);
    if !async_evd_handle.is_null() {
        // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
        unsafe { async_evd_handle.write(cells::shown(of, evd)) };
    }
    if ia_attr_mask != 0 {
        // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
        unsafe { ia_attributes.write(ia_attr(&ia)) };
    }
    if provider_attr_mask != 0 {
        let atomics = capi::ia::has_atomics(known(ia_handle));
        // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
        unsafe { provider_attributes.write(provider_attr(&attr, of, atomics)) };
    }
    0
}

/// Converts a 64-bit size to 32 bits. Larger sizes become the maximum.
pub(super) fn size(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn ia_attr(attr: &capi::types::CIaAttr) -> CIaAttr {
    CIaAttr {
        adapter_name: attr.adapter_name,
        vendor_name: attr.vendor_name,
        hardware_version_major: attr.hardware_version_major,
        hardware_version_minor: attr.hardware_version_minor,
        firmware_version_major: attr.firmware_version_major,
        firmware_version_minor: attr.firmware_version_minor,
        ia_address_ptr: attr.ia_address_ptr,
        max_eps: attr.max_eps,
        max_dto_per_ep: attr.max_dto_per_ep,
        max_rdma_read_per_ep_in: attr.max_rdma_read_per_ep_in,
        max_rdma_read_per_ep_out: attr.max_rdma_read_per_ep_out,
        max_evds: attr.max_evds,
        max_evd_qlen: attr.max_evd_qlen,
        max_iov_segments_per_dto: attr.max_iov_segments_per_dto,
        max_lmrs: attr.max_lmrs,
        max_lmr_block_size: size(attr.max_lmr_block_size),
        max_lmr_virtual_address: attr.max_lmr_virtual_address,
        max_pzs: attr.max_pzs,
        max_message_size: size(attr.max_message_size),
        max_rdma_size: size(attr.max_rdma_size),
        max_rmrs: attr.max_rmrs,
        max_rmr_target_address: attr.max_rmr_target_address,
        max_srqs: attr.max_srqs,
        max_ep_per_srq: attr.max_ep_per_srq,
        max_recv_per_srq: attr.max_recv_per_srq,
        max_iov_segments_per_rdma_read: attr.max_iov_segments_per_rdma_read,
        max_iov_segments_per_rdma_write: attr.max_iov_segments_per_rdma_write,
        max_rdma_read_in: attr.max_rdma_read_in,
        max_rdma_read_out: attr.max_rdma_read_out,
        max_rdma_read_per_ep_in_guaranteed: attr.max_rdma_read_per_ep_in_guaranteed,
        max_rdma_read_per_ep_out_guaranteed: attr.max_rdma_read_per_ep_out_guaranteed,
        zb_supported: 0,
        extension_supported: ext::KIND,
        extension_version: ext::VERSION,
        num_transport_attr: attr.num_transport_attr,
        transport_attr: attr.transport_attr,
        num_vendor_attr: attr.num_vendor_attr,
        vendor_attr: attr.vendor_attr,
    }
}

fn provider_attr(
    attr: &capi::types::CProviderAttr,
    of: *mut Provider,
    atomics: bool,
) -> CProviderAttr {
    // The registry finds its entry by this version and thread safety when the program closes the adapter.
    let registered = info_of(of);
    let (major, minor) = registered.as_ref().map_or((2, 0), |info| info.dapl_version);
    CProviderAttr {
        provider_name: attr.provider_name,
        provider_version_major: attr.provider_version_major,
        provider_version_minor: attr.provider_version_minor,
        dapl_version_major: major,
        dapl_version_minor: minor,
        lmr_mem_types_supported: attr.lmr_mem_types_supported,
        iov_ownership_on_return: attr.iov_ownership_on_return,
        dat_qos_supported: attr.dat_qos_supported,
        completion_flags_supported: attr.completion_flags_supported,
        is_thread_safe: registered.is_some_and(|info| info.is_thread_safe).into(),
        max_private_data_size: attr.max_private_data_size,
        supports_multipath: attr.supports_multipath,
        ep_creator: attr.ep_creator,
        pz_support: if attr.pz_support == SHAREABLE[0] {
            SHAREABLE[1]
        } else {
            0
        },
        optimal_buffer_alignment: attr.optimal_buffer_alignment,
        evd_stream_merging_supported: attr.evd_stream_merging_supported,
        srq_supported: attr.srq_supported,
        srq_watermarks_supported: attr.srq_watermarks_supported,
        srq_ep_pz_difference_supported: attr.srq_ep_pz_difference_supported,
        srq_info_supported: attr.srq_info_supported,
        ep_recv_info_supported: attr.ep_recv_info_supported,
        lmr_sync_req: attr.lmr_sync_req,
        dto_async_return_guaranteed: attr.dto_async_return_guaranteed,
        rdma_write_for_rdma_read_req: attr.rdma_write_for_rdma_read_req,
        // An RDMA Read does not expose the RMR context of its local buffer to the peer.
        rdma_read_lmr_rmr_context_exposure: 0,
        rmr_scope_supported: SCOPE_PZ,
        is_signal_safe: 0,
        ha_supported: 0,
        ha_loadbalancing: 0,
        num_provider_specific_attr: as_count(
            ATTRIBUTES.0.len() - if atomics { 0 } else { ATOMIC_ATTRIBUTES },
        ),
        provider_specific_attr: ATTRIBUTES.0.as_ptr(),
    }
}
