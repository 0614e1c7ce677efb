//! [`Device`]: a model of a PCI function. A function in this process or a vfio-user server calls the model's methods.

use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::clock::Clock;
use crate::interrupt::{Interrupt, Notices};
use crate::memory::SharedMemory;

/// Bytes of PCI Express configuration space.
pub(crate) const CONFIG_BYTES: usize = 4096;
/// Offset of the command register (PCI base specification, "Type 0 configuration space header").
pub(crate) const CONFIG_COMMAND: u16 = 0x04;
/// Bit of the command register's low byte: the function answers memory accesses to its BARs.
pub(crate) const COMMAND_MEMORY_SPACE: u8 = 1 << 1;
/// Bit of the command register's low byte: the function may start DMA and send interrupts.
pub(crate) const COMMAND_BUS_MASTER: u8 = 1 << 2;

/// Memory of another process, which that process reads and writes on request. Each access waits for the answer, for a
/// bounded time.
pub trait MessageMemory: Send + Sync + std::fmt::Debug {
    /// Reads the memory mapped at an I/O address.
    ///
    /// # Errors
    /// The other process refused, is gone, or did not answer in time. Part of `out` may have been read.
    fn read(&self, iova: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes the memory mapped at an I/O address. The last byte is written last.
    ///
    /// # Errors
    /// As [`MessageMemory::read`]; part of the data may have been written.
    fn write(&self, iova: u64, data: &[u8]) -> io::Result<()>;
}

/// A device model in this process, with the methods that the driver's side calls.
///
/// Methods take `&self`: the model does its own locking. A method may be called while a call of another thread is in
/// progress, and may signal interrupts before it returns.
pub trait Device: Send + Sync {
    /// Returns the function's name, for messages.
    fn name(&self) -> &str;

    /// Reads 1, 2 or 4 bytes of configuration space, in the order of their offsets.
    fn config_read(&self, offset: u16, out: &mut [u8]);

    /// Writes 1, 2 or 4 bytes of configuration space.
    fn config_write(&self, offset: u16, data: &[u8]);

    /// Returns the memory behind a BAR, the same at each call; `None` if there is no such BAR.
    fn bar(&self, index: u8) -> Option<SharedMemory>;

    /// Informs the model of a write of 1 to 8 `bytes`, which are already in the BAR's memory. Called exactly once per
    /// write, in program order; the bytes are in memory order.
    fn bar_written(&self, index: u8, offset: u64, bytes: &[u8]);

    /// Performs a function level reset.
    fn reset(&self);

    /// Returns the number of MSI-X vectors of the function.
    fn interrupt_count(&self) -> usize;

    /// Sets the eventfds of the vectors that the driver has enabled: the first ones, in vector order. An empty list
    /// disables all.
    fn set_interrupts(&self, vectors: Vec<Interrupt>);

    /// Lets the device reach `bytes` bytes of `memory`, from `offset` on, at `iova`. The range is whole 4 KiB pages.
    ///
    /// # Errors
    /// A text with the reason why the model refuses the mapping.
    fn dma_map(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String>;

    /// Maps memory as [`dma_map`](Self::dma_map) does, but read-only for the device: a device's write there is treated
    /// as a write to an unmapped address.
    ///
    /// # Errors
    /// As [`Device::dma_map`]; the default implementation always refuses.
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

    /// Lets the device reach `bytes` bytes of another process's memory at `iova`, in whole 4 KiB pages. None of that
    /// memory can be mapped in this process: each read is a message to the other process, and so is each write if the
    /// memory is `writable`.
    ///
    /// # Errors
    /// As [`Device::dma_map`]; the default implementation always refuses.
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

    /// Unmaps exactly one mapping. The device must not touch the memory afterwards.
    ///
    /// # Errors
    /// A text: there is no such mapping.
    fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), String>;

    /// Returns the I/O addresses that can be mapped.
    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>>;

    /// Sets the eventfds on which the system around the model reports events of the device. The default implementation
    /// ignores them, for a system that reports none.
    fn set_notices(&self, notices: Notices) {
        drop(notices);
    }

    /// Returns whether a function of the model can be [parked](crate::Function::park), and resumed in this process as
    /// long as the program keeps the model. Such a model gets memory that has a descriptor by mappings of its own, so
    /// that those of the parked function can end. If the descriptors of a parked function are closed, nothing resets
    /// the model: the program does. The default is that a model cannot be parked, because another process cannot have
    /// it.
    fn can_be_parked(&self) -> bool {
        false
    }

    /// Returns the clock of the model's time.
    fn clock(&self) -> Arc<dyn Clock>;
}
