//! Port commands: vport state and context, RoCE address table, counters.

use super::{Cmd, Outcome, Refusal, output, refuse};
use crate::card::seat::Seat;
use crate::card::{Interest, LinkState};
use crate::host::GidEntry;
use crate::profile::PortType;
use crate::traffic::{EthCounters, Traffic};
use mlx_prm::{
    MacAddress, ModifyNicVportContextIn, ModifyNicVportContextOut, ModifyVportStateIn,
    ModifyVportStateOut, NicVportContext, NicVportFieldSelect, QueryNicVportContextIn,
    QueryNicVportContextOut, QueryRoceAddressIn, QueryRoceAddressOut, QueryVnicEnvIn,
    QueryVnicEnvOut, QueryVportCounterIn, QueryVportCounterOut, QueryVportStateIn,
    QueryVportStateOut, RoceAddr, SetRoceAddressIn, SetRoceAddressOut, TrafficCounter,
};
use zerocopy::IntoBytes;

/// Offset of the address list in MODIFY_NIC_VPORT_CONTEXT. The context is at 0x100 and has 0x100 bytes.
const ADDRESS_LIST: usize = 0x200;
/// Smallest L2 MTU of a vport, in bytes.
const MIN_MTU: u32 = 68;
/// op_mod of the vport state commands for the switch's connection to the wire. 0 and 1 select the two sides of a
/// vport, which have one state here.
const UPLINK: u32 = 2;
const LIST_UNICAST: u32 = 0;
const LIST_MULTICAST: u32 = 1;
const LIST_VLAN: u32 = 2;
const ROCE_V1: u32 = 0;
const ROCE_V2: u32 = 2;
const L3_IPV4: u32 = 0;
const L3_IPV6: u32 = 1;

/// Returns the vport that a command names: the function's own, or another vport of the function's card if the function
/// manages vports. Linux also names vport 0 with `other_vport`, to query the manager's own address (`eswitch.c`
/// `esw_vport_change_handle_locked`).
pub(crate) fn named_vport(cmd: &Cmd<'_>, other: bool, number: u32) -> Result<Seat, Refusal> {
    let own = cmd.nic.seat;
    if !other && number == 0 {
        return Ok(own);
    }
    if !other {
        return Err(refuse!(
            BAD_PARAM,
            "vport number without other_vport",
            "{number}"
        ));
    }
    if own.is_virtual() || !cmd.nic.caps.general.vport_group_manager() {
        return Err(refuse!(
            BAD_RESOURCE,
            "another function's vport",
            "{number}, asked for by vport {}",
            own.vport
        ));
    }
    let vport = u16::try_from(number)
        .ok()
        .filter(|&vport| cmd.env.card(own).vport(vport).is_some());
    let Some(vport) = vport else {
        return Err(refuse!(BAD_PARAM, "no such vport", "{number}"));
    };
    Ok(Seat {
        card: own.card,
        vport,
    })
}

pub(super) fn query_vport_state(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryVportStateIn = cmd.read();
    let seat = named_vport(cmd, input.other_vport(), input.vport_number())?;
    let (admin, up) = if cmd.op_mod == UPLINK {
        uplink(cmd)?;
        let uplink = &cmd.env.card(seat).uplink;
        (uplink.switch_state, uplink.is_up())
    } else {
        (cmd.env.vport(seat).settings.state, cmd.env.is_up(seat))
    };
    let mut out = QueryVportStateOut::new();
    out.set_admin_state(admin.code()).set_state(u32::from(up));
    output(&out)
}

pub(super) fn modify_vport_state(cmd: &mut Cmd<'_>) -> Outcome {
    let input: ModifyVportStateIn = cmd.read();
    let seat = named_vport(cmd, input.other_vport(), input.vport_number())?;
    let Some(state) = LinkState::of(input.admin_state()) else {
        return Err(refuse!(
            BAD_PARAM,
            "vport admin state",
            "{}",
            input.admin_state()
        ));
    };
    if cmd.op_mod == UPLINK {
        uplink(cmd)?;
        cmd.env.card_mut(seat).uplink.switch_state = state;
    } else if cmd.nic.seat.is_virtual() {
        // Only the manager controls the switch's side of a virtual function's port.
        return Err(refuse!(
            BAD_RESOURCE,
            "state of a vport, of its manager's",
            "vport {}",
            seat.vport
        ));
    } else {
        cmd.env.vport_mut(seat).settings.state = state;
    }
    cmd.env.update_ports(seat);
    output(&ModifyVportStateOut::new())
}

/// Checks that the function may access the state of the switch's connection to the wire: the function is physical and
/// has `uplink_follow`.
fn uplink(cmd: &Cmd<'_>) -> Result<(), Refusal> {
    if cmd.nic.seat.is_virtual() || !cmd.nic.caps.general.uplink_follow() {
        return Err(refuse!(BAD_OP, "uplink_follow is not supported"));
    }
    Ok(())
}

pub(super) fn query_nic_vport_context(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryNicVportContextIn = cmd.read();
    let seat = named_vport(cmd, input.other_vport(), input.vport_number())?;
    ethernet(cmd)?;
    let vport = cmd.env.vport(seat);
    let port = &vport.port;
    let list = match input.allowed_list_type() {
        LIST_UNICAST => &port.lists.unicast,
        LIST_MULTICAST => &port.lists.multicast,
        LIST_VLAN => &port.lists.vlan,
        other => return Err(refuse!(BAD_PARAM, "address list type", "{other}")),
    };
    let [system, port_guid, node] = vport.guids;
    let [unicast, multicast, all] = port.promiscuous;
    let [loopback_uc_off, loopback_mc_off] = port.loopback_off;
    let armed = vport.armed();
    let is_armed = |what: Interest| !(armed & what).is_empty();
    let mut out = QueryNicVportContextOut::new();
    let context = out.nic_vport_context_mut();
    context
        .set_roce_en(port.roce)
        .set_min_wqe_inline_mode(u32::from(vport.min_inline))
        .set_disable_uc_local_lb(loopback_uc_off)
        .set_disable_mc_local_lb(loopback_mc_off)
        .set_arm_change_event(!armed.is_empty())
        .set_event_on_uc_address_change(is_armed(Interest::UNICAST))
        .set_event_on_mc_address_change(is_armed(Interest::MULTICAST))
        .set_event_on_vlan_change(is_armed(Interest::VLAN))
        .set_event_on_promisc_change(is_armed(Interest::PROMISCUITY))
        .set_event_on_mtu(is_armed(Interest::MTU))
        .set_mtu(u32::from(port.mtu))
        .set_system_image_guid(system)
        .set_port_guid(port_guid)
        .set_node_guid(node)
        .set_promisc_uc(unicast)
        .set_promisc_mc(multicast)
        .set_promisc_all(all)
        .set_allowed_list_type(input.allowed_list_type())
        .set_allowed_list_size(u32::try_from(list.len()).unwrap_or(0));
    set_mac(context.permanent_address_mut(), vport.mac());
    let mut bytes = out.as_bytes().to_vec();
    bytes.extend(list.iter().flat_map(|entry| entry.to_be_bytes()));
    Ok(bytes)
}

pub(super) fn modify_nic_vport_context(cmd: &mut Cmd<'_>) -> Outcome {
    let input: ModifyNicVportContextIn = cmd.read();
    let seat = named_vport(cmd, input.other_vport(), input.vport_number())?;
    ethernet(cmd)?;
    let select = input.field_select();
    let context = input.nic_vport_context();
    if select.affiliation() || select.min_inline() && context.min_wqe_inline_mode() > 3 {
        return Err(refuse!(BAD_PARAM, "vport field is not supported"));
    }
    if select.roce_en() && context.roce_en() && !cmd.nic.caps.general.roce() {
        return Err(refuse!(
            BAD_PARAM,
            "RoCE is not among the capabilities in force"
        ));
    }
    if select.mtu() && !(MIN_MTU..=u32::from(cmd.nic.profile.max_mtu)).contains(&context.mtu()) {
        return Err(refuse!(BAD_PARAM, "vport MTU", "{}", context.mtu()));
    }
    let list = if select.addresses_list() {
        Some(address_list(cmd, context)?)
    } else {
        None
    };
    identity_is_writable(cmd, select, input.other_vport())?;
    let mut changed = Interest::default();
    let vport = cmd.env.vport_mut(seat);
    let port = &mut vport.port;
    if select.roce_en() {
        port.roce = context.roce_en();
    }
    if select.mtu() {
        port.mtu = u16::try_from(context.mtu()).unwrap_or(u16::MAX);
        changed = changed | Interest::MTU;
    }
    if select.promisc() {
        port.promiscuous = [
            context.promisc_uc(),
            context.promisc_mc(),
            context.promisc_all(),
        ];
        changed = changed | Interest::PROMISCUITY;
    }
    if select.disable_uc_local_lb() {
        port.loopback_off[0] = context.disable_uc_local_lb();
    }
    if select.disable_mc_local_lb() {
        port.loopback_off[1] = context.disable_mc_local_lb();
    }
    match (list, context.allowed_list_type()) {
        (Some(list), LIST_UNICAST) => {
            port.lists.unicast = list;
            changed = changed | Interest::UNICAST;
        }
        (Some(list), LIST_MULTICAST) => {
            port.lists.multicast = list;
            changed = changed | Interest::MULTICAST;
        }
        (Some(list), _) => {
            port.lists.vlan = list;
            changed = changed | Interest::VLAN;
        }
        (None, _) => {}
    }
    if select.min_inline() {
        // CAST: the value is at most 3.
        vport.min_inline = u8::try_from(context.min_wqe_inline_mode()).unwrap_or(0);
    }
    if select.permanent_address() {
        let mac = mac_of(context.permanent_address());
        vport.settings.mac = (mac != [0; 6]).then_some(mac);
    }
    if select.port_guid() {
        vport.guids[1] = context.port_guid();
    }
    if select.node_guid() {
        vport.guids[2] = context.node_guid();
    }
    if !changed.is_empty() {
        cmd.env.vport_changed(seat, changed);
    }
    if select.change_event() {
        cmd.env.arm(seat, interest(context));
    }
    output(&ModifyNicVportContextOut::new())
}

/// Returns the changes for which a manager arms its event. Returns none if the arming bit is not set.
fn interest(context: &NicVportContext) -> Interest {
    let bits = [
        (context.event_on_uc_address_change(), Interest::UNICAST),
        (context.event_on_mc_address_change(), Interest::MULTICAST),
        (context.event_on_vlan_change(), Interest::VLAN),
        (context.event_on_promisc_change(), Interest::PROMISCUITY),
        (context.event_on_mtu(), Interest::MTU),
    ];
    let wanted = bits
        .iter()
        .filter(|(is_set, _)| *is_set && context.arm_change_event());
    wanted.fold(Interest::default(), |all, &(_, one)| all | one)
}

/// Checks writes of a vport's permanent address, GUIDs and inline mode, and the arming of vport events. Linux writes
/// address, GUIDs and inline mode with `other_vport` only (`vport.c` `mlx5_modify_nic_vport_mac_address`,
/// `mlx5_modify_nic_vport_node_guid`, `mlx5_modify_nic_vport_min_inline`). A function may write its own address only if
/// [`CardRules::own_permanent_address`](crate::card::CardRules) is set. A virtual function may write neither its own
/// GUIDs nor its own inline mode. Only a manager of vports may arm their events.
fn identity_is_writable(
    cmd: &Cmd<'_>,
    select: &NicVportFieldSelect,
    other: bool,
) -> Result<(), Refusal> {
    let rules = cmd.env.card(cmd.nic.seat).rules;
    if select.permanent_address() && !other && !rules.own_permanent_address {
        return Err(refuse!(BAD_PARAM, "permanent address of the own vport"));
    }
    if (select.node_guid() || select.port_guid()) && !other && cmd.nic.seat.is_virtual() {
        return Err(refuse!(BAD_PARAM, "GUID of the own vport"));
    }
    if select.min_inline() && !other && cmd.nic.seat.is_virtual() {
        return Err(refuse!(BAD_PARAM, "inline mode of the own vport"));
    }
    if select.change_event() && !cmd.nic.caps.general.vport_group_manager() {
        return Err(refuse!(BAD_PARAM, "events of vports are their manager's"));
    }
    Ok(())
}

fn address_list(cmd: &Cmd<'_>, context: &NicVportContext) -> Result<Vec<u64>, Refusal> {
    let caps = &cmd.nic.caps.general;
    let log_most = match context.allowed_list_type() {
        LIST_UNICAST => caps.log_max_current_uc_list(),
        LIST_MULTICAST => caps.log_max_current_mc_list(),
        LIST_VLAN => caps.log_max_vlan_list(),
        other => return Err(refuse!(BAD_PARAM, "address list type", "{other}")),
    };
    if context.allowed_list_size() > 1 << log_most {
        return Err(refuse!(
            EXCEED_LIM,
            "address list",
            "{} entries",
            context.allowed_list_size()
        ));
    }
    cmd.list(
        ADDRESS_LIST,
        usize::try_from(context.allowed_list_size()).unwrap_or(usize::MAX),
    )
}

/// Refuses a command for Ethernet ports if the port has another type.
pub(super) fn ethernet(cmd: &Cmd<'_>) -> Result<(), Refusal> {
    if cmd.nic.profile.port_type != PortType::Ethernet {
        return Err(refuse!(BAD_OP, "command of an Ethernet port"));
    }
    Ok(())
}

fn index_of(cmd: &Cmd<'_>, index: u32, vhca_port: u32) -> Result<usize, Refusal> {
    ethernet(cmd)?;
    // A command names the port if and only if `num_vhca_ports` is not 0 (Linux `lib/gid.c` `mlx5_core_roce_gid_set`).
    let ports = cmd.nic.caps.general.num_vhca_ports();
    if vhca_port > ports || (vhca_port == 0) != (ports == 0) {
        return Err(refuse!(
            BAD_PARAM,
            "vhca_port_num and num_vhca_ports disagree",
            "{vhca_port} of {ports}"
        ));
    }
    usize::try_from(index)
        .ok()
        .filter(|&index| index < cmd.port().gids().len())
        .ok_or_else(|| refuse!(BAD_PARAM, "RoCE address index beyond the table", "{index}"))
}

pub(super) fn set_roce_address(cmd: &mut Cmd<'_>) -> Outcome {
    let input: SetRoceAddressIn = cmd.read();
    let index = index_of(cmd, input.roce_address_index(), input.vhca_port_num())?;
    let versions = cmd.nic.caps.roce.roce_version();
    let version = input.roce_address().roce_version();
    if versions & 1 << version.min(31) == 0 {
        // The version of a write that clears an entry is checked, too.
        return Err(refuse!(
            BAD_PARAM,
            "RoCE version that the device does not have",
            "{version} of {versions:#x}"
        ));
    }
    let entry = gid_entry(input.roce_address())?;
    let _there = cmd.port_mut().set_gid(index, entry);
    output(&SetRoceAddressOut::new())
}

/// Returns the entry to write to the table. A zero GID deletes the entry.
fn gid_entry(address: &RoceAddr) -> Result<Option<GidEntry>, Refusal> {
    let gid = *address.source_l3_address();
    let mac = mac_bytes(address.source_mac_47_32(), address.source_mac_31_0());
    if gid == [0; 16] {
        return Ok(None);
    }
    if mac == [0; 6] || mac[0] & 1 == 1 {
        return Err(refuse!(BAD_PARAM, "source MAC is zero or multicast"));
    }
    let (version, l3_type) = (address.roce_version(), address.roce_l3_type());
    let mapped = gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    match (version, l3_type) {
        (ROCE_V1, L3_IPV4) | (ROCE_V2, L3_IPV4 | L3_IPV6) => {}
        _ => {
            return Err(refuse!(
                BAD_PARAM,
                "RoCE version and L3 type",
                "{version} {l3_type}"
            ));
        }
    }
    if version == ROCE_V2 && mapped != (l3_type == L3_IPV4) {
        return Err(refuse!(BAD_PARAM, "L3 type and address disagree"));
    }
    if !address.vlan_valid() && address.vlan_id() != 0 {
        return Err(refuse!(BAD_PARAM, "VLAN without vlan_valid"));
    }
    let vlan = address
        .vlan_valid()
        .then(|| u16::try_from(address.vlan_id()).unwrap_or(0));
    let code = |value| u8::try_from(value).unwrap_or(0);
    Ok(Some(GidEntry {
        gid,
        mac,
        roce_version: code(version),
        l3_type: code(l3_type),
        vlan,
    }))
}

pub(super) fn query_roce_address(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryRoceAddressIn = cmd.read();
    let index = index_of(cmd, input.roce_address_index(), input.vhca_port_num())?;
    let mut out = QueryRoceAddressOut::new();
    if let Some(Some(entry)) = cmd.port().gids().get(index) {
        let [a, b, c, d, e, f] = entry.mac;
        out.roce_address_mut()
            .set_source_l3_address(&entry.gid)
            .set_source_mac_47_32(u32::from_be_bytes([0, 0, a, b]))
            .set_source_mac_31_0(u32::from_be_bytes([c, d, e, f]))
            .set_vlan_valid(entry.vlan.is_some())
            .set_vlan_id(u32::from(entry.vlan.unwrap_or(0)))
            .set_roce_version(u32::from(entry.roce_version))
            .set_roce_l3_type(u32::from(entry.l3_type));
    }
    output(&out)
}

pub(super) fn query_vport_counter(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryVportCounterIn = cmd.read();
    let seat = named_vport(cmd, input.other_vport(), input.vport_number())?;
    if !cmd.nic.caps.general.vport_counters() {
        return Err(refuse!(BAD_OP, "vport counters are not supported"));
    }
    cmd.of_the_driver(input.clear(), "clearing vport counters")?;
    let port = cmd.env.port_mut(seat);
    let mut out = QueryVportCounterOut::new();
    // RoCE traffic counts as InfiniBand unicast.
    count(out.received_ib_unicast_mut(), port.rdma_received());
    count(out.transmitted_ib_unicast_mut(), port.rdma_transmitted());
    let EthCounters {
        received,
        transmitted,
        ..
    } = port.ethernet;
    count(out.received_eth_unicast_mut(), received.unicast);
    count(out.received_eth_multicast_mut(), received.multicast);
    count(out.received_eth_broadcast_mut(), received.broadcast);
    count(out.transmitted_eth_unicast_mut(), transmitted.unicast);
    count(out.transmitted_eth_multicast_mut(), transmitted.multicast);
    count(out.transmitted_eth_broadcast_mut(), transmitted.broadcast);
    count(out.local_loopback_mut(), port.looped);
    if input.clear() {
        (port.received, port.transmitted, port.looped) = Default::default();
        port.ethernet = EthCounters::default();
    }
    output(&out)
}

/// Executes QUERY_VNIC_ENV. Returns the diagnostic counters whose capabilities are set.
pub(super) fn query_vnic_env(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryVnicEnvIn = cmd.read();
    let seat = named_vport(cmd, input.other_vport(), input.vport_number())?;
    let caps = &cmd.nic.caps.general;
    let while_down = caps.receive_discard_vport_down() && caps.transmit_discard_vport_down();
    if !caps.nic_receive_steering_discard() && !while_down {
        return Err(refuse!(BAD_OP, "diagnostic counters are not supported"));
    }
    let mut out = QueryVnicEnvOut::new();
    let counters = out.vport_env_mut();
    if seat == cmd.nic.seat && caps.nic_receive_steering_discard() {
        counters.set_nic_receive_steering_discard(cmd.nic.objects.eth.discarded);
    }
    if while_down {
        let [received, transmitted] = cmd.env.vport(seat).lost_while_down;
        counters
            .set_receive_discard_vport_down(received)
            .set_transmit_discard_vport_down(transmitted);
    }
    output(&out)
}

fn count(counter: &mut TrafficCounter, traffic: Traffic) {
    counter
        .set_packets(traffic.packets)
        .set_octets(traffic.octets);
}

pub(super) fn set_mac(address: &mut MacAddress, [a, b, c, d, e, f]: [u8; 6]) {
    address
        .set_mac_addr_47_32(u32::from_be_bytes([0, 0, a, b]))
        .set_mac_addr_31_0(u32::from_be_bytes([c, d, e, f]));
}

pub(super) fn mac_of(address: &MacAddress) -> [u8; 6] {
    mac_bytes(address.mac_addr_47_32(), address.mac_addr_31_0())
}

fn mac_bytes(high: u32, low: u32) -> [u8; 6] {
    let [_, _, a, b] = high.to_be_bytes();
    let [c, d, e, f] = low.to_be_bytes();
    [a, b, c, d, e, f]
}
