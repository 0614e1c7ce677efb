//! What a port reads of a frame to know its priority, and the two bits of its IP header that tell of congestion.
//!
//! A port trusts the tag (802.1Q, priority code point) or the code point of the IP header (RFC 2474), as register QPTS
//! says of a card's. What has neither is of priority 0.
//!
//! ECN (RFC 3168) is the low two bits of IPv4's type of service and of IPv6's traffic class. The ICRC of a RoCE packet
//! replaces both bytes by ones (`wire::icrc`), so that a switch may write them; IPv4's header checksum is put right.

use mlx_prm::TrustState;
use serde::{Deserialize, Serialize};

use super::stored;
use crate::wire::{CNP, EthPacket, Ipv4Repr, ROCE_PORT, ones_complement_sum};

/// Priorities of a port.
pub const PRIORITIES: usize = 8;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const UDP: u8 = 17;

/// How a port knows the priority of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Classes {
    /// Which bits it goes by.
    #[serde(with = "stored::trust")]
    pub trust: TrustState,
    /// The priority of each code point.
    #[serde(with = "stored::code_points")]
    pub of_dscp: [u8; 64],
}

impl Classes {
    /// By code points: eight of them are a priority, as switches have it when nobody says otherwise.
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

    /// The priority of a frame.
    #[must_use]
    pub fn of(&self, frame: &[u8]) -> usize {
        let tag = EthPacket::new_checked(frame)
            .ok()
            .and_then(|eth| eth.vlan());
        self.of_headers(tag.map(|tag| tag.priority), traffic_class(frame))
    }

    /// The priority of what has this tag and this traffic class.
    pub(crate) fn of_headers(&self, tag: Option<u8>, traffic_class: Option<u8>) -> usize {
        let priority = match (self.trust, traffic_class) {
            (TrustState::DSCP, Some(class)) => self.of_dscp[usize::from(class >> 2)],
            _ => tag.unwrap_or(0),
        };
        usize::from(priority & 7)
    }
}

/// What the ECN bits of a packet say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// Its sender does not listen to marks.
    NotCapable,
    /// Its sender does.
    Capable,
    /// Congestion was experienced.
    Marked,
}

/// The bits of ECT(0), and of CE.
const ECT_0: u8 = 0b10;
const CE: u8 = 0b11;

impl Ecn {
    /// What a traffic class says.
    #[must_use]
    pub const fn of(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotCapable,
            CE => Self::Marked,
            _ => Self::Capable,
        }
    }
}

/// Where the IP header of a frame begins; none if it has none, or not all of it.
fn ip_at(frame: &[u8]) -> Option<(usize, u16)> {
    let eth = EthPacket::new_checked(frame).ok()?;
    let (at, kind) = (eth.header_len(), eth.ethertype());
    let bytes = match kind {
        ETHERTYPE_IPV4 => Ipv4Repr::BYTES,
        ETHERTYPE_IPV6 => 40,
        _ => return None,
    };
    (frame.len() >= at + bytes).then_some((at, kind))
}

/// The traffic class of an IP packet.
fn traffic_class(frame: &[u8]) -> Option<u8> {
    let (at, kind) = ip_at(frame)?;
    Some(match kind {
        ETHERTYPE_IPV4 => frame[at + 1],
        _ => frame[at] << 4 | frame[at + 1] >> 4,
    })
}

/// What a frame says of congestion; a frame without an IP header cannot be marked.
#[must_use]
pub fn ecn(frame: &[u8]) -> Ecn {
    traffic_class(frame).map_or(Ecn::NotCapable, Ecn::of)
}

/// A packet has met congestion.
pub fn mark(frame: &mut [u8]) {
    write_ecn(frame, CE);
}

/// A packet's sender listens to marks.
pub fn make_capable(frame: &mut [u8]) {
    write_ecn(frame, ECT_0);
}

fn write_ecn(frame: &mut [u8], bits: u8) {
    match ip_at(frame) {
        Some((at, ETHERTYPE_IPV4)) => {
            frame[at + 1] = frame[at + 1] & !3 | bits;
            let header = &mut frame[at..at + Ipv4Repr::BYTES];
            header[10..12].fill(0);
            let sum = !ones_complement_sum(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        Some((at, _)) => frame[at + 1] = frame[at + 1] & !0x30 | bits << 4,
        None => {}
    }
}

/// Whether a frame is a RoCE v2 packet, and whether that is a congestion notification.
#[must_use]
pub fn roce_v2(frame: &[u8]) -> Option<bool> {
    let (at, kind) = ip_at(frame)?;
    let (protocol, udp) = match kind {
        // Options are nothing RoCE has.
        ETHERTYPE_IPV4 => (frame[at + 9], at + 20),
        _ => (frame[at + 6], at + 40),
    };
    let port = frame.get(udp + 2..udp + 4)?;
    let opcode = *frame.get(udp + 8)?;
    (protocol == UDP && port == ROCE_PORT.to_be_bytes()).then_some(opcode == CNP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{
        BthRepr, EthRepr, Headers, Ipv4Repr, Ipv6Repr, Network, Opcode, Packet, Psn, UdpRepr, Vlan,
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
            bth: BthRepr::new(Opcode::ud(false), 7, Psn::new(1)),
            headers: Headers {
                deth: Some(crate::wire::DethRepr {
                    qkey: 1,
                    src_qpn: 2,
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

    /// What routers may change the ICRC does not cover (IBTA volume 1, annex A17).
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
}
