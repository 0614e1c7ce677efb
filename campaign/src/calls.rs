//! The 74 calls of DAT 1.2. The coverage counts each call under the state of one object, which this module lists.

/// Object under whose state the coverage counts a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The endpoint of the call, with the nine states of DAT.
    Endpoint,
    /// The adapter of the call, with the states in [`ADAPTER`].
    Adapter,
    /// No object: calls that need no adapter.
    Nothing,
}

/// Names of an endpoint's states, as in `EpState`.
pub const ENDPOINT: [&str; 9] = [
    "Unconnected",
    "Reserved",
    "PassiveConnectionPending",
    "ActiveConnectionPending",
    "TentativeConnectionPending",
    "CompletionPending",
    "Connected",
    "DisconnectPending",
    "Disconnected",
];

/// Names of an adapter's states: no injected fault is in effect; an injected fault may be in effect; dead.
pub const ADAPTER: [&str; 3] = ["healthy", "tampered", "dead"];

/// Name of the state under which calls without an object are counted.
pub const STATELESS: &str = "any";

impl Of {
    /// Returns all states of this object.
    #[must_use]
    pub const fn states(self) -> &'static [&'static str] {
        match self {
            Self::Endpoint => &ENDPOINT,
            Self::Adapter => &ADAPTER,
            Self::Nothing => &[STATELESS],
        }
    }
}

/// All calls of DAT, each with the object under whose state the call is counted.
pub const CALLS: [(&str, Of); 74] = [
    ("dat_ep_post_send", Of::Endpoint),
    ("dat_ep_post_recv", Of::Endpoint),
    ("dat_ep_post_rdma_read", Of::Endpoint),
    ("dat_ep_post_rdma_write", Of::Endpoint),
    ("dat_srq_post_recv", Of::Adapter),
    ("dat_rmr_bind", Of::Endpoint),
    ("dat_lmr_sync_rdma_read", Of::Adapter),
    ("dat_lmr_sync_rdma_write", Of::Adapter),
    ("dat_ia_open", Of::Nothing),
    ("dat_ia_close", Of::Adapter),
    ("dat_ia_query", Of::Adapter),
    ("dat_provider_init", Of::Nothing),
    ("dat_provider_fini", Of::Nothing),
    ("dat_registry_add_provider", Of::Nothing),
    ("dat_registry_remove_provider", Of::Nothing),
    ("dat_registry_list_providers", Of::Nothing),
    ("dat_strerror", Of::Nothing),
    ("dat_set_consumer_context", Of::Adapter),
    ("dat_get_consumer_context", Of::Adapter),
    ("dat_get_handle_type", Of::Adapter),
    ("dat_cno_create", Of::Adapter),
    ("dat_cno_free", Of::Adapter),
    ("dat_cno_modify_agent", Of::Adapter),
    ("dat_cno_query", Of::Adapter),
    ("dat_cno_wait", Of::Adapter),
    ("dat_evd_create", Of::Adapter),
    ("dat_evd_query", Of::Adapter),
    ("dat_evd_modify_cno", Of::Adapter),
    ("dat_evd_resize", Of::Adapter),
    ("dat_evd_post_se", Of::Adapter),
    ("dat_evd_free", Of::Adapter),
    ("dat_evd_enable", Of::Adapter),
    ("dat_evd_disable", Of::Adapter),
    ("dat_evd_set_unwaitable", Of::Adapter),
    ("dat_evd_clear_unwaitable", Of::Adapter),
    ("dat_evd_dequeue", Of::Adapter),
    ("dat_evd_wait", Of::Adapter),
    ("dat_ep_create", Of::Adapter),
    ("dat_ep_create_with_srq", Of::Adapter),
    ("dat_ep_query", Of::Endpoint),
    ("dat_ep_modify", Of::Endpoint),
    ("dat_ep_get_status", Of::Endpoint),
    ("dat_ep_recv_query", Of::Endpoint),
    ("dat_ep_set_watermark", Of::Endpoint),
    ("dat_ep_free", Of::Endpoint),
    ("dat_ep_reset", Of::Endpoint),
    ("dat_ep_connect", Of::Endpoint),
    ("dat_ep_dup_connect", Of::Endpoint),
    ("dat_ep_disconnect", Of::Endpoint),
    ("dat_psp_create", Of::Adapter),
    ("dat_psp_create_any", Of::Adapter),
    ("dat_psp_query", Of::Adapter),
    ("dat_psp_free", Of::Adapter),
    ("dat_rsp_create", Of::Endpoint),
    ("dat_rsp_query", Of::Adapter),
    ("dat_rsp_free", Of::Adapter),
    ("dat_cr_query", Of::Adapter),
    ("dat_cr_accept", Of::Endpoint),
    ("dat_cr_reject", Of::Adapter),
    ("dat_cr_handoff", Of::Adapter),
    ("dat_pz_create", Of::Adapter),
    ("dat_pz_query", Of::Adapter),
    ("dat_pz_free", Of::Adapter),
    ("dat_lmr_create", Of::Adapter),
    ("dat_lmr_query", Of::Adapter),
    ("dat_lmr_free", Of::Adapter),
    ("dat_rmr_create", Of::Adapter),
    ("dat_rmr_query", Of::Adapter),
    ("dat_rmr_free", Of::Adapter),
    ("dat_srq_create", Of::Adapter),
    ("dat_srq_query", Of::Adapter),
    ("dat_srq_resize", Of::Adapter),
    ("dat_srq_set_lw", Of::Adapter),
    ("dat_srq_free", Of::Adapter),
];

/// Name under which the library's own work between calls is counted. This is not a call of DAT.
pub const PROGRESS: &str = "progress";
/// Name under which parking an adapter is counted.
pub const PARK: &str = "park";
/// Name under which going on with a parked adapter is counted.
pub const RESUME: &str = "resume";
/// Name under which dropping an adapter without closing it is counted.
pub const DROP: &str = "drop";
