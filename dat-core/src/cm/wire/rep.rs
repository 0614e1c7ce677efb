//! REP, the reply that accepts a request (IBTA volume 1, chapter 12, "REP Message Contents").

use layout::layout;

use super::mad::{Mad, body, narrow, put};
use crate::provider::{Psn, Qpn};

/// Private data bytes of a REP.
pub const PRIVATE_DATA_BYTES: usize = 196;

layout! {
    /// A REP after the MAD header.
    pub struct RepLayout(0xe8) {
        local_comm_id: 0x00 u32,
        remote_comm_id: 0x04 u32,
        local_q_key: 0x08 u32,
        local_qpn: 0x0c (Qpn[31:8]),
        local_eecn: 0x10[31:8],
        starting_psn: 0x14 (Psn[31:8]),
        responder_resources: 0x18 u8,
        initiator_depth: 0x19 u8,
        target_ack_delay: 0x18[15:11],
        failover_accepted: 0x18[10:9],
        end_to_end_flow_control: 0x18[8],
        rnr_retry_count: 0x18[7:5],
        srq: 0x18[4],
        local_ca_guid: 0x1c u64,
        private_data: 0x24 [u8; 196],
    }
}

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
            local_comm_id: layout.local_comm_id(),
            remote_comm_id: layout.remote_comm_id(),
            local_q_key: layout.local_q_key(),
            local_qpn: layout.local_qpn(),
            local_eecn: layout.local_eecn(),
            starting_psn: layout.starting_psn(),
            responder_resources: layout.responder_resources(),
            initiator_depth: layout.initiator_depth(),
            target_ack_delay: narrow(layout.target_ack_delay()),
            failover_accepted: narrow(layout.failover_accepted()),
            flow_control: layout.end_to_end_flow_control(),
            rnr_retry: narrow(layout.rnr_retry_count()),
            srq: layout.srq(),
            local_ca_guid: layout.local_ca_guid(),
            private_data: *layout.private_data(),
        }
    }

    /// Writes the message after the MAD header.
    ///
    /// # Panics
    /// A number is wider than its field.
    pub fn emit(&self, mad: &mut Mad) {
        let mut layout = RepLayout::new();
        layout
            .set_local_comm_id(self.local_comm_id)
            .set_remote_comm_id(self.remote_comm_id)
            .set_local_q_key(self.local_q_key)
            .set_local_qpn(self.local_qpn)
            .set_local_eecn(self.local_eecn)
            .set_starting_psn(self.starting_psn)
            .set_responder_resources(self.responder_resources)
            .set_initiator_depth(self.initiator_depth)
            .set_target_ack_delay(self.target_ack_delay.into())
            .set_failover_accepted(self.failover_accepted.into())
            .set_end_to_end_flow_control(self.flow_control)
            .set_rnr_retry_count(self.rnr_retry.into())
            .set_srq(self.srq)
            .set_local_ca_guid(self.local_ca_guid)
            .set_private_data(&self.private_data);
        put(mad, layout.as_array());
    }
}
