//! REQ, the request for communication (IBTA volume 1, chapter 12, "REQ Message Contents").

use std::mem::{offset_of, size_of};

use static_assertions::const_assert_eq;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mad::{HEADER_BYTES, MAD_BYTES, Mad, U24, bits, body, body_mut};
use crate::provider::{Psn, Qpn};

/// Private data bytes of a REQ.
pub const PRIVATE_DATA_BYTES: usize = 92;

/// One of the two paths a REQ names.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PathLayout {
    local_port_lid: U16,
    remote_port_lid: U16,
    local_port_gid: [u8; 16],
    remote_port_gid: [u8; 16],
    /// Flow label in bits 31:12, packet rate in 5:0.
    flow_label_rate: U32,
    traffic_class: u8,
    hop_limit: u8,
    /// Service level in bits 7:4, subnet local in 3.
    sl_subnet_local: u8,
    /// Local ACK timeout in bits 7:3.
    local_ack_timeout: u8,
}
const_assert_eq!(size_of::<PathLayout>(), 44);

#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ReqLayout {
    local_comm_id: U32,
    rsvd_04: U32,
    service_id: U64,
    local_ca_guid: U64,
    rsvd_18: U32,
    local_q_key: U32,
    local_qpn: U24,
    responder_resources: u8,
    local_eecn: U24,
    initiator_depth: u8,
    remote_eecn: U24,
    /// Remote CM response timeout in bits 7:3, transport service type in 2:1, end-to-end flow control in 0.
    timeout_transport_flow: u8,
    starting_psn: U24,
    /// Local CM response timeout in bits 7:3, retry count in 2:0.
    timeout_retry_count: u8,
    partition_key: U16,
    /// Path packet payload MTU in bits 7:4, RDC exists in 3, RNR retry count in 2:0.
    mtu_rdc_rnr: u8,
    /// Max CM retries in bits 7:4, SRQ in 3, extended transport type in 2:0.
    retries_srq_transport: u8,
    primary: PathLayout,
    alternate: PathLayout,
    private_data: [u8; PRIVATE_DATA_BYTES],
}
const_assert_eq!(size_of::<ReqLayout>(), MAD_BYTES - HEADER_BYTES);
const_assert_eq!(offset_of!(ReqLayout, service_id), 8);
const_assert_eq!(offset_of!(ReqLayout, local_ca_guid), 16);
const_assert_eq!(offset_of!(ReqLayout, local_q_key), 28);
const_assert_eq!(offset_of!(ReqLayout, local_qpn), 32);
const_assert_eq!(offset_of!(ReqLayout, responder_resources), 35);
const_assert_eq!(offset_of!(ReqLayout, local_eecn), 36);
const_assert_eq!(offset_of!(ReqLayout, initiator_depth), 39);
const_assert_eq!(offset_of!(ReqLayout, timeout_transport_flow), 43);
const_assert_eq!(offset_of!(ReqLayout, starting_psn), 44);
const_assert_eq!(offset_of!(ReqLayout, timeout_retry_count), 47);
const_assert_eq!(offset_of!(ReqLayout, partition_key), 48);
const_assert_eq!(offset_of!(ReqLayout, mtu_rdc_rnr), 50);
const_assert_eq!(offset_of!(ReqLayout, retries_srq_transport), 51);
const_assert_eq!(offset_of!(ReqLayout, primary), 52);
const_assert_eq!(
    offset_of!(ReqLayout, primary) + offset_of!(PathLayout, local_port_gid),
    56
);
const_assert_eq!(
    offset_of!(ReqLayout, primary) + offset_of!(PathLayout, remote_port_gid),
    72
);
const_assert_eq!(
    offset_of!(ReqLayout, primary) + offset_of!(PathLayout, flow_label_rate),
    88
);
const_assert_eq!(
    offset_of!(ReqLayout, primary) + offset_of!(PathLayout, traffic_class),
    92
);
const_assert_eq!(
    offset_of!(ReqLayout, primary) + offset_of!(PathLayout, hop_limit),
    93
);
const_assert_eq!(
    offset_of!(ReqLayout, primary) + offset_of!(PathLayout, sl_subnet_local),
    94
);
const_assert_eq!(
    offset_of!(ReqLayout, primary) + offset_of!(PathLayout, local_ack_timeout),
    95
);
const_assert_eq!(offset_of!(ReqLayout, alternate), 96);
const_assert_eq!(offset_of!(ReqLayout, private_data), 140);

/// A path, as the requester sees it: "local" is the requester.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRepr {
    /// LID of the requester; 0xffff if the fabric has no LIDs.
    pub local_lid: u16,
    /// LID of the other side; 0xffff if the fabric has no LIDs.
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
        let word = layout.flow_label_rate.get();
        let [.., rate] = word.to_be_bytes();
        Self {
            local_lid: layout.local_port_lid.get(),
            remote_lid: layout.remote_port_lid.get(),
            local_gid: layout.local_port_gid,
            remote_gid: layout.remote_port_gid,
            flow_label: word >> 12,
            packet_rate: rate & 0x3f,
            traffic_class: layout.traffic_class,
            hop_limit: layout.hop_limit,
            sl: layout.sl_subnet_local >> 4,
            subnet_local: layout.sl_subnet_local & 0x08 != 0,
            ack_timeout: layout.local_ack_timeout >> 3,
        }
    }

    fn emit(&self, layout: &mut PathLayout) {
        assert!(
            self.flow_label < 1 << 20,
            "{:#x} does not fit in 20 bits",
            self.flow_label
        );
        layout.local_port_lid.set(self.local_lid);
        layout.remote_port_lid.set(self.remote_lid);
        layout.local_port_gid = self.local_gid;
        layout.remote_port_gid = self.remote_gid;
        layout
            .flow_label_rate
            .set(self.flow_label << 12 | u32::from(bits(self.packet_rate, 6, 0)));
        layout.traffic_class = self.traffic_class;
        layout.hop_limit = self.hop_limit;
        layout.sl_subnet_local = bits(self.sl, 4, 4) | bits(self.subnet_local.into(), 1, 3);
        layout.local_ack_timeout = bits(self.ack_timeout, 5, 3);
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
            local_comm_id: layout.local_comm_id.get(),
            service_id: layout.service_id.get(),
            local_ca_guid: layout.local_ca_guid.get(),
            local_q_key: layout.local_q_key.get(),
            local_qpn: Qpn::new(layout.local_qpn.get()),
            responder_resources: layout.responder_resources,
            local_eecn: layout.local_eecn.get(),
            initiator_depth: layout.initiator_depth,
            remote_eecn: layout.remote_eecn.get(),
            remote_response_timeout: layout.timeout_transport_flow >> 3,
            transport: layout.timeout_transport_flow >> 1 & 0x3,
            flow_control: layout.timeout_transport_flow & 0x1 != 0,
            starting_psn: Psn::new(layout.starting_psn.get()),
            local_response_timeout: layout.timeout_retry_count >> 3,
            retry_count: layout.timeout_retry_count & 0x7,
            partition_key: layout.partition_key.get(),
            mtu: layout.mtu_rdc_rnr >> 4,
            rdc_exists: layout.mtu_rdc_rnr & 0x8 != 0,
            rnr_retry: layout.mtu_rdc_rnr & 0x7,
            max_cm_retries: layout.retries_srq_transport >> 4,
            srq: layout.retries_srq_transport & 0x8 != 0,
            extended_transport: layout.retries_srq_transport & 0x7,
            primary: PathRepr::parse(&layout.primary),
            alternate: PathRepr::parse(&layout.alternate),
            private_data: layout.private_data,
        }
    }

    /// Writes the message after the MAD header.
    ///
    /// # Panics
    /// A number is wider than its field.
    pub fn emit(&self, mad: &mut Mad) {
        let layout: &mut ReqLayout = body_mut(mad);
        layout.local_comm_id.set(self.local_comm_id);
        layout.rsvd_04.set(0);
        layout.service_id.set(self.service_id);
        layout.local_ca_guid.set(self.local_ca_guid);
        layout.rsvd_18.set(0);
        layout.local_q_key.set(self.local_q_key);
        layout.local_qpn.set(self.local_qpn.get());
        layout.responder_resources = self.responder_resources;
        layout.local_eecn.set(self.local_eecn);
        layout.initiator_depth = self.initiator_depth;
        layout.remote_eecn.set(self.remote_eecn);
        layout.timeout_transport_flow = bits(self.remote_response_timeout, 5, 3)
            | bits(self.transport, 2, 1)
            | bits(self.flow_control.into(), 1, 0);
        layout.starting_psn.set(self.starting_psn.get());
        layout.timeout_retry_count =
            bits(self.local_response_timeout, 5, 3) | bits(self.retry_count, 3, 0);
        layout.partition_key.set(self.partition_key);
        layout.mtu_rdc_rnr =
            bits(self.mtu, 4, 4) | bits(self.rdc_exists.into(), 1, 3) | bits(self.rnr_retry, 3, 0);
        layout.retries_srq_transport = bits(self.max_cm_retries, 4, 4)
            | bits(self.srq.into(), 1, 3)
            | bits(self.extended_transport, 3, 0);
        self.primary.emit(&mut layout.primary);
        self.alternate.emit(&mut layout.alternate);
        layout.private_data = self.private_data;
    }
}
