//! REQs of the RDMA CM: a service ID that holds a TCP-like port, and 36 bytes at the start of the private data with
//! the IP addresses of the two sides (IBTA volume 1, annex A11, "RDMA IP CM Service"; Linux `struct cma_hdr`).
//!
//! ```text
//!   byte  0        1            2..4          4..20            20..36
//!        +--------+------------+-------------+----------------+---------------------+
//!        | 0      | IP version | source port | source address | destination address |
//!        |        | in bits 7:4| big-endian  | IPv4: last 4 bytes of 16, others zero |
//!        +--------+------------+-------------+----------------+---------------------+
//! ```
//!
//! Only the REQ has this header; the REP carries the consumer's bytes alone. Addresses are handled as GIDs here, an
//! IPv4 address as `::ffff:a.b.c.d`, so that they can be compared with the entries of a port's GID table.

use super::wire::mad::narrow;

/// First service ID of the TCP port space: the port is in the low 16 bits.
pub const SERVICE_ID_BASE: u64 = 0x0000_0000_0106_0000;
/// Length of the header in bytes.
pub const HEADER_BYTES: usize = HeaderLayout::SIZE;

/// The first twelve bytes of a GID that is an IPv4 address.
const IPV4_MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Returns the service ID of a port.
#[must_use]
pub const fn service_id(port: u16) -> u64 {
    // CAST: widening; `From` is not const.
    SERVICE_ID_BASE | port as u64
}

/// Returns whether the service ID is in the RDMA CM's TCP port space.
#[must_use]
pub const fn is_service_id(service_id: u64) -> bool {
    service_id & !0xffff == SERVICE_ID_BASE
}

/// Module that limits the visibility of the layout to its parent module.
mod table {
    use layout::layout;

    layout! {
        /// The header, in the bytes of the private data.
        pub struct HeaderLayout(0x24) {
            /// Version of the header, 0.
            cma_version: 0x00 u8,
            ip_version: 0x00[23:20],
            port: 0x02 u16,
            src_addr: 0x04 [u8; 16],
            dst_addr: 0x14 [u8; 16],
        }
    }
}
use table::HeaderLayout;

/// Reason why an IP header is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The version of the header is not 0.
    #[error("RDMA CM header version {0}, only 0 is known")]
    Version(u8),
    /// The IP version is neither IPv4 nor IPv6.
    #[error("IP version {0} in the RDMA CM header")]
    IpVersion(u8),
    /// One address is IPv4 and the other IPv6.
    #[error("source and destination are of different IP versions")]
    MixedFamilies,
}

/// The IP header: the requester's address and port, and the address of ours to which the request is directed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// Port of the requester.
    pub source_port: u16,
    /// Address of the requester, as a GID.
    pub source: [u8; 16],
    /// Our address to which the request is directed, as a GID.
    pub destination: [u8; 16],
}

impl IpHeader {
    /// Parses the header.
    ///
    /// # Errors
    /// [`HeaderError`] if the version of the header or of IP is unknown.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, HeaderError> {
        let layout = HeaderLayout::from_array(*bytes);
        if layout.cma_version() != 0 {
            return Err(HeaderError::Version(layout.cma_version()));
        }
        let (source, destination) = match narrow(layout.ip_version()) {
            4 => (map_ipv4(layout.src_addr()), map_ipv4(layout.dst_addr())),
            6 => (*layout.src_addr(), *layout.dst_addr()),
            other => return Err(HeaderError::IpVersion(other)),
        };
        Ok(Self {
            source_port: layout.port(),
            source,
            destination,
        })
    }

    /// Encodes the header.
    ///
    /// # Errors
    /// [`HeaderError::MixedFamilies`].
    pub fn to_bytes(&self) -> Result<[u8; HEADER_BYTES], HeaderError> {
        let (ip_version, src_addr, dst_addr) = match (ipv4(&self.source), ipv4(&self.destination)) {
            (Some(source), Some(destination)) => (4, pad_ipv4(source), pad_ipv4(destination)),
            (None, None) => (6, self.source, self.destination),
            (Some(_), None) | (None, Some(_)) => return Err(HeaderError::MixedFamilies),
        };
        let mut layout = HeaderLayout::new();
        layout
            .set_ip_version(ip_version)
            .set_port(self.source_port)
            .set_src_addr(&src_addr)
            .set_dst_addr(&dst_addr);
        Ok(*layout.as_array())
    }
}

/// Returns the IPv4 address in a GID, if it is one.
fn ipv4(gid: &[u8; 16]) -> Option<[u8; 4]> {
    gid.strip_prefix(&IPV4_MAPPED)?.first_chunk().copied()
}

/// Pads an IPv4 address to the 16 bytes of the header's field.
fn pad_ipv4(address: [u8; 4]) -> [u8; 16] {
    let mut padded = [0; 16];
    padded[12..].copy_from_slice(&address);
    padded
}

/// Returns the GID of the IPv4 address in the last four bytes. The other bytes are padding and are not checked.
fn map_ipv4(padded: &[u8; 16]) -> [u8; 16] {
    let mut gid = *padded;
    gid[..12].copy_from_slice(&IPV4_MAPPED);
    gid
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(address: [u8; 4]) -> [u8; 16] {
        map_ipv4(&pad_ipv4(address))
    }

    #[test]
    fn header_of_ipv4_addresses_is_the_recorded_one() {
        // These bytes are from the REQ quoted in `cm::wire::tests::roce_req`.
        let mut recorded = [0; HEADER_BYTES];
        recorded[..4].copy_from_slice(&[0x00, 0x40, 0xd0, 0x79]);
        recorded[16..20].copy_from_slice(&[10, 0, 0, 101]);
        recorded[32..36].copy_from_slice(&[10, 0, 0, 51]);
        let header = IpHeader {
            source_port: 0xd079,
            source: mapped([10, 0, 0, 101]),
            destination: mapped([10, 0, 0, 51]),
        };
        assert_eq!(IpHeader::parse(&recorded), Ok(header));
        assert_eq!(header.to_bytes(), Ok(recorded));
    }

    #[test]
    fn header_of_ipv6_addresses_comes_back() {
        let header = IpHeader {
            source_port: 0x1234,
            source: [0xfe; 16],
            destination: [0x20; 16],
        };
        let bytes = header.to_bytes().expect("one family");
        assert_eq!(bytes[..4], [0, 0x60, 0x12, 0x34]);
        assert_eq!(bytes[4..20], [0xfe; 16]);
        assert_eq!(bytes[20..], [0x20; 16]);
        assert_eq!(IpHeader::parse(&bytes), Ok(header));
    }

    #[test]
    fn header_of_mixed_families_is_refused() {
        let header = IpHeader {
            source_port: 1,
            source: mapped([1, 2, 3, 4]),
            destination: [0x20; 16],
        };
        assert_eq!(header.to_bytes(), Err(HeaderError::MixedFamilies));
    }

    #[test]
    fn header_of_unknown_versions_is_refused() {
        let mut bytes = [0; HEADER_BYTES];
        assert_eq!(IpHeader::parse(&bytes), Err(HeaderError::IpVersion(0)));
        bytes[0] = 1;
        assert_eq!(IpHeader::parse(&bytes), Err(HeaderError::Version(1)));
    }

    #[test]
    fn service_id_holds_the_port() {
        assert_eq!(service_id(0x0539), 0x0106_0539);
        assert!(is_service_id(0x0106_ffff));
        assert!(!is_service_id(0x0107_0000));
        assert!(!is_service_id(0x1_0106_0000));
    }
}
