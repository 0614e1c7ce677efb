//! Parses the supported ICMPv6 messages in IPv6 packets (RFC 8200, RFC 4443).
//!
//! The only extension header that is parsed is the hop-by-hop options before an MLDv2 query, where the router alert is
//! required (RFC 3810, 5). A message of neighbour discovery behind any extension header is refused. For a fragment
//! header, RFC 6980, 5, requires that.

use smoltcp::wire::{
    Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv6ExtHeader, Ipv6OptionRepr, Ipv6OptionRouterAlert,
    Ipv6OptionsIterator, Ipv6Packet,
};

use super::icmpv6::ReceivedHeaders;
use super::{Echo, Message, mld, ndisc};
use crate::counters::Refusal;

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
