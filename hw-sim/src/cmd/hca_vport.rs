//! The vport of an InfiniBand port: state, GIDs, partitions (PRM "HCA Vport Context").
//!
//! These commands exist if the capability `ib_virt` is set. Without it a driver uses MAD_IFC. An Ethernet port has
//! only one of these commands, which reports RoCE's only partition.

use super::vport::named_vport;
use super::{Cmd, Outcome, Refusal, output, refuse};
use crate::profile::PortType;
use crate::subnet::Subnet;
use mlx_prm::{
    ModifyHcaVportContextIn, ModifyHcaVportContextOut, QueryHcaVportContextIn,
    QueryHcaVportContextOut, QueryHcaVportGidIn, QueryHcaVportGidOut, QueryHcaVportPkeyIn,
    QueryHcaVportPkeyOut,
};
use zerocopy::IntoBytes;

/// Number of the only port.
const PORT: u32 = 1;
/// Index that selects the whole table.
const WHOLE_TABLE: u32 = 0xffff;
/// Partitions of an Ethernet port: only the default partition, with full membership (IBTA volume 1, annex A17).
const ROCE_PKEYS: &[u16] = &[0xffff];
/// Bits of `field_select` of MODIFY_HCA_VPORT_CONTEXT for the fields that software may change here, the GUIDs.
/// Capability bits have their own select mask.
const SELECT_PORT_GUID: u32 = 1 << 1;
const SELECT_NODE_GUID: u32 = 1 << 2;

/// Returns the port's subnet if the port is InfiniBand, `ib_virt` is set, and the command names the function's own
/// port.
fn subnet<'n>(cmd: &'n Cmd<'_>, other: bool, vport: u32, port: u32) -> Result<&'n Subnet, Refusal> {
    let subnet = cmd.port().subnet.as_ref();
    let Some(subnet) = subnet.filter(|_| cmd.nic.caps.general.ib_virt()) else {
        return Err(refuse!(BAD_OP, "command of an InfiniBand port"));
    };
    if other || vport != 0 {
        return Err(refuse!(BAD_PARAM, "no such vport", "{vport}"));
    }
    // Port 0 is the function's own port if the function has only one.
    if port > PORT {
        return Err(refuse!(BAD_PARAM, "no such port", "{port}"));
    }
    Ok(subnet)
}

pub(super) fn query_hca_vport_context(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryHcaVportContextIn = cmd.read();
    let subnet = subnet(
        cmd,
        input.other_vport(),
        input.vport_number(),
        input.port_num(),
    )?;
    let (state, physical) = subnet.states(cmd.env.link(cmd.nic.seat));
    let info = subnet.info();
    let [system, port_guid, node] = cmd.env.vport(cmd.nic.seat).guids;
    let mut out = QueryHcaVportContextOut::new();
    out.hca_vport_context_mut()
        .set_has_smi(true)
        .set_port_physical_state(physical)
        .set_port_state(state)
        .set_vport_state(state)
        .set_system_image_guid(system)
        .set_port_guid(port_guid)
        .set_node_guid(node)
        .set_cap_mask1(info.capability_mask())
        .set_cap_mask1_field_select(subnet.writable_capabilities)
        .set_lid(u32::from(info.lid()))
        .set_lmc(info.lmc())
        .set_init_type_reply(info.init_type_reply())
        .set_subnet_timeout(info.subnet_timeout())
        .set_sm_lid(u32::from(info.master_sm_lid()))
        .set_sm_sl(info.master_sm_sl())
        .set_qkey_violation_counter(u32::from(info.q_key_violations()))
        .set_pkey_violation_counter(u32::from(info.p_key_violations()));
    output(&out)
}

pub(super) fn modify_hca_vport_context(cmd: &mut Cmd<'_>) -> Outcome {
    let input: ModifyHcaVportContextIn = cmd.read();
    let writable = subnet(
        cmd,
        input.other_vport(),
        input.vport_number(),
        input.port_num(),
    )?
    .writable_capabilities;
    let context = input.hca_vport_context();
    let select = context.field_select();
    if select & !(SELECT_PORT_GUID | SELECT_NODE_GUID) != 0 {
        return Err(refuse!(
            BAD_PARAM,
            "vport field is not supported",
            "{select:#x}"
        ));
    }
    let chosen = context.cap_mask1_field_select();
    if chosen & !writable != 0 {
        return Err(refuse!(
            BAD_PARAM,
            "capability bits that software may not change",
            "{:#x}",
            chosen & !writable
        ));
    }
    let vport = cmd.env.vport_mut(cmd.nic.seat);
    if select & SELECT_PORT_GUID != 0 {
        vport.guids[1] = context.port_guid();
    }
    if select & SELECT_NODE_GUID != 0 {
        vport.guids[2] = context.node_guid();
    }
    if let Some(subnet) = &mut vport.port.subnet {
        let before = subnet.info().capability_mask();
        subnet.set_capabilities(before & !chosen | context.cap_mask1() & chosen);
    }
    output(&ModifyHcaVportContextOut::new())
}

pub(super) fn query_hca_vport_gid(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryHcaVportGidIn = cmd.read();
    let subnet = subnet(
        cmd,
        input.other_vport(),
        input.vport_number(),
        input.port_num(),
    )?;
    let gids = part(&subnet.gids, input.gid_index())?;
    let mut out = QueryHcaVportGidOut::new();
    out.set_gids_num(u32::try_from(gids.len()).unwrap_or(0));
    let mut bytes = out.as_bytes().to_vec();
    bytes.extend(gids.iter().flatten());
    Ok(bytes)
}

pub(super) fn query_hca_vport_pkey(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryHcaVportPkeyIn = cmd.read();
    let table = if cmd.nic.profile.port_type == PortType::Ethernet {
        named_vport(cmd, input.other_vport(), input.vport_number())?;
        ROCE_PKEYS
    } else {
        let (other, vport) = (input.other_vport(), input.vport_number());
        &subnet(cmd, other, vport, input.port_num())?.pkeys
    };
    let pkeys = part(table, input.pkey_index())?;
    let mut bytes = QueryHcaVportPkeyOut::new().as_bytes().to_vec();
    bytes.extend(pkeys.iter().flat_map(|&pkey| u32::from(pkey).to_be_bytes()));
    Ok(bytes)
}

/// Returns the entry of a table at `index`, or the whole table for `WHOLE_TABLE`.
fn part<T>(table: &[T], index: u32) -> Result<&[T], Refusal> {
    if index == WHOLE_TABLE {
        return Ok(table);
    }
    usize::try_from(index)
        .ok()
        .and_then(|index| table.get(index..=index))
        .ok_or_else(|| refuse!(BAD_PARAM, "index beyond the table", "{index}"))
}
