//! Checks of addresses: validity as an address of ours, the on-link test, and properties derived from an address alone.
//!
//! An address of ours has the prefix of its link, a VLAN, and perhaps a gateway. This module refuses invalid arguments
//! of a caller and reports the values; later code does not check them again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An Ethernet address, in wire order.
pub type Mac = [u8; 6];

/// Broadcast address of Ethernet (IEEE 802.3).
pub(crate) const BROADCAST: Mac = [0xff; 6];

/// ff02::1, the group of which every node is a member (RFC 4291, 2.7.1).
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// A VLAN, as in an 802.1Q tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vlan {
    /// VLAN ID, 1 to 4,094.
    pub id: u16,
    /// Priority (PCP) of sent frames, 0 to 7. Received frames may have any priority.
    pub priority: u8,
}

/// An address of ours, and the link it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The address. An IPv4-mapped IPv6 address (::ffff:a.b.c.d, as in a GID) is treated as IPv4.
    pub address: IpAddr,
    /// Prefix length in bits: 0 to 32 for IPv4, 0 to 128 for IPv6. Addresses with the same prefix are on link.
    pub prefix: u8,
    /// VLAN of the address's frames. `None`: frames without a tag, or with a priority tag.
    pub vlan: Option<Vlan>,
    /// Next hop for destinations that are not on link.
    pub gateway: Option<IpAddr>,
}

/// Reason why an address is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The address is unspecified, loopback, multicast, broadcast or reserved, or is the network address of its prefix.
    #[error("{address}: no address of one node on a network")]
    NotUnicast {
        /// The refused address.
        address: IpAddr,
    },
    /// The prefix is longer than the address.
    #[error("{address}/{prefix}: the prefix has at most {most} bits")]
    Prefix {
        /// The refused address.
        address: IpAddr,
        /// Prefix length of the address, in bits.
        prefix: u8,
        /// Length of the address, in bits.
        most: u8,
    },
    /// The VLAN ID or the priority is not legal in a tag.
    #[error("VLAN {id} with priority {priority}: 1 to 4094, and 0 to 7")]
    Vlan {
        /// The refused VLAN ID.
        id: u16,
        /// The refused priority.
        priority: u8,
    },
    /// The gateway is not a neighbour: it is of another family, outside of the prefix, or the address itself.
    #[error("gateway {gateway} is not on the link of {address}/{prefix}")]
    GatewayNotOnLink {
        /// The refused gateway.
        gateway: IpAddr,
        /// The address of ours that has the gateway.
        address: IpAddr,
        /// Prefix length of that address, in bits.
        prefix: u8,
    },
    /// The address is ours already. An address of ours can be in one VLAN only.
    #[error("{address} is ours already")]
    Taken {
        /// The refused address.
        address: IpAddr,
    },
    /// The maximum number of addresses is reached.
    #[error("{have} addresses, and there is room for {most}")]
    TooMany {
        /// Current number of addresses.
        have: usize,
        /// Maximum number of addresses.
        most: usize,
    },
    /// The MAC given for a neighbour is a group address or all zero.
    #[error("{mac:02x?} is not the MAC of a neighbour")]
    NotAMac {
        /// The refused MAC.
        mac: Mac,
    },
}

impl Interface {
    /// Returns this interface with its addresses in canonical form, or the reason why it is not valid.
    pub(crate) fn checked(self) -> Result<Self, AddressError> {
        let address = self.address.to_canonical();
        let prefix = self.prefix;
        let most = bits(address);
        if prefix > most {
            return Err(AddressError::Prefix {
                address,
                prefix,
                most,
            });
        }
        let interface = Self {
            address,
            gateway: self.gateway.map(|gateway| gateway.to_canonical()),
            ..self
        };
        if !is_unicast(address) || interface.is_edge(address) {
            return Err(AddressError::NotUnicast { address });
        }
        if let Some(Vlan { id, priority }) = self.vlan
            && !(matches!(id, 1..=4094) && priority <= 7)
        {
            return Err(AddressError::Vlan { id, priority });
        }
        match interface.gateway {
            Some(gateway) if gateway == address || !interface.can_reach(gateway) => {
                Err(AddressError::GatewayNotOnLink {
                    gateway,
                    address,
                    prefix,
                })
            }
            _ => Ok(interface),
        }
    }

    /// Returns the VLAN ID. A VLAN ID and an address together identify a neighbour.
    pub(crate) fn vlan_id(&self) -> Option<u16> {
        self.vlan.map(|vlan| vlan.id)
    }

    /// Returns whether `address` has the prefix of this interface.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        shared_bits(self.address, address).is_some_and(|shared| shared >= u32::from(self.prefix))
    }

    /// Returns whether `address` can be a neighbour on this link: it must be the address of one node, and on link.
    /// Every IPv6 link-local address is on link (RFC 4291, 2.5.6).
    fn can_reach(&self, address: IpAddr) -> bool {
        let same_family = self.address.is_ipv4() == address.is_ipv4();
        let on_link = self.has(address) || address.is_ipv6() && is_link_local(address);
        same_family && on_link && is_unicast(address) && !self.is_edge(address)
    }

    /// Returns whether `address` is the IPv4 network address (first) or broadcast address (last) of the prefix
    /// (RFC 1122, 3.2.1.3). Prefixes of 31 bits or more have neither (RFC 3021). IPv6 prefixes have neither.
    pub(crate) fn is_edge(&self, address: IpAddr) -> bool {
        let (IpAddr::V4(address), true) = (address, self.prefix < 31) else {
            return false;
        };
        let host = u32::MAX >> self.prefix;
        self.has(address.into()) && [0, host].contains(&(address.to_bits() & host))
    }
}

/// Returns the length of an address in bits.
fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Returns the number of leading bits that two addresses have in common; `None` if their families differ.
pub(crate) fn shared_bits(one: IpAddr, other: IpAddr) -> Option<u32> {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            Some((one.to_bits() ^ other.to_bits()).leading_zeros())
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            Some((one.to_bits() ^ other.to_bits()).leading_zeros())
        }
        _ => None,
    }
}

/// Returns whether an address can be the address of one node. Only the address itself is checked.
pub(crate) fn is_unicast(address: IpAddr) -> bool {
    match address {
        // Not one node's: 0/8 and 127/8 (RFC 1122, 3.2.1.3); multicast, and the reserved addresses from 240/4 on,
        // including broadcast (RFC 1112).
        IpAddr::V4(address) => !matches!(address.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(address) => {
            !(address.is_unspecified() || address.is_loopback() || address.is_multicast())
        }
    }
}

/// Returns whether an address is valid on its own link only (RFC 3927, 2.8; RFC 4291, 2.5.6).
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Returns whether a MAC is an individual address, not a group's and not all zero.
pub(crate) fn is_station(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

/// Returns the MAC from which an IPv6 link-local address was formed as modified EUI-64 (RFC 4291, appendix A);
/// `None` if the address was not formed from the MAC of a station.
pub(crate) fn named_mac(address: IpAddr) -> Option<Mac> {
    let IpAddr::V6(address) = address else {
        return None;
    };
    let [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] = address.octets() else {
        return None;
    };
    let mac = [a ^ 2, b, c, d, e, f];
    is_station(mac).then_some(mac)
}

/// Returns the solicited-node group of an address (RFC 4291, 2.7.1).
pub(crate) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low)
}

/// Returns the MAC of an IPv6 group (RFC 2464, 7).
pub(crate) fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// Returns whether an ARP packet or an IPv4 header may have this address as its sender.
pub(crate) fn is_sender(address: Ipv4Addr) -> bool {
    is_unicast(address.into())
}
