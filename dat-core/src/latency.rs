//! Histogram of times, in a fixed array of counters.
//!
//! The scale is logarithmic, with 8 buckets for each power of two. So a time is known with a precision of one eighth,
//! from 1 ns to [`LONGEST`]. Counts of buckets only grow, so the difference of two readings counts the times between
//! them.

use crate::provider::Nanos;

/// Number of buckets for each power of two.
const PARTS: usize = 8;
/// Number of bits of a bucket's index within its power of two.
const PART_BITS: u32 = PARTS.ilog2();
/// Number of powers of two that the histogram distinguishes. All times longer than [`LONGEST`] count in the last
/// bucket.
const POWERS: usize = 36;
/// Upper bound of the last bucket, in nanoseconds: 69 s.
pub const LONGEST: Nanos = 1 << POWERS;
/// Number of buckets. Times below `PARTS` ns have one bucket each.
const PLACES: usize = (POWERS - PART_BITS as usize + 1) * PARTS;

/// Histogram of times.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    places: [u64; PLACES],
    sum: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            places: [0; PLACES],
            sum: 0,
        }
    }
}

impl Histogram {
    /// Adds one time, in nanoseconds.
    pub fn add(&mut self, took: Nanos) {
        self.places[place(took)] += 1;
        self.sum = self.sum.saturating_add(took);
    }

    /// Returns the number of times added.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.places.iter().sum()
    }

    /// Returns the sum of all times, in nanoseconds.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the buckets that are not empty: the upper bound of the bucket, in nanoseconds, and its count. A bucket
    /// begins at the upper bound of the previous bucket.
    pub fn places(&self) -> impl Iterator<Item = (Nanos, u64)> {
        let places = self.places.iter().enumerate();
        places
            .filter(|(_, count)| **count != 0)
            .map(|(at, count)| (end(at), *count))
    }
}

impl core::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_map().entries(self.places()).finish()
    }
}

/// Returns the index of the bucket of a time.
fn place(took: Nanos) -> usize {
    // CAST: a time below `LONGEST` has at most 36 bits.
    let took = took.min(LONGEST - 1) as usize;
    if took < PARTS {
        return took;
    }
    let shift = took.ilog2() - PART_BITS;
    (shift as usize) * PARTS + (took >> shift)
}

/// Returns the upper bound of a bucket: the shortest time that is beyond the bucket.
const fn end(place: usize) -> Nanos {
    let next = place + 1;
    if next <= PARTS {
        return next as u64; // CAST: widening.
    }
    let shift = next / PARTS - 1;
    ((PARTS + next % PARTS) as u64) << shift // CAST: widening.
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_in_its_place_and_a_place_is_an_eighth_of_its_power_at_most() {
        let mut begin = 0;
        for at in 0..PLACES {
            let end = end(at);
            assert!(begin < end, "place {at}");
            assert_eq!((place(begin), place(end - 1)), (at, at), "{begin} to {end}");
            assert!((end - begin) * 8 <= begin.max(8), "{begin} to {end}");
            begin = end;
        }
        assert_eq!(begin, LONGEST);
    }

    #[test]
    fn a_time_beyond_all_places_is_counted_in_the_last() {
        let mut taken = Histogram::default();
        for took in [0, 1_000, LONGEST, u64::MAX] {
            taken.add(took);
        }
        let places: Vec<(Nanos, u64)> = taken.places().collect();
        assert_eq!(places, [(1, 1), (1_024, 1), (LONGEST, 2)]);
        assert_eq!((taken.count(), taken.sum()), (4, u64::MAX));
    }
}
