//! Global route header (GRH; IBTA volume 1, section 8.3): the network layer of RoCE v1, and the format in which a
//! datagram's addresses are written to the receive buffer.

use super::bytes::put;
use super::ipv6::emit_common;
use super::{Ipv6Packet, WireError};

/// Next header value for the IBA transport.
const IBA: u8 = 0x1b;

/// View of a GRH, which has the layout of an IPv6 header.
pub type GrhPacket<T> = Ipv6Packet<T>;

/// A GRH that a BTH follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrhRepr {
    /// Source GID.
    pub src: [u8; 16],
    /// Destination GID.
    pub dst: [u8; 16],
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Number of bytes from the BTH to the ICRC, both included.
    pub payload_len: u16,
}

impl GrhRepr {
    /// Length of the header in bytes.
    pub const BYTES: usize = 40;

    /// Reads the header.
    ///
    /// # Errors
    /// [`WireError::Malformed`] if the IP version is not 6. [`WireError::NotRoce`] if the next header is not the IBA
    /// transport.
    pub fn parse<T: AsRef<[u8]>>(packet: &GrhPacket<T>) -> Result<Self, WireError> {
        if packet.version() != 6 {
            return Err(WireError::Malformed("GRH version"));
        }
        if packet.next_header() != IBA {
            return Err(WireError::NotRoce);
        }
        Ok(Self {
            src: packet.src(),
            dst: packet.dst(),
            traffic_class: packet.traffic_class(),
            flow_label: packet.flow_label(),
            hop_limit: packet.hop_limit(),
            payload_len: packet.payload_len(),
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8]) {
        emit_common(out, self.traffic_class, self.flow_label);
        put(out, 4, self.payload_len.to_be_bytes());
        put(out, 6, [IBA, self.hop_limit]);
        put(out, 8, self.src);
        put(out, 24, self.dst);
    }
}
