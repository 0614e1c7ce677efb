//! An entry of the GID table, and conversions between IP addresses and GIDs.

use std::net::{IpAddr, Ipv6Addr};

use rdma_types::{Address, Vlan};

/// Prefix length of fe80::/64, in bits (RFC 4291, 2.5.6).
const LINK_LOCAL_PREFIX: u8 = 64;

/// An entry of our address table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the device's table, which a queue pair's address path names.
    pub index: u8,
    /// The address as a GID.
    pub gid: [u8; 16],
    /// The address.
    pub address: IpAddr,
    /// Our MAC.
    pub mac: [u8; 6],
    /// VLAN of the frames that are sent from this entry; `None` for frames without a tag.
    pub vlan: Option<Vlan>,
    /// Prefix length in bits: all addresses on the link have these leading bits in common.
    pub prefix: u8,
    /// The router on the link for all other addresses.
    pub gateway: Option<IpAddr>,
}

/// Returns the table entry at `index` for an address.
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
    /// Returns the address with its prefix, gateway and VLAN, as a configuration gives it.
    #[must_use]
    pub fn to_address(&self) -> Address {
        Address {
            address: self.address,
            prefix: Some(self.prefix),
            gateway: self.gateway,
            vlan: self.vlan,
        }
    }

    /// Returns the VLAN priority of the frames that are sent from this entry; 0 without a VLAN.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.vlan.map_or(0, |vlan| vlan.priority)
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
