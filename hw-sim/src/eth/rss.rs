//! Receive side scaling: the selection of a receive queue of an RQ table for a packet.
//!
//! An indirect TIR names an RQ table, a hash function and the header fields to hash. Fields are hashed in the order
//! source address, destination address, source port, destination port. If a packet lacks selected fields (its IP
//! version or transport differs), the hash covers the fields that it has. The low bits of the hash index the table.
//! Toeplitz is Microsoft's function ("RSS Hashing Functions"). Symmetric hashing replaces each pair of fields by their
//! OR and their XOR, so that both directions of a connection have the same hash (Linux `RXH_XFRM_SYM_OR_XOR`).

use crate::wire::frame::{Headers, IpVersion, Protocol};
use mlx_prm::{RxHashFieldSelect, Tirc};

/// Bytes of the Toeplitz key.
pub const KEY_BYTES: usize = 40;
const SOURCE_ADDRESS: u32 = 1;
const DESTINATION_ADDRESS: u32 = 2;
const SOURCE_PORT: u32 = 4;
const DESTINATION_PORT: u32 = 8;
const L3_IPV6: u32 = 1;
const L4_UDP: u32 = 1;
/// Maximum length of the input in bytes: both addresses and both ports.
const MOST_INPUT: usize = 36;

/// Hash function of a TIR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashFunction {
    /// No hash. Entry 0 of the table is used.
    #[default]
    None,
    /// XOR of all bytes, inverted.
    InvertedXor8,
    /// Toeplitz.
    Toeplitz,
}

impl HashFunction {
    /// Returns the function for a TIR context's code.
    pub const fn of(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            1 => Some(Self::InvertedXor8),
            2 => Some(Self::Toeplitz),
            _ => None,
        }
    }
}

/// A hash, and the type of its input for the CQE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hash {
    /// Value of the hash.
    pub value: u32,
    /// `rss_hash_type`: address kind in bits 3:2 (1 IPv4, 2 IPv6), transport in 7:6 (1 TCP, 2 UDP).
    pub kind: u8,
}

/// Hashes a packet with a TIR's settings.
pub fn hash(tir: &Tirc, headers: &Headers) -> Hash {
    let function = HashFunction::of(tir.rx_hash_fn()).unwrap_or_default();
    if function == HashFunction::None {
        return Hash::default();
    }
    let mut input = Input::default();
    let kind = input.select(tir.rx_hash_field_selector_outer(), headers);
    if tir.rx_hash_symmetric() {
        input.symmetric();
    }
    let bytes = input.bytes();
    let value = match function {
        HashFunction::Toeplitz => toeplitz(tir.rx_hash_toeplitz_key(), &bytes),
        HashFunction::InvertedXor8 | HashFunction::None => {
            u32::from(!bytes.iter().fold(0, |xor, byte| xor ^ byte))
        }
    };
    Hash { value, kind }
}

/// The selected fields, in pairs of source and destination.
#[derive(Default)]
struct Input {
    addresses: [Option<Vec<u8>>; 2],
    ports: [Option<Vec<u8>>; 2],
}

impl Input {
    /// Adds the fields that the selector names. Returns their `rss_hash_type`.
    fn select(&mut self, select: &RxHashFieldSelect, headers: &Headers) -> u8 {
        let fields = select.selected_fields();
        let Some(ip) = headers.ip else {
            return 0;
        };
        let is_v6 = ip.version == IpVersion::V6;
        if is_v6 != (u32::from(select.l3_prot_type()) == L3_IPV6) {
            return 0;
        }
        let of = |address: [u8; 16]| address[if is_v6 { 0 } else { 12 }..].to_vec();
        self.addresses = [
            (fields & SOURCE_ADDRESS != 0).then(|| of(ip.src)),
            (fields & DESTINATION_ADDRESS != 0).then(|| of(ip.dst)),
        ];
        let mut kind = 0;
        if self.addresses.iter().any(Option::is_some) {
            kind |= if is_v6 { 2 << 2 } else { 1 << 2 };
        }
        let Some(transport) = headers.transport else {
            return kind;
        };
        let is_udp = transport.protocol == Protocol::Udp;
        if is_udp != (u32::from(select.l4_prot_type()) == L4_UDP) {
            return kind;
        }
        let of = |port: u16| port.to_be_bytes().to_vec();
        self.ports = [
            (fields & SOURCE_PORT != 0).then(|| of(transport.sport)),
            (fields & DESTINATION_PORT != 0).then(|| of(transport.dport)),
        ];
        if self.ports.iter().any(Option::is_some) {
            kind |= if is_udp { 2 << 6 } else { 1 << 6 };
        }
        kind
    }

    fn symmetric(&mut self) {
        for pair in [&mut self.addresses, &mut self.ports] {
            if let [Some(source), Some(destination)] = pair {
                for (a, b) in source.iter_mut().zip(destination) {
                    (*a, *b) = (*a | *b, *a ^ *b);
                }
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MOST_INPUT);
        for field in self.addresses.iter().chain(&self.ports).flatten() {
            bytes.extend(field);
        }
        bytes
    }
}

/// Returns the Toeplitz hash: the XOR, over every bit set in the input, of the 32 key bits that begin at the position
/// of the input bit.
pub fn toeplitz(key: &[u8; KEY_BYTES], input: &[u8]) -> u32 {
    let mut result = 0;
    let [a, b, c, d, ..] = *key;
    let mut window = u32::from_be_bytes([a, b, c, d]);
    for (index, byte) in input.iter().enumerate() {
        let next = key.get(index + 4).copied().unwrap_or(0);
        for bit in (0..8).rev() {
            if byte >> bit & 1 == 1 {
                result ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::{Ip, Transport};
    use std::net::IpAddr;

    /// Key of "Verifying the RSS Hash Calculation" (Microsoft, Windows driver documentation).
    const KEY: [u8; KEY_BYTES] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Test vectors of the same page: source address and port, destination address and port, hash of the addresses,
    /// hash of addresses and ports.
    const VECTORS: [(&str, u16, &str, u16, u32, u32); 8] = [
        (
            "66.9.149.187",
            2794,
            "161.142.100.80",
            1766,
            0x323e_8fc2,
            0x51cc_c178,
        ),
        (
            "199.92.111.2",
            14230,
            "65.69.140.83",
            4739,
            0xd718_262a,
            0xc626_b0ea,
        ),
        (
            "24.19.198.95",
            12898,
            "12.22.207.184",
            38024,
            0xd2d0_a5de,
            0x5c2b_394a,
        ),
        (
            "38.27.205.30",
            48228,
            "209.142.163.6",
            2217,
            0x8298_9176,
            0xafc7_327f,
        ),
        (
            "153.39.163.191",
            44251,
            "202.188.127.2",
            1303,
            0x5d18_09c5,
            0x10e8_28a2,
        ),
        (
            "3ffe:2501:200:1fff::7",
            2794,
            "3ffe:2501:200:3::1",
            1766,
            0x2cc1_8cd5,
            0x4020_7d3d,
        ),
        (
            "3ffe:501:8::260:97ff:fe40:efab",
            14230,
            "ff02::1",
            4739,
            0x0f0c_461c,
            0xdde5_1bbf,
        ),
        (
            "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
            44251,
            "fe80::200:f8ff:fe21:67cf",
            38024,
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];

    fn headers(source: &str, sport: u16, destination: &str, dport: u16) -> Headers {
        let address = |text: &str| match text.parse().unwrap() {
            IpAddr::V4(v4) => {
                let mut address = [0; 16];
                address[12..].copy_from_slice(&v4.octets());
                (address, IpVersion::V4)
            }
            IpAddr::V6(v6) => (v6.octets(), IpVersion::V6),
        };
        let ((src, version), (dst, _)) = (address(source), address(destination));
        Headers {
            dst: [0; 6],
            src: [0; 6],
            tag: None,
            ethertype: 0,
            payload_at: 14,
            ip: Some(Ip {
                version,
                at: 14,
                header_bytes: 20,
                end: 54,
                whole: true,
                protocol: 6,
                traffic_class: 0,
                ttl: 64,
                fragment: false,
                src,
                dst,
            }),
            transport: Some(Transport {
                protocol: Protocol::Tcp { flags: 0 },
                at: 34,
                header_bytes: 20,
                sport,
                dport,
            }),
        }
    }

    fn tir(headers: &Headers, fields: u32) -> Tirc {
        let is_v6 = headers.ip.unwrap().version == IpVersion::V6;
        let mut tir = Tirc::new();
        tir.set_rx_hash_fn(2).set_rx_hash_toeplitz_key(&KEY);
        tir.rx_hash_field_selector_outer_mut()
            .set_selected_fields(fields)
            .set_l3_prot_type(is_v6);
        tir
    }

    #[test]
    fn the_hash_is_the_published_one() {
        for (source, sport, destination, dport, addresses, all) in VECTORS {
            let headers = headers(source, sport, destination, dport);
            assert_eq!(
                hash(&tir(&headers, 3), &headers).value,
                addresses,
                "{source}"
            );
            assert_eq!(hash(&tir(&headers, 0xf), &headers).value, all, "{source}");
        }
    }

    #[test]
    fn the_kind_says_what_was_hashed() {
        let v4 = headers("10.0.0.1", 1, "10.0.0.2", 2);
        assert_eq!(hash(&tir(&v4, 0xf), &v4).kind, 1 << 2 | 1 << 6);
        assert_eq!(hash(&tir(&v4, 3), &v4).kind, 1 << 2);
        let v6 = headers("fe80::1", 1, "fe80::2", 2);
        assert_eq!(hash(&tir(&v6, 0xf), &v6).kind, 2 << 2 | 1 << 6);
        assert_eq!(hash(&tir(&v4, 0xf), &v6).kind, 0, "IPv6 at a TIR for IPv4");
    }

    #[test]
    fn a_symmetric_hash_is_the_same_both_ways() {
        let there = headers("10.0.0.1", 1234, "10.0.0.2", 80);
        let back = headers("10.0.0.2", 80, "10.0.0.1", 1234);
        let mut tir = tir(&there, 0xf);
        assert_ne!(hash(&tir, &there), hash(&tir, &back));
        tir.set_rx_hash_symmetric(true);
        assert_eq!(hash(&tir, &there), hash(&tir, &back));
    }
}
