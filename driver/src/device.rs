//! [`Device`]: a model of a PCI function, as a function in this process or a server of one drives it.

use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::clock::Clock;
use crate::interrupt::{Interrupt, Notices};
use crate::memory::SharedMemory;

/// Bytes of PCI Express configuration space.
pub(crate) const CONFIG_BYTES: usize = 4096;

/// Memory of another process, which reads and writes it when asked. Each access waits for the answer, for a bounded
/// time.
pub trait MessageMemory: Send + Sync + std::fmt::Debug {
    /// Reads what is mapped at an I/O address.
    ///
    /// # Errors
    /// The other process refused, is gone, or did not answer in time. Part of `out` may have been read.
    fn read(&self, iova: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes what is mapped at an I/O address, the last byte last.
    ///
    /// # Errors
    /// As [`MessageMemory::read`]; part of it may have been written.
    fn write(&self, iova: u64, data: &[u8]) -> io::Result<()>;
}

/// A device model living in this process, seen from under the driver.
///
/// Methods take `&self`: the model locks itself. A method may be called from inside another thread's call, and
/// may signal interrupts before it returns.
pub trait Device: Send + Sync {
    /// What the function calls itself, for messages.
    fn name(&self) -> &str;

    /// A configuration read of 1, 2 or 4 bytes; bytes as they stand in configuration space.
    fn config_read(&self, offset: u16, out: &mut [u8]);

    /// A configuration write of 1, 2 or 4 bytes.
    fn config_write(&self, offset: u16, data: &[u8]);

    /// The memory behind a BAR, the same at each call; `None` if there is no such BAR.
    fn bar(&self, index: u8) -> Option<SharedMemory>;

    /// `bytes` (1 to 8) are already in the BAR's memory. Told exactly once, in program order; bytes as they
    /// stand in memory.
    fn bar_written(&self, index: u8, offset: u64, bytes: &[u8]);

    /// A function level reset.
    fn reset(&self);

    /// MSI-X vectors the function has.
    fn interrupt_count(&self) -> usize;

    /// The eventfds of the vectors that the driver has enabled, the first ones, in vector order. None: it has disabled
    /// all.
    fn set_interrupts(&self, vectors: Vec<Interrupt>);

    /// Makes `bytes` bytes of `memory` from `offset` on reachable at `iova`. Whole 4 KiB pages.
    ///
    /// # Errors
    /// In words: why the model does not let this be mapped.
    fn dma_map(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String>;

    /// Maps memory as [`dma_map`](Self::dma_map) does, for the device to read only: a write there is one to an address
    /// that is not mapped.
    ///
    /// # Errors
    /// As [`Device::dma_map`]; by itself a model knows no such memory.
    fn dma_map_read_only(
        &self,
        iova: u64,
        _memory: SharedMemory,
        _offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        Err(format!(
            "map {iova:#x}+{bytes:#x}: this model knows no memory that can only be read"
        ))
    }

    /// Makes `bytes` bytes at `iova` reachable that lie in another process, which is asked for each access: reads, and
    /// writes if it is `writable`. Whole 4 KiB pages. Nothing of it is here to be mapped.
    ///
    /// # Errors
    /// As [`Device::dma_map`]; by itself a model knows no such memory.
    fn dma_map_by_message(
        &self,
        iova: u64,
        _memory: Arc<dyn MessageMemory>,
        bytes: usize,
        _writable: bool,
    ) -> Result<(), String> {
        Err(format!(
            "map {iova:#x}+{bytes:#x}: this model knows no memory that has to be asked for"
        ))
    }

    /// Takes back exactly one mapping. The device must not touch the memory afterwards.
    ///
    /// # Errors
    /// In words: there is no such mapping.
    fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), String>;

    /// I/O addresses that can be mapped.
    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>>;

    /// The eventfds for what the model's system has to say of the device. A system that never says anything ignores
    /// them.
    fn set_notices(&self, notices: Notices) {
        drop(notices);
    }

    /// The time the model lives in.
    fn clock(&self) -> Arc<dyn Clock>;
}
