//! Event queue commands.

use super::{Cmd, Outcome, output, refuse};
use crate::eq::{EQE_BYTES, Eq};
use mlx_prm::{
    CreateEqIn, CreateEqOut, DestroyEqIn, DestroyEqOut, Eqe, EventType, GenEqeIn, GenEqeOut,
    QueryEqIn, QueryEqOut,
};
use zerocopy::IntoBytes;

/// Status in the context of an EQ that the device could not write.
const STATUS_WRITE_FAILURE: u32 = 0xa;

/// Event types that the function supports. Optional event types that only other devices support are missing.
const EVENTS: [EventType; 15] = [
    EventType::PATH_MIG,
    EventType::COMM_EST,
    EventType::SQ_DRAINED,
    EventType::CQ_ERROR,
    EventType::WQ_CATAS_ERROR,
    EventType::PATH_MIG_FAILED,
    EventType::PORT_CHANGE,
    EventType::CMD,
    EventType::PAGE_REQUEST,
    EventType::NIC_VPORT_CHANGE,
    EventType::WQ_INVAL_REQ_ERROR,
    EventType::WQ_ACCESS_ERROR,
    EventType::SRQ_CATAS_ERROR,
    EventType::SRQ_LAST_WQE,
    EventType::SRQ_RQ_LIMIT,
];

fn known_events() -> u64 {
    EVENTS.iter().fold(0, |mask, event| mask | 1 << event.0)
}

pub(super) fn create_eq(cmd: &mut Cmd<'_>) -> Outcome {
    let input: CreateEqIn = cmd.read();
    let context = input.eq_context_entry();
    let caps = &cmd.nic.caps.general;
    if context.log_eq_size() > caps.log_max_eq_sz() {
        return Err(refuse!(
            EXCEED_LIM,
            "EQ size",
            "2^{}",
            context.log_eq_size()
        ));
    }
    if context.intr() >= u32::from(cmd.nic.profile.msix_vectors) {
        return Err(refuse!(
            BAD_PARAM,
            "no such MSI-X vector",
            "{}",
            context.intr()
        ));
    }
    if context.ec() {
        return Err(refuse!(BAD_PARAM, "event collapse is not supported"));
    }
    if !cmd.nic.objects.uars.contains(context.uar_page()) {
        return Err(refuse!(
            BAD_RESOURCE,
            "no such UAR",
            "{:#x}",
            context.uar_page()
        ));
    }
    let events = input.event_bitmask();
    let beyond = input.event_bitmask_64() | input.event_bitmask_128() | input.event_bitmask_192();
    if events & !known_events() != 0 || beyond != 0 {
        return Err(refuse!(
            BAD_PARAM,
            "event type not supported",
            "{:#x}",
            events & !known_events()
        ));
    }
    let taken = cmd
        .nic
        .objects
        .eqs
        .iter()
        .find(|(_, eq)| eq.events & events != 0)
        .map(|(number, _)| number);
    if let Some(number) = taken {
        return Err(refuse!(
            BAD_PARAM,
            "event type is mapped to another EQ",
            "{number:#x}"
        ));
    }
    let bytes = (EQE_BYTES as u64) << context.log_eq_size();
    let buffer = cmd.buffer(context.log_page_size(), context.page_offset(), bytes)?;
    let objects = &mut cmd.nic.objects;
    let number = objects.eqs.reserve()?;
    objects.uars.hold(context.uar_page())?;
    objects.eqs.insert(
        number,
        Eq::new(
            number,
            context.log_eq_size(),
            context.uar_page(),
            u16::try_from(context.intr()).unwrap_or(u16::MAX),
            context.oi(),
            events,
            buffer,
            context.log_page_size(),
            context.page_offset(),
        ),
    );
    let mut out = CreateEqOut::new();
    out.set_eq_number(number);
    output(&out)
}

pub(super) fn destroy_eq(cmd: &mut Cmd<'_>) -> Outcome {
    let eq = cmd
        .nic
        .objects
        .eqs
        .remove(cmd.read::<DestroyEqIn>().eq_number())?;
    cmd.nic.objects.uars.release(eq.uar);
    output(&DestroyEqOut::new())
}

pub(super) fn query_eq(cmd: &mut Cmd<'_>) -> Outcome {
    let number = cmd.read::<QueryEqIn>().eq_number();
    let Some(eq) = cmd.nic.objects.eqs.named(number) else {
        return Err(refuse!(BAD_RESOURCE, "no such EQ", "{number:#x}"));
    };
    let mut out = QueryEqOut::new();
    out.set_event_bitmask(eq.events);
    out.eq_context_entry_mut()
        .set_status(if eq.failed { STATUS_WRITE_FAILURE } else { 0 })
        .set_oi(eq.ignore_overrun)
        .set_st(eq.arm().code())
        .set_page_offset(eq.page_offset)
        .set_log_eq_size(eq.log_size)
        .set_uar_page(eq.uar)
        .set_intr(u32::from(eq.vector))
        .set_log_page_size(eq.log_page_size)
        .set_consumer_counter(eq.consumer())
        .set_producer_counter(eq.producer());
    let mut bytes = out.as_bytes().to_vec();
    if !cmd.nic.profile.hides_page_lists {
        bytes.extend(eq.buffer.pages().iter().flat_map(|page| page.to_be_bytes()));
    }
    Ok(bytes)
}

pub(super) fn gen_eqe(cmd: &mut Cmd<'_>) -> Outcome {
    let input: GenEqeIn = cmd.read();
    let number = input.eq_number();
    if !cmd.nic.objects.eqs.contains(number) {
        return Err(refuse!(BAD_RESOURCE, "no such EQ", "{number:#x}"));
    }
    cmd.nic.eqe(cmd.env, number, &Eqe::from_array(*input.eqe()));
    output(&GenEqeOut::new())
}
