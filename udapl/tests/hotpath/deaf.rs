//! A simulated function that can ignore register writes, so that only the driver runs in a measured region, and not
//! the simulator. On hardware, too, a write to a mapped BAR runs no code of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use driver::{Device, Front, Fronted};
use hw_sim::SimFunction;

/// Front of a simulated function. The flag is true while register writes are dropped.
pub struct Deaf(AtomicBool);

impl Front<SimFunction> for Deaf {
    fn bar_written(&self, function: &SimFunction, index: u8, offset: u64, bytes: &[u8]) {
        if !self.0.load(Ordering::Relaxed) {
            function.bar_written(index, offset, bytes);
        }
    }
}

/// A simulated function that can ignore register writes.
pub type FilteredFunction = Fronted<SimFunction, Deaf>;

impl Deaf {
    /// Wraps a function. The result executes register writes except during [`Deaf::without_register_writes`].
    pub fn wrap_function(device: Arc<SimFunction>) -> Arc<FilteredFunction> {
        let front = Self(AtomicBool::new(false));
        Arc::new(Fronted { device, front })
    }

    /// Runs `work`, and drops register writes meanwhile.
    pub fn without_register_writes<R>(&self, work: impl FnOnce() -> R) -> R {
        self.0.store(true, Ordering::Relaxed);
        let result = work();
        self.0.store(false, Ordering::Relaxed);
        result
    }
}
