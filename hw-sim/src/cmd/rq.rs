//! Receive queue commands.

use super::umem::queue_memory;
use super::vport::ethernet;
use super::{Cmd, Outcome, Refusal, must_exist, output, refuse, ts_format};
use crate::eth::State;
use crate::eth::rq::{Rq, RqSlot};
use crate::qp::receive_queue::ReceiveQueue;
use crate::qp::ring::Rings;
use mlx_prm::{
    CreateRqIn, CreateRqOut, DestroyRqIn, DestroyRqOut, ModifyRqBitmask, ModifyRqIn, ModifyRqOut,
    QueryRqIn, QueryRqOut, Rqc,
};

/// Log2 of the bytes of the shortest WQE, which is one data segment.
const LOG_MIN_STRIDE: u32 = 4;
/// `mem_rq_type` of a queue that has its own WQEs.
const OWN_QUEUE: u32 = 0;

pub(super) fn create_rq(cmd: &mut Cmd<'_>) -> Outcome {
    ethernet(cmd)?;
    let input = cmd.read();
    let mut out = CreateRqOut::new();
    out.set_rqn(create(cmd, &input)?);
    output(&out)
}

pub(super) fn modify_rq(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    modify(cmd, &input)?;
    output(&ModifyRqOut::new())
}

pub(super) fn destroy_rq(cmd: &mut Cmd<'_>) -> Outcome {
    destroy(cmd, cmd.read::<DestroyRqIn>().rqn())?;
    output(&DestroyRqOut::new())
}

pub(super) fn query_rq(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = QueryRqOut::new();
    out.set_rq_context(&query(cmd, cmd.read::<QueryRqIn>().rqn())?);
    output(&out)
}

/// Executes CREATE_RQ.
///
/// # Errors
/// A feature that the device does not have or that a user context may not use, a state other than reset, an object that
/// does not exist, or a ring that is not fully mapped.
fn create(cmd: &mut Cmd<'_>, input: &CreateRqIn) -> Result<u32, Refusal> {
    let context = input.ctx();
    let wq = context.wq();
    if context.mem_rq_type() != OWN_QUEUE || context.hairpin() || context.delay_drop_en() {
        return Err(refuse!(BAD_PARAM, "RQ of an RMP, hairpin or delay drop"));
    }
    ts_format::of_receive_queue(cmd.nic.caps.general.rq_ts_format(), context.ts_format())?;
    fcs(cmd, context)?;
    cmd.of_the_driver(context.rlky(), "RQ with the reserved lkey")?;
    created_in_reset(context.state())?;
    let objects = &cmd.nic.objects;
    must_exist(&objects.cqs, context.cqn())?;
    // A queue that drops all frames does not access memory and may have no PD (Linux `mlx5e_build_drop_rq_param` gives
    // 0).
    let pd = Some(wq.pd()).filter(|&pd| pd != 0);
    if let Some(pd) = pd {
        must_exist(&objects.pds, pd)?;
    }
    counter_set(cmd, context)?;
    let log_most = cmd.nic.caps.general.max_wqe_sz_rq().max(1).ilog2();
    let (memory, places) = queue_memory(cmd, wq, [LOG_MIN_STRIDE, log_most])?;
    let rings = Rings::of_receive_queue(wq, memory);
    let objects = &mut cmd.nic.objects;
    let number = objects.eth.rqs.reserve()?;
    let cqn = context.cqn();
    objects.cqs.hold(cqn)?;
    if let Some(pd) = pd {
        objects.pds.hold(pd)?;
    }
    places.hold(&mut objects.umems)?;
    let set = context.counter_set_id();
    if set != 0 {
        objects.counters.hold(set)?;
    }
    let rq = Rq {
        number,
        state: State::Reset,
        context: context.clone(),
        rings,
        queue: ReceiveQueue::default(),
    };
    objects.eth.rqs.insert(
        number,
        RqSlot {
            rq: Some(Box::new(rq)),
            cqn,
            pd,
            places,
        },
    );
    Ok(number)
}

/// Checks that the state in a new queue's context is reset.
pub(super) fn created_in_reset(code: u32) -> Result<(), Refusal> {
    if State::of(code) != Some(State::Reset) {
        return Err(refuse!(BAD_PARAM, "a queue is created in reset", "{code}"));
    }
    Ok(())
}

/// Refuses scattering of the FCS without its capability. Simulated frames have no FCS.
fn fcs(cmd: &Cmd<'_>, context: &Rqc) -> Result<(), Refusal> {
    if context.scatter_fcs() && !cmd.nic.caps.eth_offloads.scatter_fcs() {
        return Err(refuse!(BAD_PARAM, "scatter of the FCS is not supported"));
    }
    Ok(())
}

/// Checks that the counter set exists. Set 0 is the default.
fn counter_set(cmd: &Cmd<'_>, context: &Rqc) -> Result<(), Refusal> {
    match context.counter_set_id() {
        0 => Ok(()),
        set => must_exist(&cmd.nic.objects.counters, set),
    }
}

/// Executes MODIFY_RQ, which changes fields and the state.
///
/// # Errors
/// No such queue; its state is not `rq_state`; no such transition; no such counter set; the FCS cannot be scattered.
fn modify(cmd: &mut Cmd<'_>, input: &ModifyRqIn) -> Result<(), Refusal> {
    let number = input.rqn();
    let select: &ModifyRqBitmask = input.modify_bitmask();
    let wanted = input.ctx();
    if select.scatter_fcs() {
        fcs(cmd, wanted)?;
    }
    if select.counter_set_id() {
        counter_set(cmd, wanted)?;
    }
    let mut changed_set = None;
    let rq = find(cmd, number)?;
    let next = rq.state.modified(input.rq_state(), wanted.state())?;
    let context = &mut rq.context;
    if select.vsd() {
        context.set_vsd(wanted.vsd());
    }
    if select.scatter_fcs() {
        context.set_scatter_fcs(wanted.scatter_fcs());
    }
    if select.counter_set_id() {
        let before = context.counter_set_id();
        context.set_counter_set_id(wanted.counter_set_id());
        changed_set = Some((before, wanted.counter_set_id()));
    }
    if select.lwm() {
        context.wq_mut().set_lwm(wanted.wq().lwm());
    }
    match next {
        State::Ready => rq.state = next,
        State::Reset => {
            rq.state = next;
            rq.queue = ReceiveQueue::default();
        }
        State::Error => {
            cmd.nic.with_rq(cmd.env, number, |rq, view| rq.fail(view));
        }
    }
    if let Some((before, now)) = changed_set {
        let counters = &mut cmd.nic.objects.counters;
        if now != 0 {
            counters.hold(now)?;
        }
        counters.release(before);
    }
    Ok(())
}

/// Executes QUERY_RQ. Returns the current context.
///
/// # Errors
/// No such queue.
fn query(cmd: &mut Cmd<'_>, number: u32) -> Result<Rqc, Refusal> {
    Ok(find(cmd, number)?.query())
}

/// Executes DESTROY_RQ.
///
/// # Errors
/// No such queue, or a TIR or RQ table names it.
fn destroy(cmd: &mut Cmd<'_>, number: u32) -> Result<(), Refusal> {
    let objects = &mut cmd.nic.objects;
    let slot = objects.eth.rqs.remove(number)?;
    objects.cqs.release(slot.cqn);
    if let Some(pd) = slot.pd {
        objects.pds.release(pd);
    }
    slot.places.release(&mut objects.umems);
    if let Some(rq) = slot.rq {
        objects.counters.release(rq.counter_set());
    }
    Ok(())
}

fn find<'c>(cmd: &'c mut Cmd<'_>, number: u32) -> Result<&'c mut Rq, Refusal> {
    let slot = cmd.nic.objects.eth.rqs.named_mut(number);
    slot.and_then(|slot| slot.rq.as_deref_mut())
        .ok_or_else(|| refuse!(BAD_RESOURCE, "no such RQ", "{number:#x}"))
}
