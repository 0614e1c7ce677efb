//! TIR commands.

use super::vport::ethernet;
use super::{Cmd, Outcome, Refusal, must_exist, output, refuse};
use crate::eth::rss::HashFunction;
use crate::eth::tir::{DIRECT, INDIRECT, Tir};
use mlx_prm::{
    CreateTirIn, CreateTirOut, DestroyTirIn, DestroyTirOut, ModifyTirIn, ModifyTirOut, QueryTirIn,
    QueryTirOut, Tirc,
};

/// Hash fields: source and destination address, source and destination port.
const FIELDS: u32 = 0xf;

pub(super) fn create_tir(cmd: &mut Cmd<'_>) -> Outcome {
    ethernet(cmd)?;
    let input = cmd.read();
    let mut out = CreateTirOut::new();
    out.set_tirn(create(cmd, &input)?);
    output(&out)
}

pub(super) fn modify_tir(cmd: &mut Cmd<'_>) -> Outcome {
    let input = cmd.read();
    modify(cmd, &input)?;
    output(&ModifyTirOut::new())
}

pub(super) fn destroy_tir(cmd: &mut Cmd<'_>) -> Outcome {
    destroy(cmd, cmd.read::<DestroyTirIn>().tirn())?;
    output(&DestroyTirOut::new())
}

pub(super) fn query_tir(cmd: &mut Cmd<'_>) -> Outcome {
    let mut out = QueryTirOut::new();
    out.set_tir_context(&query(cmd, cmd.read::<QueryTirIn>().tirn())?);
    output(&out)
}

/// `transport_domain` of a TIR without a domain. DPDK's drop TIR has none, because DPDK creates it before any domain
/// exists (`mlx5_devx_tir_attr_set`, drivers/net/mlx5/mlx5_devx.c).
const NO_DOMAIN: u32 = 0;

/// Executes CREATE_TIR.
///
/// # Errors
/// A feature that the device does not have, or an object that does not exist.
fn create(cmd: &mut Cmd<'_>, input: &CreateTirIn) -> Result<u32, Refusal> {
    let context = input.ctx();
    if context.packet_merge_mask() != 0 || context.tls_en() || context.tunneled_offload_en() {
        return Err(refuse!(BAD_PARAM, "TIR with LRO, TLS or tunnels"));
    }
    hashing(context)?;
    let objects = &mut cmd.nic.objects;
    let domain = context.transport_domain();
    if domain != NO_DOMAIN {
        must_exist(&objects.tds, domain)?;
    }
    match context.disp_type() {
        DIRECT => must_exist(&objects.eth.rqs, context.inline_rqn())?,
        INDIRECT => must_exist(&objects.eth.rqts, context.indirect_table())?,
        other => return Err(refuse!(BAD_PARAM, "TIR dispatch type", "{other}")),
    }
    let number = objects.eth.tirs.create(Tir {
        context: context.clone(),
    })?;
    if domain != NO_DOMAIN {
        objects.tds.hold(domain)?;
    }
    match context.disp_type() {
        DIRECT => objects.eth.rqs.hold(context.inline_rqn())?,
        _ => objects.eth.rqts.hold(context.indirect_table())?,
    }
    Ok(number)
}

fn hashing(context: &Tirc) -> Result<(), Refusal> {
    if HashFunction::of(context.rx_hash_fn()).is_none() {
        return Err(refuse!(
            BAD_PARAM,
            "hash function",
            "{}",
            context.rx_hash_fn()
        ));
    }
    let fields = context.rx_hash_field_selector_outer().selected_fields();
    // The device does not parse IPsec, so a TIR that hashes the SPI hashes the addresses only.
    if fields & !(FIELDS | 1 << 4) != 0 {
        return Err(refuse!(BAD_PARAM, "hash fields", "{fields:#x}"));
    }
    Ok(())
}

/// Executes MODIFY_TIR.
///
/// # Errors
/// No such TIR, or a value that is not allowed.
fn modify(cmd: &mut Cmd<'_>, input: &ModifyTirIn) -> Result<(), Refusal> {
    let (select, context) = (input.bitmask(), input.ctx());
    if select.packet_merge() && context.packet_merge_mask() != 0 {
        return Err(refuse!(BAD_PARAM, "TIR with LRO"));
    }
    if select.hash() {
        hashing(context)?;
    }
    let tir = &mut find(cmd, input.tirn())?.context;
    if select.self_lb_en() {
        tir.set_self_lb_block(context.self_lb_block());
    }
    if select.hash() {
        tir.set_rx_hash_fn(context.rx_hash_fn())
            .set_rx_hash_symmetric(context.rx_hash_symmetric())
            .set_rx_hash_toeplitz_key(context.rx_hash_toeplitz_key());
        *tir.rx_hash_field_selector_outer_mut() = context.rx_hash_field_selector_outer().clone();
        *tir.rx_hash_field_selector_inner_mut() = context.rx_hash_field_selector_inner().clone();
    }
    Ok(())
}

/// Executes QUERY_TIR.
///
/// # Errors
/// No such TIR.
fn query(cmd: &mut Cmd<'_>, number: u32) -> Result<Tirc, Refusal> {
    Ok(find(cmd, number)?.context.clone())
}

/// Executes DESTROY_TIR.
///
/// # Errors
/// No such TIR, or a flow entry forwards to it.
fn destroy(cmd: &mut Cmd<'_>, number: u32) -> Result<(), Refusal> {
    let objects = &mut cmd.nic.objects;
    let context = objects.eth.tirs.remove(number)?.context;
    objects.tds.release(context.transport_domain());
    if context.disp_type() == DIRECT {
        objects.eth.rqs.release(context.inline_rqn());
    } else {
        objects.eth.rqts.release(context.indirect_table());
    }
    Ok(())
}

fn find<'c>(cmd: &'c mut Cmd<'_>, number: u32) -> Result<&'c mut Tir, Refusal> {
    let found = cmd.nic.objects.eth.tirs.named_mut(number);
    found.ok_or_else(|| refuse!(BAD_RESOURCE, "no such TIR", "{number:#x}"))
}
