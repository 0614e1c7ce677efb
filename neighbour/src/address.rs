//! Checks of addresses: validity as an address of ours, the on-link test, and properties derived from an address alone.
//!
//! An address of ours has the prefix of its link, a VLAN, and perhaps a gateway. This module refuses invalid arguments
//! of a caller and reports the values; later code does not check them again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use rdma_types::{Address, Vlan};

/// An Ethernet address, in wire order.
pub type Mac = [u8; 6];

/// Broadcast address of Ethernet (IEEE 802.3).
pub(crate) const BROADCAST: Mac = [0xff; 6];

/// ff02::1, the group of which every node is a member (RFC 4291, 2.7.1).
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

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

/// Returns an address of ours in canonical form, or the reason why it is not valid.
pub(crate) fn checked(own: Address) -> Result<Address, AddressError> {
    let own = own.to_canonical();
    let (address, prefix, most) = (own.address, own.prefix_bits(), own.longest_prefix());
    if prefix > most {
        return Err(AddressError::Prefix {
            address,
            prefix,
            most,
        });
    }
    if !is_unicast(address) || is_edge(&own, address) {
        return Err(AddressError::NotUnicast { address });
    }
    if let Some(Vlan { id, priority }) = own.vlan
        && !(matches!(id, 1..=4094) && priority <= 7)
    {
        return Err(AddressError::Vlan { id, priority });
    }
    match own.gateway {
        Some(gateway) if gateway == address || !can_reach(&own, gateway) => {
            Err(AddressError::GatewayNotOnLink {
                gateway,
                address,
                prefix,
            })
        }
        _ => Ok(own),
    }
}

/// Returns whether `address` can be a neighbour on the link of `own`: it must be the address of one node, and on link.
/// Every IPv6 link-local address is on link (RFC 4291, 2.5.6).
fn can_reach(own: &Address, address: IpAddr) -> bool {
    let same_family = own.address.is_ipv4() == address.is_ipv4();
    let on_link = own.shares_prefix(address) || address.is_ipv6() && is_link_local(address);
    same_family && on_link && is_unicast(address) && !is_edge(own, address)
}

/// Returns whether `address` is the IPv4 network address (first) or broadcast address (last) of the prefix of `own`
/// (RFC 1122, 3.2.1.3). Prefixes of 31 bits or more have neither (RFC 3021). IPv6 prefixes have neither.
pub(crate) fn is_edge(own: &Address, address: IpAddr) -> bool {
    let (IpAddr::V4(v4), prefix @ ..31) = (address, own.prefix_bits()) else {
        return false;
    };
    let host = u32::MAX >> prefix;
    own.shares_prefix(address) && [0, host].contains(&(v4.to_bits() & host))
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
