//! The e-switch: its capabilities, and its handling of a vport's VLAN tags (PRM "E-Switch").

use layout::layout;

use super::command::command;
use super::{CmdStatus, FlowTableProperties, Opcode};

layout! {
    /// Beginning of the capabilities of the e-switch's flow tables (PRM "flow_table_eswitch_cap", type 8).
    pub struct FlowTableEswitchCap(0x100) {
        flow_table_properties_nic_esw_fdb: 0x40 FlowTableProperties,
        flow_table_properties_esw_acl_ingress: 0x80 FlowTableProperties,
        flow_table_properties_esw_acl_egress: 0xc0 FlowTableProperties,
    }

    /// Beginning of the e-switch's capabilities (PRM "e_switch_cap", type 9).
    pub struct EswitchCap(0x40) {
        vport_svlan_strip: 0x00[31],
        vport_cvlan_strip: 0x00[30],
        vport_svlan_insert: 0x00[29],
        /// Set: the e-switch can insert a tag into frames that have no tag.
        vport_cvlan_insert_if_not_exist: 0x00[28],
        vport_cvlan_insert_overwrite: 0x00[27],
        vport_cvlan_insert_always: 0x00[25],
        /// True if a vport of the embedded CPU exists.
        ecpf_vport_exists: 0x00[4],
        merged_eswitch: 0x00[2],
        nic_vport_node_guid_modify: 0x00[1],
        nic_vport_port_guid_modify: 0x00[0],
    }

    /// Fields of the e-switch vport context that a modification changes.
    pub struct EswVportFieldSelect(0x04) {
        fdb_to_vport_reg_c_id: 0x00[4],
        vport_cvlan_insert: 0x00[3],
        vport_svlan_insert: 0x00[2],
        vport_cvlan_strip: 0x00[1],
        vport_svlan_strip: 0x00[0],
    }

    /// Handling of a vport's frames by the e-switch (PRM "esw_vport_context").
    pub struct EswVportContext(0x100) {
        fdb_to_vport_reg_c: 0x00[31],
        vport_svlan_strip: 0x00[28],
        /// Set: the e-switch removes the VLAN tag from frames to the vport.
        vport_cvlan_strip: 0x00[27],
        vport_svlan_insert: 0x00[26],
        /// Tag insertion: 0 none, 1 into frames without a tag, 2 replacing the frame's tag, 3 into all frames.
        vport_cvlan_insert: 0x00[25:24],
        fdb_to_vport_reg_c_id: 0x00[23:16],
        svlan_cfi: 0x08[31],
        svlan_pcp: 0x08[30:28],
        svlan_id: 0x08[27:16],
        cvlan_cfi: 0x08[15],
        cvlan_pcp: 0x08[14:12],
        cvlan_id: 0x08[11:0],
    }
}

command! {
    QUERY_ESW_VPORT_CONTEXT: QueryEswVportContextIn(0x10) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
    } -> QueryEswVportContextOut(0x110) {
        esw_vport_context: 0x10 EswVportContext,
    }

    MODIFY_ESW_VPORT_CONTEXT: ModifyEswVportContextIn(0x110) {
        other_vport: 0x08[31],
        vport_number: 0x08[15:0],
        field_select: 0x0c EswVportFieldSelect,
        esw_vport_context: 0x10 EswVportContext,
    } -> ModifyEswVportContextOut(0x10) {}
}
