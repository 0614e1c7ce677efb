//! Buffers for data that is longer than a page, and who waits for one.

use std::collections::VecDeque;

/// The buffers of a worker, by number.
#[derive(Debug)]
pub(super) struct Buffers {
    free: Vec<u32>,
    /// I/Os that wait for one, the oldest first.
    waiting: VecDeque<u32>,
}

impl Buffers {
    pub(super) fn new(count: u32) -> Self {
        Self {
            free: (0..count).rev().collect(),
            waiting: VecDeque::new(),
        }
    }

    /// A buffer, unless somebody waits for one already.
    pub(super) fn take(&mut self) -> Option<u32> {
        if self.waiting.is_empty() {
            self.free.pop()
        } else {
            None
        }
    }

    /// An I/O gets the next one that is free.
    pub(super) fn wait(&mut self, io: u32) {
        self.waiting.push_back(io);
    }

    /// An I/O waits no more.
    pub(super) fn forget(&mut self, io: u32) {
        self.waiting.retain(|waiting| *waiting != io);
    }

    pub(super) fn give_back(&mut self, buffer: u32) {
        self.free.push(buffer);
    }

    /// Who has waited the longest, and its buffer.
    pub(super) fn next(&mut self) -> Option<(u32, u32)> {
        let buffer = *self.free.last()?;
        let io = self.waiting.pop_front()?;
        self.free.pop();
        Some((io, buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_served_before_who_comes_later() {
        let mut buffers = Buffers::new(1);
        assert_eq!(buffers.take(), Some(0));
        assert_eq!(buffers.take(), None);
        buffers.wait(7);
        buffers.wait(8);
        assert_eq!(buffers.next(), None);
        buffers.give_back(0);
        assert_eq!(buffers.take(), None, "two wait for it");
        buffers.forget(7);
        assert_eq!(buffers.next(), Some((8, 0)));
        buffers.give_back(0);
        assert_eq!(buffers.take(), Some(0));
    }
}
