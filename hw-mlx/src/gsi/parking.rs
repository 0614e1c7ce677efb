//! QP1 of a function that is handed over to another process.
//!
//! Datagrams that come meanwhile are in the receive slots, as many as there are slots. Datagrams in flight were sent
//! once; the protocols above repeat lost ones.

use mlx_prm::Opcode;
use rdma_types::Qpn;

use super::{DroppedMads, Gsi, NAME, RECEIVES, ReceivedMad, SENDS, SLOTS, facts, sizes};
use crate::bounds::MAX_COUNT;
use crate::cq::Cq;
use crate::device::{Hca, ParkingHca};
use crate::error::{ParkError, ResumeError};
use crate::mkey;
use crate::qp::{self, RecvQueue, SendQueue, control};
use crate::ring::{RingMemory, RingSnapshot};
use crate::slot_queue::{self, SlotQueue, SlotQueueSnapshot};

/// QP1.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct GsiSnapshot {
    /// The device's number of the queue pair.
    pub qpn: u32,
    /// Protection domain.
    pub pd: u32,
    /// Number of the doorbell page: that of an instance, or of one that has ended.
    pub uar: u32,
    /// Index of the key of the slots.
    pub mkey_index: u32,
    /// Rings and doorbell record.
    pub memory: RingSnapshot,
    /// The queues.
    pub queue: SlotQueueSnapshot,
    /// Datagrams that were received and not fetched, oldest first.
    pub received: Vec<ReceivedMad>,
    /// Number of datagrams that were dropped.
    pub dropped: u64,
    /// Number of these that were reported.
    pub reported_drops: u64,
}

impl Gsi {
    /// Describes QP1 for another process. Its memory is the other process's from then on.
    ///
    /// # Errors
    /// The unchanged QP1, and [`ParkError::Broken`]: it has failed since the quiet point, and is not repaired
    /// ([`Gsi::repair_due`]).
    pub fn park(self, at_quiet_point: &ParkingHca) -> Result<GsiSnapshot, Box<(Self, ParkError)>> {
        let Self {
            queue,
            mut memory,
            facts,
            qpn,
            mkey_index,
            received,
            dropped,
            reported_drops,
        } = self;
        let record = &memory.get().record;
        let queue = match queue.park(at_quiet_point, [record, record]) {
            Ok(queue) => queue,
            Err(refused) => {
                let (queue, error) = *refused;
                let unchanged = Self {
                    queue,
                    memory,
                    facts,
                    qpn,
                    mkey_index,
                    received,
                    dropped,
                    reported_drops,
                };
                return Err(Box::new((unchanged, error)));
            }
        };
        memory.returned();
        Ok(GsiSnapshot {
            qpn: qpn.get(),
            pd: facts.pd,
            uar: facts.uar,
            mkey_index,
            memory: memory.get().snapshot(),
            queue,
            received: received.into(),
            dropped: dropped.get(),
            reported_drops,
        })
    }

    /// Makes QP1 again, and compares it with the device's. Nothing is posted. The caller counts the events of its
    /// completion queue next ([`Hca::next_shared_completion`], [`Gsi::notified`]), and then receives.
    ///
    /// # Errors
    /// [`ResumeError`]: numbers of the snapshot contradict each other or what is in memory, the memory is not there, or
    /// the device's objects are others or count differently.
    pub fn resume(hca: &mut Hca, snapshot: &GsiSnapshot) -> Result<Self, ResumeError> {
        let GsiSnapshot {
            qpn,
            pd,
            uar,
            mkey_index,
            ref memory,
            ref queue,
            ref received,
            dropped,
            reported_drops,
        } = *snapshot;
        let (send_sizes, recv_sizes) = sizes()?;
        let are_sizes = queue.send.sizes == send_sizes && queue.recv.sizes == recv_sizes;
        let is_possible = qpn.max(pd) <= 0xff_ffff
            && received.len() <= RECEIVES as usize
            && dropped <= MAX_COUNT
            && reported_drops <= dropped;
        if !are_sizes || !is_possible {
            return Err(ResumeError::snapshot(
                NAME,
                format!(
                    "QPN {qpn:#x}, PD {pd:#x}, {SENDS} and {RECEIVES} slots for {:?} and {:?}, {} datagrams received, {dropped} dropped, {reported_drops} of them reported",
                    queue.send.sizes,
                    queue.recv.sizes,
                    received.len()
                ),
            ));
        }
        let doorbells = hca.doorbells_at(NAME, uar)?;
        let slots = SLOTS.claim(hca.arena(), queue.slots)?;
        let key = slot_queue::key_request(pd, slots.get());
        let slots = mkey::resume(hca, mkey_index, &key, slots)?;
        let cq = Cq::resume_on(hca, &doorbells, uar, &queue.cq)?;
        let memory = RingMemory::resume(hca.arena(), memory)?;
        let RingMemory { ring, record, .. } = memory.get();
        let send = SendQueue::resume(
            &queue.send,
            (ring, recv_sizes.bytes()),
            record,
            &doorbells,
            (qpn, false),
        )?;
        let recv = RecvQueue::resume(&queue.recv, ring, record, qpn)?;
        let device = control::DeviceFacts {
            uar,
            ..control::DeviceFacts::of(hca)
        };
        let facts = facts(
            &device,
            pd,
            cq.cqn(),
            (&send_sizes, &recv_sizes),
            memory.get(),
        );
        let number = Qpn::new(qpn);
        qp::check(
            hca,
            number,
            memory.get(),
            (&facts, false, None),
            (&send, &recv),
            (queue.send.announced, queue.recv.announced),
        )?;
        let lkey = mkey_index << 8;
        let name = (NAME, hca.broken_queues());
        let queue = SlotQueue::resume(name, cq, (send, recv), SLOTS, (slots, lkey), queue)?;
        hca.count_resumed(Opcode::CREATE_QP, qpn)?;
        Ok(Self {
            queue,
            memory,
            facts,
            qpn: number,
            mkey_index,
            received: received.iter().cloned().collect(),
            dropped: DroppedMads::of(dropped),
            reported_drops,
        })
    }
}
