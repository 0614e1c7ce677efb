//! Queues with slots of a function that is handed over to another process.
//!
//! The cookies are slot numbers, so they say which send slots are free. Each receive slot is posted, and its entry
//! points at it.

use std::collections::BTreeSet;

use driver::{DmaArena, DmaBuffer, Instant, Iova};
use rdma_types::DataSegment;

use super::{FIRST_PAUSE, SlotQueue, SlotSizes};
use crate::broken::{Broken, BrokenQueues};
use crate::cq::{Cq, CqSnapshot};
use crate::device::ParkingHca;
use crate::error::{ParkError, ResumeError};
use crate::qp::{RecvQueue, RecvQueueSnapshot, SendQueue, SendQueueSnapshot};
use crate::ring::Lent;

/// Name of the table in errors.
const TABLE: &str = "slots";

/// A send queue and a receive queue with slots, and their completion queue.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct SlotQueueSnapshot {
    /// The completion queue.
    pub cq: CqSnapshot,
    /// The send queue. Cookies are numbers of send slots.
    pub send: SendQueueSnapshot,
    /// The receive queue. Cookies are numbers of receive slots, and each is there once.
    pub recv: RecvQueueSnapshot,
    /// I/O address of the slots.
    pub slots: u64,
    /// True if an event was requested that was not counted yet.
    pub is_armed: bool,
}

impl SlotSizes {
    /// Claims the memory of all slots. The device uses it.
    pub(crate) fn claim(
        &self,
        arena: &DmaArena,
        iova: u64,
    ) -> Result<Lent<DmaBuffer>, ResumeError> {
        let slots = arena.claim(Iova(iova), self.recv_offset(self.receives));
        let slots = slots.map_err(ResumeError::of_memory(TABLE))?;
        Ok(Lent::new(slots, arena.downgrade()))
    }
}

impl SlotQueue {
    /// Describes the queues for another process. `send_record` and `recv_record` are their doorbell records. The memory
    /// is the other process's from then on.
    ///
    /// # Errors
    /// The unchanged queues, and [`ParkError::Broken`]: they have failed, and were not repaired.
    pub(crate) fn park(
        mut self,
        at_quiet_point: &ParkingHca,
        [send_record, recv_record]: [&DmaBuffer; 2],
    ) -> Result<SlotQueueSnapshot, Box<(Self, ParkError)>> {
        if self.is_broken() {
            let error = ParkError::Broken { queue: self.name };
            return Err(Box::new((self, error)));
        }
        self.slots.returned();
        Ok(SlotQueueSnapshot {
            send: self.send.snapshot(send_record),
            recv: self.recv.snapshot(recv_record),
            slots: self.slots.get().iova().0,
            is_armed: self.armed,
            cq: self.cq.park(at_quiet_point),
        })
    }

    /// Makes the queues again. `slots` is their memory and `lkey` its key.
    ///
    /// # Errors
    /// The cookies are no slots, or the entries of the receive queue point elsewhere.
    pub(crate) fn resume(
        (name, all): (&'static str, BrokenQueues),
        cq: Cq,
        (send, recv): (SendQueue, RecvQueue),
        sizes: SlotSizes,
        (slots, lkey): (Lent<DmaBuffer>, u32),
        snapshot: &SlotQueueSnapshot,
    ) -> Result<Self, ResumeError> {
        let refused = |what: String| ResumeError::snapshot(TABLE, what);
        let mut free_sends: BTreeSet<u32> = (0..sizes.sends).collect();
        for request in &snapshot.send.requests {
            let slot = u32::try_from(request.cookie).ok();
            if !slot.is_some_and(|slot| free_sends.remove(&slot)) || request.is_suppressed {
                return Err(refused(format!("{request:x?} of {name}")));
            }
        }
        let armed = snapshot.is_armed && cq.is_armed();
        let queue = Self {
            name,
            cq,
            send,
            recv,
            sizes,
            slots,
            lkey,
            free_sends: free_sends.into_iter().collect(),
            armed,
            broken: Broken::new(name, all),
            // The queues work, so they were not given up. If they fail, the first repair is due at once.
            repair_at: Some(Instant(0)),
            pause: FIRST_PAUSE,
        };
        let posted = queue.recv.posted().unwrap_or_default();
        let mut free: BTreeSet<u32> = (0..sizes.receives).collect();
        for receive in &posted {
            let slot = u32::try_from(receive.cookie).ok();
            let slot = slot.filter(|slot| free.remove(slot));
            let is_its = |segments: &[DataSegment]| {
                slot.is_some_and(|slot| {
                    segments == [queue.segment(sizes.recv_offset(slot), sizes.recv_bytes)]
                })
            };
            if !is_its(&receive.segments) {
                return Err(refused(format!("{receive:x?} of {name}")));
            }
        }
        if !free.is_empty() {
            return Err(refused(format!(
                "{} receive slots of {name} are not posted",
                free.len()
            )));
        }
        Ok(queue)
    }
}
