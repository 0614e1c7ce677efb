//! Memory of a queue: its ring and its doorbell record.
//!
//! The device takes a ring as a list of pages of one size of our choice, 4 KiB or more (PRM, `log_page_size` of the
//! contexts and the page list behind them). The memory is one piece of the I/O address space, and its pages are as
//! large as its length allows: a ring of a power of two is one page, and the list has one entry. The two rings of a
//! queue pair together are no power of two: they are rounded up by less than an eighth, or to whole pages of 4 KiB, and
//! the list has up to fifteen entries.
//!
//! A doorbell record takes a cache line. That of a queue pair lies behind the rings, where their last page has room for
//! it. That of a queue whose ring can be exchanged is apart, because it stays.
//!
//! A ring is in memory, page by page, when it is made: the first post to a queue costs what the others cost.
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
const MIN_PAGE: usize = 1 << MIN_LOG_PAGE;
/// What is lost by rounding up is less than this part of the whole, if it is more than a page.
const LOST: usize = 8;
/// A doorbell record has 8 bytes; it gets a line to itself.
const RECORD_BYTES: usize = 64;

/// A ring and its doorbell record, zeroed.
#[derive(Clone, Debug)]
pub struct RingMemory {
    /// The ring: whole pages as the device sees it.
    pub ring: DmaBuffer,
    /// log2 of such a page.
    pub log_page: u32,
    /// The doorbell record.
    pub record: DmaBuffer,
}

impl RingMemory {
    /// Memory for a ring of at least `bytes`, and a doorbell record apart.
    ///
    /// # Errors
    /// No memory.
    pub fn alloc(arena: &DmaArena, bytes: usize) -> Result<Self, DmaError> {
        Self::with_record(arena, bytes, arena.alloc(RECORD_BYTES, RECORD_BYTES)?)
    }

    /// Memory for rings of at least `bytes` that are never exchanged, with their doorbell record in the same pages if
    /// there is room.
    ///
    /// # Errors
    /// No memory.
    pub fn alloc_for_good(arena: &DmaArena, bytes: usize) -> Result<Self, DmaError> {
        let record = bytes.next_multiple_of(RECORD_BYTES);
        if rounded(bytes).is_none_or(|all| all < record + RECORD_BYTES) {
            return Self::alloc(arena, bytes);
        }
        let (ring, log_page) = pages_for(arena, bytes)?;
        Ok(Self {
            record: ring.part(record, RECORD_BYTES),
            ring,
            log_page,
        })
    }

    /// Memory for a ring of at least `bytes` in place of this one: the record stays.
    ///
    /// # Errors
    /// No memory.
    pub fn another(&self, arena: &DmaArena, bytes: usize) -> Result<Self, DmaError> {
        Self::with_record(arena, bytes, self.record.clone())
    }

    fn with_record(arena: &DmaArena, bytes: usize, record: DmaBuffer) -> Result<Self, DmaError> {
        let (ring, log_page) = pages_for(arena, bytes)?;
        Ok(Self {
            ring,
            log_page,
            record,
        })
    }

    /// The page list, as commands carry it.
    #[must_use]
    pub fn pages(&self) -> Vec<u8> {
        (0..self.ring.len() >> self.log_page)
            .flat_map(|page| {
                let address = self.ring.iova().advance(page << self.log_page);
                address.0.to_be_bytes()
            })
            .collect()
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

/// Bytes of the pages for so many, if that is a number.
fn rounded(bytes: usize) -> Option<usize> {
    let bytes = bytes.max(MIN_PAGE);
    // Rounded up to a multiple of this, the page list is short, and little is lost.
    let grain = (bytes / LOST).max(MIN_PAGE);
    bytes.checked_next_multiple_of(1 << grain.ilog2())
}

/// Memory of at least `bytes`, in pages as large as its length allows, and log2 of such a page.
fn pages_for(arena: &DmaArena, bytes: usize) -> Result<(DmaBuffer, u32), DmaError> {
    let too_much = DmaError::Request {
        bytes,
        align: MIN_PAGE,
    };
    let rounded = rounded(bytes).ok_or(too_much)?;
    let log_page = rounded.trailing_zeros();
    let memory = arena.alloc(rounded, 1 << log_page)?;
    for page in (0..rounded).step_by(MIN_PAGE) {
        // It is zero already. A store has the kernel put a page there.
        memory.store_u8(page, 0);
    }
    Ok((memory, log_page))
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

    /// The device has said that it does not use it any more: it is freed when it is dropped, and not before, for
    /// whoever holds it still reads it.
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

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    #[test]
    fn a_power_of_two_is_one_page_and_nothing_is_lost() {
        for log in MIN_LOG_PAGE..24 {
            assert_eq!(rounded(1 << log), Some(1 << log));
        }
        assert_eq!((rounded(1), rounded(64)), (Some(4 * KIB), Some(4 * KIB)));
    }

    #[test]
    fn what_is_lost_is_less_than_a_page_or_an_eighth_and_the_list_is_short() {
        for bytes in (1..3 << 20).step_by(1000) {
            let all = rounded(bytes).expect("a number");
            let lost = all - bytes;
            assert!(lost < (4 * KIB).max(bytes / LOST), "{bytes}: {lost}");
            let entries = all >> all.trailing_zeros();
            assert!(entries < 2 * LOST, "{bytes}: {entries} pages");
        }
        assert_eq!(rounded(usize::MAX), None);
    }

    #[test]
    fn the_rings_of_an_endpoint_of_128_requests_and_as_many_receives_take_three_pages() {
        assert_eq!(rounded(128 * 64 + 128 * 16), Some(12 * KIB));
    }
}
