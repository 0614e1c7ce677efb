//! I/O address space: the allocation of its addresses.
//!
//! The driver allocates the I/O virtual addresses of a function, except the holes its IOMMU reserves (on x86 the MSI
//! window at `0xfee0_0000`). The allocator is a map of free ranges. It allocates the lowest range that fits, and joins
//! adjacent free ranges. It does no I/O and assumes no unit: each chunk of a DMA arena has an allocator of its own for
//! its bytes.
//!
//! Address 0 is never allocated: devices and people take it for "none".

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::error::IovaError;

/// An I/O virtual address: the address the device puts on the bus.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, serde::Serialize, serde::Deserialize)]
pub struct Iova(pub u64);

impl Iova {
    /// Returns the address `bytes` further.
    #[must_use]
    pub const fn advance(self, bytes: usize) -> Self {
        // CAST: usize has at most 64 bits on every target Rust has.
        Self(self.0 + bytes as u64)
    }
}

/// Free ranges of an address space.
#[derive(Debug, Clone)]
pub struct IovaAllocator {
    /// Free ranges, from first address to last address, both inclusive; disjoint and never adjacent.
    free: BTreeMap<u64, u64>,
    /// Ranges outside of which no address becomes free, in the same form; `None`: no restriction.
    allowed: Option<BTreeMap<u64, u64>>,
}

impl IovaAllocator {
    /// Makes an allocator with all of `ranges` free, except address 0. Ranges may overlap or touch; empty ones are
    /// ignored.
    #[must_use]
    pub fn new(ranges: &[RangeInclusive<u64>]) -> Self {
        let mut sorted: Vec<(u64, u64)> = ranges
            .iter()
            .map(|range| ((*range.start()).max(1), *range.end()))
            .filter(|&(start, last)| start <= last)
            .collect();
        sorted.sort_unstable();
        let mut free: BTreeMap<u64, u64> = BTreeMap::new();
        for (start, last) in sorted {
            match free.last_entry() {
                Some(mut below) if start <= below.get().saturating_add(1) => {
                    let joined = last.max(*below.get());
                    below.insert(joined);
                }
                Some(_) | None => {
                    free.insert(start, last);
                }
            }
        }
        Self {
            free,
            allowed: None,
        }
    }

    /// Allocates the lowest free range of `bytes` addresses whose start is a multiple of `align` (a power of two).
    ///
    /// # Errors
    /// As [`IovaAllocator::alloc_congruent`].
    pub fn alloc(&mut self, bytes: u64, align: u64) -> Result<u64, IovaError> {
        self.alloc_congruent(bytes, align, 0)
    }

    /// Allocates the lowest free range of `bytes` addresses whose start is `remainder` modulo `modulus` (a power of
    /// two).
    ///
    /// # Errors
    /// [`IovaError::Request`]: no bytes, a modulus that is no power of two, or a remainder not below it.
    /// [`IovaError::Exhausted`]: no free range is long enough.
    pub fn alloc_congruent(
        &mut self,
        bytes: u64,
        modulus: u64,
        remainder: u64,
    ) -> Result<u64, IovaError> {
        if bytes == 0 || !modulus.is_power_of_two() || remainder >= modulus {
            return Err(IovaError::Request {
                bytes,
                modulus,
                remainder,
            });
        }
        let found = self.free.iter().find_map(|(&start, &last)| {
            let at = start.checked_add(remainder.wrapping_sub(start) & (modulus - 1))?;
            let end = at.checked_add(bytes - 1)?;
            (end <= last).then_some((start, last, at, end))
        });
        let Some((start, last, at, end)) = found else {
            return Err(IovaError::Exhausted {
                bytes,
                modulus,
                remainder,
                free: self.lengths().fold(0, u64::saturating_add),
                longest: self.lengths().max().unwrap_or(0),
            });
        };
        self.free.remove(&start);
        if start < at {
            self.free.insert(start, at - 1);
        }
        if end < last {
            self.free.insert(end + 1, last);
        }
        Ok(at)
    }

    /// Allocates exactly the `bytes` addresses from `start` on. Returns false, and changes nothing, if there are none
    /// or if one of them is not free.
    #[must_use]
    pub(crate) fn take(&mut self, start: u64, bytes: u64) -> bool {
        let last = bytes
            .checked_sub(1)
            .and_then(|last| start.checked_add(last));
        let found = self.free.range(..=start).next_back();
        let (Some(last), Some((&from, &to))) = (last, found) else {
            return false;
        };
        if last > to {
            return false;
        }
        self.free.remove(&from);
        if from < start {
            self.free.insert(from, start - 1);
        }
        if last < to {
            self.free.insert(last + 1, to);
        }
        true
    }

    /// Makes an allocator with exactly these free ranges, restricted to the allowed ranges. `None` if a list is not
    /// sorted, or has address 0 or ranges that overlap or touch, or if a free address is not allowed.
    pub(crate) fn restored(
        free: &[RangeInclusive<u64>],
        allowed: &[RangeInclusive<u64>],
    ) -> Option<Self> {
        let exactly = |ranges: &[RangeInclusive<u64>]| {
            let made = Self::new(ranges);
            made.free_ranges()
                .eq(ranges.iter().cloned())
                .then_some(made)
        };
        let mut restored = exactly(free)?;
        let allowed = exactly(allowed)?.free;
        if common(&restored.free, &allowed) != restored.free {
            return None;
        }
        restored.allowed = Some(allowed);
        Some(restored)
    }

    /// Returns the addresses that are free, and those of the given allocated ranges that become free with them.
    pub(crate) fn with_allocated(
        &self,
        allocated: impl Iterator<Item = RangeInclusive<u64>>,
    ) -> Vec<RangeInclusive<u64>> {
        let allocated: Vec<_> = allocated.collect();
        let mut allocated = Self::new(&allocated).free;
        if let Some(allowed) = &self.allowed {
            allocated = common(&allocated, allowed);
        }
        let given = allocated.into_iter().map(|(start, last)| start..=last);
        let all: Vec<_> = self.free_ranges().chain(given).collect();
        Self::new(&all).free_ranges().collect()
    }

    /// Returns whether one of the addresses is free.
    pub(crate) fn has_free(&self, range: &RangeInclusive<u64>) -> bool {
        let below = self.free.range(..=*range.end()).next_back();
        below.is_some_and(|(_, &last)| last >= *range.start())
    }

    /// Frees `bytes` addresses from `start` on. Addresses that are not allowed any more do not become free.
    ///
    /// # Panics
    /// If `bytes` is 0, or if a part of the addresses is free already: that part would then get two owners.
    pub fn free(&mut self, start: u64, bytes: u64) {
        assert!(bytes > 0, "freeing nothing at {start:#x}");
        let last = start + (bytes - 1);
        match &self.allowed {
            None => self.give(start, last),
            Some(allowed) => {
                for (first, last) in common(&BTreeMap::from([(start, last)]), allowed) {
                    self.give(first, last);
                }
            }
        }
    }

    fn give(&mut self, mut first: u64, mut last: u64) {
        let below = self.free.range(..=last).next_back().map(|(&s, &l)| (s, l));
        let above = last
            .checked_add(1)
            .and_then(|next| self.free.get(&next).map(|&l| (next, l)));
        if let Some((below_start, below_last)) = below {
            assert!(
                below_last < first,
                "freeing {first:#x}..={last:#x}, but {below_start:#x}..={below_last:#x} is free already"
            );
            if below_last + 1 == first {
                self.free.remove(&below_start);
                first = below_start;
            }
        }
        if let Some((above_start, above_last)) = above {
            self.free.remove(&above_start);
            last = above_last;
        }
        self.free.insert(first, last);
    }

    /// Restricts allocation to `ranges`. Free addresses outside are removed now; allocated ones outside are removed
    /// when they are freed.
    pub fn restrict(&mut self, ranges: &[RangeInclusive<u64>]) {
        let allowed = Self::new(ranges).free;
        let allowed = match &self.allowed {
            Some(before) => common(before, &allowed),
            None => allowed,
        };
        self.free = common(&self.free, &allowed);
        self.allowed = Some(allowed);
    }

    /// Returns the free ranges, from the bottom.
    pub fn free_ranges(&self) -> impl Iterator<Item = RangeInclusive<u64>> + '_ {
        self.free.iter().map(|(&start, &last)| start..=last)
    }

    fn lengths(&self) -> impl Iterator<Item = u64> + '_ {
        self.free
            .iter()
            .map(|(&start, &last)| (last - start).saturating_add(1))
    }
}

/// Returns the intersection of two sets of ranges.
fn common(one: &BTreeMap<u64, u64>, other: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
    let mut both = BTreeMap::new();
    for (&start, &last) in one {
        for (&from, &to) in other {
            let (first, end) = (start.max(from), last.min(to));
            if first <= end {
                both.insert(first, end);
            }
        }
    }
    both
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn ranges(allocator: &IovaAllocator) -> Vec<RangeInclusive<u64>> {
        allocator.free_ranges().collect()
    }

    #[test]
    fn address_zero_is_never_given_out() {
        let mut allocator = IovaAllocator::new(&[0..=0x2fff]);
        assert_eq!(allocator.alloc(0x1000, 0x1000), Ok(0x1000));
        let mut bottom = IovaAllocator::new(&[0..=0]);
        assert!(bottom.alloc(1, 1).is_err());
    }

    #[test]
    fn overlapping_and_touching_ranges_are_one() {
        let allocator = IovaAllocator::new(&[
            0x30..=0x3f,
            0x10..=0x1f,
            0x20..=0x2f,
            0x38..=0x4f,
            0x60..=0x6f,
        ]);
        assert_eq!(ranges(&allocator), [0x10..=0x4f, 0x60..=0x6f]);
    }

    #[test]
    fn what_is_restricted_is_free_where_both_are() {
        let mut allocator = IovaAllocator::new(&[0x1000..=0x4fff, 0x8000..=0xffff]);
        assert_eq!(allocator.alloc(0x1000, 0x1000), Ok(0x1000));
        allocator.restrict(&[0..=0x2fff, 0x4000..=0x8fff, 0xf000..=0x1_ffff]);
        assert_eq!(
            ranges(&allocator),
            [
                0x2000..=0x2fff,
                0x4000..=0x4fff,
                0x8000..=0x8fff,
                0xf000..=0xffff
            ]
        );
        allocator.free(0x1000, 0x1000);
        assert_eq!(ranges(&allocator)[0], 0x1000..=0x2fff);
        allocator.restrict(&[]);
        assert_eq!(ranges(&allocator), []);
    }

    #[test]
    fn addresses_freed_outside_of_the_allowed_ranges_stay_unused() {
        let mut allocator = IovaAllocator::new(&[0x1000..=0xffff]);
        assert_eq!(allocator.alloc(0x8000, 0x1000), Ok(0x1000));
        allocator.restrict(&[0x2000..=0x3fff, 0x6000..=0xafff]);
        allocator.restrict(&[0x3000..=0xffff]);
        assert_eq!(ranges(&allocator), [0x9000..=0xafff]);
        allocator.free(0x1000, 0x8000);
        assert_eq!(ranges(&allocator), [0x3000..=0x3fff, 0x6000..=0xafff]);
    }

    #[test]
    fn an_allocation_does_not_span_a_hole() {
        let mut allocator = IovaAllocator::new(&[0..=0xfedf_ffff, 0xfef0_0000..=0xffff_ffff_ffff]);
        let first = allocator.alloc(0xfe00_0000, 0x1000).unwrap();
        assert_eq!(first, 0x1000);
        let second = allocator.alloc(0x100_0000, 0x1000).unwrap();
        assert_eq!(second, 0xfef0_0000);
    }

    #[test]
    fn the_top_of_the_address_space_can_be_used_and_freed() {
        let mut allocator = IovaAllocator::new(&[0..=u64::MAX]);
        let before = ranges(&allocator);
        assert_eq!(allocator.alloc(u64::MAX, 1), Ok(1));
        assert_eq!(allocator.alloc(1, 1).ok(), None);
        allocator.free(1, u64::MAX);
        assert_eq!(ranges(&allocator), before);
    }

    #[test]
    fn congruence_is_kept() {
        let mut allocator = IovaAllocator::new(&[0x1000..=0xf_ffff]);
        assert_eq!(
            allocator.alloc_congruent(0x1000, 0x10_000, 0x3000),
            Ok(0x3000)
        );
        assert_eq!(
            allocator.alloc_congruent(0x1000, 0x10_000, 0x3000),
            Ok(0x1_3000)
        );
        assert_eq!(allocator.alloc_congruent(0x1000, 0x1000, 0), Ok(0x1000));
    }

    #[test]
    fn exactly_the_addresses_that_are_asked_for_are_taken() {
        let mut allocator = IovaAllocator::new(&[0x1000..=0x4fff, 0x8000..=0xffff]);
        assert!(allocator.take(0x2000, 0x1000));
        for (start, bytes) in [
            (0x2000, 0x1000),
            (0x1000, 0x1001),
            (0x2fff, 2),
            (0x4000, 0x1001),
            (0, 1),
            (0x5000, 1),
            (0x1000, 0),
            (0x8000, u64::MAX),
        ] {
            assert!(!allocator.take(start, bytes), "{start:#x} {bytes:#x}");
        }
        let left = [0x1000..=0x1fff, 0x3000..=0x4fff, 0x8000..=0xffff];
        assert_eq!(ranges(&allocator), left);
        assert!(allocator.has_free(&(0x2fff..=0x3000)) && !allocator.has_free(&(0x2000..=0x2fff)));
        allocator.free(0x2000, 0x1000);
        assert!(allocator.take(0x1000, 0x4000));
        assert_eq!(ranges(&allocator), [0x8000..=0xffff]);
    }

    #[test]
    fn a_restored_allocator_is_the_one_whose_ranges_were_read() {
        let mut before = IovaAllocator::new(&[0x1000..=0xffff]);
        assert!(before.take(0x3000, 0x1000));
        before.restrict(&[0x2000..=0x8fff]);
        let free = ranges(&before);
        let in_use = || std::iter::once(0x3000..=0x3fff);
        let allowed = before.with_allocated(in_use());
        assert_eq!(allowed, [0x2000..=0x8fff]);
        let mut after = IovaAllocator::restored(&free, &allowed).unwrap();
        assert_eq!(after.with_allocated(in_use()), allowed);
        for allocator in [&mut before, &mut after] {
            allocator.free(0x3000, 0x1000);
            allocator.restrict(&[0x1000..=0x6fff]);
        }
        assert_eq!(ranges(&after), [0x2000..=0x6fff]);
        assert_eq!(ranges(&after), ranges(&before));
    }

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "a range that makes no sense")]
    fn ranges_that_no_allocator_has_are_not_restored() {
        for free in [
            vec![0..=5],
            vec![1..=5, 6..=7],
            vec![1..=5, 3..=9],
            vec![8..=9, 1..=5],
            vec![5..=4],
        ] {
            let all = [1..=u64::MAX];
            assert!(IovaAllocator::restored(&free, &all).is_none(), "{free:?}");
            assert!(IovaAllocator::restored(&[], &free).is_none(), "{free:?}");
        }
        assert!(IovaAllocator::restored(&[1..=9], &[2..=9]).is_none());
        assert!(IovaAllocator::restored(&[2..=9], &[2..=9]).is_some());
        assert!(IovaAllocator::restored(&[], &[]).is_some());
    }

    #[test]
    fn exhaustion_tells_what_was_asked_and_what_is_left() {
        let mut allocator = IovaAllocator::new(&[0x1000..=0x1fff, 0x4000..=0x5fff]);
        assert_eq!(
            allocator.alloc(0x3000, 0x1000),
            Err(IovaError::Exhausted {
                bytes: 0x3000,
                modulus: 0x1000,
                remainder: 0,
                free: 0x3000,
                longest: 0x2000
            })
        );
    }

    #[test]
    fn senseless_requests_are_refused() {
        let mut allocator = IovaAllocator::new(&[0..=u64::MAX]);
        for (bytes, modulus, remainder) in [(0, 1, 0), (1, 0, 0), (1, 3, 0), (1, 8, 8)] {
            let refused = allocator.alloc_congruent(bytes, modulus, remainder);
            assert!(
                matches!(refused, Err(IovaError::Request { .. })),
                "{bytes} {modulus} {remainder}"
            );
        }
    }

    #[test]
    #[should_panic(expected = "is free already")]
    fn freeing_twice_is_noticed() {
        let mut allocator = IovaAllocator::new(&[0..=0xffff]);
        let at = allocator.alloc(0x1000, 0x1000).unwrap();
        allocator.free(at, 0x1000);
        allocator.free(at, 0x1000);
    }

    /// After random operations the allocator has the same free addresses as a model: a set of the free addresses of a
    /// small space.
    #[test]
    fn random_operations_agree_with_a_set_of_free_addresses() {
        for seed in 0..50 {
            let mut random = StdRng::seed_from_u64(seed);
            let holes = [1..=90_u64, 100..=180, 200..=255];
            let mut allocator = IovaAllocator::new(&holes);
            let mut model: BTreeSet<u64> = holes.iter().cloned().flatten().collect();
            let mut held: Vec<(u64, u64)> = Vec::new();
            for _ in 0..400 {
                if random.random_bool(0.6) {
                    let bytes = random.random_range(1..20);
                    let modulus = 1 << random.random_range(0..5);
                    let remainder = random.random_range(0..modulus);
                    let expected = (0..256_u64).find(|&at| {
                        at % modulus == remainder
                            && (at..at + bytes).all(|address| model.contains(&address))
                    });
                    let got = allocator.alloc_congruent(bytes, modulus, remainder);
                    assert_eq!(
                        got.ok(),
                        expected,
                        "seed {seed}: {bytes} at {remainder} modulo {modulus}"
                    );
                    if let Some(at) = expected {
                        (at..at + bytes).for_each(|address| assert!(model.remove(&address)));
                        held.push((at, bytes));
                    }
                } else if !held.is_empty() {
                    let (at, bytes) = held.swap_remove(random.random_range(0..held.len()));
                    allocator.free(at, bytes);
                    model.extend(at..at + bytes);
                }
                let free: BTreeSet<u64> = allocator.free_ranges().flatten().collect();
                assert_eq!(free, model, "seed {seed}");
                let ranges = ranges(&allocator);
                assert!(
                    ranges
                        .windows(2)
                        .all(|pair| pair[0].end() + 1 < *pair[1].start()),
                    "seed {seed}: neighbours were not joined: {ranges:?}"
                );
            }
        }
    }
}
