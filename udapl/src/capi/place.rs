//! Places of the table of handles, and how they pass from one thread to the next.
//!
//! Who makes an object takes a free place, writes there what its handle stands for, and the handle last; who looks a
//! handle up reads the handle first. So who finds it finds all of what was written. One of those who free a handle
//! empties the place, which is free from then on: nobody has it twice. A look-up of a handle that is being freed is the
//! business of whoever calls for that adapter ([`table`](super::table)).
//!
//! All that passes between threads here uses the names of [`primitives`](super::primitives) and no others, and is tried
//! in every order by `models`.

use std::collections::VecDeque;
use std::sync::PoisonError;

use super::primitives::{AtomicPtr, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};

/// One place, for a handle of objects that belong to an `A`.
#[repr(C)]
pub(super) struct Place<A> {
    /// The handle that lives here, or 0.
    pub(super) occupant: AtomicU64,
    /// Null where no handle ever lived, and so in the first place of each kind, which the null handle leads to.
    pub(super) adapter: AtomicPtr<A>,
    /// Of the object's handle in Rust: the IA in 63:32, and below it the generation of its place there, as they are
    /// compared there.
    pub(super) tag: AtomicU64,
    /// That place.
    pub(super) index: AtomicU32,
    /// The instance of the adapter that the object belongs to.
    pub(super) owner: AtomicU32,
}

impl<A> Place<A> {
    /// Whether a handle lives here; what it stands for may be read then.
    #[inline(always)]
    pub(super) fn holds(&self, handle: u64) -> bool {
        // Acquire: what the place says of the handle was written before it.
        self.occupant.load(Ordering::Acquire) == handle
    }

    /// Whose object it is.
    #[inline(always)]
    pub(super) fn adapter(&self) -> *mut A {
        self.adapter.load(Ordering::Relaxed)
    }

    /// The raw parts of the object's handle in Rust: a key, and the IA.
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

    /// From now on the handle lives here.
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

    /// Empties the place; false if the handle lives here no more. Who is told true gives the place back.
    pub(super) fn leave(&self, handle: u64) -> bool {
        let left = self
            .occupant
            .compare_exchange(handle, 0, Ordering::AcqRel, Ordering::Relaxed);
        left.is_ok()
    }
}

/// Places of a kind nobody lives in: those left, oldest first, and those never used.
pub(super) struct Free {
    left: VecDeque<u32>,
    fresh: u32,
    end: u32,
}

impl Free {
    /// All of so many but the first, which is nobody's.
    pub(super) const fn new(places: u32) -> Self {
        Self {
            left: VecDeque::new(),
            fresh: 1,
            end: places,
        }
    }

    /// Takes a place. Those that were left are taken again as late as possible, so that a stale handle meets an empty
    /// one for long.
    pub(super) fn take(free: &Mutex<Self>) -> Option<u32> {
        let mut free = Self::lock(free);
        if free.fresh < free.end {
            free.fresh += 1;
            return Some(free.fresh - 1);
        }
        free.left.pop_front()
    }

    /// Gives a place back that is empty.
    pub(super) fn give(free: &Mutex<Self>, place: u32) {
        Self::lock(free).left.push_back(place);
    }

    fn lock(free: &Mutex<Self>) -> MutexGuard<'_, Self> {
        free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
