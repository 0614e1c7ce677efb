//! Capability pages: queried as maximum or as current, set before INIT_HCA.
//!
//! A page that is set replaces the current one. Firmware accepts changes of few fields only: `WRITABLE` lists those
//! that some stock driver writes. A change of any other field is refused, even below its maximum, and so is a value
//! above the maximum. Bits that no field names must stay as they were queried. Three pages are special. In the atomic
//! page only the endianness mode is used, because drivers send the rest as zeros and firmware accepts that. In the
//! ODP page every bit may be set that is set in the maximum. In the general page `roce` may only change if
//! `roce_rw_supported` is set.

use super::function::{check_stage, virtual_function};
use super::{Cmd, Outcome, Refusal, output, refuse};
use crate::card::CardEvent;
use crate::card::seat::{PHYSICAL, Seat};
use crate::device_memory;
use crate::nic::Stage;
use crate::profile::Page;
use mlx_prm::{
    AtomicCaps, CapType, CmdHcaCap, Field, Layout, OdpCaps, QueryHcaCapIn, QueryHcaCapOut,
    SetHcaCapIn, SetHcaCapOut,
};
use zerocopy::IntoBytes;

/// Fields of three pages that SET_HCA_CAP accepts: those that drivers are known to write. Linux `main.c`
/// `handle_hca_cap`, `handle_hca_cap_roce`, `handle_hca_cap_2`; rdma-core `mlx5_vfio.c` `handle_hca_cap`. In the ODP
/// page every field is accepted, because Linux `handle_hca_cap_odp` writes every scheme.
const WRITABLE: [(CapType, &[&str]); 3] = [
    (
        CapType::GENERAL,
        &[
            "cache_line_128byte",
            "cmdif_checksum",
            "dct",
            // rdma-core's VFIO driver writes `disable_link_up` at its user's request.
            "disable_link_up",
            "event_on_vhca_state_active",
            "event_on_vhca_state_allocated",
            "event_on_vhca_state_in_use",
            "event_on_vhca_state_invalid",
            "event_on_vhca_state_teardown_request",
            "log_max_current_uc_list",
            "log_max_qp",
            "log_uar_page_sz",
            "mkey_by_name",
            "num_total_dynamic_vf_msix",
            "num_vhca_ports",
            "pci_sync_for_fw_update_event",
            "pci_sync_for_fw_update_with_driver_unload",
            "pcie_reset_using_hotreset_method",
            "pkey_table_size",
            "release_all_pages",
            "roce",
            "uar_4k",
            "vhca_state",
        ],
    ),
    (
        CapType::ROCE,
        &["sw_r_roce_src_udp_port", "qp_ooo_transmit_default"],
    ),
    (CapType::GENERAL_2, &["sw_vhca_id_valid"]),
];

pub(super) fn query_hca_cap(cmd: &mut Cmd<'_>) -> Outcome {
    let input: QueryHcaCapIn = cmd.read();
    let current = cmd.op_mod & 1 == 1;
    let kind = kind_of(cmd)?;
    let seat = named_function(cmd, input.other_function(), input.function_id())?;
    if seat != cmd.nic.seat {
        return other_function(cmd, seat, kind, current);
    }
    let (profile, caps) = (&cmd.nic.profile, &cmd.nic.caps);
    // A recorded page describes the window of a real card's BAR, so the page is computed instead.
    if kind == CapType::DEV_MEM && caps.general.device_memory() {
        let window = device_memory::window(profile, &caps.general);
        return page_output(device_memory::page(&window).as_bytes());
    }
    if let Some(recorded) = profile.other_pages.get(&kind.0) {
        return page_output(if current {
            &recorded.current
        } else {
            &recorded.max
        });
    }
    let page = match kind {
        CapType::GENERAL => chosen(&profile.general, &caps.general, current),
        CapType::GENERAL_2 if caps.general.hca_cap_2() => {
            chosen(&profile.general_2, &caps.general_2, current)
        }
        CapType::ODP if caps.general.pg() => chosen(&profile.odp, &caps.odp, current),
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
        // The function has neither packet pacing nor scheduling elements.
        CapType::QOS if caps.general.qos() => Vec::new(),
        // The function has neither device memory nor QoS, so the page is zero. Inferred: a device with user contexts
        // has both pages even without the features, because rdma-core's tests query only these two pages.
        CapType::DEV_MEM | CapType::QOS if caps.general.log_max_uctx() > 0 => Vec::new(),
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

/// Returns the capabilities of a virtual function to its manager. Linux queries the maximum only (`vport.c`
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
    let (known, rest) = if want_current {
        (current, &page.rest.current)
    } else {
        (&page.max, &page.rest.max)
    };
    [known.as_bytes(), rest].concat()
}

pub(super) fn set_hca_cap(cmd: &mut Cmd<'_>) -> Outcome {
    let input: SetHcaCapIn = cmd.read();
    let seat = named_function(cmd, input.other_function(), input.function_id())?;
    if seat != cmd.nic.seat {
        return set_other_function(cmd, seat, input.capability());
    }
    check_stage(true, cmd.nic.stage != Stage::Initialised)?;
    if cmd.op_mod & 1 == 1 {
        return Err(refuse!(BAD_OP, "only the current page can be set"));
    }
    let kind = kind_of(cmd)?;
    let bytes = input.capability();
    let (profile, caps) = (&cmd.nic.profile, &mut cmd.nic.caps);
    match kind {
        CapType::GENERAL => {
            let page = settable(kind, bytes, &profile.general, &caps.general)?;
            if page.roce() != caps.general.roce() && !caps.general.roce_rw_supported() {
                return Err(refuse!(BAD_PARAM, "roce is not writable"));
            }
            caps.general = page;
        }
        CapType::ATOMIC if caps.general.atomic() => {
            let page: AtomicCaps = first_part(bytes, &[])?;
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
            caps.roce = settable(kind, bytes, &profile.roce, &caps.roce)?;
        }
        CapType::GENERAL_2 if caps.general.hca_cap_2() => {
            caps.general_2 = settable(kind, bytes, &profile.general_2, &caps.general_2)?;
        }
        CapType::ODP if caps.general.pg() => {
            let page: OdpCaps = first_part(bytes, &profile.odp.rest.current)?;
            let most = profile.odp.max.as_bytes();
            if page
                .as_bytes()
                .iter()
                .zip(most)
                .any(|(new, most)| new & !most != 0)
            {
                return Err(refuse!(
                    BAD_PARAM,
                    "capability above its maximum",
                    "on-demand paging"
                ));
            }
            caps.odp = page;
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

/// Sets the number of interrupt vectors of a virtual function for its manager. The manager sends the maximum page back
/// with a changed `dynamic_msix_table_size` (Linux `pci_irq.c` `mlx5_set_msix_vec_count`). Inferred: the command is
/// refused if the pool is exhausted or the function has a driver.
fn set_other_function(cmd: &mut Cmd<'_>, seat: Seat, bytes: &[u8; 0x1000]) -> Outcome {
    let own = &cmd.nic.profile.general.max;
    let pool = own.num_total_dynamic_vf_msix();
    if pool == 0 || kind_of(cmd)? != CapType::GENERAL || cmd.op_mod & 1 == 1 {
        return Err(refuse!(
            BAD_OP,
            "capabilities of another function are fixed"
        ));
    }
    let [least, most] = [
        own.min_dynamic_vf_msix_table_size(),
        own.max_dynamic_vf_msix_table_size(),
    ];
    let vport = cmd.env.vport(seat);
    let now = &vport.capabilities;
    let wanted: CmdHcaCap = first_part(bytes, &[])?;
    if let Some(field) = changed(&wanted, now).find(|it| it.name != "dynamic_msix_table_size") {
        return Err(refuse!(
            BAD_PARAM,
            "capability cannot be set",
            "{}",
            field.name
        ));
    }
    let vectors = wanted.dynamic_msix_table_size();
    if !(least..=most).contains(&vectors) {
        return Err(refuse!(
            BAD_PARAM,
            "interrupt vectors of a virtual function",
            "{vectors} of {least} to {most}"
        ));
    }
    if vport.driven {
        return Err(refuse!(
            BAD_RES_STATE,
            "interrupt vectors of a function that has a driver"
        ));
    }
    let others = cmd.env.card(seat).vports().iter();
    let taken: u32 = others
        .filter(|other| other.number != PHYSICAL && other.number != seat.vport)
        .map(|other| other.capabilities.dynamic_msix_table_size())
        .sum();
    if taken + vectors > pool {
        return Err(refuse!(
            NO_RESOURCES,
            "interrupt vectors for virtual functions",
            "{vectors} besides {taken} of {pool}"
        ));
    }
    let vport = cmd.env.vport_mut(seat);
    vport.capabilities.set_dynamic_msix_table_size(vectors);
    let function = vport.function;
    // CAST: the field has twelve bits.
    let vectors = u16::try_from(vectors).unwrap_or(u16::MAX);
    cmd.env
        .card_events
        .push_back((function, CardEvent::Vectors(vectors)));
    output(&SetHcaCapOut::new())
}

/// Returns the function that a command names: the commanding function, or for the card's manager a virtual function.
/// A function's number is that of its vport.
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

/// Returns the page to be set, if all its changes are permitted.
fn settable<T: Layout>(
    kind: CapType,
    bytes: &[u8; 0x1000],
    page: &Page<T>,
    current: &T,
) -> Result<T, Refusal> {
    let wanted: T = first_part(bytes, &page.rest.current)?;
    within(&wanted, &page.max, current)?;
    let writable = |name: &str| {
        WRITABLE
            .iter()
            .any(|(page, fields)| *page == kind && fields.contains(&name))
    };
    if let Some(field) = changed(&wanted, current).find(|field| !writable(field.name)) {
        let [new, now] = [&wanted, current].map(|page| field.value(page.as_bytes()).unwrap_or(0));
        return Err(refuse!(
            BAD_PARAM,
            "capability cannot be set",
            "{}: {now} to {new}",
            field.name
        ));
    }
    Ok(wanted)
}

/// Returns the structure at the beginning of a page, if the rest of the page is as it was queried.
fn first_part<T: Layout>(page: &[u8; 0x1000], rest: &[u8]) -> Result<T, Refusal> {
    let given = page[T::SIZE..].iter();
    let kept = rest.iter().chain(std::iter::repeat(&0));
    if given.zip(kept).any(|(new, now)| new != now) {
        return Err(refuse!(
            BAD_PARAM,
            "reserved bit changed",
            "beyond the capability structure"
        ));
    }
    T::read_from_prefix(page)
        .map(|(layout, _)| layout)
        .map_err(|_| refuse!(BAD_INPUT_LEN, "capability page"))
}

/// Returns the fields in which two pages differ.
fn changed<'a, T: Layout>(new: &'a T, now: &'a T) -> impl Iterator<Item = &'static Field> + 'a {
    T::FIELDS
        .iter()
        .filter(|field| field.value(new.as_bytes()) != field.value(now.as_bytes()))
}

/// Refuses a changed field above its maximum, and a change of a bit that no field names.
fn within<T: Layout>(page: &T, max: &T, current: &T) -> Result<(), Refusal> {
    let unnamed = |page: &T| -> Vec<u8> {
        let named = page.reencode();
        let bytes = page.as_bytes().iter();
        bytes
            .zip(named.as_bytes())
            .map(|(all, named)| all ^ named)
            .collect()
    };
    let (new, now) = (unnamed(page), unnamed(current));
    if let Some(at) = new.iter().zip(&now).position(|(new, now)| new != now) {
        return Err(refuse!(
            BAD_PARAM,
            "reserved bit changed",
            "in the dword at {:#x} of the capability page",
            at & !3
        ));
    }
    let above = |field: &&Field| field.value(page.as_bytes()) > field.value(max.as_bytes());
    if let Some(field) = changed(page, current).find(above) {
        return Err(refuse!(
            BAD_PARAM,
            "capability above its maximum",
            "{}",
            field.name
        ));
    }
    Ok(())
}
