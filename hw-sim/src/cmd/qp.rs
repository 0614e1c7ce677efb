//! Queue pair commands: the part that concerns the function. The context itself and the state machine are in
//! [`crate::qp`].

use super::umem::QueuePlace;
use super::{Cmd, Outcome, PAGE_LIST, Refusal, output, refuse, ts_format};
use crate::object_tables::QpRefs;
use crate::objects::Table;
use crate::profile::PortType;
use crate::qp::{Qp, QueueMemory, Transition, needs_wide_entries, queue_bytes};
use crate::umem::Places;
use mlx_prm::{
    CmdStatus, CreateQpIn, CreateQpOut, DestroyQpIn, DestroyQpOut, Qpc, QueryQpIn, QueryQpOut,
    Rst2InitQpIn, Rst2InitQpOut, ServiceType, ToErrQpIn, ToErrQpOut, ToRstQpIn, ToRstQpOut,
};
use std::borrow::Cow;
use zerocopy::IntoBytes;

const RQ_OWN: u32 = 0;
const RQ_SHARED: u32 = 1;
const RQ_NONE: u32 = 3;
/// Log2 of the unit of `log_rq_stride`, 16 bytes.
const LOG_RQ_UNIT: u32 = 4;

pub(super) fn create_qp(cmd: &mut Cmd<'_>) -> Outcome {
    let input: CreateQpIn = cmd.read();
    let context = input.qpc();
    if input.qpc_ext() && !cmd.nic.caps.general.qpc_extension() {
        return Err(refuse!(BAD_PARAM, "QPC extension is not supported"));
    }
    if input.input_qpn() != 0 || input.opt_param_mask() != 0 {
        return Err(refuse!(
            BAD_PARAM,
            "input_qpn and opt_param_mask are zero in CREATE_QP"
        ));
    }
    let service = service_type(cmd, context)?;
    ts_format::of_queue_pair(cmd.nic.caps.roce.qp_ts_format(), context.ts_format())?;
    of_the_driver(cmd, context, service)?;
    let refs = references(cmd, context, service)?;
    sizes(cmd, context)?;
    let umem = input
        .wq_umem_valid()
        .then(|| (input.wq_umem_id(), input.wq_umem_offset()));
    let record_umem = context.dbr_umem_valid().then(|| context.dbr_umem_id());
    let (doorbell_record, record) = if has_queues(context) {
        cmd.record(record_umem, context.dbr_addr())?
    } else {
        (0, None)
    };
    let buffer = cmd.queue(QueuePlace {
        umem,
        log_page_size: context.log_page_size(),
        page_offset: context.page_offset(),
        bytes: queue_bytes(context),
        written: false,
    })?;
    let pages = match umem {
        Some(_) => Vec::new(),
        None => buffer.pages().to_vec(),
    };
    let refs = QpRefs {
        places: Places {
            queue: umem.map(|(number, _)| number),
            record,
        },
        ..refs
    };
    let number = cmd.nic.objects.qps.reserve()?;
    let memory = QueueMemory {
        buffer,
        doorbell_record,
    };
    let qp = Qp::create(number, context, memory)
        .map_err(|status| refused(status, "queue pair context"))?;
    hold(cmd, refs)?;
    cmd.nic.insert_qp(number, qp, service.bits(), refs, pages);
    match service {
        ServiceType::QP0 => cmd.nic.smi = Some(number),
        ServiceType::QP1 => cmd.nic.gsi = Some(number),
        _ => {}
    }
    let mut out = CreateQpOut::new();
    out.set_qpn(number);
    output(&out)
}

fn has_queues(context: &Qpc) -> bool {
    !context.no_sq() || context.rq_type() == RQ_OWN
}

fn service_type(cmd: &Cmd<'_>, context: &Qpc) -> Result<ServiceType, Refusal> {
    let service = ServiceType::from_bits(context.st());
    let caps = &cmd.nic.caps.general;
    let supported = match service {
        ServiceType::RC => caps.rc(),
        ServiceType::UC => caps.uc(),
        ServiceType::UD => caps.ud(),
        ServiceType::XRC => caps.xrc(),
        // Subnet management exists on InfiniBand ports only.
        ServiceType::QP0 => cmd.nic.profile.port_type == PortType::InfiniBand,
        ServiceType::QP1 => true,
        // Queue pair for the UMR work requests of the whole function.
        ServiceType::REG_UMR => !caps.umr_modify_entity_size_disabled(),
        _ => false,
    };
    if !supported {
        return Err(refuse!(
            BAD_PARAM,
            "service type is not supported",
            "{service:?}"
        ));
    }
    let taken = match service {
        ServiceType::QP0 => cmd.nic.smi,
        ServiceType::QP1 => cmd.nic.gsi,
        _ => None,
    };
    if taken.is_some() {
        return Err(refuse!(
            EXCEED_LIM,
            "the port has its management QP already"
        ));
    }
    Ok(service)
}

/// Refuses a queue pair that only the driver may have, if a user context creates it. Such a queue pair accesses memory
/// without a key (`rlky`), registers pages (`fre`), changes keys of all protection domains (REG_UMR) or manages the
/// port (QP0, QP1). Linux `_create_kernel_qp` in drivers/infiniband/hw/mlx5/qp.c sets `rlky` and `fre` for the
/// kernel's queue pairs. UCX' and rdma-core's contexts set neither.
fn of_the_driver(cmd: &Cmd<'_>, context: &Qpc, service: ServiceType) -> Result<(), Refusal> {
    let is_drivers = matches!(
        service,
        ServiceType::QP0 | ServiceType::QP1 | ServiceType::REG_UMR
    );
    cmd.of_the_driver(context.rlky(), "QP with the reserved lkey")?;
    cmd.of_the_driver(context.fre(), "QP with fast registration")?;
    cmd.of_the_driver(is_drivers, "service type QP0, QP1 or REG_UMR")
}

/// Returns the objects that a context names. All of them must exist.
fn references(cmd: &Cmd<'_>, context: &Qpc, service: ServiceType) -> Result<QpRefs, Refusal> {
    let objects = &cmd.nic.objects;
    // The UMR queue pair is in no protection domain: its PD field is 0 (Linux `create_kernel_qp` in
    // drivers/infiniband/hw/mlx5/qp.c).
    let pd = Some(context.pd()).filter(|&pd| pd != 0 || service != ServiceType::REG_UMR);
    if let Some(pd) = pd {
        must_exist(&objects.pds, pd)?;
    }
    // The receive-only end of an XRC connection has no queue of its own, so it needs no doorbells. Linux writes 0 as
    // UAR page and doorbell record (`create_xrc_tgt_qp` in drivers/infiniband/hw/mlx5/qp.c).
    let uar = has_queues(context).then(|| context.uar_page());
    if let Some(uar) = uar {
        must_exist(&objects.uars, uar)?;
    }
    must_exist(&objects.cqs, context.cqn_snd())?;
    must_exist(&objects.cqs, context.cqn_rcv())?;
    let srqn = match context.rq_type() {
        RQ_SHARED => {
            let number = context.srqn_rmpn_xrqn();
            // The RMP's protection domain may differ from the queue pair's: the RMP has its own (`wq.pd`).
            if !objects.rmps.contains(number) {
                return Err(refuse!(BAD_RESOURCE, "no such RMP", "{number:#x}"));
            }
            Some(number)
        }
        // Drivers fill in a dummy SRQ number, which is ignored.
        RQ_OWN | RQ_NONE => None,
        other => return Err(refuse!(BAD_PARAM, "receive queue type", "{other}")),
    };
    // For RC, drivers name an XRC domain or write 0.
    let xrcd = Some(context.xrcd()).filter(|&xrcd| objects.xrcds.contains(xrcd));
    if xrcd.is_none() && service == ServiceType::XRC {
        return Err(refuse!(
            BAD_RESOURCE,
            "no such XRC domain",
            "{:#x}",
            context.xrcd()
        ));
    }
    let counter = Some(context.counter_set_id()).filter(|&set| set != 0);
    if let Some(set) = counter {
        must_exist(&objects.counters, set)?;
    }
    Ok(QpRefs {
        pd,
        uar,
        cqn_snd: context.cqn_snd(),
        cqn_rcv: context.cqn_rcv(),
        srqn,
        xrcd,
        counter,
        places: Places::default(),
    })
}

fn must_exist<T>(table: &Table<T>, number: u32) -> Result<(), Refusal> {
    if table.contains(number) {
        return Ok(());
    }
    Err(refuse!(
        BAD_RESOURCE,
        "object named by the context does not exist",
        "{} {number:#x}",
        table.kind()
    ))
}

fn sizes(cmd: &Cmd<'_>, context: &Qpc) -> Result<(), Refusal> {
    let caps = &cmd.nic.caps.general;
    let stride = 1 << (context.log_rq_stride() + LOG_RQ_UNIT);
    if context.log_rq_size() > caps.log_max_qp_sz() || context.log_sq_size() > caps.log_max_qp_sz()
    {
        return Err(refuse!(
            EXCEED_LIM,
            "queue size",
            "RQ 2^{} SQ 2^{}",
            context.log_rq_size(),
            context.log_sq_size()
        ));
    }
    let least = least_log_sq_size(context);
    if !context.no_sq() && context.log_sq_size() < least {
        return Err(refuse!(
            BAD_PARAM,
            "send queue smaller than any known driver's",
            "2^{} of 2^{least} blocks",
            context.log_sq_size()
        ));
    }
    if stride > caps.max_wqe_sz_rq() {
        return Err(refuse!(EXCEED_LIM, "receive WQE stride", "{stride}"));
    }
    if context.rq_type() != RQ_OWN && context.log_rq_size() != 0 {
        return Err(refuse!(
            BAD_PARAM,
            "receive queue size without a receive queue",
            "2^{}",
            context.log_rq_size()
        ));
    }
    if context.wq_signature() && !caps.wq_signature() {
        return Err(refuse!(BAD_PARAM, "WQE signatures are not supported"));
    }
    if (context.cs_req() != 0 || context.cs_res() != 0) && !caps.sctr_data_cqe() {
        return Err(refuse!(BAD_PARAM, "scatter to CQE is not supported"));
    }
    // Inferred: data of 64 bytes needs entries of 128 bytes. In a queue of 64-byte entries the data would overwrite the
    // previous entry.
    let (send, receive) = needs_wide_entries(context);
    for (wide, cqn) in [(send, context.cqn_snd()), (receive, context.cqn_rcv())] {
        let cq = cmd.nic.objects.cqs.named(cqn);
        if wide && cq.is_none_or(|cq| cq.cqe_offset == 0) {
            return Err(refuse!(
                BAD_PARAM,
                "64 bytes scattered to entries of 64 bytes",
                "CQ {cqn:#x}"
            ));
        }
    }
    Ok(())
}

/// Returns log2 of the number of blocks in the smallest send queue that a known driver creates. Inferred: drivers
/// reserve at least 128 bytes for each request of a datagram queue pair (rdma-core `mlx5_calc_sq_size`, Linux
/// `calc_sq_size`). A connected queue pair with a single block was observed: perftest's `ib_send_bw -R` over rdma-core
/// 56.
fn least_log_sq_size(context: &Qpc) -> u32 {
    match ServiceType::from_bits(context.st()) {
        ServiceType::UD | ServiceType::QP0 | ServiceType::QP1 => 1,
        _ => 0,
    }
}

fn hold(cmd: &mut Cmd<'_>, refs: QpRefs) -> Result<(), Refusal> {
    let objects = &mut cmd.nic.objects;
    if let Some(pd) = refs.pd {
        objects.pds.hold(pd)?;
    }
    if let Some(uar) = refs.uar {
        objects.uars.hold(uar)?;
    }
    objects.cqs.hold(refs.cqn_snd)?;
    objects.cqs.hold(refs.cqn_rcv)?;
    if let Some(srqn) = refs.srqn {
        objects.rmps.hold(srqn)?;
    }
    if let Some(xrcd) = refs.xrcd {
        objects.xrcds.hold(xrcd)?;
    }
    if let Some(counter) = refs.counter {
        objects.counters.hold(counter)?;
    }
    refs.places.hold(&mut objects.umems)?;
    Ok(())
}

fn release(cmd: &mut Cmd<'_>, refs: QpRefs) {
    let objects = &mut cmd.nic.objects;
    if let Some(pd) = refs.pd {
        objects.pds.release(pd);
    }
    if let Some(uar) = refs.uar {
        objects.uars.release(uar);
    }
    objects.cqs.release(refs.cqn_snd);
    objects.cqs.release(refs.cqn_rcv);
    if let Some(srqn) = refs.srqn {
        objects.rmps.release(srqn);
    }
    if let Some(xrcd) = refs.xrcd {
        objects.xrcds.release(xrcd);
    }
    if let Some(counter) = refs.counter {
        objects.counters.release(counter);
    }
    refs.places.release(&mut objects.umems);
}

/// Executes DESTROY_QP, which is accepted in every state. Posted requests are dropped without completions.
pub(super) fn destroy_qp(cmd: &mut Cmd<'_>) -> Outcome {
    let number = cmd.read::<DestroyQpIn>().qpn();
    let slot = cmd.nic.objects.qps.remove(number)?;
    let index = cmd.nic.index;
    cmd.env
        .runnable
        .retain(|&waiting| waiting != (index, number));
    if let Some(due) = slot.timer {
        cmd.env.qp_timers.remove(&(due, index, number));
    }
    for management in [&mut cmd.nic.smi, &mut cmd.nic.gsi] {
        if *management == Some(number) {
            *management = None;
        }
    }
    release(cmd, slot.refs);
    output(&DestroyQpOut::new())
}

pub(super) fn query_qp(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryQpIn = cmd.read();
    if input.qpc_ext() && !cmd.nic.caps.general.qpc_extension() {
        return Err(refuse!(BAD_PARAM, "QPC extension is not supported"));
    }
    let Some(slot) = cmd.nic.objects.qps.named(input.qpn()) else {
        return Err(refuse!(BAD_RESOURCE, "no such QP", "{:#x}", input.qpn()));
    };
    let mut out = QueryQpOut::new();
    if let Some(qp) = &slot.qp {
        out.set_qpc(&qp.query());
    }
    let mut bytes = out.as_bytes()[..PAGE_LIST].to_vec();
    if !cmd.nic.profile.hides_page_lists {
        bytes.extend(slot.pages.iter().flat_map(|page| page.to_be_bytes()));
    }
    Ok(bytes)
}

pub(super) fn rst2init(cmd: &mut Cmd<'_>) -> Outcome {
    modify(cmd, Transition::RstToInit)
}

pub(super) fn init2init(cmd: &mut Cmd<'_>) -> Outcome {
    modify(cmd, Transition::InitToInit)
}

pub(super) fn init2rtr(cmd: &mut Cmd<'_>) -> Outcome {
    // Inferred: RoCE must be enabled before a queue pair may use the port.
    if cmd.nic.profile.port_type == PortType::Ethernet && !cmd.port().roce {
        return Err(refuse!(BAD_SYS_STATE, "RoCE is not enabled on the vport"));
    }
    let input: Rst2InitQpIn = cmd.read();
    let forced = input.qpc().primary_address_path().fl();
    if forced && cmd.nic.profile.port_type == PortType::Ethernet {
        // Forced loopback is for RC only, and needs this capability (rdma-core `dr_send_allow_fl`, and Linux).
        let may = cmd.nic.caps.roce.fl_rc_qp_when_roce_enabled();
        if !may || input.qpc().st() != ServiceType::RC.bits() {
            return Err(refuse!(
                BAD_PARAM,
                "forced loopback without that capability"
            ));
        }
    }
    modify(cmd, Transition::InitToRtr)
}

pub(super) fn rtr2rts(cmd: &mut Cmd<'_>) -> Outcome {
    modify(cmd, Transition::RtrToRts)
}

pub(super) fn rts2rts(cmd: &mut Cmd<'_>) -> Outcome {
    modify(cmd, Transition::RtsToRts)
}

pub(super) fn sqerr2rts(cmd: &mut Cmd<'_>) -> Outcome {
    modify(cmd, Transition::SqErrToRts)
}

pub(super) fn sqd2rts(cmd: &mut Cmd<'_>) -> Outcome {
    modify(cmd, Transition::SqdToRts)
}

/// Executes a transition command that carries a context. All these commands have the layout of RST2INIT_QP.
fn modify(cmd: &mut Cmd<'_>, transition: Transition) -> Outcome {
    let input: Rst2InitQpIn = cmd.read();
    let (number, mask) = (input.qpn(), input.opt_param_mask());
    if !cmd.nic.objects.qps.contains(number) {
        return Err(refuse!(BAD_RESOURCE, "no such QP", "{number:#x}"));
    }
    if input.qpc().rae() && !cmd.nic.caps.general.atomic() {
        return Err(refuse!(BAD_PARAM, "remote atomics without that capability"));
    }
    // Only the receive CQ, the SRQ and the counter set can change. The queue pair keeps all other references, even if
    // the context names other objects.
    let before = cmd.nic.objects.qps.named(number).map(|slot| slot.refs);
    let after = changed_references(cmd, transition, &input, before)?;
    let done = cmd.nic.with_qp(cmd.env, number, |qp, view| {
        qp.modify(transition, mask, input.qpc(), view)
    });
    match done {
        Some(Ok(())) => {}
        Some(Err(status)) => return Err(refused(status, "queue pair transition")),
        None => return Err(refuse!(RESOURCE_BUSY, "queue pair is busy")),
    }
    if let (Some(before), Some(after)) = (before, after)
        && before != after
    {
        hold(cmd, after)?;
        release(cmd, before);
        if let Some(slot) = cmd.nic.objects.qps.named_mut(number) {
            slot.refs = after;
        }
    }
    output(&Rst2InitQpOut::new())
}

/// Bits of `opt_param_mask` for parameters that name other objects.
const OPT_SRQN: u32 = 1 << 18;
const OPT_CQN_RCV: u32 = 1 << 19;
const OPT_COUNTER_SET: u32 = 1 << 25;

fn changed_references(
    cmd: &Cmd<'_>,
    transition: Transition,
    input: &Rst2InitQpIn,
    before: Option<QpRefs>,
) -> Result<Option<QpRefs>, Refusal> {
    let Some(mut refs) = before else {
        return Ok(None);
    };
    let (mask, context, objects) = (input.opt_param_mask(), input.qpc(), &cmd.nic.objects);
    // Only UD queue pairs have this bit. They cannot scatter data to CQEs, so the new CQ may have entries of any size.
    if mask & OPT_CQN_RCV != 0 {
        must_exist(&objects.cqs, context.cqn_rcv())?;
        refs.cqn_rcv = context.cqn_rcv();
    }
    if mask & OPT_SRQN != 0 && refs.srqn.is_some() {
        must_exist(&objects.rmps, context.srqn_rmpn_xrqn())?;
        refs.srqn = Some(context.srqn_rmpn_xrqn());
    }
    // RST2INIT sets the counter set without its mask bit.
    if mask & OPT_COUNTER_SET != 0 || transition == Transition::RstToInit {
        let set = context.counter_set_id();
        if set != 0 {
            must_exist(&objects.counters, set)?;
        }
        refs.counter = Some(set).filter(|&set| set != 0);
    }
    Ok(Some(refs))
}

pub(super) fn to_err(cmd: &mut Cmd<'_>) -> Outcome {
    simple(cmd, cmd.read::<ToErrQpIn>().qpn(), Transition::ToErr)?;
    output(&ToErrQpOut::new())
}

pub(super) fn to_rst(cmd: &mut Cmd<'_>) -> Outcome {
    simple(cmd, cmd.read::<ToRstQpIn>().qpn(), Transition::ToRst)?;
    output(&ToRstQpOut::new())
}

/// Executes a transition command that carries no context.
fn simple(cmd: &mut Cmd<'_>, number: u32, transition: Transition) -> Result<(), Refusal> {
    if !cmd.nic.objects.qps.contains(number) {
        return Err(refuse!(BAD_RESOURCE, "no such QP", "{number:#x}"));
    }
    let context = Qpc::new();
    match cmd.nic.with_qp(cmd.env, number, |qp, view| {
        qp.modify(transition, 0, &context, view)
    }) {
        Some(Ok(())) => Ok(()),
        Some(Err(status)) => Err(refused(status, "queue pair transition")),
        None => Err(refuse!(RESOURCE_BUSY, "queue pair is busy")),
    }
}

/// Returns the refusal for a check of the queue pair itself.
fn refused(status: CmdStatus, reason: &'static str) -> Refusal {
    Refusal {
        status,
        reason,
        detail: Cow::Borrowed(""),
    }
}
