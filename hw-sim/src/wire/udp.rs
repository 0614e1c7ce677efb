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
    /// Checks that the header is there.
    ///
    /// # Errors
    /// [`WireError::Truncated`]: fewer bytes than the header has.
    pub fn new_checked(buffer: T) -> Result<Self, WireError> {
        if buffer.as_ref().len() < UdpRepr::BYTES {
            return Err(WireError::Truncated("UDP header"));
        }
        Ok(Self { buffer })
    }

    /// Source port.
    pub fn src_port(&self) -> u16 {
        be16(self.buffer.as_ref(), 0)
    }

    /// Destination port.
    pub fn dst_port(&self) -> u16 {
        be16(self.buffer.as_ref(), 2)
    }

    /// Length of header and payload in bytes.
    pub fn len(&self) -> u16 {
        be16(self.buffer.as_ref(), 4)
    }

    /// Returns whether the length field leaves no payload, or less.
    pub fn is_empty(&self) -> bool {
        usize::from(self.len()) <= UdpRepr::BYTES
    }

    /// Checksum; 0 if the sender did not compute one.
    pub fn checksum(&self) -> u16 {
        be16(self.buffer.as_ref(), 6)
    }
}

/// A UDP header to port 4791.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpRepr {
    /// Source port: entropy for the network's load balancing.
    pub src_port: u16,
    /// Bytes that follow the header.
    pub payload_len: u16,
}

impl UdpRepr {
    /// Header length.
    pub const BYTES: usize = 8;

    /// Reads the header; refuses other ports.
    ///
    /// # Errors
    /// [`WireError::NotRoce`]: another destination port. [`WireError::Malformed`]: a length shorter than the header.
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
