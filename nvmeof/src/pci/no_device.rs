//! The owner of the simulated SSD's own memory.

use std::ops::RangeInclusive;
use std::sync::Arc;

use driver::{Clock, Device, Interrupt, RealClock, SharedMemory};

/// A function that does nothing. Operations of disks need memory of a function, and the simulated SSD has no other.
pub(super) struct NoDevice;

impl Device for NoDevice {
    fn name(&self) -> &str {
        "the memory of a simulated SSD"
    }

    fn config_read(&self, _offset: u16, out: &mut [u8]) {
        out.fill(0);
    }

    fn config_write(&self, _offset: u16, _data: &[u8]) {}

    fn bar(&self, _index: u8) -> Option<SharedMemory> {
        None
    }

    fn bar_written(&self, _index: u8, _offset: u64, _bytes: &[u8]) {}

    fn reset(&self) {}

    fn interrupt_count(&self) -> usize {
        0
    }

    fn set_interrupts(&self, _vectors: Vec<Interrupt>) {}

    fn dma_map(
        &self,
        _iova: u64,
        _memory: SharedMemory,
        _offset: usize,
        _bytes: usize,
    ) -> Result<(), String> {
        Ok(())
    }

    fn dma_unmap(&self, _iova: u64, _bytes: usize) -> Result<(), String> {
        Ok(())
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![0x1000..=super::dma::LAST]
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(RealClock::new())
    }
}
