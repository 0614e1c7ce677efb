//! RDMA extended transport header (IBTA volume 1, section 9.3.3).

use super::WireError;
use super::bytes::{be32, be64, put};

/// View of a RETH.
#[derive(Clone, Copy, Debug)]
pub struct RethPacket<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> RethPacket<T> {
    /// Returns a view of `buffer`, after a check that it holds the whole header.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `buffer` is shorter than the header.
    pub fn new_checked(buffer: T) -> Result<Self, WireError> {
        if buffer.as_ref().len() < RethRepr::BYTES {
            return Err(WireError::Truncated("RETH"));
        }
        Ok(Self { buffer })
    }

    /// Returns the virtual address.
    pub fn va(&self) -> u64 {
        be64(self.buffer.as_ref(), 0)
    }

    /// Returns the remote key.
    pub fn rkey(&self) -> u32 {
        be32(self.buffer.as_ref(), 8)
    }

    /// Returns the length of the whole DMA operation in bytes.
    pub fn length(&self) -> u32 {
        be32(self.buffer.as_ref(), 12)
    }
}

/// A RETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RethRepr {
    /// Virtual address of the first byte.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length of the whole DMA operation in bytes.
    pub length: u32,
}

impl RethRepr {
    /// Length of the header in bytes.
    pub const BYTES: usize = 16;

    /// Reads the header. Every value is valid.
    pub fn parse<T: AsRef<[u8]>>(packet: &RethPacket<T>) -> Self {
        Self {
            va: packet.va(),
            rkey: packet.rkey(),
            length: packet.length(),
        }
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, self.va.to_be_bytes());
        put(out, 8, self.rkey.to_be_bytes());
        put(out, 12, self.length.to_be_bytes());
    }
}
