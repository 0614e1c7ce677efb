//! Memory of a queue: its ring and its doorbell record.
//!
//! The device takes a ring as a list of pages of one size of our choice. A ring is therefore allocated as
//! one page: a power of two of at least 4 KiB, aligned to its size, so that the list has one entry.
//! Doorbell records take a cache line each.
//!
//! When a command that named a ring got no answer, or a destroy command was refused, the device may
//! write the ring for ever. Such memory is abandoned: never freed, never reused.

use driver::{DmaArena, DmaBuffer, DmaError};

use crate::error::CmdError;

/// log2 of the smallest page.
const MIN_LOG_PAGE: u32 = 12;
/// A doorbell record has 8 bytes; it gets a line to itself.
const RECORD_BYTES: usize = 64;

/// A ring and its doorbell record, zeroed.
#[derive(Clone, Debug)]
pub struct RingMemory {
    /// The ring: one page as the device sees it.
    pub ring: DmaBuffer,
    /// log2 of that page.
    pub log_page: u32,
    /// The doorbell record.
    pub record: DmaBuffer,
}

impl RingMemory {
    /// Memory for a ring of at least `bytes`.
    ///
    /// # Errors
    /// No memory.
    pub fn alloc(arena: &DmaArena, bytes: usize) -> Result<Self, DmaError> {
        let page = bytes.max(1 << MIN_LOG_PAGE).checked_next_power_of_two().ok_or(DmaError::Request { bytes, align: 1 << MIN_LOG_PAGE })?;
        Ok(Self {
            ring: arena.alloc(page, page)?,
            log_page: page.trailing_zeros(),
            record: arena.alloc(RECORD_BYTES, RECORD_BYTES)?,
        })
    }

    /// The page list, as commands carry it.
    #[must_use]
    pub fn pages(&self) -> [u8; 8] {
        self.ring.iova().0.to_be_bytes()
    }

    /// `log_page_size` as contexts carry it.
    #[must_use]
    pub fn log_page_size(&self) -> u32 {
        self.log_page - MIN_LOG_PAGE
    }

    /// I/O address of the doorbell record.
    #[must_use]
    pub fn record_address(&self) -> u64 {
        self.record.iova().0
    }

    /// Keeps the memory from being reused if the device may still write it after this failure.
    #[must_use]
    pub fn after(&self, error: CmdError) -> CmdError {
        if error.outcome_unknown() {
            tracing::warn!(%error, memory = ?self, "the device may still write a queue's memory; it is abandoned");
            self.abandon();
        }
        error
    }

    /// Never frees the memory.
    pub fn abandon(&self) {
        core::mem::forget(self.clone());
    }
}
