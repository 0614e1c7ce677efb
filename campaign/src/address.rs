//! Addresses on the wire.

use std::net::IpAddr;

/// Source or destination of a packet.
#[derive(Clone, Copy)]
pub struct Address {
    pub mac: [u8; 6],
    pub gid: [u8; 16],
}

impl Address {
    /// Returns the link-local address of the card with this MAC (RFC 4291, appendix A).
    pub const fn of_mac(mac: [u8; 6]) -> Self {
        let [a, b, c, d, e, f] = mac;
        let gid = [
            0xfe,
            0x80,
            0,
            0,
            0,
            0,
            0,
            0,
            a ^ 2,
            b,
            c,
            0xff,
            0xfe,
            d,
            e,
            f,
        ];
        Self { mac, gid }
    }

    /// Returns a link-local IP address with the MAC that is derived from it (RFC 4291, appendix A). Returns `None` for
    /// an IPv4 address.
    pub fn of(ip: IpAddr) -> Option<Self> {
        let IpAddr::V6(ip) = ip else { return None };
        let gid = ip.octets();
        let [.., a, b, c, _, _, d, e, f] = gid;
        Some(Self {
            mac: [a ^ 2, b, c, d, e, f],
            gid,
        })
    }
}
