//! What is remembered beside a ring: entries found by a count that runs on and wraps.
//!
//! A queue remembers of each request what its completion must say, in a table of a power of two of entries, and finds the
//! entry by masking a counter. The mask follows from the table's length, which never changes, so no access can leave it, and
//! none is compared with the length.

// UNSAFETY: accesses without a bounds check.
#![expect(unsafe_code, reason = "the mask is the length minus one")]

/// A power of two of entries, found by a count that is masked on access.
#[derive(Clone, Debug)]
pub struct Cyclic<T> {
    /// `mask + 1` of them.
    entries: Box<[T]>,
    mask: u32,
}

impl<T: Copy> Cyclic<T> {
    /// At least `entries` entries, rounded up to a power of two, each of them `value`.
    ///
    /// # Panics
    /// When there is no power of two for it below 2^32.
    #[must_use]
    pub fn new(entries: u32, value: T) -> Self {
        // PANIC: queues have at most 2^24 entries.
        let length = entries.max(1).checked_next_power_of_two();
        let length = length.expect("at most 2^31 entries");
        Self {
            entries: vec![value; length as usize].into_boxed_slice(),
            mask: length - 1,
        }
    }

    /// The entry of a count.
    #[inline(always)]
    #[must_use]
    pub fn at(&self, count: u32) -> &T {
        // SAFETY: `mask + 1` is the length, as `new` made it, and neither changes.
        unsafe { self.entries.get_unchecked((count & self.mask) as usize) }
    }

    /// The entry of a count.
    #[inline(always)]
    #[must_use]
    pub fn at_mut(&mut self, count: u32) -> &mut T {
        // SAFETY: as `at`.
        unsafe { self.entries.get_unchecked_mut((count & self.mask) as usize) }
    }

    /// Makes every entry `value`.
    pub fn fill(&mut self, value: T) {
        self.entries.fill(value);
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
        assert_eq!(*table.at(3), 9);
    }

    #[test]
    fn a_table_for_nothing_has_one_entry() {
        let mut table = Cyclic::new(0, 1);
        *table.at_mut(77) = 2;
        assert_eq!(*table.at(0), 2);
    }
}
