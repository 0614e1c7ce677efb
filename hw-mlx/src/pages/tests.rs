//! Tests of the firmware's page requests and of the bounds on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use driver::{Device, Front, Fronted, Function, SharedMemory};
use hw_sim::{Profile, Sim, SimConfig, SimFunction};

use super::*;

fn sim_function() -> Arc<SimFunction> {
    let sim = Sim::new(SimConfig {
        seed: 1,
        event_log: false,
    });
    let profile = Profile::named("sim:a", [2, 0, 0, 0, 0, 1]);
    sim.add_function(profile)
}

fn pages(budget: Option<usize>) -> Pages {
    let function = Function::in_process(sim_function()).expect("a function");
    Pages::new(DmaArena::new(&function).expect("an arena"), budget)
}

const OURS: FunctionId = FunctionId {
    number: 0,
    embedded_cpu: false,
};

#[test]
fn requests_of_firmware_that_waits_for_no_answer_take_no_memory_without_end() {
    let mut pages = pages(None);
    for _ in 0..MAX_PAGE_REQUESTS + 7 {
        pages.request(PageRequest {
            function: OURS,
            pages: 1,
            release_all: false,
        });
    }
    assert_eq!(pages.requests.len(), MAX_PAGE_REQUESTS);
    assert_eq!(pages.counts().refused, 7);
}

#[test]
fn what_the_firmware_has_counts_against_what_it_may_have() {
    for (budget, most) in [(None, MAX_PAGES), (Some(100), 100)] {
        let mut pages = pages(budget);
        assert_eq!(pages.room(), most);
        let (given, _) = pages.prepare_give(OURS, 60).expect("memory");
        pages.finish_give(OURS, given, Ok(()));
        assert_eq!(pages.room(), most - 60);
    }
}

/// A front that refuses mappings once it is set.
#[derive(Default)]
struct Full(AtomicBool);

impl Front<SimFunction> for Full {
    fn dma_map(
        &self,
        device: &SimFunction,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        if self.0.load(Ordering::Relaxed) {
            return Err("no more mappings".to_owned());
        }
        device.dma_map(iova, memory, offset, bytes)
    }
}

/// There is memory for the pages, but none for the mailbox with their addresses.
#[test]
fn firmware_is_told_that_there_are_no_pages_if_only_their_list_has_no_memory() {
    let fronted = Arc::new(Fronted {
        device: sim_function(),
        front: Full::default(),
    });
    let device = Arc::clone(&fronted) as Arc<dyn Device>;
    let function = Function::in_process(device).expect("a function");
    // The queue fills the first chunk.
    let arena = DmaArena::with_chunk_bytes(&function, PAGE_BYTES).expect("an arena");
    let registers = function.bar(0).expect("a BAR").block(0).expect("registers");
    let queue = CommandQueue::new(arena, registers, 5, 6).expect("memory");
    let mut queue = queue.expect("a page of entries");
    fronted.front.0.store(true, Ordering::Relaxed);
    let mut pages = pages(None);
    pages.request(PageRequest {
        function: OURS,
        pages: 5,
        release_all: false,
    });
    pages.pump(&mut queue, Instant(0), Duration::from_secs(1));
    let running = pages.running.as_ref().map(|(running, ..)| running);
    assert!(matches!(running, Some(Running::CannotGive { .. })));
    assert_eq!((pages.counts().refused, pages.lent()), (1, 0));
    assert!(pages.chunks.is_empty(), "the pages are free again");
}
