//! Table of calls whose first argument is a handle.

// UNSAFETY: calls of the C ABI; the root of each test program expects the lint `unsafe_code`.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use udapl::capi::types::*;
use udapl::capi::*;
use udapl::memory::LmrTriplet;

use crate::support::{ABRUPT, GRACEFUL, NO_AGENT, c};

/// Name of a function, `DAT_INVALID_HANDLE` subtype of its first argument, and the call with a given first argument.
pub type Call = (&'static str, u32, fn(DatHandle) -> DatReturn);

/// Evaluates `$call` with `$to` as a pointer to uninitialized memory for an `$out`.
macro_rules! out {
    ($out:ty, |$to:ident| $call:expr) => {{
        let mut room = MaybeUninit::<$out>::uninit();
        let $to = room.as_mut_ptr();
        c!($call)
    }};
}

/// Calls whose first argument is a handle of one kind, each with the kind's subtype.
pub const CALLS: &[Call] = &[
    ("dat_ia_query", 11, |h| {
        out!(CIaAttr, |to| dat_ia_query(
            h,
            null_mut(),
            1,
            to,
            0,
            null_mut()
        ))
    }),
    ("dat_pz_create", 11, |h| {
        out!(DatHandle, |to| dat_pz_create(h, to))
    }),
    ("dat_evd_create", 11, |h| {
        out!(DatHandle, |to| dat_evd_create(h, 8, null_mut(), 1, to))
    }),
    ("dat_cno_create", 11, |h| {
        out!(DatHandle, |to| dat_cno_create(h, NO_AGENT, to))
    }),
    ("dat_ep_create", 11, |h| {
        let (no, attr) = (null_mut(), null());
        out!(DatHandle, |to| dat_ep_create(h, no, no, no, no, attr, to))
    }),
    ("dat_ep_create_with_srq", 11, |h| {
        let (no, attr) = (null_mut(), null());
        out!(DatHandle, |to| dat_ep_create_with_srq(
            h, no, no, no, no, no, attr, to
        ))
    }),
    ("dat_lmr_create", 11, |h| {
        let nothing = CRegionDescription {
            virtual_address: null_mut(),
            shared_memory_id: null(),
        };
        let (no, of) = (null_mut(), null_mut());
        out!(DatHandle, |to| dat_lmr_create(
            h,
            0,
            nothing,
            0,
            of,
            0,
            to,
            null_mut(),
            null_mut(),
            null_mut(),
            no
        ))
    }),
    ("dat_psp_create", 11, |h| {
        out!(DatHandle, |to| dat_psp_create(h, 1, null_mut(), 0, to))
    }),
    ("dat_psp_create_any", 11, |h| {
        let qualifier = null_mut();
        out!(DatHandle, |to| dat_psp_create_any(
            h,
            qualifier,
            null_mut(),
            0,
            to
        ))
    }),
    ("dat_rsp_create", 11, |h| {
        let no = null_mut();
        out!(DatHandle, |to| dat_rsp_create(h, 1, no, no, to))
    }),
    ("dat_srq_create", 11, |h| {
        out!(DatHandle, |to| dat_srq_create(h, null_mut(), null(), to))
    }),
    ("dat_ia_close", 11, |h| dat_ia_close(h, GRACEFUL)),
    ("dat_lmr_sync_rdma_read", 11, |h| {
        c!(dat_lmr_sync_rdma_read(h, null(), 0))
    }),
    ("dat_lmr_sync_rdma_write", 11, |h| {
        c!(dat_lmr_sync_rdma_write(h, null(), 0))
    }),
    ("dat_ep_query", 12, |h| {
        out!(CEpParam, |to| dat_ep_query(h, 1, to))
    }),
    ("dat_ep_get_status", 12, |h| {
        c!(dat_ep_get_status(h, null_mut(), null_mut(), null_mut()))
    }),
    ("dat_ep_recv_query", 12, |h| {
        c!(dat_ep_recv_query(h, null_mut(), null_mut()))
    }),
    ("dat_ep_set_watermark", 12, |h| {
        dat_ep_set_watermark(h, -1, -1)
    }),
    ("dat_ep_reset", 12, |h| dat_ep_reset(h)),
    ("dat_ep_free", 12, |h| dat_ep_free(h)),
    ("dat_ep_disconnect", 12, |h| dat_ep_disconnect(h, ABRUPT)),
    ("dat_ep_connect", 12, |h| {
        c!(dat_ep_connect(h, null(), 1, 1, 0, null(), 0, 0))
    }),
    ("dat_ep_modify", 12, |h| c!(dat_ep_modify(h, 0, null()))),
    ("dat_ep_dup_connect", 12, |h| {
        c!(dat_ep_dup_connect(h, h, 1, 0, null(), 0))
    }),
    ("dat_ep_post_send", 12, |h| {
        c!(dat_ep_post_send(h, 1, &raw const ZERO, 0, 0))
    }),
    ("dat_ep_post_recv", 12, |h| {
        c!(dat_ep_post_recv(h, 0, null(), 0, 0))
    }),
    ("dat_ep_post_many", 12, |h| {
        c!(dat_ep_post_many(h, 0, null(), null_mut()))
    }),
    ("dat_ep_post_send_immediate", 12, |h| {
        c!(dat_ep_post_send_immediate(h, 0, null(), 0, 0, 0))
    }),
    ("dat_ep_post_send_invalidate", 12, |h| {
        c!(dat_ep_post_send_invalidate(h, 0, null(), 0, 0, 0))
    }),
    ("dat_ep_post_rdma_write_immediate", 12, |h| {
        c!(dat_ep_post_rdma_write_immediate(
            h,
            0,
            null(),
            0,
            null(),
            0,
            0
        ))
    }),
    ("dat_ep_post_fetch_add", 12, |h| {
        c!(dat_ep_post_fetch_add(h, null(), 0, null(), 0, 0))
    }),
    ("dat_ep_post_compare_swap", 12, |h| {
        c!(dat_ep_post_compare_swap(h, null(), 0, null(), 0, 0, 0))
    }),
    ("dat_ep_post_rdma_read", 12, |h| {
        c!(dat_ep_post_rdma_read(h, 1, &raw const ZERO, 0, null(), 0))
    }),
    ("dat_ep_post_rdma_write", 12, |h| {
        c!(dat_ep_post_rdma_write(h, -1, null(), 0, null(), 0))
    }),
    ("dat_lmr_query", 13, |h| {
        out!(CLmrParam, |to| dat_lmr_query(h, 1, to))
    }),
    ("dat_lmr_free", 13, |h| dat_lmr_free(h)),
    ("dat_rmr_query", 14, |h| {
        out!(CRmrParam, |to| dat_rmr_query(h, 1, to))
    }),
    ("dat_rmr_bind", 14, |h| {
        out!(u32, |to| dat_rmr_bind(h, &raw const ZERO, 0, h, 0, 0, to))
    }),
    ("dat_rmr_free", 14, |h| dat_rmr_free(h)),
    ("dat_pz_query", 15, |h| {
        out!(CPzParam, |to| dat_pz_query(h, 1, to))
    }),
    ("dat_rmr_create", 15, |h| {
        out!(DatHandle, |to| dat_rmr_create(h, to))
    }),
    ("dat_pz_free", 15, |h| dat_pz_free(h)),
    ("dat_psp_query", 16, |h| {
        out!(CPspParam, |to| dat_psp_query(h, 1, to))
    }),
    ("dat_psp_free", 16, |h| dat_psp_free(h)),
    ("dat_rsp_query", 17, |h| {
        out!(CRspParam, |to| dat_rsp_query(h, 1, to))
    }),
    ("dat_rsp_free", 17, |h| dat_rsp_free(h)),
    ("dat_cr_query", 18, |h| {
        out!(CCrParam, |to| dat_cr_query(h, 1, to))
    }),
    ("dat_cr_accept", 18, |h| {
        c!(dat_cr_accept(h, null_mut(), 0, null()))
    }),
    ("dat_cr_reject", 18, |h| dat_cr_reject(h)),
    ("dat_cr_reject_with", 18, |h| {
        c!(dat_cr_reject_with(h, 0, null()))
    }),
    ("dat_cr_handoff", 18, |h| dat_cr_handoff(h, 1)),
    ("dat_cno_query", 19, |h| {
        out!(CCnoParam, |to| dat_cno_query(h, 1, to))
    }),
    ("dat_cno_modify_agent", 19, |h| {
        c!(dat_cno_modify_agent(h, NO_AGENT))
    }),
    ("dat_cno_wait", 19, |h| {
        out!(DatHandle, |to| dat_cno_wait(h, 0, to))
    }),
    ("dat_cno_free", 19, |h| dat_cno_free(h)),
    ("dat_srq_query", 25, |h| {
        out!(CSrqParam, |to| dat_srq_query(h, 1, to))
    }),
    ("dat_srq_post_recv", 25, |h| {
        c!(dat_srq_post_recv(h, 1, &raw const ZERO, 0))
    }),
    ("dat_srq_post_many", 25, |h| {
        c!(dat_srq_post_many(h, 0, null(), null_mut()))
    }),
    ("dat_srq_resize", 25, |h| dat_srq_resize(h, 8)),
    ("dat_srq_set_lw", 25, |h| dat_srq_set_lw(h, 1)),
    ("dat_srq_free", 25, |h| dat_srq_free(h)),
    ("dat_evd_query", 26, |h| {
        out!(CEvdParam, |to| dat_evd_query(h, 1, to))
    }),
    ("dat_evd_modify_cno", 26, |h| {
        dat_evd_modify_cno(h, null_mut())
    }),
    ("dat_evd_enable", 26, |h| dat_evd_enable(h)),
    ("dat_evd_disable", 26, |h| dat_evd_disable(h)),
    ("dat_evd_set_unwaitable", 26, |h| dat_evd_set_unwaitable(h)),
    ("dat_evd_clear_unwaitable", 26, |h| {
        dat_evd_clear_unwaitable(h)
    }),
    ("dat_evd_resize", 26, |h| dat_evd_resize(h, 8)),
    ("dat_evd_dequeue", 26, |h| {
        out!(CEvent, |to| dat_evd_dequeue(h, to))
    }),
    ("dat_evd_dequeue_many", 26, |h| {
        c!(dat_evd_dequeue_many(h, 0, null_mut(), null_mut()))
    }),
    ("dat_evd_wait", 26, |h| {
        out!(CEvent, |to| dat_evd_wait(h, 0, 1, to, &raw mut LEFT))
    }),
    ("dat_evd_wait_with_detail", 26, |h| {
        let nothing = null_mut();
        out!(CEvent, |to| dat_evd_wait_with_detail(
            h,
            0,
            1,
            to,
            &raw mut LEFT,
            nothing
        ))
    }),
    ("dat_evd_dequeue_with_detail", 26, |h| {
        let nothing = null_mut();
        out!(CEvent, |to| dat_evd_dequeue_with_detail(h, to, nothing))
    }),
    ("dat_evd_post_se", 26, |h| c!(dat_evd_post_se(h, null()))),
    ("dat_evd_free", 26, |h| dat_evd_free(h)),
    ("dat_ia_park", 11, |h| {
        out!(DatHandle, |to| dat_ia_park(h, 0, null(), to))
    }),
    ("dat_ia_state", 11, |h| {
        out!(i32, |to| dat_ia_state(h, to, null_mut()))
    }),
    ("dat_ia_resume", 26, |h| {
        out!(DatHandle, |to| dat_ia_resume(h, null_mut(), to))
    }),
    ("dat_parked_send", 26, |h| dat_parked_send(h, h, 1)),
    ("dat_parked_query", 26, |h| {
        let no = null_mut();
        c!(dat_parked_query(
            h,
            null_mut(),
            null_mut(),
            0,
            no,
            null_mut()
        ))
    }),
    ("dat_offer_adopt", 26, |h| {
        out!(DatHandle, |to| dat_offer_adopt(h, null_mut(), to))
    }),
    ("dat_offer_refuse", 26, |h| c!(dat_offer_refuse(h, null()))),
    ("dat_handover_free", 26, |h| dat_handover_free(h)),
];

/// Calls whose first argument is a handle of any kind. They refuse it with the subtype 26, `DAT_INVALID_HANDLE1`.
pub const CALLS_OF_ANY: &[Call] = &[
    ("dat_get_handle_type", 26, |h| {
        out!(u32, |to| dat_get_handle_type(h, to))
    }),
    ("dat_get_consumer_context", 26, |h| {
        out!(u64, |to| dat_get_consumer_context(h, to))
    }),
    ("dat_set_consumer_context", 26, |h| {
        dat_set_consumer_context(h, 1)
    }),
    ("dat_get_counters", 26, |h| {
        out!(i32, |to| dat_get_counters(h, 0, null_mut(), to))
    }),
];

pub static ZERO: LmrTriplet = LmrTriplet {
    lmr_context: 0,
    virtual_address: 0,
    segment_length: 0,
};

/// Output argument `nmore` of `dat_evd_wait`. The tests call with invalid handles, so it is never written.
static mut LEFT: i32 = 0;
