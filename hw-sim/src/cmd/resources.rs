//! Doorbell pages, domains, counter sets and special contexts: objects that consist of little more than a number.

use super::{Cmd, Outcome, must_exist, output, refuse, uctx};
use crate::objects::DRIVER;
use crate::q_counters::Counters;
use mlx_prm::{
    AllocPdOut, AllocQCounterOut, AllocTransportDomainOut, AllocUarOut, AllocXrcdOut, DeallocPdIn,
    DeallocPdOut, DeallocQCounterIn, DeallocQCounterOut, DeallocTransportDomainIn,
    DeallocTransportDomainOut, DeallocUarIn, DeallocUarOut, DeallocXrcdIn, DeallocXrcdOut,
    QueryQCounterIn, QuerySpecialContextsOut,
};

pub(super) fn alloc_uar(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = AllocUarOut::new();
    out.set_uar(cmd.nic.objects.uars.create(())?);
    output(&out)
}

pub(super) fn dealloc_uar(cmd: &mut Cmd<'_>) -> Outcome {
    let uar = cmd.read::<DeallocUarIn>().uar();
    // The driver may free a page that belongs to a user context.
    let owner = cmd.nic.objects.uars.owner(uar);
    cmd.nic.objects.uars.remove(uar)?;
    cmd.nic.halves.retain(|&(page, _), _| page != uar);
    if let Some(owner) = owner {
        uctx::forget(cmd, owner);
    }
    output(&DeallocUarOut::new())
}

pub(super) fn alloc_pd(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = AllocPdOut::new();
    out.set_pd(cmd.nic.objects.pds.create(())?);
    output(&out)
}

pub(super) fn dealloc_pd(cmd: &mut Cmd<'_>) -> Outcome {
    cmd.nic.objects.pds.remove(cmd.read::<DeallocPdIn>().pd())?;
    output(&DeallocPdOut::new())
}

pub(super) fn alloc_transport_domain(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = AllocTransportDomainOut::new();
    out.set_transport_domain(cmd.nic.objects.tds.create(())?);
    output(&out)
}

pub(super) fn dealloc_transport_domain(cmd: &mut Cmd<'_>) -> Outcome {
    cmd.nic
        .objects
        .tds
        .remove(cmd.read::<DeallocTransportDomainIn>().transport_domain())?;
    output(&DeallocTransportDomainOut::new())
}

pub(super) fn alloc_xrcd(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = AllocXrcdOut::new();
    out.set_xrcd(cmd.nic.objects.xrcds.create(())?);
    output(&out)
}

pub(super) fn dealloc_xrcd(cmd: &mut Cmd<'_>) -> Outcome {
    cmd.nic
        .objects
        .xrcds
        .remove(cmd.read::<DeallocXrcdIn>().xrcd())?;
    output(&DeallocXrcdOut::new())
}

pub(super) fn alloc_q_counter(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = AllocQCounterOut::new();
    out.set_counter_set_id(cmd.nic.objects.counters.create(Counters::default())?);
    output(&out)
}

pub(super) fn dealloc_q_counter(cmd: &mut Cmd<'_>) -> Outcome {
    let set = cmd.read::<DeallocQCounterIn>().counter_set_id();
    cmd.nic.objects.counters.remove(set)?;
    output(&DeallocQCounterOut::new())
}

pub(super) fn query_q_counter(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryQCounterIn = cmd.read();
    if input.other_vport() || input.vport_number() != 0 || input.aggregate() {
        return Err(refuse!(
            BAD_PARAM,
            "counters of another vport, or aggregated"
        ));
    }
    let set = input.counter_set_id();
    if set != 0 {
        must_exist(&cmd.nic.objects.counters, set)?;
    }
    if input.clear() && cmd.user() != DRIVER && !cmd.nic.objects.counters.owns(set) {
        return Err(refuse!(
            BAD_RESOURCE,
            "counter set is another's to clear",
            "{set:#x}"
        ));
    }
    let Some(counters) = cmd.nic.objects.counters_of(set) else {
        return Err(refuse!(BAD_RESOURCE, "no such counter set", "{set:#x}"));
    };
    let out = counters.answer(&cmd.nic.caps.general);
    if input.clear() {
        *counters = Counters::default();
    }
    output(&out)
}

pub(super) fn query_special_contexts(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = QuerySpecialContextsOut::new();
    out.set_resd_lkey(cmd.nic.profile.reserved_lkey);
    output(&out)
}
