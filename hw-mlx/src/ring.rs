//! Memory of a queue: its ring and its doorbell record.
//!
//! The device takes a ring as a list of pages. We choose their size, 4 KiB or more (PRM, `log_page_size` of the
//! contexts and the page list behind them). The memory is contiguous in I/O address space, and the pages are as large
//! as its length allows. A ring whose size is a power of two is one page, and the list has one entry. The size of a
//! queue pair's two rings together is usually no power of two. It is rounded up by less than an eighth, or to whole
//! pages of 4 KiB, and the list has up to fifteen entries.
//!
//! A doorbell record takes a cache line. A queue pair's record lies behind the rings, if it fits in their last page. A
//! queue whose ring can be replaced has a separate record, because the record stays when the ring is replaced.
//!
//! All pages of a ring are written when it is made, so the first post to a queue costs no more than later ones.
//!
//! Memory lent to the device must outlive the device's use of it. Only an answered destroy command, or the end of the
//! function, proves that the use has ended. Such memory is therefore held as [`Lent`], which does not free its value
//! when it is dropped but leaves it to the arena. If a queue was forgotten, or its destroy command was refused or not
//! answered, its memory is out of use until the device is stopped. If it were freed earlier, the device could write
//! into memory with another owner.

mod parking;

use driver::{DmaArena, DmaBuffer, DmaError, WeakArena};

use crate::error::CmdError;
pub use parking::RingSnapshot;

/// log2 of the smallest page.
const MIN_LOG_PAGE: u32 = 12;
const MIN_PAGE: usize = 1 << MIN_LOG_PAGE;
/// Divisor for the waste of rounding up: less than an eighth of the size, or less than a page.
const LOST: usize = 8;
/// Bytes of a cache line, which a doorbell record of 8 bytes has to itself.
const RECORD_BYTES: usize = 64;

/// A ring and its doorbell record, zeroed.
#[derive(Clone, Debug)]
pub struct RingMemory {
    /// Memory of the ring, in whole pages of `log_page`.
    pub ring: DmaBuffer,
    /// log2 of the page size.
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

    /// Allocates memory for rings of at least `bytes` that are never replaced. Their doorbell record is in the same
    /// pages if it fits.
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

    /// Allocates memory for a ring of at least `bytes` that replaces this one. Keeps the doorbell record.
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

    /// Returns the page list as commands carry it.
    #[must_use]
    pub fn pages(&self) -> Vec<u8> {
        (0..self.ring.len() >> self.log_page)
            .flat_map(|page| {
                let address = self.ring.iova().advance(page << self.log_page);
                address.0.to_be_bytes()
            })
            .collect()
    }

    /// Returns the page size as contexts encode it (`log_page_size`).
    #[must_use]
    pub fn log_page_size(&self) -> u32 {
        self.log_page - MIN_LOG_PAGE
    }

    /// Marks the memory as lent to the device.
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

/// Returns the number of bytes to allocate for at least `bytes`; `None` on overflow.
fn rounded(bytes: usize) -> Option<usize> {
    let bytes = bytes.max(MIN_PAGE);
    // Sizes are rounded up to a multiple of `grain`, which keeps the page list short and wastes little.
    let grain = (bytes / LOST).max(MIN_PAGE);
    bytes.checked_next_multiple_of(1 << grain.ilog2())
}

/// Allocates at least `bytes`, in pages as large as the length allows. Returns the memory and log2 of the page size.
fn pages_for(arena: &DmaArena, bytes: usize) -> Result<(DmaBuffer, u32), DmaError> {
    let too_much = DmaError::Request {
        bytes,
        align: MIN_PAGE,
    };
    let rounded = rounded(bytes).ok_or(too_much)?;
    let log_page = rounded.trailing_zeros();
    let memory = arena.alloc(rounded, 1 << log_page)?;
    for page in (0..rounded).step_by(MIN_PAGE) {
        // The memory is zero already. This store makes the kernel allocate the page.
        memory.store_u8(page, 0);
    }
    Ok((memory, log_page))
}

/// A value that the device may use until it is [given back](Lent::give_back). If it is dropped before, the arena
/// keeps the value as long as the arena exists. The device is stopped before the arena ends.
#[derive(Debug)]
pub struct Lent<T: Send + 'static> {
    /// The value; `None` once it was given back.
    value: Option<T>,
    arena: WeakArena,
    /// True if the device has reported that it no longer uses the value.
    ours: bool,
}

impl<T: Send + 'static> Lent<T> {
    /// Wraps a value that is about to be lent. `arena` is the function's arena, even if the value is other memory.
    pub const fn new(value: T, arena: WeakArena) -> Self {
        Self {
            value: Some(value),
            arena,
            ours: false,
        }
    }

    /// Notes that the device no longer uses the value. The value is freed only when it is dropped, since its holder
    /// still reads it.
    pub const fn returned(&mut self) {
        self.ours = true;
    }

    /// Returns whether the device no longer uses the value.
    pub const fn is_returned(&self) -> bool {
        self.ours
    }

    /// Returns the value.
    pub fn get(&self) -> &T {
        // PANIC: only `give_back` takes the value, and it consumes `self`.
        self.value.as_ref().expect("something lent")
    }

    /// Unwraps the value. The caller knows that the device does not use it any more, or never did.
    pub fn give_back(mut self) -> T {
        // PANIC: as in `get`.
        self.value.take().expect("something lent")
    }

    /// Handles the failure of the command that was to lend the value. Frees the value, unless the command may have
    /// taken effect.
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
