//! Receive queues: buffers for the peer's Sends.
//!
//! A receive queue is a ring of entries of one size, the *stride*. An entry is a list of data units, ended by the end
//! of the stride or by a terminator (a data unit with an invalid key). The device consumes entries in the order in
//! which they were posted, one for each Send that arrives.
//!
//! Posting writes the entry and then the doorbell record. No register is written, because the device reads the record
//! when a packet needs a buffer.
//!
//! A receive completion always completes the oldest entry, as in providers/mlx5/cq.c of rdma-core. A successful
//! completion must also name the oldest entry: its counter is the number of entries consumed before. Counter bits
//! beyond the ring size are ignored, as in all drivers (rdma-core `cq.c` masks them off). A failed completion (nearly
//! always a flush) need not name the oldest entry: no data came with it, and if it were ignored, a posted buffer would
//! stay outstanding for ever.

mod parking;

use driver::{Cyclic, DmaBuffer, DmaQueue, barrier};
use rdma_types::{DataSegment, Detail, PostedRecv, QueueFull};

use crate::completion::{Completion, Status, syndrome};
use crate::cq::Tail;
use crate::wqe::{self, UNIT_BYTES};
use mlx_prm::DataSeg;
pub use parking::{ReceiveSnapshot, RecvQueueSnapshot};

/// Offset of the receive counter in the doorbell record.
const RECEIVE_COUNTER: usize = 0;
/// Smallest ring, in bytes (`mlx5_calc_rq_size` in rdma-core).
const MIN_RING_BYTES: u32 = 64;

/// Sizes of a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RecvSizes {
    /// Maximum number of outstanding receives.
    pub max_recvs: u32,
    /// Number of entries of the ring, a power of two.
    pub entries: u32,
    /// Bytes of an entry, a power of two.
    pub stride: u32,
}

impl RecvSizes {
    /// Returns the sizes for `max_recvs` receives of up to `max_segments` segments. Returns `None` if the ring would
    /// exceed 2^15 entries or the stride 2,048 bytes.
    #[must_use]
    pub fn new(max_recvs: u32, max_segments: u32) -> Option<Self> {
        let stride = max_segments
            .max(1)
            .checked_mul(wqe::UNIT_BYTES_U32)?
            .checked_next_power_of_two()?;
        let entries = max_recvs
            .checked_next_power_of_two()?
            .max(MIN_RING_BYTES / stride.min(MIN_RING_BYTES));
        (entries <= 1 << 15 && stride <= 1 << 11).then_some(Self {
            max_recvs,
            entries,
            stride,
        })
    }

    /// Returns the size of the ring in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entries as usize * self.stride as usize
    }
}

/// Data kept for a posted receive.
#[derive(Clone, Copy, Debug, Default)]
struct Shadow {
    cookie: u64,
    bytes: u32,
    unsignalled: bool,
}

/// A receive queue, at the start of its queue pair's buffer. The fields up to `max_recvs` fill one cache line.
#[repr(C)]
pub struct RecvQueue {
    /// Expected tail of the CQE of a Send that this queue pair received.
    arrival: Tail,
    /// Ring in units, with its word of the doorbell record and the number of entries posted since the last reset. The
    /// device knows the low 16 bits of that number.
    ring: DmaQueue<UNIT_BYTES>,
    /// Data kept for each entry of the ring, with the number of entries completed since the last reset.
    shadow: Cyclic<Shadow>,
    /// Number of units of an entry.
    units: u32,
    max_recvs: u32,

    /// Number of receives completed or discarded since creation.
    done: u64,
    /// Number of bytes that arrived in completed receives.
    bytes: u64,
    /// Number of CQEs that matched no outstanding receive.
    unmatched_entries: u64,
}

/// Bytes of a receive queue that posts and completions access.
const HOT_BYTES: usize = core::mem::offset_of!(RecvQueue, done);
static_assertions::const_assert_eq!(HOT_BYTES, 64);

impl RecvQueue {
    /// Makes a receive queue at the start of `buffer`, with the doorbell record `record`. `number` is that of the queue
    /// pair, or of the RQ.
    ///
    /// # Panics
    /// When the sizes are not those of [`RecvSizes::new`], or the ring does not fit the buffer.
    #[must_use]
    pub fn new(sizes: RecvSizes, buffer: &DmaBuffer, record: &DmaBuffer, number: u32) -> Self {
        assert!(
            sizes.entries.is_power_of_two()
                && sizes.entries <= 1 << 15
                && sizes.stride.is_power_of_two()
                && sizes.stride >= wqe::UNIT_BYTES_U32,
            "a receive ring of {sizes:?}"
        );
        let units = sizes.stride / wqe::UNIT_BYTES_U32;
        Self {
            arrival: Tail::of_arrival(number),
            ring: DmaQueue::new(buffer, 0, sizes.entries * units, (record, RECEIVE_COUNTER)),
            units,
            max_recvs: sizes.max_recvs,
            shadow: Cyclic::new(sizes.entries, Shadow::default()),
            done: 0,
            bytes: 0,
            unmatched_entries: 0,
        }
    }

    /// Discards all outstanding receives and starts at index 0 again, as the device does on 2RST.
    pub fn reset(&mut self) {
        self.done = self.counted().0;
        self.ring.set_count(0);
        self.shadow.oldest = 0;
        self.ring.store(0);
    }

    /// Returns true if no receive has completed since the last reset. The posted receives then start at index 0, where
    /// the device begins.
    pub fn is_untouched(&self) -> bool {
        self.shadow.oldest == 0
    }

    /// Hides all entries from the device until [`RecvQueue::publish`], by a doorbell record of 0. Linux
    /// (`__mlx5_ib_modify_qp`) also writes 0 before a queue pair leaves RESET.
    pub fn withhold(&self) {
        self.ring.store(0);
    }

    /// Writes the doorbell record, which makes all posted entries visible to the device.
    #[inline(always)]
    pub fn publish(&self) {
        barrier::dma_to_device(); // the entries are written before the record that announces them
        self.ring.store(self.ring.count() & 0xffff);
    }

    /// Returns the number of receives posted and not yet complete.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.ring.count().wrapping_sub(self.shadow.oldest)
    }

    /// Returns the number of receives posted since creation, and the bytes that arrived in them.
    #[must_use]
    pub fn counted(&self) -> (u64, u64) {
        (self.done + u64::from(self.outstanding()), self.bytes)
    }

    /// Returns the number of CQEs since creation that matched no outstanding receive.
    #[must_use]
    pub fn unmatched_entries(&self) -> u64 {
        self.unmatched_entries
    }

    /// Posts a buffer.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_recvs` are outstanding.
    ///
    /// # Panics
    /// When there are more segments than the queue was made for.
    #[inline]
    pub fn post<I>(&mut self, segments: I, cookie: u64, unsignalled: bool) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment>,
    {
        if self.outstanding() >= self.max_recvs {
            return Err(QueueFull);
        }
        let posted = self.ring.count();
        let unit = |at| self.ring.block(at);
        let first = posted.wrapping_mul(self.units);
        let bytes = wqe::write_scatter(unit, first, self.units, segments);
        *self.shadow.at_mut(posted) = Shadow {
            cookie,
            bytes,
            unsignalled,
        };
        self.hand_over::<true>();
        Ok(())
    }

    /// Posts a buffer of one segment. Without `PUBLISH`, [`RecvQueue::publish`] writes the doorbell record.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_recvs` are outstanding.
    #[inline(always)]
    pub fn post_one<const PUBLISH: bool>(
        &mut self,
        segment: DataSegment,
        cookie: u64,
        unsignalled: bool,
    ) -> Result<(), QueueFull> {
        if self.outstanding() >= self.max_recvs {
            return Err(QueueFull);
        }
        let posted = self.ring.count();
        // Both the number of entries and the units of an entry are powers of two, so no entry wraps at the ring's end.
        let first = posted.wrapping_mul(self.units);
        let data = wqe::data(segment.bytes, segment.lmr_context, segment.address);
        self.ring.block(first).write(&data);
        if self.units > 1 {
            self.ring
                .block(first.wrapping_add(1))
                .write(&wqe::terminator());
        }
        *self.shadow.at_mut(posted) = Shadow {
            cookie,
            bytes: segment.bytes,
            unsignalled,
        };
        self.hand_over::<PUBLISH>();
        Ok(())
    }

    /// Counts the entry that was just written to the ring. Writes the doorbell record only with `PUBLISH`.
    #[inline(always)]
    fn hand_over<const PUBLISH: bool>(&mut self) {
        self.ring.set_count(self.ring.count().wrapping_add(1));
        if PUBLISH {
            self.publish();
        }
    }

    /// Returns whether the counter in a CQE names the oldest entry.
    #[inline(always)]
    fn is_oldest(&self, counter: u16) -> bool {
        self.shadow.slot(u32::from(counter) ^ self.shadow.oldest) == 0
    }

    /// Returns whether a CQE with this tail reports a Send that this queue pair received.
    #[inline(always)]
    pub(super) const fn is_arrival(&self, entry: Tail) -> bool {
        entry.is_like(self.arrival)
    }

    /// Handles the common case of [`RecvQueue::complete`]: completes the oldest receive if `counter` names it and
    /// `bytes` is at most its size. Returns its cookie. In any other case returns `None` and changes nothing.
    #[inline(always)]
    pub fn complete_plain(&mut self, counter: u16, bytes: u32) -> Option<u64> {
        let oldest = self.shadow.oldest;
        let shadow = self.shadow.at(oldest);
        if self.ring.count() == oldest || !self.is_oldest(counter) || bytes > shadow.bytes {
            return None;
        }
        let cookie = shadow.cookie;
        self.shadow.oldest = oldest.wrapping_add(1);
        self.done = self.done.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(u64::from(bytes));
        Some(cookie)
    }

    /// Completes the oldest receive with the outcome that the device reports.
    pub fn complete(&mut self, counter: u16, outcome: Outcome) -> Option<Completion> {
        let in_order = self.is_oldest(counter) || matches!(outcome, Outcome::Failed { .. });
        if self.outstanding() == 0 || !in_order {
            self.count_unmatched(counter);
            return None;
        }
        let shadow = self.take();
        let completion = outcome.completion(shadow.cookie, shadow.bytes, shadow.unsignalled);
        self.bytes = self.bytes.wrapping_add(completion.transferred);
        Some(completion)
    }

    /// Removes the oldest outstanding receive and returns it as flushed, because the device will report nothing more
    /// about it.
    pub fn take_oldest(&mut self) -> Option<Completion> {
        if self.outstanding() == 0 {
            return None;
        }
        let shadow = self.take();
        Some(Completion::flushed(
            shadow.cookie,
            false,
            shadow.unsignalled,
        ))
    }

    /// Removes the oldest entry and returns its data.
    fn take(&mut self) -> Shadow {
        let shadow = *self.shadow.at(self.shadow.oldest);
        self.shadow.oldest = self.shadow.oldest.wrapping_add(1);
        self.done = self.done.wrapping_add(1);
        shadow
    }

    /// Returns the outstanding receives, oldest first. Returns `None` if the lengths in the ring have changed since we
    /// wrote them. Only the device can have changed them.
    pub fn posted(&self) -> Option<Vec<PostedRecv>> {
        (0..self.outstanding())
            .map(|ahead| self.posted_at(self.shadow.oldest.wrapping_add(ahead)))
            .collect()
    }

    fn posted_at(&self, count: u32) -> Option<PostedRecv> {
        let shadow = self.shadow.at(count);
        let first = count.wrapping_mul(self.units);
        let segments: Vec<DataSegment> = (0..self.units)
            .map(|at| self.ring.block(first.wrapping_add(at)).read::<DataSeg, 0>())
            .take_while(|data| data.byte_count() != 0)
            .map(|data| DataSegment {
                lmr_context: data.lkey(),
                address: data.addr(),
                bytes: data.byte_count(),
            })
            .collect();
        let sum = |bytes: u32, segment: &DataSegment| bytes.saturating_add(segment.bytes);
        (segments.iter().fold(0, sum) == shadow.bytes).then_some(PostedRecv {
            segments,
            cookie: shadow.cookie,
            unsignalled: shadow.unsignalled,
        })
    }

    #[cold]
    #[inline(never)]
    fn count_unmatched(&mut self, counter: u16) {
        self.unmatched_entries += 1;
        tracing::warn!(counter, queue = ?self, "a completion names no outstanding receive; ignored");
    }
}

/// Outcome of a receive as the device reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A Send arrived in the buffer.
    Received {
        /// Number of bytes that arrived.
        bytes: u32,
        /// True if the peer set the solicited event bit.
        solicited: bool,
        /// Immediate data or invalidated key that came with the message.
        detail: Detail,
    },
    /// An RDMA Write with immediate data of the peer wrote to other memory and consumed the receive.
    Written {
        /// Number of bytes that were written.
        bytes: u32,
        /// True if the peer set the solicited event bit.
        solicited: bool,
        /// The immediate data.
        immediate: u32,
    },
    /// The receive failed or was flushed.
    Failed {
        /// Syndrome and vendor syndrome.
        syndrome: (u8, u8),
    },
}

impl Outcome {
    /// Returns the completion of a receive whose buffer has a size of `room` bytes.
    #[inline]
    #[must_use]
    pub fn completion(self, cookie: u64, room: u32, unsignalled: bool) -> Completion {
        let (status, transferred, solicited, detail) = match self {
            Self::Received {
                bytes,
                solicited,
                detail,
            } if bytes <= room => (Status::Success, bytes, solicited, detail),
            // The entry claims more bytes than the buffer holds, which the device cannot have written.
            Self::Received { solicited, .. } => (
                Status::LocalLength,
                0,
                solicited,
                Detail::Failed(syndrome::LOCAL_LENGTH, 0),
            ),
            Self::Written {
                bytes,
                solicited,
                immediate,
            } => (
                Status::Success,
                bytes,
                solicited,
                Detail::WriteImmediate(immediate),
            ),
            Self::Failed { syndrome } => (
                Status::of_syndrome(syndrome.0),
                0,
                false,
                Detail::of_syndrome(syndrome),
            ),
        };
        Completion {
            cookie,
            status,
            transferred: u64::from(transferred),
            request: false,
            bind: false,
            own: false,
            unsignalled,
            solicited,
            detail,
        }
    }
}

impl core::fmt::Debug for RecvQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RecvQueue")
            .field("ring", &self.ring)
            .field("posted", &format_args!("{:#x}", self.ring.count()))
            .field("completed", &format_args!("{:#x}", self.shadow.oldest))
            .field("max_recvs", &self.max_recvs)
            .finish_non_exhaustive()
    }
}
