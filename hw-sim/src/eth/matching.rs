//! Matching: conversion of a frame to the structure that flow groups and entries compare.
//!
//! A group has ones in the bits that its entries compare. An entry has its values in the same bits. So a frame is
//! converted to that structure once, and matches an entry if the two are equal under the group's mask. Only the outer
//! headers are compared, and in the e-switch also the vport from which a frame comes. A group that compares more is
//! refused. Fields that a frame does not have are zero, so an entry for UDP ports must also compare the protocol.

use crate::wire::frame::{CUSTOMER_TAG, Headers, IpVersion, Protocol, SERVICE_TAG};
use mlx_prm::{FteMatchParam, FteMatchSetLyr24, FteMatchSetMisc, match_criteria};
use zerocopy::IntoBytes;

/// Number of 64-bit words of a pattern: the outer headers, and one word for the vport from which a frame came.
const WORDS: usize = FteMatchSetLyr24::SIZE / 8 + 1;
const SOURCE: usize = WORDS - 1;

/// The outer headers of a frame, the mask of a group, or the values of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pattern([u64; WORDS]);

impl Pattern {
    /// Returns the bits that a group compares. Returns `None` if the group compares more than the outer headers and,
    /// with `source`, the source vport.
    pub fn of_criteria(enable: u32, criteria: &FteMatchParam, source: bool) -> Option<Self> {
        let known = match_criteria::OUTER_HEADERS | match_criteria::MISC_PARAMETERS;
        if enable & !known != 0 {
            return None;
        }
        let mut mask = Self::default();
        if enable & match_criteria::MISC_PARAMETERS != 0 {
            let port = criteria.misc_parameters().source_port();
            let mut alone = FteMatchSetMisc::new();
            alone.set_source_port(port);
            if !source || alone.as_bytes() != criteria.misc_parameters().as_bytes() {
                return None;
            }
            mask.0[SOURCE] = u64::from(port);
        }
        if enable & match_criteria::OUTER_HEADERS == 0 {
            return Some(mask);
        }
        let outer = criteria.outer_headers();
        // A group that compares `l4_type`, or a bit that the layout does not name, is refused.
        if outer.reserved_bits().is_some() || outer.l4_type() != 0 {
            return None;
        }
        Some(Self::of_set(outer).from(mask.0[SOURCE]))
    }

    /// Returns an entry's values under its group's mask.
    pub fn of_value(value: &FteMatchParam, mask: Self) -> Self {
        let source = value.misc_parameters().source_port();
        Self::of_set(value.outer_headers())
            .from(u64::from(source))
            .under(mask)
    }

    /// Returns the pattern with the source vport set.
    pub const fn from(mut self, source: u64) -> Self {
        self.0[SOURCE] = source;
        self
    }

    /// Returns a frame's pattern.
    pub fn of_headers(headers: &Headers) -> Self {
        let mut set = FteMatchSetLyr24::new();
        let [high, low] = split(headers.src);
        set.set_smac_47_16(high).set_smac_15_0(low);
        let [high, low] = split(headers.dst);
        set.set_dmac_47_16(high).set_dmac_15_0(low);
        set.set_ethertype(u32::from(headers.ethertype));
        if let Some(tag) = headers.tag {
            let control = u32::from(tag.control);
            set.set_first_prio(control >> 13)
                .set_first_cfi(control >> 12 & 1 == 1)
                .set_first_vid(control & 0xfff)
                .set_cvlan_tag(tag.kind == CUSTOMER_TAG)
                .set_svlan_tag(tag.kind == SERVICE_TAG);
        }
        if let Some(ip) = headers.ip {
            let class = u32::from(ip.traffic_class);
            let version = match ip.version {
                IpVersion::V4 => 4,
                IpVersion::V6 => 6,
            };
            set.set_ip_version(version)
                .set_ip_protocol(u32::from(ip.protocol))
                .set_ip_dscp(class >> 2)
                .set_ip_ecn(class & 3)
                .set_frag(ip.fragment)
                .set_ttl_hoplimit(u32::from(ip.ttl))
                .set_src_ipv4_src_ipv6(&ip.src)
                .set_dst_ipv4_dst_ipv6(&ip.dst);
            if ip.version == IpVersion::V4 {
                // CAST: a header has 5 to 15 words.
                set.set_ipv4_ihl(u32::try_from(ip.header_bytes / 4).unwrap_or(0));
            }
        }
        if let Some(transport) = headers.transport {
            let (sport, dport) = (u32::from(transport.sport), u32::from(transport.dport));
            match transport.protocol {
                Protocol::Tcp { flags } => set
                    .set_tcp_flags(u32::from(flags))
                    .set_tcp_sport(sport)
                    .set_tcp_dport(dport),
                Protocol::Udp => set.set_udp_sport(sport).set_udp_dport(dport),
            };
        }
        Self::of_set(&set)
    }

    fn of_set(set: &FteMatchSetLyr24) -> Self {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(set.as_bytes().as_chunks::<8>().0) {
            *word = u64::from_be_bytes(*bytes);
        }
        Self(words)
    }

    /// Returns the bits of the pattern that are set in `mask`.
    pub fn under(self, mask: Self) -> Self {
        let mut words = self.0;
        for (word, ones) in words.iter_mut().zip(mask.0) {
            *word &= ones;
        }
        Self(words)
    }
}

/// Splits an address into the upper four bytes and the lower two bytes.
fn split([a, b, c, d, e, f]: [u8; 6]) -> [u32; 2] {
    [
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([0, 0, e, f]),
    ]
}
