//! Flow tables, groups and entries: commands to objects of [`crate::eth`], which knows their rules.

use super::vport::ethernet;
use super::{Cmd, Outcome, output};
use crate::eth::flow;
use mlx_prm::{
    CreateFlowGroupOut, CreateFlowTableOut, DeleteFlowTableEntryOut, DestroyFlowGroupOut,
    DestroyFlowTableOut, ModifyFlowTableOut, QueryFlowGroupOut, QueryFlowTableEntryOut,
    QueryFlowTableOut, SetFlowTableEntryOut, SetFlowTableRootOut,
};
use zerocopy::IntoBytes;

pub(super) fn create_flow_table(cmd: &mut Cmd<'_>) -> Outcome {
    ethernet(cmd)?;
    let input = cmd.read();
    let mut out = CreateFlowTableOut::new();
    out.set_table_id(flow::create_table(cmd, &input)?);
    output(&out)
}

pub(super) fn modify_flow_table(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    flow::modify_table(cmd, &input)?;
    output(&ModifyFlowTableOut::new())
}

pub(super) fn destroy_flow_table(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    flow::destroy_table(cmd, &input)?;
    output(&DestroyFlowTableOut::new())
}

pub(super) fn query_flow_table(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    let mut out = QueryFlowTableOut::new();
    out.set_flow_table_context(&flow::query_table(cmd, &input)?);
    output(&out)
}

pub(super) fn set_flow_table_root(cmd: &mut Cmd<'_>) -> Outcome {
    ethernet(cmd)?;
    let input = cmd.read();
    flow::set_root(cmd, &input)?;
    output(&SetFlowTableRootOut::new())
}

pub(super) fn create_flow_group(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    let mut out = CreateFlowGroupOut::new();
    out.set_group_id(flow::create_group(cmd, &input)?);
    output(&out)
}

pub(super) fn destroy_flow_group(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    flow::destroy_group(cmd, &input)?;
    output(&DestroyFlowGroupOut::new())
}

pub(super) fn query_flow_group(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    let group = flow::query_group(cmd, &input)?;
    let mut out = QueryFlowGroupOut::new();
    out.set_start_flow_index(group.start)
        .set_end_flow_index(group.end)
        .set_match_criteria_enable(group.enable)
        .set_match_criteria(&group.criteria);
    output(&out)
}

pub(super) fn set_flow_table_entry(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    flow::set_entry(cmd, &input)?;
    output(&SetFlowTableEntryOut::new())
}

/// The destination list follows.
pub(super) fn query_flow_table_entry(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    let (context, destinations) = flow::query_entry(cmd, &input)?;
    let mut out = QueryFlowTableEntryOut::new();
    out.set_flow_context(&context);
    let mut bytes = out.as_bytes().to_vec();
    bytes.extend(destinations.iter().flat_map(|entry| entry.to_be_bytes()));
    Ok(bytes)
}

pub(super) fn delete_flow_table_entry(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    flow::delete_entry(cmd, &input)?;
    output(&DeleteFlowTableEntryOut::new())
}
