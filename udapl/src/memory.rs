//! Memory that a device can reach, for consumers: where it comes from, and how its bytes go in and out.
//!
//! Memory a device may write is never behind a reference, so bytes are copied. A consumer that wants to
//! parse in place registers memory of its own (`LentMemory`, which is `unsafe` to create).

use driver::{DmaError, DmaMemory};

use crate::Ia;

/// `bytes` of zeroed memory of the adapter's arena. It returns there when the last clone drops; an LMR made of it
/// holds a clone.
///
/// # Errors
/// The host has no more memory, or no more address space that the device can reach.
pub fn alloc(ia: &Ia, bytes: usize) -> Result<DmaMemory, DmaError> {
    /// `DAT_OPTIMAL_ALIGNMENT`.
    const ALIGN: usize = 256;
    let buffer = ia.provider().arena().alloc(bytes, ALIGN)?;
    Ok(DmaMemory::Arena {
        buffer,
        offset: 0,
        bytes,
    })
}

/// Copies `data` into arena memory, from byte `offset` of it on.
///
/// # Panics
/// The range leaves the memory, or the memory is lent: its owner has a pointer to it.
pub fn write(memory: &DmaMemory, offset: usize, data: &[u8]) {
    let (buffer, at) = part(memory, offset, data.len());
    buffer.write_bytes(at, data);
}

/// Copies `bytes` bytes out of arena memory, from byte `offset` of it on.
///
/// # Panics
/// As [`write()`].
#[must_use]
pub fn read(memory: &DmaMemory, offset: usize, bytes: usize) -> Vec<u8> {
    let (buffer, at) = part(memory, offset, bytes);
    let mut data = vec![0; bytes];
    buffer.read_bytes(at, &mut data);
    data
}

fn part(memory: &DmaMemory, offset: usize, bytes: usize) -> (&driver::DmaBuffer, usize) {
    match memory {
        DmaMemory::Arena {
            buffer,
            offset: start,
            bytes: len,
        } => {
            assert!(
                offset.checked_add(bytes).is_some_and(|end| end <= *len),
                "bytes {offset}..+{bytes} of {len} bytes of memory"
            );
            (buffer, start + offset)
        }
        DmaMemory::Lent(_) => panic!("lent memory is accessed by its owner"),
    }
}
