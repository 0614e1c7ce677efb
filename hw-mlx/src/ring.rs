//! Memory of a queue: its ring and its doorbell record.
//!
//! The device takes a ring as a list of pages of one size of our choice. A ring is therefore allocated as
//! one page: a power of two of at least 4 KiB, aligned to its size, so that the list has one entry.
//! Doorbell records take a cache line each.
//!
//! Memory lent to the device must outlive the device's use of it, and only an answered destroy
//! command proves the end of that, or the end of the function. Whoever holds such memory therefore
//! holds it as [`Lent`], which does not free what it holds when it is dropped but leaves it to the
//! arena: after a queue was forgotten, a destroy command refused or not answered, its memory is out of
//! use until the device is stopped, where freeing it would let the device write into somebody else's.

use driver::{DmaArena, DmaBuffer, DmaError, WeakArena};

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
        Self::with_record(arena, bytes, arena.alloc(RECORD_BYTES, RECORD_BYTES)?)
    }

    /// Memory for a ring of at least `bytes` in place of this one: the record stays.
    ///
    /// # Errors
    /// No memory.
    pub fn another(&self, arena: &DmaArena, bytes: usize) -> Result<Self, DmaError> {
        Self::with_record(arena, bytes, self.record.clone())
    }

    fn with_record(arena: &DmaArena, bytes: usize, record: DmaBuffer) -> Result<Self, DmaError> {
        let page = bytes
            .max(1 << MIN_LOG_PAGE)
            .checked_next_power_of_two()
            .ok_or(DmaError::Request {
                bytes,
                align: 1 << MIN_LOG_PAGE,
            })?;
        Ok(Self {
            ring: arena.alloc(page, page)?,
            log_page: page.trailing_zeros(),
            record,
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

    /// Lends it to the device.
    #[must_use]
    pub fn lend(self) -> Lent<Self> {
        let arena = self.ring.arena();
        Lent::new(self, arena)
    }

    /// I/O address of the doorbell record.
    #[must_use]
    pub fn record_address(&self) -> u64 {
        self.record.iova().0
    }
}

/// Something the device may use until it is [given back](Lent::give_back). Dropped, it is kept by the arena
/// until that goes, before which the device is stopped.
#[derive(Debug)]
pub struct Lent<T: Send + 'static> {
    /// `None` once it was given back.
    value: Option<T>,
    arena: WeakArena,
    /// The device has said that it does not use it any more.
    ours: bool,
}

impl<T: Send + 'static> Lent<T> {
    /// Takes what is about to be lent. `arena` is the function's, whatever memory it is.
    pub const fn new(value: T, arena: WeakArena) -> Self {
        Self {
            value: Some(value),
            arena,
            ours: false,
        }
    }

    /// The device has said that it does not use it any more: it is freed when it is dropped, and not before, for whoever
    /// holds it still reads it.
    pub const fn returned(&mut self) {
        self.ours = true;
    }

    /// Whether the device has said so.
    pub const fn is_returned(&self) -> bool {
        self.ours
    }

    /// What is lent.
    pub fn get(&self) -> &T {
        // PANIC: only `give_back` takes it, which ends the life of `self`.
        self.value.as_ref().expect("something lent")
    }

    /// Ours again: the device has said, or never knew, that it does not use it.
    pub fn give_back(mut self) -> T {
        // PANIC: as above.
        self.value.take().expect("something lent")
    }

    /// Settles what became of it when the command that was to lend it failed: it is ours again unless
    /// the command may have taken effect.
    #[must_use]
    pub fn after(self, error: CmdError) -> CmdError {
        if error.outcome_unknown() {
            tracing::warn!(%error, "the device may still write memory it was to be lent; it stays out of use");
        } else {
            drop(self.give_back());
        }
        error
    }
}

impl<T: Send + 'static> Drop for Lent<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take().filter(|_| !self.ours) {
            self.arena.keep(value);
        }
    }
}
