//! An entry of the GID table, and conversions between IP addresses and GIDs.

use std::net::{IpAddr, Ipv6Addr};

use rdma_types::Address;

/// An entry of our address table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the device's table, which a queue pair's address path names.
    pub index: u8,
    /// The address as a GID.
    pub gid: [u8; 16],
    /// The address. Its prefix is never `None`.
    pub address: Address,
    /// Our MAC.
    pub mac: [u8; 6],
}

/// Returns the table entry at `index` for an address.
pub(super) fn entry_of(index: u8, mac: [u8; 6], of: &Address) -> GidEntry {
    GidEntry {
        index,
        gid: gid_of(of.address),
        address: Address {
            prefix: Some(of.prefix_bits()),
            ..*of
        },
        mac,
    }
}

impl GidEntry {
    /// Returns the VLAN priority of the frames that are sent from this entry; 0 without a VLAN.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.address.vlan.map_or(0, |vlan| vlan.priority)
    }
}

/// Returns the GID of an address.
pub fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns the address of a GID. A mapped IPv6 address is returned as an IPv4 address.
pub fn address_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

/// Returns the link-local address of a MAC (RFC 4291, appendix A).
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

/// Returns the MAC that a link-local address contains; `None` for other addresses.
pub fn mac_of_link_local(gid: [u8; 16]) -> Option<[u8; 6]> {
    let [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a, b, c, 0xff, 0xfe, d, e, f] = gid else {
        return None;
    };
    Some([a ^ 0x02, b, c, d, e, f])
}
