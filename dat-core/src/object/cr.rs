//! The undecided connection request, with what its peer asked for.

use super::ep::Remote;
use crate::attributes::address_of;
use crate::cm::ConnId;
use crate::handle::EpKey;
use crate::provider::Path;
use crate::types::ConnQual;

/// Parameters of a connection's peer, and the path to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) path: Path,
    pub(crate) qpn: u32,
    /// The PSN that the peer asked us to start with.
    pub(crate) psn: u32,
    pub(crate) mtu: u8,
    /// Number of RDMA Reads the peer can answer at a time.
    pub(crate) reads_out: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) ack_timeout: u8,
}

pub(crate) struct Cr {
    pub(crate) conn: ConnId,
    pub(crate) peer: Peer,
    pub(crate) conn_qual: ConnQual,
    pub(crate) remote_gid: [u8; 16],
    pub(crate) remote_port: u16,
    pub(crate) private_data: Vec<u8>,
    /// Number of RDMA Reads the peer wants to have outstanding towards us.
    pub(crate) reads_in: u8,
    /// The endpoint that goes with the request.
    pub(crate) local_ep: Option<EpKey>,
    /// True if the endpoint was lent with the request, and is TENTATIVE; otherwise it is the RSP's, PASSIVE.
    pub(crate) lent: bool,
}

impl Cr {
    pub(crate) fn remote(&self) -> Remote {
        Remote {
            address: address_of(self.remote_gid),
            port_qual: self.remote_port.into(),
        }
    }
}
