//! Parses and makes ARP packets (RFC 826).

use std::net::Ipv4Addr;

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetProtocol};

use super::{Arp, ethernet};
use crate::address::{BROADCAST, Mac, Vlan, is_sender, is_station};
use crate::counters::Refusal;

/// Parses an ARP packet for IPv4 on Ethernet.
pub(crate) fn parse(payload: &[u8]) -> Result<Arp, Refusal> {
    let packet = ArpPacket::new_checked(payload).map_err(|_| Refusal::Malformed)?;
    let ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: sender_mac,
        source_protocol_addr: sender,
        target_protocol_addr: target,
        ..
    } = ArpRepr::parse(&packet).map_err(|_| Refusal::Kind)?
    else {
        return Err(Refusal::Kind);
    };
    let reply = match operation {
        ArpOperation::Request => false,
        ArpOperation::Reply => true,
        ArpOperation::Unknown(_) => return Err(Refusal::Kind),
    };
    let is_probe = !reply && sender.is_unspecified();
    if !is_station(sender_mac.0) || !(is_probe || is_sender(sender)) {
        return Err(Refusal::Sender);
    }
    Ok(Arp {
        reply,
        sender_mac: sender_mac.0,
        sender,
        target,
    })
}

/// An ARP packet that we send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub(crate) reply: bool,
    pub(crate) sender: Ipv4Addr,
    /// MAC of the target, and destination of the frame; `None` for broadcast.
    pub(crate) to: Option<Mac>,
    pub(crate) target: Ipv4Addr,
}

impl Out {
    /// Returns the Ethernet frame with this packet.
    pub(crate) fn emit(self, mac: Mac, vlan: Option<Vlan>) -> Vec<u8> {
        let packet = ArpRepr::EthernetIpv4 {
            operation: if self.reply {
                ArpOperation::Reply
            } else {
                ArpOperation::Request
            },
            source_hardware_addr: EthernetAddress(mac),
            source_protocol_addr: self.sender,
            // The target's MAC is zero in a broadcast request (RFC 5227, 2.1.1 and 2.3).
            target_hardware_addr: EthernetAddress(self.to.unwrap_or_default()),
            target_protocol_addr: self.target,
        };
        let ends = (mac, self.to.unwrap_or(BROADCAST));
        ethernet::emit(
            ends,
            vlan,
            EthernetProtocol::Arp,
            packet.buffer_len(),
            |bytes| packet.emit(&mut ArpPacket::new_unchecked(bytes)),
        )
    }
}
