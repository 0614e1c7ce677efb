//! Priority of a frame, and the ECN bits of its IP header.
//!
//! A port takes the priority either from the 802.1Q tag (priority code point) or from the IP header's DSCP (RFC 2474),
//! depending on its trust state, like a card's port with register QPTS. A port that trusts DSCP uses the tag of a frame
//! without an IP header. A frame without either has priority 0.
//!
//! The ECN bits (RFC 3168) are the low two bits of IPv4's type of service and of IPv6's traffic class. The ICRC of a
//! RoCE packet is computed with ones in place of both bytes (`wire::icrc`), so a switch may write them. The switch
//! updates the IPv4 header checksum.

use mlx_prm::TrustState;
use serde::{Deserialize, Serialize};

use super::stored;
use crate::wire::frame::{Headers, Ip, IpVersion};
use crate::wire::{CE, CNP, ECT_0, Ecn, updated_checksum};

/// Number of priorities of a port.
pub const PRIORITIES: usize = 8;
/// Offset of the checksum in an IPv4 header, in bytes.
const CHECKSUM_AT: usize = 10;

/// Mapping of frames to priorities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classes {
    /// Header field that determines the priority: the tag or the DSCP.
    #[serde(with = "stored::trust")]
    pub trust: TrustState,
    /// Priority of each DSCP.
    #[serde(with = "stored::code_points")]
    pub of_dscp: [u8; 64],
}

impl Classes {
    /// Returns a mapping by DSCP with eight consecutive code points per priority, the usual default of switches.
    #[must_use]
    pub fn by_dscp() -> Self {
        let mut of_dscp = [0; 64];
        for (priority, eight) in (0..8).zip(of_dscp.chunks_mut(8)) {
            eight.fill(priority);
        }
        Self {
            trust: TrustState::DSCP,
            of_dscp,
        }
    }

    /// Returns the priority of a frame.
    #[must_use]
    pub fn of(&self, frame: &[u8]) -> usize {
        let headers = Headers::of(frame);
        let tag = headers.and_then(|headers| headers.vlan());
        let ip = headers.and_then(|headers| headers.ip);
        self.of_headers(tag.map(|tag| tag.priority), ip.map(|ip| ip.traffic_class))
    }

    /// Returns the priority of a frame with this tag and this traffic class.
    pub(crate) fn of_headers(&self, tag: Option<u8>, traffic_class: Option<u8>) -> usize {
        let priority = match (self.trust, traffic_class) {
            (TrustState::DSCP, Some(class)) => self.of_dscp[usize::from(class >> 2)],
            _ => tag.unwrap_or(0),
        };
        usize::from(priority & 7)
    }
}

/// Returns the IP header of a frame, if it has a complete one.
fn ip(frame: &[u8]) -> Option<Ip> {
    Headers::of(frame)?.ip
}

/// Returns the ECN state of a frame. A frame without an IP header is not ECN-capable.
#[must_use]
pub fn ecn(frame: &[u8]) -> Ecn {
    ip(frame).map_or(Ecn::NotCapable, |ip| Ecn::of(ip.traffic_class))
}

/// Sets the ECN bits of a packet to CE (congestion experienced).
pub fn mark(frame: &mut [u8]) {
    write_ecn(frame, CE);
}

/// Sets the ECN bits of a packet to ECT(0): its sender reacts to congestion marks.
pub fn make_capable(frame: &mut [u8]) {
    write_ecn(frame, ECT_0);
}

/// Writes the ECN bits, and updates the checksum of an IPv4 header, with or without options. The checksum is updated
/// incrementally, so that a wrong checksum stays wrong, as RFC 1624 requires.
fn write_ecn(frame: &mut [u8], bits: u8) {
    let Some(ip) = ip(frame) else {
        return;
    };
    let at = ip.at;
    match ip.version {
        IpVersion::V4 => {
            let word = |frame: &[u8], at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
            let (before, sum) = (word(frame, at), word(frame, at + CHECKSUM_AT));
            frame[at + 1] = frame[at + 1] & !3 | bits;
            let sum = updated_checksum(sum, before, word(frame, at));
            frame[at + CHECKSUM_AT..at + CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
        }
        IpVersion::V6 => frame[at + 1] = frame[at + 1] & !0x30 | bits << 4,
    }
}

/// Returns whether a RoCE v2 packet is a congestion notification packet (CNP). Returns `None` for other frames.
#[must_use]
pub fn roce_v2(frame: &[u8]) -> Option<bool> {
    let headers = Headers::of(frame)?;
    let udp = headers.roce_v2()?;
    let opcode = frame.get(udp.at + udp.header_bytes)?;
    Some(*opcode == CNP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{
        BthRepr, EthRepr, Headers, Ipv4Repr, Ipv6Repr, Network, Opcode, Packet, Psn, Qpn, UdpRepr,
        Vlan, WireError, ones_complement_sum,
    };

    fn packet(network: Network, tag: Option<u8>) -> Vec<u8> {
        let eth = EthRepr {
            dst: [2, 0, 0, 0, 0, 1],
            src: [2, 0, 0, 0, 0, 2],
            vlan: tag.map(|priority| Vlan { id: 5, priority }),
            ethertype: 0,
        };
        let packet = Packet {
            link: eth.into(),
            network,
            bth: BthRepr::new(Opcode::ud(false), Qpn::new(7), Psn::masked(1)),
            headers: Headers {
                deth: Some(crate::wire::DethRepr {
                    qkey: 1,
                    src_qpn: Qpn::new(2),
                }),
                ..Headers::NONE
            },
            payload: b"four",
        };
        packet.emit()
    }

    fn both(traffic_class: u8) -> [Network; 2] {
        let udp = UdpRepr {
            src_port: 0xc000,
            payload_len: 0,
        };
        let four = Ipv4Repr {
            src: [192, 0, 2, 1],
            dst: [192, 0, 2, 2],
            tos: traffic_class,
            ident: 9,
            dont_fragment: true,
            ttl: 64,
            payload_len: 0,
        };
        let six = Ipv6Repr {
            src: [1; 16],
            dst: [2; 16],
            traffic_class,
            flow_label: 0xf_1234,
            hop_limit: 64,
            payload_len: 0,
        };
        [Network::Ipv4(four, udp), Network::Ipv6(six, udp)]
    }

    #[test]
    fn a_port_goes_by_the_tag_or_by_the_code_point() {
        let by_tag = Classes {
            trust: TrustState::PCP,
            ..Classes::by_dscp()
        };
        for network in both(26 << 2) {
            let (plain, tagged) = (packet(network, None), packet(network, Some(5)));
            assert_eq!(
                [&plain, &tagged].map(|frame| Classes::by_dscp().of(frame)),
                [3, 3]
            );
            assert_eq!([&plain, &tagged].map(|frame| by_tag.of(frame)), [0, 5]);
        }
        assert_eq!(Classes::by_dscp().of(&[0; 60]), 0, "no IP header");
        assert_eq!(Classes::by_dscp().of(&[]), 0);
    }

    /// A congestion mark keeps a packet valid: the ICRC does not cover fields that routers may change (IBTA volume 1,
    /// annex A17).
    #[test]
    fn a_mark_leaves_a_packet_whole() {
        for network in both(0b0110_1010) {
            let mut frame = packet(network, Some(1));
            assert_eq!(ecn(&frame), Ecn::Capable);
            mark(&mut frame);
            assert_eq!(ecn(&frame), Ecn::Marked);
            let parsed = Packet::parse(&frame).expect("ICRC and checksum hold");
            match parsed.network {
                Network::Ipv4(ip, _) => assert_eq!(ip.tos, 0b0110_1011),
                Network::Ipv6(ip, _) => {
                    assert_eq!((ip.traffic_class, ip.flow_label), (0b0110_1011, 0xf_1234));
                }
                other @ (Network::Local | Network::Grh(_)) => panic!("{other:?}"),
            }
            make_capable(&mut frame);
            assert_eq!(ecn(&frame), Ecn::Capable);
            assert_eq!(roce_v2(&frame), Some(false));
        }
        let mut short = vec![0; 20];
        mark(&mut short);
        assert_eq!(short, [0; 20]);
    }

    /// Returns an IPv4 frame with a four-byte option (RFC 791; router alert, RFC 2113) and a TCP or UDP datagram.
    fn with_options(tos: u8, protocol: u8) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];
        frame.extend([0x46, tos, 0, 44, 0, 9, 0x40, 0, 64, protocol, 0, 0]);
        frame.extend([192, 0, 2, 1, 192, 0, 2, 2, 148, 4, 0, 0]);
        let sum = !ones_complement_sum(&frame[14..38]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame.extend([
            0xc0, 0, 0x12, 0xb7, 0, 20, 0, 0, CNP, 0, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, 0,
        ]);
        frame
    }

    #[test]
    fn a_mark_leaves_a_header_with_options_whole() {
        for tos in [0b10, 0b01, 0xff, 0xb8] {
            let mut frame = with_options(tos, 17);
            mark(&mut frame);
            assert_eq!(frame[15], tos | CE);
            assert_eq!(ones_complement_sum(&frame[14..38]), 0xffff, "{tos:#x}");
            make_capable(&mut frame);
            assert_eq!(ones_complement_sum(&frame[14..38]), 0xffff, "{tos:#x}");
        }
    }

    /// A RoCE v2 packet is recognized even after IPv4 options and after two VLAN tags.
    #[test]
    fn a_packet_is_recognized_wherever_its_headers_lie() {
        let frame = with_options(0, 17);
        assert_eq!(roce_v2(&frame), Some(true));
        assert!(crate::wire::frame::is_roce(&frame));
        // The RDMA packet parser rejects the frame: RoCE has no IPv4 options (IBTA volume 1, annex A17).
        assert_eq!(
            Packet::parse(&frame),
            Err(WireError::Malformed("IPv4 options"))
        );
        assert_eq!(roce_v2(&with_options(0, 6)), None);
        let tagged = packet(both(0)[0], Some(5));
        let mut twice = tagged.clone();
        twice.splice(12..12, [0x88, 0xa8, 0xe0, 1]);
        assert_eq!(roce_v2(&tagged), Some(false));
        assert_eq!(roce_v2(&twice), Some(false));
        assert_eq!(Packet::parse(&twice), Err(WireError::NotRoce));
        mark(&mut twice);
        assert_eq!(ecn(&twice), Ecn::Marked);
    }
}
