//! A table for the requests in a ring, indexed by a 32-bit counter that wraps.
//!
//! For each request, a queue records what the completion of that request must report. The records are in a table
//! whose size is a power of two; the queue masks a counter to find an entry. The mask is the length minus one and never
//! changes, so a masked index is always inside the table and needs no bounds check. The length itself is not stored:
//! a table is a quarter of a cache line, including the count of its oldest entry.

// UNSAFETY: accesses without a bounds check.
#![expect(unsafe_code, reason = "the mask is the length minus one")]

use std::ptr::NonNull;

/// A table of a power of two of entries, indexed by a count that is masked on access.
#[repr(C)]
pub struct Cyclic<T> {
    /// Start of a boxed slice of `mask + 1` entries.
    entries: NonNull<T>,
    mask: u32,
    /// Count of the oldest entry still in use. Only the table's owner uses this field.
    pub oldest: u32,
}

// SAFETY: the table owns its entries, as a box does.
unsafe impl<T: Send> Send for Cyclic<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Cyclic<T> {}

impl<T: Copy> Cyclic<T> {
    /// Makes a table of at least `entries` entries, rounded up to a power of two, each of them `value`.
    ///
    /// # Panics
    /// If the next power of two is not below 2^32.
    #[must_use]
    pub fn new(entries: u32, value: T) -> Self {
        // PANIC: queues have at most 2^24 entries.
        let length = entries.max(1).checked_next_power_of_two();
        let length = length.expect("at most 2^31 entries");
        let entries = vec![value; length as usize].into_boxed_slice();
        Self {
            entries: NonNull::from(Box::leak(entries)).cast(),
            mask: length - 1,
            oldest: 0,
        }
    }

    /// Returns the index of a count's entry: the masked count. All counts of one entry give the same index.
    #[inline(always)]
    #[must_use]
    pub const fn slot(&self, count: u32) -> u32 {
        count & self.mask
    }

    /// Returns the entry of a count.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, count: u32) -> &T {
        // SAFETY: `mask + 1` is the length, as `new` made it, and neither changes.
        let entry = unsafe { self.entries.add(self.slot(count) as usize) };
        // SAFETY: the entry is initialised, and borrowed as `self` is.
        unsafe { entry.as_ref() }
    }

    /// Returns the entry of a count, mutably.
    #[inline(always)]
    #[must_use]
    pub fn at_mut(&mut self, count: u32) -> &mut T {
        // SAFETY: as `at`.
        let mut entry = unsafe { self.entries.add(self.slot(count) as usize) };
        // SAFETY: as `at`.
        unsafe { entry.as_mut() }
    }

    /// Sets every entry to `value`.
    pub fn fill(&mut self, value: T) {
        for count in 0..=self.mask {
            *self.at_mut(count) = value;
        }
    }
}

impl<T> Drop for Cyclic<T> {
    fn drop(&mut self) {
        let all = NonNull::slice_from_raw_parts(self.entries, self.mask as usize + 1);
        // SAFETY: this is the box that `new` leaked, with its full length.
        drop(unsafe { Box::from_raw(all.as_ptr()) });
    }
}

impl<T> std::fmt::Debug for Cyclic<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entries = u64::from(self.mask) + 1;
        write!(f, "Cyclic({entries:#x} entries from {:#x} on)", self.oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_finds_the_entry_of_its_low_bits() {
        let mut table = Cyclic::new(5, 0);
        for count in 0..8 {
            *table.at_mut(count) = count;
        }
        for lap in [0, 8, 0x7fff_fff8, 0xffff_fff8] {
            for count in 0..8 {
                assert_eq!(*table.at(lap + count), count);
            }
        }
        assert_eq!(*table.at(u32::MAX), 7);
        table.fill(9);
        assert!((0..8).all(|count| *table.at(count) == 9));
        assert_eq!(size_of_val(&table), 16);
    }

    #[test]
    fn a_table_for_nothing_has_one_entry() {
        let mut table = Cyclic::new(0, 1);
        *table.at_mut(77) = 2;
        assert_eq!(*table.at(0), 2);
    }
}
