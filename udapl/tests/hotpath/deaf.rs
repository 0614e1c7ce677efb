//! A simulated function that can be made deaf to register writes, as a mapped BAR is: nobody is told of them. What
//! the driver does between two deaf moments is then the driver's alone, not the simulator's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use driver::{Device, Front, Fronted};
use hw_sim::SimFunction;

/// Whether register writes go nowhere.
pub struct Deaf(AtomicBool);

impl Front<SimFunction> for Deaf {
    fn bar_written(&self, function: &SimFunction, index: u8, offset: u64, bytes: &[u8]) {
        if !self.0.load(Ordering::Relaxed) {
            function.bar_written(index, offset, bytes);
        }
    }
}

/// The function and its ears.
pub type Quiet = Fronted<SimFunction, Deaf>;

impl Deaf {
    /// A function that hears.
    pub fn hearing(device: Arc<SimFunction>) -> Arc<Quiet> {
        let front = Self(AtomicBool::new(false));
        Arc::new(Fronted { device, front })
    }

    /// Runs `work` with nobody told of register writes.
    pub fn quietly<R>(&self, work: impl FnOnce() -> R) -> R {
        self.0.store(true, Ordering::Relaxed);
        let result = work();
        self.0.store(false, Ordering::Relaxed);
        result
    }
}
