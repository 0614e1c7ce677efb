//! The part of a device's capabilities that the simulator implements.
//!
//! A bit is reported only if the simulator implements the command, the event or the data path behind it. Masks of
//! atomic operations, atomic sizes and RoCE versions are reduced to the implemented bits. Capabilities that only
//! describe (sizes, clocks) are reported unchanged.

/// Fields of the general page that the simulator reports. All others are zero.
const GENERAL: &[&str] = &[
    // Sizes.
    "log_max_srq_sz",
    "log_max_qp_sz",
    "log_max_qp",
    "log_max_srq",
    "log_max_cq_sz",
    "log_max_cq",
    "log_max_eq_sz",
    "log_max_mkey",
    "log_max_eq",
    "max_num_eqs",
    "max_indirection",
    "log_max_mrw_sz",
    "log_max_klm_list_size",
    "log_max_ra_req_qp",
    "log_max_ra_res_qp",
    "log_max_msg",
    "max_wqe_sz_sq",
    "max_wqe_sz_rq",
    "log_max_mcg",
    "max_qp_mcg",
    "log_max_transport_domain",
    "log_max_pd",
    "log_max_xrcd",
    "log_max_rq",
    "log_max_sq",
    "log_max_tir",
    "log_max_tis",
    "log_max_rmp",
    "log_max_rqt",
    "log_max_rqt_size",
    "log_max_tis_per_sq",
    "log_max_stride_sz_rq",
    "log_min_stride_sz_rq",
    "log_max_stride_sz_sq",
    "log_min_stride_sz_sq",
    "log_max_wq_sz",
    "log_max_vlan_list",
    "log_max_current_mc_list",
    "log_max_current_uc_list",
    "gid_table_size",
    "pkey_table_size",
    "max_qp_cnt",
    "out_of_seq_cnt",
    "retransmission_q_counters",
    "enhanced_error_q_counters",
    "roce_accl",
    "max_tc",
    "log_max_uctx",
    "uctx_cap",
    "log_max_umem",
    "umem_uid_0",
    // Registers and clocks.
    "uar_sz",
    "log_pg_sz",
    "log_uar_page_sz",
    "log_bf_reg_size",
    "device_frequency_mhz",
    "device_frequency_khz",
    "sq_ts_format",
    "rq_ts_format",
    "steering_format_version",
    // The port.
    "port_type",
    "num_ports",
    "num_vhca_ports",
    "local_ca_ack_delay",
    "stat_rate_support",
    "vport_counters",
    "ib_virt",
    "vport_group_manager",
    "eswitch_manager",
    "nic_vport_change_event",
    "log_max_l2_table",
    "disable_local_lb_uc",
    "disable_local_lb_mc",
    "nic_receive_steering_discard",
    "mcam_reg",
    "ets",
    "qos",
    "device_memory",
    // Transport.
    "rc",
    "uc",
    "ud",
    "xrc",
    "cqe_version",
    "compact_address_vector",
    "roce",
    "roce_rw_supported",
    "atomic",
    // Queues and keys.
    "cq_oi",
    "cq_resize",
    "cq_moderation",
    "cq_eq_remap",
    "sctr_data_cqe",
    "cqe_128_always",
    "block_lb_mc",
    "imaicl",
    "pg",
    "umr_fence",
    "umr_modify_entity_size_disabled",
    "umr_modify_atomic_disabled",
    "umr_indirect_mkey_disabled",
    "eth_net_offloads",
    "nic_flow_table",
    // The function.
    "cmdif_checksum",
    "driver_version",
    "hca_cap_2",
];

/// Fields of the Ethernet page that the simulator reports. All others are zero.
const ETHERNET: &[&str] = &[
    "csum_cap",
    "vlan_cap",
    "max_lso_cap",
    "wqe_inline_mode",
    "rss_ind_tbl_cap",
    "self_lb_en_modifiable",
];

/// Mask of reported atomic operations: compare and swap, and fetch and add, without their extended forms.
const PLAIN_ATOMICS: u64 = 0b11;
/// Mask of reported atomic sizes: 8 bytes.
const EIGHT_BYTES: u64 = 8;
/// Mask of reported RoCE versions: v1 and v2, without v1.5.
const ROCE_VERSIONS: u64 = 0b101;

/// Returns the value that the simulator reports for a stated value.
pub(super) fn announced(section: &str, field: &str, value: u64) -> u64 {
    match (section, field) {
        ("general", _) if !GENERAL.contains(&field) => 0,
        ("ethernet_offloads", _) if !ETHERNET.contains(&field) => 0,
        ("atomic", "atomic_operations") => value & PLAIN_ATOMICS,
        ("atomic", "atomic_size_qp") => value & EIGHT_BYTES,
        ("atomic", "atomic_size_dc") => 0,
        ("roce", "roce_version") => value & ROCE_VERSIONS,
        ("roce", "fl_rc_qp_when_roce_disabled") => 0,
        _ => value,
    }
}
