//! The calls of an SRQ, except `dat_srq_post_recv` (in [`hot`](super::hot)).

// UNSAFETY: reads and writes through pointers of a C program.
#![expect(unsafe_code, reason = "the caller's pointers")]

use dat_core::{SrqAttr, SrqHandle, Subtype};

use super::answer::call;
use super::argument::{as_count, count, given, mask, put};
use super::call::{look_up, on, other};
use super::foreign::foreign;
use super::table::{IaName, Reserved};
use super::types::{CSrqAttr, CSrqParam, DatCount, DatHandle, DatReturn};

/// `dat_srq_create`.
///
/// # Safety
/// `srq_attr` and `srq_handle` are null or point to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_srq_create(
    ia_handle: DatHandle,
    pz_handle: DatHandle,
    srq_attr: *const CSrqAttr,
    srq_handle: *mut DatHandle,
) -> DatReturn {
    foreign!(srq_create_func(ia_handle, pz_handle: HandlePz, srq_attr, srq_handle));
    call(|| {
        let (adapter, ia) = look_up::<IaName>(ia_handle)?;
        given(srq_attr, Subtype::Arg3)?;
        given(srq_handle, Subtype::Arg4)?;
        // SAFETY: the pointer is not null, so by contract GIVEN it leads to a value.
        let attr = unsafe { *srq_attr };
        let attr = SrqAttr {
            max_recv_dtos: count(attr.max_recv_dtos, Subtype::Arg3)?,
            max_recv_iov: count(attr.max_recv_iov, Subtype::Arg3)?,
            low_watermark: count(attr.low_watermark, Subtype::Arg3)?,
        };
        let reserved = Reserved::new()?;
        let pz = other(ia, pz_handle);
        let srq = adapter.with_instance(ia, |open| {
            let srq = open.ia.srq_create(pz, attr)?;
            Ok(open.enter(adapter, reserved, srq))
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(srq_handle, srq) };
        Ok(())
    })
}

/// `dat_srq_query`.
///
/// # Safety
/// `srq_param` is null or points to a `DAT_SRQ_PARAM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dat_srq_query(
    srq_handle: DatHandle,
    srq_param_mask: u32,
    srq_param: *mut CSrqParam,
) -> DatReturn {
    foreign!(srq_query_func(srq_handle, srq_param_mask, srq_param));
    call(|| {
        let (adapter, srq) = look_up::<SrqHandle>(srq_handle)?;
        mask(srq_param_mask.into(), 0xff, Subtype::Arg2)?;
        given(srq_param, Subtype::Arg3)?;
        let param = adapter.with(|open| {
            let param = open.ia.srq_query(srq)?;
            Ok(CSrqParam {
                ia_handle: open.ia_handle(),
                // CAST: the discriminant is DAT's number.
                srq_state: param.state as u32,
                pz_handle: open.name(adapter, param.pz),
                max_recv_dtos: as_count(param.max_recv_dtos),
                max_recv_iov: as_count(param.max_recv_iov),
                low_watermark: as_count(param.low_watermark),
                available_dto_count: as_count(param.available_dto_count),
                outstanding_dto_count: as_count(param.outstanding_dto_count),
            })
        })?;
        // SAFETY: contract ROOM.
        unsafe { put(srq_param, param) };
        Ok(())
    })
}

/// `dat_srq_resize`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_srq_resize(srq_handle: DatHandle, srq_max_recv_dto: DatCount) -> DatReturn {
    foreign!(srq_resize_func(srq_handle, srq_max_recv_dto));
    on(srq_handle, |open, srq: SrqHandle| {
        let dtos = count(srq_max_recv_dto, Subtype::Arg2)?;
        open.ia.srq_resize(srq, dtos)
    })
}

/// `dat_srq_set_lw`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_srq_set_lw(srq_handle: DatHandle, low_watermark: DatCount) -> DatReturn {
    foreign!(srq_set_lw_func(srq_handle, low_watermark));
    on(srq_handle, |open, srq: SrqHandle| {
        let mark = count(low_watermark, Subtype::Arg2)?;
        open.ia.srq_set_lw(srq, mark)
    })
}

/// `dat_srq_free`.
#[unsafe(no_mangle)]
pub extern "C" fn dat_srq_free(srq_handle: DatHandle) -> DatReturn {
    foreign!(srq_free_func(srq_handle));
    on(srq_handle, |open, srq: SrqHandle| {
        open.ia.srq_free(srq)?;
        open.forget(srq);
        Ok(())
    })
}
