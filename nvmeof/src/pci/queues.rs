//! The queues of the simulated SSD.

use std::collections::VecDeque;

use crate::model::Connected;
use crate::nvme::Status;

/// Bytes of an entry of a submission queue, and of a completion queue.
pub(super) const SQE_BYTES: u64 = 64;
pub(super) const CQE_BYTES: u64 = 16;

/// A submission queue.
pub(super) struct Submission {
    /// I/O address.
    pub at: u64,
    /// Number of entries.
    pub entries: u32,
    /// Entry that is fetched next, and the entry behind the last one.
    pub head: u32,
    pub tail: u32,
    /// Number of its completion queue.
    pub completion: u16,
    /// The queue in the model; for an I/O queue also the number of its namespaces in the table of commands.
    pub connected: Connected,
    pub list: u32,
    /// First command of a fused pair, which waits for the second.
    pub first: Option<u32>,
    /// Number of commands that were fetched and have no result.
    pub under_way: u32,
}

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Done {
    /// Number of its submission queue.
    pub queue: u16,
    pub cid: u16,
    pub status: Status,
    pub result: u64,
}

/// A completion queue.
pub(super) struct Completion {
    /// I/O address.
    pub at: u64,
    /// Number of entries.
    pub entries: u32,
    /// Entry that is written next, and entry that software takes next.
    pub tail: u32,
    pub head: u32,
    /// Phase bit of the present pass.
    pub phase: bool,
    /// Vector, if the queue has interrupts.
    pub vector: Option<u16>,
    /// Results that were not written yet.
    pub waiting: VecDeque<Done>,
}

impl Submission {
    /// Returns the address of the next command, and steps over it; `None` if there is none.
    pub(super) fn take(&mut self) -> Option<u64> {
        if self.head == self.tail {
            return None;
        }
        let at = self.at + u64::from(self.head) * SQE_BYTES;
        self.head = (self.head + 1) % self.entries;
        Some(at)
    }
}

impl Completion {
    pub(super) fn new(at: u64, entries: u32, vector: Option<u16>) -> Self {
        Self {
            at,
            entries,
            tail: 0,
            head: 0,
            phase: true,
            vector,
            waiting: VecDeque::new(),
        }
    }

    /// Returns whether as many results wait as the queue has entries, with those of `under_way` commands.
    pub(super) fn is_behind(&self, under_way: u32) -> bool {
        // CAST: widening.
        self.waiting.len() + under_way as usize >= self.entries as usize
    }

    /// Takes the next result that can be written, with its address and phase bit; `None` if there is none, or no room.
    pub(super) fn take(&mut self) -> Option<(Done, u64, bool)> {
        let next = (self.tail + 1) % self.entries;
        if next == self.head {
            return None;
        }
        let done = self.waiting.pop_front()?;
        let taken = (done, self.at + u64::from(self.tail) * CQE_BYTES, self.phase);
        self.phase ^= next == 0;
        self.tail = next;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_queue_is_never_full_and_its_phase_changes_with_each_pass() {
        let mut queue = Completion::new(0x1000, 4, None);
        let done = |cid| Done {
            queue: 1,
            cid,
            status: Status::SUCCESS,
            result: 0,
        };
        queue.waiting.extend((0..10).map(done));
        let mut all = Vec::new();
        for _ in 0..4 {
            while let Some((done, at, phase)) = queue.take() {
                all.push((done.cid, (at - 0x1000) / CQE_BYTES, phase));
            }
            assert!(all.len().is_multiple_of(3) || all.len() == 10);
            queue.head = queue.tail;
        }
        let passes = (0..10).map(|cid| (cid, u64::from(cid % 4), cid / 4 % 2 == 0));
        assert_eq!(all, passes.collect::<Vec<_>>());
    }
}
