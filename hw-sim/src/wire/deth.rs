//! Datagram extended transport header (DETH; IBTA volume 1, section 9.3.2).

use super::bytes::{be24, be32, low24, put};
use super::{Qpn, WireError};

/// View of a DETH.
#[derive(Clone, Copy, Debug)]
pub struct DethPacket<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> DethPacket<T> {
    /// Returns a view of `buffer`, after a check that it holds the whole header.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `buffer` is shorter than the header.
    pub fn new_checked(buffer: T) -> Result<Self, WireError> {
        if buffer.as_ref().len() < DethRepr::BYTES {
            return Err(WireError::Truncated("DETH"));
        }
        Ok(Self { buffer })
    }

    /// Returns the queue key.
    pub fn qkey(&self) -> u32 {
        be32(self.buffer.as_ref(), 0)
    }

    /// Returns the number of the source queue pair.
    pub fn src_qpn(&self) -> Qpn {
        Qpn::new(be24(self.buffer.as_ref(), 5))
    }
}

/// A DETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DethRepr {
    /// Queue key.
    pub qkey: u32,
    /// Number of the source queue pair.
    pub src_qpn: Qpn,
}

impl DethRepr {
    /// Length of the header in bytes.
    pub const BYTES: usize = 8;

    /// Reads the header. Every value is valid.
    pub fn parse<T: AsRef<[u8]>>(packet: &DethPacket<T>) -> Self {
        Self {
            qkey: packet.qkey(),
            src_qpn: packet.src_qpn(),
        }
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, self.qkey.to_be_bytes());
        out[4] = 0;
        put(out, 5, low24(self.src_qpn.get()));
    }
}
