//! TIS: through which a send queue sends. It stands for a transport domain and a priority.

use super::must_exist;
use crate::cmd::{Cmd, Refusal, refuse};
use mlx_prm::{CreateTisIn, ModifyTisIn, Tisc};

/// A transport interface for sending.
#[derive(Clone, Debug)]
pub struct Tis {
    /// As created and modified.
    pub context: Tisc,
}

/// CREATE_TIS.
///
/// # Errors
/// What the device does not have, or an object that does not exist.
pub fn create(cmd: &mut Cmd<'_>, input: &CreateTisIn) -> Result<u32, Refusal> {
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

/// There is one port: software may name it, or none.
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

/// MODIFY_TIS.
///
/// # Errors
/// No such TIS, or a value it cannot have.
pub fn modify(cmd: &mut Cmd<'_>, input: &ModifyTisIn) -> Result<(), Refusal> {
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

/// QUERY_TIS.
///
/// # Errors
/// No such TIS.
pub fn query(cmd: &mut Cmd<'_>, number: u32) -> Result<Tisc, Refusal> {
    Ok(find(cmd, number)?.context.clone())
}

/// DESTROY_TIS.
///
/// # Errors
/// No such TIS, or a send queue sends through it.
pub fn destroy(cmd: &mut Cmd<'_>, number: u32) -> Result<(), Refusal> {
    let objects = &mut cmd.nic.objects;
    let tis = objects.eth.tises.remove(number)?;
    objects.tds.release(tis.context.transport_domain());
    Ok(())
}

fn find<'c>(cmd: &'c mut Cmd<'_>, number: u32) -> Result<&'c mut Tis, Refusal> {
    let found = cmd.nic.objects.eth.tises.get_mut(number);
    found.ok_or_else(|| refuse!(BAD_RESOURCE, "no such TIS", "{number:#x}"))
}
