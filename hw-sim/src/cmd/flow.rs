//! Commands for flow tables, groups and entries. The objects are in [`crate::eth::flow`].

use super::eswitch::manager;
use super::vport::{ethernet, named_vport};
use super::{Cmd, Outcome, Refusal, must_exist, output, refuse};
use crate::card::seat::{Place, Seat, WIRE};
use crate::eth::flow::{Destination, Entry, FlowTable, FlowTables, Group, MISS_TABLE};
use crate::eth::matching::Pattern;
use crate::objects::Table;
use mlx_prm::{
    CreateFlowGroupIn, CreateFlowGroupOut, CreateFlowTableIn, CreateFlowTableOut,
    DeleteFlowTableEntryIn, DeleteFlowTableEntryOut, DestFormat, DestroyFlowGroupIn,
    DestroyFlowGroupOut, DestroyFlowTableIn, DestroyFlowTableOut, FlowContext,
    FlowCounterListEntry, FlowDestinationType, FlowTableContext, FlowTableProperties,
    FlowTableType, ModifyFlowTableIn, ModifyFlowTableOut, QueryFlowGroupIn, QueryFlowGroupOut,
    QueryFlowTableEntryIn, QueryFlowTableEntryOut, QueryFlowTableIn, QueryFlowTableOut,
    SetFlowTableEntryIn, SetFlowTableEntryOut, SetFlowTableRootIn, SetFlowTableRootOut,
    flow_action,
};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

/// Offset in bytes of the list that follows a flow context in the input.
const LIST: usize = SetFlowTableEntryIn::SIZE;
/// `modify_field_select` of MODIFY_FLOW_TABLE: miss action and miss table.
const SELECT_MISS: u32 = 1;
/// `table_miss_action` that selects the default of the table type: NIC_RX drops the frame, the FDB forwards it by the
/// card's miss rule, and an access list passes it.
const MISS_DEFAULT: u32 = 0;
/// Bits of `modify_enable_mask`: action, flow tag, destination list, counter list.
const ENABLE_ACTION: u32 = 1;
const ENABLE_TAG: u32 = 2;
const ENABLE_DESTINATIONS: u32 = 4;
const ENABLE_COUNTERS: u32 = 8;
/// Maximum number of groups, and of entries, in all tables of one domain together: about as many as the largest table
/// can have.
const MOST_GROUPS: usize = 1 << 16;
const MOST_ENTRIES: usize = 1 << 16;
const OP_SET: u32 = 0;
const OP_CHANGE: u32 = 1;

pub(super) fn create_flow_table(cmd: &mut Cmd<'_>) -> Outcome {
    ethernet(cmd)?;
    let input = cmd.read();
    let mut out = CreateFlowTableOut::new();
    out.set_table_id(create_table(cmd, &input)?);
    output(&out)
}

pub(super) fn modify_flow_table(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    modify_table(cmd, &input)?;
    output(&ModifyFlowTableOut::new())
}

pub(super) fn destroy_flow_table(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    destroy_table(cmd, &input)?;
    output(&DestroyFlowTableOut::new())
}

pub(super) fn query_flow_table(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    let mut out = QueryFlowTableOut::new();
    out.set_flow_table_context(&query_table(cmd, &input)?);
    output(&out)
}

pub(super) fn set_flow_table_root(cmd: &mut Cmd<'_>) -> Outcome {
    ethernet(cmd)?;
    let input = cmd.read();
    set_root(cmd, &input)?;
    output(&SetFlowTableRootOut::new())
}

pub(super) fn create_flow_group(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    let mut out = CreateFlowGroupOut::new();
    out.set_group_id(create_group(cmd, &input)?);
    output(&out)
}

pub(super) fn destroy_flow_group(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    destroy_group(cmd, &input)?;
    output(&DestroyFlowGroupOut::new())
}

pub(super) fn query_flow_group(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    let group = query_group(cmd, &input)?;
    let mut out = QueryFlowGroupOut::new();
    out.set_start_flow_index(group.start)
        .set_end_flow_index(group.end)
        .set_match_criteria_enable(group.enable)
        .set_match_criteria(&group.criteria);
    output(&out)
}

pub(super) fn set_flow_table_entry(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    set_entry(cmd, &input)?;
    output(&SetFlowTableEntryOut::new())
}

/// Executes QUERY_FLOW_TABLE_ENTRY. The destination list follows the context.
pub(super) fn query_flow_table_entry(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    let (context, destinations) = query_entry(cmd, &input)?;
    let mut out = QueryFlowTableEntryOut::new();
    out.set_flow_context(&context);
    let mut bytes = out.as_bytes().to_vec();
    bytes.extend(destinations.iter().flat_map(|entry| entry.to_be_bytes()));
    Ok(bytes)
}

pub(super) fn delete_flow_table_entry(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    delete_entry(cmd, &input)?;
    output(&DeleteFlowTableEntryOut::new())
}

/// The frames to which a set of tables applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Domain {
    /// Frames that arrive at the function.
    Receive,
    /// Frames in the e-switch.
    Switch,
    /// Frames that a vport sends into the e-switch.
    Ingress(Seat),
    /// Frames that the e-switch sends to a vport.
    Egress(Seat),
}

/// Returns the domain of a table type. NIC_RX is the function's own receive side, and FDB the e-switch that the
/// function manages. An access list belongs to the vport that the command names.
fn domain(
    cmd: &Cmd<'_>,
    kind: FlowTableType,
    other_vport: bool,
    vport: u32,
) -> Result<Domain, Refusal> {
    let found = match kind {
        FlowTableType::NIC_RX => Domain::Receive,
        FlowTableType::FDB => Domain::Switch,
        FlowTableType::ESW_INGRESS_ACL => Domain::Ingress(named_vport(cmd, other_vport, vport)?),
        FlowTableType::ESW_EGRESS_ACL => Domain::Egress(named_vport(cmd, other_vport, vport)?),
        _ => return Err(refuse!(BAD_PARAM, "flow table type", "{kind:?}")),
    };
    if found != Domain::Receive {
        manager(cmd)?;
    }
    if matches!(found, Domain::Receive | Domain::Switch) && (other_vport || vport != 0) {
        return Err(refuse!(BAD_PARAM, "no such vport", "{vport}"));
    }
    cmd.of_the_driver(found != Domain::Receive, "flow tables of the e-switch")?;
    Ok(found)
}

fn tables<'c>(cmd: &'c Cmd<'_>, domain: Domain) -> &'c FlowTables {
    match domain {
        Domain::Receive => &cmd.nic.objects.eth.flow,
        Domain::Switch => &cmd.env.card(cmd.nic.seat).fdb,
        Domain::Ingress(seat) => &cmd.env.vport(seat).ingress,
        Domain::Egress(seat) => &cmd.env.vport(seat).egress,
    }
}

fn tables_mut<'c>(cmd: &'c mut Cmd<'_>, domain: Domain) -> &'c mut FlowTables {
    match domain {
        Domain::Receive => &mut cmd.nic.objects.eth.flow,
        Domain::Switch => &mut cmd.env.card_mut(cmd.nic.seat).fdb,
        Domain::Ingress(seat) => &mut cmd.env.vport_mut(seat).ingress,
        Domain::Egress(seat) => &mut cmd.env.vport_mut(seat).egress,
    }
}

/// Returns the capabilities of the tables in a domain.
fn properties<'c>(cmd: &'c Cmd<'_>, domain: Domain) -> &'c FlowTableProperties {
    let eswitch = &cmd.nic.profile.eswitch_flow_table;
    match domain {
        Domain::Receive => cmd.nic.caps.flow_table.flow_table_properties_nic_receive(),
        Domain::Switch => eswitch.flow_table_properties_nic_esw_fdb(),
        Domain::Ingress(_) => eswitch.flow_table_properties_esw_acl_ingress(),
        Domain::Egress(_) => eswitch.flow_table_properties_esw_acl_egress(),
    }
}

fn find<'c>(
    cmd: &'c mut Cmd<'_>,
    domain: Domain,
    number: u32,
) -> Result<&'c mut FlowTable, Refusal> {
    let found = tables_mut(cmd, domain).tables.named_mut(number);
    found.ok_or_else(|| refuse!(BAD_RESOURCE, "no such flow table", "{number:#x}"))
}

/// Executes CREATE_FLOW_TABLE.
///
/// # Errors
/// A table type, feature, size or level that the device does not have; a table type that the function or the user
/// context may not use; a miss table that does not exist or has no higher level; no number left.
fn create_table(cmd: &mut Cmd<'_>, input: &CreateFlowTableIn) -> Result<u32, Refusal> {
    let domain = domain(
        cmd,
        input.table_type(),
        input.other_vport(),
        input.vport_number(),
    )?;
    let context = input.flow_table_context();
    let caps = properties(cmd, domain);
    if !caps.ft_support() {
        return Err(refuse!(BAD_OP, "flow tables are not supported"));
    }
    if context.reformat_en()
        || context.decap_en()
        || context.sw_owner()
        || context.termination_table()
        || context.rtc_valid()
    {
        return Err(refuse!(BAD_PARAM, "kind of flow table"));
    }
    let (size, most) = (context.log_size(), caps.log_max_ft_size());
    if size > most {
        return Err(refuse!(
            EXCEED_LIM,
            "flow table size",
            "2^{size} of 2^{most}"
        ));
    }
    if context.level() > caps.max_ft_level() {
        return Err(refuse!(
            BAD_PARAM,
            "flow table level",
            "{}",
            context.level()
        ));
    }
    let miss = miss_table(cmd, domain, context)?;
    let tables = &mut tables_mut(cmd, domain).tables;
    let number = tables.create(FlowTable {
        context: context.clone(),
        entries: BTreeMap::new(),
        groups: BTreeMap::new(),
        next_group: 1,
    })?;
    if let Some(miss) = miss {
        tables.hold(miss)?;
    }
    Ok(number)
}

/// Returns the miss table of a context. The miss table must have a higher level than the context's table, so that no
/// frame circulates between tables.
fn miss_table(
    cmd: &Cmd<'_>,
    domain: Domain,
    context: &FlowTableContext,
) -> Result<Option<u32>, Refusal> {
    match context.table_miss_action() {
        MISS_DEFAULT => Ok(None),
        MISS_TABLE => {
            let number = context.table_miss_id();
            let Some(table) = tables(cmd, domain).tables.named(number) else {
                return Err(refuse!(BAD_RESOURCE, "no such flow table", "{number:#x}"));
            };
            if table.context.level() <= context.level() {
                return Err(refuse!(
                    BAD_PARAM,
                    "misses go to a table of no higher level"
                ));
            }
            Ok(Some(number))
        }
        other => Err(refuse!(BAD_PARAM, "flow table miss action", "{other}")),
    }
}

/// Executes MODIFY_FLOW_TABLE, which changes the miss action.
///
/// # Errors
/// No such table; a field other than the miss action; a miss table that does not exist or has no higher level.
fn modify_table(cmd: &mut Cmd<'_>, input: &ModifyFlowTableIn) -> Result<(), Refusal> {
    let domain = domain(
        cmd,
        input.table_type(),
        input.other_vport(),
        input.vport_number(),
    )?;
    let wanted = input.flow_table_context();
    let number = input.table_id();
    let mut context = find(cmd, domain, number)?.context.clone();
    if input.modify_field_select() & !SELECT_MISS != 0 {
        return Err(refuse!(
            BAD_PARAM,
            "field of a flow table",
            "{:#x}",
            input.modify_field_select()
        ));
    }
    if input.modify_field_select() & SELECT_MISS == 0 {
        return Ok(());
    }
    context
        .set_table_miss_action(wanted.table_miss_action())
        .set_table_miss_id(wanted.table_miss_id());
    let miss = miss_table(cmd, domain, &context)?;
    let tables = &mut tables_mut(cmd, domain).tables;
    if let Some(miss) = miss {
        tables.hold(miss)?;
    }
    if let Some(table) = tables.get_mut(number) {
        let before = std::mem::replace(&mut table.context, context);
        release_miss(tables, &before);
    }
    Ok(())
}

fn release_miss(tables: &mut Table<FlowTable>, context: &FlowTableContext) {
    if context.table_miss_action() == MISS_TABLE {
        tables.release(context.table_miss_id());
    }
}

/// Executes QUERY_FLOW_TABLE.
///
/// # Errors
/// No such table.
fn query_table(cmd: &mut Cmd<'_>, input: &QueryFlowTableIn) -> Result<FlowTableContext, Refusal> {
    let domain = domain(cmd, input.table_type(), false, 0)?;
    Ok(find(cmd, domain, input.table_id())?.context.clone())
}

/// Executes DESTROY_FLOW_TABLE. The root table may be destroyed too, because drivers destroy it last.
///
/// # Errors
/// No such table, or it has groups, or another table forwards to it.
fn destroy_table(cmd: &mut Cmd<'_>, input: &DestroyFlowTableIn) -> Result<(), Refusal> {
    let domain = domain(
        cmd,
        input.table_type(),
        input.other_vport(),
        input.vport_number(),
    )?;
    let number = input.table_id();
    if !find(cmd, domain, number)?.groups.is_empty() {
        return Err(refuse!(BAD_RES_STATE, "flow table has groups"));
    }
    let flow = tables_mut(cmd, domain);
    let table = flow.tables.remove(number)?;
    release_miss(&mut flow.tables, &table.context);
    flow.root = flow.root.filter(|&root| root != number);
    Ok(())
}

/// Executes SET_FLOW_TABLE_ROOT. op_mod 1 restores the default.
///
/// # Errors
/// No such table; a table of another vport; an underlay QP.
fn set_root(cmd: &mut Cmd<'_>, input: &SetFlowTableRootIn) -> Result<(), Refusal> {
    let domain = domain(
        cmd,
        input.table_type(),
        input.other_vport(),
        input.vport_number(),
    )?;
    if input.table_of_other_vport() || input.table_eswitch_owner_vhca_id_valid() {
        return Err(refuse!(BAD_PARAM, "table of another vport"));
    }
    if input.underlay_qpn() != 0 {
        return Err(refuse!(BAD_PARAM, "root of an underlay QP"));
    }
    let root = match cmd.op_mod {
        OP_SET => {
            find(cmd, domain, input.table_id())?;
            Some(input.table_id())
        }
        OP_CHANGE => None,
        other => return Err(refuse!(BAD_OP, "unknown op_mod", "{other:#x}")),
    };
    tables_mut(cmd, domain).root = root;
    Ok(())
}

/// Executes CREATE_FLOW_GROUP.
///
/// # Errors
/// No such table; a range that is outside of the table or overlaps another group's; a kind of group or match criteria
/// that the device does not support; too many groups.
fn create_group(cmd: &mut Cmd<'_>, input: &CreateFlowGroupIn) -> Result<u32, Refusal> {
    let domain = domain(
        cmd,
        input.table_type(),
        input.other_vport(),
        input.vport_number(),
    )?;
    if input.group_type() != 0 || input.match_definer_id() != 0 {
        return Err(refuse!(BAD_PARAM, "kind of flow group"));
    }
    let (start, end) = (input.start_flow_index(), input.end_flow_index());
    let (enable, criteria) = (input.match_criteria_enable(), input.match_criteria());
    let mask = Pattern::of_criteria(enable, criteria, domain == Domain::Switch)
        .ok_or_else(|| refuse!(BAD_PARAM, "match criteria", "{enable:#x}"))?;
    let full = tables(cmd, domain).groups >= MOST_GROUPS;
    let table = find(cmd, domain, input.table_id())?;
    if full {
        return Err(refuse!(EXCEED_LIM, "flow groups"));
    }
    if start > end || u64::from(end) >= 1 << table.context.log_size() {
        return Err(refuse!(
            BAD_PARAM,
            "range of a flow group",
            "{start}..={end}"
        ));
    }
    if table
        .groups
        .values()
        .any(|group| group.start <= end && start <= group.end)
    {
        return Err(refuse!(
            BAD_PARAM,
            "range of another flow group",
            "{start}..={end}"
        ));
    }
    let number = table.next_group;
    table.next_group = if number == 0x00ff_ffff { 1 } else { number + 1 };
    if table.groups.contains_key(&number) {
        return Err(refuse!(EXCEED_LIM, "no number left"));
    }
    table.groups.insert(
        number,
        Group {
            start,
            end,
            enable,
            criteria: criteria.clone(),
            mask,
        },
    );
    tables_mut(cmd, domain).groups += 1;
    Ok(number)
}

/// Executes QUERY_FLOW_GROUP.
///
/// # Errors
/// No such table or group.
fn query_group(cmd: &mut Cmd<'_>, input: &QueryFlowGroupIn) -> Result<Group, Refusal> {
    let domain = domain(cmd, input.table_type(), false, 0)?;
    let table = find(cmd, domain, input.table_id())?;
    Ok(group_of(table, input.group_id())?.clone())
}

fn group_of(table: &FlowTable, number: u32) -> Result<&Group, Refusal> {
    let found = table.groups.get(&number);
    found.ok_or_else(|| refuse!(BAD_RESOURCE, "no such flow group", "{number:#x}"))
}

/// Executes DESTROY_FLOW_GROUP.
///
/// # Errors
/// No such table or group, or the group has entries.
fn destroy_group(cmd: &mut Cmd<'_>, input: &DestroyFlowGroupIn) -> Result<(), Refusal> {
    let domain = domain(
        cmd,
        input.table_type(),
        input.other_vport(),
        input.vport_number(),
    )?;
    let table = find(cmd, domain, input.table_id())?;
    let group = group_of(table, input.group_id())?;
    if table
        .entries
        .range(group.start..=group.end)
        .next()
        .is_some()
    {
        return Err(refuse!(BAD_RES_STATE, "flow group has entries"));
    }
    table.groups.remove(&input.group_id());
    tables_mut(cmd, domain).groups -= 1;
    Ok(())
}

/// Executes SET_FLOW_TABLE_ENTRY: creates an entry, or (op_mod 1) changes parts of an entry.
///
/// # Errors
/// No such table or group; an index that is outside of the group, is in use, or (op_mod 1) has no entry; an action, a
/// destination or a counter that the device does not have; too many entries.
fn set_entry(cmd: &mut Cmd<'_>, input: &SetFlowTableEntryIn) -> Result<(), Refusal> {
    let domain = domain(
        cmd,
        input.table_type(),
        input.other_vport(),
        input.vport_number(),
    )?;
    let (number, index) = (input.table_id(), input.flow_index());
    let given = input.flow_context();
    let count = given
        .destination_list_size()
        .saturating_add(given.flow_counter_list_size());
    let caps = properties(cmd, domain);
    if count > 1 << caps.log_max_destination().min(16) {
        return Err(refuse!(EXCEED_LIM, "destinations of an entry", "{count}"));
    }
    let list = cmd.list(LIST, usize::try_from(count).unwrap_or(usize::MAX))?;
    let full = tables(cmd, domain).entries >= MOST_ENTRIES;
    let kind = cmd_kind(cmd.op_mod)?;
    let table = find(cmd, domain, number)?;
    let level = table.context.level();
    let (context, list) = match (kind, table.entries.get(&index)) {
        (OP_SET, None) if full => return Err(refuse!(EXCEED_LIM, "flow entries")),
        (OP_SET, None) => (given.clone(), list),
        (OP_SET, Some(_)) => {
            return Err(refuse!(BAD_PARAM, "flow index is taken", "{index}"));
        }
        (_, Some(entry)) => changed(entry, input, &list),
        (_, None) => {
            return Err(refuse!(BAD_RESOURCE, "no such flow entry", "{index}"));
        }
    };
    let table = find(cmd, domain, number)?;
    let group = group_of(table, context.group_id())?;
    if !(group.start..=group.end).contains(&index) {
        return Err(refuse!(
            BAD_PARAM,
            "flow index outside of its group",
            "{index}"
        ));
    }
    let (mask, value) = (
        group.mask,
        Pattern::of_value(context.match_value(), group.mask),
    );
    let forwards = usize::try_from(context.destination_list_size()).unwrap_or(usize::MAX);
    let (to, counted) = list.split_at(forwards.min(list.len()));
    let counters = counters(cmd, domain, &context, counted)?;
    let destinations = destinations(cmd, domain, &context, to, input.ignore_flow_level())?;
    for destination in &destinations {
        if let Destination::Table(to) = *destination {
            later(cmd, domain, level, to, input.ignore_flow_level())?;
        }
    }
    hold(cmd, domain, &destinations)?;
    for &number in &counters {
        cmd.nic.objects.eth.counters.hold(number)?;
    }
    let entry = Entry {
        context,
        list,
        mask,
        value,
        destinations,
        counters,
    };
    let before = find(cmd, domain, number)?.entries.insert(index, entry);
    match before {
        Some(before) => release(cmd, domain, &before),
        None => tables_mut(cmd, domain).entries += 1,
    }
    Ok(())
}

fn cmd_kind(op_mod: u32) -> Result<u32, Refusal> {
    match op_mod {
        OP_SET | OP_CHANGE => Ok(op_mod),
        other => Err(refuse!(BAD_OP, "unknown op_mod", "{other:#x}")),
    }
}

/// Returns an entry's context and list after the changes that `modify_enable_mask` names. Both lists hold the
/// destinations, then the counters.
fn changed(entry: &Entry, input: &SetFlowTableEntryIn, list: &[u64]) -> (FlowContext, Vec<u64>) {
    let (enable, given) = (input.modify_enable_mask(), input.flow_context());
    let mut context = entry.context.clone();
    if enable & ENABLE_ACTION != 0 {
        context.set_action(given.action());
    }
    if enable & ENABLE_TAG != 0 {
        context.set_flow_tag(given.flow_tag());
    }
    let destinations = |of: &FlowContext, list: &[u64]| {
        let count = usize::try_from(of.destination_list_size()).unwrap_or(usize::MAX);
        count.min(list.len())
    };
    let (mut to, mut counted) = entry
        .list
        .split_at(destinations(&entry.context, &entry.list));
    let (given_to, given_counted) = list.split_at(destinations(given, list));
    if enable & ENABLE_DESTINATIONS != 0 {
        to = given_to;
        context.set_destination_list_size(given.destination_list_size());
    }
    if enable & ENABLE_COUNTERS != 0 {
        counted = given_counted;
        context.set_flow_counter_list_size(given.flow_counter_list_size());
    }
    (context, [to, counted].concat())
}

/// Returns the actions that entries of a domain can have.
fn actions(cmd: &Cmd<'_>, domain: Domain) -> u32 {
    let plain = flow_action::ALLOW | flow_action::DROP;
    match domain {
        Domain::Receive if properties(cmd, domain).flow_counter() => {
            plain | flow_action::FWD_DEST | flow_action::COUNT
        }
        Domain::Receive | Domain::Switch => plain | flow_action::FWD_DEST,
        Domain::Ingress(_) if properties(cmd, domain).push_vlan() => plain | flow_action::VLAN_PUSH,
        Domain::Egress(_) if properties(cmd, domain).pop_vlan() => plain | flow_action::VLAN_POP,
        Domain::Ingress(_) | Domain::Egress(_) => plain,
    }
}

/// Returns the destinations of an entry's list, if the device supports all of them.
fn destinations(
    cmd: &Cmd<'_>,
    domain: Domain,
    context: &FlowContext,
    list: &[u64],
    any_level: bool,
) -> Result<Vec<Destination>, Refusal> {
    let action = context.action();
    let known = actions(cmd, domain);
    if action & !known != 0 || action & !flow_action::COUNT == 0 {
        return Err(refuse!(BAD_PARAM, "action of a flow entry", "{action:#x}"));
    }
    let forwards = action & flow_action::FWD_DEST != 0;
    if forwards && action & flow_action::DROP != 0 || forwards == list.is_empty() {
        return Err(refuse!(
            BAD_PARAM,
            "action and destinations of a flow entry",
            "{action:#x}, {} destinations",
            list.len()
        ));
    }
    if any_level && !properties(cmd, domain).ignore_flow_level() {
        return Err(refuse!(BAD_PARAM, "ignore_flow_level is not supported"));
    }
    if context.extended_destination() || context.flow_source() > 1 {
        return Err(refuse!(BAD_PARAM, "kind of flow entry"));
    }
    let each = list.iter().map(|entry| {
        let format = DestFormat::read_from_bytes(&entry.to_be_bytes())
            .map_err(|_| refuse!(BAD_PARAM, "destination of a flow entry"))?;
        destination(cmd, domain, &format)
    });
    each.collect()
}

/// Returns the counters of an entry. An entry has counters if and only if its action contains COUNT. The capability
/// `log_max_flow_counter` limits their number.
fn counters(
    cmd: &Cmd<'_>,
    domain: Domain,
    context: &FlowContext,
    list: &[u64],
) -> Result<Vec<u32>, Refusal> {
    let counts = context.action() & flow_action::COUNT != 0;
    if counts == list.is_empty() {
        return Err(refuse!(
            BAD_PARAM,
            "action and counters of a flow entry",
            "{:#x}, {} counters",
            context.action(),
            list.len()
        ));
    }
    let most = 1_usize << properties(cmd, domain).log_max_flow_counter().min(16);
    if list.len() > most {
        return Err(refuse!(
            EXCEED_LIM,
            "counters of a flow entry",
            "{} of {most}",
            list.len()
        ));
    }
    let each = list.iter().map(|entry| {
        let entry = FlowCounterListEntry::from_array(entry.to_be_bytes());
        must_exist(&cmd.nic.objects.eth.counters, entry.flow_counter_id())?;
        Ok(entry.flow_counter_id())
    });
    each.collect()
}

/// Returns one destination.
fn destination(cmd: &Cmd<'_>, domain: Domain, format: &DestFormat) -> Result<Destination, Refusal> {
    let number = format.destination_id();
    match (format.destination_type(), domain) {
        (FlowDestinationType::TIR, Domain::Receive) => {
            must_exist(&cmd.nic.objects.eth.tirs, number)?;
            Ok(Destination::Tir(number))
        }
        (FlowDestinationType::VPORT, Domain::Switch) if number == u32::from(WIRE) => {
            Ok(Destination::Place(Place::Wire))
        }
        (FlowDestinationType::VPORT, Domain::Switch) => u16::try_from(number)
            .ok()
            .filter(|&vport| cmd.env.card(cmd.nic.seat).vport(vport).is_some())
            .map(|vport| Destination::Place(Place::Vport(vport)))
            .ok_or_else(|| refuse!(BAD_PARAM, "no such vport", "{number}")),
        (FlowDestinationType::FLOW_TABLE, _) => Ok(Destination::Table(number)),
        (other, _) => Err(refuse!(
            BAD_PARAM,
            "destination of a flow entry",
            "{other:?}"
        )),
    }
}

/// Refuses a destination table that does not exist. Unless `any_level`, also refuses a destination table whose level
/// is not higher than the level of the entry's own table.
fn later(
    cmd: &Cmd<'_>,
    domain: Domain,
    level: u32,
    to: u32,
    any_level: bool,
) -> Result<(), Refusal> {
    let Some(table) = tables(cmd, domain).tables.named(to) else {
        return Err(refuse!(BAD_RESOURCE, "no such flow table", "{to:#x}"));
    };
    if table.context.level() <= level && !any_level {
        return Err(refuse!(BAD_PARAM, "destination table of no higher level"));
    }
    Ok(())
}

fn hold(cmd: &mut Cmd<'_>, domain: Domain, destinations: &[Destination]) -> Result<(), Refusal> {
    for destination in destinations {
        match *destination {
            Destination::Table(number) => tables_mut(cmd, domain).tables.hold(number)?,
            Destination::Tir(number) => cmd.nic.objects.eth.tirs.hold(number)?,
            Destination::Place(_) => {}
        }
    }
    Ok(())
}

fn release(cmd: &mut Cmd<'_>, domain: Domain, entry: &Entry) {
    for &number in &entry.counters {
        cmd.nic.objects.eth.counters.release(number);
    }
    for destination in &entry.destinations {
        match *destination {
            Destination::Table(number) => tables_mut(cmd, domain).tables.release(number),
            Destination::Tir(number) => cmd.nic.objects.eth.tirs.release(number),
            Destination::Place(_) => {}
        }
    }
}

/// Executes QUERY_FLOW_TABLE_ENTRY. Returns the context and the list that follows it.
///
/// # Errors
/// No such table or entry.
fn query_entry(
    cmd: &mut Cmd<'_>,
    input: &QueryFlowTableEntryIn,
) -> Result<(FlowContext, Vec<u64>), Refusal> {
    let domain = domain(cmd, input.table_type(), false, 0)?;
    let index = input.flow_index();
    let found = find(cmd, domain, input.table_id())?.entries.get(&index);
    let entry = found.ok_or_else(|| refuse!(BAD_RESOURCE, "no such flow entry", "{index}"))?;
    Ok((entry.context.clone(), entry.list.clone()))
}

/// Executes DELETE_FLOW_TABLE_ENTRY.
///
/// # Errors
/// No such table or entry.
fn delete_entry(cmd: &mut Cmd<'_>, input: &DeleteFlowTableEntryIn) -> Result<(), Refusal> {
    let domain = domain(
        cmd,
        input.table_type(),
        input.other_vport(),
        input.vport_number(),
    )?;
    let index = input.flow_index();
    let removed = find(cmd, domain, input.table_id())?.entries.remove(&index);
    let entry = removed.ok_or_else(|| refuse!(BAD_RESOURCE, "no such flow entry", "{index}"))?;
    release(cmd, domain, &entry);
    tables_mut(cmd, domain).entries -= 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bits are those of Linux `MLX5_SET_FTE_MODIFY_ENABLE_MASK_DESTINATION_LIST` (2) and `_FLOW_COUNTERS` (3).
    #[test]
    fn each_bit_of_the_mask_replaces_its_own_list() {
        fn sized(context: &mut FlowContext, destinations: u32, counters: u32) {
            context
                .set_destination_list_size(destinations)
                .set_flow_counter_list_size(counters);
        }
        let mut context = FlowContext::new();
        sized(&mut context, 1, 1);
        let entry = Entry {
            context,
            list: vec![1, 101],
            mask: Pattern::default(),
            value: Pattern::default(),
            destinations: Vec::new(),
            counters: Vec::new(),
        };
        let mut input = SetFlowTableEntryIn::new();
        sized(input.flow_context_mut(), 2, 0);
        for (mask, sizes, list) in [
            (0, (1, 1), vec![1, 101]),
            (ENABLE_DESTINATIONS, (2, 1), vec![2, 3, 101]),
            (ENABLE_COUNTERS, (1, 0), vec![1]),
            (ENABLE_DESTINATIONS | ENABLE_COUNTERS, (2, 0), vec![2, 3]),
        ] {
            input.set_modify_enable_mask(mask);
            let (context, changed) = changed(&entry, &input, &[2, 3]);
            let told = (
                context.destination_list_size(),
                context.flow_counter_list_size(),
            );
            assert_eq!((told, changed), (sizes, list), "mask {mask:#x}");
        }
    }
}
