//! The invariant CRC (ICRC): the last four bytes of every RoCE packet (IBTA volume 1, section 7.8.1, and annex A17 for
//! RoCE v2).
//!
//! The ICRC is the CRC-32 of Ethernet over everything that no router changes. Fields that routers may change are
//! replaced by ones for the computation. RoCE has no LRH, so eight bytes of ones stand for it. On InfiniBand the LRH
//! itself is covered:
//!
//! | header | replaced by ones |
//! |---|---|
//! | LRH | virtual lane |
//! | IPv4 | type of service, time to live, header checksum |
//! | IPv6, GRH | traffic class, flow label, hop limit |
//! | UDP | checksum |
//! | BTH | the byte at 4, with FECN and BECN |
//!
//! The ICRC is sent least significant byte first, unlike all other fields of the packet.

use super::bytes::put;
use super::{BthRepr, GrhRepr, Ipv4Repr, Ipv6Repr, LrhRepr, UdpRepr};

/// Length of an ICRC in bytes.
pub const BYTES: usize = 4;

/// Kind of headers in front of the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulation {
    /// InfiniBand: LRH only.
    Local,
    /// InfiniBand: LRH and GRH.
    Global,
    /// RoCE v1: GRH.
    Grh,
    /// RoCE v2 over IPv4.
    Ipv4Udp,
    /// RoCE v2 over IPv6.
    Ipv6Udp,
}

/// Computes the ICRC of `packet`, which begins with the network header (on InfiniBand with the LRH) and ends before the
/// ICRC. Returns the ICRC in wire order, or `None` if a header is incomplete.
pub fn compute(encapsulation: Encapsulation, packet: &[u8]) -> Option<[u8; BYTES]> {
    let network = match encapsulation {
        Encapsulation::Local => LrhRepr::BYTES,
        Encapsulation::Global => LrhRepr::BYTES + GrhRepr::BYTES,
        Encapsulation::Grh => GrhRepr::BYTES,
        Encapsulation::Ipv4Udp => Ipv4Repr::BYTES + UdpRepr::BYTES,
        Encapsulation::Ipv6Udp => Ipv6Repr::BYTES + UdpRepr::BYTES,
    };
    let (variant, invariant) = packet.split_at_checked(network + BthRepr::BYTES)?;
    let mut masked = [0xff; Ipv6Repr::BYTES + UdpRepr::BYTES + BthRepr::BYTES];
    // PANIC: `masked` is large enough: no encapsulation is longer than IPv6 with UDP.
    let masked = &mut masked[..variant.len()];
    masked.copy_from_slice(variant);
    match encapsulation {
        Encapsulation::Local => masked[0] |= 0xf0,
        Encapsulation::Global => {
            masked[0] |= 0xf0;
            mask_ipv6(&mut masked[LrhRepr::BYTES..]);
        }
        Encapsulation::Ipv4Udp => {
            masked[1] = 0xff;
            masked[8] = 0xff;
            put(masked, 10, [0xff; 2]);
            put(masked, Ipv4Repr::BYTES + 6, [0xff; 2]);
        }
        Encapsulation::Ipv6Udp => {
            mask_ipv6(masked);
            put(masked, Ipv6Repr::BYTES + 6, [0xff; 2]);
        }
        Encapsulation::Grh => mask_ipv6(masked),
    }
    masked[network + 4] = 0xff;

    let mut crc = crc32fast::Hasher::new();
    if !matches!(encapsulation, Encapsulation::Local | Encapsulation::Global) {
        crc.update(&[0xff; LrhRepr::BYTES]);
    }
    crc.update(masked);
    crc.update(invariant);
    #[expect(
        clippy::little_endian_bytes,
        reason = "the ICRC alone travels least significant byte first"
    )]
    let wire = crc.finalize().to_le_bytes();
    Some(wire)
}

/// Replaces traffic class, flow label and hop limit by ones.
fn mask_ipv6(header: &mut [u8]) {
    header[0] |= 0x0f;
    put(header, 1, [0xff; 3]);
    header[7] = 0xff;
}
