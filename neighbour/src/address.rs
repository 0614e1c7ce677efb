//! Addresses: what may be one of ours, what is on link, and what an address says by itself.
//!
//! An address of ours comes with the prefix that is on its link, the VLAN it lives in and perhaps a gateway. What a
//! caller may get wrong is refused here, with the numbers; nothing after this asks again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An Ethernet address, in the order of the wire.
pub type Mac = [u8; 6];

/// To all on the link (IEEE 802.3).
pub(crate) const BROADCAST: Mac = [0xff; 6];

/// ff02::1, to which every node listens (RFC 4291, 2.7.1).
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// A VLAN as it stands in an 802.1Q tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vlan {
    /// 1 to 4,094.
    pub id: u16,
    /// The priority (PCP) of what is sent, 0 to 7. What is received may have any.
    pub priority: u8,
}

/// An address of ours, and the link it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The address. One that is IPv4 in IPv6's clothes (::ffff:a.b.c.d, as a GID has it) is IPv4.
    pub address: IpAddr,
    /// How many bits of it all neighbours share: at most 32 or 128.
    pub prefix: u8,
    /// The VLAN it lives in. `None`: frames without a tag, and those with a tag of priority only.
    pub vlan: Option<Vlan>,
    /// Where to what is not on link goes.
    pub gateway: Option<IpAddr>,
}

/// Why an address is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Unspecified, loopback, multicast, broadcast or reserved.
    #[error("{address}: no address of one node on a network")]
    NotUnicast {
        /// What was given.
        address: IpAddr,
    },
    /// The prefix is longer than the address.
    #[error("{address}/{prefix}: the prefix has at most {most} bits")]
    Prefix {
        /// What was given.
        address: IpAddr,
        /// Its prefix, in bits.
        prefix: u8,
        /// The bits of the address.
        most: u8,
    },
    /// The VLAN's number or its priority cannot stand in a tag.
    #[error("VLAN {id} with priority {priority}: 1 to 4094, and 0 to 7")]
    Vlan {
        /// The number given.
        id: u16,
        /// The priority given.
        priority: u8,
    },
    /// The gateway is no neighbour: of another family, outside of the prefix, or the address itself.
    #[error("gateway {gateway} is not on the link of {address}/{prefix}")]
    GatewayNotOnLink {
        /// The gateway given.
        gateway: IpAddr,
        /// Whose it would be.
        address: IpAddr,
        /// The prefix of that, in bits.
        prefix: u8,
    },
    /// The address is ours already. One address of ours lives in one VLAN.
    #[error("{address} is ours already")]
    Taken {
        /// What was given.
        address: IpAddr,
    },
    /// There is no room for a further one.
    #[error("{have} addresses, and there is room for {most}")]
    TooMany {
        /// How many there are.
        have: usize,
        /// How many there may be.
        most: usize,
    },
    /// A neighbour's MAC would be that of a group, of nobody, or ours.
    #[error("{mac:02x?} is not the MAC of a neighbour")]
    NotAMac {
        /// What was given.
        mac: Mac,
    },
}

impl Interface {
    /// This interface with its addresses as they are meant, if it can be one.
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

    /// The VLAN's number: with the address, it is what a neighbour is known by.
    pub(crate) fn vlan_id(&self) -> Option<u16> {
        self.vlan.map(|vlan| vlan.id)
    }

    /// Whether `address` shares the prefix.
    pub(crate) fn has(&self, address: IpAddr) -> bool {
        shared_bits(self.address, address).is_some_and(|shared| shared >= u32::from(self.prefix))
    }

    /// Whether `address` can be a neighbour here: one node, and on link. Every link-local address of IPv6 is (RFC 4291,
    /// 2.5.6).
    fn can_reach(&self, address: IpAddr) -> bool {
        let same_family = self.address.is_ipv4() == address.is_ipv4();
        let on_link = self.has(address) || address.is_ipv6() && is_link_local(address);
        same_family && on_link && is_unicast(address) && !self.is_edge(address)
    }

    /// Whether `address` is the first or the last of the prefix, which name the network and its broadcast (RFC 1122,
    /// 3.2.1.3); with 31 bits or more they do not (RFC 3021).
    pub(crate) fn is_edge(&self, address: IpAddr) -> bool {
        let (IpAddr::V4(address), true) = (address, self.prefix < 31) else {
            return false;
        };
        let host = u32::MAX >> self.prefix;
        self.has(address.into()) && [0, host].contains(&(address.to_bits() & host))
    }
}

/// The length of an address.
fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// How many leading bits two addresses share; `None` if they are of two families.
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

/// Whether an address can be that of one node on a network, as far as it says so by itself.
pub(crate) fn is_unicast(address: IpAddr) -> bool {
    match address {
        // 0/8 and 127/8 (RFC 1122, 3.2.1.3); multicast, and what is reserved from 240/4 on, broadcast included (RFC
        // 1112).
        IpAddr::V4(address) => !matches!(address.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(address) => {
            !(address.is_unspecified() || address.is_loopback() || address.is_multicast())
        }
    }
}

/// Whether an address means something on its own link only (RFC 3927, 2.8; RFC 4291, 2.5.6).
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Whether frames may come from, and go to, this one adapter.
pub(crate) fn is_station(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

/// The MAC that a link-local address was made of, if it was made of one (RFC 4291, appendix A).
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

/// The group in which an address is asked for (RFC 4291, 2.7.1).
pub(crate) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low)
}

/// The MAC that a group of IPv6 is reached by (RFC 2464, 7).
pub(crate) fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// An IPv4 address that an ARP packet or a header may say is its sender's.
pub(crate) fn is_sender(address: Ipv4Addr) -> bool {
    is_unicast(address.into())
}
