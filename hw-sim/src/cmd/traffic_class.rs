//! Traffic classes of the port: registers QTCT and QETCR. Linux' `mlx5_core` writes them for `dcb ets` and `dcb
//! maxrate`, and when it starts (`mlx5e_ets_init` in drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c).

use super::register::{image_of, own_port};
use super::{Cmd, Refusal, refuse};
use crate::switch::{RateLimit, TrafficClass};
use mlx_prm::{EtsTcnConfig, Qetcr, Qtct, RateUnit};
use zerocopy::IntoBytes;

/// Number of groups of classes. Inferred: there are eight classes, and no known driver writes a group above 7.
const GROUPS: u32 = 8;

/// Checks the port number of these registers. Linux writes them with 0 and reads them with 1 or 0.
fn port_or_none(port: u32) -> Result<(), Refusal> {
    if port == 0 { Ok(()) } else { own_port(port) }
}

/// Returns the number of classes. A device that does not report the number has 8 (Linux `mlx5_max_tc`).
fn classes(cmd: &Cmd<'_>) -> u32 {
    match cmd.nic.caps.general.max_tc() {
        0 => 8,
        classes => classes.min(8),
    }
}

/// Reads or writes register QTCT, the class of a priority.
pub(super) fn qtct(cmd: &mut Cmd<'_>, image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    let register: Qtct = image_of(image)?;
    port_or_none(register.port_number())?;
    let most = classes(cmd);
    let traffic = &mut cmd.env.card_mut(cmd.nic.seat).uplink.qos.traffic;
    // PANIC: the index is a 3-bit field, and the array has 8 elements.
    let class = &mut traffic.of_priority[register.prio() as usize];
    if !read {
        *class = match u8::try_from(register.tclass()) {
            Ok(wanted) if register.tclass() < most => wanted,
            _ => {
                return Err(refuse!(
                    BAD_PARAM,
                    "no such traffic class",
                    "{}",
                    register.tclass()
                ));
            }
        };
    }
    let mut out = register.clone();
    out.set_tclass((*class).into());
    Ok(out.as_bytes().to_vec())
}

/// Reads or writes register QETCR: groups, bandwidth parts and rate limits of classes. A write changes only the
/// values that its bits select. A write with an invalid value changes nothing.
pub(super) fn qetcr(cmd: &mut Cmd<'_>, image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    let register: Qetcr = image_of(image)?;
    port_or_none(register.port_number())?;
    if !read && register.global_configuration().r() {
        return Err(refuse!(BAD_PARAM, "a largest rate of the whole port"));
    }
    let most = classes(cmd) as usize;
    let classes = &mut cmd.env.card_mut(cmd.nic.seat).uplink.qos.traffic.classes;
    if !read {
        let mut written = *classes;
        for (number, class) in written.iter_mut().enumerate() {
            let wanted = register.class(number);
            if number >= most && (wanted.g() || wanted.b() || wanted.r()) {
                return Err(refuse!(BAD_PARAM, "no such traffic class", "{number}"));
            }
            write(class, &wanted)?;
        }
        *classes = written;
    }
    let mut out = Qetcr::new();
    out.set_port_number(register.port_number());
    for (number, class) in classes.iter().enumerate() {
        out.set_class(number, &config_of(class));
    }
    Ok(out.as_bytes().to_vec())
}

fn write(class: &mut TrafficClass, wanted: &EtsTcnConfig) -> Result<(), Refusal> {
    if wanted.g() {
        class.group = match u8::try_from(wanted.group()) {
            Ok(group) if wanted.group() < GROUPS => group,
            _ => {
                return Err(refuse!(
                    BAD_PARAM,
                    "group of a traffic class",
                    "{}",
                    wanted.group()
                ));
            }
        };
    }
    if wanted.b() {
        class.share = match u8::try_from(wanted.bw_allocation()) {
            Ok(share @ 1..=100) => share,
            _ => {
                return Err(refuse!(
                    BAD_PARAM,
                    "share of a traffic class",
                    "{} %",
                    wanted.bw_allocation()
                ));
            }
        };
    }
    if wanted.r() {
        // CAST: the value is an 8-bit field.
        let value = u8::try_from(wanted.max_bw_value()).unwrap_or(u8::MAX);
        class.limit = match (wanted.max_bw_units(), value) {
            (RateUnit::NONE, _) => None,
            (RateUnit::MBPS_100, 1..) => Some(RateLimit::HundredMegabits(value)),
            (RateUnit::GBPS, 1..) => Some(RateLimit::Gigabits(value)),
            (unit, value) => {
                return Err(refuse!(
                    BAD_PARAM,
                    "largest rate of a traffic class",
                    "{value} of {unit:?}"
                ));
            }
        };
    }
    Ok(())
}

fn config_of(class: &TrafficClass) -> EtsTcnConfig {
    let mut out = EtsTcnConfig::new();
    out.set_group(class.group.into())
        .set_bw_allocation(class.share.into());
    match class.limit {
        None => {}
        Some(RateLimit::HundredMegabits(value)) => {
            out.set_max_bw_units(RateUnit::MBPS_100)
                .set_max_bw_value(value.into());
        }
        Some(RateLimit::Gigabits(value)) => {
            out.set_max_bw_units(RateUnit::GBPS)
                .set_max_bw_value(value.into());
        }
    }
    out
}
