//! Conversion of an address path to the headers of a packet.
//!
//! The destination of a packet is in the queue pair's context (connected) or in the WQE's address vector (datagram).
//! Its source address and RoCE version are in the entry of the RoCE address table that the path names. On InfiniBand
//! the LID selects the route, and a GRH is present if the path requests it.

use crate::host::{GidEntry, Host};
use crate::subnet::PERMISSIVE_LID;
use crate::wire::{EthRepr, GrhRepr, Ipv4Repr, Ipv6Repr, Link, LrhRepr, Network, UdpRepr, Vlan};
use mlx_prm::{Ads, Av};
use std::cell::Cell;

/// Value of `GidEntry::roce_version` for RoCE v1.
const ROCE_V1: u8 = 0;
/// Value of `GidEntry::l3_type` for IPv4.
const L3_IPV4: u8 = 0;
/// Lowest UDP source port of RoCE v2, where the dynamic range begins.
const MIN_SOURCE_PORT: u16 = 0xc000;

/// A path to a peer.
#[derive(Clone, Debug)]
pub(super) struct Path {
    source: u8,
    dst_mac: [u8; 6],
    dst_gid: [u8; 16],
    traffic_class: u8,
    flow_label: u32,
    hop_limit: u8,
    source_port: u16,
    priority: u8,
    /// True if packets loop back to the function that sends them, whatever the addresses are.
    forced_loopback: bool,
    /// Destination LID. This field, source path bits, service level and presence of a GRH are for InfiniBand only.
    dlid: u16,
    path_bits: u16,
    service_level: u8,
    global: bool,
    /// Headers of the last address look-up, with the number of the address table's state at that time.
    headers: Cell<Option<(u64, Link, Network)>>,
}

impl Path {
    /// Returns the path of a connected queue pair. `entropy` selects the UDP source port if the context gives none.
    pub(super) fn of_context(ads: &Ads, entropy: u32) -> Self {
        let [_, _, a, b] = ads.rmac_47_32().to_be_bytes();
        let [c, d, e, f] = ads.rmac_31_0().to_be_bytes();
        // DSCP is for RoCE v2 and the traffic class for RoCE v1. Drivers fill both with the same value.
        let traffic_class = low_byte(ads.dscp() << 2 | ads.ecn()) | low_byte(ads.tclass());
        Self {
            source: low_byte(ads.src_addr_index()),
            dst_mac: [a, b, c, d, e, f],
            dst_gid: *ads.rgid_rip(),
            traffic_class,
            flow_label: ads.flow_label(),
            hop_limit: low_byte(ads.hop_limit()),
            source_port: source_port(ads.udp_sport(), entropy),
            priority: low_byte(ads.eth_prio()),
            forced_loopback: ads.fl(),
            dlid: low_half(ads.rlid()),
            path_bits: low_half(ads.mlid()),
            service_level: low_byte(ads.sl()),
            global: ads.grh(),
            headers: Cell::new(None),
        }
    }

    /// Returns the path of one datagram, from its address vector.
    pub(super) fn of_vector(av: &Av, entropy: u32) -> Self {
        Self {
            source: low_byte(av.src_addr_index()),
            dst_mac: *av.rmac(),
            dst_gid: *av.rgid(),
            traffic_class: av.tclass(),
            flow_label: av.flow_label(),
            hop_limit: av.hop_limit(),
            source_port: source_port(av.rlid(), entropy),
            priority: low_byte(av.sl() >> 1),
            forced_loopback: false,
            dlid: low_half(av.rlid()),
            path_bits: low_half(av.mlid()),
            service_level: low_byte(av.sl()),
            global: av.grh(),
            headers: Cell::new(None),
        }
    }

    /// Returns the headers in front of the BTH. Returns `None` if the source address is not, or no longer, in the
    /// table.
    pub(super) fn headers(&self, host: &dyn Host) -> Option<(Link, Network)> {
        let addresses = host.addresses();
        if let Some((of, link, network)) = self.headers.get()
            && addresses == Some(of)
        {
            return Some((link, network));
        }
        let (link, network) = self.made(host)?;
        self.headers
            .set(addresses.map(|addresses| (addresses, link, network)));
        Some((link, network))
    }

    fn made(&self, host: &dyn Host) -> Option<(Link, Network)> {
        if let Some(lid) = host.lid() {
            return self.infiniband(host, lid);
        }
        if self.forced_loopback {
            return Self::looped(host);
        }
        let source = host.gid(self.source)?;
        let eth = EthRepr {
            dst: self.dst_mac,
            src: source.mac,
            vlan: source.vlan.map(|id| Vlan {
                id,
                priority: self.priority,
            }),
            ethertype: 0,
        };
        Some((eth.into(), self.network(&source)))
    }

    /// Returns the headers of packets with forced loopback, from an address of the function to the same address. It is
    /// not known how a card marks such packets, but they never leave the card.
    fn looped(host: &dyn Host) -> Option<(Link, Network)> {
        let own = (0..=u8::MAX).find_map(|index| host.gid(index))?;
        let eth = EthRepr {
            dst: own.mac,
            src: own.mac,
            vlan: own.vlan.map(|id| Vlan { id, priority: 0 }),
            ethertype: 0,
        };
        let back = Self {
            source: 0,
            dst_mac: own.mac,
            dst_gid: own.gid,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 1,
            source_port: MIN_SOURCE_PORT,
            priority: 0,
            forced_loopback: true,
            dlid: 0,
            path_bits: 0,
            service_level: 0,
            global: false,
            headers: Cell::new(None),
        };
        Some((eth.into(), back.network(&own)))
    }

    /// Returns the VLAN priority and the traffic class of packets on this path.
    pub(super) const fn marking(&self) -> (u8, u8) {
        (self.priority, self.traffic_class)
    }

    fn infiniband(&self, host: &dyn Host, lid: u16) -> Option<(Link, Network)> {
        // Inferred: a packet to the permissive LID also has the permissive source LID. Otherwise the answer to the
        // packet would return by LID, and not along the directed route (IBTA volume 1, section 14.2.2).
        let is_unaddressed = lid == 0 || self.dlid == PERMISSIVE_LID;
        let lrh = LrhRepr {
            vl: 0,
            sl: self.service_level,
            dlid: if self.forced_loopback { lid } else { self.dlid },
            slid: if is_unaddressed {
                PERMISSIVE_LID
            } else {
                lid | self.path_bits
            },
            global: self.global,
            packet_len: 0,
        };
        let network = if self.global {
            Network::Grh(self.grh(host.gid(self.source)?.gid))
        } else {
            Network::Local
        };
        Some((Link::InfiniBand(lrh), network))
    }

    fn grh(&self, src: [u8; 16]) -> GrhRepr {
        GrhRepr {
            src,
            dst: self.dst_gid,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            payload_len: 0,
        }
    }

    fn network(&self, source: &GidEntry) -> Network {
        if source.roce_version == ROCE_V1 {
            return Network::Grh(self.grh(source.gid));
        }
        let udp = UdpRepr {
            src_port: self.source_port,
            payload_len: 0,
        };
        if source.l3_type == L3_IPV4 {
            let ip = Ipv4Repr {
                src: mapped(&source.gid),
                dst: mapped(&self.dst_gid),
                tos: self.traffic_class,
                ident: 0,
                dont_fragment: true,
                ttl: self.hop_limit,
                payload_len: 0,
            };
            return Network::Ipv4(ip, udp);
        }
        let ip = Ipv6Repr {
            src: source.gid,
            dst: self.dst_gid,
            traffic_class: self.traffic_class,
            flow_label: self.flow_label,
            hop_limit: self.hop_limit,
            payload_len: 0,
        };
        Network::Ipv6(ip, udp)
    }
}

/// Returns the port `given`. If `given` is 0, returns a port of the dynamic range that is constant for a pair of queue
/// pairs.
fn source_port(given: u32, entropy: u32) -> u16 {
    match u16::try_from(given) {
        Ok(port) if port != 0 => port,
        _ => {
            let mixed = entropy ^ entropy >> 14;
            MIN_SOURCE_PORT | u16::try_from(mixed & 0x3fff).unwrap_or(0)
        }
    }
}

/// Returns the IPv4 address in a GID of the form `::ffff:a.b.c.d`.
const fn mapped(gid: &[u8; 16]) -> [u8; 4] {
    [gid[12], gid[13], gid[14], gid[15]]
}

/// Returns the low 16 bits. CAST: the field has sixteen bits or less, so its value fits.
fn low_half(value: u32) -> u16 {
    u16::try_from(value & 0xffff).unwrap_or(0)
}

/// Returns the low byte. CAST: fields of eight bits or less have no other byte.
const fn low_byte(value: u32) -> u8 {
    value.to_be_bytes()[3]
}
