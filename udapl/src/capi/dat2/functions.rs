//! The table of functions (`struct dat_provider` of `udat_redirection.h`), in the header's order.

use core::ffi::c_void;

use dat_core::DatResult;

use super::provider::{FUNCTIONS, Functions, register};
use super::{cno, connect, ep, evd, ext, generic, ia, memory, post, srq};
use crate::capi::types::Layout;
use crate::registry::ProviderInfo;

/// Registers an adapter for the device that `instance_data` names. If `instance_data` is empty, the adapter's name is
/// also the device's name.
///
/// # Errors
/// DAT_INVALID_STATE: the process has not loaded the registry of DAT 2.0. DAT_INTERNAL_ERROR: that registry refused.
/// Those of [`fork::not_a_child`](crate::capi::fork::not_a_child).
pub(in crate::capi) fn init(info: ProviderInfo, instance_data: &str) -> DatResult<()> {
    register(info, instance_data, TABLE)
}

macro_rules! table {
    ($($member:ident @ $at:literal = $function:path,)*) => {
        /// This library's functions for the members of the table. Each has the type that the header declares.
        const TABLE: Functions = [$($function as *const c_void,)*];

        /// Layout of `struct dat_provider`, which a test compares with the header as a C compiler sees it.
        pub const LAYOUT: Layout = (
            "struct dat_provider",
            648,
            &[("device_name", 0), ("extension", 8), $((stringify!($member), $at)),*],
        );
    };
}

const _: () = {
    let mut at = 0;
    while at < FUNCTIONS {
        assert!(LAYOUT.2[at + 2].1 == 16 + at * size_of::<*const c_void>());
        at += 1;
    }
    assert!(LAYOUT.2.len() == FUNCTIONS + 2);
};

table! {
    ia_open_func @ 16 = ia::open,
    ia_query_func @ 24 = ia::query,
    ia_close_func @ 32 = ia::close,
    set_consumer_context_func @ 40 = generic::set_consumer_context,
    get_consumer_context_func @ 48 = generic::get_consumer_context,
    get_handle_type_func @ 56 = generic::get_handle_type,
    cno_create_func @ 64 = cno::create,
    cno_modify_agent_func @ 72 = cno::modify_agent,
    cno_query_func @ 80 = cno::query,
    cno_free_func @ 88 = cno::free,
    cno_wait_func @ 96 = cno::wait,
    cr_query_func @ 104 = connect::cr_query,
    cr_accept_func @ 112 = connect::cr_accept,
    cr_reject_func @ 120 = connect::cr_reject,
    cr_handoff_func @ 128 = connect::cr_handoff,
    evd_create_func @ 136 = evd::create,
    evd_query_func @ 144 = evd::query,
    evd_modify_cno_func @ 152 = evd::modify_cno,
    evd_enable_func @ 160 = evd::enable,
    evd_disable_func @ 168 = evd::disable,
    evd_wait_func @ 176 = evd::wait,
    evd_resize_func @ 184 = evd::resize,
    evd_post_se_func @ 192 = evd::post_se,
    evd_dequeue_func @ 200 = evd::dequeue,
    evd_free_func @ 208 = evd::free,
    ep_create_func @ 216 = ep::create,
    ep_query_func @ 224 = ep::query,
    ep_modify_func @ 232 = ep::modify,
    ep_connect_func @ 240 = connect::ep_connect,
    ep_dup_connect_func @ 248 = connect::ep_dup_connect,
    ep_disconnect_func @ 256 = connect::ep_disconnect,
    ep_post_send_func @ 264 = post::send,
    ep_post_recv_func @ 272 = post::recv,
    ep_post_rdma_read_func @ 280 = post::rdma_read,
    ep_post_rdma_write_func @ 288 = post::rdma_write,
    ep_get_status_func @ 296 = ep::get_status,
    ep_free_func @ 304 = ep::free,
    lmr_create_func @ 312 = memory::lmr_create,
    lmr_query_func @ 320 = memory::lmr_query,
    lmr_free_func @ 328 = memory::lmr_free,
    rmr_create_func @ 336 = memory::rmr_create,
    rmr_query_func @ 344 = memory::rmr_query,
    rmr_bind_func @ 352 = memory::rmr_bind,
    rmr_free_func @ 360 = memory::rmr_free,
    psp_create_func @ 368 = connect::psp_create,
    psp_query_func @ 376 = connect::psp_query,
    psp_free_func @ 384 = connect::psp_free,
    rsp_create_func @ 392 = connect::rsp_create,
    rsp_query_func @ 400 = connect::rsp_query,
    rsp_free_func @ 408 = connect::rsp_free,
    pz_create_func @ 416 = memory::pz_create,
    pz_query_func @ 424 = memory::pz_query,
    pz_free_func @ 432 = memory::pz_free,
    psp_create_any_func @ 440 = connect::psp_create_any,
    ep_reset_func @ 448 = ep::reset,
    evd_set_unwaitable_func @ 456 = evd::set_unwaitable,
    evd_clear_unwaitable_func @ 464 = evd::clear_unwaitable,
    lmr_sync_rdma_read_func @ 472 = memory::lmr_sync_rdma_read,
    lmr_sync_rdma_write_func @ 480 = memory::lmr_sync_rdma_write,
    ep_create_with_srq_func @ 488 = ep::create_with_srq,
    ep_recv_query_func @ 496 = ep::recv_query,
    ep_set_watermark_func @ 504 = ep::set_watermark,
    srq_create_func @ 512 = srq::create,
    srq_free_func @ 520 = srq::free,
    srq_post_recv_func @ 528 = srq::post_recv,
    srq_query_func @ 536 = srq::query,
    srq_resize_func @ 544 = srq::resize,
    srq_set_lw_func @ 552 = srq::set_lw,
    csp_create_func @ 560 = generic::csp_create,
    csp_query_func @ 568 = generic::csp_query,
    csp_free_func @ 576 = generic::csp_free,
    ep_common_connect_func @ 584 = generic::ep_common_connect,
    rmr_create_for_ep_func @ 592 = generic::rmr_create_for_ep,
    ep_post_send_with_invalidate_func @ 600 = post::send_with_invalidate,
    ep_post_rdma_read_to_rmr_func @ 608 = generic::ep_post_rdma_read_to_rmr,
    cno_fd_create_func @ 616 = generic::cno_fd_create,
    cno_trigger_func @ 624 = generic::cno_trigger,
    ia_ha_related_func @ 632 = generic::ia_ha_related,
    handle_extendedop_func @ 640 = ext::extended_op,
}
