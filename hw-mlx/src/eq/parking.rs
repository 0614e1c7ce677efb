//! Event queues of a function that is handed over to another process.
//!
//! The ring's address is not checked if the device returns no page list. A ConnectX-6 Dx returned none for a CQ.

use driver::{Block, DmaArena, Iova};
use mlx_prm::{Eqc, Eqn, UarIndex, UarPage};

use super::{COUNTER_MASK, ENTRY_BYTES, Eq, OWNER, OWNER_BIT, PAGE_LOG, Ring, SPARE};
use crate::error::ResumeError;

/// Name of the table in errors.
const TABLE: &str = "an event queue";
/// log2 of the maximum number of entries: the field of the context has five bits, and the counters have 24.
const MAX_LOG_ENTRIES: u32 = 23;
/// States in the context (`st`): armed, fired.
const ARMED: u32 = 0x9;
const FIRED: u32 = 0xa;

/// An event queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct EqSnapshot {
    /// Number of the queue.
    pub eqn: u32,
    /// Number of the doorbell page through which the queue is armed.
    pub uar: u32,
    /// Interrupt vector.
    pub vector: u32,
    /// I/O address of the ring.
    pub iova: u64,
    /// log2 of the number of entries.
    pub log_entries: u32,
    /// Number of entries read since the queue was created, modulo 2^32. The device knows the low 24 bits.
    pub consumer: u32,
}

impl Eq {
    /// Describes the queue. It is drained, and its consumer counter is written.
    pub(crate) fn snapshot(&self) -> EqSnapshot {
        EqSnapshot {
            eqn: self.eqn.get(),
            uar: self.uar_index.get(),
            // PANIC: MSI-X vectors are below 2048.
            vector: u32::try_from(self.vector).expect("an MSI-X vector"),
            iova: self.ring.memory.iova().0,
            log_entries: self.ring.log_entries,
            consumer: self.consumer,
        }
    }

    /// Makes the queue again. Nothing is written to the device or to memory. The queue counts as fired, so that the
    /// next call of `arm` writes the counter. `vectors` is the number of interrupt vectors, and `page` returns the
    /// registers of a doorbell page.
    ///
    /// # Errors
    /// The numbers are impossible, the memory is not there, or the BAR has no such doorbell page.
    pub(crate) fn resume(
        arena: &DmaArena,
        snapshot: &EqSnapshot,
        vectors: usize,
        page: impl FnOnce(UarIndex) -> Result<Block<UarPage>, ResumeError>,
    ) -> Result<Self, ResumeError> {
        let EqSnapshot {
            eqn,
            uar,
            vector,
            iova,
            log_entries,
            consumer,
        } = *snapshot;
        let refused = || ResumeError::snapshot(TABLE, format!("{snapshot:x?}"));
        let eqn = Eqn::checked(eqn).ok_or_else(refused)?;
        let uar_index = UarIndex::checked(uar).ok_or_else(refused)?;
        // CAST: widening, on every target of the driver.
        let vector = vector as usize;
        // A ring has the spare entries, and at least one other.
        let has_spare = (SPARE.ilog2() + 1..=MAX_LOG_ENTRIES).contains(&log_entries);
        if vector >= vectors || !has_spare {
            return Err(refused());
        }
        let bytes = (ENTRY_BYTES << log_entries).max(1 << PAGE_LOG);
        if !iova.is_multiple_of(bytes as u64) {
            return Err(refused());
        }
        let uar = page(uar_index)?;
        let memory = arena.claim(Iova(iova), bytes);
        let memory = memory.map_err(ResumeError::of_memory(TABLE))?;
        Ok(Self {
            eqn,
            ring: Ring {
                memory,
                log_entries,
            },
            uar,
            uar_index,
            consumer,
            unpublished: 0,
            fired: true,
            vector,
        })
    }

    /// Returns the number of entries that the device has written and that were not read.
    fn fresh(&self) -> u32 {
        let is_fresh = |ahead: &u32| {
            let index = self.consumer.wrapping_add(*ahead);
            let at = (index & (self.entries() - 1)) as usize * ENTRY_BYTES;
            let lap = (index >> self.ring.log_entries) & 1;
            u32::from(self.ring.memory.load_u8(at + OWNER) & OWNER_BIT) == lap
        };
        // The sum is at most `entries`.
        (0..self.entries())
            .take_while(is_fresh)
            .fold(0, |count, _| count + 1)
    }

    /// Returns the number of entries that the device can write before we read some.
    pub(crate) fn room(&self) -> u32 {
        self.entries() - self.fresh()
    }

    /// Compares the queue with the device's context, which was read after the queue was parked, and with the first
    /// entry of its page list.
    ///
    /// # Errors
    /// The context is that of another queue, or counts differently.
    pub(crate) fn check(&self, context: &Eqc, page: u64) -> Result<(), ResumeError> {
        let iova = self.ring.memory.iova().0;
        // Firmware may leave the page list out.
        if (page != iova && page != 0) || context.page_offset() != 0 {
            return Err(ResumeError::changed(format!(
                "event queue {} is at {page:#x}, offset {:#x}, and not at {iova:#x}",
                self.eqn,
                context.page_offset()
            )));
        }
        let ours = (
            self.ring.log_entries,
            self.uar_index.get(),
            u32::try_from(self.vector).unwrap_or(u32::MAX),
            self.consumer & COUNTER_MASK,
        );
        let devices = (
            context.log_eq_size(),
            context.uar_page(),
            context.intr(),
            context.consumer_counter(),
        );
        let pending = context.producer_counter().wrapping_sub(self.consumer) & COUNTER_MASK;
        let is_well = context.status() == 0 && [ARMED, FIRED].contains(&context.st());
        if ours != devices || !is_well || pending > self.fresh() {
            return Err(ResumeError::changed(format!(
                "event queue {} has log_eq_size, uar_page, intr and consumer counter {devices:x?}, and not {ours:x?}; status {:#x}, st {:#x}, {pending} entries pending, {} written",
                self.eqn,
                context.status(),
                context.st(),
                self.fresh(),
            )));
        }
        Ok(())
    }
}
