//! Flow steering: tables, groups, entries (PRM "Flow Tables").
//!
//! A table has a type (direction) and a level, and contains groups. A group owns a range of the table's entries, and
//! selects the header bits that its entries compare. An entry has the values and the action. The device processes a
//! packet from the root table of the type. The first matching entry forwards the packet to a table of a higher level
//! or to a TIR. A packet that matches no entry follows the table's miss action. [`super::flow_match`] has the fields
//! that can be compared.

use layout::codes;
use layout::layout;

use super::command::command;
use super::{CmdStatus, FteMatchParam, Opcode};

codes! {
    /// Direction of a flow table.
    pub struct FlowTableType(u8) {
        NIC_RX = 0x00,
        NIC_TX = 0x01,
        ESW_EGRESS_ACL = 0x02,
        ESW_INGRESS_ACL = 0x03,
        FDB = 0x04,
        SNIFFER_RX = 0x05,
        SNIFFER_TX = 0x06,
        RDMA_RX = 0x07,
        RDMA_TX = 0x08,
        PORT_SEL = 0x09,
    }

    /// Kind of an entry's destination.
    pub struct FlowDestinationType(u8) {
        VPORT = 0x00,
        FLOW_TABLE = 0x01,
        TIR = 0x02,
        FLOW_SAMPLER = 0x06,
        UPLINK = 0x08,
        /// The root table of another type of tables.
        TABLE_TYPE = 0x0a,
    }
}

/// Bits of [`FlowContext`]'s `action`.
pub mod flow_action {
    /// Continue with the default steering.
    pub const ALLOW: u32 = 1 << 0;
    /// Drop the packet.
    pub const DROP: u32 = 1 << 1;
    /// Forward to the destination list.
    pub const FWD_DEST: u32 = 1 << 2;
    /// Count the packet in the counters of the counter list.
    pub const COUNT: u32 = 1 << 3;
    /// Remove the VLAN tag.
    pub const VLAN_POP: u32 = 1 << 7;
    /// Insert a VLAN tag.
    pub const VLAN_PUSH: u32 = 1 << 8;
}

/// Bits of `match_criteria_enable`, which select the parts of `FteMatchParam` that are compared.
pub mod match_criteria {
    /// `outer_headers`.
    pub const OUTER_HEADERS: u32 = 1 << 0;
    /// `misc_parameters`.
    pub const MISC_PARAMETERS: u32 = 1 << 1;
    /// `inner_headers`.
    pub const INNER_HEADERS: u32 = 1 << 2;
    /// `misc_parameters_2`.
    pub const MISC_PARAMETERS_2: u32 = 1 << 3;
    /// `misc_parameters_3`.
    pub const MISC_PARAMETERS_3: u32 = 1 << 4;
}

layout! {
    /// Flow table context (PRM "Flow Table Context").
    pub struct FlowTableContext(0x28) {
        reformat_en: 0x00[31],
        decap_en: 0x00[30],
        /// Set: software writes the table's memory itself.
        sw_owner: 0x00[29],
        termination_table: 0x00[28],
        /// Miss action: 0 the default of the type, 1 forward to table `table_miss_id`, 2 forward to another domain.
        table_miss_action: 0x00[27:24],
        /// Level of the table; entries forward only to tables of higher levels.
        level: 0x00[23:16],
        rtc_valid: 0x00[15],
        /// log2 of the number of entries.
        log_size: 0x00[7:0],
        table_miss_id: 0x04[23:0],
        lag_master_next_table_id: 0x08[23:0],
        sw_owner_icm_root_1: 0x18 u64,
        sw_owner_icm_root_0: 0x20 u64,
    }

    /// A VLAN tag to push (PRM "vlan").
    pub struct VlanTag(0x04) {
        ethtype: 0x00[31:16],
        prio: 0x00[15:13],
        cfi: 0x00[12],
        vid: 0x00[11:0],
    }

    /// Flow table entry (PRM "Flow Context"). The destinations follow it, then the counters, 8 bytes each.
    pub struct FlowContext(0x300) {
        push_vlan: 0x00 VlanTag,
        group_id: 0x04 u32,
        /// Tag that the device writes to the receive CQE.
        flow_tag: 0x08[23:0],
        /// Actions: bits of [`flow_action`].
        action: 0x0c[15:0],
        extended_destination: 0x10[31],
        uplink_hairpin_en: 0x10[30],
        /// Source of the packets that match: 0 any, 1 the uplink, 2 a local vport.
        flow_source: 0x10[29:28],
        encrypt_decrypt_type: 0x10[27:24],
        destination_list_size: 0x10[23:0],
        flow_counter_list_size: 0x14[23:0],
        packet_reformat_id: 0x18 u32,
        modify_header_id: 0x1c u32,
        push_vlan_2: 0x20 VlanTag,
        encrypt_decrypt_obj_id: 0x24 u32,
        match_value: 0x40 FteMatchParam,
        execute_aso: 0x240 [u8; 0x20],
    }

    /// Destination of an entry (PRM "Dest Format").
    pub struct DestFormat(0x08) {
        destination_type: 0x00 (FlowDestinationType[31:24]),
        destination_id: 0x00[23:0],
        destination_eswitch_owner_vhca_id_valid: 0x04[31],
        packet_reformat: 0x04[30],
        destination_table_type: 0x04[23:16],
        destination_eswitch_owner_vhca_id: 0x04[15:0],
    }

    /// A counter of an entry.
    pub struct FlowCounterListEntry(0x08) {
        flow_counter_id: 0x00 u32,
    }
}

command! {
    CREATE_FLOW_TABLE: CreateFlowTableIn(0x40) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
        table_type: 0x10 (FlowTableType[31:24]),
        flow_table_context: 0x18 FlowTableContext,
    } -> CreateFlowTableOut(0x10) {
        icm_address_63_40: 0x00[23:0],
        icm_address_39_32: 0x08[31:24],
        table_id: 0x08[23:0],
        icm_address_31_0: 0x0c u32,
    }

    DESTROY_FLOW_TABLE: DestroyFlowTableIn(0x40) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
        table_type: 0x10 (FlowTableType[31:24]),
        table_id: 0x14[23:0],
    } -> DestroyFlowTableOut(0x10) {}

    QUERY_FLOW_TABLE: QueryFlowTableIn(0x40) {
        table_type: 0x10 (FlowTableType[31:24]),
        table_id: 0x14[23:0],
    } -> QueryFlowTableOut(0x40) {
        flow_table_context: 0x18 FlowTableContext,
    }

    MODIFY_FLOW_TABLE: ModifyFlowTableIn(0x40) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
        /// Fields that change: bit 0 the miss action and table, bit 15 `lag_master_next_table_id`.
        modify_field_select: 0x0c[15:0],
        table_type: 0x10 (FlowTableType[31:24]),
        table_id: 0x14[23:0],
        flow_table_context: 0x18 FlowTableContext,
    } -> ModifyFlowTableOut(0x10) {}

    /// Sets the root table of a type (op_mod 0), or resets it to the default (op_mod 1).
    SET_FLOW_TABLE_ROOT: SetFlowTableRootIn(0x40) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
        table_type: 0x10 (FlowTableType[31:24]),
        table_of_other_vport: 0x10[16],
        table_vport_number: 0x10[15:0],
        table_id: 0x14[23:0],
        underlay_qpn: 0x18[23:0],
        table_eswitch_owner_vhca_id_valid: 0x1c[31],
        table_eswitch_owner_vhca_id: 0x1c[15:0],
    } -> SetFlowTableRootOut(0x10) {}

    CREATE_FLOW_GROUP: CreateFlowGroupIn(0x400) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
        table_type: 0x10 (FlowTableType[31:24]),
        /// Kind of the group: 0 entries match by criteria, 1 hash split.
        group_type: 0x10[19:16],
        table_id: 0x14[23:0],
        source_eswitch_owner_vhca_id_valid: 0x18[31],
        start_flow_index: 0x1c u32,
        /// Index of the group's last entry, inclusive.
        end_flow_index: 0x24 u32,
        match_definer_id: 0x28[15:0],
        /// Parts of `match_criteria` that are compared: bits of [`match_criteria`].
        match_criteria_enable: 0x3c[7:0],
        /// Mask of the header bits that the group's entries compare.
        match_criteria: 0x40 FteMatchParam,
    } -> CreateFlowGroupOut(0x10) {
        group_id: 0x08[23:0],
    }

    DESTROY_FLOW_GROUP: DestroyFlowGroupIn(0x40) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
        table_type: 0x10 (FlowTableType[31:24]),
        table_id: 0x14[23:0],
        group_id: 0x18 u32,
    } -> DestroyFlowGroupOut(0x10) {}

    QUERY_FLOW_GROUP: QueryFlowGroupIn(0x40) {
        table_type: 0x10 (FlowTableType[31:24]),
        table_id: 0x14[23:0],
        group_id: 0x18 u32,
    } -> QueryFlowGroupOut(0x400) {
        start_flow_index: 0x1c u32,
        end_flow_index: 0x24 u32,
        match_criteria_enable: 0x3c[7:0],
        match_criteria: 0x40 FteMatchParam,
    }

    /// Creates an entry (op_mod 0) or changes it (op_mod 1). The destination list follows at 0x340.
    SET_FLOW_TABLE_ENTRY: SetFlowTableEntryIn(0x340) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
        table_type: 0x10 (FlowTableType[31:24]),
        table_id: 0x14[23:0],
        ignore_flow_level: 0x18[31],
        /// Fields that op_mod 1 changes: bit 0 action, 1 flow tag, 2 destinations, 3 counters.
        modify_enable_mask: 0x18[7:0],
        flow_index: 0x20 u32,
        flow_context: 0x40 FlowContext,
    } -> SetFlowTableEntryOut(0x10) {}

    /// The destination list follows the output.
    QUERY_FLOW_TABLE_ENTRY: QueryFlowTableEntryIn(0x40) {
        table_type: 0x10 (FlowTableType[31:24]),
        table_id: 0x14[23:0],
        flow_index: 0x20 u32,
    } -> QueryFlowTableEntryOut(0x340) {
        flow_context: 0x40 FlowContext,
    }

    ALLOC_FLOW_COUNTER: AllocFlowCounterIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        /// Requested number of the counter, if software chooses counter numbers.
        flow_counter_id: 0x08 u32,
        /// log2 of the number of counters, if software requests the number in this form.
        flow_counter_bulk_log_size: 0x0c[12:8],
        /// Bit n requests 128 << n consecutive counters; 0 requests one counter.
        flow_counter_bulk: 0x0c[7:0],
    } -> AllocFlowCounterOut(0x10) {
        flow_counter_id: 0x08 u32,
    }

    DEALLOC_FLOW_COUNTER: DeallocFlowCounterIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        flow_counter_id: 0x08 u32,
    } -> DeallocFlowCounterOut(0x10) {}

    /// The counts follow the output, one [`super::TrafficCounter`] per counter.
    QUERY_FLOW_COUNTER: QueryFlowCounterIn(0x20) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        /// Memory key of the buffer to which the device dumps the counts.
        mkey: 0x0c u32,
        address: 0x10 u64,
        /// Set: the device resets the counter after reading.
        clear: 0x18[31],
        dump_to_memory: 0x18[30],
        /// Number of consecutive counters, of which some may not exist. 0 reads one counter, which must exist.
        num_of_counters: 0x18[29:0],
        flow_counter_id: 0x1c u32,
    } -> QueryFlowCounterOut(0x10) {
        num_of_counters: 0x0c u32,
    }

    DELETE_FLOW_TABLE_ENTRY: DeleteFlowTableEntryIn(0x40) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
        table_type: 0x10 (FlowTableType[31:24]),
        table_id: 0x14[23:0],
        flow_index: 0x20 u32,
    } -> DeleteFlowTableEntryOut(0x10) {}
}
