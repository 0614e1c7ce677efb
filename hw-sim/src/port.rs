//! The part of a port's state that belongs to one function: addresses, lists, counters.
//!
//! The RoCE address table gives source addresses to outgoing packets and decides which incoming packets go to the
//! RDMA engine. The vport context keeps settings that software writes (MTU, MAC lists, promiscuity, RoCE enable) and
//! returns them on request; the e-switch makes its rules from them ([`crate::card`]). A reset erases all of this state,
//! except the number of changes of the address table and parts of an InfiniBand port's subnet state.

use crate::host::GidEntry;
use crate::profile::{PortType, Profile};
use crate::subnet::{PERMISSIVE_LID, Subnet};
use crate::traffic::{BROADCAST, EthCounters, Traffic};
use crate::wire::LrhPacket;

/// Number of bytes of the port MTU beyond the IP MTU: Ethernet header, VLAN tag, FCS (mlx5 drivers add the same 22).
pub const ETHERNET_OVERHEAD: u16 = 22;
/// Number of header bytes of the largest RoCE packet: GRH or IPv6, UDP, BTH, XRCETH, AtomicETH, ICRC (Linux
/// `iboe_get_mtu`).
const ROCE_OVERHEAD: u16 = 96;
/// Number of bytes of the frame check sequence, which simulated frames do not have.
pub const FCS_BYTES: u16 = 4;

/// Address lists of the vport context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressLists {
    /// Unicast MAC addresses, as 8-byte entries.
    pub unicast: Vec<u64>,
    /// Multicast MAC addresses, as 8-byte entries.
    pub multicast: Vec<u64>,
    /// VLAN IDs, as 8-byte entries.
    pub vlan: Vec<u64>,
}

/// The part of a port's state that belongs to one function.
#[derive(Clone, Debug)]
pub struct Port {
    /// L2 MTU of the vport context in bytes, including Ethernet header, VLAN tag and FCS, as mlx5e counts it
    /// (`MLX5E_SW2HW_MTU`).
    pub mtu: u16,
    /// True if RoCE is enabled.
    pub roce: bool,
    /// Promiscuity for unicast, for multicast, and for all frames.
    pub promiscuous: [bool; 3],
    /// True if loopback of the function's own unicast frames, and of its own multicast frames, is off. In the simulator
    /// this setting does not affect RoCE traffic between queue pairs of one function. No source states the behaviour of
    /// hardware.
    pub loopback_off: [bool; 2],
    /// MAC and VLAN lists of the vport context.
    pub lists: AddressLists,
    /// Subnet state of an InfiniBand port; `None` for Ethernet.
    pub subnet: Option<Subnet>,
    /// RoCE address table.
    gids: Vec<Option<GidEntry>>,
    /// MAC addresses in the RoCE address table, each once.
    macs: Vec<[u8; 6]>,
    /// Number of changes of the RoCE address table, counted across resets.
    changes: u64,
    /// Node description, 64 bytes.
    pub node_description: [u8; 64],
    /// Frames received, except those looped back.
    pub received: Traffic,
    /// Frames sent, except those looped back.
    pub transmitted: Traffic,
    /// Frames looped back inside the function.
    pub looped: Traffic,
    /// Counters of the Ethernet queues.
    pub ethernet: EthCounters,
}

impl Port {
    /// Returns the state of a port after a reset.
    pub fn new(profile: &Profile) -> Self {
        let mut node_description = [0; 64];
        let name = profile.name.as_bytes();
        let length = name.len().min(63);
        node_description[..length].copy_from_slice(&name[..length]);
        let entries = match profile.port_type {
            PortType::Ethernet => profile.roce.max.roce_address_table_size(),
            PortType::InfiniBand => 0,
        };
        let entries = usize::try_from(entries).unwrap_or(0);
        Self {
            mtu: 1500 + ETHERNET_OVERHEAD,
            roce: false,
            promiscuous: [false; 3],
            loopback_off: [false; 2],
            lists: AddressLists::default(),
            subnet: subnet(profile),
            gids: vec![None; entries],
            macs: Vec::new(),
            changes: 0,
            node_description,
            received: Traffic::default(),
            transmitted: Traffic::default(),
            looped: Traffic::default(),
            ethernet: EthCounters::default(),
        }
    }

    /// Returns this new state with the parts of `before` that survive a reset.
    #[must_use]
    pub(crate) fn in_place_of(self, before: &Self) -> Self {
        let subnet = self.subnet.zip(before.subnet.clone());
        Self {
            changes: before.changes + 1,
            subnet: subnet.map(|(new, before)| new.in_place_of(before)),
            ..self
        }
    }

    /// Returns a number that changes whenever the RoCE address table changes. That table holds all own addresses of an
    /// Ethernet port. Returns `None` for an InfiniBand port.
    pub(crate) fn addresses(&self) -> Option<u64> {
        self.subnet.is_none().then_some(self.changes)
    }

    /// Returns the RoCE address table.
    pub fn gids(&self) -> &[Option<GidEntry>] {
        &self.gids
    }

    /// Changes an entry of the RoCE address table; returns false if there is no such entry.
    pub fn set_gid(&mut self, index: usize, entry: Option<GidEntry>) -> bool {
        let Some(slot) = self.gids.get_mut(index) else {
            return false;
        };
        *slot = entry;
        self.changes += 1;
        self.macs = self.gids.iter().flatten().map(|entry| entry.mac).collect();
        self.macs.sort_unstable();
        self.macs.dedup();
        true
    }

    /// Returns the LID of an InfiniBand port.
    pub fn lid(&self) -> Option<u16> {
        self.subnet.as_ref().map(|subnet| subnet.info().lid())
    }

    /// Returns whether a LID belongs to this port; false for an Ethernet port.
    pub fn owns_lid(&self, lid: u16) -> bool {
        self.subnet.as_ref().is_some_and(|subnet| subnet.owns(lid))
    }

    /// Returns the largest RDMA path MTU on a wire with this MTU, as the QPC codes it: 1 = 256 … 5 = 4096 bytes. On
    /// InfiniBand it is always 4096 bytes.
    pub fn rdma_mtu(&self, wire: u16) -> u8 {
        if self.subnet.is_some() {
            return 5;
        }
        let room = wire.saturating_sub(ETHERNET_OVERHEAD + ROCE_OVERHEAD);
        (1..=5).rev().find(|code| room >= 128 << code).unwrap_or(1)
    }

    /// Returns the length of the longest frame that passes the vport, in bytes without the frame check sequence.
    pub fn longest_frame(&self) -> usize {
        usize::from(self.mtu.saturating_sub(FCS_BYTES))
    }

    /// Returns whether the unicast list contains an address.
    pub fn lists_unicast(&self, address: [u8; 6]) -> bool {
        self.lists.unicast.contains(&entry_of(address))
    }

    /// Returns whether the multicast list contains an address. The broadcast address has no special meaning here.
    pub fn lists_multicast(&self, address: [u8; 6]) -> bool {
        self.lists.multicast.contains(&entry_of(address))
    }

    /// Returns whether a list of the vport has an entry, or promiscuity of any kind is on.
    pub fn is_listed(&self) -> bool {
        self.lists != AddressLists::default() || self.promiscuous != [false; 3]
    }

    /// Returns whether an Ethernet frame is for software behind this port: its destination is the port's address `own`,
    /// in the lists of the vport, the broadcast address, or accepted by promiscuity.
    pub fn accepts(&self, own: [u8; 6], dst: [u8; 6]) -> bool {
        let [all_unicast, all_multicast, all] = self.promiscuous;
        all || match dst {
            BROADCAST => true,
            [first, ..] if first & 1 == 1 => all_multicast || self.lists_multicast(dst),
            _ => all_unicast || dst == own || self.lists_unicast(dst),
        }
    }

    /// Returns the counters of received RDMA frames.
    pub fn rdma_received(&self) -> Traffic {
        self.received
            .without(self.ethernet.received.total())
            .without(self.ethernet.unwanted)
    }

    /// Returns the counters of sent RDMA frames.
    pub fn rdma_transmitted(&self) -> Traffic {
        self.transmitted.without(self.ethernet.transmitted.total())
    }

    /// Returns whether a frame is addressed to this port: to the MAC address of an entry of the RoCE address table,
    /// or to a LID of the port or the permissive LID.
    pub fn owns(&self, frame: &[u8]) -> bool {
        match &self.subnet {
            Some(subnet) => LrhPacket::new_checked(frame)
                .is_ok_and(|lrh| lrh.dlid() == PERMISSIVE_LID || subnet.owns(lrh.dlid())),
            None => frame
                .first_chunk()
                .is_some_and(|&mac: &[u8; 6]| self.macs.contains(&mac)),
        }
    }
}

/// Returns a MAC address in the format of an entry of the vport's lists.
pub fn entry_of([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Returns the subnet state of an InfiniBand port, or `None` for Ethernet. The sizes of its tables follow the
/// capabilities: 8 GIDs and 128 partitions, doubled by each step of `gid_table_size` and `pkey_table_size`.
fn subnet(profile: &Profile) -> Option<Subnet> {
    let caps = &profile.general.current;
    let entries = |first: usize, steps: u32| first << steps.min(5);
    (profile.port_type == PortType::InfiniBand).then(|| {
        Subnet::new(
            profile,
            entries(8, caps.gid_table_size()),
            entries(128, caps.pkey_table_size()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_mtu_is_the_largest_that_fits_with_all_headers() {
        let port = Port::new(&Profile::default());
        let with_all = 4096 + 96 + 22;
        assert_eq!(port.rdma_mtu(port.mtu), 3, "1522 bytes carry 1024");
        assert_eq!(port.rdma_mtu(with_all), 5);
        assert_eq!(port.rdma_mtu(with_all - 1), 4);
    }
}
