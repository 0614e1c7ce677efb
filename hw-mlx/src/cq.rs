//! Completion queues, which report finished work.
//!
//! A CQ is a ring of 64-byte entries in memory the device writes. The device does not report how many entries it has
//! written. Instead, the last byte of each entry has an *owner bit*, which the device inverts on every lap, so an entry
//! is fresh if its bit differs from that of the previous lap. Before the first lap all entries are marked as if a
//! previous lap had written owner 1, because lap zero writes owner 0 and a zeroed ring would appear complete. (Drivers
//! that initialize the owner to 0 must also check the opcode on each poll; Snabb's `connectx.lua` marks the entries as
//! we do.)
//!
//! Polling reads the word that ends in that byte, which the device writes last. After a barrier, polling copies the
//! other fields we use. Later decisions use the copy; an untrusted device may change the original at any time.
//!
//! The consumer index counts entries since creation, and is masked on access. It is published in the first word of the
//! doorbell record. The device overwrites only entries before the published index. The index is published when the
//! queue is armed, and once every few entries if the ring has enough spare entries. So the device never finds the ring
//! full of entries that were consumed long ago. (PRM "Completion Queues"; `mlx5_poll_one` in providers/mlx5/cq.c of
//! rdma-core.)
//!
//! Arming requests one event at the next entry. The request carries a sequence number that counts the events this
//! queue has had, so that the device can detect a request that was made before the last event was handled. The owner of
//! the event queue handles these events, so both use the same counter: [`ArmSequence`].
//!
//! Cleaning removes a queue pair's entries once the device can write no more of them (after 2RST). The other entries
//! move to later slots, and each gets the owner bit of its new slot.
//!
//! This module does not support compressed and inline-scatter entries (never enabled, so such an entry is invalid) or
//! 128-byte entries.

mod parking;
mod resize;

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use driver::{Be64, DmaBlock, DmaBuffer, DmaRing, DmaWord, barrier};
use rdma_types::Qpn;
use zerocopy::big_endian::{U32, U64};

use crate::device::Hca;
use crate::error::MlxError;
use crate::ring::{Lent, RingMemory};
use crate::uar::Doorbells;
use mlx_prm::{Cqe64, CqeOpcode, CreateCqIn, DestroyCqIn, Eqn, ErrCqe};
pub use parking::CqSnapshot;

/// Length of an entry in bytes.
pub const CQE_BYTES: usize = 64;
/// Offset of the byte with opcode, format, solicited and owner bits, which the device writes last.
pub const OP_OWN: usize = Cqe64::offset_of("op_own");
/// Mask of the opcode (bits 7:4) and the format (3:2) in that byte, which identify an ordinary entry.
pub(crate) const FORM: u8 = 0xfc;
/// Offset of the 64-bit word that ends in that byte: queue pair number, WQE counter, signature.
const TAIL: usize = Cqe64::offset_of("qpn");
/// Offsets of the other fields that we read.
const FLAGS_RQPN: usize = Cqe64::offset_of("flags_rqpn");
const SRQN_UIDX: usize = Cqe64::offset_of("srqn_uidx");
const BYTE_COUNT: usize = Cqe64::offset_of("byte_cnt");
const TIMESTAMP: usize = Cqe64::offset_of("timestamp");
const VENDOR_SYNDROME: usize = ErrCqe::offset_of("vendor_error_syndrome");
/// Offset of the consumer index in the doorbell record.
const SET_CI: usize = 0;
/// Offset of the arm word in the doorbell record.
const ARM: usize = 4;
/// Maximum number of entries between two publications of the consumer index.
const MAX_BATCH: u32 = 64;
/// Number of entries after which a consumer should poll its other sources; a multiple of every batch.
const POLL_OTHERS_EVERY: u32 = 2048;
/// Mask of the 24-bit counters in doorbell records and contexts.
const COUNTER_MASK: u32 = 0xff_ffff;

/// The number of completion events that a queue has had. The queue puts it into every arm request; the code that
/// handles events increments it.
#[derive(Clone, Debug, Default)]
pub struct ArmSequence(Arc<AtomicU32>);

impl ArmSequence {
    /// Counts a completion event that named the queue. Call it once per event queue entry, not per completion.
    pub fn count_event(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of events.
    fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Makes the number of a queue that has had this many events, modulo 4.
    fn of(events: u8) -> Self {
        Self(Arc::new(AtomicU32::new(events.into())))
    }

    /// Returns the two low bits of the number, which an arm request carries.
    fn bits(&self) -> u32 {
        self.count() & 3
    }
}

/// The last eight bytes of an entry, in the byte order of memory: queue pair number in 55:32, WQE counter in 31:16, and
/// [`op_own`](Cqe::op_own) in 7:0. One comparison checks queue pair, WQE and form of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Tail(Be64);

impl Tail {
    /// A tail that matches no entry that the device has written, because only entries that were never written have
    /// opcode 15.
    pub(crate) const NONE: Self = Self(Be64::new(u64::MAX));
    /// Mask of queue pair number, WQE counter, opcode and format.
    const WQE: Be64 = Be64::new(0x00ff_ffff_ffff_00fc);
    /// Mask of queue pair number, opcode and format.
    const QUEUE: Be64 = Be64::new(0x00ff_ffff_0000_00fc);

    /// Returns the tail of the entry that completes the request at block `index`, in the ordinary form. The tail
    /// matches no entry if the completion is `suppressed`.
    #[inline(always)]
    #[must_use]
    pub const fn of_request(number: u32, index: u16, suppressed: bool) -> Self {
        Self::of_block(Self::of_queue(number), index, suppressed)
    }

    /// Returns the queue pair's part of a tail, for [`Tail::of_block`].
    #[must_use]
    pub const fn of_queue(number: u32) -> u64 {
        // CAST: widening.
        (number as u64) << 32
    }

    /// Returns the same as [`Tail::of_request`], from the queue pair's part that `of_queue` has computed.
    #[inline(always)]
    #[must_use]
    pub const fn of_block(queue: u64, index: u16, suppressed: bool) -> Self {
        // CAST: widening.
        let never = suppressed as u64 * 0xf0;
        Self(Be64::new(queue | (index as u64) << 16 | never))
    }

    /// Returns the WQE counter.
    pub(crate) const fn index(self) -> u16 {
        let [.., high, low, _, _] = self.0.get().to_be_bytes();
        u16::from_be_bytes([high, low])
    }

    /// Returns the tail of an entry that reports a received Send, in the ordinary form, for any WQE.
    pub(crate) const fn of_arrival(number: u32) -> Self {
        // CAST: widening.
        let opcode = (CqeOpcode::RESP_SEND.0 as u64) << 4;
        Self(Be64::new((number as u64) << 32 | opcode))
    }

    /// Returns whether the tails are equal in queue pair, WQE, opcode and format.
    #[inline(always)]
    pub(crate) const fn is(self, other: Self) -> bool {
        self.0.difference(other.0, Self::WQE).is_zero()
    }

    /// Returns whether the tails are equal in queue pair, opcode and format; ignores the WQE.
    #[inline(always)]
    pub(crate) const fn is_like(self, other: Self) -> bool {
        self.0.difference(other.0, Self::QUEUE).is_zero()
    }
}

/// A completion queue entry: our copy of the fields that this driver reads. (Copying all 64 bytes would take eight more
/// loads and stores for each poll.)
#[derive(Clone, Copy, Debug)]
pub struct Cqe {
    /// The last eight bytes: queue pair number in 55:32, WQE counter in 31:16, and `op_own` in 7:0.
    tail: Be64,
    /// First word: the user index in 23:0. Second word: immediate data or an invalidated key.
    owner_and_word: [U32; 2],
    byte_count: U32,
    /// Vendor syndrome and syndrome of an error entry; in other entries these bytes are part of the time stamp.
    error: [u8; 2],
}

impl Cqe {
    /// Reads the fields except `tail`, which the caller has read before.
    #[inline]
    fn read(entry: DmaBlock<'_, CQE_BYTES>, tail: Be64) -> Self {
        Self {
            tail,
            // In CQE version 1 this field has the user index of the queue pair; in version 0 it has the SRQ number.
            owner_and_word: entry.read::<[U32; 2], SRQN_UIDX>(),
            byte_count: entry.read::<U32, BYTE_COUNT>(),
            error: entry.read::<[u8; 2], VENDOR_SYNDROME>(),
        }
    }

    /// Returns the entry's last eight bytes.
    #[inline(always)]
    pub(crate) const fn tail(&self) -> Tail {
        Tail(self.tail)
    }

    /// Returns the opcode: bits 7:4 of the last byte.
    #[inline]
    #[must_use]
    pub const fn opcode(&self) -> CqeOpcode {
        CqeOpcode(self.op_own() >> 4)
    }

    /// Returns the last byte: opcode 7:4, format 3:2, solicited 1, owner 0.
    #[inline]
    #[must_use]
    pub const fn op_own(&self) -> u8 {
        let [.., op_own] = self.tail.get().to_be_bytes();
        op_own
    }

    /// Returns the format: bits 3:2 of the last byte. We never request a format other than 0.
    #[inline]
    #[must_use]
    pub const fn format(&self) -> u8 {
        self.op_own() >> 2 & 3
    }

    /// Returns whether the peer set the solicited event bit of its Send, or of its RDMA Write with immediate data.
    #[inline]
    #[must_use]
    pub const fn solicited(&self) -> bool {
        self.op_own() & 2 != 0
    }

    /// Returns the number of the local queue pair.
    #[inline]
    #[must_use]
    pub const fn qpn(&self) -> Qpn {
        // CAST: the upper half.
        Qpn::masked((self.tail.get() >> 32) as u32)
    }

    /// Returns the WQE counter. Request: index of its first block. Receive: number of entries that the device consumed
    /// before. Shared receive: index of the entry.
    #[inline]
    #[must_use]
    pub const fn wqe_counter(&self) -> u16 {
        let [.., high, low, _, _] = self.tail.get().to_be_bytes();
        u16::from_be_bytes([high, low])
    }

    /// Returns the number of bytes received, or read by an RDMA Read.
    #[inline]
    #[must_use]
    pub const fn byte_count(&self) -> u32 {
        self.byte_count.get()
    }

    /// Returns the immediate data of a receive as a number, or the key that the peer has invalidated.
    #[inline]
    #[must_use]
    pub const fn word(&self) -> u32 {
        self.owner_and_word[1].get()
    }

    /// Returns the syndrome and the vendor syndrome of an error entry.
    #[inline]
    #[must_use]
    pub const fn syndrome(&self) -> (u8, u8) {
        (self.error[1], self.error[0])
    }
}

impl From<Cqe64> for Cqe {
    fn from(entry: Cqe64) -> Self {
        let bytes = entry.as_array();
        let tail = u64::from(entry.qpn()) << 32
            | u64::from(entry.wqe_counter()) << 16
            | u64::from(bytes[OP_OWN]);
        Self {
            tail: Be64::new(tail),
            owner_and_word: [
                U32::new(entry.srqn_uidx()),
                U32::new(entry.imm_inval_pkey()),
            ],
            byte_count: U32::new(entry.byte_cnt()),
            error: [bytes[VENDOR_SYNDROME], bytes[VENDOR_SYNDROME + 1]],
        }
    }
}

impl Cqe {
    /// Returns the user index that was given when the queue pair was created.
    #[inline]
    #[must_use]
    pub const fn owner(&self) -> u32 {
        self.owner_and_word[0].get() & 0xff_ffff
    }

    /// Returns true for an entry of the send queue, false for one of the receive side.
    #[inline]
    #[must_use]
    pub const fn is_request(&self) -> bool {
        matches!(self.opcode(), CqeOpcode::REQ | CqeOpcode::REQ_ERR)
    }
}

/// A completion queue.
pub struct Cq {
    ring: DmaRing<CQE_BYTES>,
    /// Number of entries consumed since creation.
    consumer_index: u32,
    /// Owner bit of a fresh entry at `consumer_index`.
    lap: Lap,
    /// Mask of the low bits of the consumer index; the index is published when all of them are zero.
    batch_mask: u32,
    /// Number of entries, a power of two.
    entries: u32,
    /// Consumer index in the doorbell record.
    set_ci: DmaWord,
    /// Arm word in the doorbell record.
    arm: DmaWord,
    memory: Lent<RingMemory>,
    doorbells: Doorbells,
    cqn: u32,
    sequence: ArmSequence,
    /// Event sequence number of the last arm request; `None` before the first request.
    armed_at: Option<u32>,
    /// True if the queue was resized since that request. No document states whether it is still armed then, so it
    /// counts as not armed.
    is_disarmed: bool,
    /// Number of wraps of the 32-bit consumer index, and the index at the last call of `end_batch`.
    rounds: u32,
    published_index: u32,
}

impl Cq {
    /// Marks all entries of a ring as never written, before CREATE_CQ.
    pub fn prepare_ring(ring: &DmaBuffer) {
        for at in (0..ring.len()).step_by(CQE_BYTES) {
            ring.store_u8(at + OP_OWN, Cqe64::NEVER_WRITTEN);
        }
    }

    /// Makes a queue with the device's number `cqn`. The ring must be prepared, with `entries` a power of two, and the
    /// doorbell record must be zero.
    ///
    /// # Panics
    /// When `entries` is not a power of two, or the ring or the record is too small.
    #[must_use]
    pub fn new(cqn: u32, entries: u32, memory: RingMemory, doorbells: Doorbells) -> Self {
        Self {
            ring: DmaRing::new(&memory.ring, 0, entries),
            consumer_index: 0,
            lap: Lap::of(0),
            batch_mask: 0,
            entries,
            set_ci: DmaWord::new(&memory.record, SET_CI),
            arm: DmaWord::new(&memory.record, ARM),
            memory: memory.lend(),
            doorbells,
            cqn,
            sequence: ArmSequence::default(),
            armed_at: None,
            is_disarmed: false,
            rounds: 0,
            published_index: 0,
        }
    }

    /// Reserves `spare` of the queue's entries, so that the consumer index is published less often. The device regards
    /// entries as occupied that were consumed but not yet published.
    #[must_use]
    pub fn with_spare(mut self, spare: u32) -> Self {
        self.set_spare(spare);
        self
    }

    fn set_spare(&mut self, spare: u32) {
        let batch = spare.min(self.entries / 4).clamp(1, MAX_BATCH);
        self.batch_mask = (1 << batch.ilog2()) - 1;
    }

    /// Creates a queue of at least `entries` entries, whose events go to the instance's completion event queue.
    ///
    /// # Errors
    /// The queue is too large, there is no memory, or the device refuses.
    pub fn create(hca: &mut Hca, doorbells: &Doorbells, entries: u32) -> Result<Self, MlxError> {
        let eqn = hca.comp_eqn();
        Self::create_on(hca, eqn, doorbells, entries)
    }

    /// Creates a completion queue that reports to the event queue `eqn`.
    pub(crate) fn create_on(
        hca: &mut Hca,
        eqn: Eqn,
        doorbells: &Doorbells,
        entries: u32,
    ) -> Result<Self, MlxError> {
        let asked = entries;
        let entries = ring_entries(asked)?;
        let memory = RingMemory::alloc(hca.arena(), entries as usize * CQE_BYTES)?;
        Self::prepare_ring(&memory.ring);
        let mut command = CreateCqIn::new();
        command
            .cq_context_mut()
            .set_log_cq_size(entries.ilog2())
            .set_uar_page(hca.uar_index().get())
            .set_c_eqn_or_apu_element(eqn.get())
            .set_log_page_size(memory.log_page_size())
            .set_dbr_addr(memory.record_address());
        let memory = memory.lend();
        match hca.exec_with(&command, &memory.get().pages()) {
            Ok(answer) => {
                let memory = memory.give_back();
                let queue = Self::new(answer.cqn(), entries, memory, doorbells.clone());
                Ok(queue.with_spare(entries - asked))
            }
            Err(error) => Err(memory.after(error).into()),
        }
    }

    /// Destroys the queue. A second call does nothing.
    ///
    /// # Errors
    /// Device refusal; the queue is unchanged. If it is dropped after that, its memory is never reused.
    pub fn destroy(&mut self, hca: &mut Hca) -> Result<(), MlxError> {
        if self.memory.is_returned() {
            return Ok(());
        }
        let mut command = DestroyCqIn::new();
        command.set_cqn(self.cqn);
        hca.exec(&command)?;
        self.memory.returned();
        Ok(())
    }

    /// Returns the number by which the device identifies the queue.
    #[must_use]
    pub fn cqn(&self) -> u32 {
        self.cqn
    }

    /// Returns the event counter, for the code that handles events.
    #[must_use]
    pub fn sequence(&self) -> ArmSequence {
        self.sequence.clone()
    }

    /// Returns the owner bit of a fresh entry in the lap of `index`.
    #[inline]
    fn owner_bit(&self, index: u32) -> u8 {
        u8::from(index & self.entries != 0)
    }

    /// Returns the entry at `index`, if the device has written it. `lap` is the lap of the index.
    #[inline(always)]
    fn entry(&self, index: u32, lap: Lap) -> Option<Cqe> {
        let slot = self.ring.block(index);
        let tail = fresh_tail(slot, lap)?;
        barrier::dma_from_device(); // the rest of the entry is read after its owner bit
        Some(Cqe::read(slot, tail))
    }

    #[inline]
    fn publish_consumer_index(&self) {
        barrier::dma_hand_back(); // entries are read before their places are given back
        self.set_ci.store(self.consumer_index & COUNTER_MASK);
    }

    /// Publishes the consumer index and updates the lap; called after every batch of entries. Returns true if the
    /// caller should poll its other sources ([`Cq::advance`]).
    #[inline(never)]
    fn end_batch(&mut self) -> bool {
        self.publish_consumer_index();
        self.rounds += u32::from(self.consumer_index < self.published_index);
        self.published_index = self.consumer_index;
        self.lap = Lap::of(self.owner_bit(self.consumer_index));
        self.consumer_index.is_multiple_of(POLL_OTHERS_EVERY)
    }

    /// Takes the next entry, together with the source queue pair number and routing header bits (`flags_rqpn`), which
    /// datagrams need.
    pub fn poll_datagram(&mut self) -> Option<(Cqe, u32)> {
        let entry = self.peek()?;
        let slot = self.ring.block(self.consumer_index);
        let source = slot.read::<U32, FLAGS_RQPN>().get();
        // The result is not needed, because the caller drains the queue to its end.
        let _polls_others = self.advance();
        Some((entry, source))
    }

    /// Returns the index after the last entry that the device has written so far.
    fn fresh_end(&self) -> u32 {
        let mut end = self.consumer_index;
        while end.wrapping_sub(self.consumer_index) < self.entries
            && fresh_tail(self.ring.block(end), Lap::of(self.owner_bit(end))).is_some()
        {
            end = end.wrapping_add(1);
        }
        barrier::dma_from_device(); // the entries are read after their owner bits
        end
    }

    /// Returns whether `ours` is true for one of the entries not yet taken.
    pub fn holds(&self, ours: impl Fn(&Cqe) -> bool) -> bool {
        let count = self.fresh_end().wrapping_sub(self.consumer_index);
        (0..count).any(|ahead| {
            let slot = self.ring.block(self.consumer_index.wrapping_add(ahead));
            ours(&Cqe::read(slot, slot.load_be64::<TAIL>()))
        })
    }

    /// Removes the entries for which `is_dead` returns true and keeps the others in their order. `is_dead` selects
    /// queue pairs for which the device writes no more entries. The device may write entries of other queue pairs
    /// meanwhile.
    ///
    /// Returns the number of entries removed.
    pub fn clean(&mut self, mut is_dead: impl FnMut(&Cqe) -> bool) -> u32 {
        // The end is determined first, because entries that arrive during the moves belong after the moved ones.
        let end = self.fresh_end();
        let mut removed = 0;
        let mut index = end;
        while index != self.consumer_index {
            index = index.wrapping_sub(1);
            let slot = self.ring.block(index);
            let entry = Cqe::read(slot, slot.load_be64::<TAIL>());
            if is_dead(&entry) {
                removed += 1;
            } else if removed > 0 {
                let target = index.wrapping_add(removed);
                let op_own = entry.op_own() & !1 | self.owner_bit(target);
                let to = self.ring.block(target);
                to.write(&slot.read::<[u8; CQE_BYTES], 0>());
                to.write_at(OP_OWN, &op_own);
            }
        }
        if removed > 0 {
            self.consumer_index = self.consumer_index.wrapping_add(removed);
            barrier::dma_to_device(); // the moved entries are written before the index that frees their old slots
            let _polls_others = self.end_batch();
        }
        removed
    }
}

/// Returns the number of entries of the ring for a queue of the given length.
fn ring_entries(asked: u32) -> Result<u32, MlxError> {
    // The ring has one entry more than requested, because the device needs the consumer index of a full ring
    // before it writes the next entry. Other drivers add one, too (`mlx5_ib_create_cq` in Linux).
    asked
        .checked_add(1)
        .and_then(u32::checked_next_power_of_two)
        .filter(|size| size.ilog2() < 24)
        .ok_or(MlxError::QueueTooLarge {
            queue: "completion queue",
            entries: asked,
            segments: None,
        })
}

/// Returns the last word of an entry, if the device has written the entry in the lap with this owner bit.
///
/// The word is read in one load, so the other seven bytes are as fresh as the owner bit. A barrier must precede reads
/// of the rest of the entry.
#[inline]
fn fresh_tail(entry: DmaBlock<'_, CQE_BYTES>, lap: Lap) -> Option<Be64> {
    let tail = entry.load_be64::<TAIL>();
    lap.wrote(tail).then_some(tail)
}

/// The owner bit of a lap, at its position in an entry's last word and in the byte order of memory.
#[derive(Clone, Copy, Debug)]
struct Lap(Be64);

impl Lap {
    const OWNER_BIT: Be64 = Be64::new(1);

    #[inline]
    const fn of(owner_bit: u8) -> Self {
        // CAST: widening.
        Self(Be64::new(owner_bit as u64))
    }

    /// Returns whether the entry with this last word was written in this lap.
    #[inline]
    const fn wrote(self, tail: Be64) -> bool {
        tail.difference(self.0, Self::OWNER_BIT).is_zero()
    }
}

impl Cq {
    /// Returns a copy of the next entry, if the device has written one. The entry stays in the queue; an untrusted
    /// device may have changed it by the next call.
    #[inline]
    #[must_use]
    pub fn peek(&self) -> Option<Cqe> {
        self.entry(self.consumer_index, self.lap)
    }

    /// Consumes the entry that [`Cq::peek`] has just returned. Returns true after every 2,048 entries. A caller that
    /// only takes available entries should then poll all its other sources.
    #[inline]
    pub fn advance(&mut self) -> bool {
        self.consumer_index = self.consumer_index.wrapping_add(1);
        self.consumer_index & self.batch_mask == 0 && self.end_batch()
    }

    /// Takes entries while there is one and `take` returns true. Returns true if no entry is left. Calls
    /// `set_poll_others` whenever [`Cq::advance`] would return true.
    #[inline(always)]
    pub fn take_while(
        &mut self,
        mut set_poll_others: impl FnMut(),
        mut take: impl FnMut(&Cqe) -> bool,
    ) -> bool {
        let mut index = self.consumer_index;
        loop {
            // Within a batch only the index changes, so it is kept in a local variable.
            let (batch_end, lap) = ((index | self.batch_mask).wrapping_add(1), self.lap);
            while index != batch_end {
                let entry = self.entry(index, lap);
                if !entry.as_ref().is_some_and(&mut take) {
                    self.consumer_index = index;
                    return entry.is_none();
                }
                index = index.wrapping_add(1);
            }
            self.consumer_index = index;
            if self.end_batch() {
                set_poll_others();
            }
        }
    }

    /// Takes the next entry, if the device has written one.
    pub fn poll(&mut self) -> Option<Cqe> {
        let entry = self.peek()?;
        // The result is not needed, because the caller drains the queue to its end.
        let _polls_others = self.advance();
        Some(entry)
    }

    /// Returns the time stamp of the next entry, in ticks of the device's clock ([`Hca::since`]). Returns `None` if
    /// there is no entry, or if it has no time stamp.
    #[must_use]
    pub fn written(&self) -> Option<u64> {
        let entry = self.peek()?;
        // In an error entry these bytes contain the syndromes.
        let says = !matches!(entry.opcode(), CqeOpcode::REQ_ERR | CqeOpcode::RESP_ERR);
        let slot = self.ring.block(self.consumer_index);
        says.then(|| slot.read::<U64, TIMESTAMP>().get())
    }

    /// Requests one event at the next entry, or at the next solicited one. Entries that have already been written also
    /// cause an event, so the caller must arm the queue, poll once more, and then sleep.
    pub fn arm(&mut self, solicited_only: bool) {
        self.publish_consumer_index();
        let sequence = self.sequence.bits();
        (self.armed_at, self.is_disarmed) = (Some(sequence), false);
        let word =
            sequence << 28 | u32::from(solicited_only) << 24 | self.consumer_index & COUNTER_MASK;
        self.arm.store(word);
        barrier::dma_to_device(); // the doorbell record is written before the doorbell register
        self.doorbells.ring_cq(word, self.cqn);
        barrier::flush_write_combining(); // the write must not wait in a buffer: the caller is about to sleep
    }

    /// Returns whether the last requested event is still outstanding, according to the events handled so far.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        !self.is_disarmed && self.armed_at == Some(self.sequence.bits())
    }

    /// Returns the number of entries that the queue can hold.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.entries - self.batch_mask
    }

    /// Returns the number of entries taken since creation, including those that were removed.
    #[must_use]
    pub fn taken(&self) -> u64 {
        u64::from(self.rounds) << 32 | u64::from(self.consumer_index)
    }
}

impl core::fmt::Debug for Cq {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Cq")
            .field("cqn", &format_args!("{:#x}", self.cqn))
            .field("entries", &format_args!("{:#x}", self.entries))
            .field(
                "consumer_index",
                &format_args!("{:#x}", self.consumer_index),
            )
            .field("arm_sequence", &self.sequence.bits())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_ends_an_entry_and_two_that_are_read_together_adjoin() {
        let offset = Cqe64::offset_of;
        assert_eq!((SRQN_UIDX, offset("imm_inval_pkey")), (0x20, 0x24));
        assert_eq!((offset("wqe_counter"), OP_OWN), (TAIL + 4, CQE_BYTES - 1));
    }

    #[test]
    fn an_entry_no_lap_has_written_is_not_fresh_in_the_first() {
        assert!(!Lap::of(0).wrote(Be64::new(u64::from(Cqe64::NEVER_WRITTEN))));
    }

    fn tail(qpn: u32, counter: u16, op_own: u8) -> Tail {
        let others = 0x0a << 56 | 0x55 << 8;
        let whose = u64::from(qpn) << 32 | u64::from(counter) << 16;
        Tail(Be64::new(others | whose | u64::from(op_own)))
    }

    #[test]
    fn a_request_is_reported_by_the_ordinary_entry_of_its_queue_pair_and_block_only() {
        let expected = Tail::of_request(0xab_cdef, 0x1234, false);
        for op_own in 0..=u8::MAX {
            let ordinary = op_own >> 4 == CqeOpcode::REQ.0 && op_own >> 2 & 3 == 0;
            assert_eq!(tail(0xab_cdef, 0x1234, op_own).is(expected), ordinary);
            assert!(!tail(0xab_cdee, 0x1234, op_own).is(expected));
            assert!(!tail(0xab_cdef, 0x1235, op_own).is(expected));
        }
    }

    #[test]
    fn no_entry_of_a_request_reports_a_suppressed_one() {
        for expected in [Tail::of_request(7, 0, true), Tail::NONE] {
            for op_own in (0..=u8::MAX).filter(|op_own| op_own >> 4 != CqeOpcode::INVALID.0) {
                assert!(!tail(7, 0, op_own).is(expected), "{op_own:#x}");
                assert!(!tail(0, 0, op_own).is(expected), "{op_own:#x}");
            }
        }
    }

    #[test]
    fn a_send_has_arrived_says_the_ordinary_entry_of_the_queue_pair_only() {
        let expected = Tail::of_arrival(7);
        for op_own in 0..=u8::MAX {
            let ordinary = op_own >> 4 == CqeOpcode::RESP_SEND.0 && op_own >> 2 & 3 == 0;
            assert_eq!(tail(7, 0x1234, op_own).is_like(expected), ordinary);
            assert!(!tail(0x80_0007, 0x1234, op_own).is_like(expected));
        }
    }
}
