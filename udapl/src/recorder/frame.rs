//! Rebuilds the frame of a management datagram (MAD).
//!
//! A card does not show the frames it sends: the driver passes a MAD and an address, and the card adds the headers.
//! The headers follow from this input, so the frame can be rebuilt, with its checksums. Unknown fields are 0: the MAC
//! and the UDP port of a sender, and packet sequence numbers.

use std::net::Ipv6Addr;

use hw_mlx::recorder::Datagram;
use hw_sim::wire::{
    BthRepr, DethRepr, EthRepr, Headers, Ipv4Repr, Ipv6Repr, Network, Opcode, Packet, Psn, UdpRepr,
};

/// The queue key of the general services interface (IBTA volume 1, section 3.5.3).
const Q_KEY: u32 = 0x8001_0000;
const HOP_LIMIT: u8 = 64;

/// Builds the frame: Ethernet, IP, UDP, BTH, DETH, the datagram and its ICRC. It has no VLAN tag.
#[must_use]
pub fn datagram_frame(datagram: &Datagram) -> Vec<u8> {
    let [source, destination] = [datagram.source, datagram.destination].map(Ipv6Addr::from);
    let udp = UdpRepr {
        src_port: datagram.port,
        payload_len: 0,
    };
    let network = match (source.to_ipv4_mapped(), destination.to_ipv4_mapped()) {
        (Some(source), Some(destination)) => Network::Ipv4(
            Ipv4Repr {
                src: source.octets(),
                dst: destination.octets(),
                tos: datagram.traffic_class,
                ident: 0,
                dont_fragment: true,
                ttl: HOP_LIMIT,
                payload_len: 0,
            },
            udp,
        ),
        (None, _) | (_, None) => Network::Ipv6(
            Ipv6Repr {
                src: source.octets(),
                dst: destination.octets(),
                traffic_class: datagram.traffic_class,
                flow_label: 0,
                hop_limit: HOP_LIMIT,
                payload_len: 0,
            },
            udp,
        ),
    };
    let link = EthRepr {
        dst: datagram.mac,
        src: datagram.source_mac,
        vlan: None,
        ethertype: network.ethertype(),
    };
    let headers = Headers {
        deth: Some(DethRepr {
            qkey: Q_KEY,
            src_qpn: datagram.source_qpn,
        }),
        ..Headers::NONE
    };
    let packet = Packet {
        link: link.into(),
        network,
        bth: BthRepr::new(Opcode::ud(false), datagram.qpn, Psn::masked(0)),
        headers,
        payload: &datagram.mad,
    };
    packet.emit()
}

#[cfg(test)]
mod tests {
    use dat_core::provider::Qpn;

    use super::*;

    #[test]
    fn a_datagram_becomes_the_frame_it_travels_in() {
        let mut datagram = Datagram {
            source_mac: [2, 0, 0x5e, 0x10, 0, 1],
            mac: [2, 0, 0x5e, 0x10, 0, 2],
            source: "fe80::5eff:fe10:1"
                .parse::<Ipv6Addr>()
                .expect("one")
                .octets(),
            destination: "fe80::5eff:fe10:2"
                .parse::<Ipv6Addr>()
                .expect("one")
                .octets(),
            traffic_class: 2,
            port: 49_152,
            source_qpn: Qpn::GSI,
            qpn: Qpn::GSI,
            mad: [7; 256],
        };
        let frame = datagram_frame(&datagram);
        let packet = Packet::parse(&frame).expect("with a good ICRC");
        assert_eq!(packet.payload, [7; 256]);
        assert_eq!(packet.network.dst_gid()[15], 2);
        assert_eq!(packet.headers.deth.map(|deth| deth.qkey), Some(Q_KEY));
        assert_eq!(packet.bth.dest_qpn, Qpn::GSI);
        let mapped = |last| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last];
        (datagram.source, datagram.destination) = (mapped(1), mapped(2));
        let frame = datagram_frame(&datagram);
        let packet = Packet::parse(&frame).expect("with a good ICRC");
        assert!(matches!(packet.network, Network::Ipv4(ip, _) if ip.dst == [192, 0, 2, 2]));
    }
}
