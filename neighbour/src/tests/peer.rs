//! Frames of other nodes, made by hand from the RFCs, without the code under test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Mac;

pub(super) const REQUEST: u16 = 1;
pub(super) const REPLY: u16 = 2;

pub(super) const SOLICIT: u8 = 135;
pub(super) const ADVERTISE: u8 = 136;

/// Flags of an advertisement, solicited and override (RFC 4861, 4.4).
pub(super) const S: u8 = 0x40;
pub(super) const O: u8 = 0x20;

/// Returns the one's complement sum of RFC 1071. The code adds one 16-bit word at a time, and folds after each word.
pub(super) fn sum(words: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in words.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded")
}

pub(super) fn v4(text: &str) -> Ipv4Addr {
    text.parse().expect("IPv4")
}

pub(super) fn v6(text: &str) -> Ipv6Addr {
    text.parse().expect("IPv6")
}

/// Makes an Ethernet frame (IEEE 802.3), with an optional tag (802.1Q).
pub(super) fn ethernet(
    to: Mac,
    from: Mac,
    tag: Option<u16>,
    protocol: u16,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = [to, from].concat();
    if let Some(control) = tag {
        frame.extend([0x81, 0x00]);
        frame.extend(control.to_be_bytes());
    }
    frame.extend(protocol.to_be_bytes());
    frame.extend(payload);
    let least = frame.len().max(60);
    frame.resize(least, 0);
    frame
}

/// Makes an ARP packet (RFC 826).
pub(super) fn arp_packet(operation: u16, from: (Mac, &str), to: (Mac, &str)) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4];
    packet.extend(operation.to_be_bytes());
    for (mac, address) in [from, to] {
        packet.extend(mac);
        packet.extend(v4(address).octets());
    }
    packet
}

/// Makes an Ethernet frame with an ARP packet. The frame's source is the packet's sender.
pub(super) fn arp(to: Mac, operation: u16, from: (Mac, &str), target: (Mac, &str)) -> Vec<u8> {
    ethernet(
        to,
        from.0,
        None,
        0x0806,
        &arp_packet(operation, from, target),
    )
}

/// Makes an ARP reply to `to` saying that `from` has this MAC and address.
pub(super) fn arp_reply(from: (Mac, &str), to: (Mac, &str)) -> Vec<u8> {
    arp(to.0, REPLY, from, to)
}

/// Makes an ARP announcement (RFC 5227, 3): a broadcast request of a node for its own address.
pub(super) fn arp_announcement(from: (Mac, &str)) -> Vec<u8> {
    arp([0xff; 6], REQUEST, from, ([0; 6], from.1))
}

/// Makes an IPv6 packet (RFC 8200, 3).
pub(super) fn ipv6_packet(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    next_header: u8,
    hop_limit: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(u16::try_from(payload.len()).expect("short").to_be_bytes());
    packet.extend([next_header, hop_limit]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend(payload);
    packet
}

/// Makes an ICMPv6 message with its checksum (RFC 4443, 2.3; RFC 8200, 8.1).
pub(super) fn icmpv6(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    kind: u8,
    code: u8,
    body: &[u8],
) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend(body);
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    let pseudo = [
        &source.octets()[..],
        &destination.octets(),
        &length,
        &[0, 0, 0, 58],
        &message,
    ];
    let checksum = !sum(&pseudo.concat());
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

/// A message of neighbour discovery whose fields a test can change before it makes the frame.
#[derive(Clone, Debug)]
pub(super) struct Nd {
    pub(super) to: Mac,
    pub(super) from: Mac,
    pub(super) tag: Option<u16>,
    pub(super) source: Ipv6Addr,
    pub(super) destination: Ipv6Addr,
    pub(super) hop_limit: u8,
    pub(super) kind: u8,
    pub(super) code: u8,
    pub(super) flags: u8,
    pub(super) target: Ipv6Addr,
    pub(super) options: Vec<u8>,
}

/// Makes a link-layer address option (RFC 4861, 4.6.1): kind 1 for the source's MAC, kind 2 for the target's.
pub(super) fn option(kind: u8, mac: Mac) -> Vec<u8> {
    [&[kind, 1][..], &mac].concat()
}

/// Returns the solicited-node group of an address, and the group's MAC.
pub(super) fn group(address: Ipv6Addr) -> (Ipv6Addr, Mac) {
    let [.., a, b, c] = address.octets();
    let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c]);
    (group, [0x33, 0x33, 0xff, a, b, c])
}

impl Nd {
    /// Makes the solicitation by which `source` asks for `target`, sent to the target's solicited-node group.
    pub(super) fn solicit(from: Mac, source: &str, target: &str) -> Self {
        let (destination, to) = group(v6(target));
        Self {
            to,
            from,
            tag: None,
            source: v6(source),
            destination,
            hop_limit: 255,
            kind: SOLICIT,
            code: 0,
            flags: 0,
            target: v6(target),
            options: option(1, from),
        }
    }

    /// Makes the solicitation by which another node detects duplicates of `target` (RFC 4862, 5.4.2).
    pub(super) fn detect(from: Mac, target: &str) -> Self {
        Self {
            options: Vec::new(),
            ..Self::solicit(from, "::", target)
        }
    }

    /// Makes an advertisement to one node saying that `target` has the MAC `from`.
    pub(super) fn advertise(from: Mac, target: &str, to: (Mac, &str), flags: u8) -> Self {
        Self {
            to: to.0,
            from,
            tag: None,
            source: v6(target),
            destination: v6(to.1),
            hop_limit: 255,
            kind: ADVERTISE,
            code: 0,
            flags,
            target: v6(target),
            options: option(2, from),
        }
    }

    /// Makes an unsolicited advertisement to all nodes saying that `target` has the MAC `from` (RFC 4861, 7.2.6).
    pub(super) fn announce(from: Mac, target: &str, flags: u8) -> Self {
        let all = ([0x33, 0x33, 0, 0, 0, 1], "ff02::1");
        Self::advertise(from, target, all, flags)
    }

    pub(super) fn message(&self) -> Vec<u8> {
        let mut body = vec![self.flags, 0, 0, 0];
        body.extend(self.target.octets());
        body.extend(&self.options);
        icmpv6(self.source, self.destination, self.kind, self.code, &body)
    }

    pub(super) fn frame(&self) -> Vec<u8> {
        let packet = ipv6_packet(
            self.source,
            self.destination,
            58,
            self.hop_limit,
            &self.message(),
        );
        ethernet(self.to, self.from, self.tag, 0x86dd, &packet)
    }
}

/// Makes an IPv4 packet (RFC 791, 3.1). `fragment` is the 16-bit word of flags and fragment offset.
pub(super) fn ipv4_packet(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: u8,
    fragment: u16,
    payload: &[u8],
) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).expect("short");
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0x12, 0x34]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(source.octets());
    packet.extend(destination.octets());
    let checksum = !sum(&packet);
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(payload);
    packet
}

/// Makes an echo request of either family, from `source` to `destination`.
pub(super) fn echo(
    (to, from): (Mac, Mac),
    source: &str,
    destination: &str,
    data: &[u8],
) -> Vec<u8> {
    let body = [&[0xbe, 0xef, 0x00, 0x07][..], data].concat();
    icmp_echo([8, 128], (to, from), source, destination, &body)
}

/// Makes an echo reply of either family. `body` begins with the identifier and the sequence number.
pub(super) fn echo_reply(
    macs: (Mac, Mac),
    source: &str,
    destination: &str,
    body: &[u8],
) -> Vec<u8> {
    icmp_echo([0, 129], macs, source, destination, body)
}

fn icmp_echo(
    [v4_type, v6_type]: [u8; 2],
    (to, from): (Mac, Mac),
    source: &str,
    destination: &str,
    body: &[u8],
) -> Vec<u8> {
    let ends: [IpAddr; 2] = [super::ip(source), super::ip(destination)];
    match ends {
        [IpAddr::V4(source), IpAddr::V4(destination)] => {
            let mut message = [&[v4_type, 0, 0, 0][..], body].concat();
            let checksum = !sum(&message);
            message[2..4].copy_from_slice(&checksum.to_be_bytes());
            let packet = ipv4_packet(source, destination, 1, 0, &message);
            ethernet(to, from, None, 0x0800, &packet)
        }
        [IpAddr::V6(source), IpAddr::V6(destination)] => {
            let message = icmpv6(source, destination, v6_type, 0, body);
            let packet = ipv6_packet(source, destination, 58, 64, &message);
            ethernet(to, from, None, 0x86dd, &packet)
        }
        _ => unreachable!("of one family"),
    }
}
