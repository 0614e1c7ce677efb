//! The calls of PZ, LMR and RMR.

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use core::mem::MaybeUninit;

use dat_core::LmrTriplet;

use super::cells::{known, provider, shown};
use super::made::shown_new;
use super::post::local;
use super::types::{CLmrParam, CLmrTriplet, CRmrParam, SCOPE_PZ, VA};
use super::{code, ia};
use crate::capi;
use crate::capi::types::{
    CPzParam, CRegionDescription, CSharedMemory, DatContext, DatHandle, DatReturn,
};

/// `DAT_MEM_TYPE_LMR`: the region description is the handle of another LMR.
const MEM_TYPE_LMR: u32 = 1;
/// `DAT_MEM_PRIV_LOCAL_READ_FLAG`. InfiniBand regions always have this right, so DAT 2.0 programs do not request it.
const LOCAL_READ: u32 = 0x01;
/// Mask `DAT_LMR_FIELD_ALL` in DAT 2.0, then in DAT 1.2.
const LMR_ALL: [u32; 2] = [0x7ff, 0x3ff];
/// Mask `DAT_RMR_FIELD_ALL` in DAT 2.0, then in DAT 1.2.
const RMR_ALL: [u32; 2] = [0x7f, 0x1f];

/// # Safety
/// `pz_handle` is null or points to a handle.
pub(super) unsafe extern "C" fn pz_create(
    ia_handle: DatHandle,
    pz_handle: *mut DatHandle,
) -> DatReturn {
    let make = |place| {
        // SAFETY: `place` is null or points to a local variable.
        unsafe { capi::dat_pz_create(known(ia_handle), place) }
    };
    // SAFETY: contract ROOM; the DAT 1.2 function in `make` refuses null.
    let answer = unsafe { shown_new(ia_handle, pz_handle, make) };
    code::shown(answer)
}

/// # Safety
/// `pz_param` is null or points to a `DAT_PZ_PARAM`.
pub(super) unsafe extern "C" fn pz_query(
    pz_handle: DatHandle,
    pz_param_mask: u32,
    pz_param: *mut CPzParam,
) -> DatReturn {
    // SAFETY: contract PASSED ON.
    let answer = unsafe { capi::dat_pz_query(known(pz_handle), pz_param_mask, pz_param) };
    if answer == 0 {
        // SAFETY: the call succeeded, so the pointer is not null and has been written through; contract ROOM.
        let param = unsafe { &mut *pz_param };
        param.ia_handle = shown(provider(pz_handle), param.ia_handle);
    }
    code::shown(answer)
}

pub(super) extern "C" fn pz_free(pz_handle: DatHandle) -> DatReturn {
    code::shown(capi::dat_pz_free(known(pz_handle)))
}

/// # Safety
/// The conditions of the DAT 1.2 function that this function calls.
pub(super) unsafe extern "C" fn lmr_create(
    ia_handle: DatHandle,
    mem_type: u32,
    region_description: CRegionDescription,
    length: u64,
    pz_handle: DatHandle,
    mem_privileges: u32,
    va_type: u32,
    lmr_handle: *mut DatHandle,
    lmr_context: *mut u32,
    rmr_context: *mut u32,
    registered_size: *mut u64,
    registered_address: *mut u64,
) -> DatReturn {
    if va_type != VA {
        return code::not_supported();
    }
    let region = CSharedMemory {
        virtual_address: match mem_type {
            MEM_TYPE_LMR => known(region_description.virtual_address),
            _ => region_description.virtual_address,
        },
        ..region_description
    };
    let make = |place| {
        // SAFETY: contract PASSED ON; `place` is null or points to a local variable.
        unsafe {
            capi::dat_lmr_create(
                known(ia_handle),
                mem_type,
                region,
                length,
                known(pz_handle),
                mem_privileges | LOCAL_READ,
                place,
                lmr_context,
                rmr_context,
                registered_size,
                registered_address,
            )
        }
    };
    // SAFETY: contract ROOM; the DAT 1.2 function in `make` refuses null.
    let answer = unsafe { shown_new(ia_handle, lmr_handle, make) };
    code::moved(answer, &[1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12])
}

/// # Safety
/// `lmr_param` is null or points to a `DAT_LMR_PARAM`.
pub(super) unsafe extern "C" fn lmr_query(
    lmr_handle: DatHandle,
    lmr_param_mask: u32,
    lmr_param: *mut CLmrParam,
) -> DatReturn {
    if lmr_param_mask & !LMR_ALL[0] != 0 {
        return code::bad_argument(2);
    }
    if lmr_param.is_null() {
        return code::bad_argument(3);
    }
    let mut param = MaybeUninit::uninit();
    // SAFETY: the pointer leads to a local variable.
    let answer = unsafe { capi::dat_lmr_query(known(lmr_handle), LMR_ALL[1], param.as_mut_ptr()) };
    if answer == 0 {
        // SAFETY: the call succeeded, so it has written the value.
        let param = unsafe { param.assume_init() };
        let of = provider(lmr_handle);
        let first = param.region_desc.virtual_address;
        let param = CLmrParam {
            ia_handle: shown(of, param.ia_handle),
            mem_type: param.mem_type,
            region_desc: CSharedMemory {
                virtual_address: match param.mem_type {
                    MEM_TYPE_LMR => shown(of, first),
                    _ => first,
                },
                ..param.region_desc
            },
            length: param.length,
            pz_handle: shown(of, param.pz_handle),
            mem_priv: param.mem_priv,
            va_type: VA,
            lmr_context: param.lmr_context,
            rmr_context: param.rmr_context,
            registered_size: param.registered_size,
            registered_address: param.registered_address,
        };
        // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
        unsafe { lmr_param.write(param) };
    }
    code::shown(answer)
}

pub(super) extern "C" fn lmr_free(lmr_handle: DatHandle) -> DatReturn {
    code::shown(capi::dat_lmr_free(known(lmr_handle)))
}

/// Converts segments of DAT 2.0 to a vector of DAT 1.2 segments. Allocates memory, so posts do not use this function.
///
/// # Safety
/// `segments` is null or points to `count` segments.
unsafe fn segments(segments: *const CLmrTriplet, count: u64) -> Result<Vec<LmrTriplet>, DatReturn> {
    let bytes = size_of::<LmrTriplet>() as u64;
    let count = usize::try_from(count)
        .ok()
        .filter(|&count| (count as u64) < isize::MAX as u64 / bytes)
        .ok_or(code::bad_argument(3))?;
    if count > 0 && segments.is_null() {
        return Err(code::bad_argument(2));
    }
    // SAFETY: `at` is less than `count`, so contract GIVEN covers this segment.
    Ok((0..count)
        .map(|at| local(unsafe { &*segments.wrapping_add(at) }))
        .collect())
}

/// # Safety
/// `local_segments` is null or points to `num_segments` segments.
pub(super) unsafe extern "C" fn lmr_sync_rdma_read(
    ia_handle: DatHandle,
    local_segments: *const CLmrTriplet,
    num_segments: u64,
) -> DatReturn {
    // SAFETY: contract GIVEN.
    match unsafe { segments(local_segments, num_segments) } {
        // SAFETY: `list` is a local vector of `num_segments` segments.
        Ok(list) => code::shown(unsafe {
            capi::dat_lmr_sync_rdma_read(known(ia_handle), list.as_ptr(), num_segments)
        }),
        Err(refused) => refused,
    }
}

/// # Safety
/// That of [`lmr_sync_rdma_read`].
pub(super) unsafe extern "C" fn lmr_sync_rdma_write(
    ia_handle: DatHandle,
    local_segments: *const CLmrTriplet,
    num_segments: u64,
) -> DatReturn {
    // SAFETY: contract GIVEN.
    match unsafe { segments(local_segments, num_segments) } {
        // SAFETY: `list` is a local vector of `num_segments` segments.
        Ok(list) => code::shown(unsafe {
            capi::dat_lmr_sync_rdma_write(known(ia_handle), list.as_ptr(), num_segments)
        }),
        Err(refused) => refused,
    }
}

/// # Safety
/// `rmr_handle` is null or points to a handle.
pub(super) unsafe extern "C" fn rmr_create(
    pz_handle: DatHandle,
    rmr_handle: *mut DatHandle,
) -> DatReturn {
    let make = |place| {
        // SAFETY: `place` is null or points to a local variable.
        unsafe { capi::dat_rmr_create(known(pz_handle), place) }
    };
    // SAFETY: contract ROOM; the DAT 1.2 function in `make` refuses null.
    let answer = unsafe { shown_new(pz_handle, rmr_handle, make) };
    code::shown(answer)
}

/// # Safety
/// `rmr_param` is null or points to a `DAT_RMR_PARAM`.
pub(super) unsafe extern "C" fn rmr_query(
    rmr_handle: DatHandle,
    rmr_param_mask: u32,
    rmr_param: *mut CRmrParam,
) -> DatReturn {
    if rmr_param_mask & !RMR_ALL[0] != 0 {
        return code::bad_argument(2);
    }
    if rmr_param.is_null() {
        return code::bad_argument(3);
    }
    let mut param = MaybeUninit::uninit();
    // SAFETY: the pointer leads to a local variable.
    let answer = unsafe { capi::dat_rmr_query(known(rmr_handle), RMR_ALL[1], param.as_mut_ptr()) };
    if answer == 0 {
        // SAFETY: the call succeeded, so it has written the value.
        let param = unsafe { param.assume_init() };
        let of = provider(rmr_handle);
        let param = CRmrParam {
            ia_handle: shown(of, param.ia_handle),
            pz_handle: shown(of, param.pz_handle),
            lmr_triplet: CLmrTriplet {
                virtual_address: param.lmr_triplet.virtual_address,
                segment_length: ia::size(param.lmr_triplet.segment_length),
                lmr_context: param.lmr_triplet.lmr_context,
            },
            mem_priv: param.mem_priv,
            rmr_context: param.rmr_context,
            rmr_scope: SCOPE_PZ,
            va_type: VA,
        };
        // SAFETY: the pointer is not null, so by contract ROOM it leads to memory for the value.
        unsafe { rmr_param.write(param) };
    }
    code::shown(answer)
}

/// Binds an RMR to a part of an LMR. The program names the LMR twice: by `lmr_handle`, and by the LMR context in the
/// triplet. Unless the length is 0, both must name the same LMR.
///
/// # Safety
/// `lmr_triplet` and `rmr_context` are null or point to what the header says.
pub(super) unsafe extern "C" fn rmr_bind(
    rmr_handle: DatHandle,
    lmr_handle: DatHandle,
    lmr_triplet: *const CLmrTriplet,
    mem_privileges: u32,
    va_type: u32,
    ep_handle: DatHandle,
    user_cookie: DatContext,
    completion_flags: u32,
    rmr_context: *mut u32,
) -> DatReturn {
    if va_type != VA {
        return code::not_supported();
    }
    // SAFETY: contract GIVEN.
    let Some(given) = (unsafe { lmr_triplet.as_ref() }) else {
        return code::bad_argument(3);
    };
    if given.segment_length != 0 {
        let mut lmr = MaybeUninit::uninit();
        // SAFETY: the pointer leads to a local variable.
        let answer =
            unsafe { capi::dat_lmr_query(known(lmr_handle), LMR_ALL[1], lmr.as_mut_ptr()) };
        if answer != 0 {
            return code::shown(answer);
        }
        // SAFETY: the call succeeded, so it has written the value.
        let lmr = unsafe { lmr.assume_init() };
        if lmr.lmr_context != given.lmr_context {
            return code::bad_argument(3);
        }
    }
    let triplet = local(given);
    // SAFETY: `triplet` is a local variable; contract PASSED ON for `rmr_context`.
    let answer = unsafe {
        capi::dat_rmr_bind(
            known(rmr_handle),
            &raw const triplet,
            mem_privileges,
            known(ep_handle),
            user_cookie,
            completion_flags,
            rmr_context,
        )
    };
    code::moved(answer, &[1, 3, 4, 6, 7, 8, 9])
}

pub(super) extern "C" fn rmr_free(rmr_handle: DatHandle) -> DatReturn {
    code::shown(capi::dat_rmr_free(known(rmr_handle)))
}
