//! Look-up of an LMR by its context, in a table of two levels.
//!
//! An lmr_context is an mkey: 24 bits of index and, below them, 8 bits of variant. The index selects the entry; then
//! the whole context must match. So the context of a freed LMR does not match a new LMR that has the same index and
//! another variant. A second-level table is allocated for the first LMR that falls into it, and is not freed before the
//! whole table.

use crate::types::MemPrivFlags;

/// Data of an LMR that a post reads; half a cache line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// Address of the first byte registered.
    pub(crate) address: u64,
    /// Number of bytes registered.
    pub(crate) bytes: u64,
    lmr_context: u32,
    /// Index of the LMR's PZ.
    pub(crate) pz: u32,
    /// Privileges that the checks of posts apply.
    pub(crate) privileges: MemPrivFlags,
}

impl Entry {
    pub(crate) const fn new(
        lmr_context: u32,
        address: u64,
        bytes: u64,
        pz: u32,
        privileges: MemPrivFlags,
    ) -> Self {
        Self {
            address,
            bytes,
            lmr_context,
            pz,
            privileges,
        }
    }

    /// Makes an empty entry for this index. Its context has another index, so it matches no context that selects the
    /// entry.
    const fn vacant(index: u32) -> Self {
        Self {
            address: 0,
            bytes: 0,
            lmr_context: !(index << 8),
            pz: u32::MAX,
            privileges: MemPrivFlags::empty(),
        }
    }

    /// Returns whether `address..address + bytes` lies inside the LMR, without wrapping.
    #[inline]
    pub(crate) const fn contains(&self, address: u64, bytes: u64) -> bool {
        // For an address before the first byte, the offset is so large that no length fits.
        let offset = address.wrapping_sub(self.address);
        match offset.checked_add(bytes) {
            Some(end) => end <= self.bytes,
            None => false,
        }
    }
}

const LEAF_BITS: u32 = 12;
const LEAF_ENTRIES: usize = 1 << LEAF_BITS;
const LEAF_INDICES: u32 = 1 << LEAF_BITS;
const LEAVES: usize = 1 << 12;

type Leaf = Box<[Entry; LEAF_ENTRIES]>;

/// The LMRs of an IA, by context.
pub(crate) struct LmrTable {
    leaves: Box<[Option<Leaf>; LEAVES]>,
    /// Number that changes when an LMR is freed, and that differs between any two IAs of the process. If a slice has
    /// this stamp, it was made from this table, and everything that was checked for it still holds.
    pub(crate) stamp: u64,
}

impl LmrTable {
    pub(crate) fn new(stamp: u64) -> Self {
        Self {
            leaves: Box::new([const { None }; LEAVES]),
            stamp,
        }
    }

    /// Returns the LMR with this context.
    #[inline]
    pub(crate) fn entry(&self, lmr_context: u32) -> Option<&Entry> {
        let (leaf, place) = Self::place(lmr_context);
        let entry = &self.leaves[leaf].as_deref()?[place];
        (entry.lmr_context == lmr_context).then_some(entry)
    }

    pub(crate) fn insert(&mut self, entry: Entry) {
        let (leaf, place) = Self::place(entry.lmr_context);
        let leaf = self.leaves[leaf].get_or_insert_with(|| {
            let first = (entry.lmr_context >> 8) & !(LEAF_INDICES - 1);
            let entries: Vec<Entry> = (first..first + LEAF_INDICES).map(Entry::vacant).collect();
            // PANIC: the vector has exactly LEAF_ENTRIES elements.
            entries.try_into().expect("a leaf")
        });
        leaf[place] = entry;
    }

    /// Removes an LMR. `stamp` must be a number that was never used before.
    pub(crate) fn remove(&mut self, lmr_context: u32, stamp: u64) {
        let (leaf, place) = Self::place(lmr_context);
        if let Some(leaf) = &mut self.leaves[leaf]
            && leaf[place].lmr_context == lmr_context
        {
            leaf[place] = Entry::vacant(lmr_context >> 8);
        }
        self.stamp = stamp;
    }

    #[inline]
    const fn place(lmr_context: u32) -> (usize, usize) {
        // CAST: widening. The masks keep both indices below 4096.
        (
            ((lmr_context >> (8 + LEAF_BITS)) as usize) & (LEAVES - 1),
            ((lmr_context >> 8) as usize) & (LEAF_ENTRIES - 1),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table_with(lmr_context: u32, address: u64, bytes: u64) -> LmrTable {
        let mut table = LmrTable::new(1);
        table.insert(Entry::new(
            lmr_context,
            address,
            bytes,
            3,
            MemPrivFlags::all(),
        ));
        table
    }

    #[test]
    fn only_the_whole_context_finds_the_entry() {
        let table = table_with(0x1234_5678, 0x1000, 0x100);
        assert!(table.entry(0x1234_5678).is_some());
        assert!(table.entry(0x1234_5679).is_none(), "other variant");
        assert!(table.entry(0x1234_5778).is_none(), "next index, same leaf");
        assert!(table.entry(0xff34_5678).is_none(), "other leaf");
    }

    #[test]
    fn a_vacant_entry_matches_no_context_of_its_place() {
        for index in [0u32, 1, 0xfff, 0x00ff_ffff, 0x00ff_f000, 0x0080_0000] {
            let mut table = table_with(index << 8, 0, 1);
            table.remove(index << 8, 2);
            for variant in 0..=0xff {
                assert!(
                    table.entry(index << 8 | variant).is_none(),
                    "{index:#x} {variant:#x}"
                );
            }
        }
    }

    #[test]
    fn a_range_is_inside_up_to_its_last_byte_and_never_wraps() {
        let entry = Entry::new(0, 0x1000, 0x100, 0, MemPrivFlags::empty());
        assert!(entry.contains(0x1000, 0x100));
        assert!(entry.contains(0x1100, 0));
        assert!(!entry.contains(0x0fff, 1));
        assert!(!entry.contains(0x1000, 0x101));
        assert!(!entry.contains(0x10ff, 2));
        assert!(!entry.contains(0x1001, u64::MAX));
        assert!(!entry.contains(u64::MAX, 2));
        let top = Entry::new(0, u64::MAX - 0xfff, 0x1000, 0, MemPrivFlags::empty());
        assert!(top.contains(u64::MAX, 1));
        assert!(!top.contains(u64::MAX, 2));
    }

    #[test]
    fn removing_changes_the_stamp() {
        let mut table = table_with(0x100, 0, 1);
        table.remove(0x100, 77);
        assert_eq!(table.stamp, 77);
    }
}
