//! Memory the caller owns, lent to a device.
//!
//! Most DMA memory comes from the arena, where the device's writes hurt nobody. A caller that has its own memory may
//! lend it: the device then writes behind Rust's back, which is why lending is unsafe.
//!
//! The memory is mapped as the whole pages around it, at an I/O address congruent to its virtual address, so
//! that a memory region with virtual addressing needs one translation entry when the page size allows. Whoever lent it
//! must have stopped the device's use of it by the time it drops.
//!
//! **Mappings are shared.** The kernel's VFIO has 65,535 of them for a container, and pins the pages of each. Memory
//! that lies in pages which are lent already takes no mapping of its own: a program with many small regions in one heap
//! lends the heap once, as a whole, and then takes [parts](LentMemory::part) of it, or lends them one by one; a second
//! region over the same bytes is free, too. A mapping is taken back with the last memory that is lent through it.
//!
//! **What is mapped beyond what is lent.** When a large piece is given back while a small one inside it stays lent, all
//! pages of the mapping stay mapped and pinned. No key names them any more (a key has its own bounds, "Memory Key
//! Context" in the PRM, and the one of the large piece was destroyed before), so no peer and no request reaches them. A
//! device that breaks its own rules could, but such a one reaches every page of its I/O address space anyway. A device
//! in another process that has to ask for memory is given what is lent at that moment, to the byte.
//!
//! **Why no more is mapped than was asked for.** Mapping a generous range around small memory would share more, but
//! what is mapped are the pages that are there now. If the program unmaps one that it has not lent, and maps something
//! else at its address, the mapping still leads to the old page, and nobody tells us. So a page of a mapping is trusted
//! only while it has been lent without a break since the mapping was made; its owner has promised that it stays where
//! it is for as long. A page that was given back is never trusted again in that mapping: memory lent there later gets a
//! new one.

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

/// Memory of the caller's that the device may read and write.
#[derive(Debug)]
pub struct LentMemory {
    lease: Arc<Lease>,
    /// Inside the pages of the lease.
    address: usize,
    bytes: usize,
}

/// Whole pages that are lent through a mapping. Given back on drop.
#[derive(Debug)]
struct Lease {
    mapped: Arc<Mapped>,
    /// Number of the mapping in [`Lendings`].
    number: u64,
    pages: Range<usize>,
    /// The addresses that the caller has named.
    bytes: Range<usize>,
    /// Given back, though the mapping is still needed.
    withdrawn: AtomicBool,
}

impl Lease {
    /// What is lent is its owner's again: nothing is lent by it any more, but the mapping stays as long as the lease.
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
        // Behind the lock: the kernel takes its time.
        drop(last);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl LentMemory {
    /// Lends `bytes` bytes at `ptr` to the device: through a mapping that has their pages already, or a new one.
    ///
    /// # Safety
    ///
    /// Until the result and its [parts](Self::part) have dropped: the memory stays mapped, readable and writable, on
    /// the very pages it is on (the whole pages around it are mapped for the device; nothing else is mapped in their
    /// place, and they are not discarded, as `MADV_DONTNEED` does), and is accessed by nobody through a Rust reference
    /// while the device may write it, that is while a memory region covers it and work that names it is outstanding.
    ///
    /// # Errors
    /// [`DmaError::Request`]: null, or no bytes. [`DmaError::NotMapped`]: not all of it is there (under the kernel's
    /// VFIO an error of the function's). [`DmaError::Iova`], [`DmaError::Memory`], [`DmaError::Function`]: no room in
    /// the I/O address space, or the function refused the mapping ([`Function::dma_mappings_left`]).
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
        // What was replaced meanwhile, against the owner's promise, is lent anew.
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
                // SAFETY: `head` bytes down is the start of the page `ptr` is in, which is mapped as `ptr` is.
                let base = unsafe { ptr.sub(head) };
                // SAFETY: pages are mapped as a whole, so these are, for as long as the caller promised. The mapping
                // may outlive that promise by other leases of pages in it; nobody accesses the rest through this memory
                // but a device that is told of no address there, or a model of one, whose keys are bounded likewise.
                // For a process that asks (vfio-user) nothing is accessed but what is lent at that moment
                // (`SharedMemory::open`).
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

    /// The `bytes` bytes from `offset` on, through the same mapping. All of it stays lent until its last part has
    /// dropped.
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

    /// Its owner has been told that it is his alone again, although somebody still keeps it: it stays mapped as long as
    /// it is kept, but what is lent there from now on does not count on this mapping, since another page may be at the
    /// address by then. Of all its parts and clones.
    pub fn withdraw(&self) {
        self.lease.withdraw();
    }

    /// The I/O address space it is lent in.
    pub(crate) fn space(&self) -> &Arc<Space> {
        self.lease.mapped.space()
    }

    /// I/O address of the first byte.
    #[must_use]
    pub fn iova(&self) -> Iova {
        let mapped = &self.lease.mapped;
        mapped
            .iova()
            .advance(self.address - mapped.memory().address())
    }

    /// Virtual address of the first byte.
    #[must_use]
    pub const fn address(&self) -> u64 {
        // CAST: usize has at most 64 bits on every target Rust has.
        self.address as u64
    }

    /// Whether it is memory that other processes can have mapped too: all of it in shared mappings, as the kernel
    /// lists them (proc(5), `/proc/pid/maps`). Without that list nobody can say, and it counts as shared.
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

    /// Bytes lent; never zero.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "lending nothing is refused")]
    pub const fn len(&self) -> usize {
        self.bytes
    }
}

/// What watches over pages that nothing keeps: under the kernel's VFIO the kernel pins them.
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

/// Bytes of `start..end` that lie in shared mappings of a list of mappings.
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

/// The smallest power of two, from 4 KiB to 1 GiB, whose one aligned page spans the range; 1 GiB if none does.
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
