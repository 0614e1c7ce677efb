//! A simulated function that can be made deaf to register writes, as a mapped BAR is: nobody is told of them. What
//! the driver does between two deaf moments is then the driver's alone, not the simulator's.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use driver::{Clock, Device, Interrupt, SharedMemory};
use hw_sim::SimFunction;

/// The function and its ears.
pub struct Quiet {
    /// What is behind.
    pub function: Arc<SimFunction>,
    /// Register writes go nowhere.
    pub deaf: AtomicBool,
}

impl Quiet {
    /// A function that hears.
    pub fn new(function: Arc<SimFunction>) -> Arc<Self> {
        Arc::new(Self {
            function,
            deaf: AtomicBool::new(false),
        })
    }

    /// Runs `work` with nobody told of register writes.
    pub fn quietly<R>(&self, work: impl FnOnce() -> R) -> R {
        self.deaf.store(true, Ordering::Relaxed);
        let result = work();
        self.deaf.store(false, Ordering::Relaxed);
        result
    }
}

impl Device for Quiet {
    fn name(&self) -> &str {
        self.function.name()
    }
    fn config_read(&self, offset: u16, out: &mut [u8]) {
        self.function.config_read(offset, out);
    }
    fn config_write(&self, offset: u16, data: &[u8]) {
        self.function.config_write(offset, data);
    }
    fn bar(&self, index: u8) -> Option<SharedMemory> {
        self.function.bar(index)
    }
    fn bar_written(&self, index: u8, offset: u64, bytes: &[u8]) {
        if !self.deaf.load(Ordering::Relaxed) {
            self.function.bar_written(index, offset, bytes);
        }
    }
    fn reset(&self) {
        self.function.reset();
    }
    fn interrupt_count(&self) -> usize {
        self.function.interrupt_count()
    }
    fn set_interrupts(&self, vectors: Vec<Interrupt>) {
        self.function.set_interrupts(vectors);
    }
    fn dma_map(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.function.dma_map(iova, memory, offset, bytes)
    }
    fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), String> {
        self.function.dma_unmap(iova, bytes)
    }
    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.function.iova_ranges()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.function.clock()
    }
}
