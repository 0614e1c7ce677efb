//! Outstanding commands of a queue.
//!
//! ```text
//!   Free --take--> Outstanding --end (its completion)--> Free
//!                       \--drain (the controller was stopped)--> Free
//! ```
//!
//! A command identifier is the index of a slot and a generation, which changes with each use. So a completion that
//! comes twice, or late, names no outstanding command until its slot was used 15 times more. Free slots are used in
//! turn: the fewer are free, the sooner that is. A completion of a command that the controller has not fetched ends
//! nothing either.

use std::collections::VecDeque;

use driver::Instant;

/// Bits of the index in a command identifier.
const INDEX_BITS: u32 = 12;
/// Maximum number of slots.
pub const MOST: u16 = 1 << INDEX_BITS;
/// Number of generations. The highest identifier, FFFFh, is never used: in the error log it means none.
const GENERATIONS: u8 = 15;

#[derive(Clone, Copy, Debug)]
struct Slot {
    cookie: u64,
    since: Instant,
    /// Number of the command's entry in the submission queue.
    entry: u32,
    opcode: u8,
    generation: u8,
    is_outstanding: bool,
}

/// A command that was outstanding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// Index of its slot.
    pub index: u16,
    /// Number that the caller gave.
    pub cookie: u64,
}

/// The slots of a queue.
#[derive(Debug)]
pub struct Slots {
    all: Vec<Slot>,
    /// Indices of free slots, in the order in which they are used. It never grows beyond the number of slots.
    free: VecDeque<u16>,
}

impl Slots {
    /// Makes `count` free slots, at most [`MOST`].
    pub fn new(count: u16) -> Self {
        let count = count.min(MOST);
        let free = Slot {
            cookie: 0,
            since: Instant(0),
            entry: 0,
            opcode: 0,
            generation: 0,
            is_outstanding: false,
        };
        Self {
            all: vec![free; count.into()],
            free: (0..count).collect(),
        }
    }

    /// Returns the number of outstanding commands.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Takes a free slot for the command in this entry. Returns its index and the command identifier.
    #[inline]
    pub fn take(
        &mut self,
        cookie: u64,
        (opcode, entry): (u8, u32),
        now: Instant,
    ) -> Option<(u16, u16)> {
        let index = self.free.pop_front()?;
        let slot = &mut self.all[usize::from(index)];
        slot.generation = (slot.generation + 1) % GENERATIONS;
        (slot.cookie, slot.opcode, slot.since) = (cookie, opcode, now);
        slot.entry = entry;
        slot.is_outstanding = true;
        Some((index, u16::from(slot.generation) << INDEX_BITS | index))
    }

    /// Frees the slot of a completion. `fetched` is the number of entries that the controller has fetched. `None`: the
    /// identifier is that of no outstanding command, or of one that was not fetched.
    #[inline]
    pub fn end(&mut self, cid: u16, fetched: u32) -> Option<Command> {
        let index = cid & (MOST - 1);
        let slot = self.all.get_mut(usize::from(index))?;
        if !slot.is_outstanding || u16::from(slot.generation) != cid >> INDEX_BITS {
            return None;
        }
        // Numbers of entries wrap, and are compared by their distance.
        let behind = fetched.wrapping_sub(slot.entry);
        if behind == 0 || behind > u32::MAX / 2 {
            return None;
        }
        slot.is_outstanding = false;
        self.free.push_back(index);
        let cookie = slot.cookie;
        Some(Command { index, cookie })
    }

    /// Gives back a slot whose command was not submitted.
    #[cold]
    pub fn give_back(&mut self, index: u16) {
        self.all[usize::from(index)].is_outstanding = false;
        self.free.push_back(index);
    }

    /// Frees the slots of all outstanding commands, and returns their cookies.
    pub fn drain(&mut self) -> Vec<u64> {
        let mut cookies = Vec::new();
        for (index, slot) in (0..).zip(&mut self.all) {
            if slot.is_outstanding {
                slot.is_outstanding = false;
                self.free.push_back(index);
                cookies.push(slot.cookie);
            }
        }
        cookies
    }

    /// Returns opcode and start of the oldest outstanding command.
    pub fn oldest(&self) -> Option<(u8, Instant)> {
        let outstanding = self.all.iter().filter(|slot| slot.is_outstanding);
        let oldest = outstanding.min_by_key(|slot| slot.since);
        oldest.map(|slot| (slot.opcode, slot.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(7);

    fn taken(slots: &mut Slots, cookie: u64, entry: u32) -> Option<(u16, u16)> {
        slots.take(cookie, (1, entry), NOW)
    }

    #[test]
    fn each_command_ends_once() {
        let mut slots = Slots::new(2);
        let (_, first) = taken(&mut slots, 11, 0).unwrap();
        let (_, second) = taken(&mut slots, 12, 1).unwrap();
        assert_eq!((taken(&mut slots, 13, 2), slots.outstanding()), (None, 2));
        assert_eq!(slots.end(second, 2).map(|it| it.cookie), Some(12));
        assert_eq!(slots.end(second, 2), None);
        let (index, third) = taken(&mut slots, 13, 2).unwrap();
        assert_eq!(index, second & (MOST - 1));
        assert_eq!((slots.end(second, 3), slots.end(0xfff, 3)), (None, None));
        assert_eq!(slots.drain(), [11, 13]);
        assert_eq!((slots.end(first, 3), slots.end(third, 3)), (None, None));
        assert_eq!(slots.outstanding(), 0);
    }

    #[test]
    fn a_command_that_was_not_fetched_does_not_end() {
        for first in [0, 5, u32::MAX, u32::MAX - 1] {
            let mut slots = Slots::new(4);
            let (_, cid) = taken(&mut slots, 1, first).unwrap();
            assert_eq!(slots.end(cid, first), None);
            assert_eq!(slots.end(cid, first.wrapping_sub(1)), None);
            assert!(slots.end(cid, first.wrapping_add(1)).is_some());
        }
    }

    #[test]
    fn no_identifier_is_the_one_that_means_none() {
        let mut slots = Slots::new(u16::MAX);
        assert_eq!(slots.all.len(), usize::from(MOST));
        for _ in 0..40 {
            let all: Vec<_> = (0..MOST)
                .map(|_| taken(&mut slots, 0, 0).unwrap())
                .collect();
            assert!(all.iter().all(|(_, cid)| *cid != u16::MAX));
            slots.drain();
        }
    }

    /// An identifier comes back after 15 times as many commands as there are slots, also if one command at a time is
    /// outstanding.
    #[test]
    fn an_identifier_comes_back_late() {
        let mut slots = Slots::new(8);
        let mut used = Vec::new();
        for entry in 0..8 * 15 {
            let (_, cid) = taken(&mut slots, 0, entry).unwrap();
            assert!(!used.contains(&cid), "{entry}");
            used.push(cid);
            slots.end(cid, entry + 1).unwrap();
        }
        let (_, cid) = taken(&mut slots, 0, 120).unwrap();
        assert_eq!(cid, used[0]);
    }

    #[test]
    fn the_oldest_command_is_found() {
        let mut slots = Slots::new(4);
        assert_eq!(slots.oldest(), None);
        slots.take(0, (1, 0), Instant(9));
        let (_, cid) = slots.take(0, (2, 1), Instant(5)).unwrap();
        assert_eq!(slots.oldest(), Some((2, Instant(5))));
        slots.end(cid, 2);
        assert_eq!(slots.oldest(), Some((1, Instant(9))));
    }
}
