//! Memory the caller owns, lent to a device.
//!
//! Most DMA memory comes from the arena, where the device's writes do no harm. A caller with memory of its own may
//! lend it: the device then writes it without Rust's knowledge, so lending is unsafe.
//!
//! The memory is mapped as the whole pages around it, at an I/O address congruent to its virtual address, so that a
//! memory region with virtual addressing needs one translation entry if the page size allows. The caller must have
//! stopped the device's use of the memory before it drops the lease.
//!
//! **Mappings are shared.** The kernel's VFIO by default allows 65,535 mappings for a container, and pins their pages.
//! Memory in pages that are lent already takes no mapping of its own. So a program with many small regions in one heap
//! lends the heap once. It then takes [parts](LentMemory::part) of the heap, or lends the regions one by one. A second
//! region over the same bytes takes no mapping either. A mapping is removed with the last memory that is lent through
//! it.
//!
//! **Mapped pages beyond the lent ones.** When a large piece is given back while a small one inside it stays lent,
//! all pages of the mapping stay mapped and pinned. No key covers them any more (a key has its own bounds, "Memory
//! Key Context" in the PRM, and the key of the large piece was destroyed before), so no peer and no request reaches
//! them. A device that breaks its own rules could reach them, but such a device reaches every page of its I/O address
//! space anyway. A device in another process that requests memory by message gets only the bytes that are lent at that
//! moment.
//!
//! **No mapping beyond the request.** A mapping larger than the lent memory would allow more sharing, but a mapping
//! refers to the pages that exist when it is made. If the program unmaps a page that it has not lent, and maps another
//! page at the same address, the mapping still refers to the old page, without a notification. So a page of a mapping
//! is trusted only while it has been lent without interruption since the mapping was made; for that time its owner has
//! promised that it stays in place. A page that was given back is never trusted again in that mapping: memory lent at
//! that address later gets a new mapping.

// UNSAFETY: wraps a caller's pointer as shared memory.
#![expect(unsafe_code, reason = "foreign memory")]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::DmaError;
use crate::function::Function;
use crate::guard::Guard;
use crate::iova::Iova;
use crate::memory::SharedMemory;
use crate::page::DMA_PAGE;
use crate::page::GIB;
use crate::page::page_bytes;
use crate::space::Mapped;
use crate::space::Space;

/// Memory of the caller that the device may read and write.
#[derive(Debug)]
pub struct LentMemory {
    lease: Arc<Lease>,
    /// Virtual address of the first byte, inside the pages of the lease.
    address: usize,
    bytes: usize,
}

/// A lease of whole pages through a mapping. Dropping it gives the pages back.
#[derive(Debug)]
struct Lease {
    mapped: Arc<Mapped>,
    /// Number of the mapping in [`LentRanges`].
    number: u64,
    pages: Range<usize>,
    /// Addresses that the caller has lent.
    bytes: Range<usize>,
    /// True once the pages were given back. The mapping may still be in use then.
    withdrawn: AtomicBool,
}

impl Lease {
    /// Gives the memory back to its owner: its pages are not lent any more, but the mapping stays while this lease
    /// exists.
    fn withdraw(&self) {
        if self.withdrawn.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(open) = self.mapped.memory().open() {
            open.lock().remove(&self.bytes);
        }
        let last = self
            .mapped
            .space()
            .lent()
            .give_back(self.number, &self.pages);
        // The mapping is dropped after the lock is released, because unmapping takes the kernel some time.
        drop(last);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl LentMemory {
    /// Lends `bytes` bytes at `ptr` to the device. Uses a mapping that has their pages already, or makes a new one.
    ///
    /// # Safety
    ///
    /// Until the result and its [parts](Self::part) have dropped, the memory stays mapped, readable and writable, on
    /// the very pages it is on: the whole pages around it are mapped for the device, no other pages are mapped in
    /// their place, and they are not discarded, as `MADV_DONTNEED` does. No Rust reference accesses the memory while
    /// the device may write it, that is while a memory region covers it and work that names it is outstanding.
    ///
    /// # Errors
    /// [`DmaError::Request`]: null, no bytes, or a range beyond the end of the addresses. [`DmaError::NotMapped`]: part
    /// of it is not mapped (under the kernel's VFIO this is an error of the function). [`DmaError::Iova`],
    /// [`DmaError::Function`]: no room in the I/O address space, or the function refused the mapping
    /// ([`Function::dma_mappings_left`]).
    pub unsafe fn new(
        function: &Function,
        ptr: *mut u8,
        bytes: usize,
    ) -> Result<Arc<Self>, DmaError> {
        let request = DmaError::Request { bytes, align: 1 };
        let Some(ptr) = NonNull::new(ptr).filter(|_| bytes > 0) else {
            return Err(request);
        };
        let granule = page_bytes().max(DMA_PAGE);
        let address = ptr.addr().get();
        let head = address & (granule - 1);
        let Some(mapped_bytes) = head
            .checked_add(bytes)
            .and_then(|end| end.checked_next_multiple_of(granule))
            .filter(|&mapped| (address - head).checked_add(mapped).is_some())
        else {
            return Err(request);
        };
        let pages = address - head..address - head + mapped_bytes;
        let space = function.space();
        let shared = space.lent().share(&pages);
        // Pages that were replaced meanwhile, against the owner's promise, get a new mapping.
        let shared = shared.filter(|(mapped, number)| {
            let whole = mapped.memory().is_whole(&pages);
            if !whole {
                drop(space.lent().give_back(*number, &pages));
            }
            whole
        });
        let (mapped, number) = match shared {
            Some(shared) => shared,
            None => {
                let spanning = spanning_power(pages.start, mapped_bytes);
                let guard = guard(space, &pages)?;
                // SAFETY: `head` bytes before `ptr` is the start of its page, which is mapped because `ptr` is.
                let base = unsafe { ptr.sub(head) };
                // SAFETY: memory is mapped in whole pages, so these pages are mapped for as long as the caller
                // promised. Other leases of pages in this mapping may keep the mapping beyond that promise. The rest of
                // the mapping is then accessed through this memory only by a device, which knows no address there, or
                // by a device model, whose keys have the same bounds. A process that requests memory by message
                // (vfio-user) accesses only bytes that are lent at that moment (`SharedMemory::open`).
                let memory = unsafe { SharedMemory::foreign(base, mapped_bytes, guard) };
                let iova =
                    space.alloc_iova(mapped_bytes, spanning, pages.start & (spanning - 1))?;
                let mapped = Arc::new(Mapped::new(space, memory, iova)?);
                let number = space.lent().enter(&mapped, &pages);
                (mapped, number)
            }
        };
        let lent = address..address + bytes;
        if let Some(open) = mapped.memory().open() {
            open.lock().add(&lent);
        }
        Ok(Arc::new(Self {
            lease: Arc::new(Lease {
                mapped,
                number,
                pages,
                bytes: lent,
                withdrawn: AtomicBool::new(false),
            }),
            address,
            bytes,
        }))
    }

    /// Returns the `bytes` bytes from `offset` on, lent through the same mapping. The whole memory stays lent until
    /// its last part has dropped.
    ///
    /// # Errors
    /// [`DmaError::Request`]: no bytes, or not inside.
    pub fn part(&self, offset: usize, bytes: usize) -> Result<Arc<Self>, DmaError> {
        let end = offset.checked_add(bytes);
        if bytes == 0 || end.is_none_or(|end| end > self.bytes) {
            return Err(DmaError::Request { bytes, align: 1 });
        }
        Ok(Arc::new(Self {
            lease: Arc::clone(&self.lease),
            address: self.address + offset,
            bytes,
        }))
    }

    /// Ends the lease for all parts and clones, when the owner takes the memory back while a reference to it remains.
    /// The mapping stays as long as the reference, but memory lent at these addresses from now on does not use it,
    /// because another page may be there by then.
    pub fn withdraw(&self) {
        self.lease.withdraw();
    }

    /// Returns the I/O address space in which the memory is lent.
    pub(crate) fn space(&self) -> &Arc<Space> {
        self.lease.mapped.space()
    }

    /// Returns the I/O address of the first byte.
    #[must_use]
    pub fn iova(&self) -> Iova {
        let mapped = &self.lease.mapped;
        mapped
            .iova()
            .advance(self.address - mapped.memory().address())
    }

    /// Returns the virtual address of the first byte.
    #[must_use]
    pub const fn address(&self) -> u64 {
        // CAST: usize has at most 64 bits on every target Rust has.
        self.address as u64
    }

    /// Returns whether other processes can have mapped the memory too: true if all of it lies in shared mappings
    /// according to the kernel's list (proc(5), `/proc/pid/maps`). If the list cannot be read, the memory counts as
    /// shared.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        let start = self.address();
        // CAST: usize has at most 64 bits on every target Rust has.
        let end = start + self.bytes as u64;
        match std::fs::read_to_string("/proc/self/maps") {
            Ok(maps) => shared_bytes(&maps, start, end) == end - start,
            Err(_) => true,
        }
    }

    /// Returns the number of bytes lent; never zero.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "lending nothing is refused")]
    pub const fn len(&self) -> usize {
        self.bytes
    }
}

/// Makes a guard for pages that may be unmapped; none under the kernel's VFIO, which pins them.
fn guard(space: &Space, pages: &Range<usize>) -> Result<Option<Arc<Guard>>, DmaError> {
    if space.container().is_some() {
        return Ok(None);
    }
    let guard = Guard::new(pages.clone()).ok_or(DmaError::NotMapped {
        address: pages.start,
        bytes: pages.len(),
    })?;
    Ok(Some(guard))
}

/// Returns the number of bytes of `start..end` that lie in shared mappings of the list `maps` (`/proc/pid/maps`).
fn shared_bytes(maps: &str, start: u64, end: u64) -> u64 {
    let shared = |line: &str| {
        let mut words = line.split(' ');
        let (from, to) = words.next()?.split_once('-')?;
        let from = u64::from_str_radix(from, 16).ok()?.max(start);
        let to = u64::from_str_radix(to, 16).ok()?.min(end);
        words
            .next()?
            .ends_with('s')
            .then(|| to.saturating_sub(from))
    };
    maps.lines().filter_map(shared).sum()
}

/// Returns the smallest power of two, from 4 KiB to 1 GiB, such that one page of that size spans the range; 1 GiB if
/// none does.
fn spanning_power(start: usize, bytes: usize) -> usize {
    let last = start + (bytes - 1);
    let mut power = DMA_PAGE;
    while power < GIB && start / power != last / power {
        power *= 2;
    }
    power
}

#[cfg(test)]
mod tests;
