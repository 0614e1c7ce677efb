//! Parses the supported ICMPv6 messages in IPv6 packets, and makes the frames of those that we send (RFC 8200,
//! RFC 4443).
//!
//! The only extension header that is parsed is the hop-by-hop options before an MLDv2 query, where the router alert is
//! required (RFC 3810, 5). A message of neighbour discovery behind any extension header is refused. For a fragment
//! header, RFC 6980, 5, requires that.

use std::net::Ipv6Addr;

use smoltcp::wire::{
    EthernetProtocol, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv6Address, Ipv6ExtHeader,
    Ipv6OptionRepr, Ipv6OptionRouterAlert, Ipv6OptionsIterator, Ipv6Packet, Ipv6Repr,
};

use super::{Echo, Message, ethernet, mld, ndisc};
use crate::address::{Mac, Vlan, group_mac};
use crate::counters::Refusal;

/// Length of an IPv6 header, in bytes (RFC 8200, 3).
pub(crate) const HEADER_BYTES: usize = 40;
/// Hop limit of neighbour discovery. A received 255 proves that no router has forwarded the message (RFC 4861, 7.1).
pub(crate) const LINK_HOP_LIMIT: u8 = 255;

/// Fields of the headers before a received ICMPv6 message.
pub(crate) struct ReceivedHeaders {
    pub(crate) source: Ipv6Addr,
    pub(crate) destination: Ipv6Addr,
    pub(crate) hop_limit: u8,
    /// True if hop-by-hop options with MLD's router alert (RFC 2711) precede the message.
    pub(crate) alert: bool,
}

/// Parses the message in an IPv6 packet.
pub(crate) fn parse(payload: &[u8]) -> Result<Message<'_>, Refusal> {
    let packet = Ipv6Packet::new_checked(payload).map_err(|_| Refusal::Malformed)?;
    if packet.version() != 6 {
        return Err(Refusal::Malformed);
    }
    let mut around = ReceivedHeaders {
        source: packet.src_addr(),
        destination: packet.dst_addr(),
        hop_limit: packet.hop_limit(),
        alert: false,
    };
    let next = packet.next_header();
    let icmp = if next == IpProtocol::Icmpv6 {
        packet.payload()
    } else if next == IpProtocol::HopByHop {
        let header =
            Ipv6ExtHeader::new_checked(packet.payload()).map_err(|_| Refusal::Malformed)?;
        around.alert = is_alert(header.payload());
        if header.next_header() != IpProtocol::Icmpv6 || !around.alert {
            return Err(Refusal::Kind);
        }
        let bytes = (usize::from(header.header_len()) + 1) * 8;
        packet.payload().get(bytes..).ok_or(Refusal::Malformed)?
    } else if next == IpProtocol::Ipv6Frag {
        return Err(Refusal::Fragment);
    } else {
        return Err(Refusal::Kind);
    };
    if around.source.is_multicast() || around.source.is_loopback() {
        return Err(Refusal::Sender);
    }
    let kind = Icmpv6Message::from(*icmp.first().ok_or(Refusal::Malformed)?);
    let plain = [
        Icmpv6Message::EchoRequest,
        Icmpv6Message::EchoReply,
        Icmpv6Message::NeighborSolicit,
        Icmpv6Message::NeighborAdvert,
    ];
    let is_query = kind == Icmpv6Message::MldQuery;
    let is_taken = plain.contains(&kind);
    if !(is_query || is_taken && !around.alert) {
        return Err(Refusal::Kind);
    }
    let icmp = Icmpv6Packet::new_checked(icmp).map_err(|_| Refusal::Malformed)?;
    if !icmp.verify_checksum(&around.source, &around.destination) {
        return Err(Refusal::Checksum);
    }
    if icmp.msg_code() != 0 {
        return Err(Refusal::Malformed);
    }
    if is_query {
        mld::query(&around, icmp)
    } else if kind == Icmpv6Message::EchoRequest {
        echo(&around, icmp).map(Message::Echo)
    } else if kind == Icmpv6Message::EchoReply {
        echo(&around, icmp).map(Message::EchoReply)
    } else if kind == Icmpv6Message::NeighborSolicit {
        ndisc::solicitation(&around, icmp)
    } else {
        ndisc::advertisement(&around, icmp)
    }
}

/// Returns whether the hop-by-hop options contain MLD's router alert.
fn is_alert(options: &[u8]) -> bool {
    Ipv6OptionsIterator::new(options).any(|option| {
        let alert = Ipv6OptionRouterAlert::MulticastListenerDiscovery;
        option == Ok(Ipv6OptionRepr::RouterAlert(alert))
    })
}

fn echo<'a>(around: &ReceivedHeaders, icmp: Icmpv6Packet<&'a [u8]>) -> Result<Echo<'a>, Refusal> {
    if around.source.is_unspecified() {
        return Err(Refusal::Sender);
    }
    Ok(Echo {
        source: around.source.into(),
        destination: around.destination.into(),
        identifier: icmp.echo_ident(),
        sequence: icmp.echo_seq_no(),
        data: icmp.payload(),
    })
}

/// Headers of an ICMPv6 message that we send.
pub(crate) struct Out {
    pub(crate) source: Ipv6Addr,
    pub(crate) destination: Ipv6Addr,
    pub(crate) hop_limit: u8,
    /// The complete hop-by-hop options header, or an empty slice.
    pub(crate) options: &'static [u8],
}

impl Out {
    /// Returns the Ethernet frame. `write` fills the ICMPv6 message of `bytes` bytes, and this function adds the
    /// checksum. The frame goes to the MAC `to`, or to the MAC of the destination group if `to` is `None`.
    pub(crate) fn emit(
        &self,
        mac: Mac,
        to: Option<Mac>,
        vlan: Option<Vlan>,
        bytes: usize,
        write: impl FnOnce(&mut Icmpv6Packet<&mut [u8]>),
    ) -> Vec<u8> {
        let payload_len = self.options.len() + bytes;
        let header = Ipv6Repr {
            src_addr: self.source,
            dst_addr: self.destination,
            next_header: if self.options.is_empty() {
                IpProtocol::Icmpv6
            } else {
                IpProtocol::HopByHop
            },
            payload_len,
            hop_limit: self.hop_limit,
        };
        let ends = (mac, to.unwrap_or_else(|| group_mac(self.destination)));
        let all = HEADER_BYTES + payload_len;
        ethernet::emit(ends, vlan, EthernetProtocol::Ipv6, all, |packet| {
            header.emit(&mut Ipv6Packet::new_unchecked(&mut packet[..]));
            let (options, message) = packet[HEADER_BYTES..].split_at_mut(self.options.len());
            options.copy_from_slice(self.options);
            let mut icmp = Icmpv6Packet::new_unchecked(message);
            write(&mut icmp);
            let [source, destination]: [Ipv6Address; 2] = [self.source, self.destination];
            icmp.fill_checksum(&source, &destination);
        })
    }
}
