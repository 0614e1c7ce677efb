//! An entry of the table, and what an address is as a GID.

use std::net::{IpAddr, Ipv6Addr};

use rdma_types::{Address, Vlan};

/// Bits of fe80::/64 (RFC 4291, 2.5.6).
const LINK_LOCAL_PREFIX: u8 = 64;

/// An entry of our address table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index, which a queue pair's address path names.
    pub index: u8,
    /// The address as a GID.
    pub gid: [u8; 16],
    /// The address.
    pub address: IpAddr,
    /// Our MAC.
    pub mac: [u8; 6],
    /// The VLAN its frames are in; `None` for frames without a tag.
    pub vlan: Option<Vlan>,
    /// Bits that it has in common with all addresses on the link.
    pub prefix: u8,
    /// The station on the link that leads to all others.
    pub gateway: Option<IpAddr>,
}

/// The entry that an address gets.
pub(super) fn entry_of(index: u8, mac: [u8; 6], of: &Address) -> GidEntry {
    let link_local = matches!(of.address, IpAddr::V6(address) if address.is_unicast_link_local());
    GidEntry {
        index,
        gid: gid_of(of.address),
        address: of.address,
        mac,
        vlan: of.vlan,
        prefix: of
            .prefix
            .unwrap_or(if link_local { LINK_LOCAL_PREFIX } else { 0 }),
        gateway: of.gateway,
    }
}

impl GidEntry {
    /// The address, as one asks for it.
    #[must_use]
    pub fn to_address(&self) -> Address {
        Address {
            address: self.address,
            prefix: Some(self.prefix),
            gateway: self.gateway,
            vlan: self.vlan,
        }
    }

    /// Priority of its frames.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.vlan.map_or(0, |vlan| vlan.priority)
    }
}

/// The GID of an address.
pub fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The address a GID is; a mapped IPv4 address as such.
pub fn address_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// The link-local address of a MAC (RFC 4291, appendix A).
pub fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from([
        0xfe,
        0x80,
        0,
        0,
        0,
        0,
        0,
        0,
        a ^ 0x02,
        b,
        c,
        0xff,
        0xfe,
        d,
        e,
        f,
    ])
}

/// The MAC in a link-local address that was made of one.
pub fn mac_of_link_local(gid: [u8; 16]) -> Option<[u8; 6]> {
    let [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] = gid else {
        return None;
    };
    Some([a ^ 0x02, b, c, d, e, f])
}
