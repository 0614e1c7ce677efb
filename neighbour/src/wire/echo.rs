//! Makes the frames of echo requests and replies (RFC 792; RFC 4443, 4.1 and 4.2).

use std::net::IpAddr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetProtocol, Icmpv4Packet, Icmpv4Repr, Icmpv6Message, IpProtocol, Ipv4Packet, Ipv4Repr,
};

use super::{Echo, ethernet, icmpv6};
use crate::address::{Mac, Vlan};

/// Hop limit of echo requests and replies: the default of RFC 1700.
const HOP_LIMIT: u8 = 64;
const ICMP_HEADER_BYTES: usize = 8;

impl Echo<'_> {
    /// Returns the frame of the reply to this request; `None` if it would be longer than our longest frame.
    pub(crate) fn answer(&self, mac: Mac, to: Mac, vlan: Option<Vlan>) -> Option<Vec<u8>> {
        let answer = Echo {
            source: self.destination,
            destination: self.source,
            ..*self
        };
        answer.emit(true, mac, to, vlan)
    }

    /// Returns the frame of this request; `None` if it would be longer than our longest frame.
    pub(crate) fn request(&self, mac: Mac, to: Mac, vlan: Option<Vlan>) -> Option<Vec<u8>> {
        self.emit(false, mac, to, vlan)
    }

    fn emit(&self, reply: bool, mac: Mac, to: Mac, vlan: Option<Vlan>) -> Option<Vec<u8>> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let (ident, seq_no, data) = (self.identifier, self.sequence, self.data);
                let message = if reply {
                    Icmpv4Repr::EchoReply {
                        ident,
                        seq_no,
                        data,
                    }
                } else {
                    Icmpv4Repr::EchoRequest {
                        ident,
                        seq_no,
                        data,
                    }
                };
                let header = Ipv4Repr {
                    src_addr: source,
                    dst_addr: destination,
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
                let around = icmpv6::Out {
                    source,
                    destination,
                    hop_limit: HOP_LIMIT,
                    options: &[],
                };
                let bytes = ICMP_HEADER_BYTES + self.data.len();
                (icmpv6::HEADER_BYTES + bytes <= ethernet::MOST_PAYLOAD_BYTES).then(|| {
                    around.emit(mac, Some(to), vlan, bytes, |icmp| {
                        icmp.set_msg_type(match reply {
                            true => Icmpv6Message::EchoReply,
                            false => Icmpv6Message::EchoRequest,
                        });
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
