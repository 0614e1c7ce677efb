//! Flow counter commands. The counting itself is in [`crate::eth::flow`].

use super::{Cmd, Outcome, output, refuse};
use crate::eth::flow::FlowCounter;
use crate::objects::DRIVER;
use mlx_prm::{
    AllocFlowCounterIn, AllocFlowCounterOut, DeallocFlowCounterIn, DeallocFlowCounterOut,
    QueryFlowCounterIn, QueryFlowCounterOut, TrafficCounter,
};
use zerocopy::IntoBytes;

/// Alignment of the first counter number of a bulk query (Linux `mlx5_fc_stats_query_counter_range` in
/// drivers/net/ethernet/mellanox/mlx5/core/fs_counters.c).
const ROW: u32 = 4;

pub(super) fn alloc_flow_counter(cmd: &mut Cmd<'_>) -> Outcome {
    let input: AllocFlowCounterIn = cmd.read();
    let caps = cmd.nic.caps.flow_table.flow_table_properties_nic_receive();
    if !caps.flow_counter() {
        return Err(refuse!(BAD_OP, "flow counters are not supported"));
    }
    if input.flow_counter_id() != 0
        || input.flow_counter_bulk() != 0
        || input.flow_counter_bulk_log_size() != 0
    {
        return Err(refuse!(BAD_PARAM, "flow counters by name or in bulk"));
    }
    let number = cmd
        .nic
        .objects
        .eth
        .counters
        .create(FlowCounter::default())?;
    let mut out = AllocFlowCounterOut::new();
    out.set_flow_counter_id(number);
    output(&out)
}

pub(super) fn dealloc_flow_counter(cmd: &mut Cmd<'_>) -> Outcome {
    let number = cmd.read::<DeallocFlowCounterIn>().flow_counter_id();
    cmd.nic.objects.eth.counters.remove(number)?;
    output(&DeallocFlowCounterOut::new())
}

/// Executes QUERY_FLOW_COUNTER: returns one counter, or consecutive counters. Among several counters, a counter that
/// does not exist reads as zero.
pub(super) fn query_flow_counter(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryFlowCounterIn = cmd.read();
    if input.dump_to_memory() || input.mkey() != 0 || input.address() != 0 {
        return Err(refuse!(BAD_PARAM, "flow counters dumped to memory"));
    }
    let (first, count) = (input.flow_counter_id(), input.num_of_counters());
    let most = 1 << cmd.nic.caps.general.log_max_flow_counter_bulk().min(16);
    if count > most {
        return Err(refuse!(EXCEED_LIM, "flow counters", "{count} of {most}"));
    }
    if count > 1 && !first.is_multiple_of(ROW) {
        return Err(refuse!(
            BAD_PARAM,
            "row of flow counters that begins inside of four",
            "{first:#x}"
        ));
    }
    let user = cmd.user();
    let counters = &mut cmd.nic.objects.eth.counters;
    if count <= 1 && !counters.contains(first) {
        return Err(refuse!(BAD_RESOURCE, "no such flow counter", "{first:#x}"));
    }
    let row = first..first.saturating_add(count.max(1));
    // All counters are checked before any is cleared, so that a refused command changes nothing.
    let may_clear =
        |number: &u32| user == DRIVER || counters.owns(*number) || !counters.contains(*number);
    if input.clear()
        && let Some(number) = row.clone().find(|number| !may_clear(number))
    {
        return Err(refuse!(
            BAD_RESOURCE,
            "flow counter is another's to clear",
            "{number:#x}"
        ));
    }
    let mut out = QueryFlowCounterOut::new();
    out.set_num_of_counters(count);
    let mut bytes = out.as_bytes().to_vec();
    for number in row {
        let mut counted = TrafficCounter::new();
        if let Some(counter) = counters.named_mut(number) {
            counted
                .set_packets(counter.packets)
                .set_octets(counter.octets);
            if input.clear() {
                *counter = FlowCounter::default();
            }
        }
        bytes.extend(counted.as_bytes());
    }
    Ok(bytes)
}
