//! Buffers for data that is longer than a page, and who waits for one.

use std::collections::VecDeque;

/// The buffers of a worker, by number. A command gets all that it needs at once, one or two: who held one and waited
/// for the other could wait for ever.
#[derive(Debug)]
pub(super) struct Buffers {
    free: Vec<u32>,
    /// I/Os that wait and how many buffers each needs, the oldest first.
    waiting: VecDeque<(u32, usize)>,
}

impl Buffers {
    pub(super) fn new(count: u32) -> Self {
        Self {
            free: (0..count).rev().collect(),
            waiting: VecDeque::new(),
        }
    }

    /// How many are free.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// Whether so many are to be had: they are free, and nobody waits for them already.
    #[inline]
    pub(super) fn has(&self, count: usize) -> bool {
        self.waiting.is_empty() && self.free.len() >= count
    }

    /// One that is known to be there, by [`Buffers::has`] or [`Buffers::next`].
    #[inline]
    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// An I/O gets so many as soon as they are free.
    pub(super) fn wait(&mut self, io: u32, count: usize) {
        self.waiting.push_back((io, count));
    }

    /// An I/O waits no more.
    pub(super) fn forget(&mut self, io: u32) {
        self.waiting.retain(|(waiting, _)| *waiting != io);
    }

    pub(super) fn give_back(&mut self, buffer: u32) {
        self.free.push(buffer);
    }

    /// Whether who has waited the longest can go on.
    #[inline]
    pub(super) fn has_next(&self) -> bool {
        let first = self.waiting.front();
        first.is_some_and(|(_, count)| *count <= self.free.len())
    }

    /// Who has waited the longest, if the buffers it needs are free: it takes them next.
    pub(super) fn next(&mut self) -> Option<u32> {
        if !self.has_next() {
            return None;
        }
        self.waiting.pop_front().map(|(io, _)| io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_served_before_who_comes_later_and_gets_all_at_once() {
        let mut buffers = Buffers::new(2);
        assert!(buffers.has(2) && !buffers.has(3));
        assert_eq!(buffers.take(), Some(0));
        buffers.wait(7, 2);
        buffers.wait(8, 1);
        assert!(!buffers.has(1), "two wait");
        assert_eq!(buffers.next(), None, "one is not enough for the first");
        buffers.forget(7);
        assert_eq!(buffers.next(), Some(8));
        assert_eq!(buffers.take(), Some(1));
        buffers.wait(9, 2);
        buffers.give_back(1);
        assert_eq!(buffers.next(), None);
        buffers.give_back(0);
        assert!(buffers.has_next());
        assert_eq!(buffers.next(), Some(9));
    }
}
