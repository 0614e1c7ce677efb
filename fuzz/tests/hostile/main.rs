//! Hostile or random bytes and calls against each part of the stack.
//!
//! As tests, the harnesses replay the corpora in `__fuzz__` and run random inputs; `cargo bolero test` runs them with a
//! fuzzing engine. All harnesses are in one program, because each further program would link the whole stack again.
//! Tests that count the file descriptors of their process are in another program, `outside`.

mod calls;
mod capi;
mod cm;
mod commands;
mod devices;
mod ethernet;
mod frames;
mod honest;
mod liar;
mod live;
mod neighbours;
mod nvmeof;
mod snapshots;
mod wqes;

#[path = "../../../hw-sim/tests/nic/bench/mod.rs"]
#[allow(
    dead_code,
    reason = "shared with the tests of the simulator, which use all of it"
)]
mod bench;
#[path = "../../../hw-sim/tests/nic/eth_support/mod.rs"]
#[allow(
    dead_code,
    reason = "shared with the tests of the simulator, which use all of it"
)]
mod eth_support;

use std::path::Path;
use std::time::Duration;

/// Returns the extent of a harness, as its number of iterations and the time after which it ends all the same: the
/// whole one if `FUZZ` is `whole`, as before a change lands, and otherwise a quarter of it.
fn extent(iterations: usize, seconds: u64) -> (usize, Duration) {
    let is_whole = std::env::var("FUZZ").is_ok_and(|extent| extent == "whole");
    let part = if is_whole { 1 } else { 4 };
    let time = Duration::from_secs(seconds) / part;
    (iterations / part as usize, time) // CAST: widening.
}

/// Each corpus belongs to an existing harness: bolero reads `MODULE__HARNESS` beside the module's file.
#[test]
fn every_corpus_is_of_a_harness_that_is_there() {
    for program in ["hostile", "outside"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let folder = folder.join(program);
        let corpora = folder.join("__fuzz__").read_dir().expect("corpora");
        let corpora: Vec<String> = corpora
            .map(|entry| entry.expect("an entry").file_name())
            .map(|name| name.into_string().expect("text"))
            .collect();
        assert!(!corpora.is_empty());
        for corpus in corpora {
            let (module, harness) = corpus.split_once("__").expect("a module's");
            let source = folder.join(module).with_extension("rs");
            let source = std::fs::read_to_string(source).expect("the module");
            let declared = format!("#[test]\nfn {harness}() {{");
            assert!(source.contains(&declared), "{corpus}");
        }
    }
}
