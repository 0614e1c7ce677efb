//! Allocation of DMA memory, from the adapter's arena or from pools.

use driver::{DmaBuffer, DmaError, DmaMemory, DmaPool, PoolBuilder};

use crate::Ia;

/// Allocates `bytes` zeroed bytes of the adapter's memory, aligned to 256 (`DAT_OPTIMAL_ALIGNMENT`). The memory is
/// freed when its last clone is dropped; an LMR holds a clone.
///
/// A program accesses the bytes through [`DmaMemory`]: by copy ([`read_into`](DmaMemory::read_into),
/// [`write_from`](DmaMemory::write_from)), or in place ([`bytes`](DmaMemory::bytes)).
///
/// # Errors
/// [`DmaError::Request`]: zero bytes. Otherwise the host has no memory left or no address space that the device can
/// reach, or the function refused the mapping.
pub fn alloc(ia: &Ia, bytes: usize) -> Result<DmaMemory, DmaError> {
    const OPTIMAL_ALIGNMENT: usize = 256;
    alloc_aligned(ia, bytes, OPTIMAL_ALIGNMENT)
}

/// Like [`alloc`], aligned to `align`, a power of two up to 1 GiB. Use 4096 for files opened with `O_DIRECT`
/// ([`reactor`](crate::reactor)).
///
/// # Errors
/// Those of [`alloc`]. [`DmaError::Request`]: an invalid alignment.
pub fn alloc_aligned(ia: &Ia, bytes: usize, align: usize) -> Result<DmaMemory, DmaError> {
    Ok(alloc_buffer(ia, bytes, align)?.into())
}

/// Like [`alloc_aligned`], but returns a [`DmaBuffer`]. An access to a [`DmaMemory`] first tests whether the memory is
/// allocated or lent; an access to a [`DmaBuffer`] does not. `DmaMemory::from(buffer.clone())` gives the other form for
/// registration.
///
/// # Errors
/// Those of [`alloc_aligned`].
pub fn alloc_buffer(ia: &Ia, bytes: usize, align: usize) -> Result<DmaBuffer, DmaError> {
    ia.provider().arena().alloc(bytes, align)
}

/// Builds a memory pool for the adapter. The program chooses its size, page size, NUMA node and the number of threads
/// that populate it. Adapters that share memory ([`OpenOptions::memory`](crate::OpenOptions::memory)) can all
/// register it.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use udapl::memory::{PageSize, pool};
/// use udapl::{OpenOptions, ia_open};
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
