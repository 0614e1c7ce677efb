//! Tables whose values are found by key. A table can be written out and read in: each key then finds the same value,
//! and later values get the keys that they would have got.
//!
//! A key holds the index of a slot, from 1, and a generation, which is odd. The generation grows by 2 with each value
//! of the slot and wraps, so that the key of a removed value finds nothing. The slot that was emptied last is filled
//! first. These are the keys that a [`slotmap::SlotMap`] gives out, so they work with a [`slotmap::SecondaryMap`]. A
//! `SlotMap` does not show its empty slots.

use core::ops::{Index, IndexMut};

use slotmap::{Key, KeyData};

/// Generation of the first value of a slot.
const FIRST: u32 = 1;

/// A table of values, which are found by key.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    /// Slots. The first one has the index 1 in keys. The key is that of the value, or of the next value if the slot is
    /// empty.
    slots: Vec<(K, Option<V>)>,
    /// Keys of the next values of the empty slots. The last one is taken first.
    free: Vec<K>,
}

/// Reason why values and empty slots are not those of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableError<K> {
    /// The key has an index that is not a slot.
    Index(K),
    /// Another key has the same index.
    Repeated(K),
}

impl<K: Key, V> Table<K, V> {
    /// Makes an empty table.
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Makes a table of values and of the keys of empty slots, as [`Table::iter`] and [`Table::free`] return them.
    ///
    /// # Errors
    /// The first key that contradicts the others.
    pub(crate) fn resume(
        values: impl ExactSizeIterator<Item = (K, V)>,
        free: &[K],
    ) -> Result<Self, TableError<K>> {
        let mut slots = Vec::new();
        slots.resize_with(values.len() + free.len(), || (K::null(), None));
        let empty = free.iter().map(|&key| (key, None));
        for (key, value) in values.map(|(key, value)| (key, Some(value))).chain(empty) {
            let slot = slots.get_mut(place_of(key)).ok_or(TableError::Index(key))?;
            // No key of a slot is null.
            if !slot.0.is_null() {
                return Err(TableError::Repeated(key));
            }
            *slot = (key, value);
        }
        Ok(Self {
            slots,
            free: free.to_vec(),
        })
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the keys of the next values of the empty slots. The last one is taken first.
    pub(crate) fn free(&self) -> &[K] {
        &self.free
    }

    /// Returns the key that the next inserted value gets.
    pub(crate) fn next_key(&self) -> K {
        let index = self.slots.len() as u64 + 1;
        let new = || KeyData::from_ffi(u64::from(FIRST) << 32 | index).into();
        self.free.last().copied().unwrap_or_else(new)
    }

    pub(crate) fn insert(&mut self, value: V) -> K {
        let key = self.next_key();
        if self.free.pop().is_none() {
            self.slots.push((key, None));
        }
        // PANIC: keys of empty slots are of slots of this table.
        self.slots[place_of(key)].1 = Some(value);
        key
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let (of, value) = self.slots.get_mut(place_of(key))?;
        let value = value.take_if(|_| *of == key)?;
        *of = successor(key);
        self.free.push(*of);
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<&V> {
        match self.slots.get(place_of(key)) {
            Some((of, Some(value))) if *of == key => Some(value),
            Some(_) | None => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        match self.slots.get_mut(place_of(key)) {
            Some((of, Some(value))) if *of == key => Some(value),
            Some(_) | None => None,
        }
    }

    /// Returns the place of a value, with which [`Table::at_mut`] finds it as long as it is not removed.
    pub(crate) fn place(&self, key: K) -> Option<usize> {
        self.contains_key(key).then(|| place_of(key))
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, place: usize) -> Option<&mut V> {
        self.slots.get_mut(place)?.1.as_mut()
    }

    /// Returns the keys and the values, by the index of the slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        let slots = self.slots.iter();
        slots.filter_map(|(key, value)| Some((*key, value.as_ref()?)))
    }

    /// Removes and returns all values, each with its key, by the index of the slot. The table is not used afterwards.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (K, V)> {
        let slots = self.slots.drain(..);
        slots.filter_map(|(key, value)| Some((key, value?)))
    }

    /// Returns the keys, by the index of the slot.
    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.iter().map(|(key, _)| key)
    }

    /// Returns the values, by the index of the slot.
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    pub(crate) fn contains_key(&self, key: K) -> bool {
        self.get(key).is_some()
    }

    /// Returns whether the table has given out the key at some time. Generations wrap. A key counts as given out if its
    /// generation is less than 2^31 before the next generation of its slot.
    pub(crate) fn has_given_out(&self, key: K) -> bool {
        let slot = self.slots.get(place_of(key));
        let next = match slot {
            None => return false,
            Some((current, Some(_))) => successor(*current),
            Some((next, None)) => *next,
        };
        generation_of(next)
            .wrapping_sub(generation_of(key))
            .cast_signed()
            > 0
    }
}

impl<K: Key, V> Index<K> for Table<K, V> {
    type Output = V;
    // PANIC: the key comes from this table and its value was not removed; otherwise the library has a bug.
    fn index(&self, key: K) -> &V {
        self.get(key).expect("a key of this table")
    }
}

impl<K: Key, V> IndexMut<K> for Table<K, V> {
    // PANIC: as in `index`.
    fn index_mut(&mut self, key: K) -> &mut V {
        self.get_mut(key).expect("a key of this table")
    }
}

/// Returns the place of the key's slot in the list of slots. No list is so long that it has a place for the index 0.
#[inline]
fn place_of(key: impl Key) -> usize {
    // CAST: the lower 32 of 64 bits; widening, on every target of this crate.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    let index = key.data().as_ffi() as u32;
    index.wrapping_sub(1) as usize
}

/// Returns the generation in a key.
fn generation_of(key: impl Key) -> u32 {
    // CAST: the upper 32 of 64 bits.
    (key.data().as_ffi() >> 32) as u32
}

/// Returns the key of the next value of the key's slot.
fn successor<K: Key>(key: K) -> K {
    let index = key.data().as_ffi() & 0xffff_ffff;
    let generation = generation_of(key).wrapping_add(2);
    KeyData::from_ffi(u64::from(generation) << 32 | index).into()
}

#[cfg(test)]
mod tests {
    use slotmap::SlotMap;

    use super::*;
    use crate::handle::PzKey;

    fn key(index: u32, generation: u32) -> PzKey {
        KeyData::from_ffi(u64::from(generation) << 32 | u64::from(index)).into()
    }

    /// Writes a table out and reads it in.
    fn again(table: &Table<PzKey, u32>) -> Result<Table<PzKey, u32>, TableError<PzKey>> {
        let values: Vec<_> = table.iter().map(|(key, value)| (key, *value)).collect();
        Table::resume(values.into_iter(), table.free())
    }

    /// The keys of 2000 drawn calls are compared with those of slotmap. The table is written out and read in between.
    #[test]
    fn keys_are_those_of_slotmap_also_after_the_table_was_written_out_and_read_in() {
        let (mut table, mut slots) = (Table::new(), SlotMap::<PzKey, u32>::with_key());
        let (mut random, mut keys) = (7_u32, Vec::new());
        for step in 0..2_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if (random >> 16) % 5 < 3 || keys.is_empty() {
                let next = table.next_key();
                let key = table.insert(step);
                assert_eq!(key, next);
                assert_eq!(key, slots.insert(step));
                keys.push(key);
            } else {
                let key = keys[(random >> 20) as usize % keys.len()];
                assert_eq!(table.remove(key), slots.remove(key));
            }
            table = again(&table).expect("a table");
            assert_eq!(table.len(), slots.len());
            for &key in &keys {
                assert_eq!(table.get(key), slots.get(key));
                assert_eq!(table.get_mut(key), slots.get_mut(key));
                assert!(table.has_given_out(key));
            }
            let all: Vec<_> = table.iter().collect();
            assert_eq!(all, slots.iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn keys_that_contradict_each_other_are_refused() {
        let resume = |values: &[PzKey], free: &[PzKey]| {
            let values: Vec<_> = values.iter().map(|key| (*key, 0_u32)).collect();
            Table::resume(values.into_iter(), free).map(drop)
        };
        assert_eq!(resume(&[key(2, 1)], &[key(1, 3)]), Ok(()));
        let index = |key| Err(TableError::Index(key));
        assert_eq!(resume(&[key(0, 1)], &[]), index(key(0, 1)));
        assert_eq!(resume(&[key(2, 1)], &[]), index(key(2, 1)));
        assert_eq!(resume(&[PzKey::null()], &[]), index(PzKey::null()));
        assert_eq!(resume(&[], &[key(3, 1), key(1, 1)]), index(key(3, 1)));
        let repeated = |key| Err(TableError::Repeated(key));
        assert_eq!(resume(&[key(1, 1), key(1, 3)], &[]), repeated(key(1, 3)));
        assert_eq!(resume(&[key(1, 1)], &[key(1, 3)]), repeated(key(1, 3)));
    }

    #[test]
    fn keys_of_the_future_were_not_given_out() {
        let table = Table::<PzKey, u32>::resume([(key(1, 5), 0)].into_iter(), &[key(2, 1)]);
        let table = table.expect("a table");
        for (key, given) in [
            (key(1, 5), true),
            (key(1, 3), true),
            (key(1, 7), false),
            (key(2, 1), false),
            (key(2, u32::MAX), true),
            (key(3, 1), false),
            (key(0, 1), false),
            (PzKey::null(), false),
        ] {
            assert_eq!(table.has_given_out(key), given, "{key:?}");
        }
    }

    #[test]
    fn generations_wrap() {
        let last = key(1, u32::MAX);
        let mut table = Table::resume([(last, 1)].into_iter(), &[]).expect("a table");
        assert_eq!(table.remove(last), Some(1));
        let next = table.insert(2);
        assert_eq!((next, table.get(last)), (key(1, 1), None));
        assert!(table.has_given_out(last));
    }
}
