//! A simulated function with somebody between it and its driver, who hears of register writes first.

use std::ops::RangeInclusive;
use std::sync::Arc;

use driver::{Clock, Device, Interrupt, SharedMemory};
use hw_sim::SimFunction;

/// Who hears of register writes.
pub trait Ear: Send + Sync {
    /// The driver has written `bytes` at `offset` of BAR `index`.
    fn hear(&self, function: &SimFunction, index: u8, offset: u64, bytes: &[u8]);

    /// The driver's clock.
    fn clock(&self, function: &SimFunction) -> Arc<dyn Clock> {
        function.clock()
    }
}

/// The function, and who is before it.
pub struct Between<E> {
    /// What is behind.
    pub function: Arc<SimFunction>,
    /// Who hears.
    pub ear: E,
}

impl<E: Ear + 'static> Device for Between<E> {
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
        self.ear.hear(&self.function, index, offset, bytes);
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
        self.ear.clock(&self.function)
    }
}
