//! Subnet management: InfiniBand ports, the agents that answer for them, and the switches between them.
//!
//! ```text
//!   MAD_IFC -----------.                                        .---- MAD_IFC
//!                      v                                        v
//!   QP 0 --> port -- agent          switch: agent, ports      agent -- port --> QP 0
//!             |                       |   |       |                     |
//!             '------- cable ---------'   '-------'-------- cable ------'
//! ```
//!
//! A port has a subnet management agent and a performance management agent ([`sma`], [`pma`]). Both answer Gets and
//! Sets by themselves, whether these come from the wire or by MAD_IFC, so a port answers with or without a driver. It
//! is inferred that firmware handles these packets before QP 0 and QP 1: Linux's `process_pma_cmd`
//! (drivers/infiniband/hw/mlx5/mad.c) writes no MAD header into its answer, and yet cards answer perfquery. Packets for
//! a subnet manager (SMInfo, traps, answers) go to the queue pair.
//!
//! A subnet has an outside manager or is preset. An outside manager ([`Manager::Outside`]) gives each port its LID and
//! moves it from Init to Active. In a preset subnet ([`Manager::Preset`]) every port has from the start a LID that is
//! derived from the low bits of its GUID, the default partition, and one GID, which is the link-local GID of its port
//! GUID. So a port with a carrier is ACTIVE at once, as if a subnet manager had configured it; `sm_lid` is zero until a
//! manager sets it. A manager's settings survive a reset of the function, as the link does.
//!
//! Absent on purpose: traps of agents (managers sweep), virtual lanes except the first and the management lane, M_Key
//! leases.

mod directed;
mod function;
mod mad;
mod packet;
mod pma;
mod port_info;
mod sma;
pub(crate) mod switch;

use crate::profile::Profile;
use crate::wire::DEFAULT_PKEY;
use mlx_prm::PortInfo;

pub use mad::IEEE_MELLANOX;
pub use packet::{MANAGEMENT_LANE, is_of_management_lane};
use pma::Counted;
pub use port_info::{Changes, FIRST_MULTICAST_LID, Link, PERMISSIVE_LID, PortState};
use port_info::{Kind, ManagedPort};
use sma::Lanes;

/// Capability mask of PortInfo: traps and notices about changes of the mask (both announced as cards do, and never
/// sent), automatic migration, SL mapping, system image GUID, extended speeds, communication management, vendor class,
/// client reregistration (IBTA volume 1, table "PortInfo").
const CAPABILITIES: u32 = 0x0251_4868;

/// The subnet manager of a simulation's subnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manager {
    /// No manager: a port is Active with a LID as soon as its link is up.
    #[default]
    Preset,
    /// A program on one of the subnet's nodes manages the subnet.
    Outside,
}

impl Manager {
    /// Returns the state that a port enters when its link comes up.
    pub const fn first_state(self) -> PortState {
        match self {
            Self::Preset => PortState::Active,
            Self::Outside => PortState::Init,
        }
    }
}

/// Subnet data of an InfiniBand port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// State and settings of the port, as PortInfo reports them.
    port: ManagedPort,
    /// Bits of PortInfo's capability mask that the driver may change.
    pub writable_capabilities: u32,
    /// GID table.
    pub gids: Vec<[u8; 16]>,
    /// P_Key table.
    pub pkeys: Vec<u16>,
    /// Virtual lane tables: service level mapping and arbitration.
    lanes: Lanes,
    /// Traffic counts at the last clear by performance management. Reported counters are relative to them.
    cleared: Counted,
}

impl Subnet {
    /// Creates the data of a port in a preset subnet. `gids` and `pkeys` are the lengths of the GID and P_Key tables.
    pub fn new(profile: &Profile, gids: usize, pkeys: usize) -> Self {
        let [_, _, _, _, high, low] = profile.mac;
        let lid = u16::from_be_bytes([high & 0x7f, low]).max(1);
        let mut port = ManagedPort::new(Kind::Adapter, Manager::Preset.first_state(), CAPABILITIES);
        port.info
            .set_lid(lid)
            .set_guid_cap(u32::try_from(gids).unwrap_or(u32::MAX).min(0xff));
        let mut subnet = Self {
            port,
            writable_capabilities: u32::MAX,
            gids: vec![[0; 16]; gids],
            pkeys: vec![0; pkeys],
            lanes: Lanes::of(1),
            cleared: Counted::default(),
        };
        if let Some(first) = subnet.gids.first_mut() {
            first[8..].copy_from_slice(&profile.port_guid().to_be_bytes());
        }
        if let Some(first) = subnet.pkeys.first_mut() {
            *first = DEFAULT_PKEY;
        }
        subnet.prefix_gids();
        subnet
    }

    /// Moves the port to a subnet that an external subnet manager configures: the port loses its LID and starts in
    /// Init.
    pub fn unmanage(&mut self) {
        self.port.state = Manager::Outside.first_state();
        self.port.info.set_lid(0);
    }

    /// Returns the port's data after a reset of its function. `self` is the freshly created port, `before` the port
    /// before the reset. The driver's settings (capability mask) are reset; the subnet manager's settings are kept.
    #[must_use]
    pub fn in_place_of(self, before: Self) -> Self {
        let mut port = before.port;
        port.info
            .set_capability_mask(self.port.info.capability_mask());
        Self { port, ..before }
    }

    /// Returns the port's PortInfo. The state fields in it are not valid; [`Subnet::states`] returns them.
    pub const fn info(&self) -> &PortInfo {
        &self.port.info
    }

    /// Returns PortState and PortPhysicalState as PortInfo encodes them.
    pub const fn states(&self, link: Link) -> (u32, u32) {
        self.port.states(link)
    }

    /// Returns the state that the port has while its link is up.
    pub const fn state(&self) -> PortState {
        self.port.state
    }

    /// Sets the state that the port has after its link came up or went down.
    pub const fn link_changed(&mut self, manager: Manager) {
        self.port.state = manager.first_state();
    }

    /// Handles a data packet from an active neighbour: an armed port becomes active (IBTA volume 1, section 7.2.7).
    /// Returns true if it was armed.
    pub fn data_arrived(&mut self) -> bool {
        let armed = self.port.state == PortState::Armed;
        if armed {
            self.port.state = PortState::Active;
        }
        armed
    }

    /// Sets the capability mask, at the request of the driver.
    pub fn set_capabilities(&mut self, capabilities: u32) {
        self.port.info.set_capability_mask(capabilities);
    }

    /// Returns whether a LID is the port's own.
    pub fn owns(&self, lid: u16) -> bool {
        self.port.owns(lid)
    }

    /// Sets the subnet prefix of every non-zero GID to the port's prefix.
    fn prefix_gids(&mut self) {
        let prefix = self.port.info.gid_prefix().to_be_bytes();
        for gid in &mut self.gids {
            if gid[8..] != [0; 8] {
                gid[..8].copy_from_slice(&prefix);
            }
        }
    }
}

#[cfg(test)]
mod tests;
