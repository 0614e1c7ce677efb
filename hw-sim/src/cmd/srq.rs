//! Receive memory pool commands.

use super::umem::QueuePlace;
use super::{Cmd, Outcome, output, refuse};
use crate::srq::Srq;
use crate::umem::Places;
use mlx_prm::{
    CreateRmpIn, CreateRmpOut, DestroyRmpIn, DestroyRmpOut, EventType, ModifyRmpIn, ModifyRmpOut,
    QueryRmpIn, QueryRmpOut,
};
use zerocopy::IntoBytes;

const STATE_READY: u32 = 1;
const STATE_ERROR: u32 = 3;
const LINKED_LIST: u32 = 0;
const CYCLIC: u32 = 1;
/// Log2 of the bytes of the shortest WQE: next segment and one data segment.
const LOG_MIN_STRIDE: u32 = 5;

pub(super) fn create_rmp(cmd: &mut Cmd<'_>) -> Outcome {
    let input: CreateRmpIn = cmd.read();
    let context = input.ctx();
    let wq = context.wq();
    let caps = &cmd.nic.caps.general;
    if !matches!(wq.wq_type(), LINKED_LIST | CYCLIC)
        || context.basic_cyclic_rcv_wqe()
        || wq.wq_signature()
        || wq.shampo_enable()
    {
        return Err(refuse!(BAD_PARAM, "work queue type", "{}", wq.wq_type()));
    }
    if context.state() != STATE_READY {
        return Err(refuse!(
            BAD_PARAM,
            "an RMP is created ready",
            "{}",
            context.state()
        ));
    }
    if wq.log_wq_sz() > caps.log_max_srq_sz() {
        return Err(refuse!(EXCEED_LIM, "SRQ size", "2^{}", wq.log_wq_sz()));
    }
    if wq.log_wq_stride() < LOG_MIN_STRIDE || 1 << wq.log_wq_stride() > caps.max_wqe_sz_rq() {
        return Err(refuse!(BAD_PARAM, "WQE stride", "2^{}", wq.log_wq_stride()));
    }
    if wq.lwm() >= 1 << wq.log_wq_sz() {
        return Err(refuse!(
            BAD_PARAM,
            "limit beyond the queue's size",
            "{}",
            wq.lwm()
        ));
    }
    if !cmd.nic.objects.pds.contains(wq.pd()) {
        return Err(refuse!(BAD_RESOURCE, "no such PD", "{:#x}", wq.pd()));
    }
    let umem = wq
        .wq_umem_valid()
        .then(|| (wq.wq_umem_id(), wq.wq_umem_offset()));
    let record_umem = wq.dbr_umem_valid().then(|| wq.dbr_umem_id());
    let (record, place) = cmd.record(record_umem, wq.dbr_addr())?;
    // `page_offset` of the work queue counts 64ths of a page and has 5 bits.
    let buffer = cmd.queue(QueuePlace {
        umem,
        log_page_size: wq.log_wq_pg_sz(),
        page_offset: wq.page_offset(),
        bytes: 1 << (wq.log_wq_sz() + wq.log_wq_stride()),
        written: false,
    })?;
    let places = Places {
        queue: umem.map(|(number, _)| number),
        record: place,
    };
    let objects = &mut cmd.nic.objects;
    let number = objects.rmps.reserve()?;
    objects.pds.hold(wq.pd())?;
    places.hold(&mut objects.umems)?;
    let mut srq = Srq::new(
        number,
        wq.pd(),
        wq.log_wq_sz(),
        wq.log_wq_stride(),
        buffer,
        record,
        wq.lwm(),
    );
    srq.cyclic = wq.wq_type() == CYCLIC;
    srq.places = places;
    objects.rmps.insert(number, srq);
    let mut out = CreateRmpOut::new();
    out.set_rmpn(number);
    output(&out)
}

pub(super) fn modify_rmp(cmd: &mut Cmd<'_>) -> Outcome {
    let input: ModifyRmpIn = cmd.read();
    let number = input.rmpn();
    let nic = &mut *cmd.nic;
    let Some(srq) = nic
        .objects
        .rmps
        .named_mut(number)
        .filter(|srq| srq.xrc.is_none())
    else {
        return Err(refuse!(BAD_RESOURCE, "no such RMP", "{number:#x}"));
    };
    let state = if srq.failed { STATE_ERROR } else { STATE_READY };
    if input.rmp_state() != state || input.ctx().state() != state {
        return Err(refuse!(BAD_RES_STATE, "RMP is in another state", "{state}"));
    }
    if input.bitmask_lwm() {
        let limit = input.ctx().wq().lwm();
        if limit >= 1 << srq.log_size {
            return Err(refuse!(
                BAD_PARAM,
                "limit beyond the queue's size",
                "{limit}"
            ));
        }
        srq.limit = limit;
        // If the number of posted receives is already below the limit, the event is sent at once.
        if srq.limit_reached(&mut nic.iommu).unwrap_or(false) {
            nic.queue_event(cmd.env, EventType::SRQ_RQ_LIMIT, number);
        }
    }
    output(&ModifyRmpOut::new())
}

pub(super) fn query_rmp(cmd: &mut Cmd<'_>) -> Outcome {
    let number = cmd.read::<QueryRmpIn>().rmpn();
    let nic = &mut *cmd.nic;
    let Some(srq) = nic
        .objects
        .rmps
        .named_mut(number)
        .filter(|srq| srq.xrc.is_none())
    else {
        return Err(refuse!(BAD_RESOURCE, "no such RMP", "{number:#x}"));
    };
    // An unreadable record is logged. The counters are then those of the last successful read.
    let _ = srq.available(&mut nic.iommu);
    let mut out = QueryRmpOut::new();
    let context = out.rmp_context_mut();
    context.set_state(if srq.failed { STATE_ERROR } else { STATE_READY });
    if let Some(place) = srq.places.record {
        context
            .wq_mut()
            .set_dbr_umem_valid(true)
            .set_dbr_umem_id(place.umem);
    }
    context
        .wq_mut()
        .set_wq_type(if srq.cyclic { CYCLIC } else { LINKED_LIST })
        .set_lwm(srq.limit)
        .set_pd(srq.pd)
        .set_dbr_addr(
            srq.places
                .record
                .map_or(srq.doorbell_record, |place| place.offset),
        )
        .set_hw_counter(u32::from(srq.taken()))
        .set_sw_counter(u32::from(srq.posted()))
        .set_log_wq_stride(srq.log_stride)
        .set_log_wq_sz(srq.log_size);
    let mut bytes = out.as_bytes().to_vec();
    if srq.places.queue.is_none() && !nic.profile.hides_page_lists {
        let pages = srq.buffer.pages().iter();
        bytes.extend(pages.flat_map(|page| page.to_be_bytes()));
    }
    Ok(bytes)
}

pub(super) fn destroy_rmp(cmd: &mut Cmd<'_>) -> Outcome {
    let number = cmd.read::<DestroyRmpIn>().rmpn();
    let rmps = &mut cmd.nic.objects.rmps;
    if rmps.named(number).is_some_and(|srq| srq.xrc.is_some()) {
        return Err(refuse!(BAD_RESOURCE, "no such RMP", "{number:#x}"));
    }
    let srq = rmps.remove(number)?;
    cmd.nic.objects.pds.release(srq.pd);
    srq.places.release(&mut cmd.nic.objects.umems);
    output(&DestroyRmpOut::new())
}
