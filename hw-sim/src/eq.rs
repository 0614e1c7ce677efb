//! Event queues, from the device's side.
//!
//! The device writes 64-byte entries to slot `producer & (n - 1)`, with the owner bit equal to the parity of the lap (0
//! on the first), and byte 0x3f last. Software reports its consumer counter by doorbell, with or without arming.
//! Arming controls only the interrupt. An armed queue with an entry beyond the consumer counter raises its vector once
//! and is then no longer armed. A queue that is not armed raises no interrupt.
//!
//! The queue is full when the producer is a whole ring ahead of the last reported consumer counter. If `oi` is set, the
//! device then overwrites entries. Otherwise the new entry is lost, and the caller decides on the consequence.

use crate::buffer::QueueBuffer;
use crate::iommu::{Iommu, Who};
use mlx_prm::EventType;

/// Bytes of an entry.
pub const EQE_BYTES: usize = 64;
/// Mask of the counters that software and device exchange, which have 24 bits.
pub const COUNTER_MASK: u32 = 0x00ff_ffff;

/// Arming state, as coded in the queue contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The queue will notify for solicited entries and errors only (CQ).
    Solicited,
    /// The queue will notify for the next entry.
    Armed,
    /// The queue has notified since it was armed. An EQ that was never armed is reported like this, too.
    Fired,
    /// The queue was never armed (CQ). Inferred: drivers create CQs with `st` 0, and Linux mthca names the value 0 of
    /// its state DISARMED (`mthca_cq.c` `MTHCA_CQ_STATE_DISARMED`).
    Disarmed,
}

impl Arm {
    /// Returns the value of the context's `st` field.
    pub const fn code(self) -> u32 {
        match self {
            Self::Solicited => 0x6,
            Self::Armed => 0x9,
            Self::Fired => 0xa,
            Self::Disarmed => 0x0,
        }
    }
}

/// Result of posting an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The entry was written.
    Written {
        /// True if the vector must be raised: the queue was armed, and is not armed any more.
        interrupt: bool,
    },
    /// The ring is full, and the entry is lost.
    Overrun,
    /// The ring cannot be written.
    Failed,
}

/// Result of an EQ doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// The counter was accepted.
    Taken {
        /// True if the vector must be raised: the doorbell armed the queue while entries were outstanding.
        interrupt: bool,
    },
    /// The counter is beyond the entries that were written.
    Ahead {
        /// Number of entries written so far.
        producer: u32,
    },
}

/// Destination of an EQE.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// The EQ with this number.
    Number(u32),
    /// The EQ that carries this event type.
    Carrier(EventType),
}

/// An event queue.
#[derive(Clone, Debug)]
pub struct Eq {
    /// Number of the queue.
    pub number: u32,
    /// Log2 of the number of entries.
    pub log_size: u32,
    /// UAR page of the queue's doorbells.
    pub uar: u32,
    /// MSI-X vector.
    pub vector: u16,
    /// True if overruns are not detected (`oi`).
    pub ignore_overrun: bool,
    /// Event types that the queue carries, one bit for each type; 0 in an EQ for completion queues.
    pub events: u64,
    /// Memory of the ring.
    pub buffer: QueueBuffer,
    /// `log_page_size` of the context.
    pub log_page_size: u32,
    /// `page_offset` of the context.
    pub page_offset: u32,
    /// True if a write to the ring has failed (context status 0xa).
    pub failed: bool,
    consumer: u32,
    producer: u32,
    arm: Arm,
}

impl Eq {
    /// Returns an empty, unarmed queue.
    #[expect(
        clippy::too_many_arguments,
        reason = "one argument per field of the context"
    )]
    pub fn new(
        number: u32,
        log_size: u32,
        uar: u32,
        vector: u16,
        ignore_overrun: bool,
        events: u64,
        buffer: QueueBuffer,
        log_page_size: u32,
        page_offset: u32,
    ) -> Self {
        Self {
            number,
            log_size,
            uar,
            vector,
            ignore_overrun,
            events,
            buffer,
            log_page_size,
            page_offset,
            failed: false,
            consumer: 0,
            producer: 0,
            arm: Arm::Fired,
        }
    }

    /// Returns the last reported consumer counter, modulo 2^24.
    pub fn consumer(&self) -> u32 {
        self.consumer & COUNTER_MASK
    }

    /// Returns the number of entries written, modulo 2^24.
    pub fn producer(&self) -> u32 {
        self.producer & COUNTER_MASK
    }

    /// Returns the arming state.
    pub fn arm(&self) -> Arm {
        self.arm
    }

    /// Returns whether the queue carries asynchronous events.
    pub fn is_async(&self) -> bool {
        self.events != 0
    }

    fn outstanding(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer) & COUNTER_MASK
    }

    /// Writes an entry.
    pub fn post(&mut self, iommu: &mut Iommu, eqe: &[u8; EQE_BYTES]) -> Posted {
        if self.failed {
            return Posted::Failed;
        }
        if !self.ignore_overrun && self.outstanding() >= 1 << self.log_size {
            return Posted::Overrun;
        }
        let slot = self.producer & ((1 << self.log_size) - 1);
        let iova = self.buffer.iova(u64::from(slot) * EQE_BYTES as u64);
        let lap = (self.producer >> self.log_size & 1) == 1;
        let owner = (eqe[EQE_BYTES - 1] & 0xfe) | u8::from(lap);
        let who = Who::Eq(self.number);
        let written = iommu
            .write(iova, &eqe[..EQE_BYTES - 1], who)
            .and_then(|()| iommu.publish(iova + EQE_BYTES as u64 - 1, owner, who));
        if written.is_err() {
            self.failed = true;
            return Posted::Failed;
        }
        self.producer = self.producer.wrapping_add(1);
        let interrupt = self.arm != Arm::Fired;
        self.arm = Arm::Fired;
        Posted::Written { interrupt }
    }

    /// Handles a doorbell with this consumer counter, which also arms the queue if `arm` is set.
    pub fn ring(&mut self, counter: u32, arm: bool) -> Rung {
        let advance = counter.wrapping_sub(self.consumer) & COUNTER_MASK;
        if advance > self.outstanding() && !self.ignore_overrun {
            return Rung::Ahead {
                producer: self.producer(),
            };
        }
        self.consumer = self.consumer.wrapping_add(advance);
        if !arm {
            return Rung::Taken { interrupt: false };
        }
        let interrupt = self.outstanding() != 0;
        self.arm = if interrupt { Arm::Fired } else { Arm::Armed };
        Rung::Taken { interrupt }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use driver::SharedMemory;

    fn queue(log_size: u32, oi: bool) -> (Eq, Iommu, SharedMemory) {
        let memory = SharedMemory::anonymous(4096).unwrap();
        let mut iommu = Iommu::default();
        iommu.set_bus_master(true);
        iommu.map(0x1000, memory.clone(), 0, 4096).unwrap();
        let buffer = QueueBuffer::new(&[0x1000], 0, 0, 64 << log_size).unwrap();
        (
            Eq::new(3, log_size, 5, 0, oi, 0, buffer, 0, 0),
            iommu,
            memory,
        )
    }

    #[test]
    fn the_owner_bit_follows_the_lap() {
        let (mut eq, mut iommu, memory) = queue(1, false);
        for entry in 0..2 {
            memory.store_u8(entry * 64 + 63, 1);
        }
        eq.post(&mut iommu, &[0; 64]);
        eq.post(&mut iommu, &[0; 64]);
        assert_eq!((memory.load_u8(63), memory.load_u8(127)), (0, 0));
        eq.ring(2, false);
        eq.post(&mut iommu, &[0; 64]);
        assert_eq!((memory.load_u8(63), memory.load_u8(127)), (1, 0));
    }

    #[test]
    fn an_unarmed_queue_is_silent_and_an_armed_one_fires_once() {
        let (mut eq, mut iommu, _memory) = queue(3, false);
        assert_eq!(
            eq.post(&mut iommu, &[0; 64]),
            Posted::Written { interrupt: false }
        );
        assert_eq!(eq.ring(1, true), Rung::Taken { interrupt: false });
        assert_eq!(
            eq.post(&mut iommu, &[0; 64]),
            Posted::Written { interrupt: true }
        );
        assert_eq!(
            eq.post(&mut iommu, &[0; 64]),
            Posted::Written { interrupt: false }
        );
    }

    #[test]
    fn arming_behind_the_producer_fires_at_once() {
        let (mut eq, mut iommu, _memory) = queue(3, false);
        eq.post(&mut iommu, &[0; 64]);
        assert_eq!(eq.ring(0, true), Rung::Taken { interrupt: true });
        assert_eq!(eq.arm(), Arm::Fired);
    }

    #[test]
    fn a_full_ring_overruns_unless_told_to_ignore_it() {
        let (mut eq, mut iommu, _memory) = queue(1, false);
        eq.post(&mut iommu, &[0; 64]);
        eq.post(&mut iommu, &[0; 64]);
        assert_eq!(eq.post(&mut iommu, &[0; 64]), Posted::Overrun);
        let (mut eq, mut iommu, _memory) = queue(1, true);
        for _ in 0..5 {
            assert!(matches!(
                eq.post(&mut iommu, &[0; 64]),
                Posted::Written { .. }
            ));
        }
    }

    #[test]
    fn a_counter_ahead_of_the_producer_is_not_taken() {
        let (mut eq, mut iommu, _memory) = queue(3, false);
        eq.post(&mut iommu, &[0; 64]);
        assert_eq!(eq.ring(2, true), Rung::Ahead { producer: 1 });
        assert_eq!(eq.consumer(), 0);
    }

    #[test]
    fn an_unmapped_ring_fails_the_queue() {
        let (mut eq, mut iommu, _memory) = queue(3, false);
        iommu.unmap(0x1000, 4096).unwrap();
        assert_eq!(eq.post(&mut iommu, &[0; 64]), Posted::Failed);
        assert!(eq.failed);
    }
}
