//! Send queue commands.

use super::rq::created_in_reset;
use super::umem::queue_memory;
use super::vport::ethernet;
use super::{Cmd, Outcome, Refusal, must_exist, output, refuse, ts_format};
use crate::eth::State;
use crate::eth::sq::{Sq, SqSlot};
use crate::eth::transmit::Inline;
use crate::qp::ring::Rings;
use crate::qp::send_queue::SendQueue;
use crate::uctx::RAW_TX;
use mlx_prm::{
    CreateSqIn, CreateSqOut, DestroySqIn, DestroySqOut, ModifySqIn, ModifySqOut, QuerySqIn,
    QuerySqOut, Sqc,
};

/// Log2 of the bytes of a WQE basic block.
const LOG_WQEBB: u32 = 6;

pub(super) fn create_sq(cmd: &mut Cmd<'_>) -> Outcome {
    ethernet(cmd)?;
    let input = cmd.read();
    let mut out = CreateSqOut::new();
    out.set_sqn(create(cmd, &input)?);
    output(&out)
}

pub(super) fn modify_sq(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    modify(cmd, &input)?;
    output(&ModifySqOut::new())
}

pub(super) fn destroy_sq(cmd: &mut Cmd<'_>) -> Outcome {
    destroy(cmd, cmd.read::<DestroySqIn>().sqn())?;
    output(&DestroySqOut::new())
}

pub(super) fn query_sq(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = QuerySqOut::new();
    out.set_sq_context(&query(cmd, cmd.read::<QuerySqIn>().sqn())?);
    output(&out)
}

/// Executes CREATE_SQ.
///
/// # Errors
/// A feature that the device does not have or that a user context may not use, a state other than reset, an object that
/// does not exist, or a ring that is not fully mapped.
fn create(cmd: &mut Cmd<'_>, input: &CreateSqIn) -> Result<u32, Refusal> {
    let context = input.ctx();
    let wq = context.wq();
    if context.hairpin() || context.cd_master() || context.non_wire() || context.reg_umr() {
        return Err(refuse!(BAD_PARAM, "SQ for hairpin, waiting or UMR"));
    }
    if context.allow_multi_pkt_send_wqe() || context.allow_swp() {
        return Err(refuse!(
            BAD_PARAM,
            "SQ with multi-packet WQEs or software parser"
        ));
    }
    if context.ts_cqe_to_dest_cqn() != 0 || context.packet_pacing_rate_limit_index() != 0 {
        return Err(refuse!(
            BAD_PARAM,
            "SQ with timestamps elsewhere, or a rate"
        ));
    }
    ts_format::of_send_queue(cmd.nic.caps.general.sq_ts_format(), context.ts_format())?;
    if Inline::of(context.min_wqe_inline_mode()).is_none() {
        return Err(refuse!(
            BAD_PARAM,
            "inline mode",
            "{}",
            context.min_wqe_inline_mode()
        ));
    }
    if !cmd.may(RAW_TX) {
        // This refusal is inferred: the right has no other purpose.
        return Err(refuse!(
            BAD_PARAM,
            "SQ of a user context without the right to raw frames"
        ));
    }
    cmd.of_the_driver(context.rlky(), "SQ with the reserved lkey")?;
    created_in_reset(context.state())?;
    let objects = &cmd.nic.objects;
    must_exist(&objects.cqs, context.cqn())?;
    must_exist(&objects.pds, wq.pd())?;
    must_exist(&objects.uars, wq.uar_page())?;
    let tis = match context.tis_lst_sz() {
        0 => None,
        1 => Some(context.tis_num_0()),
        other => return Err(refuse!(BAD_PARAM, "TISes of an SQ", "{other}")),
    };
    if let Some(tis) = tis {
        must_exist(&objects.eth.tises, tis)?;
    }
    let (memory, places) = queue_memory(cmd, wq, [LOG_WQEBB, LOG_WQEBB])?;
    let rings = Rings::of_send_queue(wq, memory);
    let objects = &mut cmd.nic.objects;
    let number = objects.eth.sqs.reserve()?;
    let (cqn, pd, uar) = (context.cqn(), wq.pd(), wq.uar_page());
    objects.cqs.hold(cqn)?;
    objects.pds.hold(pd)?;
    objects.uars.hold(uar)?;
    if let Some(tis) = tis {
        objects.eth.tises.hold(tis)?;
    }
    places.hold(&mut objects.umems)?;
    let sq = Sq {
        number,
        state: State::Reset,
        context: context.clone(),
        rings,
        queue: SendQueue::default(),
    };
    objects.eth.sqs.insert(
        number,
        SqSlot {
            sq: Some(Box::new(sq)),
            cqn,
            uar,
            queued: false,
            pd,
            tis,
            places,
        },
    );
    Ok(number)
}

/// Executes MODIFY_SQ, which changes the state. This device has no other field to modify.
///
/// # Errors
/// No such queue; its state is not `sq_state`; no such transition; a rate limit or a queue group.
fn modify(cmd: &mut Cmd<'_>, input: &ModifySqIn) -> Result<(), Refusal> {
    let (number, wanted) = (input.sqn(), input.ctx());
    let select = input.modify_bitmask();
    if select.packet_pacing_rate_limit_index() && wanted.packet_pacing_rate_limit_index() != 0 {
        return Err(refuse!(BAD_PARAM, "packet pacing is not supported"));
    }
    if select.qos_queue_group_id() && wanted.qos_queue_group_id() != 0 {
        return Err(refuse!(BAD_PARAM, "queue groups are not supported"));
    }
    let sq = find(cmd, number)?;
    let next = sq.state.modified(input.sq_state(), wanted.state())?;
    cmd.nic.with_sq(cmd.env, number, |sq, view| {
        match next {
            State::Ready => {}
            State::Reset => sq.queue = SendQueue::default(),
            State::Error => {
                // Requests that are posted but not yet read are flushed too. `read_record` itself reports a bad record.
                let _ = sq.queue.read_record(&sq.rings, view);
            }
        }
        sq.state = next;
    });
    Ok(())
}

/// Executes QUERY_SQ. Returns the current context.
///
/// # Errors
/// No such queue.
fn query(cmd: &mut Cmd<'_>, number: u32) -> Result<Sqc, Refusal> {
    Ok(find(cmd, number)?.query())
}

/// Executes DESTROY_SQ.
///
/// # Errors
/// No such queue.
fn destroy(cmd: &mut Cmd<'_>, number: u32) -> Result<(), Refusal> {
    let objects = &mut cmd.nic.objects;
    let slot = objects.eth.sqs.remove(number)?;
    objects.cqs.release(slot.cqn);
    objects.pds.release(slot.pd);
    objects.uars.release(slot.uar);
    if let Some(tis) = slot.tis {
        objects.eth.tises.release(tis);
    }
    slot.places.release(&mut objects.umems);
    Ok(())
}

fn find<'c>(cmd: &'c mut Cmd<'_>, number: u32) -> Result<&'c mut Sq, Refusal> {
    let slot = cmd.nic.objects.eth.sqs.named_mut(number);
    slot.and_then(|slot| slot.sq.as_deref_mut())
        .ok_or_else(|| refuse!(BAD_RESOURCE, "no such SQ", "{number:#x}"))
}
