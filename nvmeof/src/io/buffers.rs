//! Buffers for data that is longer than a page, and the commands that wait for buffers.
//!
//! A host can delay its data until its connection times out. So each buffer in use has an owner, which is a party of
//! `serve::admission`. A party may have at most three times the number of buffers that remain free. This limit does not
//! apply to the party's first two buffers, which the party gets as soon as they are free. All guests together have at
//! most [`GUEST_BUFFERS`], and all guests at one address at most one.

use std::collections::VecDeque;

/// The party that a buffer is counted for: the number of its entry in the admission table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub id: u32,
    /// True if the party is a guest. All guests share one quota.
    pub is_guest: bool,
}

/// Number of buffers that a party gets before other parties get more than this number: a comparison needs two.
const FIRST: usize = 2;
/// Factor of the limit: a party may have this many times the number of buffers that remain free.
const TIMES: usize = 3;
/// Maximum number of buffers of all guests together, for long log pages of discovery.
const GUEST_BUFFERS: usize = 4;

/// A command that waits for buffers.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    io: u32,
    count: usize,
    owner: Owner,
}

/// The buffers of a worker, by number. A command gets all the buffers that it needs, one or two, at once. If it held
/// one and waited for the other, it could wait for ever.
#[derive(Debug)]
pub(crate) struct Buffers {
    free: Vec<u32>,
    /// Owner of each buffer, by the buffer's number.
    owners: Vec<Owner>,
    /// Number of buffers in use by each party, by the party's number.
    held: Vec<usize>,
    of_guests: usize,
    /// Commands that wait for buffers, the oldest first.
    waiting: VecDeque<Waiting>,
}

impl Buffers {
    pub(crate) fn new(count: u32) -> Self {
        Self {
            free: (0..count).rev().collect(),
            owners: vec![Owner::default(); count as usize], // CAST: widening.
            held: Vec::new(),
            of_guests: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Returns the number of free buffers.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of buffers that a party would have with `count` more.
    #[inline]
    fn after(&self, owner: Owner, count: usize) -> usize {
        let held = self.held.get(owner.id as usize); // CAST: widening.
        held.copied().unwrap_or(0) + count
    }

    /// Returns whether a waiting command has precedence: its party is no guest, and would have at most `FIRST` buffers.
    fn is_first(&self, waits: &Waiting) -> bool {
        !waits.owner.is_guest && self.after(waits.owner, waits.count) <= FIRST
    }

    /// Returns whether `count` buffers are free and the party's limit allows them.
    #[inline]
    fn fits(&self, owner: Owner, count: usize) -> bool {
        let Some(left) = self.free.len().checked_sub(count) else {
            return false;
        };
        let after = self.after(owner, count);
        if owner.is_guest {
            after <= 1 && self.of_guests + count <= GUEST_BUFFERS
        } else {
            after <= FIRST || after <= TIMES * left
        }
    }

    /// Returns whether a party gets `count` more buffers now: they are free, its limit allows them, and no waiting
    /// command has precedence.
    #[inline]
    pub(crate) fn has(&self, owner: Owner, count: usize) -> bool {
        if !self.fits(owner, count) {
            return false;
        }
        self.waiting.is_empty() || self.is_before(owner, count)
    }

    /// Returns whether a party has precedence over all commands that wait.
    #[cold]
    fn is_before(&self, owner: Owner, count: usize) -> bool {
        let is_first = self.is_first(&Waiting {
            io: 0,
            count,
            owner,
        });
        !self.waiting.iter().any(|one| {
            one.owner == owner || self.is_first(one) || !is_first && self.fits(one.owner, one.count)
        })
    }

    /// Takes a free buffer, after [`Buffers::has`] or [`Buffers::next`] has allowed it.
    #[inline]
    pub(crate) fn take(&mut self, owner: Owner) -> Option<u32> {
        let buffer = self.free.pop()?;
        let at = owner.id as usize; // CAST: widening.
        if self.held.len() <= at {
            self.held.resize(at + 1, 0);
        }
        self.held[at] += 1;
        self.of_guests += usize::from(owner.is_guest);
        self.owners[buffer as usize] = owner; // CAST: widening.
        Some(buffer)
    }

    /// Adds a command that waits for `count` buffers.
    pub(crate) fn wait(&mut self, io: u32, owner: Owner, count: usize) {
        self.waiting.push_back(Waiting { io, count, owner });
    }

    /// Removes a command from the waiting ones.
    pub(crate) fn forget(&mut self, io: u32) {
        self.waiting.retain(|waiting| waiting.io != io);
    }

    pub(crate) fn give_back(&mut self, buffer: u32) {
        let owner = self.owners[buffer as usize]; // CAST: widening.
        self.held[owner.id as usize] -= 1; // CAST: widening.
        self.of_guests -= usize::from(owner.is_guest);
        self.free.push(buffer);
    }

    /// Returns the index of the waiting command that continues next: the oldest of a party with precedence, or, if
    /// there is none, the oldest that its party's limit allows. `None` if none can continue.
    #[cold]
    fn next_index(&self) -> Option<usize> {
        let first = self.waiting.iter().position(|one| self.is_first(one));
        if let Some(first) = first {
            return (self.waiting[first].count <= self.free.len()).then_some(first);
        }
        let fits = |one: &Waiting| self.fits(one.owner, one.count);
        self.waiting.iter().position(fits)
    }

    /// Returns whether a waiting command can continue.
    #[inline]
    pub(crate) fn has_next(&self) -> bool {
        !self.waiting.is_empty() && self.next_index().is_some()
    }

    /// Returns the waiting command that continues next. The caller must take its buffers at once.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<u32> {
        if self.waiting.is_empty() {
            return None;
        }
        let index = self.next_index()?;
        self.waiting.remove(index).map(|one| one.io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn host(id: u32) -> Owner {
        Owner {
            id,
            is_guest: false,
        }
    }

    #[test]
    fn who_waits_is_served_before_who_comes_later_and_gets_all_at_once() {
        let mut buffers = Buffers::new(2);
        let (a, b) = (host(1), host(2));
        assert!(buffers.has(a, 2) && !buffers.has(a, 3));
        assert_eq!(buffers.take(a), Some(0));
        buffers.wait(7, b, 2);
        buffers.wait(8, b, 1);
        assert!(!buffers.has(a, 1), "two wait");
        assert_eq!(buffers.next(), None, "one is not enough for the first");
        buffers.forget(7);
        assert_eq!(buffers.next(), Some(8));
        assert_eq!(buffers.take(b), Some(1));
        buffers.wait(9, a, 2);
        buffers.give_back(1);
        assert_eq!(buffers.next(), None);
        buffers.give_back(0);
        assert!(buffers.has_next());
        assert_eq!(buffers.next(), Some(9));
    }

    #[test]
    fn a_party_leaves_a_quarter_to_others_and_its_own_wait_holds_up_nobody_else() {
        let mut buffers = Buffers::new(32);
        let (hog, other) = (host(1), host(2));
        let mut held = Vec::new();
        while buffers.has(hog, 1) {
            held.extend(buffers.take(hog));
        }
        assert_eq!(held.len(), 24);
        buffers.wait(1, hog, 1);
        assert_eq!(buffers.next(), None);
        // Even if no buffer is free, a party's first two have precedence over `hog`, which has waited longer.
        assert!(buffers.has(other, 2));
        while buffers.free() != 0 {
            buffers.take(host(3));
        }
        buffers.wait(2, other, 2);
        buffers.give_back(held[0]);
        assert_eq!(buffers.next(), None, "one is kept for the two");
        buffers.give_back(held[1]);
        assert_eq!(buffers.next(), Some(2));
    }

    #[test]
    fn guests_have_four_buffers_together_and_one_each() {
        let mut buffers = Buffers::new(32);
        let guest = |id| Owner { id, is_guest: true };
        for id in 0..4 {
            assert!(buffers.has(guest(id), 1));
            buffers.take(guest(id));
            assert!(!buffers.has(guest(id), 1));
        }
        assert!(!buffers.has(guest(4), 1) && buffers.has(host(5), 2));
    }
}
