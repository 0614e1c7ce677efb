//! Atomic extended transport headers (IBTA volume 1, sections 9.3.4 and 9.5.3).

use super::WireError;
use super::bytes::{be32, be64, put};

/// View of an AtomicETH.
#[derive(Clone, Copy, Debug)]
pub struct AtomicEthPacket<T> {
    buffer: T,
}

impl<T: AsRef<[u8]>> AtomicEthPacket<T> {
    /// Returns a view of `buffer`, after a check that it holds the whole header.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `buffer` is shorter than the header.
    pub fn new_checked(buffer: T) -> Result<Self, WireError> {
        if buffer.as_ref().len() < AtomicEthRepr::BYTES {
            return Err(WireError::Truncated("AtomicETH"));
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

    /// Returns the value to swap in or to add.
    pub fn swap_add(&self) -> u64 {
        be64(self.buffer.as_ref(), 12)
    }

    /// Returns the value to compare with.
    pub fn compare(&self) -> u64 {
        be64(self.buffer.as_ref(), 20)
    }
}

/// An AtomicETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEthRepr {
    /// Virtual address of the eight bytes.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Value to swap in (CmpSwap) or to add (FetchAdd).
    pub swap_add: u64,
    /// Value to compare with (CmpSwap).
    pub compare: u64,
}

impl AtomicEthRepr {
    /// Length of the header in bytes.
    pub const BYTES: usize = 28;

    /// Reads the header. Every value is valid.
    pub fn parse<T: AsRef<[u8]>>(packet: &AtomicEthPacket<T>) -> Self {
        Self {
            va: packet.va(),
            rkey: packet.rkey(),
            swap_add: packet.swap_add(),
            compare: packet.compare(),
        }
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, self.va.to_be_bytes());
        put(out, 8, self.rkey.to_be_bytes());
        put(out, 12, self.swap_add.to_be_bytes());
        put(out, 20, self.compare.to_be_bytes());
    }
}

/// An AtomicAckETH: carries the value that was in memory before the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEthRepr {
    /// The original value.
    pub original: u64,
}

impl AtomicAckEthRepr {
    /// Length of the header in bytes.
    pub const BYTES: usize = 8;

    /// Reads the header from the start of `bytes`.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if `bytes` is shorter than the header.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() < Self::BYTES {
            return Err(WireError::Truncated("AtomicAckETH"));
        }
        Ok(Self {
            original: be64(bytes, 0),
        })
    }

    /// Writes the header.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, 0, self.original.to_be_bytes());
    }
}
