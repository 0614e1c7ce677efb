//! The virtual port: its context, its RoCE address table, its entries in the port's L2 table, and multicast and MAD
//! commands (PRM "Vport Commands", "RoCE Address Table").

use layout::layout;

use super::command::command;
use super::{CmdStatus, Opcode};

layout! {
    /// Entry of the RoCE address (GID) table (PRM "RoCE Address Layout").
    pub struct RoceAddr(0x20) {
        /// GID: an IPv4 address as ::ffff:a.b.c.d; the link-local fe80::… for RoCE v1.
        source_l3_address: 0x00 [u8; 16],
        /// Set: frames carry the VLAN tag `vlan_id`.
        vlan_valid: 0x10[28],
        vlan_id: 0x10[27:16],
        /// Source MAC: bytes 0..1; the next field has bytes 2..5.
        source_mac_47_32: 0x10[15:0],
        source_mac_31_0: 0x14 u32,
        /// L3 type for RoCE v2: 0 IPv4, 1 IPv6.
        roce_l3_type: 0x18[11:8],
        /// Version: 0 RoCE v1, 2 RoCE v2.
        roce_version: 0x18[7:0],
    }

    /// Fields of the NIC vport context that a modification changes.
    pub struct NicVportFieldSelect(0x04) {
        affiliation: 0x00[13],
        disable_uc_local_lb: 0x00[11],
        disable_mc_local_lb: 0x00[10],
        node_guid: 0x00[9],
        port_guid: 0x00[8],
        min_inline: 0x00[7],
        mtu: 0x00[6],
        change_event: 0x00[5],
        promisc: 0x00[4],
        permanent_address: 0x00[3],
        addresses_list: 0x00[2],
        roce_en: 0x00[1],
    }

    /// NIC vport context (PRM "NIC Vport Context"); the address list follows it.
    pub struct NicVportContext(0x100) {
        /// Headers that a WQE must carry inline (Ethernet SQs only): 0 none, 1 L2, 2 IP, 3 TCP/UDP.
        min_wqe_inline_mode: 0x00[26:24],
        disable_mc_local_lb: 0x00[2],
        /// Set: the vport does not loop unicast frames back.
        disable_uc_local_lb: 0x00[1],
        /// Set: RoCE is enabled on the vport.
        roce_en: 0x00[0],
        arm_change_event: 0x04[31],
        event_on_mtu: 0x04[4],
        event_on_promisc_change: 0x04[3],
        event_on_vlan_change: 0x04[2],
        event_on_mc_address_change: 0x04[1],
        event_on_uc_address_change: 0x04[0],
        vhca_id_type: 0x08[31],
        affiliation_criteria: 0x08[19:16],
        affiliated_vhca_id: 0x08[15:0],
        sd_group: 0x20[30:28],
        /// MTU of layer 2 in bytes.
        mtu: 0x24[15:0],
        system_image_guid: 0x28 u64,
        port_guid: 0x30 u64,
        node_guid: 0x38 u64,
        qkey_violation_counter: 0x68[31:16],
        promisc_uc: 0xf0[31],
        promisc_mc: 0xf0[30],
        /// Set: the vport receives all frames. Drivers set it together with the other two promiscuous flags.
        promisc_all: 0xf0[29],
        allowed_list_type: 0xf0[26:24],
        /// Number of 8-byte entries in the address list, which begins at 0x100.
        allowed_list_size: 0xf0[11:0],
        permanent_address: 0xf4 MacAddress,
    }

    /// Vport context of an InfiniBand port (PRM "HCA Vport Context").
    pub struct HcaVportContext(0x200) {
        field_select: 0x00 u32,
        sm_virt_aware: 0x20[31],
        has_smi: 0x20[30],
        has_raw: 0x20[29],
        grh_required: 0x20[28],
        num_port_plane: 0x20[23:16],
        port_physical_state: 0x20[15:12],
        vport_state_policy: 0x20[11:8],
        /// Port state, encoded as in InfiniBand's PortInfo (1 down, 2 init, 3 armed, 4 active).
        port_state: 0x20[7:4],
        /// State of the vport, encoded as `port_state`. Drivers report this field as the port's state (Linux
        /// `mlx5_query_hca_port`).
        vport_state: 0x20[3:0],
        system_image_guid: 0x28 u64,
        port_guid: 0x30 u64,
        node_guid: 0x38 u64,
        cap_mask1: 0x40 u32,
        cap_mask1_field_select: 0x44 u32,
        cap_mask2: 0x48 u32,
        cap_mask2_field_select: 0x4c u32,
        lid: 0x60[31:16],
        init_type_reply: 0x60[11:8],
        lmc: 0x60[7:5],
        subnet_timeout: 0x60[4:0],
        sm_lid: 0x64[31:16],
        sm_sl: 0x64[15:12],
        qkey_violation_counter: 0x68[31:16],
        pkey_violation_counter: 0x68[15:0],
    }

    /// A MAC address in two dwords (PRM "mac_address_layout").
    pub struct MacAddress(0x08) {
        /// Bytes 0 and 1.
        mac_addr_47_32: 0x00[15:0],
        /// Bytes 2 to 5.
        mac_addr_31_0: 0x04 u32,
    }

    /// An entry of a vport's list of VLANs (PRM "VLAN Layout").
    pub struct VlanEntry(0x08) {
        vlan: 0x00[11:0],
    }

    /// Diagnostic counters of a vport (PRM "vnic_diagnostic_statistics").
    pub struct VnicDiagnosticStatistics(0x200) {
        counter_error_queues: 0x00 u32,
        total_error_queues: 0x04 u32,
        send_queue_priority_update_flow: 0x08 u32,
        /// Number of received packets that matched no flow table entry and were discarded.
        nic_receive_steering_discard: 0x10 u64,
        receive_discard_vport_down: 0x18 u64,
        transmit_discard_vport_down: 0x20 u64,
        async_eq_overrun: 0x28 u32,
        comp_eq_overrun: 0x2c u32,
        invalid_command: 0x34 u32,
        quota_exceeded_command: 0x38 u32,
        internal_rq_out_of_buffer: 0x3c u32,
        cq_overrun: 0x40 u32,
        eth_wqe_too_small: 0x44 u32,
        generated_pkt_steering_fail: 0x60 u64,
        handled_pkt_steering_fail: 0x68 u64,
    }

    /// Counts of packets and bytes (PRM "traffic_counter").
    pub struct TrafficCounter(0x10) {
        /// Number of packets.
        packets: 0x00 u64,
        /// Number of bytes.
        octets: 0x08 u64,
    }
}

command! {
    /// Queries a vport's state. op_mod: 0 NIC vport, 1 e-switch vport, 2 uplink. admin_state: 0 down, 1 up, 2 follow.
    /// state: 0 down, 1 up.
    QUERY_VPORT_STATE: QueryVportStateIn(0x10) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
    } -> QueryVportStateOut(0x10) {
        admin_state: 0x0c[7:4],
        state: 0x0c[3:0],
    }

    /// Changes a vport's administrative state. op_mod is as in QUERY_VPORT_STATE.
    MODIFY_VPORT_STATE: ModifyVportStateIn(0x10) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
        admin_state: 0x0c[7:4],
    } -> ModifyVportStateOut(0x10) {}

    /// Queries the NIC vport context. allowed_list_type selects the address list: 0 unicast, 1 multicast, 2 VLAN.
    QUERY_NIC_VPORT_CONTEXT: QueryNicVportContextIn(0x10) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
        allowed_list_type: 0x0c[26:24],
    } -> QueryNicVportContextOut(0x110) {
        nic_vport_context: 0x10 NicVportContext,
    }

    /// Changes the NIC vport context. The context starts at 0x100, not at 0x10.
    MODIFY_NIC_VPORT_CONTEXT: ModifyNicVportContextIn(0x200) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
        field_select: 0x0c NicVportFieldSelect,
        nic_vport_context: 0x100 NicVportContext,
    } -> ModifyNicVportContextOut(0x10) {}

    /// Writes an entry of the RoCE address table. vhca_port_num is valid only if capability `num_vhca_ports` > 0.
    SET_ROCE_ADDRESS: SetRoceAddressIn(0x30) {
        roce_address_index: 0x08[31:16],
        vhca_port_num: 0x08[3:0],
        roce_address: 0x10 RoceAddr,
    } -> SetRoceAddressOut(0x10) {}

    QUERY_ROCE_ADDRESS: QueryRoceAddressIn(0x10) {
        roce_address_index: 0x08[31:16],
        vhca_port_num: 0x08[3:0],
    } -> QueryRoceAddressOut(0x30) {
        roce_address: 0x10 RoceAddr,
    }

    /// Queries the HCA vport context; port_num is 1.
    QUERY_HCA_VPORT_CONTEXT: QueryHcaVportContextIn(0x10) {
        other_vport: 0x08[31],
        port_num: 0x08[19:16],
        vport_number: 0x08[15:0],
    } -> QueryHcaVportContextOut(0x210) {
        hca_vport_context: 0x10 HcaVportContext,
    }

    MODIFY_HCA_VPORT_CONTEXT: ModifyHcaVportContextIn(0x210) {
        other_vport: 0x08[31],
        port_num: 0x08[19:16],
        vport_number: 0x08[15:0],
        hca_vport_context: 0x10 HcaVportContext,
    } -> ModifyHcaVportContextOut(0x10) {}

    /// Queries GIDs, 16 bytes each. gid_index 0xffff queries the whole table.
    QUERY_HCA_VPORT_GID: QueryHcaVportGidIn(0x10) {
        other_vport: 0x08[31],
        port_num: 0x08[19:16],
        vport_number: 0x08[15:0],
        gid_index: 0x0c[15:0],
    } -> QueryHcaVportGidOut(0x10) {
        gids_num: 0x0c[31:16],
    }

    /// Queries P_Keys, one dword each with the value in \[15:0\]. pkey_index 0xffff queries the whole table.
    QUERY_HCA_VPORT_PKEY: QueryHcaVportPkeyIn(0x10) {
        other_vport: 0x08[31],
        port_num: 0x08[19:16],
        vport_number: 0x08[15:0],
        pkey_index: 0x0c[15:0],
    } -> QueryHcaVportPkeyOut(0x10) {}

    /// Writes an entry of the L2 table; table_index < 2^log_max_l2_table. In mac_address, \[15:0\] of the first dword
    /// has MAC bytes 0..1, and the second dword has bytes 2..5.
    SET_L2_TABLE_ENTRY: SetL2TableEntryIn(0x40) {
        table_index: 0x14[23:0],
        silent_mode_valid: 0x1c[15],
        silent_mode: 0x1c[14],
        vlan_valid: 0x1c[12],
        vlan: 0x1c[11:0],
        mac_address: 0x20 MacAddress,
    } -> SetL2TableEntryOut(0x10) {}

    QUERY_L2_TABLE_ENTRY: QueryL2TableEntryIn(0x40) {
        table_index: 0x14[23:0],
    } -> QueryL2TableEntryOut(0x40) {
        vlan_valid: 0x1c[12],
        vlan: 0x1c[11:0],
        mac_address: 0x20 MacAddress,
    }

    DELETE_L2_TABLE_ENTRY: DeleteL2TableEntryIn(0x40) {
        table_index: 0x14[23:0],
    } -> DeleteL2TableEntryOut(0x10) {}

    /// Counters of a vport.
    QUERY_VPORT_COUNTER: QueryVportCounterIn(0x20) {
        /// True if `vport_number` names another vport, false for the vport of the function that issues the command.
        other_vport: 0x08[31],
        /// Number of the port.
        port_num: 0x08[19:16],
        /// Number of the vport.
        vport_number: 0x08[15:0],
        /// Set: the device resets the counters after reading.
        clear: 0x18[31],
    } -> QueryVportCounterOut(0x210) {
        received_errors: 0x10 TrafficCounter,
        transmit_errors: 0x20 TrafficCounter,
        received_ib_unicast: 0x30 TrafficCounter,
        transmitted_ib_unicast: 0x40 TrafficCounter,
        received_ib_multicast: 0x50 TrafficCounter,
        transmitted_ib_multicast: 0x60 TrafficCounter,
        received_eth_broadcast: 0x70 TrafficCounter,
        transmitted_eth_broadcast: 0x80 TrafficCounter,
        received_eth_unicast: 0x90 TrafficCounter,
        transmitted_eth_unicast: 0xa0 TrafficCounter,
        received_eth_multicast: 0xb0 TrafficCounter,
        transmitted_eth_multicast: 0xc0 TrafficCounter,
        local_loopback: 0xd0 TrafficCounter,
    }

    /// Queries a vport's diagnostic counters; requires capability `vnic_env_queue_counters` or a related one.
    QUERY_VNIC_ENV: QueryVnicEnvIn(0x10) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
    } -> QueryVnicEnvOut(0x210) {
        vport_env: 0x10 VnicDiagnosticStatistics,
    }

    ATTACH_TO_MCG: AttachToMcgIn(0x20) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        qpn: 0x08[23:0],
        multicast_gid: 0x10 [u8; 16],
    } -> AttachToMcgOut(0x10) {}

    DETACH_FROM_MCG: DetachFromMcgIn(0x20) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        qpn: 0x08[23:0],
        multicast_gid: 0x10 [u8; 16],
    } -> DetachFromMcgOut(0x10) {}

    /// Passes a MAD to the firmware. op_mod bit 0 = ignore M_Key, bit 1 = ignore B_Key; remote_lid = source LID of the
    /// request.
    MAD_IFC: MadIfcIn(0x110) {
        remote_lid: 0x08[31:16],
        plane_index: 0x08[15:8],
        port: 0x08[7:0],
        mad: 0x10 [u8; 0x100],
    } -> MadIfcOut(0x110) {
        response_mad_packet: 0x10 [u8; 0x100],
    }

    SET_MAD_DEMUX: SetMadDemuxIn(0x10) {
        demux_mode: 0x0c[25:24],
    } -> SetMadDemuxOut(0x10) {}
}
