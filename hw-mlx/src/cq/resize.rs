//! Resizing: moves a completion queue to another ring.
//!
//! The driver gives the device the new ring (MODIFY_CQ, op_mod 1). The device writes a last entry with opcode 5 into
//! the old ring, and all later entries into the new one. That last entry advances the counter by one. We copy the
//! entries not yet taken from the old ring: an entry at index i moves to index i + 1, with the owner bit of its new
//! slot. All other slots stay marked as never written. (PRM "Resizing a CQ"; `copy_resize_cqes` in
//! drivers/infiniband/hw/mlx5/cq.c of Linux, which also shows that the last entry has been written when the command is
//! answered.)
//!
//! If the device writes no such last entry, the driver logs an error and expects the device's next entry directly after
//! the copied ones. Requests whose entries are missing then never complete. The old ring stays out of use as long as
//! the function is open, because the device may still write it.

use driver::{DmaRing, barrier};

use super::{CQE_BYTES, Cq, Cqe, Lap, OP_OWN, TAIL, fresh_tail, ring_entries};
use crate::device::Hca;
use crate::error::MlxError;
use crate::ring::{Lent, RingMemory};
use mlx_prm::{Cqe64, CqeOpcode, ModifyCqIn};

/// Value of `modify_field_select` for a resize: size, page offset and page size.
const RESIZE_FIELDS: u32 = 7;
/// `op_mod` of a resize.
const OP_MOD_RESIZE: u32 = 1;

impl Cq {
    /// Replaces the queue's ring by one of at least `asked` entries. Pending entries are kept.
    ///
    /// # Errors
    /// The queue is too large, there is no memory, or the device refuses (status 0x40 when more entries are outstanding
    /// than the new ring has); the queue is unchanged.
    pub fn resize(&mut self, hca: &mut Hca, asked: u32) -> Result<(), MlxError> {
        let entries = ring_entries(asked)?;
        let memory = self
            .memory
            .get()
            .another(hca.arena(), entries as usize * CQE_BYTES)?;
        self.prepare_next_ring(&memory, entries);
        let mut command = ModifyCqIn::new();
        command
            .set_op_mod(OP_MOD_RESIZE)
            .set_cqn(self.cqn)
            .set_modify_field_select(RESIZE_FIELDS);
        command
            .cq_context_mut()
            .set_log_cq_size(entries.ilog2())
            .set_log_page_size(memory.log_page_size());
        // The consumer index is published, so that the device has a free slot for the entry that ends the ring.
        self.publish_consumer_index();
        let memory = memory.lend();
        if let Err(error) = hca.exec_with(&command, &memory.get().pages()) {
            return Err(memory.after(error).into());
        }
        self.move_to(memory, entries, entries - asked);
        Ok(())
    }

    /// Marks all entries of the new ring as never written. The new ring begins after the entry that ends the old one.
    /// Indices continue, so it begins in the middle of a lap, and the owner bit of a mark depends on the index.
    pub(super) fn prepare_next_ring(&self, memory: &RingMemory, entries: u32) {
        let ring = DmaRing::<CQE_BYTES>::new(&memory.ring, 0, entries);
        for ahead in 1..=entries {
            let index = self.consumer_index.wrapping_add(ahead);
            let not_its_owner = u8::from(index & entries == 0);
            let op_own = Cqe64::NEVER_WRITTEN & !1 | not_its_owner;
            ring.block(index).write_at(OP_OWN, &op_own);
        }
    }

    /// Moves the pending entries to the new ring, which the device already uses, and frees the old one if the device
    /// has ended it.
    pub(super) fn move_to(&mut self, memory: Lent<RingMemory>, entries: u32, spare: u32) {
        let ring = DmaRing::<CQE_BYTES>::new(&memory.get().ring, 0, entries);
        let mut index = self.consumer_index;
        let mut ended = false;
        while index.wrapping_sub(self.consumer_index) < self.entries {
            let slot = self.ring.block(index);
            if fresh_tail(slot, Lap::of(self.owner_bit(index))).is_none() {
                break;
            }
            barrier::dma_from_device(); // the rest of the entry is read after its owner bit
            let entry = Cqe::read(slot, slot.load_be64::<TAIL>());
            if entry.opcode() == CqeOpcode::RESIZE_CQ {
                ended = true;
                break;
            }
            index = index.wrapping_add(1);
            let target = ring.block(index);
            let owner = u8::from(index & entries != 0);
            target.write(&slot.read::<[u8; CQE_BYTES], 0>());
            target.write_at(OP_OWN, &(entry.op_own() & !1 | owner));
        }
        if !ended {
            tracing::error!(queue = ?self, "the device did not end the old ring of a resized completion queue");
        }
        self.ring = ring;
        self.entries = entries;
        self.consumer_index = self.consumer_index.wrapping_add(1);
        self.set_spare(spare);
        let _polls_others = self.end_batch();
        // The doorbell record is the same.
        let old = core::mem::replace(&mut self.memory, memory);
        if ended {
            drop(old.give_back());
        }
        self.is_disarmed = true;
    }
}
