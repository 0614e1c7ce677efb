//! A send queue and a receive queue whose entries point at fixed slots of memory, for datagrams and frames.
//!
//! QP1 ([`crate::gsi`]) and the Ethernet port ([`crate::ethernet`]) each have such a pair of queues. A datagram or
//! frame to send is copied into a slot, and a received one is copied out of a slot. Both queues report to one
//! completion queue.
//!
//! ```text
//!   free_sends --send--> in flight --completion--> free_sends
//!                        posted   --completion--> copied out, then posted again at once
//! ```
//!
//! Slot numbers are the cookies. When all send slots are in flight, a send is refused. The protocols above repeat lost
//! messages, so no send is queued here.
//!
//! An entry that is no success means that its queue is in error, and both queues are then *broken*. The owner resets
//! the device's queues, and meanwhile nothing is sent. Only the entry with the cause is logged. The entries of the
//! requests behind it (`Flushed`) contain no cause, and there may be hundreds of them.
//!
//! If the device refuses the reset, the queues stay broken, and the owner tries again after a pause. Connections that
//! exist need neither QP1 nor the Ethernet port. A command that is not answered is not repeated, because all
//! instances would wait for its time limit again: the Ethernet port is then given up, and for QP1 the function is
//! stopped ([`ends_repairs`]).
//!
//! `armed` is true while an event is requested and not yet counted. [`SlotQueue::drain`] does not clear it, even if
//! it stops at its bound and entries remain. The arm request contained the index up to which entries had been read, so
//! the device has sent, or will send, the event for later entries. A repair clears it, because arming once more is
//! harmless and a lost event is not.
//!
//! Sending processes no completions, because received messages would need a buffer. QP1 has such a buffer, and
//! processes completions before it sends. The Ethernet port has none, and frees its send slots when it receives frames.

mod parking;

use std::time::Duration;

use driver::{DmaArena, DmaBuffer, DmaError, Instant};
use mlx_prm::CqeOpcode;
use rdma_types::{Access, DataSegment, QueueFull};

use crate::broken::{Broken, BrokenQueues};
use crate::completion::{self, Status};
use crate::cq::{Cq, Cqe};
use crate::device::Hca;
use crate::error::{CmdError, MlxError};
use crate::mkey::KeyRequest;
use crate::qp::{RecvQueue, SendQueue};
use crate::ring::Lent;
pub use parking::SlotQueueSnapshot;

/// Alignment of slots in bytes.
pub(crate) const SLOT_ALIGN: usize = 64;
/// Pause after a repair, whether it succeeded or failed. After each further failure the pause is twice as long, up to
/// [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(64);

/// Numbers and lengths of slots. The send slots come first in memory, and then the receive slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotSizes {
    pub sends: u32,
    /// Length of a send slot in bytes.
    pub send_bytes: usize,
    pub receives: u32,
    /// Length of a receive slot in bytes.
    pub recv_bytes: usize,
}

impl SlotSizes {
    /// Allocates the memory of all slots.
    pub(crate) fn alloc(&self, arena: &DmaArena) -> Result<DmaBuffer, DmaError> {
        arena.alloc(self.recv_offset(self.receives), SLOT_ALIGN)
    }

    fn send_offset(&self, slot: u32) -> usize {
        slot as usize * self.send_bytes.next_multiple_of(SLOT_ALIGN)
    }

    fn recv_offset(&self, slot: u32) -> usize {
        self.send_offset(self.sends) + slot as usize * self.recv_bytes.next_multiple_of(SLOT_ALIGN)
    }
}

/// Returns the request for the memory key of slots.
pub(crate) fn key_request(pd: u32, slots: &DmaBuffer) -> KeyRequest {
    KeyRequest {
        pd,
        address: slots.address(),
        bytes: slots.len() as u64,
        access: Access::LOCAL_READ | Access::LOCAL_WRITE,
        variant: 0,
        may_have_windows: false,
    }
}

/// Creates the memory key of slots. Returns its index, and the key.
pub(crate) fn create_key(
    hca: &mut Hca,
    pd: u32,
    slots: &DmaBuffer,
) -> Result<(u32, u32), MlxError> {
    crate::mkey::create(hca, &key_request(pd, slots), slots.iova())
}

/// Returns true if a repair that failed must not be repeated: it is unknown what the device did, or no command slot
/// became free in time. Instances would wait for the time limit again.
pub(crate) fn ends_repairs(error: &CmdError) -> bool {
    error.outcome_unknown() || matches!(error, CmdError::NoSlot { .. })
}

/// A received datagram or frame, in its receive slot.
pub(crate) struct Arrival<'a> {
    slots: &'a DmaBuffer,
    /// Offset in bytes of the slot in the memory of all slots.
    offset: usize,
    /// Length of the slot in bytes.
    slot_bytes: usize,
    /// Number of bytes that the device reports.
    pub bytes: u64,
    /// The entry's source queue pair number and routing header bits.
    pub flags_rqpn: u32,
}

impl Arrival<'_> {
    /// Copies bytes out of the slot, from `at` on.
    pub(crate) fn read(&self, at: usize, out: &mut [u8]) {
        // PANIC: the callers check lengths that the device reports.
        assert!(at + out.len() <= self.slot_bytes, "beyond the slot");
        self.slots.read_bytes(self.offset + at, out);
    }
}

/// A send queue and a receive queue with their slots and their completion queue.
pub(crate) struct SlotQueue {
    /// Name of the queues in messages.
    name: &'static str,
    cq: Cq,
    send: SendQueue,
    recv: RecvQueue,
    sizes: SlotSizes,
    slots: Lent<DmaBuffer>,
    lkey: u32,
    free_sends: Vec<u32>,
    armed: bool,
    broken: Broken,
    /// Earliest time of the next repair; `None` if the queues were given up.
    repair_at: Option<Instant>,
    /// Pause after the next repair that fails.
    pause: Duration,
}

impl SlotQueue {
    /// Makes the queues, without any receive posted. `slots` is memory of these sizes, and `lkey` its key. `all` are
    /// the function's broken queues.
    pub(crate) fn new(
        (name, all): (&'static str, BrokenQueues),
        cq: Cq,
        (send, recv): (SendQueue, RecvQueue),
        sizes: SlotSizes,
        (slots, lkey): (Lent<DmaBuffer>, u32),
    ) -> Self {
        Self {
            name,
            cq,
            send,
            recv,
            sizes,
            slots,
            lkey,
            free_sends: (0..sizes.sends).collect(),
            armed: false,
            broken: Broken::new(name, all),
            repair_at: Some(Instant(0)),
            pause: FIRST_PAUSE,
        }
    }

    /// Destroys the completion queue, and frees the slots. The caller has destroyed the device's queues and the key.
    ///
    /// # Errors
    /// Device refusal. The memory of the completion queue then stays allocated.
    pub(crate) fn destroy(mut self, hca: &mut Hca) -> Result<(), MlxError> {
        drop(self.slots.give_back());
        self.cq.destroy(hca)
    }

    /// Returns the completion queue.
    pub(crate) const fn cq(&self) -> &Cq {
        &self.cq
    }

    /// Returns whether a queue has failed and not been repaired since.
    pub(crate) const fn is_broken(&self) -> bool {
        self.broken.is_broken()
    }

    /// Returns the time from which broken queues are to be repaired; `None` if they are not broken, or were given up.
    pub(crate) fn repair_due(&self) -> Option<Instant> {
        self.repair_at.filter(|_| self.is_broken())
    }

    /// Notes that a repair has failed. The next one is due after a pause.
    pub(crate) fn repair_failed(&mut self, now: Instant) {
        self.repair_at = Some(now + self.pause);
        self.pause = MAX_PAUSE.min(2 * self.pause);
    }

    /// Notes that a repair has succeeded: the device's queues work again. If they break again at once, they are
    /// repaired after a pause.
    pub(crate) fn repaired(&mut self, now: Instant) {
        self.broken.set(false);
        self.armed = false;
        self.repair_at = Some(now + FIRST_PAUSE);
        self.pause = FIRST_PAUSE;
    }

    /// Gives the queues up: they are not repaired any more.
    pub(crate) const fn give_up(&mut self) {
        self.repair_at = None;
    }

    /// Returns whether the queues were given up.
    pub(crate) const fn is_given_up(&self) -> bool {
        self.repair_at.is_none()
    }

    /// Returns whether something that was sent is still in flight; false if the queues are broken.
    pub(crate) fn is_sending(&self) -> bool {
        self.send.outstanding() > 0 && !self.is_broken()
    }

    /// Counts a completion event. The completion queue must be armed again for the next event.
    pub(crate) fn notified(&mut self) {
        self.cq.sequence().count_event();
        self.armed = false;
    }

    /// Arms the completion queue, unless it is armed. If it returns true, entries may have come in meanwhile, and the
    /// caller drains once more.
    pub(crate) fn arm(&mut self) -> bool {
        if self.armed {
            return false;
        }
        self.armed = true;
        self.cq.arm(false);
        true
    }

    fn segment(&self, offset: usize, bytes: usize) -> DataSegment {
        DataSegment {
            lmr_context: self.lkey,
            address: self.slots.get().address() + offset as u64,
            // PANIC: a slot is as long as a frame, so its length fits in 32 bits.
            bytes: u32::try_from(bytes).expect("a slot's size"),
        }
    }

    /// Posts a receive for each slot.
    pub(crate) fn post_receives(&mut self) {
        for slot in 0..self.sizes.receives {
            self.post_receive(slot);
        }
    }

    /// Posts the receive of a slot. The doorbell record alone makes it visible to the device: no register needs to be
    /// written.
    fn post_receive(&mut self, slot: u32) {
        let segment = self.segment(self.sizes.recv_offset(slot), self.sizes.recv_bytes);
        let posted = self
            .recv
            .post(core::iter::once(segment), u64::from(slot), false);
        // PANIC: the queue has as many entries as there are slots, and the slot's last entry is complete.
        assert!(posted.is_ok(), "as many entries as slots");
    }

    /// Copies `bytes` into a free slot and has `post` post it, with this segment and this cookie.
    ///
    /// # Errors
    /// [`QueueFull`]: all send slots are in flight, or the queues are broken.
    pub(crate) fn send(
        &mut self,
        bytes: &[u8],
        post: impl FnOnce(&mut SendQueue, DataSegment, u64) -> Result<(), QueueFull>,
    ) -> Result<(), QueueFull> {
        if self.is_broken() {
            return Err(QueueFull);
        }
        // PANIC: the callers' messages are no longer than the slots that they asked for.
        assert!(bytes.len() <= self.sizes.send_bytes, "beyond the slot");
        let slot = self.free_sends.pop().ok_or(QueueFull)?;
        let offset = self.sizes.send_offset(slot);
        self.slots.get().write_bytes(offset, bytes);
        let segment = self.segment(offset, bytes.len());
        post(&mut self.send, segment, u64::from(slot)).inspect_err(|_| self.free_sends.push(slot))
    }

    /// Processes completions, at most one queue capacity of entries, and passes each received datagram or frame to
    /// `each`. Entries for which `is_ours` returns false are ignored.
    pub(crate) fn drain(
        &mut self,
        is_ours: impl Fn(&Cqe) -> bool,
        mut each: impl FnMut(&Arrival<'_>),
    ) {
        for _ in 0..self.cq.capacity() {
            let Some((entry, flags_rqpn)) = self.cq.poll_datagram() else {
                return;
            };
            if is_ours(&entry) {
                self.take(&entry, flags_rqpn, &mut each);
            } else {
                tracing::warn!(
                    ?entry,
                    "an entry of a foreign queue in the completion queue of {}; ignored",
                    self.name
                );
            }
        }
    }

    fn take(&mut self, entry: &Cqe, flags_rqpn: u32, each: &mut impl FnMut(&Arrival<'_>)) {
        let completion = if entry.is_request() {
            let failure = (entry.opcode() == CqeOpcode::REQ_ERR).then(|| entry.syndrome());
            self.send.complete(entry.wqe_counter(), failure)
        } else {
            entry
                .receive_outcome()
                .and_then(|outcome| self.recv.complete(entry.wqe_counter(), outcome))
        };
        let Some(completion) = completion else { return };
        if completion.status != Status::Success {
            if completion.status != Status::Flushed {
                let (syndrome, vendor) = completion.detail.syndrome();
                tracing::warn!(
                    syndrome,
                    vendor,
                    request = completion.request,
                    text = completion::explain(syndrome, vendor),
                    "{} failed",
                    self.name
                );
            }
            self.broken.set(true);
            return;
        }
        // PANIC: the cookie is a slot number, because we posted it.
        let slot = u32::try_from(completion.cookie).expect("a slot number");
        if completion.request {
            self.free_sends.push(slot);
            return;
        }
        each(&Arrival {
            slots: self.slots.get(),
            offset: self.sizes.recv_offset(slot),
            slot_bytes: self.sizes.recv_bytes,
            bytes: completion.transferred,
            flags_rqpn,
        });
        self.post_receive(slot);
    }

    /// Forgets everything in flight, because the device's queues are in RESET. The queues stay broken until
    /// [`SlotQueue::repaired`].
    pub(crate) fn reset(&mut self) {
        self.cq.clean(|_| true);
        self.send.reset();
        self.recv.reset();
        self.free_sends = (0..self.sizes.sends).collect();
    }
}

impl core::fmt::Debug for SlotQueue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SlotQueue")
            .field("send", &self.send)
            .field("recv", &self.recv)
            .field("cq", &self.cq)
            .field("broken", &self.is_broken())
            .finish_non_exhaustive()
    }
}
