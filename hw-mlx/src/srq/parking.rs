//! Shared receive queues of a function that is handed over to another process.
//!
//! The list is both in the ring, where the device follows it, and in the driver's copy. The snapshot has the part that
//! the driver goes on with: the free entries in their order. The entries that the device has may come back in any
//! order.

use std::sync::{Arc, PoisonError};

use driver::{DmaRing, DmaWord};
use mlx_prm::{Opcode, QueryRmpIn};

use super::{COUNTER, LINKED_LIST, MIN_STRIDE, RMP_READY, Shadow, Srq, SrqSizes};
use crate::bounds::MAX_COUNT;
use crate::device::{Hca, ParkingHca};
use crate::error::{MlxError, ResumeError, ask_twice};
use crate::ring::{RingMemory, RingSnapshot};
use crate::wqe::{self, UNIT_BYTES};

/// Name of the table in errors.
const TABLE: &str = "a shared receive queue";

/// A shared receive queue.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct SrqSnapshot {
    /// RMP number of the queue.
    pub rmpn: u32,
    /// Protection domain.
    pub pd: u32,
    /// Ring and doorbell record.
    pub memory: RingSnapshot,
    /// Sizes of the queue.
    pub sizes: SrqSizes,
    /// Number of buffers posted since the queue was created.
    pub posted: u64,
    /// Counter in the doorbell record.
    pub announced: u16,
    /// Indices of the free entries, in the order of the list. The last one is the list's tail.
    pub free: Vec<u16>,
    /// Entries with posted buffers.
    pub buffers: Vec<SharedBufferSnapshot>,
    /// Indices of entries with posted buffers whose completions were discarded.
    pub returns: Vec<u16>,
    /// Number of CQEs that matched no posted buffer.
    pub unmatched: u64,
}

/// A posted buffer of a shared receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct SharedBufferSnapshot {
    /// Index of the entry.
    pub index: u16,
    /// Cookie that the caller gave at the post.
    pub cookie: u64,
    /// Number of bytes of its segments.
    pub bytes: u32,
}

impl Srq {
    /// Describes the queue for another process. Its memory is the other process's from then on.
    #[must_use]
    pub fn park(mut self, _at_quiet_point: &ParkingHca) -> SrqSnapshot {
        let snapshot = self.snapshot();
        self.memory.returned();
        snapshot
    }

    fn snapshot(&self) -> SrqSnapshot {
        let memory = self.memory.get();
        let mut free = vec![self.head];
        // The list ends at the tail. The bound makes the loop finite.
        while free.last() != Some(&self.tail) && free.len() < self.shadow.len() {
            let last = free.last().map_or(self.head, |last| *last);
            free.push(self.shadow[usize::from(last)].next);
        }
        let buffers = self.shadow.iter().zip(0..).filter(|(it, _)| it.posted);
        let returns = self.returns.indices.lock();
        // CAST: the record has 16 bits of the counter.
        #[expect(clippy::cast_possible_truncation, reason = "16 bits")]
        let announced = memory.record.load_be32(COUNTER) as u16;
        SrqSnapshot {
            rmpn: self.rmpn,
            pd: self.pd,
            memory: memory.snapshot(),
            sizes: SrqSizes {
                max_recvs: self.max_recvs,
                // PANIC: a ring has at most 2^15 entries.
                entries: u32::try_from(self.shadow.len()).expect("at most 2^15"),
                stride: self.units * wqe::UNIT_BYTES_U32,
            },
            posted: self.posted,
            announced,
            free,
            buffers: buffers
                .map(|(shadow, index)| SharedBufferSnapshot {
                    index,
                    cookie: shadow.cookie,
                    bytes: shadow.bytes,
                })
                .collect(),
            returns: returns.unwrap_or_else(PoisonError::into_inner).clone(),
            unmatched: self.unmatched_entries,
        }
    }

    /// Makes the queue again, and compares it with the device's. Nothing is posted.
    ///
    /// # Errors
    /// [`ResumeError`]: numbers of the snapshot contradict each other or the ring, the memory is not there, or the
    /// device's queue is another one or counts differently.
    pub fn resume(hca: &mut Hca, snapshot: &SrqSnapshot) -> Result<Self, ResumeError> {
        let SrqSnapshot {
            rmpn,
            pd,
            ref memory,
            sizes,
            posted,
            announced,
            ref free,
            ref buffers,
            ref returns,
            unmatched,
        } = *snapshot;
        let refused = |what: String| ResumeError::snapshot(TABLE, what);
        let is_possible = sizes.entries.is_power_of_two()
            && sizes.entries <= 1 << 15
            && sizes.stride.is_power_of_two()
            && (MIN_STRIDE..=1 << 11).contains(&sizes.stride)
            && sizes.max_recvs < sizes.entries
            && sizes.bytes() as u64 <= memory.bytes
            && rmpn.max(pd) <= 0xff_ffff
            && posted.max(unmatched) <= MAX_COUNT
            && posted >= buffers.len() as u64;
        if !is_possible {
            return Err(refused(format!(
                "RMP {rmpn:#x}, PD {pd:#x}, {sizes:?}, {} of {posted} buffers posted, {unmatched} unmatched",
                buffers.len()
            )));
        }
        let (Some(&head), Some(&tail)) = (free.first(), free.last()) else {
            return Err(refused("the list has no tail".to_owned()));
        };
        let shadow = list(sizes, free, buffers)
            .ok_or_else(|| refused("entries are missing, repeated or unknown".to_owned()))?;
        let memory = RingMemory::resume(hca.arena(), memory)?;
        let RingMemory { ring, record, .. } = memory.get();
        let in_record = record.load_be32(COUNTER);
        // Some posted buffers may not be announced yet.
        #[expect(clippy::cast_possible_truncation, reason = "the low 16 bits")]
        let unannounced = (posted as u16).wrapping_sub(announced);
        if in_record != announced.into() || usize::from(unannounced) > buffers.len() {
            return Err(refused(format!(
                "{posted} buffers posted, {announced:#x} announced, and {in_record:#x} in the doorbell record"
            )));
        }
        let units = sizes.stride / wqe::UNIT_BYTES_U32;
        let queue = Self {
            ring: DmaRing::new(ring, 0, sizes.entries * units),
            record: DmaWord::new(record, COUNTER),
            memory,
            rmpn,
            pd,
            units,
            max_recvs: sizes.max_recvs,
            head,
            tail,
            posted,
            // CAST: at most 2^15 entries, as the list has shown.
            #[expect(clippy::cast_possible_truncation, reason = "at most 2^15")]
            outstanding: buffers.len() as u32,
            shadow,
            returns: Arc::default(),
            unmatched_entries: unmatched,
        };
        for pair in free.windows(2) {
            let link: [u8; UNIT_BYTES] =
                queue.ring.block(u32::from(pair[0]) * units).read::<_, 0>();
            if wqe::Unit::from_bytes(link) != wqe::next_segment(pair[1]) {
                return Err(refused(format!(
                    "entry {} is before {}, and its link is {link:02x?}",
                    pair[0], pair[1]
                )));
            }
        }
        let mut before = std::collections::BTreeSet::new();
        for &index in returns {
            let is_posted = queue.shadow.get(usize::from(index));
            if !is_posted.is_some_and(|it| it.posted) || !before.insert(index) {
                return Err(refused(format!(
                    "entry {index} is to be returned, and is not posted or is listed twice"
                )));
            }
            queue.returns.push(index);
        }
        ask_twice(|| queue.check(hca, announced))?;
        hca.count_resumed(Opcode::CREATE_RMP, rmpn)?;
        Ok(queue)
    }

    /// Compares the queue with the device's.
    fn check(&self, hca: &mut Hca, announced: u16) -> Result<(), ResumeError> {
        let mut input = QueryRmpIn::new();
        input.set_rmpn(self.rmpn);
        let memory = self.memory.get();
        let answer = hca.exec_reading(&input, &[], memory.pages().len());
        let (answer, pages) = answer.map_err(MlxError::from)?;
        let context = answer.rmp_context();
        let queue = context.wq();
        let stride = self.units * wqe::UNIT_BYTES_U32;
        let ours = (
            self.pd,
            self.shadow.len().ilog2(),
            stride.ilog2(),
            memory.record_address(),
            RMP_READY,
            (LINKED_LIST, 0),
        );
        let devices = (
            queue.pd(),
            queue.log_wq_sz(),
            queue.log_wq_stride(),
            queue.dbr_addr(),
            context.state(),
            (queue.wq_type(), queue.page_offset()),
        );
        let is_there = memory.is_at(&pages);
        let known = queue.sw_counter() & 0xffff;
        let untaken = u32::from(self.counter()).wrapping_sub(queue.hw_counter()) & 0xffff;
        if untaken > self.outstanding {
            // No document says whether `hw_counter` counts buffers, or is a place in the list.
            tracing::info!(
                rmpn = self.rmpn,
                hw_counter = queue.hw_counter(),
                counter = self.counter(),
                outstanding = self.outstanding,
                "a shared receive queue's hw_counter is no number of buffers taken"
            );
        }
        if ours != devices || !is_there || !can_know(known, announced) {
            return Err(ResumeError::changed(format!(
                "shared receive queue {:#x} has pd, log_wq_sz, log_wq_stride, dbr_addr, state, wq_type and page_offset {devices:x?}, and not {ours:x?}; ring expected at {:#x}, page list matches: {is_there}; it knows {known:#x} buffers and has taken {:#x}; {announced:#x} were announced, and {} behind {:#x} are outstanding",
                self.rmpn,
                memory.ring.iova().0,
                queue.hw_counter(),
                self.outstanding,
                self.counter()
            )));
        }
        Ok(())
    }
}

/// Returns whether the device can know this number of buffers, modulo 2^16. It reads the doorbell record when it needs
/// buffers, so it may know fewer than were announced. A ring has at most 2^15 entries.
const fn can_know(known: u32, announced: u16) -> bool {
    (announced as u32).wrapping_sub(known) & 0xffff < 1 << 15
}

/// Makes the data of all entries. Returns `None` if an entry is missing, is there twice, or has another index.
fn list(sizes: SrqSizes, free: &[u16], buffers: &[SharedBufferSnapshot]) -> Option<Box<[Shadow]>> {
    let mut entries: Vec<Option<Shadow>> = vec![None; sizes.entries as usize];
    let mut set = |index: u16, shadow| {
        let place = entries.get_mut(usize::from(index))?;
        place.replace(shadow).is_none().then_some(())
    };
    let next = free.iter().skip(1).chain(free.last());
    for (&index, &next) in free.iter().zip(next) {
        let shadow = Shadow {
            cookie: 0,
            bytes: 0,
            next,
            posted: false,
        };
        set(index, shadow)?;
    }
    for &SharedBufferSnapshot {
        index,
        cookie,
        bytes,
    } in buffers
    {
        let shadow = Shadow {
            cookie,
            bytes,
            // The link of a posted entry is set when the entry is appended.
            next: index,
            posted: true,
        };
        set(index, shadow)?;
    }
    entries.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_knows_no_buffers_that_were_not_announced() {
        for announced in [0, 5, 0xffff] {
            for (behind, expected) in [(0, true), (20, true), (0xffff, false), (0x8000, false)] {
                let known = u32::from(announced).wrapping_sub(behind) & 0xffff;
                assert_eq!(
                    can_know(known, announced),
                    expected,
                    "{announced}, {behind}"
                );
            }
        }
    }
}
