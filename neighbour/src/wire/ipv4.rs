//! Parses IPv4 packets with an ICMP echo request or reply (RFC 791, RFC 1122).

use smoltcp::wire::{Icmpv4Message, Icmpv4Packet, IpProtocol, Ipv4Packet};

use super::{Echo, Message};
use crate::address::is_sender;
use crate::counters::Refusal;

/// Length of a header without options, in bytes.
const HEADER_BYTES: u8 = 20;

/// Parses an echo request or reply in an IPv4 packet. Refuses fragments, and packets with options.
pub(crate) fn parse(payload: &[u8]) -> Result<Message<'_>, Refusal> {
    let packet = Ipv4Packet::new_checked(payload).map_err(|_| Refusal::Malformed)?;
    if packet.version() != 4 {
        return Err(Refusal::Malformed);
    }
    if packet.next_header() != IpProtocol::Icmp || packet.header_len() != HEADER_BYTES {
        return Err(Refusal::Kind);
    }
    if packet.more_frags() || packet.frag_offset() != 0 {
        return Err(Refusal::Fragment);
    }
    if !packet.verify_checksum() {
        return Err(Refusal::Checksum);
    }
    if !is_sender(packet.src_addr()) {
        return Err(Refusal::Sender);
    }
    let icmp = Icmpv4Packet::new_checked(packet.payload()).map_err(|_| Refusal::Malformed)?;
    let kind = icmp.msg_type();
    let message = if kind == Icmpv4Message::EchoRequest {
        Message::Echo
    } else if kind == Icmpv4Message::EchoReply {
        Message::EchoReply
    } else {
        return Err(Refusal::Kind);
    };
    if icmp.msg_code() != 0 {
        return Err(Refusal::Kind);
    }
    if !icmp.verify_checksum() {
        return Err(Refusal::Checksum);
    }
    Ok(message(Echo {
        source: packet.src_addr().into(),
        destination: packet.dst_addr().into(),
        identifier: icmp.echo_ident(),
        sequence: icmp.echo_seq_no(),
        data: icmp.data(),
    }))
}
