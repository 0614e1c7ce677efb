//! Hand-written parser of the frames that we send, with the offsets of the RFCs. etherparse parses each frame as well,
//! and must find the same checksums.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Mac;
use super::peer::sum;

/// A frame that we sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) to: Mac,
    /// VLAN ID and priority of the tag; `None` for an untagged frame.
    pub(super) tag: Option<(u16, u8)>,
    pub(super) said: Said,
    pub(super) bytes: usize,
}

/// Message in a frame that we sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    ArpRequest {
        sender: Ipv4Addr,
        target: Ipv4Addr,
        target_mac: Mac,
    },
    ArpReply {
        sender: Ipv4Addr,
        target: Ipv4Addr,
        target_mac: Mac,
    },
    Solicit {
        source: Ipv6Addr,
        destination: Ipv6Addr,
        target: Ipv6Addr,
        mac: Option<Mac>,
    },
    Advertise {
        source: Ipv6Addr,
        destination: Ipv6Addr,
        target: Ipv6Addr,
        flags: u8,
        mac: Option<Mac>,
    },
    EchoRequest {
        source: IpAddr,
        destination: IpAddr,
        body: Vec<u8>,
    },
    EchoReply {
        source: IpAddr,
        destination: IpAddr,
        body: Vec<u8>,
    },
    Report {
        source: Ipv6Addr,
        records: Vec<(u8, Ipv6Addr)>,
    },
}

fn mac(bytes: &[u8]) -> Mac {
    bytes[..6].try_into().expect("six")
}

fn v4(bytes: &[u8]) -> Ipv4Addr {
    <[u8; 4]>::try_from(&bytes[..4]).expect("four").into()
}

fn v6(bytes: &[u8]) -> Ipv6Addr {
    <[u8; 16]>::try_from(&bytes[..16]).expect("sixteen").into()
}

fn word(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

impl Sent {
    pub(super) fn read(frame: &[u8]) -> Self {
        assert!((60..=1_518).contains(&frame.len()), "{}", frame.len());
        assert_eq!(mac(&frame[6..]), super::OURS);
        check_by_etherparse(frame);
        let (tag, rest) = match word(&frame[12..]) {
            0x8100 => {
                let control = word(&frame[14..]);
                let priority = u8::try_from(control >> 13).expect("three bits");
                (Some((control & 0x0fff, priority)), &frame[16..])
            }
            _ => (None, &frame[12..]),
        };
        let payload = &rest[2..];
        let said = match word(rest) {
            0x0806 => arp(payload),
            0x0800 => ipv4(payload),
            0x86dd => ipv6(payload),
            other => panic!("protocol {other:#06x}"),
        };
        Self {
            to: mac(frame),
            tag,
            said,
            bytes: frame.len(),
        }
    }
}

fn arp(packet: &[u8]) -> Said {
    assert_eq!(packet[..6], [0, 1, 8, 0, 6, 4]);
    assert_eq!(mac(&packet[8..]), super::OURS);
    let (sender, target) = (v4(&packet[14..]), v4(&packet[24..]));
    let target_mac = mac(&packet[18..]);
    match word(&packet[6..]) {
        1 => Said::ArpRequest {
            sender,
            target,
            target_mac,
        },
        2 => Said::ArpReply {
            sender,
            target,
            target_mac,
        },
        other => panic!("operation {other}"),
    }
}

fn ipv4(packet: &[u8]) -> Said {
    assert_eq!(packet[0], 0x45);
    assert_eq!(sum(&packet[..20]), 0xffff, "header checksum");
    let message = &packet[20..usize::from(word(&packet[2..]))];
    assert_eq!((packet[9], message[1]), (1, 0));
    assert_eq!(sum(message), 0xffff, "ICMP checksum");
    let (source, destination) = (v4(&packet[12..]).into(), v4(&packet[16..]).into());
    let body = message[4..].to_vec();
    match message[0] {
        0 => Said::EchoReply {
            source,
            destination,
            body,
        },
        8 => Said::EchoRequest {
            source,
            destination,
            body,
        },
        other => panic!("type {other}"),
    }
}

fn ipv6(packet: &[u8]) -> Said {
    assert_eq!(packet[0] >> 4, 6);
    let (source, destination) = (v6(&packet[8..]), v6(&packet[24..]));
    let payload = &packet[40..40 + usize::from(word(&packet[4..]))];
    let message = match packet[6] {
        58 => payload,
        0 => {
            // RFC 2711, 2.1: the hop-by-hop options have the router alert of MLD.
            assert_eq!(payload[..6], [58, 0, 5, 2, 0, 0]);
            &payload[8..]
        }
        other => panic!("next header {other}"),
    };
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    let pseudo = [&packet[8..40], &length, &[0, 0, 0, 58], message];
    assert_eq!(sum(&pseudo.concat()), 0xffff, "ICMPv6 checksum");
    assert_eq!(message[1], 0, "code");
    let hop_limit = packet[7];
    match message[0] {
        128 => {
            assert_eq!(hop_limit, 64);
            Said::EchoRequest {
                source: source.into(),
                destination: destination.into(),
                body: message[4..].to_vec(),
            }
        }
        129 => {
            assert_eq!(hop_limit, 64);
            Said::EchoReply {
                source: source.into(),
                destination: destination.into(),
                body: message[4..].to_vec(),
            }
        }
        135 => {
            assert_eq!((hop_limit, &message[4..8]), (255, &[0; 4][..]));
            Said::Solicit {
                source,
                destination,
                target: v6(&message[8..]),
                mac: option(1, &message[24..]),
            }
        }
        136 => {
            assert_eq!((hop_limit, &message[5..8]), (255, &[0; 3][..]));
            Said::Advertise {
                source,
                destination,
                target: v6(&message[8..]),
                flags: message[4],
                mac: option(2, &message[24..]),
            }
        }
        143 => {
            assert_eq!((hop_limit, packet[6]), (1, 0));
            assert_eq!(
                destination,
                "ff02::16".parse::<Ipv6Addr>().expect("routers")
            );
            let records = message[8..].chunks(20).map(|record| {
                assert_eq!(record[1..4], [0; 3], "no data, no sources");
                (record[0], v6(&record[4..]))
            });
            let records: Vec<_> = records.collect();
            assert_eq!(usize::from(word(&message[6..])), records.len());
            Said::Report { source, records }
        }
        other => panic!("type {other}"),
    }
}

fn option(kind: u8, options: &[u8]) -> Option<Mac> {
    match options {
        [] => None,
        [found, 1, mac @ ..] if *found == kind && mac.len() == 6 => Some(super::sent::mac(mac)),
        other => panic!("options {other:02x?}"),
    }
}

/// Asserts that etherparse finds all headers of a frame, and computes the same checksums.
fn check_by_etherparse(frame: &[u8]) {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    let packet = SlicedPacket::from_ethernet(frame).expect("a frame");
    match (&packet.net, &packet.transport) {
        (Some(NetSlice::Arp(_)), _) => {}
        (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Icmpv4(icmp))) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            let kind = icmp.header().icmp_type;
            assert_eq!(icmp.checksum(), kind.calc_checksum(icmp.payload()));
        }
        (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Icmpv6(icmp))) => {
            let header = ip.header();
            assert!(icmp.is_checksum_valid(header.source(), header.destination()));
        }
        other => panic!("{other:?}"),
    }
}
