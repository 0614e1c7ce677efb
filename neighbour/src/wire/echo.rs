//! Answers to echo requests (RFC 792; RFC 4443, 4.2).

use std::net::IpAddr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetProtocol, Icmpv4Packet, Icmpv4Repr, Icmpv6Message, IpProtocol, Ipv4Packet, Ipv4Repr,
};

use super::{Echo, ethernet, ipv6};
use crate::address::{Mac, Vlan};

/// The hop limit of an answer: what a node sends with (RFC 1700).
const HOP_LIMIT: u8 = 64;
const ICMP_HEADER_BYTES: usize = 8;

impl Echo<'_> {
    /// The frame with the answer, which goes where the request came from; `None` if it is longer than a frame of ours.
    pub(crate) fn answer(&self, mac: Mac, to: Mac, vlan: Option<Vlan>) -> Option<Vec<u8>> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let message = Icmpv4Repr::EchoReply {
                    ident: self.identifier,
                    seq_no: self.sequence,
                    data: self.data,
                };
                let header = Ipv4Repr {
                    src_addr: destination,
                    dst_addr: source,
                    next_header: IpProtocol::Icmp,
                    payload_len: message.buffer_len(),
                    hop_limit: HOP_LIMIT,
                };
                let bytes = header.buffer_len() + message.buffer_len();
                let checksums = ChecksumCapabilities::default();
                (bytes <= ethernet::MOST_PAYLOAD_BYTES).then(|| {
                    ethernet::emit((mac, to), vlan, EthernetProtocol::Ipv4, bytes, |packet| {
                        header.emit(&mut Ipv4Packet::new_unchecked(&mut packet[..]), &checksums);
                        let behind = &mut packet[header.buffer_len()..];
                        message.emit(&mut Icmpv4Packet::new_unchecked(behind), &checksums);
                    })
                })
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let around = ipv6::Out {
                    source: destination,
                    destination: source,
                    hop_limit: HOP_LIMIT,
                    options: &[],
                };
                let bytes = ICMP_HEADER_BYTES + self.data.len();
                (ipv6::HEADER_BYTES + bytes <= ethernet::MOST_PAYLOAD_BYTES).then(|| {
                    around.emit(mac, Some(to), vlan, bytes, |icmp| {
                        icmp.set_msg_type(Icmpv6Message::EchoReply);
                        icmp.set_msg_code(0);
                        icmp.set_echo_ident(self.identifier);
                        icmp.set_echo_seq_no(self.sequence);
                        icmp.payload_mut().copy_from_slice(self.data);
                    })
                })
            }
            _ => None,
        }
    }
}
