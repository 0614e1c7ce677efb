//! Packets between queue pairs.
//!
//! [`Packet::parse`] parses a frame from the outer headers down to the payload. It checks every length, the IPv4 header
//! checksum and the invariant CRC. [`Packet::emit`] is its inverse. Both RoCE encapsulations are supported:
//!
//! ```text
//! v2  Ethernet [802.1Q] | IPv4 or IPv6 | UDP 4791 | BTH | extension headers | payload | pad | ICRC
//! v1  Ethernet [802.1Q] | GRH                     | BTH | extension headers | payload | pad | ICRC
//! ```
//!
//! An InfiniBand port uses the same transport without Ethernet:
//!
//! ```text
//! IB  LRH [GRH] | BTH | extension headers | payload | pad | ICRC | VCRC
//! ```
//!
//! Each header has two types. A view (`BthPacket<T>`) gives access to the fields in a buffer. Its `new_checked` checks
//! the length once; after that, no getter can panic, whatever the bytes are. A representation (`BthRepr`) has the
//! fields as values: its `parse` rejects values that no RoCE packet has, and its `emit` writes every byte of the
//! header. The [`Opcode`] alone determines the extension headers of a packet, see [`Headers`].
//!
//! The UDP checksum is sent as zero, for IPv6 too (RFC 6935 permits it; the RoCEv2 annex requires it), and not checked
//! on arrival: the ICRC covers more and is stronger.
//!
//! Absent on purpose: IP options, fragments and IPv6 extension headers (RoCE has none; such packets are rejected),
//! reliable datagrams, raw packets.

mod aeth;
mod atomic;
mod bth;
mod bytes;
mod cnp;
mod deth;
mod ecn;
mod eth;
pub mod frame;
mod grh;
mod headers;
pub mod icrc;
mod ipv4;
mod ipv6;
mod lrh;
mod opcode;
mod packet;
mod reth;
mod udp;
mod vlan;

pub use aeth::{AckSyndrome, AethPacket, AethRepr, NakCode};
pub use atomic::{AtomicAckEthRepr, AtomicEthPacket, AtomicEthRepr};
pub use bth::{BthPacket, BthRepr, DEFAULT_PKEY};
pub(crate) use bytes::{ones_complement_sum, updated_checksum};
pub(crate) use cnp::ethernet;
pub use cnp::{CNP, emit_cnp, parse_cnp};
pub use deth::{DethPacket, DethRepr};
pub use ecn::Ecn;
pub(crate) use ecn::{CE, ECT_0};
pub use eth::EthRepr;
pub use frame::ETHERTYPE_ROCE_V1;
pub use grh::{GrhPacket, GrhRepr};
pub use headers::Headers;
pub use ipv4::{Ipv4Packet, Ipv4Repr};
pub use ipv6::{Ipv6Packet, Ipv6Repr};
pub use lrh::{LrhPacket, LrhRepr, VCRC_BYTES, vcrc};
pub use mlx_prm::{Psn, Qpn};
pub use opcode::{Opcode, Operation, Transport};
pub(crate) use packet::{Frame, seal};
pub use packet::{GRH_AREA_BYTES, Link, Network, Outline, Packet};
pub use reth::{RethPacket, RethRepr};
pub use udp::{ROCE_PORT, UdpPacket, UdpRepr};
pub use vlan::Vlan;

use thiserror::Error;

/// Reason why a frame cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// The frame ends inside a header, or before the length that a header states.
    #[error("truncated {0}")]
    Truncated(&'static str),
    /// The frame belongs to another protocol.
    #[error("not RoCE")]
    NotRoce,
    /// A field has a value that no RoCE packet has.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// The IPv4 header checksum is wrong.
    #[error("IPv4 header checksum")]
    Checksum,
    /// The BTH opcode is reserved, or belongs to a transport that is not supported.
    #[error("BTH opcode {0:#04x}")]
    Opcode(u8),
    /// The invariant CRC is wrong: the packet was corrupted on the way.
    #[error("ICRC")]
    Icrc,
    /// The variant CRC of an InfiniBand packet is wrong.
    #[error("VCRC")]
    Vcrc,
}
