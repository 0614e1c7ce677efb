//! RQ table commands.

use super::PAGE_LIST;
use super::vport::ethernet;
use super::{Cmd, Outcome, Refusal, must_exist, output, refuse};
use crate::eth::rqt::Rqt;
use mlx_prm::{
    CreateRqtIn, CreateRqtOut, DestroyRqtIn, DestroyRqtOut, ModifyRqtIn, ModifyRqtOut, QueryRqtIn,
    QueryRqtOut, RqNum, Rqtc,
};
use zerocopy::{FromBytes, IntoBytes};

pub(super) fn create_rqt(cmd: &mut Cmd<'_>) -> Outcome {
    ethernet(cmd)?;
    let input = cmd.read();
    let mut out = CreateRqtOut::new();
    out.set_rqtn(create(cmd, &input)?);
    output(&out)
}

pub(super) fn modify_rqt(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    modify(cmd, &input)?;
    output(&ModifyRqtOut::new())
}

pub(super) fn destroy_rqt(cmd: &mut Cmd<'_>) -> Outcome {
    destroy(cmd, cmd.read::<DestroyRqtIn>().rqtn())?;
    output(&DestroyRqtOut::new())
}

/// Executes QUERY_RQT. The entries follow the context.
pub(super) fn query_rqt(cmd: &mut Cmd<'_>) -> Outcome {
    let (context, entries) = query(cmd, cmd.read::<QueryRqtIn>().rqtn())?;
    let mut out = QueryRqtOut::new();
    out.set_rqt_context(&context);
    let mut bytes = out.as_bytes().to_vec();
    bytes.extend(entries.iter().flat_map(|rqn| rqn.to_be_bytes()));
    Ok(bytes)
}

/// Executes CREATE_RQT. The entries follow the context.
///
/// # Errors
/// Sizes that are not powers of two or too large, or a receive queue that does not exist.
fn create(cmd: &mut Cmd<'_>, input: &CreateRqtIn) -> Result<u32, Refusal> {
    let context = input.rqt_context();
    let (room, size) = (context.rqt_max_size(), context.rqt_actual_size());
    let log_most = cmd.nic.caps.general.log_max_rqt_size();
    if context.list_q_type() != 0 || context.rq_vhca_id_format() {
        return Err(refuse!(BAD_PARAM, "RQ table of something else than RQs"));
    }
    if !room.is_power_of_two() || room > 1 << log_most {
        return Err(refuse!(EXCEED_LIM, "room of an RQ table", "{room}"));
    }
    let entries = list(cmd, size, room)?;
    let objects = &mut cmd.nic.objects.eth;
    let number = objects.rqts.create(Rqt {
        context: context.clone(),
        entries: entries.clone(),
    })?;
    for rqn in entries {
        objects.rqs.hold(rqn)?;
    }
    Ok(number)
}

/// Returns the `size` receive queue numbers that follow the context. All of these queues must exist.
fn list(cmd: &Cmd<'_>, size: u32, room: u32) -> Result<Vec<u32>, Refusal> {
    if !size.is_power_of_two() || size > room {
        return Err(refuse!(BAD_PARAM, "entries of an RQ table", "{size}"));
    }
    let bytes = usize::try_from(size).unwrap_or(usize::MAX) * RqNum::SIZE;
    let list = cmd.input.get(PAGE_LIST..PAGE_LIST + bytes).ok_or_else(|| {
        refuse!(
            BAD_INPUT_LEN,
            "list longer than the input",
            "{size} entries"
        )
    })?;
    let entries: Vec<u32> = list
        .chunks_exact(RqNum::SIZE)
        .filter_map(|bytes| RqNum::read_from_bytes(bytes).ok())
        .map(|entry| entry.rq_num())
        .collect();
    for &rqn in &entries {
        must_exist(&cmd.nic.objects.eth.rqs, rqn)?;
    }
    Ok(entries)
}

/// Executes MODIFY_RQT, which replaces the entries. The number of entries may change.
///
/// # Errors
/// No such table, a number of entries that is not a power of two or is more than the table can hold, or a receive queue
/// that does not exist.
fn modify(cmd: &mut Cmd<'_>, input: &ModifyRqtIn) -> Result<(), Refusal> {
    let number = input.rqtn();
    let Some(table) = cmd.nic.objects.eth.rqts.named(number) else {
        return Err(refuse!(BAD_RESOURCE, "no such RQ table", "{number:#x}"));
    };
    if !input.bitmask_rqn_list() {
        return Ok(());
    }
    let size = input.ctx().rqt_actual_size();
    let entries = list(cmd, size, table.context.rqt_max_size())?;
    let objects = &mut cmd.nic.objects.eth;
    for &rqn in &entries {
        objects.rqs.hold(rqn)?;
    }
    if let Some(table) = objects.rqts.get_mut(number) {
        table.context.set_rqt_actual_size(size);
        let before = std::mem::replace(&mut table.entries, entries);
        for rqn in before {
            objects.rqs.release(rqn);
        }
    }
    Ok(())
}

/// Executes QUERY_RQT. Returns context and entries.
///
/// # Errors
/// No such table.
fn query(cmd: &mut Cmd<'_>, number: u32) -> Result<(Rqtc, Vec<u32>), Refusal> {
    let found = cmd.nic.objects.eth.rqts.named(number);
    let table = found.ok_or_else(|| refuse!(BAD_RESOURCE, "no such RQ table", "{number:#x}"))?;
    Ok((table.context.clone(), table.entries.clone()))
}

/// Executes DESTROY_RQT.
///
/// # Errors
/// No such table, or a TIR uses it.
fn destroy(cmd: &mut Cmd<'_>, number: u32) -> Result<(), Refusal> {
    let objects = &mut cmd.nic.objects.eth;
    for rqn in objects.rqts.remove(number)?.entries {
        objects.rqs.release(rqn);
    }
    Ok(())
}
