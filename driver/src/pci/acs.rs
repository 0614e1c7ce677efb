//! Isolation below the bridges: Access Control Services.
//!
//! Functions behind a bridge can reach each other without passing the IOMMU, unless the bridge's ports redirect such
//! traffic upstream (PCI Express Base Specification, "Access Control Services": source validation, request and
//! completion redirect, upstream forwarding). The kernel puts functions that it cannot isolate into one IOMMU group. So
//! when a group has unrelated functions, the usual cause is a port above it that lacks these bits. This module reads
//! the bits from the ports' configuration space.

use std::fs;
use std::path::Path;

use super::capability;
use super::machine::{BRIDGE, Machine, hex, text};
use crate::vfio::PciAddress;

/// Offset of the first extended capability.
const EXTENDED: usize = 0x100;
const ACS: u16 = 0x000d;
const PCI_EXPRESS: u8 = 0x10;
/// Source validation, P2P request redirect, P2P completion redirect, upstream forwarding (`REQ_ACS_FLAGS` of Linux
/// `drivers/iommu/iommu.c`).
const NEEDED: u16 = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 4;
const ROOT_PORT: u16 = 4;
const DOWNSTREAM_PORT: u16 = 6;

/// Tells whether a port sends the traffic between the functions below it upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// The port sends all of this traffic upstream.
    On,
    /// The port has the ACS capability, but not all of the needed bits are enabled.
    Off,
    /// The port has no ACS capability.
    Absent,
    /// The port's configuration space cannot be read completely. Only root may read all of it.
    Unreadable,
}

/// A port between the root and a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Address of the port.
    pub address: PciAddress,
    /// Handling of traffic between the functions below the port.
    pub isolation: Isolation,
}

impl Machine {
    /// Returns the root ports and downstream ports above a function, from the root down.
    #[must_use]
    pub fn ports_above(&self, address: PciAddress) -> Vec<Port> {
        // The path by address is a link. The canonical path has the function's parents as its directories.
        let Ok(path) = fs::canonicalize(self.device(address)) else {
            return Vec::new();
        };
        let mut ports: Vec<Port> = path
            .ancestors()
            .skip(1)
            .map_while(|above| Some((above, above.file_name()?.to_str()?.parse().ok()?)))
            .filter_map(|(above, address)| {
                let is_bridge = hex(&text(&above.join("class"))?)? >> 16 == BRIDGE;
                let isolation = is_bridge.then(|| isolation(above))??;
                Some(Port { address, isolation })
            })
            .collect();
        ports.reverse();
        ports
    }
}

/// Returns the isolation of a port; `None` for a device that is no root port and no downstream port.
fn isolation(port: &Path) -> Option<Isolation> {
    let config = fs::read(port.join("config")).ok()?;
    // Configuration space is little-endian.
    let word = |at: usize| {
        let (low, high) = (*config.get(at)?, *config.get(at + 1)?);
        Some(u16::from_be_bytes([high, low]))
    };
    // A user who may read only the header cannot read the kind of port either.
    if config.len() < EXTENDED {
        return Some(Isolation::Unreadable);
    }
    let byte = |at| config.get(usize::from(at)).copied().ok_or(());
    let express = capability::find(PCI_EXPRESS, byte).ok()??;
    let flags = word(usize::from(express) + 2)?;
    if !matches!(flags >> 4 & 0xf, ROOT_PORT | DOWNSTREAM_PORT) {
        return None;
    }
    let mut at = EXTENDED;
    // The loop is bounded by the number of entries that fit into the space, in case the list is a cycle.
    for _ in 0..config.len() / 4 {
        let (Some(id), Some(next)) = (word(at), word(at + 2).map(|word| word >> 4)) else {
            break;
        };
        if id == ACS {
            let control = word(at + 6)?;
            return Some(if control & NEEDED == NEEDED {
                Isolation::On
            } else {
                Isolation::Off
            });
        }
        if usize::from(next) < EXTENDED {
            break;
        }
        at = usize::from(next);
    }
    Some(Isolation::Absent)
}
