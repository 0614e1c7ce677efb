//! Management datagrams of an InfiniBand port, which MAD_IFC and packets to QP 0 and QP 1 carry (IBTA volume 1,
//! sections 13.4, 14.2 and 16.1).

use layout::layout;

layout! {
    /// Subnet management packet, LID routed or directed route (IBTA volume 1, figures "SMP Format - LID Routed" and
    /// "SMP Format - Directed Route").
    pub struct Smp(0x100) {
        base_version: 0x00 u8,
        mgmt_class: 0x01 u8,
        class_version: 0x02 u8,
        method: 0x03 u8,
        /// Status. On a directed route, bit 15 is the direction: set on the way back.
        status: 0x04 u16,
        /// Hop pointer; directed route only.
        hop_pointer: 0x06 u8,
        /// Hop count; directed route only.
        hop_count: 0x07 u8,
        transaction_id: 0x08 u64,
        attribute_id: 0x10 u16,
        attribute_modifier: 0x14 u32,
        m_key: 0x18 u64,
        /// Directed route: LID at which the directed part begins; 0xffff if no LID-routed part precedes it.
        dr_slid: 0x20 u16,
        /// Directed route: LID at which the directed part ends; 0xffff if no LID-routed part follows it.
        dr_dlid: 0x22 u16,
        data: 0x40 [u8; 64],
        /// Directed route: egress ports on the way out; entry n is for hop n.
        initial_path: 0x80 [u8; 64],
        /// Directed route: egress ports on the way back.
        return_path: 0xc0 [u8; 64],
    }

    /// NodeInfo (IBTA volume 1, section 14.2.5.3).
    pub struct NodeInfo(0x40) {
        base_version: 0x00 u8,
        class_version: 0x01 u8,
        /// 1 channel adapter, 2 switch.
        node_type: 0x02 u8,
        num_ports: 0x03 u8,
        system_image_guid: 0x04 u64,
        node_guid: 0x0c u64,
        port_guid: 0x14 u64,
        partition_cap: 0x1c u16,
        device_id: 0x1e u16,
        revision: 0x20 u32,
        local_port_num: 0x24[31:24],
        vendor_id: 0x24[23:0],
    }

    /// SwitchInfo (IBTA volume 1, section 14.2.5.4).
    pub struct SwitchInfo(0x40) {
        linear_fdb_cap: 0x00 u16,
        random_fdb_cap: 0x02 u16,
        multicast_fdb_cap: 0x04 u16,
        linear_fdb_top: 0x06 u16,
        default_port: 0x08 u8,
        default_multicast_primary_port: 0x09 u8,
        default_multicast_not_primary_port: 0x0a u8,
        life_time_value: 0x08[7:3],
        /// Set by the switch when a port's state changes; a Set that writes one clears it.
        port_state_change: 0x08[2],
        optimized_sl_to_vl: 0x08[1:0],
        lids_per_port: 0x0c u16,
        partition_enforcement_cap: 0x0e u16,
        inbound_enforcement_cap: 0x10[31],
        outbound_enforcement_cap: 0x10[30],
        filter_raw_inbound_cap: 0x10[29],
        filter_raw_outbound_cap: 0x10[28],
        enhanced_port_0: 0x10[27],
        multicast_fdb_top: 0x12 u16,
    }

    /// PortInfo (IBTA volume 1, section 14.2.5.6).
    pub struct PortInfo(0x40) {
        m_key: 0x00 u64,
        gid_prefix: 0x08 u64,
        lid: 0x10 u16,
        master_sm_lid: 0x12 u16,
        capability_mask: 0x14 u32,
        diag_code: 0x18 u16,
        m_key_lease_period: 0x1a u16,
        local_port_num: 0x1c u8,
        link_width_enabled: 0x1d u8,
        link_width_supported: 0x1e u8,
        link_width_active: 0x1f u8,
        link_speed_supported: 0x20[31:28],
        /// Port state: 1 Down, 2 Init, 3 Armed, 4 Active. In a Set, 0 changes nothing.
        port_state: 0x20[27:24],
        /// Physical state: 2 Polling, 3 Disabled, 5 LinkUp. In a Set, 0 changes nothing.
        port_physical_state: 0x20[23:20],
        link_down_default_state: 0x20[19:16],
        m_key_protect_bits: 0x20[15:14],
        lmc: 0x20[10:8],
        link_speed_active: 0x20[7:4],
        link_speed_enabled: 0x20[3:0],
        neighbor_mtu: 0x24[31:28],
        master_sm_sl: 0x24[27:24],
        vl_cap: 0x24[23:20],
        init_type: 0x24[19:16],
        vl_high_limit: 0x24[15:8],
        vl_arbitration_high_cap: 0x24[7:0],
        vl_arbitration_low_cap: 0x28[31:24],
        init_type_reply: 0x28[23:20],
        mtu_cap: 0x28[19:16],
        vl_stall_count: 0x28[15:13],
        hoq_life: 0x28[12:8],
        operational_vls: 0x28[7:4],
        partition_enforcement_inbound: 0x28[3],
        partition_enforcement_outbound: 0x28[2],
        filter_raw_inbound: 0x28[1],
        filter_raw_outbound: 0x28[0],
        m_key_violations: 0x2c u16,
        p_key_violations: 0x2e u16,
        q_key_violations: 0x30 u16,
        guid_cap: 0x30[15:8],
        client_reregister: 0x30[7],
        multicast_p_key_trap_suppression: 0x30[6:5],
        subnet_timeout: 0x30[4:0],
        resp_time_value: 0x34[28:24],
        local_phy_errors: 0x34[23:20],
        overrun_errors: 0x34[19:16],
        max_credit_hint: 0x34[15:0],
        link_round_trip_latency: 0x38[23:0],
        capability_mask_2: 0x3c u16,
        link_speed_ext_active: 0x3c[15:12],
        link_speed_ext_supported: 0x3c[11:8],
        link_speed_ext_enabled: 0x3c[4:0],
    }

    /// Performance management datagram (IBTA volume 1, figure "Performance Management MAD Format").
    pub struct PerformanceMad(0x100) {
        base_version: 0x00 u8,
        mgmt_class: 0x01 u8,
        class_version: 0x02 u8,
        method: 0x03 u8,
        status: 0x04 u16,
        transaction_id: 0x08 u64,
        attribute_id: 0x10 u16,
        attribute_modifier: 0x14 u32,
        data: 0x40 [u8; 192],
    }

    /// ClassPortInfo of performance management (IBTA volume 1, section 13.4.8.1).
    pub struct ClassPortInfo(0x48) {
        base_version: 0x00 u8,
        class_version: 0x01 u8,
        /// Bit 8: a request may select all ports at once. Bit 9: extended counters. Bit 12: PortXmitWait.
        capability_mask: 0x02 u16,
        capability_mask_2: 0x04[31:5],
        resp_time_value: 0x04[4:0],
    }

    /// PortCounters (IBTA volume 1, section 16.1.3.5).
    pub struct PortCounters(0x2c) {
        port_select: 0x01 u8,
        /// In a Set, one bit for each counter to write, in the order of the counters.
        counter_select: 0x02 u16,
        symbol_error_counter: 0x04 u16,
        link_error_recovery_counter: 0x06 u8,
        link_downed_counter: 0x07 u8,
        port_rcv_errors: 0x08 u16,
        port_rcv_remote_physical_errors: 0x0a u16,
        port_rcv_switch_relay_errors: 0x0c u16,
        port_xmit_discards: 0x0e u16,
        port_xmit_constraint_errors: 0x10 u8,
        port_rcv_constraint_errors: 0x11 u8,
        counter_select_2: 0x12 u8,
        local_link_integrity_errors: 0x10[7:4],
        excessive_buffer_overrun_errors: 0x10[3:0],
        vl15_dropped: 0x16 u16,
        /// Data sent, in units of four bytes.
        port_xmit_data: 0x18 u32,
        /// Data received, in units of four bytes.
        port_rcv_data: 0x1c u32,
        port_xmit_pkts: 0x20 u32,
        port_rcv_pkts: 0x24 u32,
        port_xmit_wait: 0x28 u32,
    }

    /// PortCountersExtended (IBTA volume 1, section 16.1.4.11).
    pub struct PortCountersExtended(0x48) {
        port_select: 0x01 u8,
        counter_select: 0x02 u16,
        counter_select_2: 0x04 u32,
        /// Data sent, in units of four bytes.
        port_xmit_data: 0x08 u64,
        /// Data received, in units of four bytes.
        port_rcv_data: 0x10 u64,
        port_xmit_pkts: 0x18 u64,
        port_rcv_pkts: 0x20 u64,
        port_unicast_xmit_pkts: 0x28 u64,
        port_unicast_rcv_pkts: 0x30 u64,
        port_multicast_xmit_pkts: 0x38 u64,
        port_multicast_rcv_pkts: 0x40 u64,
    }
}

layout::codes! {
    /// Attributes of subnet management (IBTA volume 1, table "Subnet Management Attributes").
    pub struct SmpAttribute(u16) {
        /// Name of the node.
        NODE_DESCRIPTION = 0x0010,
        /// Type and properties of the node.
        NODE_INFO = 0x0011,
        /// Forwarding properties of a switch.
        SWITCH_INFO = 0x0012,
        /// GUIDs of a port.
        GUID_INFO = 0x0014,
        /// State and settings of a port.
        PORT_INFO = 0x0015,
        /// Partitions of a port.
        P_KEY_TABLE = 0x0016,
        /// Virtual lane of each service level.
        SL_TO_VL_MAPPING_TABLE = 0x0017,
        /// Weights of virtual lanes.
        VL_ARBITRATION_TABLE = 0x0018,
        /// Egress port of each unicast LID.
        LINEAR_FORWARDING_TABLE = 0x0019,
        /// Egress ports of each multicast LID.
        MULTICAST_FORWARDING_TABLE = 0x001b,
        /// State of a subnet manager.
        SM_INFO = 0x0020,
        /// Vendor-specific: link speed FDR10 (opensm's `ib_mlnx_ext_port_info`; Linux `MLX5_ATTR_EXTENDED_PORT_INFO`).
        EXTENDED_PORT_INFO = 0xff90,
    }

    /// Attributes of performance management (IBTA volume 1, table "Performance Management Attributes").
    pub struct PerformanceAttribute(u16) {
        /// Versions and capabilities of the class.
        CLASS_PORT_INFO = 0x0001,
        /// Counters of 32 bits and less, which stop at their largest value.
        PORT_COUNTERS = 0x0012,
        /// Counters of 64 bits.
        PORT_COUNTERS_EXTENDED = 0x001d,
    }

    /// Methods of management datagrams (IBTA volume 1, table "Common Management Methods").
    pub struct MadMethod(u8) {
        /// Reads an attribute.
        GET = 0x01,
        /// Writes an attribute; the response has the attribute's new value.
        SET = 0x02,
        /// Confirms a trap; the sender then stops repeating the trap.
        TRAP_REPRESS = 0x07,
        /// Response to a Get or a Set.
        GET_RESP = 0x81,
    }

    /// Management classes (IBTA volume 1, table "Management Class Values").
    pub struct MadClass(u8) {
        /// Subnet management by LID.
        SUBNET_LID_ROUTED = 0x01,
        /// Performance management.
        PERFORMANCE = 0x04,
        /// Subnet management by a directed route of egress ports.
        SUBNET_DIRECTED_ROUTE = 0x81,
    }
}
