//! Memory that a device can reach, for consumers: where it comes from.
//!
//! How its bytes go in and out is told at [`DmaMemory`]: copied ([`read_into`](DmaMemory::read_into), [`write_from`](DmaMemory::write_from)), or
//! looked at in place ([`bytes`](DmaMemory::bytes)). Memory of the consumer's own is [`LentMemory`](crate::LentMemory), which is `unsafe` to create.

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
