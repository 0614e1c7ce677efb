//! Receive queues of a function that is handed over to another process.

use driver::DmaBuffer;

use super::{RECEIVE_COUNTER, RecvQueue, RecvSizes, Shadow};
use crate::bounds::MAX_COUNT;
use crate::error::ResumeError;
use crate::wqe;

/// Name of the table in errors.
const TABLE: &str = "a receive queue";
/// Largest distance between entries in bytes.
const MAX_STRIDE: u32 = 1 << 11;

/// A receive queue with its outstanding receives.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct RecvQueueSnapshot {
    /// Sizes of the queue. Its `max_recvs` is 0 if the queue pair has no receives of its own.
    pub sizes: RecvSizes,
    /// Number of receives posted since the last reset, modulo 2^32.
    pub posted: u32,
    /// Counter in the doorbell record: less than `posted` modulo 2^16 if receives were posted without writing it.
    pub announced: u16,
    /// Number of receives completed or discarded since the queue was created.
    pub done: u64,
    /// Number of bytes that arrived in completed receives.
    pub bytes: u64,
    /// Number of CQEs that matched no outstanding receive.
    pub unmatched: u64,
    /// Receives that were posted and are not complete, oldest first.
    pub receives: Vec<ReceiveSnapshot>,
}

/// An outstanding receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ReceiveSnapshot {
    /// Cookie that the caller gave at the post.
    pub cookie: u64,
    /// Number of bytes of its segments.
    pub bytes: u32,
    /// The `unsignalled` choice made at the post.
    pub is_unsignalled: bool,
}

impl RecvQueue {
    /// Returns the sizes that the queue was made with.
    pub(crate) fn sizes(&self) -> RecvSizes {
        RecvSizes {
            max_recvs: self.max_recvs,
            // The last index of the table, which has an element for each entry.
            entries: self.shadow.slot(u32::MAX) + 1,
            stride: self.units * wqe::UNIT_BYTES_U32,
        }
    }

    /// Describes the queue. `record` is the doorbell record.
    pub(crate) fn snapshot(&self, record: &DmaBuffer) -> RecvQueueSnapshot {
        let receive = |ahead| {
            let shadow = self.shadow.at(self.shadow.oldest.wrapping_add(ahead));
            ReceiveSnapshot {
                cookie: shadow.cookie,
                bytes: shadow.bytes,
                is_unsignalled: shadow.unsignalled,
            }
        };
        // CAST: the record has 16 bits of the counter.
        #[expect(clippy::cast_possible_truncation, reason = "16 bits")]
        let announced = record.load_be32(RECEIVE_COUNTER) as u16;
        RecvQueueSnapshot {
            sizes: self.sizes(),
            posted: self.ring.count(),
            announced,
            done: self.done,
            bytes: self.bytes,
            unmatched: self.unmatched_entries,
            receives: (0..self.outstanding()).map(receive).collect(),
        }
    }

    /// Makes the queue again, at the start of `buffer`. Writes nothing to the buffer and the record.
    ///
    /// # Errors
    /// The numbers contradict each other, the entries, or the doorbell record.
    pub(crate) fn resume(
        snapshot: &RecvQueueSnapshot,
        buffer: &DmaBuffer,
        record: &DmaBuffer,
        number: u32,
    ) -> Result<Self, ResumeError> {
        let RecvQueueSnapshot {
            sizes,
            posted,
            announced,
            done,
            bytes,
            unmatched,
            ref receives,
        } = *snapshot;
        let refused = |what: String| ResumeError::snapshot(TABLE, what);
        let RecvSizes {
            max_recvs,
            entries,
            stride,
        } = sizes;
        let is_possible = entries.is_power_of_two()
            && entries <= 1 << 15
            && stride.is_power_of_two()
            && (wqe::UNIT_BYTES_U32..=MAX_STRIDE).contains(&stride)
            && max_recvs <= entries;
        if !is_possible || buffer.len() < sizes.bytes() {
            return Err(refused(format!("{sizes:?} in {:#x} bytes", buffer.len())));
        }
        let in_record = record.load_be32(RECEIVE_COUNTER);
        let is_counted = receives.len() <= max_recvs as usize
            && done.max(unmatched) <= MAX_COUNT
            && in_record == u32::from(announced);
        if !is_counted {
            return Err(refused(format!(
                "{} of {max_recvs} receives outstanding, {done} done, {unmatched} unmatched, {announced:#x} announced, and {in_record:#x} in the doorbell record",
                receives.len()
            )));
        }
        let mut queue = Self::new(sizes, buffer, record, number);
        queue.ring.set_count(posted);
        // CAST: at most `max_recvs`.
        #[expect(clippy::cast_possible_truncation, reason = "at most 2^15")]
        let oldest = posted.wrapping_sub(receives.len() as u32);
        queue.shadow.oldest = oldest;
        queue.done = done;
        queue.bytes = bytes;
        queue.unmatched_entries = unmatched;
        for (receive, ahead) in receives.iter().zip(0..) {
            *queue.shadow.at_mut(oldest.wrapping_add(ahead)) = Shadow {
                cookie: receive.cookie,
                bytes: receive.bytes,
                unsignalled: receive.is_unsignalled,
            };
        }
        if queue.posted().is_none() {
            return Err(refused(
                "the lengths of the receives are not those of the entries".to_owned(),
            ));
        }
        Ok(queue)
    }

    /// Returns the number of posted receives that the doorbell record has not announced.
    pub(crate) fn unannounced(&self, announced: u16) -> u32 {
        self.ring.count().wrapping_sub(announced.into()) & 0xffff
    }

    /// Returns the number of receives completed since the last reset, modulo 2^32.
    pub(crate) fn completed(&self) -> u32 {
        self.shadow.oldest
    }
}
