//! REP, the reply that accepts a request (IBTA volume 1, chapter 12, "REP Message Contents").

use std::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mad::{HEADER_BYTES, MAD_BYTES, Mad, U24, bits, body, body_mut};
use crate::provider::{Psn, Qpn};

/// Private data bytes of a REP.
pub const PRIVATE_DATA_BYTES: usize = 196;

#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RepLayout {
    local_comm_id: U32,
    remote_comm_id: U32,
    local_q_key: U32,
    local_qpn: U24,
    rsvd_0f: u8,
    local_eecn: U24,
    rsvd_13: u8,
    starting_psn: U24,
    rsvd_17: u8,
    responder_resources: u8,
    initiator_depth: u8,
    /// Target ACK delay in bits 7:3, failover accepted in 2:1, end-to-end flow control in 0.
    delay_failover_flow: u8,
    /// RNR retry count in bits 7:5, SRQ in 4.
    rnr_srq: u8,
    local_ca_guid: U64,
    private_data: [u8; PRIVATE_DATA_BYTES],
}
const_assert_eq!(size_of::<RepLayout>(), MAD_BYTES - HEADER_BYTES);
const_assert_eq!(offset_of!(RepLayout, remote_comm_id), 4);
const_assert_eq!(offset_of!(RepLayout, local_q_key), 8);
const_assert_eq!(offset_of!(RepLayout, local_qpn), 12);
const_assert_eq!(offset_of!(RepLayout, local_eecn), 16);
const_assert_eq!(offset_of!(RepLayout, starting_psn), 20);
const_assert_eq!(offset_of!(RepLayout, responder_resources), 24);
const_assert_eq!(offset_of!(RepLayout, initiator_depth), 25);
const_assert_eq!(offset_of!(RepLayout, delay_failover_flow), 26);
const_assert_eq!(offset_of!(RepLayout, rnr_srq), 27);
const_assert_eq!(offset_of!(RepLayout, local_ca_guid), 28);
const_assert_eq!(offset_of!(RepLayout, private_data), 36);

/// A reply, which accepts a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepRepr {
    /// The replier's communication ID.
    pub local_comm_id: u32,
    /// The requester's communication ID.
    pub remote_comm_id: u32,
    /// Q_Key, used by datagram connections only.
    pub local_q_key: u32,
    /// The replier's queue pair.
    pub local_qpn: Qpn,
    /// End-to-end context, used by reliable datagrams only (24 bits).
    pub local_eecn: u32,
    /// First packet sequence number that the receiver of this message is to send.
    pub starting_psn: Psn,
    /// Number of RDMA Reads the replier can answer at a time.
    pub responder_resources: u8,
    /// Number of RDMA Reads the replier wants to have outstanding.
    pub initiator_depth: u8,
    /// Time that the replier's adapter takes to acknowledge (5 bits, 4.096 us * 2^n).
    pub target_ack_delay: u8,
    /// State of the alternate path (2 bits, 0 accepted).
    pub failover_accepted: u8,
    /// True if the replier implements end-to-end credits.
    pub flow_control: bool,
    /// RNR retries the requester should make (3 bits).
    pub rnr_retry: u8,
    /// True if the replier's queue pair uses a shared receive queue.
    pub srq: bool,
    /// GUID of the replier's adapter.
    pub local_ca_guid: u64,
    /// Private data: that of the consumer, with or without a header of our own (`cm/private_data.rs`).
    pub private_data: [u8; PRIVATE_DATA_BYTES],
}

impl RepRepr {
    /// Parses the message after the MAD header.
    #[must_use]
    pub fn parse(mad: &Mad) -> Self {
        let layout: &RepLayout = body(mad);
        Self {
            local_comm_id: layout.local_comm_id.get(),
            remote_comm_id: layout.remote_comm_id.get(),
            local_q_key: layout.local_q_key.get(),
            local_qpn: Qpn::new(layout.local_qpn.get()),
            local_eecn: layout.local_eecn.get(),
            starting_psn: Psn::new(layout.starting_psn.get()),
            responder_resources: layout.responder_resources,
            initiator_depth: layout.initiator_depth,
            target_ack_delay: layout.delay_failover_flow >> 3,
            failover_accepted: layout.delay_failover_flow >> 1 & 0x3,
            flow_control: layout.delay_failover_flow & 0x1 != 0,
            rnr_retry: layout.rnr_srq >> 5,
            srq: layout.rnr_srq & 0x10 != 0,
            local_ca_guid: layout.local_ca_guid.get(),
            private_data: layout.private_data,
        }
    }

    /// Writes the message after the MAD header.
    ///
    /// # Panics
    /// A number is wider than its field.
    pub fn emit(&self, mad: &mut Mad) {
        let layout: &mut RepLayout = body_mut(mad);
        layout.local_comm_id.set(self.local_comm_id);
        layout.remote_comm_id.set(self.remote_comm_id);
        layout.local_q_key.set(self.local_q_key);
        layout.local_qpn.set(self.local_qpn.get());
        layout.rsvd_0f = 0;
        layout.local_eecn.set(self.local_eecn);
        layout.rsvd_13 = 0;
        layout.starting_psn.set(self.starting_psn.get());
        layout.rsvd_17 = 0;
        layout.responder_resources = self.responder_resources;
        layout.initiator_depth = self.initiator_depth;
        layout.delay_failover_flow = bits(self.target_ack_delay, 5, 3)
            | bits(self.failover_accepted, 2, 1)
            | bits(self.flow_control.into(), 1, 0);
        layout.rnr_srq = bits(self.rnr_retry, 3, 5) | bits(self.srq.into(), 1, 4);
        layout.local_ca_guid.set(self.local_ca_guid);
        layout.private_data = self.private_data;
    }
}
