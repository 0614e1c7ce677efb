//! Acknowledge extended transport header (AETH; IBTA volume 1, section 9.3.5) and its syndromes (section 9.7.5.2).

use super::WireError;
use super::bytes::{be24, low24, put};

/// View of an AETH.
#[derive(Clone, Copy, Debug)]
pub struct AethPacket<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> AethPacket<T> {
    /// Returns a view of `buffer`, after a check that it holds the whole header.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `buffer` is shorter than the header.
    pub fn new_checked(buffer: T) -> Result<Self, WireError> {
        if buffer.as_ref().len() < AethRepr::BYTES {
            return Err(WireError::Truncated("AETH"));
        }
        Ok(Self { buffer })
    }

    /// Returns the syndrome byte.
    pub fn syndrome(&self) -> u8 {
        self.buffer.as_ref()[0]
    }

    /// Returns the message sequence number.
    pub fn msn(&self) -> u32 {
        be24(self.buffer.as_ref(), 1)
    }
}

/// Reason in a responder's NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// A packet is missing. The requester resumes at the PSN of the NAK.
    Sequence,
    /// The responder cannot accept the request.
    InvalidRequest,
    /// The key does not grant the access.
    RemoteAccess,
    /// The responder failed while executing the request.
    RemoteOperational,
    /// The RD request is invalid. The simulator never sends this code.
    InvalidRd,
}

impl NakCode {
    const fn bits(self) -> u8 {
        match self {
            Self::Sequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRd => 4,
        }
    }
}

/// Meaning of an AETH syndrome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckSyndrome {
    /// Acknowledged. The field is the 5-bit credit count; 31 means that the responder does not use credits.
    Ack(u8),
    /// No receive WQE is available. The requester retries after the time that this RNR timer code stands for.
    Rnr(u8),
    /// The responder rejected the request.
    Nak(NakCode),
}

impl AckSyndrome {
    /// An acknowledgement without end-to-end credits.
    pub const ACK: Self = Self::Ack(31);

    fn from_bits(bits: u8) -> Option<Self> {
        let value = bits & 0x1f;
        Some(match bits >> 5 {
            0 => Self::Ack(value),
            1 => Self::Rnr(value),
            3 => Self::Nak(match value {
                0 => NakCode::Sequence,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccess,
                3 => NakCode::RemoteOperational,
                4 => NakCode::InvalidRd,
                _ => return None,
            }),
            _ => return None,
        })
    }

    const fn bits(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 0x1f,
            Self::Rnr(timer) => 1 << 5 | timer & 0x1f,
            Self::Nak(code) => 3 << 5 | code.bits(),
        }
    }
}

/// An AETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AethRepr {
    /// Acknowledgement, RNR NAK or NAK with its code.
    pub syndrome: AckSyndrome,
    /// Message sequence number: number of requests that the responder has completed, modulo 2^24.
    pub msn: u32,
}

impl AethRepr {
    /// Length of the header in bytes.
    pub const BYTES: usize = 4;

    /// Reads the header.
    ///
    /// # Errors
    /// [`WireError::Malformed`] if the syndrome is reserved.
    pub fn parse<T: AsRef<[u8]>>(packet: &AethPacket<T>) -> Result<Self, WireError> {
        let syndrome = AckSyndrome::from_bits(packet.syndrome())
            .ok_or(WireError::Malformed("AETH syndrome"))?;
        Ok(Self {
            syndrome,
            msn: packet.msn(),
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8]) {
        out[0] = self.syndrome.bits();
        put(out, 1, low24(self.msn));
    }
}
