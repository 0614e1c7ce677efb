//! IPv6 header (RFC 8200), without extension headers.

use super::WireError;
use super::bytes::{array, be16, be32, put};
use super::ipv4::UDP;

/// View of an IPv6 header.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6Packet<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Ipv6Packet<T> {
    /// Returns a view of `buffer`, after a check that it holds the whole header.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `buffer` is shorter than the header.
    pub fn new_checked(buffer: T) -> Result<Self, WireError> {
        if buffer.as_ref().len() < Ipv6Repr::BYTES {
            return Err(WireError::Truncated("IPv6 header"));
        }
        Ok(Self { buffer })
    }

    /// Returns the version, 6 in a valid header.
    pub fn version(&self) -> u8 {
        self.buffer.as_ref()[0] >> 4
    }

    /// Returns the traffic class: DSCP and ECN.
    pub fn traffic_class(&self) -> u8 {
        let [a, b] = array(self.buffer.as_ref(), 0);
        a << 4 | b >> 4
    }

    /// Returns the flow label, 20 bits.
    pub fn flow_label(&self) -> u32 {
        be32(self.buffer.as_ref(), 0) & 0xf_ffff
    }

    /// Returns the number of bytes that follow the header.
    pub fn payload_len(&self) -> u16 {
        be16(self.buffer.as_ref(), 4)
    }

    /// Returns the protocol number of the header or payload that follows.
    pub fn next_header(&self) -> u8 {
        self.buffer.as_ref()[6]
    }

    /// Returns the hop limit.
    pub fn hop_limit(&self) -> u8 {
        self.buffer.as_ref()[7]
    }

    /// Returns the source address.
    pub fn src(&self) -> [u8; 16] {
        array(self.buffer.as_ref(), 8)
    }

    /// Returns the destination address.
    pub fn dst(&self) -> [u8; 16] {
        array(self.buffer.as_ref(), 24)
    }
}

/// An IPv6 header that a UDP header follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Repr {
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
    /// DSCP in 7:2, ECN in 1:0.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Number of bytes that follow the header.
    pub payload_len: u16,
}

impl Ipv6Repr {
    /// Length of the header in bytes.
    pub const BYTES: usize = 40;

    /// Reads the header.
    ///
    /// # Errors
    /// [`WireError::Malformed`] if the version is not 6. [`WireError::NotRoce`] if the next header is not UDP.
    pub fn parse<T: AsRef<[u8]>>(packet: &Ipv6Packet<T>) -> Result<Self, WireError> {
        if packet.version() != 6 {
            return Err(WireError::Malformed("IPv6 version"));
        }
        if packet.next_header() != UDP {
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
        put(out, 6, [UDP, self.hop_limit]);
        put(out, 8, self.src);
        put(out, 24, self.dst);
    }
}

/// Writes the first word, which IPv6 and the GRH have in common: version 6, traffic class, flow label.
pub(super) fn emit_common(out: &mut [u8], traffic_class: u8, flow_label: u32) {
    let word = 6 << 28 | u32::from(traffic_class) << 20 | (flow_label & 0xf_ffff);
    put(out, 0, word.to_be_bytes());
}
