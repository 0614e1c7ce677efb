//! The calls of PZ, LMR and RMR.

// UNSAFETY: reads and writes through pointers of a C program, and lends its memory to the device.
#![expect(unsafe_code, reason = "the caller's pointers and memory")]

use core::ffi::c_void;
use core::ptr::{null, null_mut};

use dat_core::{
    CompletionFlags, DatError, DatResult, EpHandle, LmrHandle, LmrTriplet, MemPrivFlags, MemType,
    PzHandle, ReturnType, RmrCookie, RmrHandle, Subtype,
};
use driver::{DmaMemory, LentMemory};

use super::adapter::Open;
use super::answer::call;
use super::argument::{given, mask, put};
use super::call::{look_up, on, other, owned};
use super::error::parameter;
use super::foreign::foreign;
use super::last_error::because_of;
use super::records::Region;
use super::table::{IaName, Reserved, handle_of, number};
use super::types::{
    CLmrParam, CLmrTriplet, CPzParam, CRegionDescription, CRmrParam, CSharedMemory, DatContext,
    DatHandle, DatReturn,
};

/// Values of `DAT_MEM_TYPE`.
const VIRTUAL: u32 = 0;
const LMR: u32 = 1;
const SHARED_VIRTUAL: u32 = 2;
/// `DAT_MEM_TYPE_ALLOCATED`, a number of this library.
const ALLOCATED: u32 = 0x100;

/// `dat_pz_create`.
///
/// # Safety
/// `pz_handle` is null or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_pz_create(
    ia_handle: DatHandle,
    pz_handle: *mut DatHandle,
) -> DatReturn {
    foreign!(pz_create_func(ia_handle, pz_handle));
    call(|| {
        let (adapter, ia) = look_up::<IaName>(ia_handle)?;
        given(pz_handle, Subtype::Arg2)?;
        let reserved = Reserved::new()?;
        let pz = adapter.with_instance(ia, |open| {
            let pz = open.ia.pz_create()?;
            Ok(open.enter(adapter, reserved, pz))
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(pz_handle, pz) };
        Ok(())
    })
}

/// `dat_pz_query`.
///
/// # Safety
/// `pz_param` is null or points to a `DAT_PZ_PARAM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_pz_query(
    pz_handle: DatHandle,
    pz_param_mask: u32,
    pz_param: *mut CPzParam,
) -> DatReturn {
    foreign!(pz_query_func(pz_handle, pz_param_mask, pz_param));
    call(|| {
        let (adapter, pz) = look_up::<PzHandle>(pz_handle)?;
        mask(pz_param_mask.into(), 0x1, Subtype::Arg2)?;
        given(pz_param, Subtype::Arg3)?;
        let param = adapter.with(|open| {
            open.ia.pz_query(pz)?;
            Ok(CPzParam {
                ia_handle: open.ia_handle(),
            })
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(pz_param, param) };
        Ok(())
    })
}

/// `dat_pz_free`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_pz_free(pz_handle: DatHandle) -> DatReturn {
    foreign!(pz_free_func(pz_handle));
    on(pz_handle, |open, pz: PzHandle| {
        open.ia.pz_free(pz)?;
        open.forget(pz);
        Ok(())
    })
}

/// Maps the caller's memory for the device.
///
/// # Safety
/// The memory stays mapped until its LMR is freed, and the program accepts that the device writes to it.
unsafe fn lent(open: &Open, address: *mut c_void, length: u64) -> DatResult<DmaMemory> {
    let bytes = usize::try_from(length).map_err(|_| parameter(Subtype::Arg4))?;
    if bytes == 0 || address.addr().checked_add(bytes).is_none() {
        return Err(parameter(Subtype::Arg4));
    }
    if address.is_null() {
        return Err(parameter(Subtype::Arg3));
    }
    let function = open.ia.provider().hca().function();
    // SAFETY: contract LENT.
    let memory = unsafe { LentMemory::new(function, address.cast(), bytes) };
    memory.map(DmaMemory::Lent).map_err(|error| {
        tracing::warn!(%error, "lmr_create");
        let refused = DatError::new(
            ReturnType::InsufficientResources,
            Subtype::ResourceMemoryRegion,
        );
        because_of(
            refused.because("the memory cannot be mapped for the device"),
            &error,
        )
    })
}

/// Allocates memory of the adapter for a region. The region's arguments are checked first, because the memory is
/// pinned.
fn allocated(
    open: &Open,
    length: u64,
    pz: PzHandle,
    privileges: MemPrivFlags,
) -> DatResult<DmaMemory> {
    open.ia.pz_query(pz)?;
    if !(MemPrivFlags::all() | MemPrivFlags::REMOTE_ATOMIC).contains(privileges) {
        return Err(parameter(Subtype::Arg6));
    }
    let most = open.ia.query().ia.max_lmr_block_size;
    let bytes = usize::try_from(length).ok();
    let Some(bytes) = bytes.filter(|_| (1..=most).contains(&length)) else {
        return Err(parameter(Subtype::Arg4));
    };
    crate::alloc(&open.ia, bytes).map_err(|error| {
        tracing::warn!(%error, "lmr_create");
        let refused = DatError::new(ReturnType::InsufficientResources, Subtype::ResourceMemory);
        because_of(
            refused.because("the adapter has no memory of this length"),
            &error,
        )
    })
}

/// `dat_lmr_create`.
///
/// # Safety
/// The described memory stays mapped until the LMR is freed. The pointer to the cookie of shared memory and the
/// pointers for the results are null or point to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_lmr_create(
    ia_handle: DatHandle,
    mem_type: u32,
    region_description: CRegionDescription,
    length: u64,
    pz_handle: DatHandle,
    mem_privileges: u32,
    lmr_handle: *mut DatHandle,
    lmr_context: *mut u32,
    rmr_context: *mut u32,
    registered_size: *mut u64,
    registered_address: *mut u64,
) -> DatReturn {
    // For DAT_MEM_TYPE_LMR, the description is the handle of the existing LMR.
    let origin = match mem_type {
        LMR => region_description.virtual_address,
        _ => null_mut(),
    };
    foreign!(lmr_create_func(
        ia_handle,
        mem_type,
        region_description,
        length,
        pz_handle: HandlePz,
        mem_privileges,
        lmr_handle,
        lmr_context,
        rmr_context,
        registered_size,
        registered_address,
    ) [origin: HandleLmr]);
    call(|| {
        let (adapter, ia) = look_up::<IaName>(ia_handle)?;
        if mem_type > SHARED_VIRTUAL && mem_type != ALLOCATED {
            return Err(parameter(Subtype::Arg2));
        }
        given(lmr_handle, Subtype::Arg7)?;
        let reserved = Reserved::<LmrHandle>::new()?;
        let pz = other::<PzHandle>(ia, pz_handle);
        let privileges = MemPrivFlags::from_bits_retain(mem_privileges);
        // The first word of the union is an address or a handle.
        let first = region_description.virtual_address;
        let mut region = Region {
            address: 0,
            length,
            source: 0,
            cookie: None,
        };
        let (created, handle) = adapter.with_instance(ia, |open| {
            let created = match mem_type {
                VIRTUAL => {
                    region.address = first.addr();
                    // SAFETY: contract LENT.
                    let memory = unsafe { lent(open, first, length) }?;
                    open.ia.lmr_create(memory, pz, privileges)?
                }
                LMR => {
                    region.source = first.addr();
                    let source = other::<LmrHandle>(ia, first);
                    open.ia.lmr_create_from_lmr(source, pz, privileges)?
                }
                ALLOCATED => {
                    // The program has no other way to the address.
                    if registered_address.is_null() {
                        // DAT has no subtype for an eleventh argument.
                        let refused = parameter(Subtype::Arg10);
                        return Err(refused.because("registered_address is null"));
                    }
                    let memory = allocated(open, length, pz, privileges)?;
                    let created = open.ia.lmr_create(memory, pz, privileges)?;
                    // CAST: the address is one of this process.
                    #[expect(clippy::cast_possible_truncation, reason = "64-bit pointers only")]
                    let address = created.registered_address as usize;
                    region.address = address;
                    created
                }
                _ => {
                    region.address = first.addr();
                    given(region_description.shared_memory_id, Subtype::Arg3)?;
                    // SAFETY: the pointer is not null, so by contract GIVEN it leads to a value.
                    let cookie = unsafe { *region_description.shared_memory_id };
                    region.cookie = Some(Box::new(cookie));
                    // SAFETY: contract LENT.
                    let memory = unsafe { lent(open, first, length) }?;
                    open.ia.lmr_create_shared(memory, cookie, pz, privileges)?
                }
            };
            let handle = open.enter(adapter, reserved, created.lmr);
            open.records.regions.insert(number(handle), region);
            Ok((created, handle))
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(lmr_handle, handle) };
        // SAFETY: as above.
        unsafe { put(lmr_context, created.lmr_context) };
        // SAFETY: as above.
        unsafe { put(rmr_context, created.rmr_context) };
        // SAFETY: as above.
        unsafe { put(registered_size, created.registered_size) };
        // SAFETY: as above.
        unsafe { put(registered_address, created.registered_address) };
        Ok(())
    })
}

/// `dat_lmr_query`.
///
/// # Safety
/// `lmr_param` is null or points to a `DAT_LMR_PARAM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_lmr_query(
    lmr_handle: DatHandle,
    lmr_param_mask: u32,
    lmr_param: *mut CLmrParam,
) -> DatReturn {
    foreign!(lmr_query_func(lmr_handle, lmr_param_mask, lmr_param));
    call(|| {
        let (adapter, lmr) = look_up::<LmrHandle>(lmr_handle)?;
        mask(lmr_param_mask.into(), 0x3ff, Subtype::Arg2)?;
        given(lmr_param, Subtype::Arg3)?;
        let param = adapter.with(|open| {
            let param = open.ia.lmr_query(lmr)?;
            let pz_handle = open.name(adapter, param.pz);
            let region = open.records.regions.get(&number(lmr_handle));
            let first = region.map_or(0, |region| match param.mem_type {
                MemType::Lmr(_) => region.source,
                MemType::Virtual | MemType::SharedVirtual(_) => region.address,
            });
            let cookie = region.and_then(|region| region.cookie.as_deref());
            Ok(CLmrParam {
                ia_handle: open.ia_handle(),
                mem_type: param.mem_type.number(),
                region_desc: CSharedMemory {
                    virtual_address: handle_of(first as u64),
                    shared_memory_id: cookie.map_or(null(), core::ptr::from_ref),
                },
                length: match param.mem_type {
                    MemType::Lmr(_) => param.registered_size,
                    MemType::Virtual | MemType::SharedVirtual(_) => {
                        region.map_or(param.registered_size, |region| region.length)
                    }
                },
                pz_handle,
                mem_priv: param.privileges.bits(),
                lmr_context: param.lmr_context,
                rmr_context: param.rmr_context,
                registered_size: param.registered_size,
                registered_address: param.registered_address,
            })
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(lmr_param, param) };
        Ok(())
    })
}

/// `dat_lmr_free`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_lmr_free(lmr_handle: DatHandle) -> DatReturn {
    foreign!(lmr_free_func(lmr_handle));
    on(lmr_handle, |open, lmr: LmrHandle| {
        open.ia.lmr_free(lmr)?;
        open.forget(lmr);
        open.records.regions.remove(&number(lmr_handle));
        Ok(())
    })
}

/// Runs a call that synchronizes memory with the device.
///
/// # Safety
/// `segments` is null or points to `count` segments.
unsafe fn sync(
    ia: DatHandle,
    segments: *const LmrTriplet,
    count: u64,
    work: impl FnOnce(&Open, &[LmrTriplet]) -> DatResult<()>,
) -> DatReturn {
    call(|| {
        let (adapter, ia) = look_up::<IaName>(ia)?;
        let count = usize::try_from(count).map_err(|_| parameter(Subtype::Arg3))?;
        let fits = count.checked_mul(size_of::<LmrTriplet>());
        if fits.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(parameter(Subtype::Arg3));
        }
        let segments = if count == 0 {
            &[]
        } else {
            given(segments, Subtype::Arg2)?;
            // SAFETY: the pointer is not null, so by contract GIVEN it leads to `count` segments.
            unsafe { core::slice::from_raw_parts(segments, count) }
        };
        adapter.with_instance(ia, |open| work(open, segments))
    })
}

/// `dat_lmr_sync_rdma_read`.
///
/// # Safety
/// `local_segments` is null or points to `num_segments` segments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_lmr_sync_rdma_read(
    ia_handle: DatHandle,
    local_segments: *const LmrTriplet,
    num_segments: u64,
) -> DatReturn {
    foreign!(lmr_sync_rdma_read_func(
        ia_handle,
        local_segments,
        num_segments
    ));
    // SAFETY: contract PASSED ON.
    unsafe {
        sync(ia_handle, local_segments, num_segments, |open, segments| {
            open.ia.lmr_sync_rdma_read(segments)
        })
    }
}

/// `dat_lmr_sync_rdma_write`.
///
/// # Safety
/// That of [`dat_lmr_sync_rdma_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_lmr_sync_rdma_write(
    ia_handle: DatHandle,
    local_segments: *const LmrTriplet,
    num_segments: u64,
) -> DatReturn {
    foreign!(lmr_sync_rdma_write_func(
        ia_handle,
        local_segments,
        num_segments
    ));
    // SAFETY: contract PASSED ON.
    unsafe {
        sync(ia_handle, local_segments, num_segments, |open, segments| {
            open.ia.lmr_sync_rdma_write(segments)
        })
    }
}

/// `dat_rmr_create`.
///
/// # Safety
/// `rmr_handle` is null or points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_rmr_create(
    pz_handle: DatHandle,
    rmr_handle: *mut DatHandle,
) -> DatReturn {
    foreign!(rmr_create_func(pz_handle, rmr_handle));
    call(|| {
        let (adapter, ia, pz) = owned::<PzHandle>(pz_handle)?;
        given(rmr_handle, Subtype::Arg2)?;
        let reserved = Reserved::new()?;
        let rmr = adapter.with_instance(ia, |open| {
            let rmr = open.ia.rmr_create(pz)?;
            Ok(open.enter(adapter, reserved, rmr))
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(rmr_handle, rmr) };
        Ok(())
    })
}

/// `dat_rmr_query`.
///
/// # Safety
/// `rmr_param` is null or points to a `DAT_RMR_PARAM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_rmr_query(
    rmr_handle: DatHandle,
    rmr_param_mask: u32,
    rmr_param: *mut CRmrParam,
) -> DatReturn {
    foreign!(rmr_query_func(rmr_handle, rmr_param_mask, rmr_param));
    call(|| {
        let (adapter, rmr) = look_up::<RmrHandle>(rmr_handle)?;
        mask(rmr_param_mask.into(), 0x1f, Subtype::Arg2)?;
        given(rmr_param, Subtype::Arg3)?;
        let param = adapter.with(|open| {
            let param = open.ia.rmr_query(rmr)?;
            let pz_handle = open.name(adapter, param.pz);
            let triplet = param.binding.map(|binding| binding.lmr_triplet);
            Ok(CRmrParam {
                ia_handle: open.ia_handle(),
                pz_handle,
                lmr_triplet: CLmrTriplet {
                    lmr_context: triplet.map_or(0, |triplet| triplet.lmr_context),
                    pad: 0,
                    virtual_address: triplet.map_or(0, |triplet| triplet.virtual_address),
                    segment_length: triplet.map_or(0, |triplet| triplet.segment_length),
                },
                mem_priv: param.binding.map_or(0, |binding| binding.privileges.bits()),
                rmr_context: param.binding.map_or(0, |binding| binding.rmr_context),
            })
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(rmr_param, param) };
        Ok(())
    })
}

/// `dat_rmr_bind`.
///
/// # Safety
/// `lmr_triplet` and `rmr_context` are null or point to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_rmr_bind(
    rmr_handle: DatHandle,
    lmr_triplet: *const LmrTriplet,
    mem_privileges: u32,
    ep_handle: DatHandle,
    user_cookie: DatContext,
    completion_flags: u32,
    rmr_context: *mut u32,
) -> DatReturn {
    foreign!(rmr_bind_func(
        rmr_handle,
        lmr_triplet,
        mem_privileges,
        ep_handle: HandleEp,
        user_cookie,
        completion_flags,
        rmr_context,
    ));
    call(|| {
        let (adapter, ia, rmr) = owned::<RmrHandle>(rmr_handle)?;
        given(lmr_triplet, Subtype::Arg2)?;
        given(rmr_context, Subtype::Arg7)?;
        // SAFETY: the pointer is not null, so by contract GIVEN it leads to a value.
        let triplet = unsafe { &*lmr_triplet };
        let privileges = MemPrivFlags::from_bits_retain(mem_privileges);
        let flags = CompletionFlags::from_bits_retain(completion_flags);
        let ep = other::<EpHandle>(ia, ep_handle);
        let context = adapter.with(|open| {
            open.ia
                .rmr_bind(rmr, triplet, privileges, ep, RmrCookie(user_cookie), flags)
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(rmr_context, context) };
        Ok(())
    })
}

/// `dat_rmr_free`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_rmr_free(rmr_handle: DatHandle) -> DatReturn {
    foreign!(rmr_free_func(rmr_handle));
    on(rmr_handle, |open, rmr: RmrHandle| {
        open.ia.rmr_free(rmr)?;
        open.forget(rmr);
        Ok(())
    })
}
