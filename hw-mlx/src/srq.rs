//! Shared receive queues: one pool of buffers for many queue pairs.
//!
//! The device's object is an RMP with a *linked list* work queue (PRM "Receive Memory Pool"; Linux
//! drivers/infiniband/hw/mlx5/srq_cmd.c uses it for every basic SRQ). Each entry names the one
//! after it in its first unit, and the data units follow from byte 16. The device starts at entry
//! 0 and follows the links as it takes buffers. It finishes them in any order, so software appends free entries at the
//! list's tail as they come back.
//!
//! One list is therefore both the free list and the queue of posted entries. To post, software fills the entry at
//! `head`, advances `head` along the link, and increments the counter in the doorbell record. The device follows that
//! many links. The entry at the tail is never posted, because its link is not known yet: n buffers need n + 1 entries.
//!
//! The device reads the links in DMA memory and could overwrite them. The driver follows its own copy in `next` and
//! never reads the links back.
//!
//! A CQE names the entry by index. An index we have not posted is ignored and counted.
//!
//! If a completion queue is cleaned because a queue pair was destroyed, the buffers of the discarded CQEs are no longer
//! in the list. The queue pair stores their indices in [`Returns`]. A post takes them back when the maximum of
//! outstanding buffers is reached; the number of outstanding buffers does not count them.

mod parking;

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use driver::{DmaBuffer, DmaRing, DmaWord, barrier};
use rdma_types::{DataSegment, Plain, QueueFull};

use crate::completion::Completion;
use crate::cq::{Cqe, FORM};
use crate::device::Hca;
use crate::error::MlxError;
use crate::ring::{Lent, RingMemory};
use crate::wqe::{self, UNIT_BYTES};
use mlx_prm::{CqeOpcode, CreateRmpIn, DestroyRmpIn, ModifyRmpIn};
pub use parking::{SharedBufferSnapshot, SrqSnapshot};

/// Offset of the counter in the doorbell record.
const COUNTER: usize = 0;
/// Smallest stride (PRM: linked list entries are at least 32 bytes).
const MIN_STRIDE: u32 = 32;
/// `wq.wq_type` of a linked list.
const LINKED_LIST: u32 = 0;
/// `rmpc.state` of a queue in use.
const RMP_READY: u32 = 1;

/// Sizes of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SrqSizes {
    /// Maximum number of posted buffers.
    pub max_recvs: u32,
    /// Number of entries of the ring: a power of two, and more than `max_recvs`.
    pub entries: u32,
    /// Bytes of an entry, a power of two.
    pub stride: u32,
}

impl SrqSizes {
    /// Returns the sizes for `max_recvs` buffers of up to `max_segments` segments. Returns `None` if the ring would
    /// exceed 2^15 entries or the stride 2,048 bytes.
    #[must_use]
    pub fn new(max_recvs: u32, max_segments: u32) -> Option<Self> {
        let units = max_segments.max(1).checked_add(1)?;
        let stride = units
            .checked_mul(wqe::UNIT_BYTES_U32)?
            .checked_next_power_of_two()?
            .max(MIN_STRIDE);
        let entries = max_recvs.checked_add(1)?.checked_next_power_of_two()?;
        (entries <= 1 << 15 && stride <= 1 << 11).then_some(Self {
            max_recvs,
            entries,
            stride,
        })
    }

    /// Returns larger sizes, so that `max_recvs` can grow later. The device has no command that gives an RMP another
    /// ring, and a queue pair cannot change its RMP. `most` is the maximum number of entries that the device takes.
    #[must_use]
    pub fn with_headroom(self, most: u32) -> Self {
        let wanted = self.entries.saturating_mul(HEADROOM).max(MIN_ENTRIES);
        Self {
            entries: wanted.min(1 << 15).min(most).max(self.entries),
            ..self
        }
    }

    /// Returns the size of the ring in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entries as usize * self.stride as usize
    }
}

/// Indices of entries whose completions were discarded when their queue pair was reset or destroyed.
#[derive(Debug, Default)]
pub struct Returns {
    /// Number of `indices`, changed only under their lock. It lets the owner find out without the lock that there are
    /// none.
    count: AtomicU32,
    indices: Mutex<Vec<u16>>,
}

impl Returns {
    /// Adds the index of an entry whose completion was discarded.
    pub(crate) fn push(&self, index: u16) {
        let mut indices = self.indices.lock().unwrap_or_else(PoisonError::into_inner);
        indices.push(index);
        self.count.fetch_add(1, Ordering::Release);
    }

    fn take(&self) -> Vec<u16> {
        let mut indices = self.indices.lock().unwrap_or_else(PoisonError::into_inner);
        self.count.store(0, Ordering::Release);
        core::mem::take(&mut indices)
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

/// Data kept for an entry of the ring.
#[derive(Clone, Copy, Debug)]
struct Shadow {
    cookie: u64,
    bytes: u32,
    /// Index of the next entry: our copy of the link.
    next: u16,
    posted: bool,
}

/// Minimum number of entries of a ring, if the device takes that many; see [`SrqSizes::with_headroom`].
const MIN_ENTRIES: u32 = 1024;
/// Number of ring entries per requested entry, so that the queue can grow.
const HEADROOM: u32 = 4;

/// A shared receive queue.
pub struct Srq {
    /// The ring, accessed in units.
    ring: DmaRing<UNIT_BYTES>,
    /// Counter of this queue in the doorbell record.
    record: DmaWord,
    memory: Lent<RingMemory>,
    rmpn: u32,
    pd: u32,
    /// Number of units of an entry.
    units: u32,
    max_recvs: u32,
    /// Index of the next entry to post.
    head: u16,
    /// Index of the last entry of the list, which is never posted.
    tail: u16,
    /// Number of entries posted since creation. The device knows the low 16 bits.
    posted: u64,
    outstanding: u32,
    shadow: Box<[Shadow]>,
    returns: Arc<Returns>,
    unmatched_entries: u64,
}

impl Srq {
    /// Links each entry of a ring to the next one, and the last to the first. The device requires this before
    /// CREATE_RMP.
    pub fn prepare_ring(sizes: SrqSizes, ring: &DmaBuffer) {
        let mask = sizes.entries - 1;
        for entry in 0..sizes.entries {
            #[expect(clippy::cast_possible_truncation, reason = "at most 2^15 entries")]
            let next = ((entry + 1) & mask) as u16;
            ring.write_obj((entry * sizes.stride) as usize, &wqe::next_segment(next));
        }
    }

    /// Makes the queue with the device's number `rmpn`, from a prepared ring and a zeroed doorbell record.
    ///
    /// # Panics
    /// When the sizes are not those of [`SrqSizes`], or do not fit the ring.
    #[must_use]
    pub fn new(rmpn: u32, pd: u32, sizes: SrqSizes, memory: RingMemory) -> Self {
        assert!(
            sizes.entries.is_power_of_two()
                && sizes.entries <= 1 << 15
                && sizes.stride.is_power_of_two()
                && sizes.stride >= MIN_STRIDE
                && sizes.max_recvs < sizes.entries,
            "a shared receive ring of {sizes:?}"
        );
        #[expect(clippy::cast_possible_truncation, reason = "at most 2^15")]
        let mask = (sizes.entries - 1) as u16;
        let units = sizes.stride / wqe::UNIT_BYTES_U32;
        Self {
            ring: DmaRing::new(&memory.ring, 0, sizes.entries * units),
            record: DmaWord::new(&memory.record, COUNTER),
            memory: memory.lend(),
            rmpn,
            pd,
            units,
            max_recvs: sizes.max_recvs,
            head: 0,
            tail: mask,
            posted: 0,
            outstanding: 0,
            shadow: (0..=mask)
                .map(|entry| Shadow {
                    cookie: 0,
                    bytes: 0,
                    next: (entry + 1) & mask,
                    posted: false,
                })
                .collect(),
            returns: Arc::default(),
            unmatched_entries: 0,
        }
    }

    /// Creates a queue for `max_recvs` buffers of up to `max_segments` segments.
    ///
    /// # Errors
    /// No memory, a size out of range, or device refusal.
    pub fn create(
        hca: &mut Hca,
        pd: u32,
        max_recvs: u32,
        max_segments: u32,
    ) -> Result<Self, MlxError> {
        let sizes = SrqSizes::new(max_recvs, max_segments).ok_or(MlxError::QueueTooLarge {
            queue: "shared receive queue",
            entries: max_recvs,
            segments: Some(max_segments),
        })?;
        let sizes = sizes.with_headroom(hca.caps().limits().srq_entries);
        let memory = RingMemory::alloc(hca.arena(), sizes.bytes())?;
        Self::prepare_ring(sizes, &memory.ring);
        let mut command = CreateRmpIn::new();
        let context = command.ctx_mut();
        context.set_state(RMP_READY);
        context
            .wq_mut()
            .set_wq_type(LINKED_LIST)
            .set_pd(pd)
            .set_dbr_addr(memory.record_address())
            .set_log_wq_stride(sizes.stride.ilog2())
            .set_log_wq_pg_sz(memory.log_page_size())
            .set_log_wq_sz(sizes.entries.ilog2());
        let memory = memory.lend();
        match hca.exec_with(&command, &memory.get().pages()) {
            Ok(answer) => Ok(Self::new(answer.rmpn(), pd, sizes, memory.give_back())),
            Err(error) => Err(memory.after(error).into()),
        }
    }

    /// Requests one event from the device when the queue has fewer than `limit` buffers; 0 requests none.
    ///
    /// # Errors
    /// Device refusal.
    pub fn arm_limit(&self, hca: &mut Hca, limit: u32) -> Result<(), MlxError> {
        let mut command = ModifyRmpIn::new();
        command.set_rmp_state(RMP_READY).set_rmpn(self.rmpn);
        command.set_bitmask_lwm(true);
        command.ctx_mut().set_state(RMP_READY);
        // The field has 16 bits, and a ring at most 2^15 entries. A higher limit raises the event at once.
        command.ctx_mut().wq_mut().set_lwm(limit.min(0xffff));
        hca.exec(&command)?;
        Ok(())
    }

    /// Destroys the queue. A second call does nothing.
    ///
    /// # Errors
    /// Device refusal; the queue is unchanged. If it is then dropped, its memory stays out of use.
    pub fn destroy(&mut self, hca: &mut Hca) -> Result<(), MlxError> {
        if self.memory.is_returned() {
            return Ok(());
        }
        let mut command = DestroyRmpIn::new();
        command.set_rmpn(self.rmpn);
        hca.exec(&command)?;
        self.memory.returned();
        Ok(())
    }

    /// Returns the queue's protection domain.
    #[must_use]
    pub fn pd(&self) -> u32 {
        self.pd
    }

    /// Returns the device's number of the queue.
    #[must_use]
    pub fn rmpn(&self) -> u32 {
        self.rmpn
    }

    /// Returns the list that takes the indices of entries whose completions are discarded.
    pub(crate) fn returns(&self) -> Arc<Returns> {
        Arc::clone(&self.returns)
    }

    /// Returns the number of completion entries since creation that matched no posted buffer.
    #[must_use]
    pub fn unmatched_entries(&self) -> u64 {
        self.unmatched_entries
    }

    /// Appends an entry to the list, and counts it as no longer outstanding.
    #[inline]
    fn append(&mut self, index: u16) {
        let tail = usize::from(self.tail);
        self.ring
            .block(u32::from(self.tail) * self.units)
            .write(&wqe::next_segment(index));
        self.shadow[tail].next = index;
        self.tail = index;
        self.outstanding -= 1;
    }

    /// Takes the posted entry `index` out of use and frees it. Returns `None` if the entry is not posted.
    #[inline]
    fn release(&mut self, index: u16) -> Option<Shadow> {
        let shadow = self
            .shadow
            .get_mut(usize::from(index))
            .filter(|shadow| shadow.posted);
        let Some(shadow) = shadow else {
            self.count_unmatched(index);
            return None;
        };
        shadow.posted = false;
        let shadow = *shadow;
        self.append(index);
        Some(shadow)
    }

    /// Returns the value of the counter in the doorbell record.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the low 16 bits")]
    const fn counter(&self) -> u16 {
        self.posted as u16
    }

    /// Frees the entries whose completions were discarded.
    #[cold]
    #[inline(never)]
    fn take_returns(&mut self) {
        for index in self.returns.take() {
            self.release(index);
        }
    }

    #[cold]
    #[inline(never)]
    fn count_unmatched(&mut self, index: u16) {
        self.unmatched_entries += 1;
        tracing::warn!(index, queue = ?self, "a completion names no posted entry of the shared receive queue; ignored");
    }
}

impl Srq {
    /// Posts a buffer and updates the doorbell record.
    ///
    /// # Errors
    /// [`QueueFull`] when `max_recvs` entries are in use.
    #[inline]
    pub fn post_recv<I>(&mut self, segments: I, cookie: u64) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone,
    {
        self.post_recv_unpublished(segments, cookie)?;
        self.publish();
        Ok(())
    }

    /// Posts a buffer without updating the doorbell record. A later `post_recv` or [`Srq::publish`] updates the record.
    ///
    /// # Errors
    /// As [`Srq::post_recv`].
    #[inline(always)]
    pub fn post_recv_unpublished<I>(&mut self, segments: I, cookie: u64) -> Result<(), QueueFull>
    where
        I: Iterator<Item = DataSegment> + Clone,
    {
        if self.outstanding >= self.max_recvs {
            if self.returns.is_empty() {
                return Err(QueueFull);
            }
            self.take_returns();
            if self.outstanding >= self.max_recvs {
                return Err(QueueFull);
            }
        }
        let index = usize::from(self.head);
        // The link of this entry is not written here: it was written with the ring, or when the next entry was
        // appended.
        let bytes = wqe::write_scatter(
            |at| self.ring.block(at),
            u32::from(self.head) * self.units + 1,
            self.units - 1,
            segments,
        );
        let shadow = &mut self.shadow[index];
        *shadow = Shadow {
            cookie,
            bytes,
            next: shadow.next,
            posted: true,
        };
        self.head = shadow.next;
        self.outstanding += 1;
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }

    /// Updates the doorbell record for all buffers posted.
    #[inline(always)]
    pub fn publish(&mut self) {
        barrier::dma_to_device(); // the entries and their links are written before the record
        self.record.store(u32::from(self.counter()));
    }

    /// Completes a buffer if `entry` is its [`Plain`] completion
    /// ([`Qp::complete_plain`](crate::qp::Qp::complete_plain)).
    #[inline(always)]
    pub fn complete_plain(&mut self, entry: &Cqe) -> Option<Plain> {
        let index = entry.wqe_counter();
        if entry.op_own() & FORM != CqeOpcode::RESP_SEND.0 << 4 {
            return None;
        }
        let shadow = self.shadow.get_mut(usize::from(index))?;
        if !shadow.posted || entry.byte_count() > shadow.bytes {
            return None;
        }
        shadow.posted = false;
        let cookie = shadow.cookie;
        self.append(index);
        Some(Plain {
            cookie,
            bytes: entry.byte_count(),
            request: false,
        })
    }

    /// Converts an entry whose buffer came from this queue into a completion
    /// ([`Qp::complete`](crate::qp::Qp::complete)).
    #[inline]
    pub fn complete(&mut self, entry: &Cqe) -> Option<Completion> {
        let Some(outcome) = entry.receive_outcome() else {
            self.count_unmatched(entry.wqe_counter());
            return None;
        };
        let shadow = self.release(entry.wqe_counter())?;
        Some(outcome.completion(shadow.cookie, shadow.bytes, false))
    }

    /// Returns the number of buffers posted since creation.
    #[must_use]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Returns the number of buffers that are posted and not complete, including those that the device has already
    /// taken.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.outstanding
            .saturating_sub(self.returns.count.load(Ordering::Acquire))
    }

    /// Sets the maximum number of posted buffers. Buffers that are already posted stay.
    ///
    /// # Errors
    /// The largest possible maximum, which is less than `max_recvs`; nothing was changed.
    pub fn set_max_recvs(&mut self, max_recvs: u32) -> Result<(), usize> {
        // The entry at the tail is never posted.
        let room = self.shadow.len() - 1;
        if max_recvs as usize > room {
            return Err(room);
        }
        self.max_recvs = max_recvs;
        Ok(())
    }
}

impl core::fmt::Debug for Srq {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Srq")
            .field("rmpn", &format_args!("{:#x}", self.rmpn))
            .field("entries", &format_args!("{:#x}", self.shadow.len()))
            .field("head", &format_args!("{:#x}", self.head))
            .field("tail", &format_args!("{:#x}", self.tail))
            .field("counter", &format_args!("{:#x}", self.counter()))
            .field("outstanding", &self.outstanding)
            .finish_non_exhaustive()
    }
}
