//! Some worlds of the campaign, in every run of the tests; `cargo xtask campaign` runs as many as one likes.

use campaign::{Coverage, Plan, run, shrink};

/// Seeds of every run.
const SEEDS: u64 = 48;
const STEPS: u32 = 400;

/// Two more seeds, new with every commit (`cargo xtask test` names it).
fn of_the_commit() -> Vec<u64> {
    let commit = std::env::var("SIM_COMMIT").unwrap_or_default();
    let word = |at: usize| u64::from_str_radix(commit.get(at..at + 8)?, 16).ok();
    [0, 8].into_iter().filter_map(word).collect()
}

#[test]
fn what_must_hold_holds_in_every_world_and_every_fault_is_met() {
    let mut coverage = Coverage::default();
    for seed in (0..SEEDS).chain(of_the_commit()) {
        match run(&Plan::of(seed, STEPS), None) {
            Ok(world) => coverage.add(&world.coverage),
            Err(failure) => panic!("{}", shrink(failure)),
        }
    }
    for what in [
        "connect",
        "accept",
        "reject",
        "disconnect",
        "send",
        "receive",
        "write",
        "read",
        "write to freed memory",
        "free memory",
        "free an endpoint",
        "close",
        "drop",
        "open",
        "wire",
        "partition",
        "cable",
        "fault",
        "asynchronous event",
    ] {
        assert!(coverage.times(what) > 0, "no world has {what}");
    }
}

#[test]
fn the_same_seed_is_the_same_world() {
    let log = |seed| run(&Plan::of(seed, 100), None).expect("it holds").log;
    let (one, again, other) = (log(1), log(1), log(2));
    assert!(one.len() > 10_000, "the log says something");
    assert!(one == again, "seed 1 gave two different logs");
    assert!(one != other, "seeds 1 and 2 gave the same log");
}
