//! Memory the caller owns, lent to a device.
//!
//! Most DMA memory comes from the arena, where the device's writes hurt nobody. A caller that has its own memory may
//! lend it: the device then writes behind Rust's back, which is why lending is unsafe.
//!
//! The memory is mapped as the whole pages around it, at an I/O address congruent to its virtual address, so
//! that a memory region with virtual addressing needs one translation entry when the page size allows. It is unmapped
//! on drop; whoever lent it must have stopped the device's use of it by then.

// UNSAFETY: wraps a caller's pointer as shared memory.
#![expect(unsafe_code, reason = "foreign memory")]

use std::ptr::NonNull;
use std::sync::Arc;

use crate::dma::{GIB, Iova, Mapped};
use crate::error::DmaError;
use crate::function::{DMA_PAGE, Function};
use crate::mapping::page_bytes;
use crate::memory::SharedMemory;

/// Memory of the caller's that the device may read and write.
#[derive(Debug)]
pub struct LentMemory {
    /// The whole pages around the memory.
    mapped: Mapped,
    /// Where in `mapped` the memory starts.
    head: usize,
    bytes: usize,
}

impl LentMemory {
    /// Lends `bytes` bytes at `ptr` to the device.
    ///
    /// # Safety
    ///
    /// Until the result has dropped: the memory stays mapped, readable and writable (the whole pages around it are
    /// mapped for the device), and is accessed by nobody through a Rust reference while the device
    /// may write it, that is while a memory region covers it and work that names it is outstanding.
    ///
    /// # Errors
    /// [`DmaError::Request`]: null, or no bytes. [`DmaError::Iova`], [`DmaError::Memory`], [`DmaError::Function`]: no room in the
    /// I/O address space, or the function refused the mapping.
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
        let spanning = spanning_power(address - head, mapped_bytes);
        // SAFETY: `head` bytes down is the start of the page `ptr` is in, which is mapped as `ptr` is.
        let base = unsafe { ptr.sub(head) };
        // SAFETY: pages are mapped as a whole, so these are, for as long as the caller promised, which is as long as
        // the result lives; the clone the device holds is taken back by `dma_unmap` on drop.
        let memory = unsafe { SharedMemory::foreign(base, mapped_bytes) };
        let iova =
            function.alloc_iova(mapped_bytes, spanning, (address - head) & (spanning - 1))?;
        let mapped = Mapped::new(function, memory, iova)?;
        Ok(Arc::new(Self {
            mapped,
            head,
            bytes,
        }))
    }

    /// The function it is lent to.
    #[must_use]
    pub const fn function(&self) -> &Function {
        self.mapped.function()
    }

    /// I/O address of the first byte.
    #[must_use]
    pub fn iova(&self) -> Iova {
        self.mapped.iova().advance(self.head)
    }

    /// Virtual address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        // CAST: usize has at most 64 bits on every target Rust has.
        (self.mapped.memory().address() + self.head) as u64
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
mod tests {
    use super::*;
    use crate::double::Double;

    #[test]
    fn the_device_reaches_lent_memory_until_it_is_dropped() {
        let device = Double::new();
        let function = device.function();
        let mut own = vec![0_u8; 10_000];
        let pointer = own.as_mut_ptr().wrapping_add(13);
        // SAFETY: `own` outlives `lent`, and is not looked at before it was dropped.
        let lent = unsafe { LentMemory::new(&function, pointer, 9000) }.unwrap();
        assert_eq!(lent.len(), 9000);
        assert_eq!(lent.address(), pointer.addr() as u64);
        assert_eq!(lent.iova().0 % 4096, lent.address() % 4096);
        let (memory, at) = device.reach(lent.iova().0 + 8999);
        memory.store_u8(at, 0x77);
        assert!(memory.as_fd().is_none());
        drop(memory);
        drop(lent);
        assert_eq!(device.mappings(), vec![]);
        assert_eq!(own[13 + 8999], 0x77);
        assert_eq!(own.iter().filter(|&&byte| byte != 0).count(), 1);
    }

    #[test]
    fn only_bytes_of_shared_mappings_count_as_shared() {
        let maps = "7f0000000000-7f0000002000 rw-s 00000000 00:01 5   /memfd:x (deleted)\n\
                    7f0000002000-7f0000003000 rw-p 00000000 00:00 0\n\
                    7f0000003000-7f0000004000 r--s 00000000 00:01 6\n\
                    nonsense\n";
        let base = 0x7f00_0000_0000;
        for (from, to, shared) in [
            (0, 0x2000, 0x2000),
            (0x10, 0x20, 0x10),
            (0x1ff0, 0x2010, 0x10),
            (0x2000, 0x3000, 0),
            (0x1000, 0x4000, 0x2000),
            (0x5000, 0x6000, 0),
        ] {
            assert_eq!(
                shared_bytes(maps, base + from, base + to),
                shared,
                "{from:#x}..{to:#x}"
            );
        }
    }

    #[test]
    fn private_memory_is_lent_as_private() {
        let function = Double::new().function();
        let mut own = vec![0_u8; 10_000];
        // SAFETY: `own` outlives `lent`; nobody writes.
        let lent = unsafe { LentMemory::new(&function, own.as_mut_ptr(), own.len()) }.unwrap();
        assert!(!lent.is_shared());
    }

    #[test]
    fn nothing_cannot_be_lent() {
        let function = Double::new().function();
        let mut byte = 0_u8;
        for (pointer, bytes) in [
            (std::ptr::null_mut(), 1),
            (&raw mut byte, 0),
            (&raw mut byte, usize::MAX),
            (std::ptr::without_provenance_mut(usize::MAX - 5), 5),
        ] {
            // SAFETY: refused before anything is mapped.
            let refused = unsafe { LentMemory::new(&function, pointer, bytes) };
            assert!(
                matches!(refused, Err(DmaError::Request { .. })),
                "{pointer:?} {bytes:#x}: {refused:?}"
            );
        }
    }

    #[test]
    fn the_spanning_power_is_the_smallest_page_that_holds_the_range() {
        for (start, bytes, power) in [
            (0x1000, 0x1000, 0x1000),
            (0x1000, 0x2000, 0x4000),
            (0x2000, 0x2000, 0x2000),
            (0x7000, 0x2000, 0x1_0000),
            (GIB - 0x1000, 0x1000, 0x1000),
            (GIB - 0x1000, 0x2000, GIB),
            (0, GIB, GIB),
            (0, 4 * GIB, GIB),
        ] {
            assert_eq!(
                spanning_power(start, bytes),
                power,
                "{bytes:#x} at {start:#x}"
            );
        }
    }

    #[test]
    fn lent_memory_and_its_mapping_lie_the_same_in_the_page_that_spans_them() {
        let function = Double::new().function();
        let mut own = vec![0_u8; 3 << 20];
        // SAFETY: `own` outlives `lent`; nobody writes.
        let lent = unsafe { LentMemory::new(&function, own.as_mut_ptr(), own.len()) }.unwrap();
        let spanning =
            spanning_power(lent.mapped.memory().address(), lent.mapped.memory().len()) as u64;
        assert!(spanning >= 4 << 20);
        assert_eq!(lent.iova().0 % spanning, lent.address() % spanning);
    }
}
