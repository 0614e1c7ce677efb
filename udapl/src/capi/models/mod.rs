//! Models of the data passed between threads. They compile the real files of `capi` with primitives that try every
//! order of events ([`primitives`]).
//!
//! In ordinary tests each model runs with few preemptions, and prints the number of its executions.
//! LOOM_MAX_PREEMPTIONS widens the search (`cargo xtask races`).

#![allow(
    clippy::duplicate_mod,
    reason = "the same files over other primitives are what this is for"
)]

mod gate_models;
mod place_models;
mod primitives;
mod wakeup_models;

#[path = "../gate.rs"]
#[allow(dead_code, reason = "the gate's other tests ask it more")]
mod gate;
#[path = "../place.rs"]
mod place;
#[path = "../sleepers.rs"]
mod sleepers;
#[path = "../upcalls.rs"]
mod upcalls;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use primitives::{Broken, Fences};

/// Number of preemptions that is enough to find each of the deliberate mistakes (`Broken`).
const PREEMPTIONS: usize = 2;

/// Runs a model in every order of events, with the given model of the fences and the given mistake.
fn explore(what: &str, (fences, broken): (Fences, Broken), model: fn()) {
    primitives::set(fences, broken);
    // The builder reads LOOM_MAX_PREEMPTIONS, LOOM_MAX_BRANCHES and others. The environment overrides `PREEMPTIONS`.
    let mut builder = loom::model::Builder::new();
    let bound = builder.preemption_bound.unwrap_or(PREEMPTIONS);
    builder.preemption_bound = Some(bound);
    let executions = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&executions);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!(
        "model: {what}, {fences:?}: {} executions, up to {bound} preemptions",
        executions.load(Ordering::Relaxed)
    );
}
