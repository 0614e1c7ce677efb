//! The snapshot of a connection manager ([`Cm::park`](super::Cm::park)): plain data. This module does not interpret it.
//!
//! All times are those of the provider's clock, in nanoseconds, or lengths in nanoseconds.

use super::event::{CmEvent, Counters};
use super::name::{ConnId, ListenId};
use super::params::Config;
use super::state::State;
use super::wire::Mad;
use crate::provider::{MadAddress, Nanos, Qpn};

/// A connection manager that was parked.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct CmSnapshot {
    /// Time of the parking.
    pub parked_at: Nanos,
    /// The configuration.
    pub config: Config,
    /// The connections in any state, by index.
    pub conns: Vec<ConnSnapshot>,
    /// Identifiers of the next connections in empty slots of the table of connections. The last one is used first.
    pub free_conns: Vec<ConnId>,
    /// The listeners, by index.
    pub listeners: Vec<ListenerSnapshot>,
    /// Identifiers of the next listeners in empty slots of the table of listeners. The last one is used first.
    pub free_listeners: Vec<ListenId>,
    /// Requests that the consumer has accepted and that are not established, oldest first.
    pub accepted: Vec<ConnId>,
    /// Requests of peers whose refusal is remembered, oldest first.
    pub refused: Vec<ConnId>,
    /// Datagrams to send, oldest first.
    #[serde(with = "datagrams")]
    pub outbox: Vec<(MadAddress, Mad)>,
    /// Events that the consumer has not polled, oldest first.
    pub events: Vec<CmEvent>,
    /// The counters.
    pub counters: Counters,
}

/// A listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ListenerSnapshot {
    /// Its identifier.
    pub id: ListenId,
    /// Service ID at which it listens.
    pub service_id: u64,
}

/// A connection.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ConnSnapshot {
    /// Its identifier.
    pub id: ConnId,
    /// Its state.
    pub state: State,
    /// Destination of our messages to the peer.
    pub peer: MadAddress,
    /// Service ID of the request.
    pub service_id: u64,
    /// Listener that the request came to, which may have ended; `None` on the active side.
    pub listen: Option<ListenId>,
    /// Our communication ID.
    pub local_id: u32,
    /// The peer's communication ID, as far as the peer has sent it.
    pub remote_id: Option<u32>,
    /// GUID of the peer's adapter; 0 if the peer has not sent it.
    pub remote_ca_guid: u64,
    /// Our queue pair; `None` on the passive side until the consumer accepts.
    pub local_qpn: Option<Qpn>,
    /// The peer's queue pair, as far as the peer has sent it.
    pub remote_qpn: Option<Qpn>,
    /// Our port if we started the connection through the RDMA CM, otherwise 0.
    pub local_port: u16,
    /// Transaction ID of the current handshake.
    pub transaction_id: u64,
    /// Transaction ID for our own DREQ.
    pub disconnect_transaction_id: u64,
    /// REQ or REP in the states that repeat it, otherwise `None`. A DREQ is made again from the numbers.
    #[serde(with = "serde_bytes")]
    pub repeatable: Option<Mad>,
    /// Number of repetitions made so far.
    pub retries: u8,
    /// Maximum number of repetitions, at most 15.
    pub max_retries: u8,
    /// Time that we wait for an answer.
    pub response_wait: Nanos,
    /// Time that the peer waits for our answer.
    pub peer_wait: Nanos,
    /// Time that we wait for an answer after an MRA of the peer. On the passive side 0 until the peer sends an MRA.
    pub service_wait: Nanos,
    /// Time after which we send the peer an MRA for its undecided request.
    pub mra_after: Nanos,
    /// Reason that our refusal carries, as on the wire.
    pub refusal: u16,
    /// Private data of our consumer's refusal.
    pub refusal_data: Vec<u8>,
    /// Number of times that our refusal was prolonged.
    pub holds: u8,
    /// Number of times that the peer has refused our request as stale.
    pub stale: u8,
    /// Number of the instance that owns the connection, if one was set.
    pub owner: Option<u32>,
    /// True if the consumer wants no more events.
    pub silent: bool,
    /// True if the consumer has released the identifier.
    pub released: bool,
    /// Deadline of the state, in the states that end by time.
    pub state_deadline: Option<Nanos>,
    /// Time at which the consumer gives the attempt up, if it has set one.
    pub consumer_deadline: Option<Nanos>,
}

/// Serialization of datagrams with their destinations: `serde` has no arrays of 256 bytes.
mod datagrams {
    use serde::{Deserialize, Deserializer, Serializer};
    use serde_bytes::{ByteArray, Bytes};

    use crate::cm::wire::Mad;
    use crate::provider::MadAddress;

    pub(super) fn serialize<S: Serializer>(
        list: &[(MadAddress, Mad)],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(list.iter().map(|(address, mad)| (address, Bytes::new(mad))))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(MadAddress, Mad)>, D::Error> {
        let list = Vec::<(MadAddress, ByteArray<256>)>::deserialize(from)?;
        let plain = list.into_iter().map(|(to, mad)| (to, mad.into_array()));
        Ok(plain.collect())
    }
}
