//! Places of the handle table, and how they pass between threads.
//!
//! The maker of an object takes a free place, writes the object's fields there, and writes the handle last. A look-up
//! reads the handle first, so if it finds the handle it sees all fields. Of several threads that free a handle, only
//! one empties the place and returns it to the free list, so that it is never given out twice. A look-up concurrent
//! with the free of its handle is up to the callers of that adapter ([`table`](super::table)).
//!
//! This module uses only [`primitives`](super::primitives) to pass data between threads, so that `models` can try
//! every order.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::primitives::{AtomicPtr, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};

/// A place for the handle of an object that belongs to an `A`.
#[repr(C)]
pub(super) struct Place<A> {
    /// The handle in this place, or 0.
    pub(super) occupant: AtomicU64,
    /// Null if the place was never used. That holds for the first place of each kind, to which the null handle leads.
    pub(super) adapter: AtomicPtr<A>,
    /// Part of the object's Rust handle, in the form in which the IA compares it: the IA in bits 63:32, and below it
    /// the generation.
    pub(super) tag: AtomicU64,
    /// Index in the object's Rust handle.
    pub(super) index: AtomicU32,
    /// The instance that the object belongs to.
    pub(super) owner: AtomicU32,
}

impl<A> Place<A> {
    /// Returns whether the place has this handle. If so, the other fields may be read.
    #[inline(always)]
    pub(super) fn holds(&self, handle: u64) -> bool {
        // Acquire: the other fields were written before the handle.
        self.occupant.load(Ordering::Acquire) == handle
    }

    /// Returns the instance that owns the object.
    #[inline(always)]
    pub(super) fn adapter(&self) -> *mut A {
        self.adapter.load(Ordering::Relaxed)
    }

    /// Returns the parts of the object's Rust handle: a key, and the IA.
    #[inline(always)]
    pub(super) fn object(&self) -> (u64, u32) {
        let index = u64::from(self.index.load(Ordering::Relaxed));
        let tag = self.tag.load(Ordering::Relaxed);
        // CAST: the upper half.
        (tag << 32 | index, (tag >> 32) as u32)
    }

    pub(super) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Puts a handle and its object in the place.
    pub(super) fn fill(&self, handle: u64, adapter: *mut A, owner: u32, (key, ia): (u64, u32)) {
        self.adapter.store(adapter, Ordering::Relaxed);
        // CAST: the lower half.
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let index = key as u32;
        self.index.store(index, Ordering::Relaxed);
        self.tag
            .store(u64::from(ia) << 32 | key >> 32, Ordering::Relaxed);
        self.owner.store(owner, Ordering::Relaxed);
        self.occupant.store(handle, Ordering::Release);
    }

    /// Empties the place. Returns false if it has another handle. After true the caller returns the place to the free
    /// list.
    pub(super) fn leave(&self, handle: u64) -> bool {
        let left = self
            .occupant
            .compare_exchange(handle, 0, Ordering::AcqRel, Ordering::Relaxed);
        left.is_ok()
    }
}

/// Free places of a kind: those emptied, oldest first, and those never used.
pub(super) struct Free {
    left: VecDeque<u32>,
    fresh: u32,
    end: u32,
}

impl Free {
    /// All places but the first, which is reserved for the null handle.
    pub(super) const fn new(places: u32) -> Self {
        Self {
            left: VecDeque::new(),
            fresh: 1,
            end: places,
        }
    }

    /// Takes a place. An emptied place is used again as late as possible, so that stale handles find it empty for
    /// long.
    pub(super) fn take(free: &Mutex<Self>) -> Option<u32> {
        let mut free = Self::lock(free);
        if free.fresh < free.end {
            free.fresh += 1;
            return Some(free.fresh - 1);
        }
        free.left.pop_front()
    }

    /// Puts an empty place on the free list.
    pub(super) fn give(free: &Mutex<Self>, place: u32) {
        Self::lock(free).left.push_back(place);
    }

    fn lock(free: &Mutex<Self>) -> MutexGuard<'_, Self> {
        free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
