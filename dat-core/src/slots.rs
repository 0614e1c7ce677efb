//! The table of endpoints: a slot map that is also read by index alone.
//!
//! A completion names its endpoint by 24 bits, which hold the index of a slot and no generation. That
//! is enough: a queue pair's entries are gone from the completion queues before its endpoint leaves its
//! slot. A slot map proper would need a second table from indices to keys, and two look-ups for each
//! completion.
//!
//! A slot always holds a value; where nobody lives it is [a vacant one](Vacant), which does nothing for
//! anybody, under a key nobody has. So a look-up by key is one comparison, made in the cache line of the
//! value's first fields.
//!
//! A slot that was left is taken again as late as possible: the one free for longest comes first.

use core::ops::{Index, IndexMut};
use slotmap::{Key, KeyData};
use std::collections::VecDeque;

/// What stands where nothing is.
pub(crate) trait Vacant {
    fn vacant() -> Self;
}

/// The first generation. They are odd, as slotmap's are, and the null key has the 1.
const FIRST: u32 = 3;

#[repr(C)]
struct Slot<K, T> {
    /// Of whoever is in it; the null key where nobody is.
    key: K,
    value: T,
}

/// Values by key, or by the index in the key.
pub(crate) struct Slots<K, T> {
    slots: Vec<Slot<K, T>>,
    /// Indices of empty slots, and the generation of who comes next.
    free: VecDeque<(u32, u32)>,
}

impl<K: Key, T: Vacant> Slots<K, T> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> K {
        let (index, generation) = self.free.pop_front().unwrap_or_else(|| {
            self.slots.push(Slot {
                key: K::null(),
                value: T::vacant(),
            });
            // PANIC: 2^32 endpoints do not fit into memory.
            let index = u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 slots");
            (index, FIRST)
        });
        let key = KeyData::from_ffi(u64::from(generation) << 32 | u64::from(index)).into();
        self.slots[index as usize] = Slot { key, value };
        key
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<T> {
        let (index, generation) = parts(key);
        let value = core::mem::replace(self.get_mut(key)?, T::vacant());
        self.slots[index as usize].key = K::null();
        let next = generation.wrapping_add(2).max(FIRST);
        self.free.push_back((index, next));
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<&T> {
        let (index, generation) = parts(key);
        let slot = self.slots.get(index as usize)?;
        (parts(slot.key).1 == generation).then_some(&slot.value)
    }

    /// As [`Slots::get`], but not even the vacant value under the key nobody has, which numbers from outside may
    /// make ([`crate::EpHandle::from_raw`]).
    pub(crate) fn somebody(&self, key: K) -> Option<&T> {
        self.get(key).filter(|_| parts(key).1 >= FIRST)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut T> {
        let (index, generation) = parts(key);
        let slot = self.slots.get_mut(index as usize)?;
        (parts(slot.key).1 == generation).then_some(&mut slot.value)
    }

    /// Whatever is in the slot with this index, perhaps the vacant value; then the key is the null key.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<(K, &mut T)> {
        let slot = self.slots.get_mut(index as usize)?;
        Some((slot.key, &mut slot.value))
    }

    /// The key of who is in the slot with this index.
    pub(crate) fn key_at(&self, index: u32) -> Option<K> {
        let slot = self.slots.get(index as usize)?;
        (!slot.key.is_null()).then_some(slot.key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.slots
            .iter()
            .filter(|slot| !slot.key.is_null())
            .map(|slot| (slot.key, &slot.value))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.iter().map(|(key, _)| key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, value)| value)
    }
}

/// Index and generation.
#[inline]
fn parts(key: impl Key) -> (u32, u32) {
    let bits = key.data().as_ffi();
    // CAST: the two halves.
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of 64 bits")]
    (bits as u32, (bits >> 32) as u32)
}

impl<K: Key, T: Vacant> Index<K> for Slots<K, T> {
    type Output = T;
    // PANIC: the key comes from this table and its value was not removed; else it is our own bug.
    fn index(&self, key: K) -> &T {
        self.get(key).expect("a key of this table")
    }
}

impl<K: Key, T: Vacant> IndexMut<K> for Slots<K, T> {
    // PANIC: as `index`.
    fn index_mut(&mut self, key: K) -> &mut T {
        self.get_mut(key).expect("a key of this table")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::EpKey;

    impl Vacant for u32 {
        fn vacant() -> Self {
            0
        }
    }

    #[test]
    fn a_key_outlives_neither_its_value_nor_finds_the_next_one() {
        let mut slots = Slots::<EpKey, u32>::new();
        let first = slots.insert(1);
        assert_eq!(slots.remove(first), Some(1));
        assert_eq!(slots.remove(first), None);
        assert_eq!((slots.get(first), slots.key_at(0)), (None, None));
        let second = slots.insert(2);
        assert_eq!((slots.get(first), slots.get(second)), (None, Some(&2)));
        assert_eq!(slots.key_at(0), Some(second));
        assert_eq!(slots.at_mut(0), Some((second, &mut 2)));
        assert_eq!(slots.at_mut(1), None);
    }

    #[test]
    fn an_empty_slot_holds_the_vacant_value_under_a_key_that_finds_nothing() {
        let mut slots = Slots::<EpKey, u32>::new();
        let key = slots.insert(1);
        slots.remove(key);
        let (nobody, value) = slots.at_mut(0).expect("the slot");
        assert_eq!(*value, 0);
        assert!(nobody.is_null());
        assert_eq!((slots.len(), slots.keys().count()), (0, 0));
    }

    #[test]
    fn the_slot_free_for_longest_is_taken_first() {
        let mut slots = Slots::<EpKey, u32>::new();
        let keys: Vec<EpKey> = (0..3).map(|value| slots.insert(value)).collect();
        slots.remove(keys[2]);
        slots.remove(keys[0]);
        assert_eq!(slots.len(), 1);
        let (next, last) = (slots.insert(7), slots.insert(8));
        assert_eq!((slots.key_at(2), slots.key_at(0)), (Some(next), Some(last)));
        assert_eq!(slots.values().copied().collect::<Vec<_>>(), [8, 1, 7]);
    }

    #[test]
    fn a_key_made_up_from_numbers_finds_nobody_in_an_empty_slot() {
        let mut slots = Slots::<EpKey, u32>::new();
        let key = slots.insert(1);
        slots.remove(key);
        for generation in 0..3_u64 {
            let made_up: EpKey = KeyData::from_ffi(generation << 32).into();
            assert_eq!(slots.somebody(made_up), None, "generation {generation}");
        }
        let next = slots.insert(2);
        assert_eq!(slots.somebody(next), Some(&2));
    }

    #[test]
    fn the_null_key_finds_nothing() {
        let mut slots = Slots::<EpKey, u32>::new();
        slots.insert(1);
        assert_eq!(slots.get(EpKey::null()), None);
        assert_eq!(slots.remove(EpKey::null()), None);
    }
}
