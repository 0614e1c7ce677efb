//! The disk operations of a storage daemon for each block (submit, wait, take the completion) allocate nothing.

use driver::{DmaArena, DmaBuffer, File, FileOperation, Function, Instant, Interrupt, Reactor};
use hw_sim::{Profile, Sim, SimConfig};

use super::allocations;

const BLOCK: usize = 4096;
const DEPTH: usize = 32;

/// Queues a write, a read and a sync for each of `DEPTH` blocks.
fn submit(reactor: &mut Reactor, file: &File, buffer: &DmaBuffer) {
    for at in (0..DEPTH).map(|block| block * BLOCK) {
        let write = FileOperation::Write {
            offset: at as u64,
            buffer,
            buffer_offset: at,
            bytes: BLOCK,
            through: false,
        };
        let read = FileOperation::Read {
            offset: at as u64,
            buffer,
            buffer_offset: at,
            bytes: BLOCK,
        };
        for operation in [write, read, FileOperation::Sync] {
            reactor.submit(file, operation, 7).expect("submitted");
        }
    }
}

/// Waits until all operations have completed, with waits that also watch a descriptor. Checks the completions.
fn finish(reactor: &mut Reactor, interrupt: &Interrupt) {
    while reactor.outstanding() > 0 {
        reactor
            .wait_for(&[interrupt.as_fd()], Instant(u64::MAX))
            .expect("waited");
        reactor.wait_for(&[], Instant(0)).expect("looked");
        while let Some(ended) = reactor.take_completion() {
            assert!(ended.result.is_ok() && ended.tag == 7, "{ended:?}");
        }
    }
}

#[test]
fn operations_on_disks_waits_for_them_and_their_completions_allocate_nothing() {
    let sim = Sim::new(SimConfig {
        seed: 1,
        event_log: false,
    });
    let model = sim.add_function(Profile::named("sim:disk", [2, 0, 0, 0, 0, 9]));
    let function = Function::in_process(model).expect("the function opens");
    let arena = DmaArena::new(&function).expect("an arena");
    let buffer = arena.alloc(DEPTH * BLOCK, BLOCK).expect("memory");
    let file = File::from_std(tempfile::tempfile().expect("a file"), "a file");
    let interrupt = Interrupt::new().expect("an eventfd");
    // The ring has fewer entries than there are operations, so most operations wait for a free entry.
    let mut reactor = Reactor::new(16).expect("a ring");
    // In these rounds the tables grow to the number of operations in use.
    for _ in 0..2 {
        submit(&mut reactor, &file, &buffer);
        let ended = reactor.wait_all(Instant(u64::MAX)).expect("waited");
        assert_eq!(ended.len(), 3 * DEPTH);
    }
    let allocations = allocations(|| {
        for _ in 0..4 {
            submit(&mut reactor, &file, &buffer);
            finish(&mut reactor, &interrupt);
        }
    });
    assert_eq!(allocations, 0);
}
