//! A simulated function that can be made deaf to register writes, as a mapped BAR is: nobody is told of them. What
//! the driver does between two deaf moments is then the driver's alone, not the simulator's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use driver::Device;
use hw_sim::SimFunction;

use crate::between::{Between, Ear};

/// Whether register writes go nowhere.
pub struct Deaf(AtomicBool);

impl Ear for Deaf {
    fn hear(&self, function: &SimFunction, index: u8, offset: u64, bytes: &[u8]) {
        if !self.0.load(Ordering::Relaxed) {
            function.bar_written(index, offset, bytes);
        }
    }
}

/// The function and its ears.
pub type Quiet = Between<Deaf>;

impl Quiet {
    /// A function that hears.
    pub fn new(function: Arc<SimFunction>) -> Arc<Self> {
        Arc::new(Self {
            function,
            ear: Deaf(AtomicBool::new(false)),
        })
    }

    /// Runs `work` with nobody told of register writes.
    pub fn quietly<R>(&self, work: impl FnOnce() -> R) -> R {
        self.ear.0.store(true, Ordering::Relaxed);
        let result = work();
        self.ear.0.store(false, Ordering::Relaxed);
        result
    }
}
