//! Tests of lent memory with the device double.

// UNSAFETY: the tests lend memory of their own.

use super::*;
use crate::double::Double;
use std::collections::BTreeMap;

#[test]
fn the_device_reaches_lent_memory_until_it_is_dropped() {
    let device = Double::new();
    let function = device.function();
    let mut own = vec![0_u8; 10_000];
    let pointer = own.as_mut_ptr().wrapping_add(13);
    // SAFETY: `own` outlives `lent`, and is not accessed before `lent` was dropped.
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
    // SAFETY: `own` outlives `lent`; it is not written.
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
        // SAFETY: the memory is refused before anything is mapped.
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
    // SAFETY: `own` outlives `lent`; it is not written.
    let lent = unsafe { LentMemory::new(&function, own.as_mut_ptr(), own.len()) }.unwrap();
    let memory = lent.lease.mapped.memory();
    let spanning = spanning_power(memory.address(), memory.len()) as u64;
    assert!(spanning >= 4 << 20);
    assert_eq!(lent.iova().0 % spanning, lent.address() % spanning);
}

/// A heap of whole pages, which are never touched.
struct Heap(SharedMemory);

impl Heap {
    fn of_pages(pages: usize) -> Self {
        Self(SharedMemory::of_this_process(pages * DMA_PAGE).unwrap())
    }

    /// Lends pages of the heap.
    fn lend(&self, function: &Function, pages: Range<usize>) -> Result<Arc<LentMemory>, DmaError> {
        let (at, bytes) = (pages.start * DMA_PAGE, pages.len() * DMA_PAGE);
        // SAFETY: the heap outlives its lent parts, and is never accessed.
        unsafe { LentMemory::new(function, self.0.pointer(at, bytes).as_ptr(), bytes) }
    }
}

/// A heap that is lent takes one mapping, so its regions do not count against the limit of 65,535 (`DMA_ENTRY_LIMIT`
/// of Linux `drivers/vfio/vfio_iommu_type1.c`).
#[test]
fn a_heap_that_is_lent_takes_one_mapping_however_many_regions_are_lent_of_it() {
    const REGIONS: usize = 70_000;
    let device = Double::new();
    let function = device.function();
    let heap = Heap::of_pages(REGIONS);
    let whole = heap.lend(&function, 0..REGIONS).unwrap();
    let regions: Vec<_> = (0..REGIONS)
        .map(|page| heap.lend(&function, page..page + 1).unwrap())
        .collect();
    assert_eq!(device.mappings(), [(whole.iova().0, REGIONS * DMA_PAGE)]);
    assert_eq!(function.dma_mappings_left(), Some(65_534));
    for (page, region) in regions.iter().enumerate().step_by(997) {
        assert_eq!(region.iova(), whole.iova().advance(page * DMA_PAGE));
        assert_eq!(region.address(), whole.address() + (page * DMA_PAGE) as u64);
    }
    let parts: Vec<_> = (0..REGIONS)
        .map(|page| whole.part(page * DMA_PAGE, 100).unwrap())
        .collect();
    drop((whole, regions));
    assert_eq!(device.mappings().len(), 1, "its parts keep all of it lent");
    drop(parts);
    assert_eq!(device.mappings(), []);
}

/// With 65,535 mappings in use, one more is refused until another one is removed. The test lends every second page, so
/// that no two are adjacent.
#[test]
fn one_mapping_more_than_can_be_had_is_refused_and_room_is_made_by_giving_back() {
    let device = Double::new();
    let function = device.function();
    let heap = Heap::of_pages(2 * 65_536);
    let mut lent: Vec<_> = (0..65_535)
        .map(|number| heap.lend(&function, 2 * number..2 * number + 1).unwrap())
        .collect();
    assert_eq!(function.dma_mappings_left(), Some(0));
    let refused = heap.lend(&function, 131_070..131_071).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("65535") && text.contains("dma_entry_limit"),
        "{text}"
    );
    assert_eq!(device.mappings().len(), 65_535);
    lent.swap_remove(7);
    lent.push(heap.lend(&function, 131_070..131_071).unwrap());
    drop(lent);
    assert_eq!(
        (device.mappings().len(), function.dma_mappings_left()),
        (0, Some(65_535))
    );
}

#[test]
fn a_mapping_stays_until_the_last_that_is_lent_through_it_is_given_back() {
    let device = Double::new();
    let function = device.function();
    let heap = Heap::of_pages(8);
    let whole = heap.lend(&function, 0..8).unwrap();
    let small = heap.lend(&function, 3..5).unwrap();
    let again = heap.lend(&function, 0..8).unwrap();
    assert_eq!(again.iova(), whole.iova());
    drop((whole, again));
    assert_eq!(device.mappings().len(), 1);
    let (memory, at) = device.reach(small.iova().0);
    assert_eq!(memory.address() + at, heap.0.address() + 3 * DMA_PAGE);
    drop(small);
    assert_eq!(device.mappings(), []);
}

/// A page that was given back and is lent again gets a new mapping, because another page may be at its address by
/// then.
#[test]
fn a_page_that_was_given_back_is_mapped_anew_though_a_mapping_still_has_it() {
    let device = Double::new();
    let function = device.function();
    let heap = Heap::of_pages(8);
    let whole = heap.lend(&function, 0..8).unwrap();
    let small = heap.lend(&function, 3..5).unwrap();
    let first = whole.iova();
    drop(whole);
    for (pages, shares) in [
        (3..4, true),
        (3..5, true),
        (2..3, false),
        (4..6, false),
        (0..8, false),
    ] {
        let later = heap.lend(&function, pages.clone()).unwrap();
        let same = later.iova() == first.advance(pages.start * DMA_PAGE);
        assert_eq!(same, shares, "{pages:?}");
        assert_eq!(
            device.mappings().len(),
            if shares { 1 } else { 2 },
            "{pages:?}"
        );
    }
    drop(small);
    assert_eq!(device.mappings(), []);
}

#[test]
fn memory_lent_to_two_functions_of_a_space_takes_one_mapping() {
    let devices = [Double::new(), Double::new()];
    let first = devices[0].function();
    let second = Arc::new(devices[1].clone());
    let second = Function::in_process_in(second, &first.dma_space()).unwrap();
    let mut own = vec![0_u8; 8192];
    let [one, other] = [&first, &second].map(|function| {
        // SAFETY: `own` outlives its lent parts; it is not accessed.
        unsafe { LentMemory::new(function, own.as_mut_ptr(), own.len()) }.unwrap()
    });
    assert_eq!(one.iova(), other.iova());
    assert_eq!(devices[1].mappings().len(), 1);
    drop(one);
    assert_eq!(devices[0].mappings().len(), 1, "lent once more");
    drop(other);
    assert_eq!(devices.map(|device| device.mappings()), [vec![], vec![]]);
}

/// A region may exist until its device has answered. Withdrawn memory stays mapped for that time, but memory lent at
/// the same addresses later does not use that mapping.
#[test]
fn withdrawn_memory_stays_mapped_and_is_not_shared() {
    let device = Double::new();
    let function = device.function();
    let heap = Heap::of_pages(8);
    let whole = heap.lend(&function, 0..8).unwrap();
    let kept = heap.lend(&function, 2..4).unwrap();
    kept.withdraw();
    kept.withdraw();
    let within = heap.lend(&function, 2..4).unwrap();
    assert_eq!(within.iova(), kept.iova(), "the whole is lent all the same");
    drop(within);
    whole.part(0, 1).unwrap().withdraw();
    assert_eq!(device.mappings().len(), 1);
    let later = heap.lend(&function, 2..4).unwrap();
    assert_ne!(later.iova(), kept.iova());
    assert_eq!(device.mappings().len(), 2);
    let (memory, at) = device.reach(kept.iova().0);
    assert_eq!(memory.address() + at, heap.0.address() + 2 * DMA_PAGE);
    drop((whole, kept));
    assert_eq!(device.mappings(), [(later.iova().0, 2 * DMA_PAGE)]);
    drop(later);
    assert_eq!(device.mappings(), []);
}

#[test]
fn a_part_is_inside_what_is_lent() {
    let function = Double::new().function();
    let heap = Heap::of_pages(2);
    let whole = heap.lend(&function, 0..2).unwrap();
    for (offset, bytes) in [(0, 0), (0, 8193), (8192, 1), (usize::MAX, 2)] {
        let refused = whole.part(offset, bytes);
        assert!(
            matches!(refused, Err(DmaError::Request { .. })),
            "{offset} {bytes}"
        );
    }
    let part = whole.part(100, 8092).unwrap();
    assert_eq!((part.address(), part.len()), (whole.address() + 100, 8092));
    assert_eq!(part.iova(), whole.iova().advance(100));
    assert_eq!(
        part.part(8091, 1).unwrap().iova(),
        whole.iova().advance(8191)
    );
}

/// Regions are lent one by one, and then the heap around them. Once the heap is given back, memory lent later uses the
/// mappings of the regions, as before.
#[test]
fn small_memory_is_shared_again_when_larger_memory_around_it_is_given_back() {
    let device = Double::new();
    let function = device.function();
    let heap = Heap::of_pages(16);
    let small = heap.lend(&function, 4..8).unwrap();
    let larger = heap.lend(&function, 2..10).unwrap();
    let whole = heap.lend(&function, 0..16).unwrap();
    assert_eq!(device.mappings().len(), 3);
    drop(larger);
    let again = heap.lend(&function, 4..8).unwrap();
    assert_ne!(again.iova(), small.iova(), "the whole has them");
    drop((again, whole));
    assert_eq!(device.mappings().len(), 1);
    let parts = [4..8, 4..5, 6..8];
    let shared = parts.map(|pages| heap.lend(&function, pages).unwrap());
    assert_eq!(shared[0].iova(), small.iova());
    assert_eq!(device.mappings().len(), 1);
    // Page 3, which only the larger mappings had, is not lent any more, so 3..5 gets a new mapping.
    let beside = heap.lend(&function, 3..5).unwrap();
    assert_eq!(device.mappings().len(), 2);
    drop((small, shared, beside));
    assert_eq!(device.mappings(), []);
}

/// Random leases use an existing mapping only for pages lent through it without interruption. The model records these
/// pages for each mapping.
#[test]
fn random_leases_share_only_pages_lent_without_interruption() {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    const PAGES: usize = 40;
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let device = Double::new();
        let function = device.function();
        let heap = Heap::of_pages(PAGES);
        let mut held: Vec<(Arc<LentMemory>, Range<usize>)> = Vec::new();
        // For each mapping, by its I/O address: its first page, and for each of its pages whether it has been lent
        // without interruption since the mapping was made.
        let mut trusted: BTreeMap<u64, (usize, Vec<bool>)> = BTreeMap::new();
        for _ in 0..400 {
            if random.random_bool(0.6) {
                let start = random.random_range(0..PAGES);
                let most = if random.random_bool(0.2) { PAGES } else { 6 };
                let end = (start + random.random_range(1..=most)).min(PAGES);
                let lent = heap.lend(&function, start..end).unwrap();
                let mappings = device.mappings();
                let (at, bytes) = mappings
                    .iter()
                    .rfind(|(at, _)| *at <= lent.iova().0)
                    .copied()
                    .unwrap();
                let known = trusted.get(&at);
                match known {
                    Some((first, pages)) => assert!(
                        pages[start - first..end - first].iter().all(|page| *page),
                        "seed {seed}: {start}..{end} through {at:#x}"
                    ),
                    None => {
                        trusted.insert(at, (start, vec![true; bytes / DMA_PAGE]));
                    }
                }
                held.push((lent, start..end));
            } else if !held.is_empty() {
                let (lent, pages) = held.swap_remove(random.random_range(0..held.len()));
                let mapping = lent.lease.mapped.iova().0;
                drop(lent);
                let through = |(other, _): &&(Arc<LentMemory>, Range<usize>)| {
                    other.lease.mapped.iova().0 == mapping
                };
                let (first, there) = trusted.get_mut(&mapping).unwrap();
                for page in pages {
                    if !held
                        .iter()
                        .filter(through)
                        .any(|(_, other)| other.contains(&page))
                    {
                        there[page - *first] = false;
                    }
                }
                if !held.iter().any(|other| through(&other)) {
                    trusted.remove(&mapping);
                }
            }
            let mapped: Vec<u64> = device.mappings().iter().map(|(at, _)| *at).collect();
            let known: Vec<u64> = trusted.keys().copied().collect();
            assert_eq!(mapped, known, "seed {seed}");
        }
        held.clear();
        assert_eq!(device.mappings(), []);
    }
}

/// Maps anonymous pages at an address of the kernel's choice, or at `at` in place of the pages there.
fn pages(at: Option<NonNull<u8>>, bytes: usize) -> NonNull<u8> {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
    let place = at.and_then(|at| std::num::NonZeroUsize::new(at.addr().get()));
    let fixed = at.map_or(MapFlags::empty(), |_| MapFlags::MAP_FIXED);
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let length = std::num::NonZeroUsize::new(bytes).unwrap();
    // SAFETY: `MAP_FIXED` replaces only the caller's own pages, to which it has no references.
    let base = unsafe { mmap_anonymous(place, length, access, fixed | MapFlags::MAP_PRIVATE) };
    base.unwrap().cast()
}

fn unmap(at: NonNull<u8>, bytes: usize) {
    // SAFETY: pages of the test's own, to which it has no references.
    unsafe { nix::sys::mman::munmap(at.cast(), bytes) }.unwrap();
}

fn byte(at: NonNull<u8>) -> u8 {
    // SAFETY: a byte of the test's own pages, which no device writes now.
    unsafe { at.read_volatile() }
}

const MAPPED_BYTES: usize = 0x4000;

/// Returns whether replaced pages are detected. Prints a message if this machine has no userfaultfd for such memory.
fn notices_replacements() -> bool {
    let probe = pages(None, MAPPED_BYTES).addr().get();
    let notices = Guard::new(probe..probe + MAPPED_BYTES).unwrap().notices();
    if !notices {
        println!("skipped: no userfaultfd here");
    }
    notices
}

/// Maps three pages and unmaps the second one. The kernel places mappings from the top of the address space down, so no
/// other thread maps anything into the hole.
fn pages_with_a_hole() -> NonNull<u8> {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
    let place = std::num::NonZeroUsize::new(0x10_0000_0000);
    let length = std::num::NonZeroUsize::new(3 * page_bytes()).unwrap();
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
    // SAFETY: the flags replace no pages.
    let base = unsafe {
        mmap_anonymous(
            place,
            length,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            flags,
        )
    };
    let first: NonNull<u8> = base.unwrap().cast();
    // SAFETY: the second page of the mapping.
    unmap(unsafe { first.add(page_bytes()) }, page_bytes());
    first
}

#[test]
fn memory_whose_second_page_is_unmapped_cannot_be_lent_and_leaves_no_mapping() {
    let device = Double::new();
    let function = device.function();
    let page = page_bytes();
    let first = pages_with_a_hole();
    for (offset, bytes) in [
        (0, page + 1),
        (0, 3 * page),
        (page - 1, 2),
        (page + 1, page),
    ] {
        let start = first.as_ptr().wrapping_add(offset);
        // SAFETY: refused memory is not accessed.
        let refused = unsafe { LentMemory::new(&function, start, bytes) }.expect_err("a hole");
        assert!(
            matches!(refused, DmaError::NotMapped { .. }) && refused.to_string().contains("EFAULT"),
            "{refused}"
        );
        assert_eq!(device.mappings(), [], "{offset:#x}+{bytes:#x}");
    }
    // SAFETY: the page stays mapped until `lent` was dropped.
    let lent = unsafe { LentMemory::new(&function, first.as_ptr(), page) }.expect("it is there");
    assert_eq!(device.mappings().len(), 1);
    drop(lent);
    unmap(first, 3 * page);
}

#[test]
fn memory_that_is_not_there_cannot_be_lent() {
    let device = Double::new();
    let function = device.function();
    // No thread of this process maps memory below `vm.mmap_min_addr`.
    let nowhere = std::ptr::without_provenance_mut(0x1000);
    // SAFETY: refused memory is not accessed.
    let refused = unsafe { LentMemory::new(&function, nowhere, 0x1000) };
    let refused = refused.expect_err("nothing is there");
    assert!(refused.to_string().contains("EFAULT"), "{refused}");
    assert_eq!(device.mappings(), []);
}

#[test]
fn an_access_of_memory_that_was_unmapped_is_an_error_with_its_address() {
    let device = Double::new();
    let function = device.function();
    let base = pages(None, MAPPED_BYTES);
    // SAFETY: the test breaks the promise that the memory stays mapped, on purpose. Another thread could map memory
    // there only by chance. Where userfaultfd works, the access is refused then, too.
    let lent = unsafe { LentMemory::new(&function, base.as_ptr(), MAPPED_BYTES) }.unwrap();
    let (memory, at) = device.reach(lent.iova().0);
    memory.try_write_bytes(at, &[5; 100]).unwrap();
    unmap(base, MAPPED_BYTES);
    let read = memory.try_read_bytes(at, &mut [0; 100]).unwrap_err();
    let written = memory.try_write_bytes(at, &[6; 100]).unwrap_err();
    for error in [read, written] {
        let words = error.to_string();
        assert!(words.contains(&format!("{:#x}", lent.address())), "{words}");
    }
}

#[test]
fn other_pages_in_the_place_of_lent_ones_are_never_reached() {
    if !notices_replacements() {
        return;
    }
    let device = Double::new();
    let function = device.function();
    let base = pages(None, MAPPED_BYTES);
    // SAFETY: this test breaks, on purpose, the promise that no other pages are mapped there.
    let lent = unsafe { LentMemory::new(&function, base.as_ptr(), MAPPED_BYTES) }.unwrap();
    let (memory, at) = device.reach(lent.iova().0);
    memory.try_write_bytes(at, &[5; 100]).unwrap();
    pages(Some(base), MAPPED_BYTES);
    assert!(memory.try_read_bytes(at, &mut [0; 100]).is_err());
    assert!(memory.try_write_bytes(at, &[6; 100]).is_err());
    assert_eq!(byte(base), 0, "the new page");
    // After the pages are lent again, the new pages are reached, and still not through the old memory.
    // SAFETY: the pages stay mapped until `again` drops.
    let again = unsafe { LentMemory::new(&function, base.as_ptr(), MAPPED_BYTES) }.unwrap();
    let (new, new_at) = device.reach(again.iova().0);
    new.try_write_bytes(new_at, &[7; 100]).unwrap();
    assert_eq!(byte(base), 7);
    assert!(memory.try_read_bytes(at, &mut [0; 100]).is_err());
    drop(again);
    assert!(memory.try_read_bytes(at, &mut [0; 100]).is_err());
}

/// A part that is still lent stays mapped when another part of the mapping was given back. The owner may replace the
/// pages of the other part, and lend them again.
#[test]
fn a_part_that_is_still_lent_stays_when_another_part_was_given_back_and_replaced() {
    if !notices_replacements() {
        return;
    }
    let device = Double::new();
    let function = device.function();
    let base = pages(None, MAPPED_BYTES);
    // SAFETY: given back before the pages after the first one are replaced.
    let whole = unsafe { LentMemory::new(&function, base.as_ptr(), MAPPED_BYTES) }.unwrap();
    // SAFETY: the first page stays.
    let first = unsafe { LentMemory::new(&function, base.as_ptr(), 0x1000) }.unwrap();
    drop(whole);
    // SAFETY: of the test's own pages.
    let behind = unsafe { base.add(0x2000) };
    pages(Some(behind), 0x2000);
    // SAFETY: the pages stay mapped until `again` drops.
    let again = unsafe { LentMemory::new(&function, behind.as_ptr(), 0x2000) }.unwrap();
    let (memory, at) = device.reach(first.iova().0);
    memory.try_write_bytes(at, &[5; 100]).unwrap();
    assert_eq!(byte(base), 5);
    drop(again);
    memory.try_write_bytes(at, &[6; 100]).unwrap();
    assert_eq!(byte(base), 6);
}
