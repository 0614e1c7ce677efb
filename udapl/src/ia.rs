//! The interface adapter, with the provider that this library has.

use dat_mlx::MlxProvider;

/// An interface adapter on a ConnectX function: one instance of the adapter, with all objects created in it.
///
/// Every call of DAT is a method, under DAT's name without `dat_`. Methods take the `Ia` by reference, so one thread at
/// a time uses it; other threads open instances of their own ([`Adapter::instance`](crate::Adapter::instance)). Nothing
/// happens in the background: the IA processes events in calls that wait or poll, such as [`evd_wait`](Ia::evd_wait),
/// [`evd_poll`](Ia::evd_poll) and an [`evd_dequeue`](Ia::evd_dequeue) that finds its queue empty, and in
/// [`progress`](Ia::progress).
///
/// [`ia_open`](crate::ia_open) returns an `Ia`. [`ia_close`](crate::ia_close) closes it and frees everything in order.
/// Dropping the `Ia` closes it abruptly. If it is the adapter's last instance, or if the thread panics, the device is
/// stopped.
///
/// # Calls by object
///
/// In each entry, the calls that make, query, change or end an object precede the semicolon; the calls that use the
/// object follow it.
///
/// - Adapter: [`query`](Ia::query), [`async_evd`](Ia::async_evd), [`instances`](Ia::instances);
///   [`progress`](Ia::progress), [`last_device_error`](Ia::last_device_error).
/// - Protection zone: [`pz_create`](Ia::pz_create), [`pz_query`](Ia::pz_query), [`pz_free`](Ia::pz_free).
/// - Memory (LMR): [`lmr_create`](Ia::lmr_create), [`lmr_create_from_lmr`](Ia::lmr_create_from_lmr),
///   [`lmr_create_shared`](Ia::lmr_create_shared), [`lmr_query`](Ia::lmr_query), [`lmr_memory`](Ia::lmr_memory),
///   [`lmr_free`](Ia::lmr_free);
///   [`lmr_slice`](Ia::lmr_slice), [`lmr_sync_rdma_read`](Ia::lmr_sync_rdma_read),
///   [`lmr_sync_rdma_write`](Ia::lmr_sync_rdma_write).
/// - Window (RMR): [`rmr_create`](Ia::rmr_create), [`rmr_query`](Ia::rmr_query), [`rmr_free`](Ia::rmr_free);
///   [`rmr_bind`](Ia::rmr_bind).
/// - Endpoint: [`ep_create`](Ia::ep_create), [`ep_create_with_srq`](Ia::ep_create_with_srq),
///   [`ep_query`](Ia::ep_query), [`ep_modify`](Ia::ep_modify), [`ep_get_status`](Ia::ep_get_status),
///   [`ep_free`](Ia::ep_free).
/// - Endpoint, its connection: [`ep_private_data`](Ia::ep_private_data), [`ep_end_cause`](Ia::ep_end_cause);
///   [`ep_connect`](Ia::ep_connect), [`ep_dup_connect`](Ia::ep_dup_connect), [`ep_disconnect`](Ia::ep_disconnect),
///   [`ep_reset`](Ia::ep_reset).
/// - Endpoint, its requests: [`ep_inline_limit`](Ia::ep_inline_limit); [`ep_post_send`](Ia::ep_post_send),
///   [`ep_post_send_inline`](Ia::ep_post_send_inline), [`ep_post_rdma_write`](Ia::ep_post_rdma_write),
///   [`ep_post_rdma_read`](Ia::ep_post_rdma_read), [`batch`](Ia::batch).
/// - Endpoint, its receives: [`ep_recv_query`](Ia::ep_recv_query), [`ep_set_watermark`](Ia::ep_set_watermark);
///   [`ep_post_recv`](Ia::ep_post_recv).
/// - Endpoint, beyond DAT 1.2: [`has_atomics`](Ia::has_atomics);
///   [`ep_post_send_immediate`](Ia::ep_post_send_immediate), [`ep_post_send_invalidate`](Ia::ep_post_send_invalidate),
///   [`ep_post_send_inline_immediate`](Ia::ep_post_send_inline_immediate),
///   [`ep_post_send_inline_invalidate`](Ia::ep_post_send_inline_invalidate),
///   [`ep_post_rdma_write_immediate`](Ia::ep_post_rdma_write_immediate), [`ep_post_fetch_add`](Ia::ep_post_fetch_add),
///   [`ep_post_compare_swap`](Ia::ep_post_compare_swap).
/// - Shared receive queue: [`srq_create`](Ia::srq_create), [`srq_query`](Ia::srq_query),
///   [`srq_resize`](Ia::srq_resize), [`srq_set_lw`](Ia::srq_set_lw), [`srq_free`](Ia::srq_free);
///   [`srq_post_recv`](Ia::srq_post_recv), [`srq_batch`](Ia::srq_batch).
/// - Event dispatcher: [`evd_create`](Ia::evd_create), [`evd_create_with_cno`](Ia::evd_create_with_cno),
///   [`evd_query`](Ia::evd_query), [`evd_resize`](Ia::evd_resize), [`evd_free`](Ia::evd_free);
///   [`evd_dequeue`](Ia::evd_dequeue), [`evd_poll`](Ia::evd_poll), [`evd_wait`](Ia::evd_wait),
///   [`evd_post_se`](Ia::evd_post_se).
/// - Event dispatcher, its modes and its CNO: [`evd_modify_cno`](Ia::evd_modify_cno), [`evd_enable`](Ia::evd_enable),
///   [`evd_disable`](Ia::evd_disable); [`evd_set_unwaitable`](Ia::evd_set_unwaitable),
///   [`evd_clear_unwaitable`](Ia::evd_clear_unwaitable).
/// - Event dispatcher, waits in steps: [`evd_wait_begin`](Ia::evd_wait_begin), [`evd_wait_check`](Ia::evd_wait_check),
///   [`evd_wait_cancel`](Ia::evd_wait_cancel).
/// - Event loop: [`descriptor`](Ia::descriptor); [`arm`](Ia::arm).
/// - Notification object: [`cno_create`](Ia::cno_create), [`cno_query`](Ia::cno_query),
///   [`cno_modify_agent`](Ia::cno_modify_agent), [`cno_free`](Ia::cno_free); [`cno_wait`](Ia::cno_wait), and in steps
///   [`cno_wait_begin`](Ia::cno_wait_begin), [`cno_wait_check`](Ia::cno_wait_check),
///   [`cno_wait_cancel`](Ia::cno_wait_cancel).
/// - Public service point: [`psp_create`](Ia::psp_create), [`psp_create_any`](Ia::psp_create_any),
///   [`psp_create_shared`](Ia::psp_create_shared), [`psp_query`](Ia::psp_query), [`psp_free`](Ia::psp_free).
/// - Reserved service point: [`rsp_create`](Ia::rsp_create), [`rsp_query`](Ia::rsp_query), [`rsp_free`](Ia::rsp_free).
/// - Connection request: [`cr_query`](Ia::cr_query); [`cr_accept`](Ia::cr_accept), [`cr_reject`](Ia::cr_reject),
///   [`cr_reject_with`](Ia::cr_reject_with), [`cr_handoff`](Ia::cr_handoff).
/// - Any object: [`get_handle_type`](Ia::get_handle_type); [`set_consumer_context`](Ia::set_consumer_context),
///   [`get_consumer_context`](Ia::get_consumer_context).
/// - Network: [`addresses`](Ia::addresses); [`address_add`](Ia::address_add), [`address_remove`](Ia::address_remove),
///   [`echo`](Ia::echo), [`echo_answered`](Ia::echo_answered).
/// - Counters and times: [`stats`](Ia::stats), [`ep_stats`](Ia::ep_stats), [`evd_stats`](Ia::evd_stats),
///   [`srq_stats`](Ia::srq_stats); [`measure`](Ia::measure), [`latencies`](Ia::latencies).
/// - Flight recorder: [`recorder_dump`](Ia::recorder_dump); [`recorder_start`](Ia::recorder_start),
///   [`recorder_stop`](Ia::recorder_stop), [`recorder_keep`](Ia::recorder_keep).
pub type Ia = dat_core::Ia<MlxProvider>;
