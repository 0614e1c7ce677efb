//! TIR: where steering hands a frame over, and which receive queue takes it.

use super::must_exist;
use super::rss::{Hash, HashFunction, hash};
use crate::cmd::{Cmd, Refusal, refuse};
use crate::eth::EthObjects;
use crate::eth::frame::Headers;
use mlx_prm::{CreateTirIn, ModifyTirIn, Tirc};

const DIRECT: u32 = 0;
const INDIRECT: u32 = 1;
/// `self_lb_block`, a misnomer: software sets the bits to be given the unicast (0) and multicast (1)
/// frames the function sent itself (Linux `MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC`, `mlx5e_refresh_tirs`).
const LOOPS_UNICAST: u32 = 1;
const LOOPS_MULTICAST: u32 = 2;
/// Source and destination of address and port.
const FIELDS: u32 = 0xf;

/// A transport interface for receiving.
#[derive(Clone, Debug)]
pub struct Tir {
    /// As created and modified.
    pub context: Tirc,
}

impl Tir {
    /// The receive queue of a frame, and the hash that chose it.
    pub fn queue(&self, objects: &EthObjects, headers: &Headers) -> Option<(u32, Hash)> {
        if self.context.disp_type() == DIRECT {
            return Some((self.context.inline_rqn(), Hash::default()));
        }
        let hash = hash(&self.context, headers);
        let table = objects.rqts.get(self.context.indirect_table())?;
        Some((table.queue(hash.value)?, hash))
    }

    /// Whether it takes frames that the function sent itself.
    pub fn takes_loopback(&self, multicast: bool) -> bool {
        let bit = if multicast {
            LOOPS_MULTICAST
        } else {
            LOOPS_UNICAST
        };
        self.context.self_lb_block() & bit != 0
    }
}

/// CREATE_TIR.
///
/// # Errors
/// What the device does not have, or an object that does not exist.
pub fn create(cmd: &mut Cmd<'_>, input: &CreateTirIn) -> Result<u32, Refusal> {
    let context = input.ctx();
    if context.packet_merge_mask() != 0 || context.tls_en() || context.tunneled_offload_en() {
        return Err(refuse!(BAD_PARAM, "TIR with LRO, TLS or tunnels"));
    }
    hashing(context)?;
    let objects = &mut cmd.nic.objects;
    must_exist(&objects.tds, context.transport_domain())?;
    match context.disp_type() {
        DIRECT => must_exist(&objects.eth.rqs, context.inline_rqn())?,
        INDIRECT => must_exist(&objects.eth.rqts, context.indirect_table())?,
        other => return Err(refuse!(BAD_PARAM, "TIR dispatch type", "{other}")),
    }
    let number = objects.eth.tirs.create(Tir {
        context: context.clone(),
    })?;
    objects.tds.hold(context.transport_domain())?;
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
    // The SPI of IPsec is not parsed; a TIR for it hashes nothing but addresses.
    if fields & !(FIELDS | 1 << 4) != 0 {
        return Err(refuse!(BAD_PARAM, "hash fields", "{fields:#x}"));
    }
    Ok(())
}

/// MODIFY_TIR.
///
/// # Errors
/// No such TIR, or a value it cannot have.
pub fn modify(cmd: &mut Cmd<'_>, input: &ModifyTirIn) -> Result<(), Refusal> {
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

/// QUERY_TIR.
///
/// # Errors
/// No such TIR.
pub fn query(cmd: &mut Cmd<'_>, number: u32) -> Result<Tirc, Refusal> {
    Ok(find(cmd, number)?.context.clone())
}

/// DESTROY_TIR.
///
/// # Errors
/// No such TIR, or an entry forwards to it.
pub fn destroy(cmd: &mut Cmd<'_>, number: u32) -> Result<(), Refusal> {
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
    let found = cmd.nic.objects.eth.tirs.get_mut(number);
    found.ok_or_else(|| refuse!(BAD_RESOURCE, "no such TIR", "{number:#x}"))
}
