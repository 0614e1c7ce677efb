//! Paths, and the parameters of the transitions to RTR and RTS.

use crate::number::{Psn, Qpn};

/// The peer and the path to it. The provider resolves the MAC of the next hop on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Path {
    /// Index of our source GID.
    pub source_gid_index: u8,
    /// The peer's GID; an IPv4 address is `::ffff:a.b.c.d`.
    pub gid: [u8; 16],
    /// IP hop limit.
    pub hop_limit: u8,
    /// IP traffic class.
    pub traffic_class: u8,
    /// Flow label (20 bits); determines the UDP source port.
    pub flow_label: u32,
    /// Priority of the frames, 0..=7; written to the VLAN tag if the frames have a tag.
    pub priority: u8,
}

/// Parameters of the transition from INIT to RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToReceive {
    /// The path to the peer.
    pub path: Path,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// First packet sequence number that the peer will send.
    pub receive_psn: Psn,
    /// Path MTU code, 1..=5 for 256..=4096 bytes (IBTA encoding).
    pub mtu: u8,
    /// Number of RDMA Reads and atomic operations that the peer may have outstanding here; 0 refuses both.
    pub reads_in: u8,
    /// RNR NAK timer code (IBTA encoding, 5 bits).
    pub min_rnr_timer: u8,
}

/// Parameters of the transition from RTR to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToSend {
    /// First packet sequence number that we send.
    pub send_psn: Psn,
    /// Number of RDMA Reads and atomic operations that we may have outstanding.
    pub reads_out: u8,
    /// Number of transport retries, 0..=7.
    pub retry_count: u8,
    /// Number of RNR retries, 0..=7; 7 is without limit.
    pub rnr_retry: u8,
    /// Local ACK timeout code n: 4.096 us * 2^n; 0 is without limit.
    pub ack_timeout: u8,
}

/// Destination or source of a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MadAddress {
    /// Path to the other side.
    pub path: Path,
    /// Queue pair at the other side: [`Qpn::GSI`] of a connection manager.
    pub qpn: Qpn,
}
