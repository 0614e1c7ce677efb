//! Send queues of a function that is handed over to another process.
//!
//! Outstanding requests were posted once and are never posted again: the device has them, or gets them when the
//! doorbell is rung. The WQEs are in the ring, and each request of the snapshot must agree with its WQE.

use driver::DmaBuffer;
use mlx_prm::WqeOpcode;

use super::{
    BIND, MIN_RING_BLOCKS, OWN, SEND_COUNTER, SUPPRESSED, SendQueue, SendSizes, Shadow, Tail,
    UNSIGNALLED,
};
use crate::bounds::MAX_COUNT;
use crate::error::ResumeError;
use crate::uar::Doorbells;
use crate::wqe;

/// Name of the table in errors.
const TABLE: &str = "a send queue";
/// Maximum number of blocks of a WQE.
const MAX_BLOCKS: u32 = 16;
/// Number of units of a request of the library itself: the control segment and a remote address.
const OWN_UNITS: usize = 2;

/// A send queue with its outstanding requests.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct SendQueueSnapshot {
    /// Sizes of the queue.
    pub sizes: SendSizes,
    /// Number of blocks posted since the last reset, modulo 2^16.
    pub producer: u16,
    /// Counter in the doorbell record: less than `producer` if requests were posted without the doorbell.
    pub announced: u16,
    /// Number of requests posted since the queue was created.
    pub posted: u64,
    /// Number of bytes of these requests.
    pub bytes: u64,
    /// Number of suppressed requests since the last one that asked for a CQE.
    pub unreported: u32,
    /// True if the last request was a bind, after which the next request carries a fence.
    pub is_behind_bind: bool,
    /// Number of CQEs that matched no outstanding request.
    pub unmatched: u64,
    /// Requests that were posted and are not known complete, oldest first.
    pub requests: Vec<RequestSnapshot>,
}

/// An outstanding request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct RequestSnapshot {
    /// Cookie that the caller gave at the post.
    pub cookie: u64,
    /// Index of the WQE's first block.
    pub index: u16,
    /// Number of bytes of its segments.
    pub bytes: u32,
    /// True if its success is not reported.
    pub is_suppressed: bool,
    /// The `unsignalled` choice made at the post.
    pub is_unsignalled: bool,
    /// True if it is a bind of a memory window.
    pub is_bind: bool,
    /// True if it is one of the library itself.
    pub is_own: bool,
}

impl SendQueue {
    /// Returns the sizes that the queue was made with.
    pub(crate) fn sizes(&self) -> SendSizes {
        SendSizes {
            max_requests: self.limit,
            // PANIC: at most 16 blocks.
            wqe_blocks: u32::try_from(wqe::blocks(self.max_units)).expect("a few blocks"),
            ring_blocks: u32::from(self.block_mask) + 1,
        }
    }

    /// Returns the number of blocks posted since the last reset, modulo 2^16.
    pub(crate) fn producer(&self) -> u32 {
        self.producer_index.into()
    }

    /// Describes the queue. `record` is the doorbell record.
    pub(crate) fn snapshot(&self, record: &DmaBuffer) -> SendQueueSnapshot {
        let request = |ahead| {
            let shadow = self.shadow(self.shadow.oldest.wrapping_add(ahead));
            RequestSnapshot {
                cookie: shadow.cookie,
                index: shadow.index(),
                bytes: shadow.bytes(),
                is_suppressed: shadow.suppressed(),
                is_unsignalled: shadow.unsignalled(),
                is_bind: shadow.is_bind(),
                is_own: shadow.is_own(),
            }
        };
        SendQueueSnapshot {
            sizes: self.sizes(),
            producer: self.producer_index,
            announced: low_half(record.load_be32(SEND_COUNTER)),
            posted: self.posted,
            bytes: self.bytes,
            unreported: self.unreported,
            is_behind_bind: self.max_requests != self.limit,
            unmatched: self.unmatched_entries,
            requests: (0..self.outstanding()).map(request).collect(),
        }
    }

    /// Makes the queue again, in `buffer` from byte offset `base` on. Writes nothing to the buffer and the record.
    /// `needs_fence` is true if the request after a bind must carry a fence.
    ///
    /// # Errors
    /// The numbers contradict each other, the WQEs, or the doorbell record.
    pub(crate) fn resume(
        snapshot: &SendQueueSnapshot,
        (buffer, base): (&DmaBuffer, usize),
        record: &DmaBuffer,
        doorbells: &Doorbells,
        (number, needs_fence): (u32, bool),
    ) -> Result<Self, ResumeError> {
        let SendQueueSnapshot {
            sizes,
            producer,
            announced,
            posted,
            bytes,
            unreported,
            is_behind_bind,
            unmatched,
            ref requests,
        } = *snapshot;
        let refused = |what: String| ResumeError::snapshot(TABLE, what);
        let SendSizes {
            max_requests,
            wqe_blocks,
            ring_blocks,
        } = sizes;
        let all_blocks = max_requests.checked_mul(wqe_blocks);
        let is_possible = ring_blocks.is_power_of_two()
            && (MIN_RING_BLOCKS..=1 << 15).contains(&ring_blocks)
            && (1..=MAX_BLOCKS).contains(&wqe_blocks)
            && all_blocks.is_some_and(|all| all <= ring_blocks);
        let room = buffer.len().checked_sub(base);
        if !is_possible || room.is_none_or(|room| room < sizes.bytes()) {
            return Err(refused(format!("{sizes:?} in {room:?} bytes")));
        }
        let mut queue = Self::new(sizes, buffer, base, record, doorbells, number);
        let counted = requests.len() as u64;
        let is_counted = counted <= u64::from(max_requests)
            && (counted..=MAX_COUNT).contains(&posted)
            && unmatched <= MAX_COUNT
            && unreported < queue.reclaim_every;
        if !is_counted {
            return Err(refused(format!(
                "{counted} of {max_requests} requests outstanding, {posted} posted, {unreported} of {} unreported, {unmatched} unmatched",
                queue.reclaim_every
            )));
        }
        let in_record = record.load_be32(SEND_COUNTER);
        if in_record != u32::from(announced) {
            return Err(refused(format!(
                "{announced:#x} blocks announced, and {in_record:#x} in the doorbell record"
            )));
        }
        queue.posted = posted;
        queue.bytes = bytes;
        queue.unreported = unreported;
        queue.unmatched_entries = unmatched;
        queue.producer_index = producer;
        // If no request is outstanding, the last bind is complete and the next request needs no fence, whatever
        // `is_behind_bind` says.
        let ends_in_bind = requests.last().map(|last| last.is_bind && needs_fence);
        if ends_in_bind.is_some_and(|ends| ends != is_behind_bind) || is_behind_bind && !needs_fence
        {
            return Err(refused(format!(
                "behind a bind: {is_behind_bind}; the last request is a bind: {ends_in_bind:?}; fences are needed: {needs_fence}"
            )));
        }
        if is_behind_bind {
            queue.max_requests = 0;
        }
        // CAST: at most `max_requests`.
        #[expect(clippy::cast_possible_truncation, reason = "at most 2^15")]
        let count = counted as u32;
        queue.shadow.oldest = queue.next().wrapping_sub(count);
        let ends = requests.iter().skip(1).map(|next| next.index);
        let mut number = queue.shadow.oldest;
        let (mut blocks, mut silent, mut is_first_row) = (0, 0, true);
        for (request, end) in requests.iter().zip(ends.chain([producer])) {
            let is_reported = queue.check_wqe(request, end, wqe_blocks)?;
            blocks += u32::from(end.wrapping_sub(request.index));
            // A suppressed request asks for a CQE only if it is the last of a row of `reclaim_every` requests. The
            // first requests of the oldest row may be complete, because the device also reports failed requests that
            // asked for no CQE.
            let row = silent + 1;
            let fits = row == queue.reclaim_every || is_first_row && row < queue.reclaim_every;
            if is_reported && request.is_suppressed && !fits {
                return Err(refused(format!(
                    "{request:x?} asks for a CQE behind {silent} others that ask for none"
                )));
            }
            silent = if is_reported { 0 } else { row };
            is_first_row &= !is_reported;
            *queue.shadow.at_mut(number) = Shadow {
                cookie: request.cookie,
                reported: Tail::of_block(
                    queue.queue_tail,
                    request.index,
                    request.is_suppressed || request.is_bind || request.is_own,
                ),
                what: u64::from(request.bytes)
                    | (u64::from(request.is_unsignalled) * UNSIGNALLED)
                    | (u64::from(request.is_suppressed) * SUPPRESSED)
                    | (u64::from(request.is_bind) * BIND)
                    | (u64::from(request.is_own) * OWN),
            };
            number = number.wrapping_add(1);
        }
        if blocks > ring_blocks {
            return Err(refused(format!(
                "{blocks} blocks in a ring of {ring_blocks}"
            )));
        }
        // The last request that asked for a CQE may be complete, if no outstanding one asks.
        let is_right = if silent < count {
            unreported == silent
        } else {
            unreported >= silent
        };
        if !is_right {
            return Err(refused(format!(
                "{unreported} requests since the last one that asked for a CQE, and {silent} WQEs at the end ask for none"
            )));
        }
        // The doorbell of requests that were posted without one is the start of the last one's WQE.
        queue.unrung = requests.last().map_or(0, |last| queue.head_of(last.index));
        Ok(queue)
    }

    /// Returns the first eight bytes of the WQE at a block.
    fn head_of(&self, index: u16) -> u64 {
        self.ring.block(u32::from(index)).load_be64::<0>().get()
    }

    /// Checks that a request is that of the WQE at its index, which ends before block `end` and has at most `most`
    /// blocks. Returns whether the WQE asks for a CQE.
    fn check_wqe(
        &self,
        request: &RequestSnapshot,
        end: u16,
        most: u32,
    ) -> Result<bool, ResumeError> {
        let head = self.head_of(request.index);
        let block = self.ring.block(u32::from(request.index));
        let [_, _, _, flags, ..] = block.load_be64::<8>().get().to_be_bytes();
        let blocks = end.wrapping_sub(request.index);
        let [_, high, low, opcode, ..] = head.to_be_bytes();
        // CAST: the lower half.
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let qpn_ds = head as u32;
        let units = (qpn_ds & 0x3f) as usize;
        let is_there = u16::from_be_bytes([high, low]) == request.index
            && qpn_ds & !0xff == self.qpn_shifted
            && units > 0
            && wqe::blocks(units) == usize::from(blocks)
            && u32::from(blocks) <= most;
        let is_reported = flags & wqe::flag::COMPLETE != 0;
        let opcode = WqeOpcode(opcode);
        let RequestSnapshot {
            cookie,
            index: _,
            bytes,
            is_suppressed,
            is_unsignalled,
            is_bind,
            is_own,
        } = *request;
        // The success of a bind, and of a request of the library, is always reported.
        let is_plain = is_reported && !is_suppressed && bytes == 0;
        let is_it = (is_reported || is_suppressed)
            && is_bind == (opcode == WqeOpcode::UMR)
            && (!is_bind || is_plain && !is_own)
            && (!is_own
                || is_plain
                    && opcode == WqeOpcode::RDMA_WRITE
                    && (cookie, is_unsignalled, units) == (0, false, OWN_UNITS));
        if is_there && is_it {
            return Ok(is_reported);
        }
        Err(ResumeError::snapshot(
            TABLE,
            format!(
                "{request:x?} to block {end:#x}, and the WQE there begins {head:#018x} and has flags {flags:#x}"
            ),
        ))
    }

    /// Returns whether the device's counters of the blocks that it knows and that it has fetched are possible.
    /// `announced` is the counter in the doorbell record.
    pub(crate) fn are_counted(&self, announced: u16, known: u32, fetched: u32) -> bool {
        let (_, rung) = self.blocks_outstanding(announced);
        are_possible(announced, rung, low_half(known), low_half(fetched))
    }

    /// Returns the number of blocks of outstanding requests, and how many of them the doorbell record has announced.
    pub(crate) fn blocks_outstanding(&self, announced: u16) -> (u16, u16) {
        if self.outstanding() == 0 {
            return (0, 0);
        }
        let first = self.shadow(self.shadow.oldest).index();
        let all = self.producer_index.wrapping_sub(first);
        let unrung = self.producer_index.wrapping_sub(announced);
        (all, all.saturating_sub(unrung))
    }
}

/// Returns whether the device's counters of blocks are possible: `known` blocks, of which it has `fetched` some.
/// `announced` is the counter in the doorbell record, and `rung` the number of outstanding blocks before it.
const fn are_possible(announced: u16, rung: u16, known: u16, fetched: u16) -> bool {
    let unfetched = announced.wrapping_sub(fetched);
    // The device may not have read the record yet, so it may know fewer blocks than were announced.
    unfetched <= rung && known.wrapping_sub(fetched) <= unfetched
}

/// Returns the low 16 bits of a counter, which are all that a record has.
#[expect(clippy::cast_possible_truncation, reason = "the low 16 bits")]
const fn low_half(counter: u32) -> u16 {
    counter as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The device reads the doorbell record when it needs blocks, or a card writes its counters back late.
    #[test]
    fn a_device_may_know_fewer_blocks_than_were_announced_and_no_others() {
        for announced in [100, 3, 0] {
            let [of, by]: [fn(u16, u16) -> u16; 2] = [u16::wrapping_sub, u16::wrapping_add];
            let is_possible = |known, fetched| {
                are_possible(announced, 8, of(announced, known), of(announced, fetched))
            };
            for (known, fetched) in [(0, 0), (0, 8), (3, 8), (8, 8), (3, 3)] {
                assert!(is_possible(known, fetched), "{known}, {fetched}");
            }
            for (known, fetched) in [(0, 9), (9, 9), (4, 3), (0, by(0, 0xffff))] {
                assert!(!is_possible(known, fetched), "{known}, {fetched}");
            }
            assert!(!are_possible(announced, 8, by(announced, 1), announced));
        }
    }
}
