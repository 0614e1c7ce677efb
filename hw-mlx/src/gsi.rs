//! QP1: the queue pair for connection management.
//!
//! Management datagrams (MADs, 256 bytes) travel as UD Sends between the queue pairs numbered 1 of two ports. Over RoCE
//! the function has a special service type for this queue pair. The device gives the queue pair an ordinary number,
//! but its packets carry the number 1 (PRM "QP1"; drivers/infiniband/hw/mlx5/gsi.c of Linux).
//!
//! Queues (module `slot_queue`): each WQE of the send ring points at a slot of 256 bytes, and each entry of the
//! receive ring points at a slot of 40 + 256 bytes.
//!
//! The first 40 bytes of a receive are the routing header: an IPv6 header (or the GRH, which has the same form), or
//! 20 undefined bytes and an IPv4 header. The header contains the sender's address and ours. The completion entry
//! identifies the kind of header. The device does not report the sender's MAC, which is resolved like a destination's.
//!
//! A datagram's completion fails only if the queue pair failed. The queue pair is then taken through RESET to RTS
//! again and everything in flight is discarded, see [`Gsi::repair`].

mod parking;

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use driver::Instant;
use rdma_types::{MadAddress, Path, Qpn, QueueFull};
use static_assertions::const_assert;

use crate::caps::{LEAST_LOG_CQ_ENTRIES, LEAST_LOG_QP_ENTRIES};
use crate::cq::{ArmSequence, Cq};
use crate::device::Hca;
use crate::error::MlxError;
use crate::mad::MAD_BYTES;
use crate::qp::context::{GSI_Q_KEY, HOP_LIMIT, QpFacts, ReceiveSource, udp_source_port};
use crate::qp::{RecvQueue, RecvSizes, SendQueue, SendSizes, control};
use crate::ring::{Lent, RingMemory};
pub use crate::slot_queue::SlotQueueSnapshot;
use crate::slot_queue::{self, Arrival, SlotQueue, SlotSizes};
use crate::uar::Doorbells;
use crate::wqe::AddressVector;
use mlx_prm::ServiceType;
pub use parking::GsiSnapshot;

/// Bytes of the routing header before the datagram.
pub const HEADER_BYTES: usize = 40;
/// Offset of an IPv4 header in the routing header.
const IPV4_AT: usize = 20;
/// ECT(0) bit of the traffic class, with which the network may mark a packet instead of dropping it (RFC 3168), and the
/// mask of both ECN bits. The bit is set on all datagrams of RoCE v2 (Linux `ah.c` `MLX5_ECN_ENABLED`).
const ECN_CAPABLE: u8 = 0b10;
const ECN_MASK: u8 = 0b11;

/// Maximum number of sent datagrams in flight: as many as in the kernel (Linux `IB_MAD_QP_SEND_SIZE`).
const SENDS: u32 = 128;
/// Maximum time for which `destroy` waits for sent datagrams in flight.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);
/// Number of datagrams that may arrive between two polls: as many as in the kernel (Linux `IB_MAD_QP_RECV_SIZE`). A
/// peer that opens or ends this many connections at once causes no timeout.
const RECEIVES: u32 = 512;
/// Number of segments for which the send WQEs are sized. Such a WQE has five units in two blocks: a datagram's control
/// segment, three units of address vector and one data segment.
const SEND_SEGMENTS: u32 = 3;
/// Slots of QP1.
const SLOTS: SlotSizes = SlotSizes {
    sends: SENDS,
    send_bytes: MAD_BYTES,
    receives: RECEIVES,
    recv_bytes: HEADER_BYTES + MAD_BYTES,
};

/// Returns the traffic class of our datagrams on a path.
#[must_use]
pub(crate) const fn traffic_class(path: &Path) -> u8 {
    path.traffic_class & !ECN_MASK | ECN_CAPABLE
}

// The completion queue keeps one entry free. A send WQE takes two blocks.
const_assert!(SENDS + RECEIVES < 1 << LEAST_LOG_CQ_ENTRIES);
const_assert!(RECEIVES <= 1 << LEAST_LOG_QP_ENTRIES);
const_assert!(2 * SENDS <= 1 << LEAST_LOG_QP_ENTRIES);

/// Sender and destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Route {
    /// Source address; an IPv4 address is `::ffff:a.b.c.d`.
    pub source: [u8; 16],
    /// Destination address, in the same form: one of our addresses.
    pub destination: [u8; 16],
    /// Traffic class.
    pub traffic_class: u8,
}

/// Kind of the header in the first 40 bytes, as the device reports it (bits 25:24 of the entry's `flags_rqpn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderKind {
    /// RoCE v1: a GRH.
    Grh,
    /// RoCE v2 over IPv6.
    Ipv6,
    /// RoCE v2 over IPv4: the header is in the last 20 of the 40 bytes.
    Ipv4,
}

impl HeaderKind {
    /// Decodes the header kind in `flags_rqpn`. Returns `None` for the undefined value 3.
    #[must_use]
    pub const fn of(flags_rqpn: u32) -> Option<Self> {
        match flags_rqpn >> 24 & 3 {
            0 => Some(Self::Grh),
            1 => Some(Self::Ipv6),
            2 => Some(Self::Ipv4),
            _ => None,
        }
    }
}

impl Route {
    /// Decodes the routing header. Returns `None` if the header's IP version contradicts `kind`: the header comes from
    /// the peer, and the kind from the device.
    #[must_use]
    pub fn parse(header: &[u8; HEADER_BYTES], kind: HeaderKind) -> Option<Self> {
        let address = |at: usize| -> [u8; 16] { core::array::from_fn(|n| header[at + n]) };
        let mapped = |at: usize| -> [u8; 16] {
            core::array::from_fn(|n| match n {
                0..=9 => 0,
                10 | 11 => 0xff,
                _ => header[at + n - 12],
            })
        };
        match kind {
            HeaderKind::Grh | HeaderKind::Ipv6 if header[0] >> 4 == 6 => Some(Self {
                source: address(8),
                destination: address(24),
                traffic_class: header[0] << 4 | header[1] >> 4,
            }),
            HeaderKind::Ipv4 if header[IPV4_AT] >> 4 == 4 => Some(Self {
                source: mapped(IPV4_AT + 12),
                destination: mapped(IPV4_AT + 16),
                traffic_class: header[IPV4_AT + 1],
            }),
            HeaderKind::Grh | HeaderKind::Ipv6 | HeaderKind::Ipv4 => None,
        }
    }
}

/// A datagram that arrived.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReceivedMad {
    /// Its sender and destination.
    pub route: Route,
    /// Number of the sender's queue pair.
    pub qpn: Qpn,
    /// The 256 bytes of the datagram.
    #[serde(with = "serde_bytes")]
    pub mad: [u8; MAD_BYTES],
}

/// Counter of the datagrams that QP1 dropped since it was created, because too many others waited for [`Gsi::receive`].
/// Any thread may read it while another thread uses the [`Gsi`].
#[derive(Clone, Debug, Default)]
pub struct DroppedMads(Arc<AtomicU64>);

impl DroppedMads {
    /// Makes a counter that begins at this number.
    fn of(number: u64) -> Self {
        Self(Arc::new(AtomicU64::new(number)))
    }

    /// Returns the number.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn count_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the sizes of QP1's queues.
fn sizes() -> Result<(SendSizes, RecvSizes), MlxError> {
    let send = SendSizes::new(SENDS, SEND_SEGMENTS, 0).ok_or(MlxError::QueueTooLarge {
        queue: "send queue of QP1",
        entries: SENDS,
        segments: Some(SEND_SEGMENTS),
    })?;
    let recv = RecvSizes::new(RECEIVES, 1).ok_or(MlxError::QueueTooLarge {
        queue: "receive queue of QP1",
        entries: RECEIVES,
        segments: Some(1),
    })?;
    Ok((send, recv))
}

/// Returns the parameters of QP1, both of whose queues report to one completion queue.
fn facts(
    device: &control::DeviceFacts,
    pd: u32,
    cqn: u32,
    (send, recv): (&SendSizes, &RecvSizes),
    memory: &RingMemory,
) -> QpFacts {
    QpFacts {
        service: ServiceType::QP1,
        pd,
        uar: device.uar,
        cqn_send: cqn,
        cqn_receive: cqn,
        // QP1's completion queue has no other queue pair, so no owner number is needed to find the queue pair.
        user_index: 0xff_ffff,
        receive: ReceiveSource::Own {
            log_entries: recv.entries.ilog2(),
            log_stride: recv.stride.ilog2(),
        },
        log_send_blocks: send.ring_blocks.ilog2(),
        log_page: memory.log_page,
        record: memory.record_address(),
        ts_format: device.ts_format,
        log_max_message: device.log_max_message,
        log_max_reads_in: 0,
        log_max_reads_out: 0,
        atomics: false,
        counter_set: device.counter_set,
    }
}

/// Name of the queues in messages.
const NAME: &str = "QP1";

/// QP1 of a function.
pub struct Gsi {
    queue: SlotQueue,
    memory: Lent<RingMemory>,
    facts: QpFacts,
    qpn: Qpn,
    mkey_index: u32,
    received: VecDeque<ReceivedMad>,
    /// Number of datagrams dropped because [`RECEIVES`] others were in `received`.
    dropped: DroppedMads,
    /// Value of `dropped` at the last call of [`Gsi::newly_dropped`].
    reported_drops: u64,
}

impl Gsi {
    /// Creates QP1 and brings it to RTS with all receives posted. `pd` is a protection domain that only QP1 uses.
    ///
    /// On failure, the objects created so far are not destroyed, because the caller then stops the function.
    ///
    /// # Errors
    /// No memory, or device refusal.
    pub fn create(hca: &mut Hca, doorbells: &Doorbells, pd: u32) -> Result<Self, MlxError> {
        let (send_sizes, recv_sizes) = sizes()?;
        // All instances share QP1, so its events go to the shared event queue.
        let eqn = hca.shared_eqn();
        let cq = Cq::create_on(hca, eqn, doorbells, SENDS + RECEIVES)?;
        let slots = Lent::new(SLOTS.alloc(hca.arena())?, hca.arena().downgrade());
        let (mkey_index, lkey) = slot_queue::create_key(hca, pd, slots.get())?;
        let memory =
            RingMemory::alloc_for_good(hca.arena(), recv_sizes.bytes() + send_sizes.bytes())?;
        let device = control::DeviceFacts::of(hca);
        let facts = facts(&device, pd, cq.cqn(), (&send_sizes, &recv_sizes), &memory);
        let (qpn, memory) = control::create_qp(hca, &facts, memory)?;
        let RingMemory { ring, record, .. } = memory.get();
        let send_base = recv_sizes.bytes();
        let send = SendQueue::new(send_sizes, ring, send_base, record, doorbells, qpn.get());
        let recv = RecvQueue::new(recv_sizes, ring, record, qpn.get());
        let mut gsi = Self {
            queue: SlotQueue::new(
                (NAME, hca.broken_queues()),
                cq,
                (send, recv),
                SLOTS,
                (slots, lkey),
            ),
            memory,
            facts,
            qpn,
            mkey_index,
            received: VecDeque::new(),
            dropped: DroppedMads::default(),
            reported_drops: 0,
        };
        gsi.start(hca)?;
        Ok(gsi)
    }

    /// Returns the device's number of the queue pair; on the wire it is 1.
    #[must_use]
    pub fn number(&self) -> Qpn {
        self.qpn
    }

    /// Takes QP1 from RESET to RTS, with all receives posted.
    fn start(&mut self, hca: &mut Hca) -> Result<(), MlxError> {
        control::reset_to_init(hca, self.qpn, &self.facts.reset_to_init())?;
        self.queue.post_receives();
        control::init_to_rtr(hca, self.qpn, &self.facts.gsi_init_to_rtr(), 0)?;
        control::rtr_to_rts(hca, self.qpn, &self.facts.gsi_rtr_to_rts())?;
        Ok(())
    }

    /// Resets QP1 after it failed. Does nothing if it did not fail, if the device is dead, or before
    /// [`Gsi::repair_due`].
    ///
    /// # Errors
    /// The device refused a command or did not take it in: QP1 stays broken, and is to be repaired again after a pause.
    /// Or a command was not answered as it should be, or found no free slot in time: the function is stopped.
    pub fn repair(&mut self, hca: &mut Hca) -> Result<(), MlxError> {
        if self.repair_due().is_none_or(|due| hca.now() < due) || hca.is_dead() {
            return Ok(());
        }
        tracing::warn!(qpn = self.qpn.get(), "QP1 broke; it is reset");
        let repaired = self.restart(hca);
        match &repaired {
            Err(MlxError::Cmd(error)) if slot_queue::ends_repairs(error) => {
                if !hca.is_dead() {
                    hca.stop("a command for QP1 was not answered");
                }
            }
            Err(_) => self.queue.repair_failed(hca.now()),
            Ok(()) => self.queue.repaired(hca.now()),
        }
        repaired
    }

    fn restart(&mut self, hca: &mut Hca) -> Result<(), MlxError> {
        control::to_reset_at_last(hca, self.qpn).map(drop)?;
        self.queue.reset();
        self.start(hca)
    }

    /// Returns the time from which QP1 is to be repaired; `None` if it works.
    #[must_use]
    pub fn repair_due(&self) -> Option<Instant> {
        self.queue.repair_due()
    }

    /// Returns whether a sent datagram is still in flight.
    pub fn is_sending(&mut self) -> bool {
        self.drain();
        self.queue.is_sending()
    }

    /// Destroys QP1 and its other objects.
    ///
    /// # Errors
    /// Device refusal. The memory of objects that the device still has stays allocated.
    pub fn destroy(mut self, hca: &mut Hca) -> Result<(), MlxError> {
        // Datagrams to our peers may be in flight: RESET would drop them.
        let patience = hca.now() + DRAIN_TIMEOUT;
        while self.is_sending() && hca.now() < patience && hca.wait(patience).is_ok() {}
        let _in_reset = control::to_reset_at_last(hca, self.qpn)?;
        control::destroy_qp(hca, self.qpn)?;
        drop(self.memory.give_back());
        crate::mkey::destroy(hca, self.mkey_index)?;
        self.queue.destroy(hca)
    }

    /// Returns the number of QP1's completion queue. Completion events of QP1 name this number.
    #[must_use]
    pub fn cqn(&self) -> u32 {
        self.queue.cq().cqn()
    }

    /// Returns the arm sequence of QP1's completion queue, which counts its completion events.
    #[must_use]
    pub fn sequence(&self) -> ArmSequence {
        self.queue.cq().sequence()
    }

    /// Counts a completion event of QP1's completion queue. The queue must be armed again for the next event.
    pub fn notified(&mut self) {
        self.queue.notified();
    }

    /// Sends a datagram to `to`, through the station on the link that has this MAC (the peer or a gateway).
    ///
    /// # Errors
    /// [`QueueFull`] when all slots are in flight, or the queue pair is broken.
    pub fn send(
        &mut self,
        to: &MadAddress,
        mac: [u8; 6],
        mad: &[u8; MAD_BYTES],
    ) -> Result<(), QueueFull> {
        self.drain();
        let path = &to.path;
        let vector = AddressVector {
            q_key: GSI_Q_KEY,
            priority: path.priority & 7,
            qpn: to.qpn,
            udp_source_port: udp_source_port(path.flow_label, Qpn::GSI, to.qpn),
            mac,
            traffic_class: traffic_class(path),
            hop_limit: path.hop_limit,
            source_gid_index: path.source_gid_index,
            flow_label: path.flow_label & 0xf_ffff,
            gid: path.gid,
        };
        self.queue.send(mad, |queue, segment, cookie| {
            queue.post_datagram(&vector, segment, cookie)
        })
    }

    /// Returns the next received datagram. If there is none, arms the completion queue, so that the next datagram
    /// raises an event.
    pub fn receive(&mut self) -> Option<ReceivedMad> {
        self.drain();
        if self.received.is_empty() && self.queue.arm() {
            self.drain();
        }
        self.received.pop_front()
    }

    /// Returns the counter of dropped datagrams, for readers that have no access to QP1 itself.
    #[must_use]
    pub const fn dropped(&self) -> &DroppedMads {
        &self.dropped
    }

    /// Returns the number of datagrams that were dropped since the last call of this function.
    pub fn newly_dropped(&mut self) -> u64 {
        let dropped = self.dropped.get();
        dropped - core::mem::replace(&mut self.reported_drops, dropped)
    }

    /// Processes completions, at most one queue capacity of entries. Later entries wait for the next call. Drops
    /// datagrams while [`RECEIVES`] of them wait to be fetched.
    fn drain(&mut self) {
        let (qpn, received, dropped) = (self.qpn, &mut self.received, &self.dropped);
        self.queue.drain(
            |entry| entry.qpn() == qpn,
            |arrival| {
                let Some(mad) = ReceivedMad::read(arrival) else {
                    return;
                };
                if received.len() < RECEIVES as usize {
                    received.push_back(mad);
                } else {
                    dropped.count_one();
                }
            },
        );
    }
}

impl ReceivedMad {
    /// Copies a received datagram out of its slot. Returns `None` if its length or its routing header is invalid.
    fn read(arrival: &Arrival<'_>) -> Option<Self> {
        let Arrival {
            bytes, flags_rqpn, ..
        } = *arrival;
        if bytes != (HEADER_BYTES + MAD_BYTES) as u64 {
            tracing::debug!(bytes, "a datagram that is no MAD; dropped");
            return None;
        }
        let mut header = [0; HEADER_BYTES];
        let mut mad = [0; MAD_BYTES];
        arrival.read(0, &mut header);
        arrival.read(HEADER_BYTES, &mut mad);
        let route = HeaderKind::of(flags_rqpn).and_then(|kind| Route::parse(&header, kind));
        let Some(route) = route else {
            tracing::debug!(?header, "a MAD without a readable routing header; dropped");
            return None;
        };
        Some(Self {
            route,
            qpn: Qpn::masked(flags_rqpn),
            mad,
        })
    }

    /// Returns the path back to the sender, from our GID at `source_gid_index`, in frames with this VLAN priority.
    #[must_use]
    pub fn sender(&self, source_gid_index: u8, priority: u8) -> MadAddress {
        MadAddress {
            path: Path {
                source_gid_index,
                gid: self.route.source,
                hop_limit: HOP_LIMIT,
                // The ECN bits, which the network may have set, are not part of the path back.
                traffic_class: self.route.traffic_class & !ECN_MASK,
                flow_label: 0,
                priority,
            },
            qpn: self.qpn,
        }
    }
}

impl core::fmt::Debug for Gsi {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Gsi")
            .field("qpn", &format_args!("{}", self.qpn))
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_header_names_both_ends() {
        let mut header = [0; HEADER_BYTES];
        header[0] = 0x6a;
        header[1] = 0xb0;
        for n in 0..16_u8 {
            header[8 + usize::from(n)] = 0x10 + n;
            header[24 + usize::from(n)] = 0x40 + n;
        }
        let route = Route::parse(&header, HeaderKind::Ipv6).unwrap();
        assert_eq!(route.source[0], 0x10);
        assert_eq!(route.destination[15], 0x4f);
        assert_eq!(route.traffic_class, 0xab);
        assert_eq!(Route::parse(&header, HeaderKind::Grh), Some(route));
    }

    #[test]
    fn an_ipv4_header_is_right_aligned_and_its_addresses_become_mapped_ones() {
        let mut header = [0xee; HEADER_BYTES];
        header[20] = 0x45;
        header[21] = 0x60;
        header[32..40].copy_from_slice(&[192, 168, 0, 1, 10, 0, 0, 2]);
        let route = Route::parse(&header, HeaderKind::Ipv4).unwrap();
        assert_eq!(
            route.source,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 0, 1]
        );
        assert_eq!(
            route.destination,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2]
        );
        assert_eq!(route.traffic_class, 0x60);
    }

    #[test]
    fn a_header_of_another_kind_than_announced_is_refused() {
        let header = [0; HEADER_BYTES];
        for kind in [HeaderKind::Grh, HeaderKind::Ipv6, HeaderKind::Ipv4] {
            assert_eq!(Route::parse(&header, kind), None);
        }
        assert_eq!(HeaderKind::of(3 << 24), None);
        assert_eq!(
            HeaderKind::of(1 << 28 | 2 << 24 | 1),
            Some(HeaderKind::Ipv4)
        );
    }
}
