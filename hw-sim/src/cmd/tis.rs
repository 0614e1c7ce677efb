//! TIS commands.

use super::vport::ethernet;
use super::{Cmd, Outcome, Refusal, must_exist, output, refuse};
use crate::eth::tis::Tis;
use mlx_prm::{
    CreateTisIn, CreateTisOut, DestroyTisIn, DestroyTisOut, ModifyTisIn, ModifyTisOut, QueryTisIn,
    QueryTisOut, Tisc,
};

pub(super) fn create_tis(cmd: &mut Cmd<'_>) -> Outcome {
    ethernet(cmd)?;
    let input = cmd.read();
    let mut out = CreateTisOut::new();
    out.set_tisn(create(cmd, &input)?);
    output(&out)
}

pub(super) fn modify_tis(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    modify(cmd, &input)?;
    output(&ModifyTisOut::new())
}

pub(super) fn destroy_tis(cmd: &mut Cmd<'_>) -> Outcome {
    destroy(cmd, cmd.read::<DestroyTisIn>().tisn())?;
    output(&DestroyTisOut::new())
}

pub(super) fn query_tis(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = QueryTisOut::new();
    out.set_tis_context(&query(cmd, cmd.read::<QueryTisIn>().tisn())?);
    output(&out)
}

/// Executes CREATE_TIS.
///
/// # Errors
/// A feature that the device does not have, or an object that does not exist.
fn create(cmd: &mut Cmd<'_>, input: &CreateTisIn) -> Result<u32, Refusal> {
    let context = input.ctx();
    if context.tls_en() || context.underlay_qpn() != 0 {
        return Err(refuse!(BAD_PARAM, "TIS for TLS or an underlay QP"));
    }
    affinity(context)?;
    let objects = &mut cmd.nic.objects;
    must_exist(&objects.tds, context.transport_domain())?;
    let number = objects.eth.tises.create(Tis {
        context: context.clone(),
    })?;
    objects.tds.hold(context.transport_domain())?;
    Ok(number)
}

/// Checks the port affinity. Software may name the only port (1) or no port (0).
fn affinity(context: &Tisc) -> Result<(), Refusal> {
    if context.lag_tx_port_affinity() > 1 {
        return Err(refuse!(
            BAD_PARAM,
            "port of a TIS",
            "{}",
            context.lag_tx_port_affinity()
        ));
    }
    Ok(())
}

/// Executes MODIFY_TIS.
///
/// # Errors
/// No such TIS, or a value that is not allowed.
fn modify(cmd: &mut Cmd<'_>, input: &ModifyTisIn) -> Result<(), Refusal> {
    let (select, context) = (input.bitmask(), input.ctx());
    let tis = find(cmd, input.tisn())?;
    if select.lag_tx_port_affinity() {
        affinity(context)?;
        tis.context
            .set_lag_tx_port_affinity(context.lag_tx_port_affinity());
    }
    if select.strict_lag_tx_port_affinity() {
        tis.context
            .set_strict_lag_tx_port_affinity(context.strict_lag_tx_port_affinity());
    }
    if select.prio() {
        tis.context.set_prio(context.prio());
    }
    Ok(())
}

/// Executes QUERY_TIS.
///
/// # Errors
/// No such TIS.
fn query(cmd: &mut Cmd<'_>, number: u32) -> Result<Tisc, Refusal> {
    Ok(find(cmd, number)?.context.clone())
}

/// Executes DESTROY_TIS.
///
/// # Errors
/// No such TIS, or a send queue sends through it.
fn destroy(cmd: &mut Cmd<'_>, number: u32) -> Result<(), Refusal> {
    let objects = &mut cmd.nic.objects;
    let tis = objects.eth.tises.remove(number)?;
    objects.tds.release(tis.context.transport_domain());
    Ok(())
}

fn find<'c>(cmd: &'c mut Cmd<'_>, number: u32) -> Result<&'c mut Tis, Refusal> {
    let found = cmd.nic.objects.eth.tises.named_mut(number);
    found.ok_or_else(|| refuse!(BAD_RESOURCE, "no such TIS", "{number:#x}"))
}
