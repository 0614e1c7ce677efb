//! The table of endpoints: like a slot map, and also readable by index alone.
//!
//! A completion names its endpoint by 24 bits, which hold the index of a slot and no generation. That
//! is enough: a queue pair's entries are gone from the completion queues before its endpoint leaves
//! its slot. The generation stands in front of the endpoint's first fields, so that a handle is
//! checked in the cache line a post needs anyway.
//!
//! A slot that was left is taken again as late as possible: the one free for longest comes first.

use core::marker::PhantomData;
use core::ops::{Index, IndexMut};
use slotmap::{Key, KeyData};
use std::collections::VecDeque;

#[repr(C)]
struct Slot<T> {
    /// Of the key of whoever is in it, or was last; odd, as slotmap's are.
    generation: u32,
    value: Option<T>,
}

pub(crate) struct Slots<K, T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
    key: PhantomData<K>,
}

impl<K: Key, T> Slots<K, T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), free: VecDeque::new(), key: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a value into a slot. `None`: all 2^32 indices are taken.
    pub(crate) fn insert(&mut self, value: T) -> Option<K> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None => {
                self.slots.push(Slot { generation: u32::MAX, value: None });
                u32::try_from(self.slots.len() - 1).ok()?
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(2);
        slot.value = Some(value);
        Some(Self::key(index, slot.generation))
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<T> {
        let (index, generation) = parts(key);
        let slot = self.slots.get_mut(index as usize).filter(|slot| slot.generation == generation)?;
        let value = slot.value.take()?;
        self.free.push_back(index);
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<&T> {
        let (index, generation) = parts(key);
        let slot = self.slots.get(index as usize)?;
        if slot.generation != generation {
            return None;
        }
        slot.value.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut T> {
        let (index, generation) = parts(key);
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation != generation {
            return None;
        }
        slot.value.as_mut()
    }

    /// Who is in the slot with this index.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<(K, &mut T)> {
        let slot = self.slots.get_mut(index as usize)?;
        let key = Self::key(index, slot.generation);
        Some((key, slot.value.as_mut()?))
    }

    /// The key of who is in the slot with this index.
    #[inline]
    pub(crate) fn key_at(&self, index: u32) -> Option<K> {
        let slot = self.slots.get(index as usize)?;
        slot.value.is_some().then(|| Self::key(index, slot.generation))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        (0u32..)
            .zip(&self.slots)
            .filter_map(|(index, slot)| Some((Self::key(index, slot.generation), slot.value.as_ref()?)))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.iter().map(|(key, _)| key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, value)| value)
    }

    #[inline]
    fn key(index: u32, generation: u32) -> K {
        KeyData::from_ffi(u64::from(generation) << 32 | u64::from(index)).into()
    }
}

/// Index and generation.
#[inline]
fn parts(key: impl Key) -> (u32, u32) {
    let bits = key.data().as_ffi();
    // CAST: the two halves.
    #[allow(clippy::cast_possible_truncation, reason = "the two halves of 64 bits")]
    (bits as u32, (bits >> 32) as u32)
}

impl<K: Key, T> Index<K> for Slots<K, T> {
    type Output = T;
    // PANIC: the key comes from this table and its value was not removed; else it is our own bug.
    fn index(&self, key: K) -> &T {
        self.get(key).expect("a key of this table")
    }
}

impl<K: Key, T> IndexMut<K> for Slots<K, T> {
    // PANIC: as `index`.
    fn index_mut(&mut self, key: K) -> &mut T {
        self.get_mut(key).expect("a key of this table")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::EpKey;

    #[test]
    fn a_key_outlives_neither_its_value_nor_finds_the_next_one() {
        let mut slots = Slots::<EpKey, &str>::new();
        let first = slots.insert("first").expect("room");
        assert_eq!(slots.remove(first), Some("first"));
        assert_eq!((slots.remove(first), slots.get(first), slots.key_at(0)), (None, None, None));
        let second = slots.insert("second").expect("room");
        assert_eq!((slots.get(first), slots.get(second)), (None, Some(&"second")));
        assert_eq!(slots.key_at(0), Some(second));
        assert_eq!(slots.at_mut(0), Some((second, &mut "second")));
        assert_eq!(slots.at_mut(1), None);
    }

    #[test]
    fn the_slot_free_for_longest_is_taken_first() {
        let mut slots = Slots::<EpKey, u32>::new();
        let keys: Vec<EpKey> = (0..3).map(|value| slots.insert(value).expect("room")).collect();
        slots.remove(keys[2]);
        slots.remove(keys[0]);
        assert_eq!(slots.len(), 1);
        let (next, last) = (slots.insert(7).expect("room"), slots.insert(8).expect("room"));
        assert_eq!((slots.key_at(2), slots.key_at(0)), (Some(next), Some(last)));
        assert_eq!(slots.values().copied().collect::<Vec<_>>(), [8, 1, 7]);
    }

    #[test]
    fn the_null_key_finds_nothing() {
        let mut slots = Slots::<EpKey, u32>::new();
        slots.insert(1).expect("room");
        assert_eq!(slots.get(EpKey::default()), None);
    }
}
