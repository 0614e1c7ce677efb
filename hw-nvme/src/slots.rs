//! Outstanding commands of a queue.
//!
//! ```text
//!   Free --take--> Outstanding --end (its completion)--> Free
//!                       \--drain (the controller was stopped)--> Free
//! ```
//!
//! A command identifier is the index of a slot and a generation, which changes with each use. So a completion that
//! comes twice, or late, names no outstanding command.

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
    /// Indices of free slots.
    free: Vec<u16>,
}

impl Slots {
    /// Makes `count` free slots, at most [`MOST`].
    pub fn new(count: u16) -> Self {
        let count = count.min(MOST);
        let free = Slot {
            cookie: 0,
            since: Instant(0),
            opcode: 0,
            generation: 0,
            is_outstanding: false,
        };
        Self {
            all: vec![free; count.into()],
            free: (0..count).rev().collect(),
        }
    }

    /// Returns the number of outstanding commands.
    #[inline]
    pub const fn outstanding(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Takes a free slot. Returns its index and the command identifier.
    #[inline]
    pub fn take(&mut self, cookie: u64, opcode: u8, now: Instant) -> Option<(u16, u16)> {
        let index = self.free.pop()?;
        let slot = &mut self.all[usize::from(index)];
        slot.generation = (slot.generation + 1) % GENERATIONS;
        (slot.cookie, slot.opcode, slot.since) = (cookie, opcode, now);
        slot.is_outstanding = true;
        Some((index, u16::from(slot.generation) << INDEX_BITS | index))
    }

    /// Frees the slot of a completion. `None`: the identifier is that of no outstanding command.
    #[inline]
    pub fn end(&mut self, cid: u16) -> Option<Command> {
        let index = cid & (MOST - 1);
        let slot = self.all.get_mut(usize::from(index))?;
        if !slot.is_outstanding || u16::from(slot.generation) != cid >> INDEX_BITS {
            return None;
        }
        slot.is_outstanding = false;
        self.free.push(index);
        let cookie = slot.cookie;
        Some(Command { index, cookie })
    }

    /// Frees the slots of all outstanding commands, and returns their cookies.
    pub fn drain(&mut self) -> Vec<u64> {
        let mut cookies = Vec::new();
        for (index, slot) in (0..).zip(&mut self.all) {
            if slot.is_outstanding {
                slot.is_outstanding = false;
                self.free.push(index);
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

    #[test]
    fn each_command_ends_once() {
        let mut slots = Slots::new(2);
        let (_, first) = slots.take(11, 1, NOW).unwrap();
        let (_, second) = slots.take(12, 1, NOW).unwrap();
        assert_eq!((slots.take(13, 1, NOW), slots.outstanding()), (None, 2));
        assert_eq!(slots.end(second).map(|it| it.cookie), Some(12));
        assert_eq!(slots.end(second), None);
        let (index, third) = slots.take(13, 1, NOW).unwrap();
        assert_eq!(index, second & (MOST - 1));
        assert_eq!((slots.end(second), slots.end(0xfff)), (None, None));
        assert_eq!(slots.drain(), [11, 13]);
        assert_eq!((slots.end(first), slots.end(third)), (None, None));
        assert_eq!(slots.outstanding(), 0);
    }

    #[test]
    fn no_identifier_is_the_one_that_means_none() {
        let mut slots = Slots::new(u16::MAX);
        assert_eq!(slots.all.len(), usize::from(MOST));
        for _ in 0..40 {
            let taken: Vec<_> = (0..MOST).map(|_| slots.take(0, 0, NOW).unwrap()).collect();
            assert!(taken.iter().all(|(_, cid)| *cid != u16::MAX));
            slots.drain();
        }
    }

    #[test]
    fn the_oldest_command_is_found() {
        let mut slots = Slots::new(4);
        assert_eq!(slots.oldest(), None);
        slots.take(0, 1, Instant(9));
        let (_, cid) = slots.take(0, 2, Instant(5)).unwrap();
        assert_eq!(slots.oldest(), Some((2, Instant(5))));
        slots.end(cid);
        assert_eq!(slots.oldest(), Some((1, Instant(9))));
    }
}
