//! Capability pages: queried as maximum or current, set before INIT_HCA.
//!
//! A page that is set replaces the current one, field by field, and no field may exceed its
//! maximum. Two pages are special: of the atomic page only the endianness mode is taken, because
//! drivers send the rest as zeros and firmware accepts that; and of the general page `roce` may
//! only change if `roce_rw_supported` says so.

use super::function::virtual_function;
use super::{Cmd, Outcome, Refusal, output, refuse};
use crate::card::Seat;
use crate::profile::{Page, Profile};
use hw_mlx::prm::{
    AtomicCaps, CapType, CmdHcaCap, EthOffloadCaps, Field, FlowTableNicCap, Layout, QueryHcaCapIn,
    QueryHcaCapOut, RoceCap, SetHcaCapIn, SetHcaCapOut,
};
use zerocopy::IntoBytes;

/// Capabilities in force.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Type 0.
    pub general: CmdHcaCap,
    /// Type 3.
    pub atomic: AtomicCaps,
    /// Type 4.
    pub roce: RoceCap,
    /// Type 1.
    pub eth_offloads: EthOffloadCaps,
    /// Type 7.
    pub flow_table: FlowTableNicCap,
}

impl Capabilities {
    /// What a reset leaves.
    pub fn new(profile: &Profile) -> Self {
        Self {
            general: profile.general.current.clone(),
            atomic: profile.atomic.current.clone(),
            roce: profile.roce.current.clone(),
            eth_offloads: profile.eth_offloads.current.clone(),
            flow_table: profile.flow_table.current.clone(),
        }
    }
}

pub(super) fn query_hca_cap(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryHcaCapIn = cmd.read();
    let current = cmd.op_mod & 1 == 1;
    let kind = kind_of(cmd)?;
    let seat = named_function(cmd, input.other_function(), input.function_id())?;
    if seat != cmd.nic.seat {
        return other_function(cmd, seat, kind, current);
    }
    let (profile, caps) = (&cmd.nic.profile, &cmd.nic.caps);
    let page = match kind {
        CapType::GENERAL => chosen(&profile.general, &caps.general, current),
        CapType::ATOMIC if caps.general.atomic() => chosen(&profile.atomic, &caps.atomic, current),
        CapType::ROCE if profile.general.max.roce() => chosen(&profile.roce, &caps.roce, current),
        CapType::ETHERNET_OFFLOADS if caps.general.eth_net_offloads() => {
            chosen(&profile.eth_offloads, &caps.eth_offloads, current)
        }
        CapType::FLOW_TABLE if caps.general.nic_flow_table() => {
            chosen(&profile.flow_table, &caps.flow_table, current)
        }
        CapType::ESWITCH_FLOW_TABLE if caps.general.eswitch_manager() => {
            profile.eswitch_flow_table.as_bytes().to_vec()
        }
        CapType::ESWITCH if caps.general.eswitch_manager() => profile.eswitch.as_bytes().to_vec(),
        _ => {
            return Err(refuse!(
                BAD_OP,
                "capability type not supported",
                "{:#x}",
                kind.0
            ));
        }
    };
    page_output(&page)
}

fn page_output(page: &[u8]) -> Outcome {
    let mut out = QueryHcaCapOut::new();
    out.as_mut_bytes()[0x10..0x10 + page.len()].copy_from_slice(page);
    output(&out)
}

/// What a virtual function could do, for its manager. Linux asks for the maximum only (`vport.c`
/// `mlx5_vport_get_other_func_cap`).
fn other_function(cmd: &Cmd<'_>, seat: Seat, kind: CapType, current: bool) -> Outcome {
    if kind != CapType::GENERAL || current {
        return Err(refuse!(
            BAD_OP,
            "capability page of another function",
            "{:#x}",
            kind.0
        ));
    }
    page_output(cmd.env.vport(seat).capabilities.as_bytes())
}

fn chosen<T: Layout>(page: &Page<T>, current: &T, want_current: bool) -> Vec<u8> {
    if want_current { current } else { &page.max }
        .as_bytes()
        .to_vec()
}

pub(super) fn set_hca_cap(cmd: &mut Cmd<'_>) -> Outcome {
    let input: SetHcaCapIn = cmd.read();
    if named_function(cmd, input.other_function(), input.function_id())? != cmd.nic.seat {
        return Err(refuse!(
            BAD_OP,
            "capabilities of another function are fixed"
        ));
    }
    if cmd.op_mod & 1 == 1 {
        return Err(refuse!(BAD_OP, "only the current page can be set"));
    }
    let kind = kind_of(cmd)?;
    let bytes = input.capability();
    let (profile, caps) = (&cmd.nic.profile, &mut cmd.nic.caps);
    match kind {
        CapType::GENERAL => {
            let page: CmdHcaCap = first_part(bytes)?;
            within(&page, &profile.general.max, &caps.general)?;
            if page.roce() != caps.general.roce() && !caps.general.roce_rw_supported() {
                return Err(refuse!(BAD_PARAM, "roce is not writable"));
            }
            caps.general = page;
        }
        CapType::ATOMIC if caps.general.atomic() => {
            let page: AtomicCaps = first_part(bytes)?;
            let mode = page.atomic_req_8B_endianness_mode();
            let possible = caps.atomic.supported_atomic_req_8B_endianness_mode_1();
            if mode > u32::from(possible) {
                return Err(refuse!(
                    BAD_PARAM,
                    "capability above its maximum",
                    "atomic_req_8B_endianness_mode {mode}"
                ));
            }
            caps.atomic.set_atomic_req_8B_endianness_mode(mode);
        }
        CapType::ROCE if profile.general.max.roce() => {
            let page: RoceCap = first_part(bytes)?;
            within(&page, &profile.roce.max, &caps.roce)?;
            caps.roce = page;
        }
        _ => {
            return Err(refuse!(
                BAD_OP,
                "capability type not supported",
                "{:#x}",
                kind.0
            ));
        }
    }
    output(&SetHcaCapOut::new())
}

/// The function a command is about: this one, or a virtual one of the card for its manager. Their numbers are those of
/// their vports.
fn named_function(cmd: &Cmd<'_>, other: bool, function_id: u32) -> Result<Seat, Refusal> {
    if !other && function_id == 0 {
        return Ok(cmd.nic.seat);
    }
    virtual_function(cmd, function_id)
}

fn kind_of(cmd: &Cmd<'_>) -> Result<CapType, Refusal> {
    u16::try_from(cmd.op_mod >> 1)
        .map(CapType)
        .map_err(|_| refuse!(BAD_OP, "capability type"))
}

/// The structure at the beginning of a page; the rest of it is reserved.
fn first_part<T: Layout>(page: &[u8; 0x1000]) -> Result<T, Refusal> {
    if page[T::SIZE..].iter().any(|&byte| byte != 0) {
        return Err(refuse!(
            BAD_PARAM,
            "reserved bit set",
            "beyond the capability structure"
        ));
    }
    T::read_from_prefix(page)
        .map(|(layout, _)| layout)
        .map_err(|_| refuse!(BAD_INPUT_LEN, "capability page"))
}

/// No field above its maximum, and no reserved bit that was not set already.
fn within<T: Layout>(page: &T, max: &T, current: &T) -> Result<(), Refusal> {
    if let Some(at) = page.reserved_bits() {
        return Err(refuse!(
            BAD_PARAM,
            "reserved bit set",
            "in the dword at {at:#x} of the capability page"
        ));
    }
    let above = |field: &&Field| {
        let [new, now, most] = [page, current, max].map(|layout| field.value(layout.as_bytes()));
        new != now && new > most
    };
    if let Some(field) = T::FIELDS.iter().find(above) {
        return Err(refuse!(
            BAD_PARAM,
            "capability above its maximum",
            "{}",
            field.name
        ));
    }
    Ok(())
}
