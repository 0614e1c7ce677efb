//! Acknowledge extended transport header (IBTA volume 1, section 9.3.5) and its syndromes
//! (section 9.7.5.2).

use super::WireError;
use super::bytes::{be24, low24, put};

/// View of an AETH.
#[derive(Clone, Copy, Debug)]
pub struct AethPacket<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> AethPacket<T> {
    /// Checks that the header is there.
    ///
    /// # Errors
    /// [`WireError::Truncated`]: fewer bytes than the header has.
    pub fn new_checked(buffer: T) -> Result<Self, WireError> {
        if buffer.as_ref().len() < AethRepr::BYTES {
            return Err(WireError::Truncated("AETH"));
        }
        Ok(Self { buffer })
    }

    /// AckSyndrome.
    pub fn syndrome(&self) -> u8 {
        self.buffer.as_ref()[0]
    }

    /// Message sequence number.
    pub fn msn(&self) -> u32 {
        be24(self.buffer.as_ref(), 1)
    }
}

/// Reason for which a responder refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// A packet is missing; resume at the PSN of the NAK.
    Sequence,
    /// The responder cannot accept the request.
    InvalidRequest,
    /// The key does not grant the access.
    RemoteAccess,
    /// The responder failed while executing the request.
    RemoteOperational,
    /// The RD request is invalid; never sent here.
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

/// Meaning of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckSyndrome {
    /// Received. The five bits are the credit count; 31: credits are not used.
    Ack(u8),
    /// No receive WQE; try again after the timer with this code.
    Rnr(u8),
    /// Refused.
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
    /// The responder's answer.
    pub syndrome: AckSyndrome,
    /// Message sequence number: requests completed so far, 24 bits.
    pub msn: u32,
}

impl AethRepr {
    /// Header length.
    pub const BYTES: usize = 4;

    /// Reads the header; refuses reserved syndromes.
    ///
    /// # Errors
    /// [`WireError::Malformed`]: a reserved syndrome.
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
