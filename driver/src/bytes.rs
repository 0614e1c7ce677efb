//! Checked access in place to memory that a device can reach.
//!
//! No Rust reference points into memory that a device may write. [`Bytes`] accesses such memory in place without a
//! reference: it checks every access against its range, and copies only the bytes that the access returns.

use crate::dma::{DmaBuffer, DmaMemory};
use std::ops::{Bound, Range, RangeBounds};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Reason why an access to bytes of memory is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BytesError {
    /// The range is not inside the memory.
    #[error("bytes {start} to {end} of {len} bytes of memory")]
    Outside {
        /// Start of the requested range, in bytes.
        start: usize,
        /// End of the requested range, in bytes, exclusive.
        end: usize,
        /// Number of bytes of the memory.
        len: usize,
    },
    /// The memory is lent. Only its owner may access its bytes, through the owner's pointer.
    #[error("lent memory is accessed by its owner")]
    Lent,
}

/// A range of a buffer, in place. A device, or another thread with a clone of the memory, may write it at any time: two
/// reads of the same byte may differ.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    buffer: &'a DmaBuffer,
    /// Offset in the buffer and length in bytes; checked to be inside the buffer.
    range: (usize, usize),
}

/// Converts a buffer to the range of all its bytes.
impl<'a> From<&'a DmaBuffer> for Bytes<'a> {
    fn from(buffer: &'a DmaBuffer) -> Self {
        Self {
            buffer,
            range: (0, buffer.len()),
        }
    }
}

impl DmaMemory {
    /// Returns a range of the memory, in place.
    ///
    /// # Errors
    /// The range is not inside the memory, or the memory is lent.
    pub fn bytes<R: RangeBounds<usize>>(&self, range: R) -> Result<Bytes<'_>, BytesError> {
        match self {
            Self::Arena {
                buffer,
                offset,
                bytes,
            } => {
                // `is_empty` is true also if the memory is not inside its buffer. Such memory counts as zero bytes.
                let len = if self.is_empty() { 0 } else { *bytes };
                let Range { start, end } = within(range, len)?;
                Ok(Bytes {
                    buffer,
                    range: (offset.saturating_add(start), end - start),
                })
            }
            Self::Lent(_) => Err(BytesError::Lent),
        }
    }

    /// Copies bytes of the memory, from byte `offset` on, to all of `to`.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes); `to` is unchanged.
    pub fn read_into(&self, offset: usize, to: &mut [u8]) -> Result<(), BytesError> {
        let bytes = self.bytes(offset..offset.saturating_add(to.len()))?;
        bytes.copy_to(to);
        Ok(())
    }

    /// Copies all of `from` into the memory, from byte `offset` on.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes); the memory is unchanged.
    pub fn write_from(&self, offset: usize, from: &[u8]) -> Result<(), BytesError> {
        let bytes = self.bytes(offset..offset.saturating_add(from.len()))?;
        bytes.copy_from(from);
        Ok(())
    }

    /// Copies `bytes` bytes of the memory, from byte `offset` on, to a new vector.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub fn read(&self, offset: usize, bytes: usize) -> Result<Vec<u8>, BytesError> {
        let bytes = self.bytes(offset..offset.saturating_add(bytes))?;
        Ok(bytes.to_vec())
    }
}

/// Resolves the bounds of a range and checks that it is inside `len` bytes.
fn within(range: impl RangeBounds<usize>, len: usize) -> Result<Range<usize>, BytesError> {
    let start = match range.start_bound() {
        Bound::Included(at) => *at,
        Bound::Excluded(at) => at.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(at) => at.saturating_add(1),
        Bound::Excluded(at) => *at,
        Bound::Unbounded => len,
    };
    if start > end || end > len {
        return Err(BytesError::Outside { start, end, len });
    }
    Ok(start..end)
}

impl<'a> Bytes<'a> {
    /// Returns the buffer, the offset in it, and the number of bytes.
    #[inline]
    pub(crate) const fn place(self) -> (&'a DmaBuffer, usize, usize) {
        (self.buffer, self.range.0, self.range.1)
    }

    /// Returns the number of bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.range.1
    }

    /// Returns whether the range has no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns a part of the range.
    ///
    /// # Errors
    /// The part is not inside the range.
    pub fn part<R: RangeBounds<usize>>(self, range: R) -> Result<Self, BytesError> {
        let Range { start, end } = within(range, self.len())?;
        Ok(Self {
            range: (self.range.0 + start, end - start),
            ..self
        })
    }

    /// Copies bytes of the range to `to` until either of them ends. Returns the number of bytes copied.
    pub fn copy_to(self, to: &mut [u8]) -> usize {
        let bytes = self.len().min(to.len());
        self.buffer.read_bytes(self.range.0, &mut to[..bytes]);
        bytes
    }

    /// Copies bytes of `from` to the range until either of them ends. Returns the number of bytes copied.
    pub fn copy_from(self, from: &[u8]) -> usize {
        let bytes = self.len().min(from.len());
        self.buffer.write_bytes(self.range.0, &from[..bytes]);
        bytes
    }

    /// Sets all bytes of the range to `value`.
    pub fn fill(self, value: u8) {
        self.buffer.fill(self.range.0, self.len(), value);
    }

    /// Returns the byte at `at`, if there is one.
    #[must_use]
    pub fn get(self, at: usize) -> Option<u8> {
        (at < self.len()).then(|| self.buffer.load_u8(self.range.0 + at))
    }

    /// Returns all bytes, in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = u8> + 'a {
        let (start, bytes) = self.range;
        (start..start + bytes).map(move |at| self.buffer.load_u8(at))
    }

    /// Reads the object at offset `at` of the range, such as a header or a big-endian number. `None` if the object is
    /// not entirely inside the range. The object may be torn if another thread or the device writes it meanwhile.
    #[must_use]
    pub fn object<T: FromBytes>(self, at: usize) -> Option<T> {
        self.part(at..at.checked_add(size_of::<T>())?).ok()?;
        Some(self.buffer.read_obj(self.range.0 + at))
    }

    /// Copies an object into the range, at offset `at`. Returns `None` if the object does not fit; then no byte
    /// changes.
    pub fn store<T: IntoBytes + Immutable>(self, at: usize, value: &T) -> Option<()> {
        let place = self.part(at..at.checked_add(size_of::<T>())?).ok()?;
        place.copy_from(value.as_bytes());
        Some(())
    }

    /// Returns a copy of the bytes.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = vec![0; self.len()];
        self.copy_to(&mut copy);
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DmaArena;
    use crate::double::Double;

    fn memory(bytes: usize, offset: usize, all: usize) -> DmaMemory {
        let arena = DmaArena::new(&Double::new().function()).expect("an arena");
        let buffer = arena.alloc(all, 64).expect("memory");
        DmaMemory::Arena {
            buffer,
            offset,
            bytes,
        }
    }

    #[test]
    fn a_range_outside_is_refused_with_its_numbers_and_changes_nothing() {
        let memory = memory(64, 32, 128);
        let mut to = [7; 8];
        let outside = |start, end| BytesError::Outside {
            start,
            end,
            len: 64,
        };
        assert_eq!(memory.read_into(60, &mut to), Err(outside(60, 68)));
        assert_eq!(to, [7; 8]);
        assert_eq!(memory.write_from(65, &[]), Err(outside(65, 65)));
        assert_eq!(
            memory.write_from(usize::MAX, &[1]),
            Err(outside(usize::MAX, usize::MAX))
        );
        assert_eq!(memory.bytes(..).map(Bytes::to_vec), Ok(vec![0; 64]));
        assert_eq!(
            outside(60, 68).to_string(),
            "bytes 60 to 68 of 64 bytes of memory"
        );
    }

    #[test]
    fn a_write_through_a_range_changes_its_bytes_and_no_others() {
        let memory = memory(64, 32, 128);
        let middle = memory.bytes(16..32).expect("inside");
        middle.fill(0xee);
        assert_eq!(middle.store(12, &0x0102_0304_u32.to_be_bytes()), Some(()));
        assert_eq!(middle.store(13, &[0; 4]), None);
        assert_eq!(middle.object::<[u8; 4]>(12), Some([1, 2, 3, 4]));
        assert_eq!(middle.object::<u64>(9), None);
        assert_eq!(middle.object::<u64>(usize::MAX), None);
        assert_eq!((middle.get(15), middle.get(16)), (Some(4), None));
        let all = memory.read(0, 64).expect("all of it");
        assert_eq!(all[..16], [0; 16]);
        assert_eq!(all[16..28], [0xee; 12]);
        assert_eq!(all[28..32], [1, 2, 3, 4]);
        assert_eq!(all[32..], [0; 32]);
        assert!(middle.iter().eq(all[16..32].iter().copied()));
        let behind = middle.part(12..).expect("inside");
        assert_eq!(behind.to_vec(), [1, 2, 3, 4]);
        assert!(behind.part(2..6).is_err());
    }

    #[test]
    fn a_part_that_is_not_inside_its_buffer_has_no_bytes() {
        let memory = memory(64, 100, 128);
        assert!(memory.bytes(0..1).is_err());
        assert!(memory.bytes(..).is_ok_and(Bytes::is_empty));
    }
}
