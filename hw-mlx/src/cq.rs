//! Completion queues: how the device says that something is done.
//!
//! A CQ is a ring of 64-byte entries in memory the device writes. Nothing tells software how many
//! there are: each entry carries an *owner bit* in its last byte, which the device flips on every
//! lap, so an entry is fresh when its bit differs from the one the previous lap left. Before the
//! first lap all entries are marked invalid (opcode 15, owner 0), because lap zero writes owner 0
//! and a zeroed ring would look complete.
//!
//! Polling reads that one byte, then — after a barrier, for the device wrote it last — copies the
//! whole entry out. What is decided later is decided from the copy; the device may scribble on the
//! original at any time. The consumer index counts entries since creation, is masked on access, and
//! is published in the first word of the doorbell record, which is how the device knows that it may
//! overwrite. (PRM "Completion Queues"; `mlx5_poll_one` in providers/mlx5/cq.c of rdma-core.)
//!
//! Arming asks for one event at the next entry. The request carries a sequence number that counts
//! the events this queue has had, so that a request made before an event was seen cannot arm the
//! queue again behind our back. The events arrive elsewhere (the event queue's owner takes them in),
//! hence the counter is shared: [`ArmSequence`].
//!
//! Cleaning removes a queue pair's entries once it can make no more of them (after 2RST): the
//! others move up, each taking the owner bit of the slot it lands in.
//!
//! Absent on purpose: compressed and inline-scatter entries (never switched on, so one that shows up
//! is a lie), resizing, 128-byte entries.

use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use dat_core::provider::{CompletionEntry, CompletionQueue};
use driver::{DmaBuffer, barrier};

use crate::device::Hca;
use crate::error::MlxError;
use crate::prm::{Cqe64, CreateCqIn, DestroyCqIn};
use crate::ring::{Lent, RingMemory};
use crate::uar::Doorbells;

/// Bytes of an entry.
pub const CQE_BYTES: usize = 64;
/// Offset of the byte with opcode, format, solicited and owner bits, the last one written.
pub const OP_OWN: usize = 0x3f;
/// `op_own` of an entry no lap has written: opcode 15, owner 0.
const NEVER_WRITTEN: u8 = 0xf0;
/// Offset in the doorbell record of the consumer index.
const SET_CI: usize = 0;
/// Offset in the doorbell record of the arm word.
const ARM: usize = 4;
/// Counters in doorbell records and contexts are 24 bits wide.
const COUNTER_MASK: u32 = 0xff_ffff;

/// CQE opcodes, bits 7:4 of `op_own` (PRM "Completion Queue Entry Format").
pub mod opcode {
    /// A send queue's WQE is done.
    pub const REQUEST: u8 = 0;
    /// An RDMA Write with immediate consumed a receive.
    pub const RECEIVE_WRITE_IMMEDIATE: u8 = 1;
    /// A Send arrived.
    pub const RECEIVE_SEND: u8 = 2;
    /// A Send with immediate arrived.
    pub const RECEIVE_SEND_IMMEDIATE: u8 = 3;
    /// A Send with invalidate arrived.
    pub const RECEIVE_SEND_INVALIDATE: u8 = 4;
    /// A send queue's WQE failed.
    pub const REQUEST_ERROR: u8 = 13;
    /// A receive failed.
    pub const RECEIVE_ERROR: u8 = 14;
    /// Not an entry yet.
    pub const INVALID: u8 = 15;
}

/// The number of completion events a queue has had, shared by the queue, which puts it into every
/// arm request, and whoever takes the events in, who counts.
#[derive(Clone, Debug, Default)]
pub struct ArmSequence(Arc<AtomicU32>);

impl ArmSequence {
    /// A completion event named the queue. Once per event queue entry, not per completion.
    pub fn count_event(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The two bits an arm request carries.
    fn bits(&self) -> u32 {
        self.0.load(Ordering::Relaxed) & 3
    }
}

/// A completion queue entry: our copy of the device's 64 bytes.
#[derive(Clone, Debug)]
pub struct Cqe(Cqe64);

impl Cqe {
    /// Bits 7:4 of the last byte: see [`opcode`].
    #[inline]
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.op_own() >> 4
    }

    /// The last byte: opcode 7:4, format 3:2, solicited 1, owner 0.
    #[inline]
    #[must_use]
    pub fn op_own(&self) -> u8 {
        self.0.as_array()[OP_OWN]
    }

    /// Bits 3:2 of the last byte; anything but 0 is a form we never asked for.
    #[inline]
    #[must_use]
    pub fn format(&self) -> u8 {
        self.op_own() >> 2 & 3
    }

    /// The peer marked the Send as solicited.
    #[inline]
    #[must_use]
    pub fn solicited(&self) -> bool {
        self.op_own() & 2 != 0
    }

    /// Number of the local queue pair.
    #[inline]
    #[must_use]
    pub fn qpn(&self) -> u32 {
        self.0.qpn()
    }

    /// Which WQE: the block it starts at (requests), the receive count, or the SRQ entry's index.
    #[inline]
    #[must_use]
    pub fn wqe_counter(&self) -> u16 {
        self.0.wqe_counter()
    }

    /// Bytes received, or read.
    #[inline]
    #[must_use]
    pub fn byte_count(&self) -> u32 {
        self.0.byte_cnt()
    }

    /// Source queue pair number and routing header bits (datagrams).
    #[inline]
    #[must_use]
    pub fn flags_rqpn(&self) -> u32 {
        self.0.flags_rqpn()
    }

    /// Syndrome and vendor syndrome of an error entry.
    #[inline]
    #[must_use]
    pub fn syndrome(&self) -> (u8, u8) {
        let bytes = self.0.as_array();
        (bytes[0x37], bytes[0x36])
    }
}

impl From<Cqe64> for Cqe {
    fn from(entry: Cqe64) -> Self {
        Self(entry)
    }
}

impl CompletionEntry for Cqe {
    #[inline]
    fn owner(&self) -> u32 {
        // CQE version 1: the user index of the queue pair stands where version 0 has the SRQ number.
        self.0.srqn_uidx()
    }

    #[inline]
    fn is_request(&self) -> bool {
        matches!(self.opcode(), opcode::REQUEST | opcode::REQUEST_ERROR)
    }
}

/// A completion queue.
pub struct Cq {
    ring: DmaBuffer,
    record: DmaBuffer,
    memory: Lent<RingMemory>,
    doorbells: Doorbells,
    /// Entries, a power of two.
    entries: u32,
    /// Entries consumed since creation.
    consumer_index: u32,
    cqn: u32,
    sequence: ArmSequence,
}

impl Cq {
    /// Marks all entries of a ring as never written. Before CREATE_CQ.
    pub fn prepare_ring(ring: &DmaBuffer) {
        for at in (0..ring.len()).step_by(CQE_BYTES) {
            ring.store_u8(at + OP_OWN, NEVER_WRITTEN);
        }
    }

    /// The queue the device knows as `cqn`: a prepared ring of a power of two of entries, and a
    /// zeroed doorbell record.
    ///
    /// # Panics
    /// When the ring's size is not a power of two of entries or the record is too small.
    #[must_use]
    pub fn new(cqn: u32, entries: u32, memory: RingMemory, doorbells: Doorbells) -> Self {
        assert!(entries.is_power_of_two(), "a CQ of {entries} entries");
        // PANIC: sizes are ours, computed beside the allocation.
        assert!(
            memory.ring.contains(0, entries as usize * CQE_BYTES),
            "a CQ of {entries} entries in {:#x} bytes",
            memory.ring.len()
        );
        Self {
            ring: memory.ring.clone(),
            record: memory.record.clone(),
            memory: memory.lend(),
            doorbells,
            entries,
            consumer_index: 0,
            cqn,
            sequence: ArmSequence::default(),
        }
    }

    /// Creates a queue of at least `entries`, whose events go to the completion event queue.
    ///
    /// # Errors
    /// No memory, or device refusal.
    pub fn create(hca: &mut Hca, doorbells: &Doorbells, entries: u32) -> Result<Self, MlxError> {
        // One more than asked: a full ring of n entries needs its consumer index published for the
        // next one, and drivers leave that much room (`mlx5_ib_create_cq` in Linux).
        let size = entries
            .checked_add(1)
            .and_then(u32::checked_next_power_of_two)
            .filter(|size| size.ilog2() < 24);
        let entries = size.ok_or(MlxError::Nonsense {
            what: "completion queue size",
            value: u64::from(entries),
        })?;
        let memory = RingMemory::alloc(hca.arena(), entries as usize * CQE_BYTES)?;
        Self::prepare_ring(&memory.ring);
        let mut command = CreateCqIn::new();
        command
            .cq_context_mut()
            .set_log_cq_size(entries.ilog2())
            .set_uar_page(hca.uar_index().get())
            .set_c_eqn_or_apu_element(hca.comp_eqn().get())
            .set_log_page_size(memory.log_page_size())
            .set_dbr_addr(memory.record_address());
        let memory = memory.lend();
        match hca.exec_with(&command, &memory.get().pages()) {
            Ok(answer) => Ok(Self::new(
                answer.cqn(),
                entries,
                memory.give_back(),
                doorbells.clone(),
            )),
            Err(error) => Err(memory.after(error).into()),
        }
    }

    /// Destroys the queue.
    ///
    /// # Errors
    /// Device refusal; the memory then stays out of use.
    pub fn destroy(self, hca: &mut Hca) -> Result<(), MlxError> {
        let mut command = DestroyCqIn::new();
        command.set_cqn(self.cqn);
        hca.exec(&command)?;
        drop(self.memory.give_back());
        Ok(())
    }

    /// The device's number of the queue.
    #[must_use]
    pub fn cqn(&self) -> u32 {
        self.cqn
    }

    /// The event counter to hand to whoever takes events in.
    #[must_use]
    pub fn sequence(&self) -> ArmSequence {
        self.sequence.clone()
    }

    /// Byte offset of the slot of an index.
    #[inline]
    fn slot(&self, index: u32) -> usize {
        // CAST: widening; usize is at least 32 bits here.
        (index & (self.entries - 1)) as usize * CQE_BYTES
    }

    /// The owner bit a fresh entry has in the lap of `index`.
    #[inline]
    fn owner_bit(&self, index: u32) -> u8 {
        u8::from(index & self.entries != 0)
    }

    #[inline]
    fn is_fresh(&self, op_own: u8, index: u32) -> bool {
        op_own >> 4 != opcode::INVALID && op_own & 1 == self.owner_bit(index)
    }

    #[inline]
    fn publish_consumer_index(&self) {
        self.record
            .store_be32(SET_CI, self.consumer_index & COUNTER_MASK);
    }

    /// Removes the entries for which `is_dead` says true and keeps the others in their order. The
    /// queue pair they belong to makes no more of them; other queue pairs may go on meanwhile.
    ///
    /// Returns how many were removed.
    pub fn clean(&mut self, mut is_dead: impl FnMut(&Cqe) -> bool) -> u32 {
        // Find the end first: entries that arrive while we move others belong behind them.
        let mut end = self.consumer_index;
        while end.wrapping_sub(self.consumer_index) < self.entries
            && self.is_fresh(self.ring.load_u8(self.slot(end) + OP_OWN), end)
        {
            end = end.wrapping_add(1);
        }
        barrier::dma_from_device(); // nothing of the entries before the owner bits that showed them
        let mut removed = 0;
        let mut index = end;
        while index != self.consumer_index {
            index = index.wrapping_sub(1);
            let from = self.slot(index);
            let entry = Cqe(self.ring.read_obj(from));
            if is_dead(&entry) {
                removed += 1;
            } else if removed > 0 {
                let target = index.wrapping_add(removed);
                let to = self.slot(target);
                let op_own = entry.op_own() & !1 | self.owner_bit(target);
                self.ring.write_obj(to, &entry.0);
                self.ring.store_u8(to + OP_OWN, op_own);
            }
        }
        if removed > 0 {
            self.consumer_index = self.consumer_index.wrapping_add(removed);
            // The entries are read, and the moved ones written, before the index that frees their old slots.
            barrier::dma_hand_back();
            barrier::dma_to_device();
            self.publish_consumer_index();
        }
        removed
    }
}

impl CompletionQueue for Cq {
    type Entry = Cqe;

    #[inline]
    fn poll(&mut self) -> Option<Cqe> {
        let at = self.slot(self.consumer_index);
        if !self.is_fresh(self.ring.load_u8(at + OP_OWN), self.consumer_index) {
            return None;
        }
        barrier::dma_from_device(); // nothing else of the entry before its owner bit
        let entry = Cqe(self.ring.read_obj(at));
        self.consumer_index = self.consumer_index.wrapping_add(1);
        barrier::dma_hand_back(); // the entry is read before its place is given back
        self.publish_consumer_index();
        Some(entry)
    }

    fn arm(&mut self, solicited_only: bool) {
        let word = self.sequence.bits() << 28
            | u32::from(solicited_only) << 24
            | self.consumer_index & COUNTER_MASK;
        self.record.store_be32(ARM, word);
        barrier::dma_to_device(); // the record before the register that points at it
        self.doorbells.ring_cq(word, self.cqn);
        barrier::flush_write_combining(); // out now: the caller is about to sleep on the answer
    }

    fn capacity(&self) -> u32 {
        self.entries
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
