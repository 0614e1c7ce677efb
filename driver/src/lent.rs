//! Memory the caller owns, lent to a device.
//!
//! Most DMA memory comes from the arena, where the device's writes hurt nobody. A caller that has its own memory may
//! lend it: the device then writes behind Rust's back, which is why lending is unsafe.
//!
//! The memory is mapped as the whole pages around it, at an I/O address congruent to its virtual address, so
//! that a memory region with virtual addressing needs one translation entry when the page size allows. Whoever lent it must have
//! stopped the device's use of it by the time it drops.
//!
//! **Mappings are shared.** The kernel's VFIO has 65,535 of them for a container, and pins the pages of each. Memory that lies in pages
//! which are lent already takes no mapping of its own: a program with many small regions in one heap lends the heap once, as a whole, and
//! then takes [parts](LentMemory::part) of it, or lends them one by one; a second region over the same bytes is free, too.
//! A mapping is taken back with the last memory that is lent through it.
//!
//! **What is mapped beyond what is lent.** When a large piece is given back while a small one inside it stays lent, all pages of the
//! mapping stay mapped and pinned. No key names them any more (a key has its own bounds, "Memory Key Context" in the PRM, and the one
//! of the large piece was destroyed before), so no peer and no request reaches them. A device that breaks its own rules could,
//! but such a one reaches every page of its I/O address space anyway. A device in another process that has to ask for memory is
//! given what is lent at that moment, to the byte.
//!
//! **Why no more is mapped than was asked for.** Mapping a generous range around small memory would share more, but what is mapped are
//! the pages that are there now. If the program unmaps one that it has not lent, and maps something else at its address, the mapping
//! still leads to the old page, and nobody tells us. So a page of a mapping is trusted only while it has been lent without a
//! break since the mapping was made; its owner has promised that it stays where it is for as long. A page that was given back is never
//! trusted again in that mapping: memory lent there later gets a new one.

// UNSAFETY: wraps a caller's pointer as shared memory.
#![expect(unsafe_code, reason = "foreign memory")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::dma::{GIB, Iova, Mapped};
use crate::error::DmaError;
use crate::extents::Extents;
use crate::function::{DMA_PAGE, Function};
use crate::mapping::page_bytes;
use crate::memory::SharedMemory;
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

/// A mapping of lent memory.
struct Lent {
    mapped: Arc<Mapped>,
    /// The pages that are lent through it.
    leases: Extents,
}

/// Where memory can be lent without mapping it: the pages that are lent without a break since they were mapped.
#[derive(Default)]
pub(crate) struct Lendings {
    next: u64,
    mappings: BTreeMap<u64, Lent>,
    /// Disjoint ranges of trusted pages: the first address to the end, and the number of the mapping. A page that several
    /// mappings have is in the range of one.
    trusted: BTreeMap<usize, (usize, u64)>,
    /// Mappings whose pages, some of them, went to the range of a later one.
    shadowed: BTreeSet<u64>,
}

impl Lendings {
    /// Lends pages through a mapping that is there, if one has them all.
    fn share(&mut self, pages: &Range<usize>) -> Option<(Arc<Mapped>, u64)> {
        let (_, &(end, number)) = self.trusted.range(..=pages.start).next_back()?;
        let lent = self
            .mappings
            .get_mut(&number)
            .filter(|_| pages.end <= end)?;
        lent.leases.add(pages);
        Some((Arc::clone(&lent.mapped), number))
    }

    /// Lends pages through a mapping that was made for them.
    fn enter(&mut self, mapped: &Arc<Mapped>, pages: &Range<usize>) -> u64 {
        let number = self.next;
        self.next += 1;
        let mut lent = Lent {
            mapped: Arc::clone(mapped),
            leases: Extents::default(),
        };
        lent.leases.add(pages);
        self.mappings.insert(number, lent);
        // Whatever other mappings have of these pages, this one has them together.
        let others = self.distrust(pages, None);
        self.shadowed.extend(others);
        self.trusted.insert(pages.start, (pages.end, number));
        number
    }

    /// One lease less. The mapping, if that was its last.
    fn give_back(&mut self, number: u64, pages: &Range<usize>) -> Option<Arc<Mapped>> {
        let free = self.mappings.get_mut(&number)?.leases.remove(pages);
        for pages in &free {
            self.distrust(pages, Some(number));
        }
        let is_over = self.mappings.get(&number)?.leases.is_empty();
        let over = is_over.then(|| self.mappings.remove(&number)).flatten();
        if is_over {
            self.shadowed.remove(&number);
        }
        for pages in &free {
            self.uncover(pages);
        }
        over.map(|lent| lent.mapped)
    }

    /// Pages that are in the range of no mapping any more go back to earlier ones that have been lent them all the time. What a mapping has leases
    /// of has been: a lease of a page that was given back meanwhile is another mapping's.
    fn uncover(&mut self, pages: &Range<usize>) {
        for number in self.shadowed.clone() {
            let Some(lent) = self.mappings.get(&number) else {
                continue;
            };
            for taken in lent.leases.taken_of(pages) {
                for gap in self.gaps(&taken) {
                    self.trust(gap, number);
                }
            }
        }
    }

    /// What of these pages is in no range.
    fn gaps(&self, pages: &Range<usize>) -> Vec<Range<usize>> {
        let first = self.trusted.range(..=pages.start).next_back();
        let mut from = first.map_or(pages.start, |(_, &(end, _))| end.max(pages.start));
        let mut gaps = Vec::new();
        for (&start, &(end, _)) in self.trusted.range(pages.start..pages.end) {
            gaps.extend((from < start).then_some(from..start));
            from = from.max(end);
        }
        gaps.extend((from < pages.end).then_some(from..pages.end));
        gaps
    }

    /// Puts pages that are in no range into those of a mapping, together with what of it is beside them.
    fn trust(&mut self, pages: Range<usize>, number: u64) {
        let Range { mut start, mut end } = pages;
        let before = self.trusted.range(..start).next_back();
        if let Some((&first, &(last, same))) = before
            && (last, same) == (start, number)
        {
            start = first;
        }
        if let Some(&(last, same)) = self.trusted.get(&end)
            && same == number
        {
            self.trusted.remove(&end);
            end = last;
        }
        self.trusted.insert(start, (end, number));
    }

    /// Takes pages out of the ranges of a mapping, or of all. Whose they were.
    fn distrust(&mut self, pages: &Range<usize>, only: Option<u64>) -> Vec<u64> {
        let first = self.trusted.range(..pages.start).next_back();
        let from = first.map_or(pages.start, |(&start, _)| start);
        let touched: Vec<(usize, usize, u64)> = self
            .trusted
            .range(from..pages.end)
            .map(|(&start, &(end, number))| (start, end, number))
            .filter(|&(_, end, number)| end > pages.start && only.is_none_or(|it| it == number))
            .collect();
        for &(start, end, number) in &touched {
            self.trusted.remove(&start);
            if start < pages.start {
                self.trusted.insert(start, (pages.start, number));
            }
            if pages.end < end {
                self.trusted.insert(pages.end, (end, number));
            }
        }
        touched.into_iter().map(|(.., number)| number).collect()
    }
}

impl LentMemory {
    /// Lends `bytes` bytes at `ptr` to the device: through a mapping that has their pages already, or a new one.
    ///
    /// # Safety
    ///
    /// Until the result and its [parts](Self::part) have dropped: the memory stays mapped, readable and writable, on the very pages it
    /// is on (the whole pages around it are mapped for the device; nothing else is mapped in their place, and they are not
    /// discarded, as `MADV_DONTNEED` does), and is accessed by nobody through a Rust reference while the device
    /// may write it, that is while a memory region covers it and work that names it is outstanding.
    ///
    /// # Errors
    /// [`DmaError::Request`]: null, or no bytes. [`DmaError::Iova`], [`DmaError::Memory`], [`DmaError::Function`]: no room in the
    /// I/O address space, or the function refused the mapping ([`Function::dma_mappings_left`]).
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
        let (mapped, number) = match shared {
            Some(shared) => shared,
            None => {
                let spanning = spanning_power(pages.start, mapped_bytes);
                // SAFETY: `head` bytes down is the start of the page `ptr` is in, which is mapped as `ptr` is.
                let base = unsafe { ptr.sub(head) };
                // SAFETY: pages are mapped as a whole, so these are, for as long as the caller promised. The mapping may outlive that
                // promise by other leases of pages in it; nobody accesses the rest through this memory but a device that is told of
                // no address there, or a model of one, whose keys are bounded likewise. For a process that asks (vfio-user)
                // nothing is accessed but what is lent at that moment (`SharedMemory::open`).
                let memory = unsafe { SharedMemory::foreign(base, mapped_bytes) };
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

    /// The `bytes` bytes from `offset` on, through the same mapping. All of it stays lent until its last part has dropped.
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

    /// Its owner has been told that it is his alone again, although somebody still keeps it: it stays mapped as long as it is kept, but
    /// what is lent there from now on does not count on this mapping, since another page may be at the address by then. Of all its
    /// parts and clones.
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
