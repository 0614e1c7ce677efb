//! A connection request that the consumer has neither accepted nor rejected, with the parameters that its peer
//! requested.

use super::ep::Ends;
use crate::attributes::address_of;
use crate::cm::ConnId;
use crate::handle::EpKey;
use crate::provider::{Path, Psn, Qpn};
use crate::types::ConnQual;
use std::net::IpAddr;

/// Parameters of a connection's peer, and the path to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Peer {
    /// Path to the peer.
    pub path: Path,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// First packet sequence number that we send; the peer's message names it.
    pub psn: Psn,
    /// Path MTU code, 1..=5.
    pub mtu: u8,
    /// Number of RDMA Reads the peer can answer at a time.
    pub reads_out: u8,
    /// Number of retransmissions of an unacknowledged packet, 0..=7.
    pub retry_count: u8,
    /// Number of retransmissions to a peer without receive buffer, 0..=7.
    pub rnr_retry: u8,
    /// ACK timeout code, 0..=31.
    pub ack_timeout: u8,
}

pub(crate) struct Cr {
    pub(crate) conn: ConnId,
    pub(crate) peer: Peer,
    pub(crate) conn_qual: ConnQual,
    /// Our address, to which the request was sent.
    pub(crate) local: IpAddr,
    pub(crate) remote_gid: [u8; 16],
    pub(crate) remote_port: u16,
    pub(crate) private_data: Vec<u8>,
    /// Number of outstanding RDMA Reads towards this side that the peer requests.
    pub(crate) reads_in: u8,
    /// Endpoint that the provider or an RSP supplies for the request; `None` if the consumer supplies it.
    pub(crate) local_ep: Option<EpKey>,
    /// True if the provider created the endpoint for this request (TENTATIVE); false if the endpoint belongs to an RSP
    /// (PASSIVE).
    pub(crate) lent: bool,
}

impl Cr {
    pub(crate) fn ends(&self) -> Ends {
        Ends {
            local: self.local,
            remote: address_of(self.remote_gid),
            remote_port: self.remote_port.into(),
        }
    }
}
