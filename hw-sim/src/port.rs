//! The function's Ethernet port: addresses, state, counters.
//!
//! The RoCE address table gives source addresses to outgoing packets and decides which incoming
//! frames are ours. The vport context keeps what software sets (MTU, MAC lists, promiscuity, the
//! RoCE switch) and hands it back. Carrier is administrative state and link together; every change
//! of it is a port event.

use crate::host::GidEntry;
use crate::profile::{PortType, Profile};
use crate::subnet::Subnet;
use crate::wire::LrhPacket;

/// Bytes the port MTU counts beyond the IP MTU: Ethernet header, VLAN tag, FCS (mlx5 drivers add
/// the same 22).
const ETHERNET_OVERHEAD: u16 = 22;
/// Headers of the largest RoCE packet: GRH or IPv6, UDP, BTH, atomic header, ICRC (Linux
/// `iboe_get_mtu`).
const ROCE_OVERHEAD: u16 = 96;
/// Bytes of the frame check sequence, which no frame here has.
const FCS_BYTES: u16 = 4;
const BROADCAST: [u8; 6] = [0xff; 6];

/// Administrative state (register PAOS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminState {
    /// Up, and up again after a fault.
    Up,
    /// Down.
    Down,
}

/// Packets and bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames.
    pub packets: u64,
    /// Bytes.
    pub octets: u64,
}

impl Traffic {
    /// Counts a frame.
    pub fn count(&mut self, bytes: usize) {
        self.packets += 1;
        self.octets += bytes as u64;
    }

    /// What is left without a part of it.
    fn without(self, part: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(part.packets),
            octets: self.octets.saturating_sub(part.octets),
        }
    }
}

/// Ethernet frames of one direction, by whom they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthTraffic {
    /// For one station.
    pub unicast: Traffic,
    /// For a group.
    pub multicast: Traffic,
    /// For all.
    pub broadcast: Traffic,
}

impl EthTraffic {
    /// Counts a frame.
    pub fn count(&mut self, dst: [u8; 6], bytes: usize) {
        let traffic = match dst {
            BROADCAST => &mut self.broadcast,
            [first, ..] if first & 1 == 1 => &mut self.multicast,
            _ => &mut self.unicast,
        };
        traffic.count(bytes);
    }

    /// All of it.
    pub const fn total(&self) -> Traffic {
        Traffic {
            packets: self.unicast.packets + self.multicast.packets + self.broadcast.packets,
            octets: self.unicast.octets + self.multicast.octets + self.broadcast.octets,
        }
    }
}

/// What the Ethernet queues sent and received; the rest of a port's traffic is RDMA's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthCounters {
    /// Frames that were for this port.
    pub received: EthTraffic,
    /// Frames of send queues that left the port.
    pub transmitted: EthTraffic,
    /// Frames that came by and were for nobody here.
    pub unwanted: Traffic,
}

/// Address lists of the vport.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressLists {
    /// Unicast MAC addresses, as 8-byte entries.
    pub unicast: Vec<u64>,
    /// Multicast MAC addresses.
    pub multicast: Vec<u64>,
    /// VLANs.
    pub vlan: Vec<u64>,
}

/// The port of a function.
#[derive(Clone, Debug)]
pub struct Port {
    /// What software asked for.
    pub admin: AdminState,
    /// Vport administrative state: 0 down, 1 up, 2 follow.
    pub vport_admin: u32,
    /// Whether there is light on the fibre.
    pub carrier: bool,
    /// Frames that may pass, bytes, Ethernet header and FCS included.
    pub mtu: u16,
    /// L2 MTU of the vport context.
    pub vport_mtu: u16,
    /// RoCE is on.
    pub roce: bool,
    /// Promiscuous unicast, multicast, all.
    pub promiscuous: [bool; 3],
    /// Loopback of own unicast and multicast is off. RoCE traffic between queue pairs of one
    /// function is not subject to it here; no source says whether it is on hardware.
    pub loopback_off: [bool; 2],
    /// Permanent MAC.
    pub mac: [u8; 6],
    /// GUIDs: system image, port, node.
    pub guids: [u64; 3],
    /// MAC and VLAN lists.
    pub lists: AddressLists,
    /// An InfiniBand port's part of its subnet.
    pub subnet: Option<Subnet>,
    /// RoCE address table.
    pub gids: Vec<Option<GidEntry>>,
    /// Description of the node, 64 bytes.
    pub node_description: [u8; 64],
    /// Frames received.
    pub received: Traffic,
    /// Frames sent.
    pub transmitted: Traffic,
    /// Frames looped back inside the function.
    pub looped: Traffic,
    /// Those of the Ethernet queues.
    pub ethernet: EthCounters,
}

impl Port {
    /// The port after a reset.
    pub fn new(profile: &Profile, carrier: bool) -> Self {
        let guid = profile.port_guid();
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
            admin: AdminState::Up,
            vport_admin: 2,
            carrier,
            mtu: 1500 + ETHERNET_OVERHEAD,
            vport_mtu: 1500,
            roce: false,
            promiscuous: [false; 3],
            loopback_off: [false; 2],
            mac: profile.mac,
            guids: [guid, guid, guid],
            lists: AddressLists::default(),
            subnet: subnet(profile),
            gids: vec![None; entries],
            node_description,
            received: Traffic::default(),
            transmitted: Traffic::default(),
            looped: Traffic::default(),
            ethernet: EthCounters::default(),
        }
    }

    /// The LID of an InfiniBand port.
    pub fn lid(&self) -> Option<u16> {
        self.subnet.as_ref().map(|subnet| subnet.lid)
    }

    /// Whether frames pass.
    pub fn is_up(&self) -> bool {
        self.carrier && self.admin == AdminState::Up && self.vport_admin != 0
    }

    /// Largest RDMA path MTU the port carries, as the QPC codes it: 1 = 256 … 5 = 4096 bytes.
    pub fn rdma_mtu(&self) -> u8 {
        if self.subnet.is_some() {
            return 5;
        }
        let room = self.mtu.saturating_sub(ETHERNET_OVERHEAD + ROCE_OVERHEAD);
        (1..=5).rev().find(|code| room >= 128 << code).unwrap_or(1)
    }

    /// Longest frame that passes, in bytes.
    pub fn longest_frame(&self) -> usize {
        usize::from(self.mtu.saturating_sub(FCS_BYTES))
    }

    /// Whether an Ethernet frame is for software behind this port: for its address, the lists of the vport,
    /// all stations, or whatever promiscuity adds.
    pub fn accepts(&self, dst: [u8; 6]) -> bool {
        let [all_unicast, all_multicast, all] = self.promiscuous;
        let listed = |list: &[u64]| list.contains(&entry_of(dst));
        all || match dst {
            BROADCAST => true,
            [first, ..] if first & 1 == 1 => all_multicast || listed(&self.lists.multicast),
            _ => all_unicast || dst == self.mac || listed(&self.lists.unicast),
        }
    }

    /// Whether a frame that leaves the function comes back into it and does not reach the link: it is
    /// addressed to us. Loopback of Ethernet frames can be turned off; see [`Port::loopback_off`] for RoCE.
    pub fn turns_around(&self, frame: &[u8]) -> bool {
        let own = |dst: &[u8; 6]| {
            dst[0] & 1 == 0 && (*dst == self.mac || self.lists.unicast.contains(&entry_of(*dst)))
        };
        self.owns(frame)
            || self.subnet.is_none()
                && !self.loopback_off[0]
                && frame.first_chunk().is_some_and(own)
    }

    /// Received frames that were RDMA's.
    pub fn rdma_received(&self) -> Traffic {
        self.received
            .without(self.ethernet.received.total())
            .without(self.ethernet.unwanted)
    }

    /// Frames sent by others than the Ethernet queues.
    pub fn rdma_transmitted(&self) -> Traffic {
        self.transmitted.without(self.ethernet.transmitted.total())
    }

    /// Whether a frame is addressed to us: to the MAC address of an entry of the RoCE address table, or
    /// to our LID.
    pub fn owns(&self, frame: &[u8]) -> bool {
        match &self.subnet {
            Some(subnet) => LrhPacket::new_checked(frame).is_ok_and(|lrh| lrh.dlid() == subnet.lid),
            None => frame.first_chunk().is_some_and(|&mac: &[u8; 6]| {
                self.gids.iter().flatten().any(|entry| entry.mac == mac)
            }),
        }
    }
}

/// A MAC address as an entry of the vport's lists.
fn entry_of([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// The tables of an InfiniBand port are as long as the capabilities say: 8 GIDs and 128 partitions,
/// doubled by each step of `gid_table_size` and `pkey_table_size`.
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
        let mut port = Port::new(&Profile::default(), true);
        assert_eq!(port.rdma_mtu(), 3, "1522 bytes carry 1024");
        port.mtu = 4096 + 96 + 22;
        assert_eq!(port.rdma_mtu(), 5);
        port.mtu -= 1;
        assert_eq!(port.rdma_mtu(), 4);
    }

    #[test]
    fn a_port_is_up_when_everybody_agrees() {
        let mut port = Port::new(&Profile::default(), true);
        assert!(port.is_up());
        port.admin = AdminState::Down;
        assert!(!port.is_up());
        port.admin = AdminState::Up;
        port.carrier = false;
        assert!(!port.is_up());
    }
}
