//! Measures an honest program that runs beside a hostile one. Each operation of the honest program must complete within
//! a bound of turns or of virtual time.
//!
//! The table in docs/security.md has the bounds and the longest measured waits.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of iterations of a wait after which the test fails because virtual time does not advance.
const MOST_PASSES: u64 = 20_000;

/// The longest wait of an honest program beside a hostile one, over all cases of a harness.
pub struct Longest {
    beside: &'static str,
    unit: &'static str,
    most: u64,
    longest: AtomicU64,
    operations: AtomicU64,
}

impl Longest {
    pub const fn new(beside: &'static str, unit: &'static str, most: u64) -> Self {
        Self {
            beside,
            unit,
            most,
            longest: AtomicU64::new(0),
            operations: AtomicU64::new(0),
        }
    }

    /// Records the duration of an operation. Fails if it is above the bound.
    pub fn took(&self, wait: u64) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.longest.fetch_max(wait, Ordering::Relaxed);
        let (beside, unit, most) = (self.beside, self.unit, self.most);
        assert!(wait <= most, "beside {beside}: {wait} {unit} of {most}");
    }

    /// Calls `pass`, which lets time pass, until `is_done` returns true or the bound is exceeded. `now` measures the
    /// wait, because one pass may skip to a distant event of the simulation.
    pub fn wait(
        &self,
        now: impl Fn() -> u64,
        mut is_done: impl FnMut() -> bool,
        mut pass: impl FnMut(),
    ) {
        let (began, mut passes) = (now(), 0);
        let mut waited = 0;
        while !is_done() {
            pass();
            passes += 1;
            assert!(passes < MOST_PASSES, "beside {}: time stands", self.beside);
            waited = now() - began;
            let (beside, unit, most) = (self.beside, self.unit, self.most);
            assert!(
                waited <= most,
                "beside {beside}: not done after {most} {unit}"
            );
        }
        self.took(waited);
    }

    /// Prints the longest wait. Fails if no operation was recorded, since the harness has then tested nothing.
    pub fn report(&self) {
        let operations = self.operations.load(Ordering::Relaxed);
        let longest = self.longest.load(Ordering::Relaxed);
        let (beside, unit, most) = (self.beside, self.unit, self.most);
        println!(
            "beside {beside}: {operations} operations of the honest party, the longest in {longest} {unit} of {most}"
        );
        assert!(operations > 0, "beside {beside}: no operation");
    }
}
