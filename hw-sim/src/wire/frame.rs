//! Locates the headers of an Ethernet frame.
//!
//! A frame comes from a peer or from software, so it may contain arbitrary bytes. Unrecognized headers are treated as
//! absent, and no frame is rejected. This module recognizes up to two VLAN tags, IPv4 and IPv6 without extension
//! headers, and TCP and UDP in unfragmented packets. If the length in an IP header exceeds the frame, the frame's end
//! is used instead; [`Ip::whole`] is false then. The length in a UDP header is not used.
//!
//! All parts of the simulator locate headers with this module: switches, steering, and the RDMA packet parser, which
//! then checks every field of its packets ([`Packet::parse`](super::Packet::parse)).

use std::ops::Range;

use super::{ROCE_PORT, Vlan};

/// Ethertype of a customer VLAN tag (IEEE 802.1Q).
pub const CUSTOMER_TAG: u16 = 0x8100;
/// Ethertype of a service provider VLAN tag (IEEE 802.1ad).
pub const SERVICE_TAG: u16 = 0x88a8;
/// Ethertype of IPv4.
pub const IPV4: u16 = 0x0800;
/// Ethertype of IPv6.
pub const IPV6: u16 = 0x86dd;
/// Ethertype of RoCE v1.
pub const ETHERTYPE_ROCE_V1: u16 = 0x8915;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Number of bytes in the two addresses and the first ethertype.
pub const ETHERNET_BYTES: usize = 14;
/// Number of bytes in a VLAN tag.
pub const TAG_BYTES: usize = 4;
/// Bytes of a frame that hold its outermost VLAN tag.
pub const TAG: Range<usize> = 12..12 + TAG_BYTES;
/// Minimum frame length on a wire in bytes, without the check sequence.
pub const MIN_FRAME: usize = 60;

const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const TCP_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
/// IPv4 flag and offset bits that are non-zero in a fragment: More Fragments and the fragment offset.
const FRAGMENT: u16 = 0x3fff;

/// Outermost VLAN tag of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Ethertype of the tag.
    pub kind: u16,
    /// Tag control field: priority, drop eligibility and VLAN identifier.
    pub control: u16,
}

/// Version of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A recognized IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Version.
    pub version: IpVersion,
    /// Offset of the header in the frame, in bytes.
    pub at: usize,
    /// Length of the header in bytes, IPv4 options included.
    pub header_bytes: usize,
    /// Offset in the frame at which the IP packet ends.
    pub end: usize,
    /// True if the frame contains the whole length that the IP header states.
    pub whole: bool,
    /// IPv4 protocol, or IPv6 next header.
    pub protocol: u8,
    /// DSCP and ECN: IPv4's type of service, or IPv6's traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live, or IPv6 hop limit.
    pub ttl: u8,
    /// True if the packet is a fragment.
    pub fragment: bool,
    /// Source address. An IPv4 address is in the last four bytes.
    pub src: [u8; 16],
    /// Destination address. An IPv4 address is in the last four bytes.
    pub dst: [u8; 16],
}

/// Transport protocol that is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP, with its nine flags.
    Tcp {
        /// TCP flags. NS is bit 8.
        flags: u16,
    },
    /// UDP.
    Udp,
}

/// A recognized TCP or UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport {
    /// Protocol of the header.
    pub protocol: Protocol,
    /// Offset of the header in the frame, in bytes.
    pub at: usize,
    /// Length of the header in bytes, options included.
    pub header_bytes: usize,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
}

impl Transport {
    /// Returns the offset of the TCP or UDP checksum in the frame.
    pub const fn checksum_at(&self) -> usize {
        self.at
            + match self.protocol {
                Protocol::Tcp { .. } => 16,
                Protocol::Udp => 6,
            }
    }
}

/// The recognized headers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Destination address.
    pub dst: [u8; 6],
    /// Source address.
    pub src: [u8; 6],
    /// Outermost VLAN tag, if any.
    pub tag: Option<Tag>,
    /// Ethertype after the tags.
    pub ethertype: u16,
    /// Offset in the frame of the payload that the ethertype describes.
    pub payload_at: usize,
    /// IP header, if recognized.
    pub ip: Option<Ip>,
    /// TCP or UDP header, if recognized.
    pub transport: Option<Transport>,
}

impl Headers {
    /// Recognizes the headers of a frame. Returns `None` if the frame is too short for an Ethernet header.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let mut ethertype = be16(frame, 12)?;
        let mut at = ETHERNET_BYTES;
        let mut tag = None;
        for _ in 0..2 {
            if !matches!(ethertype, CUSTOMER_TAG | SERVICE_TAG) {
                break;
            }
            let (Some(control), Some(inner)) = (be16(frame, at), be16(frame, at + 2)) else {
                break;
            };
            tag = tag.or(Some(Tag {
                kind: ethertype,
                control,
            }));
            ethertype = inner;
            at += TAG_BYTES;
        }
        let ip = match ethertype {
            IPV4 => ipv4(frame, at),
            IPV6 => ipv6(frame, at),
            _ => None,
        };
        Some(Self {
            dst: bytes(frame, 0)?,
            src: bytes(frame, 6)?,
            tag,
            ethertype,
            payload_at: at,
            ip,
            transport: ip.and_then(|ip| transport(frame, &ip)),
        })
    }

    /// Returns the outermost tag, if it is a customer VLAN tag.
    pub const fn vlan(&self) -> Option<Vlan> {
        match self.tag {
            Some(Tag {
                kind: CUSTOMER_TAG,
                control,
            }) => Some(Vlan::of_control(control)),
            Some(_) | None => None,
        }
    }

    /// Returns the UDP header if the frame is a RoCE v2 packet. The rest of the packet may be invalid.
    pub fn roce_v2(&self) -> Option<&Transport> {
        self.transport
            .as_ref()
            .filter(|transport| transport.protocol == Protocol::Udp && transport.dport == ROCE_PORT)
    }

    /// Returns whether the destination is a multicast or the broadcast address.
    pub const fn is_multicast(&self) -> bool {
        self.dst[0] & 1 == 1
    }
}

fn ipv4(frame: &[u8], at: usize) -> Option<Ip> {
    let fixed: [u8; IPV4_BYTES] = bytes(frame, at)?;
    let header_bytes = usize::from(fixed[0] & 0xf) * 4;
    if fixed[0] >> 4 != 4 || header_bytes < IPV4_BYTES || frame.len() < at + header_bytes {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    let mut address = [[0; 16]; 2];
    address[0][12..].copy_from_slice(&fixed[12..16]);
    address[1][12..].copy_from_slice(&fixed[16..20]);
    let [src, dst] = address;
    Some(Ip {
        version: IpVersion::V4,
        at,
        header_bytes,
        end: (at + total.max(header_bytes)).min(frame.len()),
        whole: total >= header_bytes && at + total <= frame.len(),
        protocol: fixed[9],
        traffic_class: fixed[1],
        ttl: fixed[8],
        fragment: u16::from_be_bytes([fixed[6], fixed[7]]) & FRAGMENT != 0,
        src,
        dst,
    })
}

fn ipv6(frame: &[u8], at: usize) -> Option<Ip> {
    let fixed: [u8; IPV6_BYTES] = bytes(frame, at)?;
    if fixed[0] >> 4 != 6 {
        return None;
    }
    let total = IPV6_BYTES + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    Some(Ip {
        version: IpVersion::V6,
        at,
        header_bytes: IPV6_BYTES,
        end: (at + total).min(frame.len()),
        whole: at + total <= frame.len(),
        protocol: fixed[6],
        traffic_class: fixed[0] << 4 | fixed[1] >> 4,
        ttl: fixed[7],
        fragment: fixed[6] == 44,
        src: bytes(&fixed, 8)?,
        dst: bytes(&fixed, 24)?,
    })
}

fn transport(frame: &[u8], ip: &Ip) -> Option<Transport> {
    if ip.fragment {
        return None;
    }
    let at = ip.at + ip.header_bytes;
    let packet = frame.get(..ip.end)?;
    let (protocol, header_bytes) = match ip.protocol {
        TCP => {
            let word = be16(packet, at + 12)?;
            let header_bytes = usize::from(word >> 12) * 4;
            let flags = word & 0x1ff;
            (Protocol::Tcp { flags }, header_bytes.max(TCP_BYTES))
        }
        UDP => (Protocol::Udp, UDP_BYTES),
        _ => return None,
    };
    if packet.len() < at + header_bytes {
        return None;
    }
    Some(Transport {
        protocol,
        at,
        header_bytes,
        sport: be16(packet, at)?,
        dport: be16(packet, at + 2)?,
    })
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..)?.first_chunk().copied()
}

fn be16(from: &[u8], at: usize) -> Option<u16> {
    bytes(from, at).map(u16::from_be_bytes)
}

/// Returns whether a frame is a RoCE packet. The packet may be invalid.
pub fn is_roce(frame: &[u8]) -> bool {
    Headers::of(frame).is_some_and(|headers| {
        headers.ethertype == ETHERTYPE_ROCE_V1 || headers.roce_v2().is_some()
    })
}

/// Returns the frame with a customer VLAN tag as its outermost tag.
pub fn with_tag(frame: &[u8], control: u16) -> Vec<u8> {
    let at = TAG.start.min(frame.len());
    let mut tagged = frame[..at].to_vec();
    tagged.extend(CUSTOMER_TAG.to_be_bytes());
    tagged.extend(control.to_be_bytes());
    tagged.extend_from_slice(&frame[at..]);
    tagged
}

/// Returns a tagged frame without its outermost tag.
pub fn without_tag(frame: &[u8]) -> Vec<u8> {
    // PANIC: callers have found the tag with `Headers::of`, so the frame has at least 18 bytes.
    let mut bare = frame[..TAG.start].to_vec();
    bare.extend_from_slice(&frame[TAG.end..]);
    bare
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp4(tags: &[u16]) -> Vec<u8> {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 1]);
        for kind in tags {
            frame.extend(kind.to_be_bytes());
            frame.extend([0x20, 0x05]);
        }
        frame.extend(IPV4.to_be_bytes());
        frame.extend([0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, UDP, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x12, 0x34, 0x56, 0x78, 0, 12, 0, 0, 1, 2, 3, 4]);
        frame
    }

    #[test]
    fn headers_behind_tags_are_found() {
        for (tags, at) in [
            (&[][..], 14),
            (&[CUSTOMER_TAG][..], 18),
            (&[SERVICE_TAG, CUSTOMER_TAG][..], 22),
        ] {
            let headers = Headers::of(&udp4(tags)).unwrap();
            assert_eq!(headers.payload_at, at);
            assert_eq!(headers.tag.map(|tag| tag.kind), tags.first().copied());
            let transport = headers.transport.unwrap();
            assert_eq!((transport.sport, transport.dport), (0x1234, 0x5678));
            assert!(headers.ip.unwrap().whole && headers.is_multicast());
        }
    }

    #[test]
    fn a_cut_frame_loses_the_headers_that_are_not_whole() {
        let frame = udp4(&[]);
        assert_eq!(Headers::of(&frame[..13]), None);
        let cut = Headers::of(&frame[..ETHERNET_BYTES + 19]).unwrap();
        assert_eq!((cut.ethertype, cut.ip), (IPV4, None));
        let cut = Headers::of(&frame[..ETHERNET_BYTES + 27]).unwrap();
        assert!(!cut.ip.unwrap().whole && cut.transport.is_none());
    }

    #[test]
    fn an_inserted_tag_is_the_outermost_and_its_removal_gives_the_frame_back() {
        let inner = udp4(&[CUSTOMER_TAG]);
        let outer = with_tag(&inner, 0x6007);
        let headers = Headers::of(&outer).unwrap();
        let vlan = Vlan { id: 7, priority: 3 };
        assert_eq!((headers.vlan(), headers.payload_at), (Some(vlan), 22));
        assert_eq!(without_tag(&outer), inner);
    }

    #[test]
    fn a_fragment_has_no_transport_header() {
        let mut frame = udp4(&[]);
        frame[20] = 0x20;
        let headers = Headers::of(&frame).unwrap();
        assert!(headers.ip.unwrap().fragment && headers.transport.is_none());
    }

    #[test]
    fn padding_is_not_part_of_the_packet() {
        let mut frame = udp4(&[]);
        let bytes = frame.len();
        frame.resize(MIN_FRAME, 0);
        let ip = Headers::of(&frame).unwrap().ip.unwrap();
        assert_eq!((ip.end, ip.whole), (bytes, true));
    }
}
