//! Capability pages other than the general page, and the list of all pages (PRM "HCA Capabilities").

#![expect(non_snake_case, reason = "fields keep the PRM's spelling")]

use layout::codes;
use layout::layout;

codes! {
    /// Capability pages, as in op_mod of QUERY_HCA_CAP and SET_HCA_CAP.
    pub struct CapType(u16) {
        /// General device: `CmdHcaCap`.
        GENERAL = 0x00,
        /// Ethernet offloads: `EthOffloadCaps`.
        ETHERNET_OFFLOADS = 0x01,
        /// On-demand paging: `OdpCaps`.
        ODP = 0x02,
        /// Atomic operations: `AtomicCaps`.
        ATOMIC = 0x03,
        /// RoCE: `RoceCap`.
        ROCE = 0x04,
        /// IPoIB offloads.
        IPOIB_OFFLOADS = 0x05,
        /// IPoIB enhanced offloads.
        IPOIB_ENHANCED_OFFLOADS = 0x06,
        /// Flow tables of the NIC.
        FLOW_TABLE = 0x07,
        /// Flow tables of the e-switch.
        ESWITCH_FLOW_TABLE = 0x08,
        /// E-switch.
        ESWITCH = 0x09,
        /// Quality of service.
        QOS = 0x0c,
        /// Debug.
        DEBUG = 0x0d,
        /// Device memory.
        DEV_MEM = 0x0f,
        /// TLS.
        TLS = 0x11,
        /// vDPA emulation.
        VDPA_EMULATION = 0x13,
        /// Device events.
        DEV_EVENT = 0x14,
        /// IPsec.
        IPSEC = 0x15,
        /// Cryptography.
        CRYPTO = 0x1a,
        /// MACsec.
        MACSEC = 0x1f,
        /// General device, second page: `CmdHcaCap2`.
        GENERAL_2 = 0x20,
        /// Port selection.
        PORT_SELECTION = 0x25,
        /// Advanced virtualization.
        ADV_VIRTUALIZATION = 0x26,
    }
}

impl CapType {
    /// Returns the op_mod that queries the maximum.
    #[must_use]
    pub const fn max(self) -> u32 {
        self.bits() << 1
    }

    /// Returns the op_mod that queries the current values.
    #[must_use]
    pub const fn current(self) -> u32 {
        self.bits() << 1 | 1
    }

    /// Returns the op_mod of SET_HCA_CAP.
    #[must_use]
    pub const fn set(self) -> u32 {
        self.bits() << 1
    }
}

layout! {
    /// RoCE capabilities (PRM "roce_cap", type 4).
    pub struct RoceCap(0x100) {
        roce_apm: 0x00[31],
        /// Set: software supplies the RoCEv2 UDP source port in the address path.
        /// Drivers set it to 1 if the maximum is 1.
        sw_r_roce_src_udp_port: 0x00[27],
        fl_rc_qp_when_roce_disabled: 0x00[26],
        /// Set: an RC QP can use force-loopback while RoCE is enabled.
        fl_rc_qp_when_roce_enabled: 0x00[25],
        roce_cc_general: 0x00[24],
        /// Drivers set it to 1, together with `sw_r_roce_src_udp_port`, if the maximum is 1.
        qp_ooo_transmit_default: 0x00[23],
        /// 0 free running, 1 real time, 2 both.
        qp_ts_format: 0x00[1:0],
        /// Bit 1 IPv4, bit 2 IPv6.
        l3_type: 0x10[19:16],
        /// Bit 0 RoCE v1, bit 2 RoCE v2.
        roce_version: 0x10[7:0],
        /// UDP destination port of RoCEv2, 4791.
        r_roce_dest_udp_port: 0x14[15:0],
        r_roce_max_src_udp_port: 0x18[31:16],
        /// Smallest UDP source port that software may choose (`udp_sport`).
        r_roce_min_src_udp_port: 0x18[15:0],
        /// Number of entries in the RoCE address (GID) table.
        roce_address_table_size: 0x1c[15:0],
    }

    /// Atomic capabilities (PRM "atomic_caps", type 3).
    pub struct AtomicCaps(0x100) {
        /// Mode 1: results of atomics are in host endianness. Drivers set mode 1 if the next field allows it.
        atomic_req_8B_endianness_mode: 0x08[31:30],
        /// Set: mode 1 supported.
        supported_atomic_req_8B_endianness_mode_1: 0x08[25],
        /// Bit 0 compare-swap, 1 fetch-add, 2 extended compare-swap, 3 extended fetch-add.
        atomic_operations: 0x10[15:0],
        /// Bit mask of operand sizes: bit n is 2^n bytes.
        atomic_size_qp: 0x14[15:0],
        atomic_size_dc: 0x18[15:0],
    }

    /// General device capabilities, second page (PRM "cmd_hca_cap_2", type 0x20).
    pub struct CmdHcaCap2(0x100) {
        migratable: 0x10[31],
        query_vuid: 0x10[13],
        /// UMR may use the 6-bit page size (mkc log_page_size bit 5).
        umr_log_entity_size_5: 0x10[7],
        max_reformat_insert_size: 0x14[31:24],
        max_reformat_insert_offset: 0x14[23:16],
        max_reformat_remove_size: 0x14[15:8],
        max_reformat_remove_offset: 0x14[7:0],
        migration_multi_load: 0x18[23],
        migration_tracking_state: 0x18[22],
        multiplane_qp_ud: 0x18[21],
        migration_in_chunks: 0x18[15],
        sf_eq_usage: 0x18[13],
        multiplane: 0x18[7],
        cross_vhca_object_to_object_supported: 0x1c u32,
        allowed_object_for_other_vhca_access: 0x20 u64,
        flow_table_type_2_type: 0x34[31:24],
        format_select_dw_8_6_ext: 0x34[21],
        /// log2 of the smallest page of an mkey in bytes.
        log_min_mkey_entity_size: 0x34[20:16],
        sw_vhca_id_valid: 0x44[30],
        sw_vhca_id: 0x44[29:16],
        ts_cqe_metadata_size2wqe_counter: 0x48[20:16],
        format_select_dw_gtpu_dw_0: 0x50[31:24],
        format_select_dw_gtpu_dw_1: 0x50[23:16],
        format_select_dw_gtpu_dw_2: 0x50[15:8],
        format_select_dw_gtpu_first_ext_dw_0: 0x50[7:0],
        generate_wqe_type: 0x54 u32,
        min_mkey_log_entity_size_fixed_buffer: 0x70[20:16],
        ec_vf_vport_base: 0x70[15:0],
        /// log2 of the largest page of an MTT mkey in bytes.
        max_mkey_log_entity_size_mtt: 0x74[21:16],
        max_rqt_vhca_id: 0x74[15:0],
        pcc_ifa2: 0x7c[15],
        min_mkey_log_entity_size_fixed_buffer_valid: 0x80[30],
        return_reg_id: 0x80[15:0],
        flow_table_hash_type: 0x84[3:0],
        /// Number of EQs, in 24 bits.
        max_num_eqs_24b: 0x88[23:0],
    }

    /// Beginning of the Ethernet offload capabilities (PRM "per_protocol_networking_offload_caps", type 1).
    pub struct EthOffloadCaps(0x100) {
        csum_cap: 0x00[31],
        vlan_cap: 0x00[30],
        lro_cap: 0x00[29],
        lro_psh_flag: 0x00[28],
        lro_time_stamp: 0x00[27],
        wqe_vlan_insert: 0x00[24],
        /// Set: MODIFY_TIR can change the loopback block.
        self_lb_en_modifiable: 0x00[23],
        /// log2 of the largest LSO packet in bytes.
        max_lso_cap: 0x00[20:16],
        multi_pkt_send_wqe: 0x00[15:14],
        /// Headers that a send WQE must carry inline: 0 L2, 1 as the vport context says, 2 none.
        wqe_inline_mode: 0x00[13:12],
        rss_ind_tbl_cap: 0x00[11:8],
        reg_umr_sq: 0x00[7],
        scatter_fcs: 0x00[6],
        enhanced_multi_pkt_send_wqe: 0x00[5],
        tunnel_lso_const_out_ip_id: 0x00[4],
        tunnel_lro_gre: 0x00[3],
        tunnel_lro_vxlan: 0x00[2],
        tunnel_stateless_gre: 0x00[1],
        tunnel_stateless_vxlan: 0x00[0],
        swp: 0x04[31],
        swp_csum: 0x04[30],
        swp_lso: 0x04[29],
        cqe_checksum_full: 0x04[28],
        tunnel_stateless_geneve_tx: 0x04[27],
        tunnel_stateless_mpls_over_udp: 0x04[26],
        tunnel_stateless_mpls_over_gre: 0x04[25],
        tunnel_stateless_vxlan_gpe: 0x04[24],
        tunnel_stateless_ipv4_over_vxlan: 0x04[23],
        tunnel_stateless_ip_over_ip: 0x04[22],
        insert_trailer: 0x04[21],
        tunnel_stateless_ip_over_ip_rx: 0x04[19],
        tunnel_stateless_ip_over_ip_tx: 0x04[18],
        max_vxlan_udp_ports: 0x04[15:8],
        swp_csum_l4_partial: 0x04[7],
        max_geneve_opt_len: 0x04[1],
        tunnel_stateless_geneve_rx: 0x04[0],
        lro_min_mss_size: 0x08[15:0],
        lro_timer_supported_periods: 0x30 [u8; 16],
    }

    /// On-demand paging capabilities (PRM "odp_cap", type 2).
    pub struct OdpCaps(0x100) {
        /// Capabilities of the transport page fault scheme, one dword per transport service.
        transport_page_fault_scheme_cap: 0x00 [u8; 0x40],
        /// Capabilities of the memory page fault scheme, one dword per transport service.
        memory_page_fault_scheme_cap: 0x40 [u8; 0x40],
        /// Set: the memory page fault scheme is selected.
        mem_page_fault: 0xc0[31],
    }
}
