//! Places of the handle table, and how threads pass them to each other.
//!
//! The thread that makes an object takes a free place, writes the object's fields there, and writes the handle last. A
//! look-up reads the handle first, so if it finds the handle it sees all fields. If several threads free a handle, only
//! one of them empties the place and returns it to the free list, so that no place is on the list twice. The callers of
//! an adapter must not free a handle that they still use ([`table`](super::table)).
//!
//! This module uses only [`primitives`](super::primitives) to pass data between threads, so that `models` can try
//! every order of events.

use std::collections::{BTreeSet, VecDeque};
use std::sync::PoisonError;

use super::primitives::{AtomicPtr, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};

/// An entry of the handle table: the handle of an object, and the `A` that the object belongs to.
#[repr(C)]
pub(super) struct Place<A> {
    /// The handle in this place, or 0.
    pub(super) occupant: AtomicU64,
    /// Adapter of the object; null if the place was never used. The first place of each kind, which the null handle
    /// selects, is never used.
    pub(super) adapter: AtomicPtr<A>,
    /// Part of the object's Rust handle, in the form in which the IA compares it: the IA's number in bits 63:32, the
    /// generation in bits 31:0.
    pub(super) tag: AtomicU64,
    /// Index in the object's Rust handle.
    pub(super) index: AtomicU32,
    /// Number of the instance that the object belongs to.
    pub(super) owner: AtomicU32,
}

impl<A> Place<A> {
    /// Returns whether the place has this handle. Only then may the caller read the other fields.
    #[inline(always)]
    pub(super) fn holds(&self, handle: u64) -> bool {
        // Acquire: `fill` wrote the other fields before the handle.
        self.occupant.load(Ordering::Acquire) == handle
    }

    /// Returns the adapter that the object belongs to.
    #[inline(always)]
    pub(super) fn adapter(&self) -> *mut A {
        self.adapter.load(Ordering::Relaxed)
    }

    /// Returns the parts of the object's Rust handle: the key, and the IA's number.
    #[inline(always)]
    pub(super) fn object(&self) -> (u64, u32) {
        let index = u64::from(self.index.load(Ordering::Relaxed));
        let tag = self.tag.load(Ordering::Relaxed);
        // CAST: the shift leaves the upper 32 bits.
        (tag << 32 | index, (tag >> 32) as u32)
    }

    pub(super) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Puts a handle and its object in the place.
    pub(super) fn fill(&self, handle: u64, adapter: *mut A, owner: u32, (key, ia): (u64, u32)) {
        self.adapter.store(adapter, Ordering::Relaxed);
        // CAST: the index is the lower half of the key.
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let index = key as u32;
        self.index.store(index, Ordering::Relaxed);
        self.tag
            .store(u64::from(ia) << 32 | key >> 32, Ordering::Relaxed);
        self.owner.store(owner, Ordering::Relaxed);
        self.occupant.store(handle, Ordering::Release);
    }

    /// Empties the place. Returns false if the place has another handle. After true the caller must return the place to
    /// the free list.
    pub(super) fn clear(&self, handle: u64) -> bool {
        let left = self
            .occupant
            .compare_exchange(handle, 0, Ordering::AcqRel, Ordering::Relaxed);
        left.is_ok()
    }
}

/// Free places of a kind: emptied ones, the longest free first, and those that were never used.
pub(super) struct Free {
    left: VecDeque<u32>,
    fresh: u32,
    end: u32,
}

impl Free {
    /// Creates the list of all places but the first, which is reserved for the null handle.
    pub(super) const fn new(places: u32) -> Self {
        Self {
            left: VecDeque::new(),
            fresh: 1,
            end: places,
        }
    }

    /// Takes a place. Uses an emptied place again as late as possible, so that stale handles stay invalid for long.
    pub(super) fn take(free: &Mutex<Self>) -> Option<u32> {
        let mut free = Self::lock(free);
        if free.fresh < free.end {
            free.fresh += 1;
            return Some(free.fresh - 1);
        }
        free.left.pop_front()
    }

    /// Takes exactly these places. Takes none if one of them is in use or does not exist, and returns that one.
    pub(super) fn take_these(free: &Mutex<Self>, places: &BTreeSet<u32>) -> Result<(), u32> {
        let mut free = Self::lock(free);
        let (fresh, end) = (free.fresh, free.end);
        let emptied: BTreeSet<u32> = free.left.iter().copied().collect();
        let can_take = |place: &u32| (fresh..end).contains(place) || emptied.contains(place);
        if let Some(place) = places.iter().find(|place| !can_take(place)) {
            return Err(*place);
        }
        free.left.retain(|place| !places.contains(place));
        if let Some(&last) = places.range(fresh..).next_back() {
            // The places below it that are not taken were never used. Their turn comes after all others.
            let passed = (fresh..last).filter(|place| !places.contains(place));
            free.left.extend(passed);
            free.fresh = last + 1;
        }
        Ok(())
    }

    /// Puts an empty place on the free list.
    pub(super) fn give(free: &Mutex<Self>, place: u32) {
        Self::lock(free).left.push_back(place);
    }

    fn lock(free: &Mutex<Self>) -> MutexGuard<'_, Self> {
        free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
