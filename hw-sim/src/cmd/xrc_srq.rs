//! XRC shared receive queues. An XRC SRQ is a linked list of WQEs, like a non-cyclic receive memory pool. It also has a
//! completion queue and a user index. Peers address an XRC SRQ by number over any QP of its XRC domain.
//!
//! RMPs and XRC SRQs are in one table and share one number range, because drivers keep both in one table too
//! (`mlx5_cmd_create_srq` of Linux drivers/infiniband/hw/mlx5/srq_cmd.c).

use super::{Cmd, Outcome, Refusal, output, refuse};
use crate::srq::{Srq, XrcPart};
use mlx_prm::{
    ArmXrcSrqIn, ArmXrcSrqOut, CreateXrcSrqIn, CreateXrcSrqOut, DestroyXrcSrqIn, DestroyXrcSrqOut,
    EventType, QueryXrcSrqIn, QueryXrcSrqOut,
};

const STATE_GOOD: u32 = 0;
const STATE_ERROR: u32 = 1;
/// Log2 of the unit of `log_rq_stride`, 16 bytes.
const LOG_STRIDE_UNIT: u32 = 4;
/// Log2 of the bytes of the shortest WQE: next segment and one data segment.
const LOG_MIN_STRIDE: u32 = 5;

fn announced(cmd: &Cmd<'_>) -> Result<(), Refusal> {
    if !cmd.nic.caps.general.xrc() {
        return Err(refuse!(BAD_OP, "XRC is not supported"));
    }
    Ok(())
}

pub(super) fn create_xrc_srq(cmd: &mut Cmd<'_>) -> Outcome {
    announced(cmd)?;
    let input: CreateXrcSrqIn = cmd.read();
    let context = input.xrc_srq_context_entry();
    let caps = &cmd.nic.caps.general;
    if input.xrc_srq_umem_valid() || context.dbr_umem_valid() {
        return Err(refuse!(BAD_PARAM, "UMEM is not supported"));
    }
    if context.wq_signature() || context.cont_srq() || context.basic_cyclic_rcv_wqe() {
        return Err(refuse!(BAD_PARAM, "SRQ feature is not supported"));
    }
    let log_size = context.log_xrc_srq_size();
    let log_stride = context.log_rq_stride() + LOG_STRIDE_UNIT;
    if log_size > caps.log_max_srq_sz() {
        return Err(refuse!(EXCEED_LIM, "SRQ size", "2^{log_size}"));
    }
    if log_stride < LOG_MIN_STRIDE || 1 << log_stride > caps.max_wqe_sz_rq() {
        return Err(refuse!(BAD_PARAM, "WQE stride", "2^{log_stride}"));
    }
    if context.lwm() >= 1 << log_size {
        return Err(refuse!(
            BAD_PARAM,
            "limit beyond the queue's size",
            "{}",
            context.lwm()
        ));
    }
    let (pd, xrcd, cqn) = (context.pd(), context.xrcd(), context.cqn());
    let objects = &cmd.nic.objects;
    if !objects.pds.contains(pd) {
        return Err(refuse!(BAD_RESOURCE, "no such PD", "{pd:#x}"));
    }
    if !objects.xrcds.contains(xrcd) {
        return Err(refuse!(BAD_RESOURCE, "no such XRC domain", "{xrcd:#x}"));
    }
    if !objects.cqs.contains(cqn) {
        return Err(refuse!(BAD_RESOURCE, "no such CQ", "{cqn:#x}"));
    }
    let record =
        u64::from(context.db_record_addr_h()) << 32 | u64::from(context.db_record_addr_l()) << 2;
    let record = cmd.doorbell_record(record)?;
    let bytes = 1 << (log_size + log_stride);
    let buffer = cmd.buffer(context.log_page_size(), context.page_offset(), bytes)?;
    let objects = &mut cmd.nic.objects;
    let number = objects.rmps.reserve()?;
    objects.pds.hold(pd)?;
    objects.xrcds.hold(xrcd)?;
    objects.cqs.hold(cqn)?;
    let mut srq = Srq::new(
        number,
        pd,
        log_size,
        log_stride,
        buffer,
        record,
        context.lwm(),
    );
    srq.xrc = Some(XrcPart {
        xrcd,
        cqn,
        user_index: if context.user_index_equal_xrc_srqn() {
            number
        } else {
            context.user_index()
        },
    });
    objects.rmps.insert(number, srq);
    let mut out = CreateXrcSrqOut::new();
    out.set_xrc_srqn(number);
    output(&out)
}

/// Returns the part of an XRC SRQ that receive memory pools do not have. Refuses a receive memory pool.
fn part_of(cmd: &Cmd<'_>, number: u32) -> Result<XrcPart, Refusal> {
    announced(cmd)?;
    let srq = cmd.nic.objects.rmps.named(number);
    srq.and_then(|srq| srq.xrc)
        .ok_or_else(|| refuse!(BAD_RESOURCE, "no such XRC SRQ", "{number:#x}"))
}

pub(super) fn destroy_xrc_srq(cmd: &mut Cmd<'_>) -> Outcome {
    let number = cmd.read::<DestroyXrcSrqIn>().xrc_srqn();
    let part = part_of(cmd, number)?;
    let objects = &mut cmd.nic.objects;
    let srq = objects.rmps.remove(number)?;
    objects.pds.release(srq.pd);
    objects.xrcds.release(part.xrcd);
    objects.cqs.release(part.cqn);
    output(&DestroyXrcSrqOut::new())
}

pub(super) fn arm_xrc_srq(cmd: &mut Cmd<'_>) -> Outcome {
    let input: ArmXrcSrqIn = cmd.read();
    let number = input.xrc_srqn();
    part_of(cmd, number)?;
    let nic = &mut *cmd.nic;
    let Some(srq) = nic.objects.rmps.named_mut(number) else {
        return Err(refuse!(BAD_RESOURCE, "no such XRC SRQ", "{number:#x}"));
    };
    if input.lwm() >= 1 << srq.log_size {
        return Err(refuse!(
            BAD_PARAM,
            "limit beyond the queue's size",
            "{}",
            input.lwm()
        ));
    }
    srq.limit = input.lwm();
    // If the number of posted receives is already below the limit, the event is sent at once.
    if srq.limit_reached(&mut nic.iommu).unwrap_or(false) {
        nic.queue_event(cmd.env, EventType::SRQ_RQ_LIMIT, number);
    }
    output(&ArmXrcSrqOut::new())
}

pub(super) fn query_xrc_srq(cmd: &mut Cmd<'_>) -> Outcome {
    let number = cmd.read::<QueryXrcSrqIn>().xrc_srqn();
    let part = part_of(cmd, number)?;
    let nic = &mut *cmd.nic;
    let Some(srq) = nic.objects.rmps.named_mut(number) else {
        return Err(refuse!(BAD_RESOURCE, "no such XRC SRQ", "{number:#x}"));
    };
    // An unreadable record is logged. The number of WQEs is then that of the last successful read.
    let available = srq.count(&mut nic.iommu);
    let [_, _, a, b, c, d, e, f] = srq.doorbell_record.to_be_bytes();
    let mut out = QueryXrcSrqOut::new();
    out.xrc_srq_context_entry_mut()
        .set_state(if srq.failed { STATE_ERROR } else { STATE_GOOD })
        .set_log_xrc_srq_size(srq.log_size)
        .set_log_rq_stride(srq.log_stride - LOG_STRIDE_UNIT)
        .set_xrcd(part.xrcd)
        .set_cqn(part.cqn)
        .set_user_index(part.user_index)
        .set_pd(srq.pd)
        .set_lwm(srq.limit)
        .set_wqe_cnt(u32::from(available))
        .set_db_record_addr_h(u32::from_be_bytes([0, 0, a, b]))
        .set_db_record_addr_l(u32::from_be_bytes([c, d, e, f]) >> 2);
    output(&out)
}
