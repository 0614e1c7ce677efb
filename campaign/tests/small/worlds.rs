//! A fixed number of the campaign's seeded runs, in every run of the tests; `cargo xtask campaign` runs any number.

use std::collections::BTreeSet;

use campaign::{Case, FAULTS, Harm, Plan, Record, case, many, run};

/// Number of seeds that every run of the tests uses. `WORLDS=N` takes N, and `cargo xtask check` takes [`WHOLE`]. The
/// first 60 worlds meet each fault several times.
const SEEDS: u64 = 60;
/// Number of seeds in which every call succeeds at least once. For example, a waiting CNO is notified in one world of a
/// hundred.
const WHOLE: u64 = 240;
const STEPS: u32 = 400;

/// Returns the number of seeds: that of `WORLDS`, or `SEEDS`.
fn worlds() -> u64 {
    let asked = std::env::var("WORLDS").ok();
    asked.map_or(SEEDS, |asked| asked.parse().expect("WORLDS is a number"))
}

/// Returns two more seeds, taken from the commit's hash, which `cargo xtask test` passes in `SIM_COMMIT`.
fn of_the_commit() -> Vec<u64> {
    let commit = std::env::var("SIM_COMMIT").unwrap_or_default();
    let word = |at: usize| u64::from_str_radix(commit.get(at..at + 8)?, 16).ok();
    [0, 8].into_iter().filter_map(word).collect()
}

#[test]
fn what_must_hold_holds_in_every_world_and_every_fault_is_met() {
    let seeds: Vec<u64> = (0..worlds()).chain(of_the_commit()).collect();
    let sum = many(&seeds, 2, None, |seed| Plan::of(seed, STEPS), |_, _| {});
    if let Some((_, failure)) = sum.failures.first() {
        panic!("{failure}");
    }
    assert_eq!(sum.ran, seeds.len() as u64);
    let (turns, seed) = sum.longest.expect("some worlds have honest neighbours");
    println!("honest neighbours waited {turns} turns at most for an operation, in world {seed}");
    let coverage = sum.coverage;
    for what in [
        "connect",
        "accept",
        "reject",
        "disconnect",
        "send",
        "receive",
        "write",
        "read",
        "write with a key that may be void",
        "bind",
        "free memory",
        "free an endpoint",
        "close",
        "drop",
        "open",
        "asynchronous event",
        "attacker",
        "burst",
        "sleep",
        "another EVD",
        "busy",
        "start over",
        "wait",
        "instance",
        "send that invalidates",
        "take a key away",
        "lose a key to a peer",
    ] {
        assert!(coverage.times(what) > 0, "no world has {what}");
    }
    // Adapters are handed over, and each of their processes is killed.
    for (what, wanted) in [
        ("park", &["done"][..]),
        (
            "resume",
            &[
                "done",
                "damaged",
                "damaged and sealed: refused",
                "after a reset",
            ],
        ),
        (
            "killed",
            &["the old process", "both processes", "the new process"],
        ),
    ] {
        let found = coverage.came_to(what);
        assert!(
            wanted.iter().all(|one| found.contains(one)),
            "{what}: {found:?}"
        );
    }
    // Operations of each kind were judged, and some operations were not judged.
    let operations = ["connect", "disconnect", "message", "not judged"];
    assert_eq!(coverage.came_to("honest"), BTreeSet::from(operations));
    let heard = coverage.came_to("notice of a close");
    println!("notices of a close: {heard:?}");
    assert!(heard.contains("in time"), "{heard:?}");
    for (what, names) in FAULTS {
        let names: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(coverage.came_to(what), names, "{what}");
    }
    let unmet = coverage.faults_never_met();
    assert!(unmet.is_empty(), "no command was {unmet:?}");
    if worlds() >= WHOLE {
        let never = coverage.calls_never_done();
        assert!(
            never.is_empty(),
            "no world makes these calls with success: {never:?}"
        );
    }
}

#[test]
fn what_worlds_come_to_does_not_depend_on_how_many_threads_run_them() {
    let seeds = [3, 4, 5, 6, 7, 8];
    let sum = |jobs| many(&seeds, jobs, None, |seed| Plan::of(seed, 100), |_, _| {});
    let (one, three) = (sum(1), sum(3));
    assert_eq!(one.ran, 6);
    assert!(one.coverage == three.coverage);
}

#[test]
fn the_same_seed_is_the_same_world() {
    let log = |seed| {
        run(&Plan::of(seed, 100), Record::Log)
            .expect("it holds")
            .log
    };
    let (one, again, other) = (log(1), log(1), log(2));
    assert!(one.len() > 10_000, "the log says something");
    assert!(one == again, "seed 1 gave two different logs");
    assert!(one != other, "seeds 1 and 2 gave the same log");
}

#[test]
fn a_harm_that_meets_no_command_is_a_failure_of_its_case() {
    let late = |command| {
        case(Case {
            side: 1,
            command,
            harm: Harm::Late,
        })
    };
    let what = late(1_000_000).expect_err("the script is shorter");
    assert!(
        what.starts_with("late met no command: side 1 gave "),
        "{what}"
    );
    let ((call, _), whole) = late(0).expect("it holds");
    assert_eq!((call, whole), ("dat_ia_open", true));
}
