//! Memory of the program, lent as a whole and in pieces.

// UNSAFETY: lends memory of the tests to the device.
#![expect(unsafe_code, reason = "memory of the tests' own is lent")]

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use udapl::error::{ReturnType, Subtype};
use udapl::memory::{LentMemory, LmrCreated, LmrTriplet, RmrTriplet};
use udapl::{CompletionFlags, DmaMemory, DtoCookie, DtoStatus, MemPrivFlags, adapter};

use crate::support::windows::BOTH_WAYS;
use crate::support::{A, B, Buffer, NONE, Pair, pattern, refused};

const PIECE: usize = 4096;
const PIECES: usize = 16;

/// Page-aligned memory of this test, used like a program's heap. The memory of `new` is never freed.
#[derive(Clone, Copy)]
struct Heap(*mut u8);

impl Heap {
    fn new() -> Self {
        let bytes = vec![0; (PIECES + 1) * PIECE].leak().as_mut_ptr();
        Self(bytes.wrapping_add(bytes.align_offset(PIECE)))
    }

    /// Maps one new page, at a new address or in place of the page at `at`.
    fn mapped(at: Option<Self>) -> Self {
        let place = at.and_then(|at| NonZeroUsize::new(at.0.addr()));
        let fixed = place.map_or(MapFlags::empty(), |_| MapFlags::MAP_FIXED);
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let bytes = NonZeroUsize::new(PIECE).expect("some");
        // SAFETY: a fixed address is that of the test's own pages, which are accessed by copies only.
        let made = unsafe { mmap_anonymous(place, bytes, access, MapFlags::MAP_PRIVATE | fixed) };
        Self(made.expect("a mapping").as_ptr().cast())
    }

    fn unmap(self) {
        let base = NonNull::new(self.0.cast()).expect("an address");
        // SAFETY: these are the test's own pages, and they are not accessed any more.
        unsafe { munmap(base, PIECE) }.expect("unmapped");
    }

    fn lend(self, pair: &Pair, offset: usize, bytes: usize) -> Arc<LentMemory> {
        let function = adapter::function(&pair.sides[B].ia);
        let at = self.0.wrapping_add(offset);
        // SAFETY: the heap is accessed by copies only, and never freed, except where a test breaks this contract on
        // purpose.
        let lent = unsafe { LentMemory::new(function, at, bytes) };
        lent.expect("a mapping")
    }

    fn read(self, offset: usize, bytes: usize) -> Vec<u8> {
        (offset..offset + bytes)
            // SAFETY: the address is inside the heap; a device that writes at the same time writes whole bytes.
            .map(|at| unsafe { self.0.wrapping_add(at).read_volatile() })
            .collect()
    }
}

impl Pair {
    fn register(&mut self, memory: Arc<LentMemory>, rights: MemPrivFlags) -> LmrCreated {
        let side = &mut self.sides[B];
        let made = side.ia.lmr_create(DmaMemory::Lent(memory), side.pz, rights);
        made.expect("an LMR")
    }

    fn write_to(&mut self, lmr: LmrCreated, offset: usize, source: &Buffer) -> DtoStatus {
        let there = RmrTriplet {
            rmr_context: lmr.rmr_context,
            target_address: lmr.registered_address + offset as u64,
            segment_length: PIECE as u64,
        };
        let side = &mut self.sides[A];
        side.ia
            .ep_post_rdma_write(side.ep, &[source.all()], DtoCookie(1), &there, NONE)
            .expect("a write");
        self.wait_request(A).status
    }

    fn mappings_left(&self) -> u32 {
        let function = adapter::function(&self.sides[B].ia);
        function.dma_mappings_left().expect("somebody counts")
    }
}

/// If memory is lent as a whole, a registration of a piece of it needs no further DMA mapping. (`dma_entry_limit` of
/// Linux `vfio_iommu_type1` allows 65,535 mappings.) The key of a piece covers only that piece (PRM, "Memory Key
/// Context").
#[test]
fn pieces_of_a_heap_take_no_mapping_of_their_own_and_their_keys_reach_no_further() {
    let mut pair = Pair::connected();
    let source = pair.buffer(A, PIECE);
    source.write(0, &pattern(7, PIECE));
    let (heap, before) = (Heap::new(), pair.mappings_left());
    let whole = heap.lend(&pair, 0, PIECES * PIECE);
    let whole = pair.register(whole, MemPrivFlags::LOCAL_READ);
    let pieces: Vec<LmrCreated> = (0..PIECES)
        .map(|piece| {
            let lent = heap.lend(&pair, piece * PIECE, PIECE);
            pair.register(lent, MemPrivFlags::all())
        })
        .collect();
    assert_eq!(pair.mappings_left(), before - 1);

    assert_eq!(pair.write_to(pieces[3], 0, &source), DtoStatus::Success);
    assert_eq!(heap.read(3 * PIECE, PIECE), pattern(7, PIECE));
    assert_eq!(heap.read(0, 3 * PIECE), vec![0; 3 * PIECE]);
    assert_eq!(heap.read(4 * PIECE, PIECE), vec![0; PIECE]);

    // The free of the whole memory's LMR does not free the LMRs of the pieces. The mapping exists until the last of
    // them is freed.
    pair.sides[B].ia.lmr_free(whole.lmr).expect("freed");
    assert_eq!(pair.mappings_left(), before - 1);
    assert_eq!(pair.write_to(pieces[5], 0, &source), DtoStatus::Success);
    assert_eq!(heap.read(5 * PIECE, PIECE), pattern(7, PIECE));
    assert_eq!(
        pair.write_to(pieces[5], 1, &source),
        DtoStatus::ErrRemoteAccess,
        "the next byte is mapped, too"
    );
    assert_eq!(heap.read(6 * PIECE, PIECE), vec![0; PIECE]);
    for piece in pieces {
        pair.sides[B].ia.lmr_free(piece.lmr).expect("freed");
    }
    assert_eq!(pair.mappings_left(), before);
}

/// An LMR that an outstanding bind names cannot be freed, even if the bind's RMR is freed and the bind will therefore
/// fail. The device may still execute the bind, so the LMR's key must exist. A key that exists gives every peer that
/// knows the key access to the memory.
#[test]
fn memory_that_a_bind_on_its_way_still_names_is_not_given_back() {
    let mut pair = Pair::binding();
    let (near, far) = (pair.buffer(B, 64), pair.buffer(A, 64).all_remote());
    let (heap, rmr) = (Heap::new(), pair.rmr(B));
    let before = pair.mappings_left();
    let lent = heap.lend(&pair, 0, PIECE);
    let region = pair.register(lent, MemPrivFlags::all());
    let all = LmrTriplet {
        lmr_context: region.lmr_context,
        virtual_address: region.registered_address,
        segment_length: region.registered_size,
    };
    // The bind waits for the RDMA Read before it, which the delay of the link makes slow.
    pair.set_delay(500);
    pair.post_read(B, &[near.all()], 1, &far, NONE)
        .expect("there is room");
    let fence = CompletionFlags::BARRIER_FENCE;
    pair.post_bind(B, rmr, &all, BOTH_WAYS, 2, fence)
        .expect("there is room");
    let ia = &mut pair.sides[B].ia;
    ia.rmr_free(rmr).expect("freed");
    let refusal = refused(ia.lmr_free(region.lmr), ReturnType::InvalidState);
    assert_eq!(refusal.subtype(), Subtype::StateLmrInUse);
    assert_eq!(pair.mappings_left(), before - 1);
    pair.set_delay(0);
    for _ in 0..2 {
        pair.wait_event(B, pair.sides[B].request);
    }
    // The bind has failed, because the device does not have the window any more.
    pair.sides[B]
        .ia
        .lmr_free(region.lmr)
        .expect("nobody names it");
    assert_eq!(pair.mappings_left(), before);
    pair.assert_no_complaints();
}

fn has_userfaultfd() -> bool {
    const USER_MODE_ONLY: libc::c_int = 1;
    // SAFETY: the call takes flags and returns a descriptor.
    let made = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
    // The test needs only one descriptor, and leaves it open.
    made >= 0
}

/// If a program breaks its contract and unmaps memory of a region, the peer gets an access error, the program
/// continues, and new pages at the address stay unchanged.
#[test]
fn memory_that_was_unmapped_or_replaced_under_its_region_is_an_access_error() {
    for is_replaced in [false, true] {
        if is_replaced && !has_userfaultfd() {
            println!("skipped: no userfaultfd here, so that nobody sees a replacement");
            continue;
        }
        let mut pair = Pair::connected();
        let source = pair.buffer(A, PIECE);
        source.write(0, &pattern(7, PIECE));
        let heap = Heap::mapped(None);
        let lent = heap.lend(&pair, 0, PIECE);
        let region = pair.register(lent, MemPrivFlags::all());
        assert_eq!(pair.write_to(region, 0, &source), DtoStatus::Success);
        assert_eq!(heap.read(0, PIECE), pattern(7, PIECE));
        if is_replaced {
            Heap::mapped(Some(heap));
        } else {
            heap.unmap();
        }
        let status = pair.write_to(region, 0, &source);
        if is_replaced {
            assert_eq!(heap.read(0, PIECE), vec![0; PIECE]);
            heap.unmap();
        }
        assert_eq!(status, DtoStatus::ErrRemoteAccess, "{is_replaced}");
        pair.sides[B].ia.lmr_free(region.lmr).expect("freed");
    }
}
