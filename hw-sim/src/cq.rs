//! Completion queues, from the device's side.
//!
//! The device writes a CQE to slot `producer & (n - 1)`, with the owner bit equal to the parity of the lap, and byte
//! 0x3f last. The consumer counter is word 0 of the doorbell record in host memory. The device reads this counter
//! before it writes a CQE. A CQE for a full ring is an overflow. With `oi` the device neither reads the counter nor
//! detects overflows. After an overflow, or if ring or record cannot be accessed, the queue stays in error: the context
//! has status 9 or 0xa, and no further CQE is written.
//!
//! Arming requests *one* completion event. The request carries a 2-bit sequence number. The device increments its own
//! sequence number with each event it sends, and ignores requests with another number, because the event that they
//! request was already sent. An arm for solicited entries is satisfied by a solicited CQE or an error CQE. If an entry
//! of the requested kind is already beyond the request's consumer counter, the device sends the event at once.
//!
//! Resizing takes effect with the command: the device ends the old ring with a RESIZE CQE and continues in the new
//! ring, with the producer counter one higher. (`copy_resize_cqes` in drivers/infiniband/hw/mlx5/cq.c of Linux treats
//! a ring without that entry, once the command is answered, as an error.)

use crate::buffer::QueueBuffer;
use crate::eq::{Arm, COUNTER_MASK};
use crate::iommu::{Iommu, Who};
use crate::umem::Places;
use mlx_prm::CqeOpcode;

/// Bytes of a CQE without padding.
pub const CQE_BYTES: usize = 64;
/// Status in the context after an overflow.
pub const STATUS_OVERFLOW: u32 = 0x9;
/// Status in the context after the ring could not be written or the doorbell record could not be read.
pub const STATUS_WRITE_FAILURE: u32 = 0xa;

/// Result of writing a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// The CQE was written.
    Written {
        /// True if a completion event must be sent: the queue was armed, and is not armed any more.
        event: bool,
    },
    /// The CQE is lost, because the queue was already in error.
    Dead,
    /// The CQE is lost, and the queue is in error from now on. A CQ error event must be sent.
    Failed {
        /// Syndrome of the event: 1 overrun, 2 access violation.
        syndrome: u8,
    },
}

/// Result of an arm doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// The request was accepted.
    Taken {
        /// True if a completion event must be sent at once, because entries of the requested kind were already written.
        event: bool,
    },
    /// The request was ignored, because its sequence number is not the current one.
    Stale,
    /// The consumer counter is beyond the entries that were written.
    Ahead,
}

/// Reason for which a queue was not resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotResized {
    /// This number of outstanding entries and the RESIZE entry do not fit into one of the rings.
    Outstanding(u32),
    /// The queue is in error, with this status.
    InError(u32),
    /// The old ring or the doorbell record cannot be accessed.
    Inaccessible,
}

/// Geometry of a CQ's ring.
#[derive(Clone, Debug)]
pub struct CqRing {
    /// Log2 of the number of entries.
    pub log_size: u32,
    /// Memory of the ring.
    pub buffer: QueueBuffer,
    /// `log_page_size` of the context.
    pub log_page_size: u32,
    /// `page_offset` of the context.
    pub page_offset: u32,
}

/// A completion queue.
#[derive(Clone, Debug)]
pub struct Cq {
    /// Number of the queue.
    pub number: u32,
    /// The ring in use.
    pub ring: CqRing,
    /// Bytes from one entry to the next: 64 or 128.
    pub stride: usize,
    /// Offset of the CQE in an entry, in bytes. It is 64 in an entry of 128 bytes, padded (`cqe_sz` 2) or not (Linux
    /// `mlx5_cqwq_get_wqe` in drivers/net/ethernet/mellanox/mlx5/core/wq.h), and 0 in an entry of 64 bytes.
    pub cqe_offset: usize,
    /// `cqe_sz` of the context.
    pub cqe_sz: u32,
    /// True if all CQEs go to entry 0.
    pub collapsed: bool,
    /// True if overruns are not detected (`oi`).
    pub ignore_overrun: bool,
    /// UAR page of the queue's arm doorbell.
    pub uar: u32,
    /// EQ for the queue's completion events.
    pub eqn: u32,
    /// DMA address of the doorbell record.
    pub doorbell_record: u64,
    /// User memory that contains ring and record.
    pub places: Places,
    /// Moderation parameters as set: period (µs), count, period mode. They are only reported; events are never delayed.
    pub moderation: (u32, u32, u32),
    /// Status in the context: 0, [`STATUS_OVERFLOW`] or [`STATUS_WRITE_FAILURE`].
    pub status: u32,
    producer: u32,
    consumer: u32,
    arm: Arm,
    sequence: u32,
    last_notified: u32,
    /// Value of `producer` after the last solicited or error CQE was written; `None` before the first.
    last_solicited: Option<u32>,
}

impl Cq {
    /// Returns an empty, unarmed queue.
    pub fn new(
        number: u32,
        ring: CqRing,
        cqe_sz: u32,
        uar: u32,
        eqn: u32,
        doorbell_record: u64,
    ) -> Self {
        Self {
            number,
            ring,
            stride: if cqe_sz == 0 { 64 } else { 128 },
            cqe_offset: if cqe_sz == 0 { 0 } else { 64 },
            cqe_sz,
            collapsed: false,
            ignore_overrun: false,
            uar,
            eqn,
            doorbell_record,
            places: Places::default(),
            moderation: (0, 0, 0),
            status: 0,
            producer: 0,
            consumer: 0,
            arm: Arm::Disarmed,
            sequence: 0,
            last_notified: COUNTER_MASK,
            last_solicited: None,
        }
    }

    /// Returns the number of CQEs written, modulo 2^24.
    pub fn producer(&self) -> u32 {
        self.producer & COUNTER_MASK
    }

    /// Returns the consumer counter as last read, modulo 2^24.
    pub fn consumer(&self) -> u32 {
        self.consumer & COUNTER_MASK
    }

    /// Returns the producer counter at the last completion event. Before the first, it is 0xffffff: so a ConnectX-6 Dx
    /// reports an armed CQ without any entry (QUERY_CQ in the README of mlx5ctl).
    pub fn last_notified(&self) -> u32 {
        self.last_notified & COUNTER_MASK
    }

    /// Returns the producer counter after the last solicited or error CQE; 0 if there was none.
    pub fn last_solicited(&self) -> u32 {
        self.last_solicited.unwrap_or(0) & COUNTER_MASK
    }

    /// Returns the arming state.
    pub fn arm_state(&self) -> Arm {
        self.arm
    }

    /// Returns the number of bytes of a ring.
    pub fn bytes(log_size: u32, cqe_sz: u32) -> u64 {
        (if cqe_sz == 0 { 64 } else { 128 }) << log_size
    }

    /// Writes a completion. `cqe` has the 64-byte form; its owner bit is ignored. `first` is the first half of an entry
    /// of 128 bytes.
    pub fn complete(
        &mut self,
        iommu: &mut Iommu,
        first: Option<&[u8; CQE_BYTES]>,
        cqe: &[u8; CQE_BYTES],
        solicited: bool,
    ) -> Completed {
        if self.status != 0 {
            return Completed::Dead;
        }
        if let Err(failed) = self.write(iommu, first, cqe) {
            return failed;
        }
        let opcode = CqeOpcode(cqe[CQE_BYTES - 1] >> 4);
        let solicited = solicited || matches!(opcode, CqeOpcode::REQ_ERR | CqeOpcode::RESP_ERR);
        if solicited {
            self.last_solicited = Some(self.producer);
        }
        let event = match self.arm {
            Arm::Armed => true,
            Arm::Solicited => solicited,
            Arm::Fired | Arm::Disarmed => false,
        };
        if event {
            self.notify();
        }
        Completed::Written { event }
    }

    fn write(
        &mut self,
        iommu: &mut Iommu,
        first: Option<&[u8; CQE_BYTES]>,
        cqe: &[u8; CQE_BYTES],
    ) -> Result<(), Completed> {
        let who = Who::Cq(self.number);
        if !self.ignore_overrun {
            if self.read_consumer(iommu).is_err() {
                return Err(self.fail(STATUS_WRITE_FAILURE, 2));
            }
            if self.outstanding() >= 1 << self.ring.log_size {
                return Err(self.fail(STATUS_OVERFLOW, 1));
            }
        }
        let slot = if self.collapsed {
            0
        } else {
            self.producer & ((1 << self.ring.log_size) - 1)
        };
        let at = u64::from(slot) * self.stride as u64 + self.cqe_offset as u64;
        let iova = self.ring.buffer.iova(at);
        let lap = (self.producer >> self.ring.log_size & 1) == 1;
        let op_own = (cqe[CQE_BYTES - 1] & 0xfe) | u8::from(lap);
        let before = match first.filter(|_| self.cqe_offset == CQE_BYTES) {
            None => Ok(()),
            // The two halves may be on two pages.
            Some(first) => {
                let iova = self.ring.buffer.iova(at - CQE_BYTES as u64);
                iommu.write(iova, first, who)
            }
        };
        let written = before
            .and_then(|()| iommu.write(iova, &cqe[..CQE_BYTES - 1], who))
            .and_then(|()| iommu.publish(iova + CQE_BYTES as u64 - 1, op_own, who));
        if written.is_err() {
            return Err(self.fail(STATUS_WRITE_FAILURE, 2));
        }
        self.producer = self.producer.wrapping_add(1);
        Ok(())
    }

    fn read_consumer(&mut self, iommu: &mut Iommu) -> Result<(), crate::host::DmaFault> {
        let mut word = [0; 4];
        iommu.read(self.doorbell_record, &mut word, Who::Cq(self.number))?;
        let advance = u32::from_be_bytes(word).wrapping_sub(self.consumer) & COUNTER_MASK;
        // A counter that runs backwards or ahead of the producer would hide an overflow, so it is ignored.
        if advance <= self.outstanding() {
            self.consumer = self.consumer.wrapping_add(advance);
        }
        Ok(())
    }

    fn fail(&mut self, status: u32, syndrome: u8) -> Completed {
        self.status = status;
        Completed::Failed { syndrome }
    }

    fn outstanding(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer) & COUNTER_MASK
    }

    fn notify(&mut self) {
        self.arm = Arm::Fired;
        self.sequence = (self.sequence + 1) & 3;
        self.last_notified = self.producer;
    }

    /// Handles the arm doorbell: sequence number `[29:28]`, solicited only `[24]`, consumer counter `[23:0]`.
    pub fn ring_arm(&mut self, word: u32) -> Armed {
        let sequence = word >> 28 & 3;
        let solicited_only = word >> 24 & 1 == 1;
        if sequence != self.sequence {
            return Armed::Stale;
        }
        let behind = self.producer.wrapping_sub(word) & COUNTER_MASK;
        // The request's counter may be older than the record's: the record advanced while the doorbell was in flight.
        let ahead = word.wrapping_sub(self.producer) & COUNTER_MASK;
        if ahead != 0 && ahead <= COUNTER_MASK / 2 && !self.ignore_overrun {
            return Armed::Ahead;
        }
        let waiting = if solicited_only {
            // The newest solicited CQE is unread if fewer than `behind` CQEs were written after it.
            self.last_solicited
                .is_some_and(|at| (self.producer.wrapping_sub(at) & COUNTER_MASK) < behind)
        } else {
            behind != 0
        };
        if waiting {
            self.notify();
        } else {
            self.arm = if solicited_only {
                Arm::Solicited
            } else {
                Arm::Armed
            };
        }
        Armed::Taken { event: waiting }
    }

    /// Continues in another ring (MODIFY_CQ resize).
    ///
    /// # Errors
    /// [`NotResized`]: the new ring cannot hold the outstanding entries, the old ring has no free slot for the RESIZE
    /// entry, the queue is in error, or old ring or record cannot be accessed. The old ring stays in use.
    pub fn resize(&mut self, iommu: &mut Iommu, ring: CqRing) -> Result<(), NotResized> {
        if self.status != 0 {
            return Err(NotResized::InError(self.status));
        }
        if self.read_consumer(iommu).is_err() {
            return Err(NotResized::Inaccessible);
        }
        let with_marker = self.outstanding() + 1;
        if with_marker > 1 << self.ring.log_size || with_marker > 1 << ring.log_size {
            return Err(NotResized::Outstanding(self.outstanding()));
        }
        let mut marker = [0; CQE_BYTES];
        marker[CQE_BYTES - 1] = CqeOpcode::RESIZE_CQ.0 << 4;
        if self.write(iommu, None, &marker).is_err() {
            self.status = 0;
            return Err(NotResized::Inaccessible);
        }
        self.ring = ring;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use driver::SharedMemory;

    const RECORD: u64 = 0x1800;

    fn queue(log_size: u32) -> (Cq, Iommu, SharedMemory) {
        let memory = SharedMemory::anonymous(2 * 4096).unwrap();
        let mut iommu = Iommu::default();
        iommu.set_bus_master(true);
        iommu.map(0x1000, memory.clone(), 0, 2 * 4096).unwrap();
        let buffer = QueueBuffer::new(&[0x2000], 0, 0, 64 << log_size).unwrap();
        let ring = CqRing {
            log_size,
            buffer,
            log_page_size: 0,
            page_offset: 0,
        };
        (Cq::new(9, ring, 0, 5, 3, RECORD), iommu, memory)
    }

    fn set_consumer(memory: &SharedMemory, counter: u32) {
        memory.store_be32(0x800, counter);
    }

    fn send_done() -> [u8; 64] {
        [0; 64]
    }

    #[test]
    fn the_owner_bit_follows_the_lap() {
        let (mut cq, mut iommu, memory) = queue(1);
        for _ in 0..2 {
            cq.complete(&mut iommu, None, &send_done(), false);
        }
        assert_eq!(memory.load_u8(0x1000 + 63), 0);
        set_consumer(&memory, 2);
        cq.complete(&mut iommu, None, &send_done(), false);
        assert_eq!(memory.load_u8(0x1000 + 63), 1);
    }

    #[test]
    fn an_entry_of_128_bytes_is_the_second_half_and_data_is_the_first() {
        for cqe_sz in [1, 2] {
            let (mut cq, mut iommu, memory) = queue(1);
            cq = Cq::new(cq.number, cq.ring, cqe_sz, cq.uar, cq.eqn, RECORD);
            memory.store_u8(0x1000, 0xee);
            cq.complete(&mut iommu, None, &send_done(), false);
            assert_eq!(
                memory.load_u8(0x1000),
                0xee,
                "no data, nothing written there"
            );
            cq.complete(&mut iommu, Some(&[7; 64]), &[0x20; 64], false);
            let read = |at: usize| memory.load_u8(0x1080 + at);
            assert_eq!([read(0), read(63), read(64), read(127)], [7, 7, 0x20, 0x20]);
        }
    }

    #[test]
    fn the_halves_of_an_entry_lie_on_two_pages_where_the_ring_begins_inside_of_one() {
        let (mut cq, mut iommu, memory) = queue(5);
        let ring = CqRing {
            buffer: QueueBuffer::new(&[0x2000, 0x1000], 0, 1, 128 << 5).unwrap(),
            ..cq.ring
        };
        cq = Cq::new(cq.number, ring, 1, cq.uar, cq.eqn, RECORD);
        for _ in 0..31 {
            cq.complete(&mut iommu, None, &send_done(), false);
        }
        let written = cq.complete(&mut iommu, Some(&[7; 64]), &[0x20; 64], false);
        assert_eq!(written, Completed::Written { event: false });
        let read = |iova: usize| memory.load_u8(iova - 0x1000);
        assert_eq!([read(0x2fc0), read(0x2fff)], [7, 7]);
        assert_eq!([read(0x1000), read(0x103f), read(0x1040)], [0x20, 0x20, 0]);
    }

    #[test]
    fn a_queue_that_was_never_armed_has_state_0_and_no_last_event() {
        let (mut cq, mut iommu, _memory) = queue(1);
        let state = |cq: &Cq| (cq.arm_state().code(), cq.last_notified());
        cq.complete(&mut iommu, None, &send_done(), false);
        assert_eq!(state(&cq), (0, COUNTER_MASK));
        let (mut cq, mut iommu, _memory) = queue(1);
        cq.ring_arm(0);
        assert_eq!(state(&cq), (0x9, COUNTER_MASK));
        cq.complete(&mut iommu, None, &send_done(), false);
        assert_eq!(state(&cq), (0xa, 1));
    }

    #[test]
    fn overflow_puts_the_queue_in_error_for_good() {
        let (mut cq, mut iommu, memory) = queue(1);
        for _ in 0..2 {
            cq.complete(&mut iommu, None, &send_done(), false);
        }
        assert_eq!(
            cq.complete(&mut iommu, None, &send_done(), false),
            Completed::Failed { syndrome: 1 }
        );
        assert_eq!(cq.status, STATUS_OVERFLOW);
        set_consumer(&memory, 2);
        assert_eq!(
            cq.complete(&mut iommu, None, &send_done(), false),
            Completed::Dead
        );
    }

    #[test]
    fn an_unmapped_ring_is_a_write_failure() {
        let (mut cq, mut iommu, _memory) = queue(1);
        iommu.unmap(0x1000, 2 * 4096).unwrap();
        assert_eq!(
            cq.complete(&mut iommu, None, &send_done(), false),
            Completed::Failed { syndrome: 2 }
        );
        assert_eq!(cq.status, STATUS_WRITE_FAILURE);
    }

    #[test]
    fn one_event_per_arming() {
        let (mut cq, mut iommu, _memory) = queue(3);
        assert_eq!(cq.ring_arm(0), Armed::Taken { event: false });
        assert_eq!(
            cq.complete(&mut iommu, None, &send_done(), false),
            Completed::Written { event: true }
        );
        assert_eq!(
            cq.complete(&mut iommu, None, &send_done(), false),
            Completed::Written { event: false }
        );
    }

    #[test]
    fn a_stale_sequence_number_is_ignored() {
        let (mut cq, mut iommu, _memory) = queue(3);
        cq.ring_arm(0);
        cq.complete(&mut iommu, None, &send_done(), false);
        assert_eq!(cq.ring_arm(0), Armed::Stale);
        assert_eq!(
            cq.ring_arm(1 << 28),
            Armed::Taken { event: true },
            "the entry is beyond the counter"
        );
    }

    #[test]
    fn a_solicited_arm_waits_for_a_solicited_or_error_entry() {
        let (mut cq, mut iommu, _memory) = queue(3);
        cq.ring_arm(1 << 24);
        assert_eq!(
            cq.complete(&mut iommu, None, &send_done(), false),
            Completed::Written { event: false }
        );
        assert_eq!(
            cq.complete(&mut iommu, None, &send_done(), true),
            Completed::Written { event: true }
        );
        let (mut cq, mut iommu, _memory) = queue(3);
        cq.ring_arm(1 << 24);
        let mut error = send_done();
        error[63] = CqeOpcode::REQ_ERR.0 << 4;
        assert_eq!(
            cq.complete(&mut iommu, None, &error, false),
            Completed::Written { event: true }
        );
    }

    #[test]
    fn a_solicited_arm_behind_a_solicited_entry_fires_at_once() {
        let (mut cq, mut iommu, _memory) = queue(3);
        cq.complete(&mut iommu, None, &send_done(), true);
        cq.complete(&mut iommu, None, &send_done(), false);
        assert_eq!(cq.ring_arm(1 << 24), Armed::Taken { event: true });
        assert_eq!(
            cq.ring_arm(1 << 28 | 1 << 24 | 1),
            Armed::Taken { event: false },
            "the solicited one was read"
        );
    }

    #[test]
    fn an_arm_beyond_the_producer_is_not_taken() {
        let (mut cq, mut iommu, _memory) = queue(3);
        cq.complete(&mut iommu, None, &send_done(), false);
        assert_eq!(cq.ring_arm(2), Armed::Ahead);
    }

    #[test]
    fn a_resized_queue_ends_the_old_ring_with_a_resize_entry() {
        let (mut cq, mut iommu, memory) = queue(1);
        let buffer = QueueBuffer::new(&[0x1000], 0, 0, 64 << 2).unwrap();
        let ring = CqRing {
            log_size: 2,
            buffer,
            log_page_size: 0,
            page_offset: 0,
        };
        assert_eq!(cq.resize(&mut iommu, ring.clone()), Ok(()));
        assert_eq!(memory.load_u8(0x1000 + 63) >> 4, CqeOpcode::RESIZE_CQ.0);
        assert_eq!((cq.producer(), cq.ring.log_size), (1, 2));
        cq.complete(&mut iommu, None, &send_done(), false);
        assert_eq!(cq.producer(), 2);
        let outstanding = CqRing {
            log_size: 1,
            ..ring
        };
        assert_eq!(
            cq.resize(&mut iommu, outstanding),
            Err(NotResized::Outstanding(2)),
            "two and the marker in two places"
        );
    }
}
