//! Memory that a device can reach, for consumers: where it comes from.
//!
//! How its bytes go in and out is told at [`DmaMemory`]: copied ([`read_into`](DmaMemory::read_into),
//! [`write_from`](DmaMemory::write_from)), or looked at in place ([`bytes`](DmaMemory::bytes)). Memory of the
//! consumer's own is [`LentMemory`](crate::LentMemory), which is `unsafe` to create.

use driver::{DmaError, DmaMemory, DmaPool, PoolBuilder};

use crate::Ia;

/// Allocates `bytes` zeroed bytes of the adapter's memory, at a multiple of 256 (`DAT_OPTIMAL_ALIGNMENT`). They are
/// given back when the last clone drops; an LMR made of them holds a clone.
///
/// # Errors
/// The host has no more memory, or no more address space that the device can reach.
pub fn alloc(ia: &Ia, bytes: usize) -> Result<DmaMemory, DmaError> {
    const OPTIMAL_ALIGNMENT: usize = 256;
    alloc_aligned(ia, bytes, OPTIMAL_ALIGNMENT)
}

/// As [`alloc`], at a multiple of `align`, a power of two up to 1 GiB: 4096 for files that are opened with `O_DIRECT`
/// ([`reactor`](crate::reactor)).
///
/// # Errors
/// As [`alloc`]; [`DmaError::Request`]: no bytes, or no such alignment.
pub fn alloc_aligned(ia: &Ia, bytes: usize, align: usize) -> Result<DmaMemory, DmaError> {
    Ok(ia.provider().arena().alloc(bytes, align)?.into())
}

/// Builds a pool of memory for the adapter: its size, the size of its pages, the NUMA node and the number of threads
/// that populate it are the program's choice. Adapters with memory in common
/// ([`OpenOptions::memory`](crate::OpenOptions::memory)) can all register it.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use udapl::{OpenOptions, PageSize, ia_open, pool};
///
/// let ia = ia_open("0000:3b:00.2", &OpenOptions::default())?;
/// let cache = pool(&ia).pages(PageSize::Huge1G).node(0).prefault(8).build(64 << 30)?;
/// let block = cache.memory(1 << 20)?;
/// # Ok(())
/// # }
/// ```
pub fn pool(ia: &Ia) -> PoolBuilder {
    DmaPool::builder(ia.provider().hca().function())
}
