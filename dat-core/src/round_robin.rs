//! Sets whose members are served round-robin, a few per call, so that the duration of a call does not grow with the
//! number of members.

use core::hash::Hash;
use std::collections::{BTreeMap, HashMap};

/// A set of keys. Each call except `iter` takes constant time, independent of the number of keys.
#[derive(Default)]
pub(crate) struct RoundRobin<K> {
    keys: Vec<K>,
    /// Index of each key in `keys`.
    places: HashMap<K, usize>,
    /// Index of the key that was returned last.
    last: usize,
}

impl<K: Copy + Default + Eq + Hash> RoundRobin<K> {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) const fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.places.contains_key(&key)
    }

    /// Returns the keys in arbitrary order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = K> {
        self.keys.iter().copied()
    }

    /// Inserts a key, unless it is already in the set.
    pub(crate) fn insert(&mut self, key: K) {
        self.places.entry(key).or_insert_with(|| {
            self.keys.push(key);
            self.keys.len() - 1
        });
    }

    /// Removes a key, if it is in the set.
    pub(crate) fn remove(&mut self, key: K) {
        if let Some(place) = self.places.remove(&key) {
            self.keys.swap_remove(place);
            if place == self.last {
                // The key that moves to this index is returned next.
                self.last = place.wrapping_sub(1);
            }
            if let Some(moved) = self.keys.get(place) {
                self.places.insert(*moved, place);
            }
        }
    }

    /// Returns the next key, round-robin.
    pub(crate) fn next(&mut self) -> Option<K> {
        let next = self.last.wrapping_add(1);
        self.last = if next < self.keys.len() { next } else { 0 };
        self.keys.get(self.last).copied()
    }
}

/// A multiset of keys: a key stays until it has been removed as often as it was added.
pub(crate) struct Counted<K>(BTreeMap<K, u32>);

impl<K: Copy + Ord> Counted<K> {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds a key. Returns true if the key was not in the set before.
    pub(crate) fn add(&mut self, key: K) -> bool {
        let count = self.0.entry(key).or_insert(0);
        *count += 1;
        *count == 1
    }

    /// Removes a key once. Returns true if this was the last time, and the key is now absent.
    pub(crate) fn remove(&mut self, key: K) -> bool {
        let Some(count) = self.0.get_mut(&key) else {
            return false;
        };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.0.remove(&key);
        }
        is_last
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.0.contains_key(&key)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.0.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_member_is_returned_once_per_round_despite_inserts_and_removes() {
        let mut members = RoundRobin::new();
        (0..10).for_each(|key| members.insert(key));
        members.insert(3);
        for gone in [0, 9, 4, 4] {
            members.remove(gone);
        }
        members.insert(10);
        let mut round: Vec<i32> = (0..members.len()).filter_map(|_| members.next()).collect();
        round.sort_unstable();
        assert_eq!(round, [1, 2, 3, 5, 6, 7, 8, 10]);
    }

    #[test]
    fn an_empty_set_returns_no_member() {
        let mut members = RoundRobin::new();
        assert_eq!(members.next(), None);
        members.insert(7);
        assert_eq!((members.next(), members.next()), (Some(7), Some(7)));
        members.remove(7);
        assert_eq!((members.next(), members.len()), (None, 0));
    }
}
