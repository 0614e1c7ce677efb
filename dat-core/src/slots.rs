//! Tables of endpoints and of EVDs: slot maps that know the number of their IA, and that can also be read by index
//! alone.
//!
//! A completion names its endpoint by 24 bits, which hold the index of a slot and no generation. The index is
//! sufficient: all entries of a queue pair are removed from the completion queues before its endpoint is removed from
//! its slot. An ordinary slot map would need a second table from indices to keys, and two look-ups for each completion.
//!
//! A slot always holds a value. An empty slot holds a vacant value, on which all operations do nothing, under a key
//! that no object has. So a look-up by key needs one comparison, in the cache line of the value's first fields. A
//! look-up by handle also needs only one comparison, because a slot has the generation and the number of the IA in one
//! word ([`tag`]).
//!
//! A free slot is reused as late as possible: the slot that has been free for longest is reused first.

use core::marker::PhantomData;
use core::ops::{Index, IndexMut};
use slotmap::{Key, KeyData};
use std::collections::VecDeque;

use crate::table::TableError;

/// A value that can be stored in a table. The value holds its own name, among its first fields. Only the table can make
/// such names, so no other code can replace a value in the table.
pub(crate) trait Resident<K> {
    /// Makes the value of an empty slot.
    fn vacant() -> Self;
    /// Returns the name by mutable reference.
    fn name(&mut self) -> &mut Name<K>;
    /// Returns the name.
    fn named(&self) -> &Name<K>;
}

/// Name of a value in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name<K> {
    /// Generation and number of the IA (see `tag`); 0 in an empty slot.
    tag: u64,
    /// Key of the value; the null key in an empty slot.
    key: K,
}

impl<K: Key> Name<K> {
    /// Makes the name of an empty slot.
    pub(crate) fn none() -> Self {
        let key = K::null();
        Self { tag: 0, key }
    }
}

/// First generation. Generations are odd, as in slotmap, and the null key has generation 1.
const FIRST: u32 = 3;

/// Returns the part of a handle except the index: the number of the IA, and the generation. The generation is never 0.
#[inline(always)]
fn tag(generation: u32, ia: u32) -> u64 {
    u64::from(ia) << 32 | u64::from(generation)
}

/// A table of values, which are found by key, or by the index in the key.
pub(crate) struct Slots<K, T> {
    slots: Vec<T>,
    /// Number of the IA.
    ia: u32,
    /// Indices of empty slots, each with the generation of the next value in the slot.
    free: VecDeque<(u32, u32)>,
    keys: PhantomData<K>,
}

impl<K: Key, T: Resident<K>> Slots<K, T> {
    /// Makes the table of the IA with this number.
    pub(crate) const fn new(ia: u32) -> Self {
        Self {
            slots: Vec::new(),
            ia,
            free: VecDeque::new(),
            keys: PhantomData,
        }
    }

    /// Makes a table of values and of the keys of empty slots, as [`Slots::drain`] and [`Slots::free`] return them.
    ///
    /// # Errors
    /// The first key that contradicts the others, or that no table gives out.
    pub(crate) fn resume(
        ia: u32,
        values: impl ExactSizeIterator<Item = (K, T)>,
        free: &[K],
    ) -> Result<Self, TableError<K>> {
        let mut table = Self::new(ia);
        let count = values.len() + free.len();
        table.slots.resize_with(count, T::vacant);
        let mut seen = vec![false; count];
        let mut slot_of = |key: K| {
            let (index, generation) = parts(key);
            let place = index as usize; // CAST: widening.
            let is_seen = seen.get_mut(place).filter(|_| generation >= FIRST);
            match is_seen.map(|seen| core::mem::replace(seen, true)) {
                None => Err(TableError::Index(key)),
                Some(true) => Err(TableError::Repeated(key)),
                Some(false) => Ok((index, generation)),
            }
        };
        for (key, mut value) in values {
            let (index, generation) = slot_of(key)?;
            let tag = tag(generation, ia);
            *value.name() = Name { tag, key };
            table.slots[index as usize] = value;
        }
        for &key in free {
            table.free.push_back(slot_of(key)?);
        }
        Ok(table)
    }

    /// Returns the keys of the next values of the empty slots. The first one is taken first.
    pub(crate) fn free(&self) -> impl Iterator<Item = K> {
        self.free.iter().map(|&(index, next)| key_of(index, next))
    }

    /// Removes and returns all values, each with its key, by index. The table is not used afterwards.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (K, T)> {
        let slots = self.slots.drain(..).map(|slot| (slot.named().key, slot));
        slots.filter(|(key, _)| !key.is_null())
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, mut value: T) -> K {
        let (index, generation) = self.free.pop_front().unwrap_or_else(|| {
            self.slots.push(T::vacant());
            // PANIC: 2^32 values do not fit into memory.
            let index = u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 slots");
            (index, FIRST)
        });
        let key = key_of(index, generation);
        let tag = tag(generation, self.ia);
        *value.name() = Name { tag, key };
        self.slots[index as usize] = value;
        key
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<T> {
        let (index, generation) = parts(key);
        let value = core::mem::replace(self.get_mut(key)?, T::vacant());
        let next = generation.wrapping_add(2).max(FIRST);
        self.free.push_back((index, next));
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, key: K) -> Option<&T> {
        let (index, generation) = parts(key);
        let slot = self.slots.get(index as usize)?;
        (parts(slot.named().key).1 == generation).then_some(slot)
    }

    /// Returns the value with this key, like [`Slots::get`], but never the vacant value. A key that was made from
    /// arbitrary numbers ([`crate::EpHandle::from_raw`]) could match the vacant value.
    pub(crate) fn somebody(&self, key: K) -> Option<&T> {
        self.get(key).filter(|_| parts(key).1 >= FIRST)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut T> {
        let (index, generation) = parts(key);
        let slot = self.slots.get_mut(index as usize)?;
        (parts(slot.named().key).1 == generation).then_some(slot)
    }

    /// Returns the value that a handle names. A handle consists of a key and the number of an IA.
    #[inline(always)]
    pub(crate) fn named_mut(&mut self, key: K, ia: u32) -> Option<&mut T> {
        let (index, generation) = parts(key);
        let slot = self.slots.get_mut(index as usize)?;
        (slot.named().tag == tag(generation, ia)).then_some(slot)
    }

    /// Returns two values at once, or `None` if one of the keys is not in the table, or if both are the same.
    pub(crate) fn two_mut(&mut self, one: K, other: K) -> Option<[&mut T; 2]> {
        let ((at, first), (other_at, second)) = (parts(one), parts(other));
        let slots = self
            .slots
            .get_disjoint_mut([at as usize, other_at as usize]);
        let [one, other] = slots.ok()?;
        let generation = |slot: &T| parts(slot.named().key).1;
        (generation(one) == first && generation(other) == second).then_some([one, other])
    }

    /// Returns the value in the slot with this index, and its key. The value may be the vacant value, with the null
    /// key.
    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> Option<(K, &mut T)> {
        let slot = self.slots.get_mut(index as usize)?;
        Some((slot.named().key, slot))
    }

    /// Returns the key of the value in the slot with this index, or `None` if the slot is empty.
    pub(crate) fn key_at(&self, index: u32) -> Option<K> {
        let slot = self.slots.get(index as usize)?;
        let key = slot.named().key;
        (!key.is_null()).then_some(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.slots
            .iter()
            .map(|slot| (slot.named().key, slot))
            .filter(|(key, _)| !key.is_null())
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.iter().map(|(key, _)| key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, value)| value)
    }
}

/// Makes a key of an index and an odd generation.
fn key_of<K: Key>(index: u32, generation: u32) -> K {
    KeyData::from_ffi(u64::from(generation) << 32 | u64::from(index)).into()
}

/// Splits a key into index and generation.
#[inline]
fn parts(key: impl Key) -> (u32, u32) {
    let bits = key.data().as_ffi();
    // CAST: keeps the lower and the upper 32 bits.
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of 64 bits")]
    (bits as u32, (bits >> 32) as u32)
}

impl<K: Key, T: Resident<K>> Index<K> for Slots<K, T> {
    type Output = T;
    // PANIC: the key comes from this table and its value was not removed; otherwise the library has a bug.
    fn index(&self, key: K) -> &T {
        self.get(key).expect("a key of this table")
    }
}

impl<K: Key, T: Resident<K>> IndexMut<K> for Slots<K, T> {
    // PANIC: as in `index`.
    fn index_mut(&mut self, key: K) -> &mut T {
        self.get_mut(key).expect("a key of this table")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::EpKey;

    /// A test value: a number, with its name in the table.
    #[derive(Debug)]
    struct One(u32, Name<EpKey>);

    fn one(number: u32) -> One {
        One(number, Name::none())
    }

    impl PartialEq<u32> for One {
        fn eq(&self, number: &u32) -> bool {
            self.0 == *number
        }
    }

    impl Resident<EpKey> for One {
        fn vacant() -> Self {
            one(0)
        }
        fn name(&mut self) -> &mut Name<EpKey> {
            &mut self.1
        }
        fn named(&self) -> &Name<EpKey> {
            &self.1
        }
    }

    fn number(found: Option<&One>) -> Option<u32> {
        found.map(|found| found.0)
    }

    fn numbers(found: Option<[&mut One; 2]>) -> Option<[u32; 2]> {
        found.map(|found| found.map(|one| one.0))
    }

    fn number_mut(found: Option<&mut One>) -> Option<u32> {
        found.map(|found| found.0)
    }

    #[test]
    fn a_key_outlives_neither_its_value_nor_finds_the_next_one() {
        let mut slots = Slots::<EpKey, One>::new(7);
        let first = slots.insert(one(1));
        assert_eq!(slots.remove(first).map(|gone| gone.0), Some(1));
        assert!(slots.remove(first).is_none());
        assert_eq!((number(slots.get(first)), slots.key_at(0)), (None, None));
        let second = slots.insert(one(2));
        assert_eq!(
            (number(slots.get(first)), number(slots.get(second))),
            (None, Some(2))
        );
        assert_eq!(slots.key_at(0), Some(second));
        let found = slots.at_mut(0).map(|(key, found)| (key, found.0));
        assert_eq!(found, Some((second, 2)));
        assert!(slots.at_mut(1).is_none());
    }

    #[test]
    fn an_empty_slot_holds_the_vacant_value_under_a_key_that_finds_nothing() {
        let mut slots = Slots::<EpKey, One>::new(7);
        let key = slots.insert(one(1));
        slots.remove(key);
        let (nobody, value) = slots.at_mut(0).expect("the slot");
        assert_eq!(*value, 0);
        assert!(nobody.is_null());
        assert_eq!((slots.len(), slots.keys().count()), (0, 0));
    }

    #[test]
    fn the_slot_free_for_longest_is_taken_first() {
        let mut slots = Slots::<EpKey, One>::new(7);
        let keys: Vec<EpKey> = (0..3).map(|value| slots.insert(one(value))).collect();
        slots.remove(keys[2]);
        slots.remove(keys[0]);
        assert_eq!(slots.len(), 1);
        let (next, last) = (slots.insert(one(7)), slots.insert(one(8)));
        assert_eq!((slots.key_at(2), slots.key_at(0)), (Some(next), Some(last)));
        assert_eq!(
            slots.values().map(|one| one.0).collect::<Vec<_>>(),
            [8, 1, 7]
        );
    }

    #[test]
    fn a_forged_key_finds_nothing_in_an_empty_slot() {
        let mut slots = Slots::<EpKey, One>::new(7);
        let key = slots.insert(one(1));
        slots.remove(key);
        for generation in 0..3_u64 {
            let made_up: EpKey = KeyData::from_ffi(generation << 32).into();
            assert_eq!(
                number(slots.somebody(made_up)),
                None,
                "generation {generation}"
            );
        }
        let next = slots.insert(one(2));
        assert_eq!(number(slots.somebody(next)), Some(2));
    }

    #[test]
    fn a_handle_of_another_table_names_nothing() {
        let mut slots = Slots::<EpKey, One>::new(7);
        let key = slots.insert(one(1));
        assert_eq!(number_mut(slots.named_mut(key, 7)), Some(1));
        assert_eq!(number_mut(slots.named_mut(key, 8)), None, "another IA");
        slots.remove(key);
        assert_eq!(number_mut(slots.named_mut(key, 7)), None, "gone");
        for (generation, ia) in [(0, 0), (1, 0), (0, 7), (1, 7)] {
            let made_up: EpKey = KeyData::from_ffi(generation << 32).into();
            assert_eq!(
                number_mut(slots.named_mut(made_up, ia)),
                None,
                "{generation} of {ia}"
            );
        }
        let next = slots.insert(one(2));
        assert_eq!(
            number_mut(slots.named_mut(key, 7)),
            None,
            "its successor is another"
        );
        assert_eq!(number_mut(slots.named_mut(next, 7)), Some(2));
    }

    #[test]
    fn two_values_are_lent_at_once_if_both_are_there() {
        let mut slots = Slots::<EpKey, One>::new(7);
        let (first, other) = (slots.insert(one(1)), slots.insert(one(2)));
        assert_eq!(numbers(slots.two_mut(other, first)), Some([2, 1]));
        assert_eq!(numbers(slots.two_mut(first, first)), None);
        slots.remove(other);
        assert_eq!(numbers(slots.two_mut(first, other)), None);
    }

    /// A table that is written out and read in after each drawn call gives out the keys of one that is not.
    #[test]
    fn keys_stay_when_the_table_is_written_out_and_read_in() {
        let (mut table, mut same) = (Slots::<EpKey, One>::new(7), Slots::<EpKey, One>::new(7));
        let (mut random, mut keys) = (7_u32, Vec::new());
        for step in 0..1_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if (random >> 16) % 5 < 3 || keys.is_empty() {
                let key = table.insert(one(step));
                assert_eq!(same.insert(one(step)), key);
                keys.push(key);
            } else {
                let key = keys[(random >> 20) as usize % keys.len()];
                let gone = [table.remove(key), same.remove(key)];
                let [gone, other] = gone.map(|one| one.map(|one| one.0));
                assert_eq!(gone, other);
            }
            let free: Vec<EpKey> = table.free().collect();
            let values: Vec<_> = table.drain().collect();
            table = Slots::resume(7, values.into_iter(), &free).expect("a table");
            for &key in &keys {
                assert_eq!(number(table.get(key)), number(same.get(key)));
                let [table, same] = [&mut table, &mut same];
                assert_eq!(
                    number_mut(table.named_mut(key, 7)),
                    number_mut(same.named_mut(key, 7))
                );
            }
        }
    }

    #[test]
    fn keys_that_contradict_each_other_are_refused() {
        let key = key_of::<EpKey>;
        let resume = |values: &[EpKey], free: &[EpKey]| {
            let values: Vec<_> = values.iter().map(|key| (*key, one(0))).collect();
            Slots::resume(7, values.into_iter(), free).map(drop)
        };
        assert_eq!(resume(&[key(1, 3)], &[key(0, 5)]), Ok(()));
        let index = |key| Err(TableError::Index(key));
        assert_eq!(resume(&[key(1, 3)], &[]), index(key(1, 3)));
        assert_eq!(resume(&[key(0, 1)], &[]), index(key(0, 1)));
        assert_eq!(resume(&[EpKey::null()], &[]), index(EpKey::null()));
        assert_eq!(resume(&[], &[key(0, 1)]), index(key(0, 1)));
        let repeated = |key| Err(TableError::Repeated(key));
        assert_eq!(resume(&[key(0, 3), key(0, 5)], &[]), repeated(key(0, 5)));
        assert_eq!(resume(&[key(0, 3)], &[key(0, 5)]), repeated(key(0, 5)));
    }

    #[test]
    fn the_null_key_finds_nothing() {
        let mut slots = Slots::<EpKey, One>::new(7);
        slots.insert(one(1));
        assert!(slots.get(EpKey::null()).is_none());
        assert!(slots.remove(EpKey::null()).is_none());
    }
}
