//! Completion queue commands.

use super::umem::QueuePlace;
use super::{Cmd, Outcome, Refusal, output, refuse};
use crate::cq::{Cq, CqRing, NotResized};
use crate::umem::Places;
use mlx_prm::{
    Cqc, CreateCqIn, CreateCqOut, DestroyCqIn, DestroyCqOut, ModifyCqIn, ModifyCqOut, QueryCqIn,
    QueryCqOut,
};
use zerocopy::IntoBytes;

/// Bits of `modify_field_select` with op_mod 0.
const SELECT_PERIOD: u32 = 1;
const SELECT_MAX_COUNT: u32 = 2;
const SELECT_OVERRUN_IGNORE: u32 = 4;
const SELECT_EQN: u32 = 8;
const SELECT_PERIOD_MODE: u32 = 16;
/// Bits of `modify_field_select` with op_mod 1: new size, page offset and page size, all three at once.
const SELECT_RESIZE: u32 = 7;
const OP_MOD_RESIZE: u32 = 1;
/// `cqe_sz` of 64-byte entries at a stride of 128 bytes, for hosts with cache lines of 128 bytes. This value needs
/// `cqe_128_always`.
const CQE_SZ_PADDED: u32 = 2;

/// Returns the ring that a context describes. The ring is in the pages of the command's list, or in the user memory
/// object `umem`, given by number and offset in bytes.
fn ring(
    cmd: &Cmd<'_>,
    context: &Cqc,
    cqe_sz: u32,
    umem: Option<(u32, u64)>,
) -> Result<CqRing, Refusal> {
    if context.log_cq_size() > cmd.nic.caps.general.log_max_cq_sz() {
        return Err(refuse!(
            EXCEED_LIM,
            "CQ size",
            "2^{}",
            context.log_cq_size()
        ));
    }
    let bytes = Cq::bytes(context.log_cq_size(), cqe_sz);
    Ok(CqRing {
        log_size: context.log_cq_size(),
        buffer: cmd.queue(QueuePlace {
            umem,
            log_page_size: context.log_page_size(),
            page_offset: context.page_offset(),
            bytes,
            written: true,
        })?,
        log_page_size: context.log_page_size(),
        page_offset: context.page_offset(),
    })
}

pub(super) fn create_cq(cmd: &mut Cmd<'_>) -> Outcome {
    let input: CreateCqIn = cmd.read();
    let context = input.cq_context();
    let caps = &cmd.nic.caps.general;
    let cqe_sz = context.cqe_sz();
    if cqe_sz > CQE_SZ_PADDED || cqe_sz == CQE_SZ_PADDED && !caps.cqe_128_always() {
        return Err(refuse!(BAD_PARAM, "CQE size", "{cqe_sz}"));
    }
    if context.apu_cq() || context.cqe_comp_en() && !caps.cqe_compression() {
        return Err(refuse!(BAD_PARAM, "CQ feature is not supported"));
    }
    if context.oi() && !caps.cq_oi() {
        return Err(refuse!(BAD_PARAM, "overrun ignore is not supported"));
    }
    let eqn = context.c_eqn_or_apu_element();
    if !cmd.nic.objects.eqs.contains(eqn) {
        return Err(refuse!(BAD_RESOURCE, "no such EQ", "{eqn:#x}"));
    }
    if !cmd.nic.objects.uars.contains(context.uar_page()) {
        return Err(refuse!(
            BAD_RESOURCE,
            "no such UAR",
            "{:#x}",
            context.uar_page()
        ));
    }
    let umem = input
        .cq_umem_valid()
        .then(|| (input.cq_umem_id(), input.cq_umem_offset()));
    let record_umem = context.dbr_umem_valid().then(|| context.dbr_umem_id());
    let (record, place) = cmd.record(record_umem, context.dbr_addr())?;
    let ring = ring(cmd, context, context.cqe_sz(), umem)?;
    let places = Places {
        queue: umem.map(|(number, _)| number),
        record: place,
    };
    let objects = &mut cmd.nic.objects;
    let number = objects.cqs.reserve()?;
    objects.eqs.hold(eqn)?;
    objects.uars.hold(context.uar_page())?;
    places.hold(&mut objects.umems)?;
    let mut cq = Cq::new(
        number,
        ring,
        context.cqe_sz(),
        context.uar_page(),
        eqn,
        record,
    );
    cq.places = places;
    cq.collapsed = context.cc();
    cq.ignore_overrun = context.oi();
    cq.moderation = (
        context.cq_period(),
        context.cq_max_count(),
        context.cq_period_mode(),
    );
    objects.cqs.insert(number, cq);
    let mut out = CreateCqOut::new();
    out.set_cqn(number);
    output(&out)
}

pub(super) fn destroy_cq(cmd: &mut Cmd<'_>) -> Outcome {
    let cq = cmd
        .nic
        .objects
        .cqs
        .remove(cmd.read::<DestroyCqIn>().cqn())?;
    cmd.nic.objects.eqs.release(cq.eqn);
    cmd.nic.objects.uars.release(cq.uar);
    cq.places.release(&mut cmd.nic.objects.umems);
    output(&DestroyCqOut::new())
}

pub(super) fn query_cq(cmd: &mut Cmd<'_>) -> Outcome {
    let number = cmd.read::<QueryCqIn>().cqn();
    let Some(cq) = cmd.nic.objects.cqs.named(number) else {
        return Err(refuse!(BAD_RESOURCE, "no such CQ", "{number:#x}"));
    };
    let (period, count, mode) = cq.moderation;
    let mut out = QueryCqOut::new();
    out.cq_context_mut()
        .set_status(cq.status)
        .set_cqe_sz(cq.cqe_sz)
        .set_cc(cq.collapsed)
        .set_oi(cq.ignore_overrun)
        .set_cq_period_mode(mode)
        .set_st(cq.arm_state().code())
        .set_page_offset(cq.ring.page_offset)
        .set_log_cq_size(cq.ring.log_size)
        .set_uar_page(cq.uar)
        .set_cq_period(period)
        .set_cq_max_count(count)
        .set_c_eqn_or_apu_element(cq.eqn)
        .set_log_page_size(cq.ring.log_page_size)
        .set_last_notified_index(cq.last_notified())
        .set_last_solicit_index(cq.last_solicited())
        .set_consumer_counter(cq.consumer())
        .set_producer_counter(cq.producer())
        .set_dbr_addr(cq.doorbell_record);
    if let Some(place) = cq.places.record {
        out.cq_context_mut()
            .set_dbr_umem_valid(true)
            .set_dbr_umem_id(place.umem)
            .set_dbr_addr(place.offset);
    }
    let mut bytes = out.as_bytes().to_vec();
    if cq.places.queue.is_none() && !cmd.nic.profile.hides_page_lists {
        let pages = cq.ring.buffer.pages().iter();
        bytes.extend(pages.flat_map(|page| page.to_be_bytes()));
    }
    Ok(bytes)
}

pub(super) fn modify_cq(cmd: &mut Cmd<'_>) -> Outcome {
    let input: ModifyCqIn = cmd.read();
    let number = input.cqn();
    if !cmd.nic.objects.cqs.contains(number) {
        return Err(refuse!(BAD_RESOURCE, "no such CQ", "{number:#x}"));
    }
    if cmd.op_mod == OP_MOD_RESIZE {
        resize(cmd, &input)?
    } else {
        change(cmd, &input)?
    }
    output(&ModifyCqOut::new())
}

fn resize(cmd: &mut Cmd<'_>, input: &ModifyCqIn) -> Result<(), Refusal> {
    if !cmd.nic.caps.general.cq_resize() {
        return Err(refuse!(BAD_OP, "CQ resize is not supported"));
    }
    if input.modify_field_select() != SELECT_RESIZE {
        return Err(refuse!(
            BAD_PARAM,
            "fields of a resize",
            "{:#x}",
            input.modify_field_select()
        ));
    }
    let no_such = || refuse!(BAD_RESOURCE, "no such CQ");
    let cq = cmd.nic.objects.cqs.named(input.cqn());
    let cqe_sz = cq.ok_or_else(no_such)?.cqe_sz;
    let umem = input
        .cq_umem_valid()
        .then(|| (input.cq_umem_id(), input.cq_umem_offset()));
    let ring = ring(cmd, input.cq_context(), cqe_sz, umem)?;
    let nic = &mut *cmd.nic;
    let cq = nic.objects.cqs.named_mut(input.cqn()).ok_or_else(no_such)?;
    // Inferred: the status is BAD_RES_STATE if the CQ is in error or its memory cannot be accessed.
    cq.resize(&mut nic.iommu, ring).map_err(|why| match why {
        NotResized::Outstanding(count) => refuse!(
            BAD_SIZE_OUTS_CQES,
            "smaller than the outstanding CQEs",
            "{count} and the RESIZE entry"
        ),
        NotResized::InError(status) => refuse!(
            BAD_RES_STATE,
            "resize of a CQ in error",
            "CQ {:#x}, status {status:#x}",
            input.cqn()
        ),
        NotResized::Inaccessible => refuse!(
            BAD_RES_STATE,
            "ring or doorbell record of a CQ cannot be accessed",
            "CQ {:#x}",
            input.cqn()
        ),
    })?;
    let before = cq.places;
    cq.places.queue = umem.map(|(number, _)| number);
    let after = cq.places;
    after.hold(&mut nic.objects.umems)?;
    before.release(&mut nic.objects.umems);
    Ok(())
}

fn change(cmd: &mut Cmd<'_>, input: &ModifyCqIn) -> Result<(), Refusal> {
    let select = input.modify_field_select();
    let context = input.cq_context();
    let caps = &cmd.nic.caps.general;
    let moderation = SELECT_PERIOD | SELECT_MAX_COUNT | SELECT_PERIOD_MODE;
    if select & moderation != 0 && !caps.cq_moderation() {
        return Err(refuse!(BAD_PARAM, "CQ moderation is not supported"));
    }
    if select & SELECT_OVERRUN_IGNORE != 0 && !caps.cq_oi() {
        return Err(refuse!(BAD_PARAM, "overrun ignore is not supported"));
    }
    let eqn = context.c_eqn_or_apu_element();
    if select & SELECT_EQN != 0 {
        if !caps.cq_eq_remap() {
            return Err(refuse!(BAD_PARAM, "CQ to EQ remapping is not supported"));
        }
        if !cmd.nic.objects.eqs.contains(eqn) {
            return Err(refuse!(BAD_RESOURCE, "no such EQ", "{eqn:#x}"));
        }
    }
    let objects = &mut cmd.nic.objects;
    let Some(cq) = objects.cqs.named_mut(input.cqn()) else {
        return Err(refuse!(BAD_RESOURCE, "no such CQ"));
    };
    if select & SELECT_PERIOD != 0 {
        cq.moderation.0 = context.cq_period();
    }
    if select & SELECT_MAX_COUNT != 0 {
        cq.moderation.1 = context.cq_max_count();
    }
    if select & SELECT_PERIOD_MODE != 0 {
        cq.moderation.2 = context.cq_period_mode();
    }
    if select & SELECT_OVERRUN_IGNORE != 0 {
        cq.ignore_overrun = context.oi();
    }
    if select & SELECT_EQN != 0 {
        let old = std::mem::replace(&mut cq.eqn, eqn);
        objects.eqs.release(old);
        objects.eqs.hold(eqn)?;
    }
    Ok(())
}
