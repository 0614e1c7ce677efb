//! Memory of a queue: its ring and its doorbell record.
//!
//! The device takes a ring as a list of pages of one size of our choice, 4 KiB or more (PRM, `log_page_size` of the
//! contexts and the page list behind them). The memory is one piece of the I/O address space, and its pages are as
//! large as its length allows: a ring of a power of two is one page, and the list has one entry. The two rings of a
//! queue pair together are no power of two: they are rounded up by less than an eighth, or to whole pages of 4 KiB, and
//! the list has up to fifteen entries.
//!
//! A doorbell record takes a cache line. A queue pair's record lies behind the rings, if their last page has room for
//! it. The record of a queue whose ring can be exchanged is separate, because it stays.
//!
//! All pages of a ring are touched when it is made: the first post to a queue costs no more than later ones.
//!
//! Memory lent to the device must outlive the device's use of it. Only an answered destroy command proves the end of
//! that use, or the end of the function. Such memory is therefore held as [`Lent`], which does not free its value
//! when it is dropped but leaves it to the arena. If a queue was forgotten, or its destroy command was refused or not
//! answered, its memory is out of use until the device is stopped; freeing it would let the device write into memory
//! with another owner.

use driver::{DmaArena, DmaBuffer, DmaError, WeakArena};

use crate::error::CmdError;

/// log2 of the smallest page.
const MIN_LOG_PAGE: u32 = 12;
const MIN_PAGE: usize = 1 << MIN_LOG_PAGE;
/// Fraction of the whole that rounding up may waste, if that is more than a page.
const LOST: usize = 8;
/// Bytes of a cache line, which a doorbell record of 8 bytes has to itself.
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
    /// Allocates memory for a ring of at least `bytes`, and a separate doorbell record.
    ///
    /// # Errors
    /// No memory.
    pub fn alloc(arena: &DmaArena, bytes: usize) -> Result<Self, DmaError> {
        Self::with_record(arena, bytes, arena.alloc(RECORD_BYTES, RECORD_BYTES)?)
    }

    /// Allocates memory for rings of at least `bytes` that are never exchanged, with their doorbell record in the
    /// same pages if there is room.
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

    /// Allocates memory for a ring of at least `bytes` to replace this one: the record stays.
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

    /// Returns the page list in the form of commands.
    #[must_use]
    pub fn pages(&self) -> Vec<u8> {
        (0..self.ring.len() >> self.log_page)
            .flat_map(|page| {
                let address = self.ring.iova().advance(page << self.log_page);
                address.0.to_be_bytes()
            })
            .collect()
    }

    /// Returns `log_page_size` in the form of contexts.
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

    /// Returns the I/O address of the doorbell record.
    #[must_use]
    pub fn record_address(&self) -> u64 {
        self.record.iova().0
    }
}

/// Returns the bytes of the pages for this many bytes; `None` on overflow.
fn rounded(bytes: usize) -> Option<usize> {
    let bytes = bytes.max(MIN_PAGE);
    // With sizes rounded up to a multiple of this, the page list is short, and little is wasted.
    let grain = (bytes / LOST).max(MIN_PAGE);
    bytes.checked_next_multiple_of(1 << grain.ilog2())
}

/// Allocates at least `bytes`, in pages as large as its length allows; returns log2 of the page size too.
fn pages_for(arena: &DmaArena, bytes: usize) -> Result<(DmaBuffer, u32), DmaError> {
    let too_much = DmaError::Request {
        bytes,
        align: MIN_PAGE,
    };
    let rounded = rounded(bytes).ok_or(too_much)?;
    let log_page = rounded.trailing_zeros();
    let memory = arena.alloc(rounded, 1 << log_page)?;
    for page in (0..rounded).step_by(MIN_PAGE) {
        // It is zero already. The store makes the kernel allocate the page.
        memory.store_u8(page, 0);
    }
    Ok((memory, log_page))
}

/// A value that the device may use until it is [given back](Lent::give_back). If it is dropped before, the arena
/// keeps it as long as the arena exists; the device is stopped before that ends.
#[derive(Debug)]
pub struct Lent<T: Send + 'static> {
    /// `None` once it was given back.
    value: Option<T>,
    arena: WeakArena,
    /// True if the device has reported that it no longer uses it.
    ours: bool,
}

impl<T: Send + 'static> Lent<T> {
    /// Takes a value that is about to be lent. `arena` is the function's, whatever memory it is.
    pub const fn new(value: T, arena: WeakArena) -> Self {
        Self {
            value: Some(value),
            arena,
            ours: false,
        }
    }

    /// Notes that the device no longer uses it. The value is freed when it is dropped and not earlier, since its
    /// holder still reads it.
    pub const fn returned(&mut self) {
        self.ours = true;
    }

    /// Returns whether the device no longer uses it.
    pub const fn is_returned(&self) -> bool {
        self.ours
    }

    /// Returns the value.
    pub fn get(&self) -> &T {
        // PANIC: only `give_back` takes it, which ends the life of `self`.
        self.value.as_ref().expect("something lent")
    }

    /// Returns the value to us: the device has reported that it does not use it, or never knew it.
    pub fn give_back(mut self) -> T {
        // PANIC: as above.
        self.value.take().expect("something lent")
    }

    /// Decides about the value after the command that was to lend it failed: it is ours again unless the command may
    /// have taken effect.
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
