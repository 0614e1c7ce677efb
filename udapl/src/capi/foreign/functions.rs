//! The table of functions of a provider of DAT 1.2 (`struct dat_provider` of `dat/udat_redirection.h`), in the header's
//! order.

use core::ffi::{c_char, c_void};
use core::mem::{offset_of, size_of};

use dat_core::{LmrTriplet, RmrTriplet};

use crate::capi::types::{
    CAgent, CCnoParam, CCrParam, CEpAttr, CEpParam, CEvdParam, CEvent, CIaAttr, CLmrParam,
    CProviderAttr, CPspParam, CPzParam, CRegionDescription, CRmrParam, CRspParam, CSrqAttr,
    CSrqParam, DatBoolean, DatContext, DatCount, DatHandle, DatReturn, Layout,
};

macro_rules! functions {
    ($($member:ident @ $at:literal: fn($($argument:ty),* $(,)?),)*) => {
        /// Functions of a provider, each with the type that the header declares; `None` if the provider lacks it.
        #[derive(Clone, Copy, Default)]
        #[repr(C)]
        pub(in crate::capi) struct Functions {
            $(pub(in crate::capi) $member: Option<unsafe extern "C" fn($($argument),*) -> DatReturn>,)*
        }
        $(const _: () = assert!(offset_of!(CProvider, functions) + offset_of!(Functions, $member) == $at);)*

        /// Layout of `struct dat_provider`, which a test compares with the header as a C compiler sees it.
        pub const LAYOUT: Layout = (
            "struct dat_provider",
            size_of::<CProvider>(),
            &[("device_name", 0), ("extension", 8), $((stringify!($member), $at)),*],
        );
    };
}

/// `DAT_PROVIDER`.
#[repr(C)]
pub struct CProvider {
    device_name: *const c_char,
    extension: *mut c_void,
    pub(super) functions: Functions,
}
const _: () = assert!(size_of::<CProvider>() == 560);

functions! {
ia_open_func @ 16: fn(*const c_char, DatCount, *mut DatHandle, *mut DatHandle),
ia_query_func @ 24: fn(DatHandle, *mut DatHandle, u64, *mut CIaAttr, u64, *mut CProviderAttr),
ia_close_func @ 32: fn(DatHandle, u32),
set_consumer_context_func @ 40: fn(DatHandle, DatContext),
get_consumer_context_func @ 48: fn(DatHandle, *mut DatContext),
get_handle_type_func @ 56: fn(DatHandle, *mut u32),
cno_create_func @ 64: fn(DatHandle, CAgent, *mut DatHandle),
cno_modify_agent_func @ 72: fn(DatHandle, CAgent),
cno_query_func @ 80: fn(DatHandle, u32, *mut CCnoParam),
cno_free_func @ 88: fn(DatHandle),
cno_wait_func @ 96: fn(DatHandle, u32, *mut DatHandle),
cr_query_func @ 104: fn(DatHandle, u32, *mut CCrParam),
cr_accept_func @ 112: fn(DatHandle, DatHandle, DatCount, *const c_void),
cr_reject_func @ 120: fn(DatHandle),
cr_handoff_func @ 128: fn(DatHandle, u64),
evd_create_func @ 136: fn(DatHandle, DatCount, DatHandle, u32, *mut DatHandle),
evd_query_func @ 144: fn(DatHandle, u32, *mut CEvdParam),
evd_modify_cno_func @ 152: fn(DatHandle, DatHandle),
evd_enable_func @ 160: fn(DatHandle),
evd_disable_func @ 168: fn(DatHandle),
evd_wait_func @ 176: fn(DatHandle, u32, DatCount, *mut CEvent, *mut DatCount),
evd_resize_func @ 184: fn(DatHandle, DatCount),
evd_post_se_func @ 192: fn(DatHandle, *const CEvent),
evd_dequeue_func @ 200: fn(DatHandle, *mut CEvent),
evd_free_func @ 208: fn(DatHandle),
ep_create_func @ 216: fn(
    DatHandle,
    DatHandle,
    DatHandle,
    DatHandle,
    DatHandle,
    *const CEpAttr,
    *mut DatHandle,
),
ep_query_func @ 224: fn(DatHandle, u64, *mut CEpParam),
ep_modify_func @ 232: fn(DatHandle, u64, *const CEpParam),
ep_connect_func @ 240: fn(
    DatHandle,
    *const libc::sockaddr,
    u64,
    u32,
    DatCount,
    *const c_void,
    u32,
    u32,
),
ep_dup_connect_func @ 248: fn(DatHandle, DatHandle, u32, DatCount, *const c_void, u32),
ep_disconnect_func @ 256: fn(DatHandle, u32),
ep_post_send_func @ 264: fn(DatHandle, DatCount, *const LmrTriplet, DatContext, u32),
ep_post_recv_func @ 272: fn(DatHandle, DatCount, *const LmrTriplet, DatContext, u32),
ep_post_rdma_read_func @ 280: fn(
    DatHandle,
    DatCount,
    *const LmrTriplet,
    DatContext,
    *const RmrTriplet,
    u32,
),
ep_post_rdma_write_func @ 288: fn(
    DatHandle,
    DatCount,
    *const LmrTriplet,
    DatContext,
    *const RmrTriplet,
    u32,
),
ep_get_status_func @ 296: fn(DatHandle, *mut u32, *mut DatBoolean, *mut DatBoolean),
ep_free_func @ 304: fn(DatHandle),
lmr_create_func @ 312: fn(
    DatHandle,
    u32,
    CRegionDescription,
    u64,
    DatHandle,
    u32,
    *mut DatHandle,
    *mut u32,
    *mut u32,
    *mut u64,
    *mut u64,
),
lmr_query_func @ 320: fn(DatHandle, u32, *mut CLmrParam),
lmr_free_func @ 328: fn(DatHandle),
rmr_create_func @ 336: fn(DatHandle, *mut DatHandle),
rmr_query_func @ 344: fn(DatHandle, u32, *mut CRmrParam),
rmr_bind_func @ 352: fn(
    DatHandle,
    *const LmrTriplet,
    u32,
    DatHandle,
    DatContext,
    u32,
    *mut u32,
),
rmr_free_func @ 360: fn(DatHandle),
psp_create_func @ 368: fn(DatHandle, u64, DatHandle, u32, *mut DatHandle),
psp_query_func @ 376: fn(DatHandle, u32, *mut CPspParam),
psp_free_func @ 384: fn(DatHandle),
rsp_create_func @ 392: fn(DatHandle, u64, DatHandle, DatHandle, *mut DatHandle),
rsp_query_func @ 400: fn(DatHandle, u32, *mut CRspParam),
rsp_free_func @ 408: fn(DatHandle),
pz_create_func @ 416: fn(DatHandle, *mut DatHandle),
pz_query_func @ 424: fn(DatHandle, u32, *mut CPzParam),
pz_free_func @ 432: fn(DatHandle),
psp_create_any_func @ 440: fn(DatHandle, *mut u64, DatHandle, u32, *mut DatHandle),
ep_reset_func @ 448: fn(DatHandle),
evd_set_unwaitable_func @ 456: fn(DatHandle),
evd_clear_unwaitable_func @ 464: fn(DatHandle),
lmr_sync_rdma_read_func @ 472: fn(DatHandle, *const LmrTriplet, u64),
lmr_sync_rdma_write_func @ 480: fn(DatHandle, *const LmrTriplet, u64),
ep_create_with_srq_func @ 488: fn(
    DatHandle,
    DatHandle,
    DatHandle,
    DatHandle,
    DatHandle,
    DatHandle,
    *const CEpAttr,
    *mut DatHandle,
),
ep_recv_query_func @ 496: fn(DatHandle, *mut DatCount, *mut DatCount),
ep_set_watermark_func @ 504: fn(DatHandle, DatCount, DatCount),
srq_create_func @ 512: fn(DatHandle, DatHandle, *const CSrqAttr, *mut DatHandle),
srq_free_func @ 520: fn(DatHandle),
srq_post_recv_func @ 528: fn(DatHandle, DatCount, *const LmrTriplet, DatContext),
srq_query_func @ 536: fn(DatHandle, u32, *mut CSrqParam),
srq_resize_func @ 544: fn(DatHandle, DatCount),
srq_set_lw_func @ 552: fn(DatHandle, DatCount),}
