//! UDP header (RFC 768) as RoCE v2 uses it.

use super::WireError;
use super::bytes::{be16, put};

/// Destination port of RoCE v2 (IANA `roce`).
pub const ROCE_PORT: u16 = 4791;

/// View of a UDP header.
#[derive(Clone, Copy, Debug)]
pub struct UdpPacket<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> UdpPacket<T> {
    /// Returns a view of `buffer`, after a check that it holds the whole header.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `buffer` is shorter than the header.
    pub fn new_checked(buffer: T) -> Result<Self, WireError> {
        if buffer.as_ref().len() < UdpRepr::BYTES {
            return Err(WireError::Truncated("UDP header"));
        }
        Ok(Self { buffer })
    }

    /// Returns the source port.
    pub fn src_port(&self) -> u16 {
        be16(self.buffer.as_ref(), 0)
    }

    /// Returns the destination port.
    pub fn dst_port(&self) -> u16 {
        be16(self.buffer.as_ref(), 2)
    }

    /// Returns the length of header and payload in bytes.
    pub fn len(&self) -> u16 {
        be16(self.buffer.as_ref(), 4)
    }

    /// Returns whether the length field leaves no payload. A length shorter than the header counts as no payload.
    pub fn is_empty(&self) -> bool {
        usize::from(self.len()) <= UdpRepr::BYTES
    }

    /// Returns the checksum; 0 means that the sender did not compute one.
    pub fn checksum(&self) -> u16 {
        be16(self.buffer.as_ref(), 6)
    }
}

/// A UDP header to port 4791.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpRepr {
    /// Source port. It serves as entropy for load balancing in the network.
    pub src_port: u16,
    /// Number of bytes that follow the header.
    pub payload_len: u16,
}

impl UdpRepr {
    /// Length of the header in bytes.
    pub const BYTES: usize = 8;

    /// Reads the header.
    ///
    /// # Errors
    /// [`WireError::NotRoce`] if the destination port is not 4791. [`WireError::Malformed`] if the length is shorter
    /// than the header.
    pub fn parse<T: AsRef<[u8]>>(packet: &UdpPacket<T>) -> Result<Self, WireError> {
        if packet.dst_port() != ROCE_PORT {
            return Err(WireError::NotRoce);
        }
        let payload_len = packet
            .len()
            .checked_sub(8)
            .ok_or(WireError::Malformed("UDP length"))?;
        Ok(Self {
            src_port: packet.src_port(),
            payload_len,
        })
    }

    /// Writes the header, with a zero checksum.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, self.src_port.to_be_bytes());
        put(out, 2, ROCE_PORT.to_be_bytes());
        put(out, 4, self.payload_len.saturating_add(8).to_be_bytes());
        put(out, 6, [0, 0]);
    }
}
