//! Completion queues of a function that is handed over to another process.
//!
//! The most dangerous number is the event sequence number. The device ignores an arm request whose number differs from
//! its own count of events and reports no error, so the owner of the queue would wait for ever. The device does not
//! show its count. It shows whether the queue is armed, and the last request is in the doorbell record. Together they
//! give the count: an armed queue has had as many events as its request says, and a fired one has had one more. A queue
//! that was never armed has had none: its `last_notified_index` is still 0xffffff, as in QUERY_CQ of a ConnectX-6 Dx
//! (README of mlx5ctl).
//!
//! A ConnectX-6 Dx returned no page list for a CQ; there the ring's address is not checked.

use mlx_prm::{Cqc, Opcode, QueryCqIn};

use super::{ARM, COUNTER_MASK, CQE_BYTES, Cq, DmaRing, DmaWord, Lap, MAX_BATCH, SET_CI};
use crate::bounds::MAX_COUNT;
use crate::cq::ArmSequence;
use crate::device::{Hca, ParkingHca};
use crate::error::{MlxError, ResumeError, ask_twice};
use crate::ring::{RingMemory, RingSnapshot};
use crate::uar::Doorbells;

/// Name of the table in errors.
const TABLE: &str = "a completion queue";
/// Position of the sequence number in an arm request.
const SEQUENCE: u32 = 28;
/// States in the context (`st`): armed for solicited entries, armed, fired.
const ARMED_SOLICITED: u32 = 0x6;
const ARMED: u32 = 0x9;
const FIRED: u32 = 0xa;

/// A completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct CqSnapshot {
    /// Number of the queue.
    pub cqn: u32,
    /// Ring and doorbell record.
    pub memory: RingSnapshot,
    /// Number of entries of the ring, a power of two.
    pub entries: u32,
    /// Number of entries between two publications of the consumer index: a power of two, at most 64.
    pub batch: u32,
    /// Number of entries taken since the queue was created.
    pub taken: u64,
    /// Number of events that the queue has had and that were counted, modulo 4.
    pub sequence: u8,
    /// Sequence number of the last arm request, modulo 4; `None` before the first.
    pub armed_at: Option<u8>,
    /// True if the queue was resized since that request, or since its creation, and counts as not armed.
    pub is_disarmed: bool,
}

impl Cq {
    /// Describes the queue for another process, and publishes its consumer index. Entries that were not taken stay in
    /// the ring. The memory is the other process's from then on.
    #[must_use]
    pub fn park(mut self, _at_quiet_point: &ParkingHca) -> CqSnapshot {
        self.publish_consumer_index();
        let snapshot = self.snapshot();
        self.memory.returned();
        snapshot
    }

    fn snapshot(&self) -> CqSnapshot {
        CqSnapshot {
            cqn: self.cqn,
            memory: self.memory.get().snapshot(),
            entries: self.entries,
            batch: self.batch_mask + 1,
            taken: self.taken(),
            sequence: two_bits(self.sequence.count()),
            armed_at: self.armed_at.map(two_bits),
            is_disarmed: self.is_disarmed,
        }
    }

    /// Makes the queue again, and compares it with the device's. The queue keeps its arm request. The caller counts the
    /// queue's events next ([`Hca::next_completion`], [`Cq::sequence`]) before it arms the queue, and takes the
    /// entries. It does not discard events of the queue's number ([`Hca::forget_completion`]).
    ///
    /// # Errors
    /// [`ResumeError`]: numbers of the snapshot are impossible, its memory is not there, or the device's queue is
    /// another one or counts differently.
    pub fn resume(
        hca: &mut Hca,
        doorbells: &Doorbells,
        snapshot: &CqSnapshot,
    ) -> Result<Self, ResumeError> {
        let uar = hca.uar_index().get();
        Self::resume_on(hca, doorbells, uar, snapshot)
    }

    /// Does the same as [`Cq::resume`], for a queue whose doorbells are on page `uar`.
    pub(crate) fn resume_on(
        hca: &mut Hca,
        doorbells: &Doorbells,
        uar: u32,
        snapshot: &CqSnapshot,
    ) -> Result<Self, ResumeError> {
        let CqSnapshot {
            cqn,
            ref memory,
            entries,
            batch,
            taken,
            sequence,
            armed_at,
            is_disarmed,
        } = *snapshot;
        let refused = || ResumeError::snapshot(TABLE, format!("{snapshot:x?}"));
        let is_possible = cqn <= COUNTER_MASK
            && entries.is_power_of_two()
            && entries.ilog2() < 24
            && batch.is_power_of_two()
            && batch <= MAX_BATCH.min((entries / 4).max(1))
            && taken <= MAX_COUNT
            && sequence < 4
            && armed_at.is_none_or(|at| at < 4)
            && (armed_at.is_some() || sequence == 0)
            && u64::from(entries) * CQE_BYTES as u64 <= memory.bytes;
        if !is_possible {
            return Err(refused());
        }
        let memory = RingMemory::resume(hca.arena(), memory)?;
        let RingMemory { ring, record, .. } = memory.get();
        let words = [SET_CI, ARM].map(|at| record.load_be32(at));
        // CAST: the lower half.
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let consumer_index = taken as u32;
        let armed_in_memory = match armed_at {
            Some(at) => two_bits(words[1] >> SEQUENCE) == at,
            None => words[1] == 0,
        };
        if words[0] != consumer_index & COUNTER_MASK || !armed_in_memory {
            return Err(ResumeError::snapshot(
                TABLE,
                format!("{snapshot:x?}, and its doorbell record has {words:08x?}"),
            ));
        }
        let queue = Self {
            ring: DmaRing::new(ring, 0, entries),
            consumer_index,
            lap: Lap::of(u8::from(consumer_index & entries != 0)),
            batch_mask: batch - 1,
            entries,
            set_ci: DmaWord::new(record, SET_CI),
            arm: DmaWord::new(record, ARM),
            memory,
            doorbells: doorbells.clone(),
            cqn,
            sequence: ArmSequence::of(sequence),
            armed_at: armed_at.map(u32::from),
            is_disarmed,
            // CAST: at most 2^30.
            rounds: (taken >> 32) as u32,
            published_index: consumer_index,
        };
        // An entry or an event may come between the query and the reading of the event queue.
        ask_twice(|| queue.check(hca, uar))?;
        hca.count_resumed(Opcode::CREATE_CQ, cqn)?;
        Ok(queue)
    }

    /// Compares the queue with the device's, whose doorbells are on page `uar`.
    fn check(&self, hca: &mut Hca, uar: u32) -> Result<(), ResumeError> {
        let mut input = QueryCqIn::new();
        input.set_cqn(self.cqn);
        let bytes = self.memory.get().pages().len();
        let answer = hca.exec_reading(&input, &[], bytes);
        let (answer, pages) = answer.map_err(MlxError::from)?;
        let context = answer.cq_context();
        let different = |what: String| {
            Err(ResumeError::changed(format!(
                "completion queue {:#x}: {what}",
                self.cqn
            )))
        };
        let memory = self.memory.get();
        let ours = (
            self.entries.ilog2(),
            memory.log_page_size(),
            uar,
            memory.record_address(),
        );
        let devices = (
            context.log_cq_size(),
            context.log_page_size(),
            context.uar_page(),
            context.dbr_addr(),
        );
        if ours != devices || context.cqe_sz() != 0 || context.status() != 0 {
            return different(format!(
                "log_cq_size, log_page_size, uar_page and dbr_addr are {devices:x?}, and not {ours:x?}; cqe_sz {}, status {:#x}",
                context.cqe_sz(),
                context.status()
            ));
        }
        if !memory.is_at(&pages) {
            return different(format!("its ring is not at {:#x}", memory.ring.iova().0));
        }
        let eqn = context.c_eqn_or_apu_element() & 0xff;
        let is_shared = eqn == hca.shared_eqn().get();
        if !is_shared && eqn != hca.comp_eqn().get() {
            return different(format!("its events go to event queue {eqn:#x}"));
        }
        let pending = context.producer_counter().wrapping_sub(self.consumer_index) & COUNTER_MASK;
        let written = self.fresh_end().wrapping_sub(self.consumer_index);
        if !is_written(pending, written) {
            return different(format!(
                "{pending} entries are pending, and {written} are in the ring"
            ));
        }
        let count = EventCount {
            sequence: two_bits(self.sequence.count()),
            armed_at: self.armed_at.map(two_bits),
            is_disarmed: self.is_disarmed,
            has_event: hca.has_completion(self.cqn, is_shared),
        };
        count.check(context).or_else(different)
    }
}

/// The driver's count of a queue's events.
#[derive(Clone, Copy, Debug)]
struct EventCount {
    /// Number of events that were counted, modulo 4.
    sequence: u8,
    /// Sequence number of the last arm request, modulo 4; `None` before the first.
    armed_at: Option<u8>,
    /// True if the queue was resized since that request.
    is_disarmed: bool,
    /// True if an event has come that was not counted yet.
    has_event: bool,
}

impl EventCount {
    /// Checks that the count is the device's.
    fn check(&self, context: &Cqc) -> Result<(), String> {
        let Self {
            sequence,
            armed_at,
            is_disarmed,
            has_event,
        } = *self;
        let is_fired = match context.st() {
            ARMED | ARMED_SOLICITED => false,
            FIRED => true,
            other if armed_at.is_some() => return Err(format!("st {other:#x}")),
            // Queues are created with `st` 0, and no document says what it is before the first request.
            _ => true,
        };
        let is_right = match armed_at {
            // The event of the last request has not been counted: it has not been sent, or it has come meanwhile.
            // No document says whether a resized queue is still armed.
            Some(at) if at == sequence => is_fired == has_event || is_disarmed && is_fired,
            // The event of the last request was sent and counted.
            Some(at) => is_fired && (at + 1) & 3 == sequence && !has_event,
            // There was no request, so there was no event. The first request may be a word of zeros, so the doorbell
            // record does not say that there was none.
            None => {
                let is_silent = context.last_notified_index() == COUNTER_MASK;
                sequence == 0 && !has_event && is_silent
            }
        };
        if is_right {
            return Ok(());
        }
        Err(format!(
            "st {:#x}; {sequence} events counted (modulo 4), last armed at {armed_at:?}, uncounted event: {has_event}; last_notified_index {:#x}",
            context.st(),
            context.last_notified_index()
        ))
    }
}

/// Returns whether the device has written no more entries than are in the ring. `pending` is the distance of its
/// producer counter from our consumer index, modulo 2^24. A counter below the index is an old value, which a card has
/// not written back yet.
const fn is_written(pending: u32, written: u32) -> bool {
    pending >= 1 << 23 || pending <= written
}

/// Returns the two low bits of a count.
fn two_bits(count: u32) -> u8 {
    let [.., low] = count.to_be_bytes();
    low & 3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Producer counter at an event.
    const LATER: u32 = 5;

    fn is_right(count: EventCount, st: u32, last_notified: u32) -> bool {
        let mut context = Cqc::new();
        context.set_st(st).set_last_notified_index(last_notified);
        count.check(&context).is_ok()
    }

    #[test]
    fn a_queue_that_was_never_armed_has_any_state_and_no_event() {
        let count = EventCount {
            sequence: 0,
            armed_at: None,
            is_disarmed: false,
            has_event: false,
        };
        for st in 0..16 {
            assert!(is_right(count, st, COUNTER_MASK), "st {st:#x}");
            assert!(!is_right(count, st, 0), "st {st:#x}");
            assert!(!is_right(count, st, LATER), "st {st:#x}");
            let (sequence, has_event) = (1, true);
            let wrong = EventCount { sequence, ..count };
            assert!(!is_right(wrong, st, COUNTER_MASK), "st {st:#x}");
            let wrong = EventCount { has_event, ..count };
            assert!(!is_right(wrong, st, COUNTER_MASK), "st {st:#x}");
        }
    }

    #[test]
    fn the_state_of_a_queue_that_was_armed_says_whether_its_event_was_sent() {
        for at in 0..4 {
            let count = |ahead, has_event| EventCount {
                sequence: (at + ahead) & 3,
                armed_at: Some(at),
                is_disarmed: false,
                has_event,
            };
            // By state: events since the request, and whether one is there that was not counted.
            let rights: [(u32, &[(u8, bool)]); 4] = [
                (0, &[]),
                (ARMED, &[(0, false)]),
                (ARMED_SOLICITED, &[(0, false)]),
                (FIRED, &[(0, true), (1, false)]),
            ];
            for (st, rights) in rights {
                for (ahead, has_event) in (0..4).flat_map(|it| [(it, false), (it, true)]) {
                    let found = is_right(count(ahead, has_event), st, LATER);
                    let expected = rights.contains(&(ahead, has_event));
                    assert_eq!(found, expected, "st {st:#x}: {ahead}, {has_event}");
                }
            }
        }
    }

    /// No document says whether a resize ends the request.
    #[test]
    fn a_queue_that_was_resized_since_its_request_is_armed_or_not() {
        for (st, has_event, expected) in [
            (ARMED, false, true),
            (ARMED, true, false),
            (FIRED, false, true),
            (FIRED, true, true),
        ] {
            let count = EventCount {
                sequence: 2,
                armed_at: Some(2),
                is_disarmed: true,
                has_event,
            };
            let found = is_right(count, st, LATER);
            assert_eq!(found, expected, "st {st:#x}: {has_event}");
        }
    }

    /// A card may write the context of a busy queue back late.
    #[test]
    fn a_producer_counter_that_is_late_is_no_difference() {
        for (pending, expected) in [(0, true), (3, true), (4, false), (1 << 22, false)] {
            assert_eq!(is_written(pending, 3), expected, "{pending:#x}");
        }
        for late in [1, 5, 1 << 23] {
            assert!(is_written((1 << 24) - late, 3), "{late:#x} behind");
        }
    }
}
