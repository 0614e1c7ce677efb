//! Random valid and invalid calls on two adapters, compared with a small model of DAT.
//!
//! A seed determines a sequence, which runs on two fresh adapters. After each call, the return code and every dequeued
//! event must be those that the model predicts. At the end both adapters are closed, and no object may be left in the
//! devices. A failing sequence is shortened by leaving out steps as long as it still fails, and is printed as a Rust
//! test that replays it.
//!
//! The budget is 250,000 calls (10^6 in `cargo xtask check`), or four minutes. `CALLS` and `CALLS_SECONDS` change it,
//! `CALLS_SEED` sets the first seed.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "a module knows its calls and leaves the rest to the others"
)]

mod adapters;
mod endpoints;
mod model;
mod names;
mod objects;
mod op;
mod posts;
mod replays;
mod windows;
mod world;

use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use self::op::{Op, Step};
use self::world::World;

/// Number of calls of a sequence, low enough that an EVD with completions (`EVD_LENGTH` entries) does not overflow.
const STEPS: usize = 2000;

/// An error, and the index of the step that failed.
struct Failure {
    at: usize,
    what: String,
}

/// Counts of a sequence.
#[derive(Default)]
struct Score {
    calls: u64,
    /// Number of steps after which at least one endpoint was connected.
    connected: u64,
}

/// Returns the message of a panic.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    format!("a panic: {}", text.unwrap_or_default())
}

/// Runs the steps that `next` returns, until `next` returns `None`. Keeps in `made` the steps for which a call was
/// possible. `next` gets the number of these steps.
fn run_with(
    made: &mut Vec<Step>,
    mut next: impl FnMut(usize) -> Option<Step>,
) -> Result<Score, Failure> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(1);
        let mut score = Score::default();
        while let Some(step) = next(made.len()) {
            made.push(step);
            if world.step(&made[made.len() - 1])? {
                score.calls += 1;
                score.connected += u64::from(world.connected() != 0);
            } else {
                made.pop();
            }
        }
        world.close()?;
        Ok(score)
    }));
    let what = match result {
        Ok(Ok(score)) => return Ok(score),
        Ok(Err(what)) => what,
        Err(panic) => said(&*panic),
    };
    let at = made.len().saturating_sub(1);
    Err(Failure { at, what })
}

/// Replays a list of steps.
fn run(steps: &[Step]) -> Result<Score, Failure> {
    let mut rest = steps.iter();
    run_with(&mut Vec::new(), |_| rest.next().cloned())
}

/// Leaves out steps as long as the sequence still fails, even if it fails in another way.
fn shrink(
    mut kept: Vec<Step>,
    mut failure: Failure,
    run: impl Fn(&[Step]) -> Result<Score, Failure>,
) -> (Vec<Step>, Failure) {
    let mut piece = kept.len() / 2;
    while piece > 0 {
        let mut start = 0;
        while start < kept.len() {
            let mut fewer = kept.clone();
            fewer.drain(start..(start + piece).min(kept.len()));
            match run(&fewer) {
                Err(shorter) => (kept, failure) = (fewer, shorter),
                Ok(_) => start += piece,
            }
        }
        piece /= 2;
    }
    (kept, failure)
}

/// Runs the sequence of a seed: [`STEPS`] possible calls.
fn explore(seed: u64, made: &mut Vec<Step>) -> Result<Score, Failure> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let prelude = if seed % 4 == 3 {
        Vec::new()
    } else {
        Step::prelude()
    };
    let mut begin = VecDeque::from(prelude);
    run_with(made, |made| {
        if made >= STEPS {
            return None;
        }
        if begin.is_empty() && rng.random_ratio(1, 12) {
            begin.extend(Step::scene(&mut rng));
        }
        let step = begin.pop_front().unwrap_or_else(|| Step::draw(&mut rng));
        if matches!(step.op, Op::IaClose { graceful: false }) {
            // An adapter has no objects after it was closed and opened again, so this side's prelude is repeated.
            begin.extend(
                Step::prelude()
                    .into_iter()
                    .filter(|made| made.side == step.side),
            );
        }
        Some(step)
    })
}

/// Runs the sequence of a seed. If it fails, shortens it and panics with the steps as Rust.
fn check(seed: u64) -> Score {
    let mut made = Vec::new();
    match explore(seed, &mut made) {
        Ok(score) => score,
        Err(failure) => panic!("CALLS_SEED={seed}: {}", describe_failure(made, failure)),
    }
}

fn describe_failure(made: Vec<Step>, failure: Failure) -> String {
    let (steps, failure) = shrink(made, failure, run);
    let lines: Vec<String> = steps
        .iter()
        .map(|step| format!("        {}", step.code()))
        .collect();
    format!(
        "step {}: {}\n\n// For fuzz/tests/hostile/calls/replays.rs:\n#[test]\nfn replayed() {{\n    replay(&[\n{}\n    ]);\n}}\n",
        failure.at,
        failure.what,
        lines.join("\n")
    )
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(usual)
}

#[test]
fn every_call_does_what_the_model_says_whatever_came_before() {
    let (calls, seconds) = (number("CALLS", 100_000), number("CALLS_SECONDS", 240));
    let (begin, first) = (Instant::now(), number("CALLS_SEED", 0));
    let mut total = Score::default();
    let mut seed = first;
    while total.calls < calls && begin.elapsed() < Duration::from_secs(seconds) {
        let score = check(seed);
        total.calls += score.calls;
        total.connected += score.connected;
        seed += 1;
    }
    println!(
        "{} calls in {} sequences, {} steps of them with a connection",
        total.calls,
        seed - first,
        total.connected
    );
    assert!(total.connected > 0, "sequences lead nowhere");
}

/// Replays the printed steps of a failed sequence. Panics if they fail.
fn replay(steps: &[Step]) {
    if let Err(failure) = run(steps) {
        panic!("step {}: {}", failure.at, failure.what);
    }
}

#[test]
fn a_failure_is_shortened_to_the_steps_it_needs_and_told_as_rust() {
    let needs = |steps: &[Step]| {
        let at = |wanted: &str| steps.iter().position(|step| step.code().contains(wanted));
        match (at("CnoCreate(1)"), at("CnoFree(1)")) {
            (Some(made), Some(freed)) if made < freed => Err(Failure {
                at: freed,
                what: "it fails".to_owned(),
            }),
            _ => Ok(Score::default()),
        }
    };
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut steps: Vec<Step> = (0..300).map(|_| Step::draw(&mut rng)).collect();
    for (at, op) in [(50, Op::CnoCreate(1)), (250, Op::CnoFree(1))] {
        steps[at] = Step { side: 1, op };
    }
    let Err(failure) = needs(&steps) else {
        panic!("it fails");
    };
    let (kept, failure) = shrink(steps, failure, needs);
    let code: Vec<String> = kept.iter().map(Step::code).collect();
    assert_eq!(code.len(), 2, "{code:?}");
    assert!(code[0].ends_with("op: Op::CnoCreate(1) },"), "{code:?}");
    assert!(code[1].ends_with("op: Op::CnoFree(1) },"), "{code:?}");
    assert_eq!(failure.at, 1);
}

/// Returns the calls of the table in docs/calls.md.
fn all_calls() -> BTreeSet<&'static str> {
    let page = include_str!("../../../../docs/calls.md");
    // The calls after this heading are not in DAT 1.2.
    let (tables, _) = page.split_once("## Beyond DAT 1.2").expect("its end");
    tables
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .map(|(name, _)| name)
        .collect()
}

#[test]
fn sequences_are_made_of_all_74_calls_and_of_no_others() {
    let mut made = BTreeSet::new();
    for seed in 0..8 {
        let mut steps = Vec::new();
        assert!(explore(seed, &mut steps).is_ok());
        made.extend(steps.iter().flat_map(|step| step.op.calls()).copied());
    }
    let known = all_calls();
    let odd: Vec<&&str> = made.symmetric_difference(&known).collect();
    assert!(odd.is_empty(), "{odd:?}");
    assert_eq!(known.len(), 74);
}

#[test]
fn a_seed_gives_the_same_sequence_again() {
    let [one, other] = [(); 2].map(|()| {
        let mut made = Vec::new();
        assert!(explore(7, &mut made).is_ok());
        made.iter().map(Step::code).collect::<Vec<_>>()
    });
    assert_eq!(one.len(), STEPS);
    assert_eq!(one, other);
}
