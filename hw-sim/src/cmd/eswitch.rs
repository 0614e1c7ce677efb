//! Commands of the e-switch manager: the port's forwarding table, and VLAN tags of vports.

use super::vport::{mac_of, named_vport, set_mac};
use super::{Cmd, Outcome, Refusal, output, refuse};
use crate::wire::Vlan;
use mlx_prm::{
    DeleteL2TableEntryIn, DeleteL2TableEntryOut, ModifyEswVportContextIn, ModifyEswVportContextOut,
    QueryEswVportContextIn, QueryEswVportContextOut, QueryL2TableEntryIn, QueryL2TableEntryOut,
    SetL2TableEntryIn, SetL2TableEntryOut,
};

/// Values of `vport_cvlan_insert`: never, on untagged frames, on all frames.
const INSERT_NONE: u32 = 0;
const INSERT_IF_NOT_EXIST: u32 = 1;
const INSERT_ALWAYS: u32 = 3;

/// Refuses a command unless the function manages the e-switch.
pub(crate) fn manager(cmd: &Cmd<'_>) -> Result<(), Refusal> {
    if cmd.nic.seat.is_virtual() || !cmd.nic.caps.general.eswitch_manager() {
        return Err(refuse!(
            BAD_OP,
            "command of the e-switch manager",
            "vport {}",
            cmd.nic.seat.vport
        ));
    }
    Ok(())
}

/// Checks an index of the forwarding table. The table belongs to the physical port: a virtual function has no access
/// to it (Linux, the commit that introduced `lib/mpfs.c`).
fn entry(cmd: &Cmd<'_>, index: u32) -> Result<u32, Refusal> {
    manager(cmd)?;
    let log_most = cmd.nic.caps.general.log_max_l2_table();
    if index >= 1 << log_most {
        return Err(refuse!(
            BAD_PARAM,
            "index beyond the forwarding table",
            "{index} of 2^{log_most}"
        ));
    }
    Ok(index)
}

pub(super) fn set_l2_table_entry(cmd: &mut Cmd<'_>) -> Outcome {
    let input: SetL2TableEntryIn = cmd.read();
    let index = entry(cmd, input.table_index())?;
    let mac = mac_of(input.mac_address());
    if mac[0] & 1 == 1 {
        return Err(refuse!(BAD_PARAM, "the forwarding table is for unicast"));
    }
    if input.silent_mode_valid() || input.vlan_valid() {
        return Err(refuse!(BAD_PARAM, "kind of forwarding table entry"));
    }
    cmd.env.card_mut(cmd.nic.seat).forwarding.insert(index, mac);
    output(&SetL2TableEntryOut::new())
}

pub(super) fn query_l2_table_entry(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryL2TableEntryIn = cmd.read();
    let index = entry(cmd, input.table_index())?;
    let Some(&mac) = cmd.env.card(cmd.nic.seat).forwarding.get(&index) else {
        return Err(refuse!(
            BAD_RESOURCE,
            "no such forwarding table entry",
            "{index}"
        ));
    };
    let mut out = QueryL2TableEntryOut::new();
    set_mac(out.mac_address_mut(), mac);
    output(&out)
}

pub(super) fn delete_l2_table_entry(cmd: &mut Cmd<'_>) -> Outcome {
    let input: DeleteL2TableEntryIn = cmd.read();
    let index = entry(cmd, input.table_index())?;
    if cmd
        .env
        .card_mut(cmd.nic.seat)
        .forwarding
        .remove(&index)
        .is_none()
    {
        return Err(refuse!(
            BAD_RESOURCE,
            "no such forwarding table entry",
            "{index}"
        ));
    }
    output(&DeleteL2TableEntryOut::new())
}

/// Sets the VLAN of a vport. Inserting and stripping of tags must be set together (Linux `eswitch.c`
/// `modify_esw_vport_cvlan`).
pub(super) fn modify_esw_vport_context(cmd: &mut Cmd<'_>) -> Outcome {
    let input: ModifyEswVportContextIn = cmd.read();
    manager(cmd)?;
    let seat = named_vport(cmd, input.other_vport(), input.vport_number())?;
    let (select, context) = (input.field_select(), input.esw_vport_context());
    if select.fdb_to_vport_reg_c_id() || select.vport_svlan_insert() || select.vport_svlan_strip() {
        return Err(refuse!(
            BAD_PARAM,
            "field of the e-switch vport is not supported"
        ));
    }
    if select.vport_cvlan_insert() != select.vport_cvlan_strip() {
        return Err(refuse!(BAD_PARAM, "tags are put on and taken off together"));
    }
    let vlan = match (context.vport_cvlan_insert(), context.vport_cvlan_strip()) {
        _ if !select.vport_cvlan_insert() => return output(&ModifyEswVportContextOut::new()),
        (INSERT_NONE, false) => None,
        (INSERT_IF_NOT_EXIST | INSERT_ALWAYS, true) => Some(Vlan {
            id: u16::try_from(context.cvlan_id()).unwrap_or(0),
            priority: u8::try_from(context.cvlan_pcp()).unwrap_or(0),
        }),
        (insert, strip) => {
            return Err(refuse!(
                BAD_PARAM,
                "VLAN mode of the e-switch vport",
                "insert {insert}, strip {strip}"
            ));
        }
    };
    cmd.env.vport_mut(seat).settings.vlan = vlan;
    output(&ModifyEswVportContextOut::new())
}

pub(super) fn query_esw_vport_context(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryEswVportContextIn = cmd.read();
    manager(cmd)?;
    let seat = named_vport(cmd, input.other_vport(), input.vport_number())?;
    let mut out = QueryEswVportContextOut::new();
    if let Some(vlan) = cmd.env.vport(seat).settings.vlan {
        out.esw_vport_context_mut()
            .set_vport_cvlan_strip(true)
            .set_vport_cvlan_insert(INSERT_IF_NOT_EXIST)
            .set_cvlan_pcp(u32::from(vlan.priority))
            .set_cvlan_id(u32::from(vlan.id));
    }
    output(&out)
}
