//! `dat_ia_openv`, `dat_ia_close`, `dat_ia_query`.
//!
//! A program opens an adapter by its name in the registry. If the registry has no such name, the name is a device name
//! ([`ia_open`](crate::ia_open)): `sim:a`, `vfio-user:/run/nic.sock`, `0000:3b:00.2`.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::ffi::{CStr, c_char};
use core::ptr::null;
use std::sync::Arc;

use dat_core::{CloseFlags, DatError, DatResult, IaAttr, ProviderAttr, Subtype};

use super::adapter::{Adapter, Open, Siblings};
use super::answer::{answer, call, caught, code_of, uncancelled};
use super::argument::{as_count, given, mask, put, text};
use super::call::look_up;
use super::directory::Entry;
use super::error::{handle_error, internal, parameter};
use super::foreign::{self, foreign};
use super::instance::{Wanted, WantedEvd};
use super::last_error::because_of;
use super::openings::{self, Closing, dat_error};
use super::registry::{self, Resolved};
use super::table::{self, IaName, PER_KIND, handle_of};
use super::types::{CIaAttr, CProviderAttr, DatBoolean, DatCount, DatHandle, DatReturn};
use hw_mlx::Address;

use crate::open::NotClosed;
use crate::registry::ProviderInfo;
use crate::{Ia, OpenOptions};

/// `DAT_EVD_ASYNC_EXISTS`: create no asynchronous EVD, because another instance has one.
const ASYNC_EXISTS: u64 = 1;
/// `DAT_EVD_OUT_OF_SCOPE`: another consumer has the asynchronous EVD.
pub(super) const OUT_OF_SCOPE: u64 = 2;
/// `DAT_IA_FIELD_ALL`.
const IA_ALL: u64 = 0x7_ffff_ffff;
/// `DAT_PROVIDER_FIELD_ALL`.
const PROVIDER_ALL: u64 = 0x3ff_ffff;

/// `dat_ia_openv`.
///
/// # Safety
/// `name` is null or a string; the other pointers are null or point to handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ia_openv(
    name: *const c_char,
    async_evd_min_qlen: DatCount,
    async_evd_handle: *mut DatHandle,
    ia_handle: *mut DatHandle,
    dapl_major: u32,
    dapl_minor: u32,
    thread_safety: DatBoolean,
) -> DatReturn {
    let resolved = || {
        super::log::begin();
        super::fork::not_a_child()?;
        given(name, Subtype::Arg1)?;
        places(async_evd_handle, ia_handle)?;
        // SAFETY: the pointer is not null, so by contract TEXT it leads to a string.
        let name = unsafe { CStr::from_ptr(name) };
        registry::resolve(&ProviderInfo {
            ia_name: name
                .to_str()
                .map_err(|_| parameter(Subtype::Arg1))?
                .to_owned(),
            dapl_version: (dapl_major, dapl_minor),
            is_thread_safe: thread_safety != 0,
        })
    };
    uncancelled(|| match resolved() {
        Ok(Resolved::Device(device, entry)) => {
            // SAFETY: contract PASSED ON.
            let opened = unsafe {
                opened(
                    &device,
                    async_evd_min_qlen,
                    async_evd_handle,
                    ia_handle,
                    thread_safety != 0,
                    entry,
                )
            };
            code_of(opened.map(drop))
        }
        // SAFETY: the name is not null, and contract PASSED ON.
        Ok(Resolved::Foreign(lease)) => unsafe {
            foreign::open(lease, name, async_evd_min_qlen, async_evd_handle, ia_handle)
        },
        Err(error) => answer(error),
    })
}

/// Checks that the pointers for the handles of an opening are not null.
fn places(async_evd_handle: *mut DatHandle, ia_handle: *mut DatHandle) -> DatResult<()> {
    given(async_evd_handle, Subtype::Arg3)?;
    if ia_handle.is_null() {
        return Err(handle_error(Subtype::HandleIa));
    }
    Ok(())
}

/// Opens a device as thread safe, without a look-up in the directory of adapters. If the device's name has addresses,
/// the first address becomes the instance's local address.
///
/// # Safety
/// The pointers are null or point to handles.
pub(super) unsafe fn open_device(
    device: &str,
    async_evd_min_qlen: DatCount,
    async_evd_handle: *mut DatHandle,
    ia_handle: *mut DatHandle,
) -> DatReturn {
    call(|| {
        // SAFETY: contract PASSED ON.
        let (adapter, ia) = unsafe {
            opened(
                device,
                async_evd_min_qlen,
                async_evd_handle,
                ia_handle,
                true,
                None,
            )
        }?;
        let (_, options) =
            crate::name::parse(device, &OpenOptions::default()).map_err(dat_error)?;
        if let Some(&Address { address, .. }) = options.hca.addresses.first() {
            adapter.with_instance(ia, |open| {
                open.instance.local.set(address);
                Ok(())
            })?;
        }
        Ok(())
    })
}

/// Opens a device, and writes the handles of the asynchronous EVD and of the instance.
///
/// # Safety
/// That of [`open_device`].
unsafe fn opened(
    device: &str,
    async_evd_min_qlen: DatCount,
    async_evd_handle: *mut DatHandle,
    ia_handle: *mut DatHandle,
    thread_safe: bool,
    entry: Option<Arc<Entry>>,
) -> DatResult<(&'static Adapter, IaName)> {
    places(async_evd_handle, ia_handle)?;
    // SAFETY: the pointer is not null, so by contract GIVEN it leads to a value.
    let async_evd = unsafe { *async_evd_handle };
    let async_evd = match table::number(async_evd) {
        0 => match u32::try_from(async_evd_min_qlen) {
            Ok(qlen) if qlen > 0 => WantedEvd::New(qlen),
            Ok(_) | Err(_) => return Err(parameter(Subtype::Arg2)),
        },
        ASYNC_EXISTS => WantedEvd::Exists,
        _ => WantedEvd::This(async_evd),
    };
    let wanted = Wanted {
        async_evd,
        thread_safe,
        entry,
    };
    let (adapter, ia) = openings::open(device, wanted)?;
    let (evd, handle) = adapter.with_instance(ia, |open| {
        Ok((async_evd_of(adapter, open), open.ia_handle()))
    })?;
    // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
    unsafe { put(async_evd_handle, evd) };
    // SAFETY: as above.
    unsafe { put(ia_handle, handle) };
    Ok((adapter, ia))
}

/// Gives a C program an IA that Rust code has opened, as thread safe or not. The C program closes it with
/// `dat_ia_close`, and cannot open a second instance of its device.
///
/// # Errors
/// DAT_INSUFFICIENT_RESOURCES: no handle or no eventfd is left, the process was forked from one with adapters open, or
/// the system refuses MADV_WIPEONFORK. The IA has been closed.
pub fn lend(ia: Ia, thread_safe: bool) -> DatResult<DatHandle> {
    let wanted = Wanted {
        async_evd: WantedEvd::New(1),
        thread_safe,
        entry: None,
    };
    let (adapter, ia) = openings::adopt(ia, &wanted, Siblings::new()?)?;
    adapter.with_instance(ia, |open| Ok(open.ia_handle()))
}

fn async_evd_of(adapter: &'static Adapter, open: &mut Open) -> DatHandle {
    let evd = open.async_evd(adapter);
    evd.unwrap_or(handle_of(OUT_OF_SCOPE))
}

fn not_closed(error: NotClosed) -> DatError {
    tracing::warn!(%error, "adapter");
    let sentence = error.to_string();
    let number = match error {
        NotClosed::InUse(open) => open.error,
        NotClosed::Teardown(_) => internal("the device refused"),
    };
    because_of(number, &sentence)
}

/// `dat_ia_close`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_ia_close(ia_handle: DatHandle, ia_flags: u32) -> DatReturn {
    if let Some(provider) = foreign::of(ia_handle) {
        return provider.pass_on(provider.functions.ia_close_func, &[], |function| {
            // SAFETY: contract TABLE: the provider's library registered this function for this call.
            let answer = unsafe { function(ia_handle, ia_flags) };
            if answer == 0 {
                foreign::closed(&provider, ia_handle);
            }
            answer
        });
    }
    call(|| {
        let (adapter, ia) = look_up::<IaName>(ia_handle)?;
        let flags = CloseFlags::from_value(ia_flags)?;
        let Open {
            ia,
            sleep,
            instance,
            ..
        } = adapter.remove(ia, |open| open.may_close(flags))?;
        let closing = Closing::new(&instance);
        let held = sleep.hold_time();
        // Threads that sleep in a wait wake up and find the instance closed.
        sleep.kick();
        let closed = crate::ia_close(ia, flags).map(drop).map_err(not_closed);
        // Release the clock before `closing`, whose drop takes the lock on the list of openings. A thread that opens
        // another function may hold that lock while it waits for the firmware.
        drop(held);
        drop(closing);
        // When the instance is dropped, the agents' thread calls the remaining agents and ends.
        drop(instance);
        closed
    })
}

/// `dat_ia_query`.
///
/// # Safety
/// The pointers are null or point to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_ia_query(
    ia_handle: DatHandle,
    async_evd_handle: *mut DatHandle,
    ia_attr_mask: u64,
    ia_attributes: *mut CIaAttr,
    provider_attr_mask: u64,
    provider_attributes: *mut CProviderAttr,
) -> DatReturn {
    foreign!(ia_query_func(
        ia_handle,
        async_evd_handle,
        ia_attr_mask,
        ia_attributes,
        provider_attr_mask,
        provider_attributes,
    ));
    call(|| {
        let (adapter, ia) = look_up::<IaName>(ia_handle)?;
        mask(ia_attr_mask, IA_ALL, Subtype::Arg3)?;
        if ia_attr_mask != 0 {
            given(ia_attributes, Subtype::Arg4)?;
        }
        mask(provider_attr_mask, PROVIDER_ALL, Subtype::Arg5)?;
        if provider_attr_mask != 0 {
            given(provider_attributes, Subtype::Arg6)?;
        }
        let (evd, ia, provider) = adapter.with_instance(ia, |open| {
            let evd = async_evd_of(adapter, open);
            let instance = &open.instance;
            let (address, thread_safe) = (instance.local.pointer(), instance.thread_safe);
            let provider = provider_attr(open.ia.query().provider, thread_safe);
            Ok((evd, ia_attr(open, address), provider))
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(async_evd_handle, evd) };
        // SAFETY: contract ROOM.
        unsafe { put(ia_attributes, ia) };
        // SAFETY: contract ROOM.
        unsafe { put(provider_attributes, provider) };
        Ok(())
    })
}

/// Returns whether an adapter supports atomic operations; false for an invalid handle.
pub(super) fn has_atomics(ia_handle: DatHandle) -> bool {
    let found = look_up::<IaName>(ia_handle);
    let asked =
        found.and_then(|(adapter, ia)| adapter.with_instance(ia, |open| Ok(open.ia.has_atomics())));
    asked.unwrap_or(false)
}

/// Converts a limit on objects to C. The result is at most `PER_KIND`, the number of handles of a kind.
fn handles(limit: u32) -> DatCount {
    as_count(usize::try_from(limit).unwrap_or(PER_KIND).min(PER_KIND))
}

fn ia_attr(open: &Open, address: *mut libc::sockaddr) -> CIaAttr {
    let records = &open.records;
    let attr: &IaAttr = open.ia.query().ia;
    let (transport, vendor) = (records.transport.list(), records.vendor.list());
    CIaAttr {
        adapter_name: text(&attr.adapter_name),
        vendor_name: text(&attr.vendor_name),
        hardware_version_major: attr.hardware_version.0,
        hardware_version_minor: attr.hardware_version.1,
        firmware_version_major: attr.firmware_version.0,
        firmware_version_minor: attr.firmware_version.1,
        ia_address_ptr: address,
        max_eps: handles(attr.max_eps),
        max_dto_per_ep: as_count(attr.max_dto_per_ep),
        max_rdma_read_per_ep_in: as_count(attr.max_rdma_read_per_ep_in),
        max_rdma_read_per_ep_out: as_count(attr.max_rdma_read_per_ep_out),
        max_evds: handles(attr.max_evds),
        max_evd_qlen: as_count(attr.max_evd_qlen),
        max_iov_segments_per_dto: as_count(attr.max_iov_segments_per_dto),
        max_lmrs: handles(attr.max_lmrs),
        max_lmr_block_size: attr.max_lmr_block_size,
        max_lmr_virtual_address: attr.max_lmr_virtual_address,
        max_pzs: handles(attr.max_pzs),
        max_message_size: attr.max_message_size,
        max_rdma_size: attr.max_rdma_size,
        max_rmrs: handles(attr.max_rmrs),
        max_rmr_target_address: attr.max_rmr_target_address,
        max_srqs: handles(attr.max_srqs),
        max_ep_per_srq: handles(attr.max_ep_per_srq),
        max_recv_per_srq: as_count(attr.max_recv_per_srq),
        max_iov_segments_per_rdma_read: as_count(attr.max_iov_segments_per_rdma_read),
        max_iov_segments_per_rdma_write: as_count(attr.max_iov_segments_per_rdma_write),
        max_rdma_read_in: as_count(attr.max_rdma_read_in),
        max_rdma_read_out: as_count(attr.max_rdma_read_out),
        max_rdma_read_per_ep_in_guaranteed: attr.max_rdma_read_per_ep_in_guaranteed.into(),
        max_rdma_read_per_ep_out_guaranteed: attr.max_rdma_read_per_ep_out_guaranteed.into(),
        num_transport_attr: as_count(transport.len()),
        transport_attr: transport.as_ptr(),
        num_vendor_attr: as_count(vendor.len()),
        vendor_attr: vendor.as_ptr(),
    }
}

fn provider_attr(attr: &ProviderAttr, thread_safe: bool) -> CProviderAttr {
    CProviderAttr {
        provider_name: text(&attr.provider_name),
        provider_version_major: attr.provider_version.0,
        provider_version_minor: attr.provider_version.1,
        dapl_version_major: attr.dapl_version.0,
        dapl_version_minor: attr.dapl_version.1,
        lmr_mem_types_supported: attr.lmr_mem_types_supported,
        iov_ownership_on_return: attr.iov_ownership_on_return,
        dat_qos_supported: attr.dat_qos_supported.bits(),
        completion_flags_supported: attr.completion_flags_supported.bits(),
        is_thread_safe: thread_safe.into(),
        max_private_data_size: as_count(attr.max_private_data_size),
        supports_multipath: attr.supports_multipath.into(),
        ep_creator: attr.ep_creator,
        pz_support: attr.pz_support,
        optimal_buffer_alignment: attr.optimal_buffer_alignment,
        evd_stream_merging_supported: attr
            .evd_stream_merging_supported
            .map(|row| row.map(DatBoolean::from)),
        srq_supported: attr.srq_supported.into(),
        srq_watermarks_supported: as_count(attr.srq_watermarks_supported),
        srq_ep_pz_difference_supported: attr.srq_ep_pz_difference_supported.into(),
        srq_info_supported: as_count(attr.srq_info_supported),
        ep_recv_info_supported: as_count(attr.ep_recv_info_supported),
        lmr_sync_req: attr.lmr_sync_req.into(),
        dto_async_return_guaranteed: attr.dto_async_return_guaranteed.into(),
        rdma_write_for_rdma_read_req: attr.rdma_write_for_rdma_read_req.into(),
        num_provider_specific_attr: 0,
        provider_specific_attr: null(),
    }
}

/// `dat_strerror`.
///
/// # Safety
/// The pointers are null or point to pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_strerror(
    value: DatReturn,
    major_message: *mut *const c_char,
    minor_message: *mut *const c_char,
) -> DatReturn {
    caught(|| {
        let Some((major, minor)) = super::messages::messages(value) else {
            return answer(parameter(Subtype::Arg1));
        };
        if major_message.is_null() {
            return answer(parameter(Subtype::Arg2));
        }
        if minor_message.is_null() {
            return answer(parameter(Subtype::Arg3));
        }
        // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
        unsafe { put(major_message, major.as_ptr()) };
        // SAFETY: as above.
        unsafe { put(minor_message, minor.as_ptr()) };
        0
    })
}
