//! Tests of program memory that is lent to a function of another process. The other process accesses the memory by
//! messages.

// UNSAFETY: the tests lend memory of this program.
#![expect(unsafe_code, reason = "memory of the tests' own is lent")]

use std::sync::Arc;

use udapl::memory::{LentMemory, LmrCreated, LmrTriplet, RmrTriplet};
use udapl::{CloseFlags, DmaMemory, DtoCookie, DtoStatus, Event, MemPrivFlags, adapter};

use crate::served::{NONE, Served, Side, connected, pattern};

/// Length of the lent memory in bytes: several messages long, and no multiple of a page.
const BYTES: usize = 200_001;

/// Registered memory that comes from the allocator and is never freed.
struct Heap {
    at: *mut u8,
    lmr: LmrCreated,
}

impl Heap {
    fn new(side: &mut Side, rights: MemPrivFlags) -> Self {
        // The memory does not begin on a page boundary.
        let at = vec![0; BYTES + 13].leak().as_mut_ptr().wrapping_add(13);
        let function = adapter::function(&side.ia);
        // SAFETY: the memory is never freed, and all accesses are volatile copies.
        let lent: Arc<LentMemory> =
            unsafe { LentMemory::new(function, at, BYTES) }.expect("memory that is asked for");
        let memory = DmaMemory::Lent(lent);
        let lmr = side.ia.lmr_create(memory, side.pz, rights).expect("an LMR");
        Self { at, lmr }
    }

    fn put(&self, bytes: &[u8]) {
        for (index, &byte) in bytes.iter().enumerate() {
            // SAFETY: the index is inside the heap.
            unsafe { self.at.wrapping_add(index).write_volatile(byte) };
        }
    }

    fn get(&self) -> Vec<u8> {
        // SAFETY: the index is inside the heap; a device that writes meanwhile writes whole bytes.
        let byte = |index| unsafe { self.at.wrapping_add(index).read_volatile() };
        (0..BYTES).map(byte).collect()
    }

    fn local(&self) -> LmrTriplet {
        LmrTriplet {
            lmr_context: self.lmr.lmr_context,
            virtual_address: self.lmr.registered_address,
            segment_length: BYTES as u64,
        }
    }

    fn remote(&self) -> RmrTriplet {
        RmrTriplet {
            rmr_context: self.lmr.rmr_context,
            target_address: self.lmr.registered_address,
            segment_length: BYTES as u64,
        }
    }
}

/// RDMA Writes and Reads reach lent memory although its program makes no call after the registration. Sends and
/// receives reach lent memory too.
#[test]
fn lent_memory_is_reached_both_ways_by_all_four_kinds_of_dto_while_its_program_does_nothing() {
    let served = Served::new(&[]);
    let [mut a, mut b] = connected(&served);
    let (here, there) = (
        Heap::new(&mut a, MemPrivFlags::all()),
        Heap::new(&mut b, MemPrivFlags::all()),
    );
    here.put(&pattern(1, BYTES));
    a.ia.ep_post_rdma_write(a.ep, &[here.local()], DtoCookie(1), &there.remote(), NONE)
        .expect("a write");
    a.completes(1);
    assert!(there.get() == pattern(1, BYTES));

    there.put(&pattern(2, BYTES));
    a.ia.ep_post_rdma_read(a.ep, &[here.local()], DtoCookie(2), &there.remote(), NONE)
        .expect("a read");
    a.completes(2);
    assert!(here.get() == pattern(2, BYTES));

    here.put(&pattern(3, BYTES));
    b.ia.ep_post_recv(b.ep, &[there.local()], DtoCookie(3), NONE)
        .expect("a receive");
    a.ia.ep_post_send(a.ep, &[here.local()], DtoCookie(4), NONE)
        .expect("a send");
    a.completes(4);
    b.completes(3);
    assert!(there.get() == pattern(3, BYTES));
    a.close();
    b.close();
}

/// A peer cannot access lent memory after its LMR was freed (IBTA, "R_Key": there is no access without the key). The
/// pages that contain the memory stay mapped while other memory in them is lent.
#[test]
fn lent_memory_that_was_given_back_is_reached_by_nobody() {
    let served = Served::new(&[]);
    let [mut a, mut b] = connected(&served);
    let (here, there) = (
        Heap::new(&mut a, MemPrivFlags::all()),
        Heap::new(&mut b, MemPrivFlags::all()),
    );
    here.put(&pattern(1, BYTES));
    b.ia.lmr_free(there.lmr.lmr).expect("freed");
    a.ia.ep_post_rdma_write(a.ep, &[here.local()], DtoCookie(1), &there.remote(), NONE)
        .expect("a write");
    let event = a.event();
    let Event::Dto(done) = event else {
        panic!("a completion, not {event:?}");
    };
    assert_eq!(done.status, DtoStatus::ErrRemoteAccess);
    assert!(there.get() == vec![0; BYTES]);
    a.close();
    b.close();
}

#[test]
fn lent_memory_of_a_server_that_is_killed_is_given_back() {
    let mut served = Served::new(&[]);
    let [mut a, _b] = connected(&served);
    let heap = Heap::new(&mut a, MemPrivFlags::all());
    served.server.kill();
    // The device is dead, but the memory is returned to the program all the same.
    let _answer = a.ia.lmr_free(heap.lmr.lmr);
    let report = udapl::ia_close(a.ia, CloseFlags::Abrupt).expect("the adapter is gone");
    assert!(report.dead.is_some(), "{report:?}");
}
