//! Headers before an ICMPv6 message, received or sent (RFC 8200, RFC 4443).

use std::net::Ipv6Addr;

use smoltcp::wire::{
    EthernetProtocol, Icmpv6Packet, IpProtocol, Ipv6Address, Ipv6Packet, Ipv6Repr,
};

use super::ethernet;
use crate::address::{Mac, Vlan, group_mac};

/// Length of an IPv6 header, in bytes (RFC 8200, 3).
pub(crate) const HEADER_BYTES: usize = 40;

/// Fields of the headers before a received ICMPv6 message.
pub(crate) struct ReceivedHeaders {
    pub(crate) source: Ipv6Addr,
    pub(crate) destination: Ipv6Addr,
    pub(crate) hop_limit: u8,
    /// True if hop-by-hop options with MLD's router alert (RFC 2711) precede the message.
    pub(crate) alert: bool,
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
