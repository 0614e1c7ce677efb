//! Tests of the firmware's page requests and of the bounds on them.

use driver::Function;
use hw_sim::{Profile, Sim, SimConfig};

use super::*;

fn pages(budget: Option<usize>) -> Pages {
    let sim = Sim::new(SimConfig {
        seed: 1,
        event_log: false,
    });
    let profile = Profile::named("sim:a", [2, 0, 0, 0, 0, 1]);
    let function = Function::in_process(sim.add_function(profile)).expect("a function");
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
