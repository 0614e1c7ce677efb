//! Use counts of addresses: ranges may overlap, and each is added and removed on its own.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Map whose keys are addresses. The value of a key is the use count of all addresses from this key up to the next key.
#[derive(Debug, Default)]
pub(crate) struct Extents(BTreeMap<usize, usize>);

impl Extents {
    /// Adds a key at an address, so that the use count from this address on can change.
    fn cut(&mut self, at: usize) {
        let (_, &count) = self.0.range(..=at).next_back().unwrap_or((&0, &0));
        self.0.entry(at).or_insert(count);
    }

    /// Adds one use of a range.
    pub(crate) fn add(&mut self, range: &Range<usize>) {
        self.cut(range.start);
        self.cut(range.end);
        for (_, count) in self.0.range_mut(range.clone()) {
            *count += 1;
        }
        self.join(range);
    }

    /// Removes one use of a range. Returns the parts that have no use left.
    pub(crate) fn remove(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        self.cut(range.start);
        self.cut(range.end);
        let mut free: Vec<Range<usize>> = Vec::new();
        let mut open = None;
        for (&at, count) in self.0.range_mut(range.start..=range.end) {
            if let Some(start) = open.take() {
                free.push(start..at);
            }
            if at < range.end {
                *count -= 1;
                open = (*count == 0).then_some(at);
            }
        }
        self.join(range);
        free
    }

    /// Joins neighbours with equal counts, at and between the ends of a range.
    fn join(&mut self, range: &Range<usize>) {
        let below = self.0.range(..range.start).next_back();
        let mut before = below.map_or(0, |(_, &count)| count);
        let mut same = Vec::new();
        for (&at, &count) in self.0.range(range.start..=range.end) {
            if count == before {
                same.push(at);
            }
            before = count;
        }
        for at in same {
            self.0.remove(&at);
        }
    }

    /// Returns whether no range is in use.
    pub(crate) fn is_empty(&self) -> bool {
        // Equal counts are joined, so a map without uses has no entries.
        self.0.is_empty()
    }

    /// Returns the parts of a range that are in use.
    pub(crate) fn used_parts(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let below = self.0.range(..=range.start).next_back();
        let mut open = below
            .is_some_and(|(_, &count)| count > 0)
            .then_some(range.start);
        let mut taken = Vec::new();
        for (&at, &count) in self.0.range(range.clone()) {
            match (open, count > 0) {
                (None, true) => open = Some(at),
                (Some(start), false) => {
                    taken.extend((start < at).then_some(start..at));
                    open = None;
                }
                (None, false) | (Some(_), true) => {}
            }
        }
        taken.extend(open.map(|start| start..range.end));
        taken
    }

    /// Returns whether all of a range is in use.
    pub(crate) fn covers(&self, range: &Range<usize>) -> bool {
        let first = self.0.range(..=range.start).next_back();
        let taken = |(_, &count): (&usize, &usize)| count > 0;
        first.is_some_and(taken) && self.0.range(range.clone()).all(taken)
    }
}

/// Addresses that may be accessed on behalf of another process, while the lock is held.
#[derive(Debug, Default)]
pub(crate) struct Open(Mutex<Extents>);

impl Open {
    /// Locks the addresses for adding, removing or accessing. So a removal waits for an access in progress.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Extents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges are compared, some of them short"
)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_covered_while_each_byte_of_it_is_in_use() {
        let mut extents = Extents::default();
        assert!(!extents.covers(&(0..1)));
        extents.add(&(10..20));
        extents.add(&(15..30));
        extents.add(&(40..50));
        let covered = [10..11, 10..30, 29..30, 40..50];
        let not = [9..10, 9..11, 29..31, 30..31, 25..45, 50..51, 0..60];
        assert!(covered.iter().all(|range| extents.covers(range)));
        assert!(!not.iter().any(|range| extents.covers(range)));
        assert_eq!(extents.used_parts(&(0..60)), [10..30, 40..50]);
        assert_eq!(extents.used_parts(&(12..45)), [12..30, 40..45]);
        assert_eq!(extents.used_parts(&(30..40)), []);
        assert_eq!(extents.used_parts(&(10..30)), [10..30]);
        assert_eq!(extents.remove(&(10..20)), [10..15]);
        assert!(extents.covers(&(15..30)) && !extents.covers(&(14..16)));
        assert_eq!(extents.remove(&(15..30)), [15..30]);
        assert_eq!(extents.remove(&(40..50)), [40..50]);
        assert!(extents.is_empty());
    }
}
