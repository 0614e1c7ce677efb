//! Beginning of the capability page of the NIC's flow tables (PRM "flow_table_nic_cap", type 7).

use layout::layout;

layout! {
    /// Header fields that can be compared (PRM "flow_table_fields_supported").
    pub struct FlowTableFields(0x10) {
        outer_dmac: 0x00[31],
        outer_smac: 0x00[30],
        outer_ether_type: 0x00[29],
        outer_ip_version: 0x00[28],
        outer_first_prio: 0x00[27],
        outer_first_cfi: 0x00[26],
        outer_first_vid: 0x00[25],
        outer_ipv4_ttl: 0x00[24],
        outer_second_prio: 0x00[23],
        outer_second_cfi: 0x00[22],
        outer_second_vid: 0x00[21],
        outer_sip: 0x00[19],
        outer_dip: 0x00[18],
        outer_frag: 0x00[17],
        outer_ip_protocol: 0x00[16],
        outer_ip_ecn: 0x00[15],
        outer_ip_dscp: 0x00[14],
        outer_udp_sport: 0x00[13],
        outer_udp_dport: 0x00[12],
        outer_tcp_sport: 0x00[11],
        outer_tcp_dport: 0x00[10],
        outer_tcp_flags: 0x00[9],
        /// Fields of the outer headers' tunnels, and the vHCA port and e-switch port that the packet came from.
        outer_others: 0x00[8:0],
        /// Fields of the inner headers, in the same order as the first dword.
        inner: 0x04 u32,
        /// Fields of MPLS, IPsec and RoCE headers.
        others: 0x08 u32,
        /// Metadata registers C 7 to 0.
        metadata_reg_c: 0x0c[7:0],
    }

    /// Capabilities of one type of flow tables (PRM "flow_table_prop_layout").
    pub struct FlowTableProperties(0x40) {
        /// True if tables of this type exist.
        ft_support: 0x00[31],
        flow_counter: 0x00[29],
        /// Set: software can change an entry in place.
        flow_modify_en: 0x00[28],
        /// Set: SET_FLOW_TABLE_ROOT supported.
        modify_root: 0x00[27],
        /// Set: the miss action can forward to a table that is named by its number.
        identified_miss_table_mode: 0x00[26],
        /// Set: MODIFY_FLOW_TABLE supported.
        flow_table_modify: 0x00[25],
        reformat: 0x00[24],
        decap: 0x00[23],
        /// Set: SET_FLOW_TABLE_ROOT with op_mod 1 supported.
        reset_root_to_default: 0x00[22],
        pop_vlan: 0x00[21],
        push_vlan: 0x00[20],
        pop_vlan_2: 0x00[18],
        push_vlan_2: 0x00[17],
        reformat_and_vlan_action: 0x00[16],
        sw_owner: 0x00[14],
        reformat_l3_tunnel_to_l2: 0x00[13],
        reformat_l2_to_l3_tunnel: 0x00[12],
        reformat_and_modify_action: 0x00[11],
        ignore_flow_level: 0x00[10],
        table_miss_action_domain: 0x00[8],
        termination_table: 0x00[7],
        reformat_and_fwd_to_table: 0x00[6],
        ipsec_encrypt: 0x00[3],
        ipsec_decrypt: 0x00[2],
        sw_owner_v2: 0x00[1],
        termination_table_raw_traffic: 0x04[31],
        /// log2 of the largest number of entries in a table.
        log_max_ft_size: 0x04[29:24],
        log_max_modify_header_context: 0x04[23:16],
        max_modify_header_actions: 0x04[15:8],
        /// Largest number of table levels that a packet can pass.
        max_ft_level: 0x04[7:0],
        reformat_and_aso: 0x08 u32,
        reformat_and_macsec: 0x0c[31:16],
        /// log2 of the number of tables.
        log_max_ft_num: 0x0c[7:0],
        log_max_flow_counter: 0x10[15:8],
        /// log2 of the largest number of destinations of an entry.
        log_max_destination: 0x10[7:0],
        /// log2 of the largest number of entries in all tables together.
        log_max_flow: 0x14[7:0],
        ft_field_support: 0x20 FlowTableFields,
        /// Fields that can be compared with a bit mask.
        ft_field_bitmask_support: 0x30 FlowTableFields,
    }

    /// Flow tables of the NIC (PRM "flow_table_nic_cap", type 7).
    pub struct FlowTableNicCap(0x1c0) {
        nic_rx_multi_path_tirs: 0x00[31],
        nic_rx_multi_path_tirs_fts: 0x00[30],
        allow_sniffer_and_nic_rx_shared_tir: 0x00[29],
        sw_owner_reformat_supported: 0x00[24],
        encap_general_header: 0x04[31],
        log_max_packet_reformat_context: 0x04[20:16],
        max_encap_header_size: 0x04[9:0],
        flow_table_properties_nic_receive: 0x40 FlowTableProperties,
        flow_table_properties_nic_receive_rdma: 0x80 FlowTableProperties,
        flow_table_properties_nic_receive_sniffer: 0xc0 FlowTableProperties,
        flow_table_properties_nic_transmit: 0x100 FlowTableProperties,
        flow_table_properties_nic_transmit_rdma: 0x140 FlowTableProperties,
        flow_table_properties_nic_transmit_sniffer: 0x180 FlowTableProperties,
    }
}
