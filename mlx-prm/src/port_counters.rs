//! Groups of port counters, in the form of register PPCNT's `counter_set` (PRM "Ports Performance Counters"). Drivers
//! make a network device's statistics from these groups.

use layout::codes;
use layout::layout;

codes! {
    /// Group of counters that PPCNT returns.
    pub struct PortCounterGroup(u8) {
        IEEE_802_3 = 0x00,
        RFC_2863 = 0x01,
        RFC_2819 = 0x02,
        RFC_3635 = 0x03,
        ETHERNET_EXTENDED = 0x05,
        PER_PRIORITY = 0x10,
        PER_TRAFFIC_CLASS = 0x11,
        PHYSICAL_LAYER = 0x12,
        INFINIBAND = 0x20,
    }
}

layout! {
    /// Group 0x00 (PRM "eth_802_3_cntrs_grp_data_layout").
    pub struct Ieee8023Counters(0xf8) {
        a_frames_transmitted_ok: 0x00 u64,
        a_frames_received_ok: 0x08 u64,
        a_frame_check_sequence_errors: 0x10 u64,
        a_alignment_errors: 0x18 u64,
        a_octets_transmitted_ok: 0x20 u64,
        a_octets_received_ok: 0x28 u64,
        a_multicast_frames_xmitted_ok: 0x30 u64,
        a_broadcast_frames_xmitted_ok: 0x38 u64,
        a_multicast_frames_received_ok: 0x40 u64,
        a_broadcast_frames_received_ok: 0x48 u64,
        a_in_range_length_errors: 0x50 u64,
        a_out_of_range_length_field: 0x58 u64,
        a_frame_too_long_errors: 0x60 u64,
        a_symbol_error_during_carrier: 0x68 u64,
        a_mac_control_frames_transmitted: 0x70 u64,
        a_mac_control_frames_received: 0x78 u64,
        a_unsupported_opcodes_received: 0x80 u64,
        a_pause_mac_ctrl_frames_received: 0x88 u64,
        a_pause_mac_ctrl_frames_transmitted: 0x90 u64,
    }

    /// Group 0x01 (PRM "eth_2863_cntrs_grp_data_layout").
    pub struct Rfc2863Counters(0xf8) {
        if_in_octets: 0x00 u64,
        if_in_ucast_pkts: 0x08 u64,
        if_in_discards: 0x10 u64,
        if_in_errors: 0x18 u64,
        if_in_unknown_protos: 0x20 u64,
        if_out_octets: 0x28 u64,
        if_out_ucast_pkts: 0x30 u64,
        if_out_discards: 0x38 u64,
        if_out_errors: 0x40 u64,
        if_in_multicast_pkts: 0x48 u64,
        if_in_broadcast_pkts: 0x50 u64,
        if_out_multicast_pkts: 0x58 u64,
        if_out_broadcast_pkts: 0x60 u64,
    }

    /// Group 0x02, its receive counters (PRM "eth_2819_cntrs_grp_data_layout").
    pub struct Rfc2819Counters(0xf8) {
        ether_stats_octets: 0x08 u64,
        ether_stats_pkts: 0x10 u64,
        ether_stats_broadcast_pkts: 0x18 u64,
        ether_stats_multicast_pkts: 0x20 u64,
    }

    /// Group 0x10, counters of one priority (PRM "eth_per_prio_grp_data_layout").
    pub struct PriorityCounters(0xf8) {
        rx_octets: 0x00 u64,
        rx_frames: 0x20 u64,
        tx_octets: 0x28 u64,
        tx_frames: 0x48 u64,
        rx_pause: 0x50 u64,
        /// Time for which received pause frames kept the port from sending, in microseconds.
        rx_pause_duration: 0x58 u64,
        tx_pause: 0x60 u64,
        /// Time for which the port's pause frames stopped the far end, in microseconds.
        tx_pause_duration: 0x68 u64,
        rx_pause_transition: 0x70 u64,
        rx_discards: 0x78 u64,
    }

    /// Pause frames and priority flow control (register PFCC).
    pub struct Pfcc(0x20) {
        buf_ownership: 0x00[27:26],
        local_port: 0x00[23:16],
        ppan_mask_n: 0x00[4],
        minor_stall_mask: 0x00[3],
        critical_stall_mask: 0x00[2],
        ppan: 0x04[31:28],
        prio_mask_tx: 0x04[23:16],
        prio_mask_rx: 0x04[7:0],
        /// Set: the port sends pause frames.
        pptx: 0x08[31],
        aptx: 0x08[30],
        pptx_mask_n: 0x08[29],
        /// Bit per priority for which the port sends priority flow control frames.
        pfctx: 0x08[23:16],
        /// Set: the port obeys received pause frames.
        pprx: 0x0c[31],
        aprx: 0x0c[30],
        pprx_mask_n: 0x0c[29],
        pfcrx: 0x0c[23:16],
        device_stall_minor_watermark: 0x10[31:16],
        device_stall_critical_watermark: 0x10[15:0],
    }
}
