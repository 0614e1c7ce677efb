//! REQ, the request for communication (IBTA volume 1, chapter 12, "REQ Message Contents").

use layout::layout;

use super::mad::{Mad, body, narrow, put};
use crate::provider::{Psn, Qpn};

/// Private data bytes of a REQ.
pub const PRIVATE_DATA_BYTES: usize = 92;

layout! {
    /// One of the two paths that a REQ names.
    pub struct PathLayout(0x2c) {
        local_port_lid: 0x00 u16,
        remote_port_lid: 0x02 u16,
        local_port_gid: 0x04 [u8; 16],
        remote_port_gid: 0x14 [u8; 16],
        flow_label: 0x24[31:12],
        packet_rate: 0x24[5:0],
        traffic_class: 0x28 u8,
        hop_limit: 0x29 u8,
        sl: 0x28[15:12],
        subnet_local: 0x28[11],
        local_ack_timeout: 0x28[7:3],
    }

    /// A REQ after the MAD header.
    pub struct ReqLayout(0xe8) {
        local_comm_id: 0x00 u32,
        service_id: 0x08 u64,
        local_ca_guid: 0x10 u64,
        local_q_key: 0x1c u32,
        local_qpn: 0x20 (Qpn[31:8]),
        responder_resources: 0x23 u8,
        local_eecn: 0x24[31:8],
        initiator_depth: 0x27 u8,
        remote_eecn: 0x28[31:8],
        remote_cm_response_timeout: 0x28[7:3],
        transport_service_type: 0x28[2:1],
        end_to_end_flow_control: 0x28[0],
        starting_psn: 0x2c (Psn[31:8]),
        local_cm_response_timeout: 0x2c[7:3],
        retry_count: 0x2c[2:0],
        partition_key: 0x30 u16,
        path_packet_payload_mtu: 0x30[15:12],
        rdc_exists: 0x30[11],
        rnr_retry_count: 0x30[10:8],
        max_cm_retries: 0x30[7:4],
        srq: 0x30[3],
        extended_transport_type: 0x30[2:0],
        primary: 0x34 PathLayout,
        alternate: 0x60 PathLayout,
        private_data: 0x8c [u8; 92],
    }
}

/// A path, as the requester sees it: "local" is the requester.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRepr {
    /// LID of the requester. On RoCE: 0xffff on a routed path, otherwise 0.
    pub local_lid: u16,
    /// LID of the other side. On RoCE: 0xffff on a routed path, otherwise 0.
    pub remote_lid: u16,
    /// GID of the requester.
    pub local_gid: [u8; 16],
    /// GID of the other side.
    pub remote_gid: [u8; 16],
    /// Flow label (20 bits).
    pub flow_label: u32,
    /// Packet rate code (6 bits).
    pub packet_rate: u8,
    /// IP traffic class.
    pub traffic_class: u8,
    /// IP hop limit.
    pub hop_limit: u8,
    /// Service level (4 bits).
    pub sl: u8,
    /// True if the path has no router.
    pub subnet_local: bool,
    /// Local ACK timeout code the other side should use (5 bits, 4.096 us * 2^n).
    pub ack_timeout: u8,
}

impl PathRepr {
    fn parse(layout: &PathLayout) -> Self {
        Self {
            local_lid: layout.local_port_lid(),
            remote_lid: layout.remote_port_lid(),
            local_gid: *layout.local_port_gid(),
            remote_gid: *layout.remote_port_gid(),
            flow_label: layout.flow_label(),
            packet_rate: narrow(layout.packet_rate()),
            traffic_class: layout.traffic_class(),
            hop_limit: layout.hop_limit(),
            sl: narrow(layout.sl()),
            subnet_local: layout.subnet_local(),
            ack_timeout: narrow(layout.local_ack_timeout()),
        }
    }

    fn emit(&self, layout: &mut PathLayout) {
        layout
            .set_local_port_lid(self.local_lid)
            .set_remote_port_lid(self.remote_lid)
            .set_local_port_gid(&self.local_gid)
            .set_remote_port_gid(&self.remote_gid)
            .set_flow_label(self.flow_label)
            .set_packet_rate(self.packet_rate.into())
            .set_traffic_class(self.traffic_class)
            .set_hop_limit(self.hop_limit)
            .set_sl(self.sl.into())
            .set_subnet_local(self.subnet_local)
            .set_local_ack_timeout(self.ack_timeout.into());
    }
}

/// A request for communication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReqRepr {
    /// The requester's communication ID.
    pub local_comm_id: u32,
    /// The requested service.
    pub service_id: u64,
    /// GUID of the requester's adapter. Together with `local_comm_id` it identifies the connection in the whole fabric.
    pub local_ca_guid: u64,
    /// Q_Key, used by datagram connections only.
    pub local_q_key: u32,
    /// The requester's queue pair.
    pub local_qpn: Qpn,
    /// Number of RDMA Reads the requester can answer at a time.
    pub responder_resources: u8,
    /// End-to-end context of the requester, used by reliable datagrams only (24 bits).
    pub local_eecn: u32,
    /// Number of RDMA Reads the requester wants to have outstanding.
    pub initiator_depth: u8,
    /// End-to-end context of the receiver, used by reliable datagrams only (24 bits).
    pub remote_eecn: u32,
    /// Time within which the requester expects our answer (5 bits, 4.096 us * 2^n).
    pub remote_response_timeout: u8,
    /// Transport service type: 0 RC, 1 UC, 2 RD, 3 see `extended_transport`.
    pub transport: u8,
    /// True if the requester implements end-to-end credits.
    pub flow_control: bool,
    /// First packet sequence number that the receiver of this message is to send (IBTA vol. 1, "Starting PSN").
    pub starting_psn: Psn,
    /// Time within which the requester answers our messages (5 bits, 4.096 us * 2^n).
    pub local_response_timeout: u8,
    /// Transport retries the other side should make (3 bits).
    pub retry_count: u8,
    /// Partition key.
    pub partition_key: u16,
    /// Path MTU code, 1..=5 (4 bits).
    pub mtu: u8,
    /// True if a reliable datagram channel exists.
    pub rdc_exists: bool,
    /// RNR retries the other side should make (3 bits).
    pub rnr_retry: u8,
    /// Maximum number of times that either side repeats a message (4 bits).
    pub max_cm_retries: u8,
    /// True if the requester's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Extended transport type: 1 XRC; valid if `transport` is 3.
    pub extended_transport: u8,
    /// The primary path, which the connection uses.
    pub primary: PathRepr,
    /// The alternate path; all zero if there is none.
    pub alternate: PathRepr,
    /// Private data: that of the consumer, with or without a header of our own (`cm/private_data.rs`).
    pub private_data: [u8; PRIVATE_DATA_BYTES],
}

impl ReqRepr {
    /// Parses the message after the MAD header.
    #[must_use]
    pub fn parse(mad: &Mad) -> Self {
        let layout: &ReqLayout = body(mad);
        Self {
            local_comm_id: layout.local_comm_id(),
            service_id: layout.service_id(),
            local_ca_guid: layout.local_ca_guid(),
            local_q_key: layout.local_q_key(),
            local_qpn: layout.local_qpn(),
            responder_resources: layout.responder_resources(),
            local_eecn: layout.local_eecn(),
            initiator_depth: layout.initiator_depth(),
            remote_eecn: layout.remote_eecn(),
            remote_response_timeout: narrow(layout.remote_cm_response_timeout()),
            transport: narrow(layout.transport_service_type()),
            flow_control: layout.end_to_end_flow_control(),
            starting_psn: layout.starting_psn(),
            local_response_timeout: narrow(layout.local_cm_response_timeout()),
            retry_count: narrow(layout.retry_count()),
            partition_key: layout.partition_key(),
            mtu: narrow(layout.path_packet_payload_mtu()),
            rdc_exists: layout.rdc_exists(),
            rnr_retry: narrow(layout.rnr_retry_count()),
            max_cm_retries: narrow(layout.max_cm_retries()),
            srq: layout.srq(),
            extended_transport: narrow(layout.extended_transport_type()),
            primary: PathRepr::parse(layout.primary()),
            alternate: PathRepr::parse(layout.alternate()),
            private_data: *layout.private_data(),
        }
    }

    /// Writes the message after the MAD header.
    ///
    /// # Panics
    /// A number is wider than its field.
    pub fn emit(&self, mad: &mut Mad) {
        let mut layout = ReqLayout::new();
        layout
            .set_local_comm_id(self.local_comm_id)
            .set_service_id(self.service_id)
            .set_local_ca_guid(self.local_ca_guid)
            .set_local_q_key(self.local_q_key)
            .set_local_qpn(self.local_qpn)
            .set_responder_resources(self.responder_resources)
            .set_local_eecn(self.local_eecn)
            .set_initiator_depth(self.initiator_depth)
            .set_remote_eecn(self.remote_eecn)
            .set_remote_cm_response_timeout(self.remote_response_timeout.into())
            .set_transport_service_type(self.transport.into())
            .set_end_to_end_flow_control(self.flow_control)
            .set_starting_psn(self.starting_psn)
            .set_local_cm_response_timeout(self.local_response_timeout.into())
            .set_retry_count(self.retry_count.into())
            .set_partition_key(self.partition_key)
            .set_path_packet_payload_mtu(self.mtu.into())
            .set_rdc_exists(self.rdc_exists)
            .set_rnr_retry_count(self.rnr_retry.into())
            .set_max_cm_retries(self.max_cm_retries.into())
            .set_srq(self.srq)
            .set_extended_transport_type(self.extended_transport.into())
            .set_private_data(&self.private_data);
        self.primary.emit(layout.primary_mut());
        self.alternate.emit(layout.alternate_mut());
        put(mad, layout.as_array());
    }
}
