//! Limits on the resources that peers may take in the connection manager.
//!
//! A request costs memory before the consumer has decided about it, and any host may send one. So pending requests
//! are counted and limited by source address and by listener ([`Config::max_pending_per_peer`],
//! [`Config::max_pending_per_listener`]). A fraction of all connections is reserved for those we start ourselves. A
//! request over a limit is refused, and no state is kept for it.
//!
//! An accepted request costs more, because the consumer gives it an endpoint before the peer has shown that it
//! receives the reply. If a listener is at its limit, a request from an address with few pending requests ([`FEW`]) is
//! still admitted. In exchange, the listener's accepted request that has waited longest for its peer is dropped. A
//! peer that answers needs one round trip. A flood from many addresses could only keep that peer out by replacing all
//! of the listener's requests within that time.
//!
//! A request is no longer pending when the consumer has refused it, or when we have given up waiting for its RTU. It is
//! remembered for a while, because the refusal may be lost and then has to be repeated. Refused requests have a
//! separate limit; when their number exceeds it, the oldest one is dropped ([`Refusals`]). The oldest one is also
//! dropped when a request arrives while the connections are at their limit.
//!
//! Established connections are not counted here: the consumer has agreed to each of them.

use std::collections::BTreeMap;

use super::conn::{Conn, Role};
use super::name::{ConnId, ListenId, PeerName};
use super::params::Config;
use super::state::State;
use super::wire::RejectReason;
use crate::provider::Qpn;

/// Divisor of `max_connections`: this fraction is reserved for connections that we start.
const ACTIVE_RESERVE_DIVISOR: usize = 16;

/// Divisor of `max_pending_per_listener`. An address may replace an accepted request if the number of its pending
/// requests, at all listeners, is below this fraction.
pub(super) const FEW: usize = 64;

/// Counts of the pending requests of peers.
#[derive(Debug, Default)]
pub(super) struct Pending {
    by_peer: BTreeMap<[u8; 16], usize>,
    by_listener: BTreeMap<ListenId, usize>,
    /// Requests that the consumer has accepted, by listener, oldest first.
    accepted: BTreeMap<(ListenId, u64), ConnId>,
    next: u64,
}

impl Pending {
    /// Decides whether one more request may be kept when `connections` connections exist already. Returns the accepted
    /// request that must be dropped in exchange, if any.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub(super) fn admit(
        &self,
        config: &Config,
        connections: usize,
        listen: ListenId,
        peer: [u8; 16],
    ) -> Result<Option<ConnId>, RejectReason> {
        let of = |count: Option<&usize>| count.copied().unwrap_or(0);
        let of_peer = of(self.by_peer.get(&peer));
        if connections >= room(config) || of_peer >= config.max_pending_per_peer {
            return Err(RejectReason::NoResources);
        }
        if of(self.by_listener.get(&listen)) < config.max_pending_per_listener {
            return Ok(None);
        }
        let oldest = || {
            let of_listener = (listen, 0)..=(listen, u64::MAX);
            self.accepted.range(of_listener).next().map(|(_, id)| *id)
        };
        let few = of_peer < (config.max_pending_per_listener / FEW).max(1);
        let oldest = if few { oldest() } else { None };
        oldest.map(Some).ok_or(RejectReason::NoResources)
    }

    /// Updates the counts for a connection whose state has changed.
    pub(super) fn follow(&mut self, id: ConnId, conn: &mut Conn) {
        let accepted = matches!(conn.state, State::RepSent | State::RepAcknowledged);
        if let Some(listen) = conn.listen {
            match (accepted, conn.accepted_as) {
                (true, None) => {
                    conn.accepted_as = Some(self.next);
                    self.accepted.insert((listen, self.next), id);
                    self.next += 1;
                }
                (false, Some(number)) => {
                    conn.accepted_as = None;
                    self.accepted.remove(&(listen, number));
                }
                (true, Some(_)) | (false, None) => {}
            }
        }
        let pending = conn.role == Role::Passive && is_pending(conn.state);
        if pending == conn.pending {
            return;
        }
        conn.pending = pending;
        count(&mut self.by_peer, conn.peer.path.gid, pending);
        if let Some(listen) = conn.listen {
            count(&mut self.by_listener, listen, pending);
        }
    }

    /// Returns the accepted requests of all listeners, oldest first.
    pub(super) fn accepted(&self) -> Vec<ConnId> {
        let mut accepted: Vec<(u64, ConnId)> = self
            .accepted
            .iter()
            .map(|((_, number), id)| (*number, *id))
            .collect();
        accepted.sort_unstable_by_key(|(number, _)| *number);
        accepted.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns the counts by source address and by listener.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (&BTreeMap<[u8; 16], usize>, &BTreeMap<ListenId, usize>) {
        (&self.by_peer, &self.by_listener)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_peer.is_empty() && self.by_listener.is_empty() && self.accepted.is_empty()
    }
}

/// Returns the number of connections at which further requests of peers are refused.
pub(super) const fn room(config: &Config) -> usize {
    config.max_connections - config.max_connections / ACTIVE_RESERVE_DIVISOR
}

/// Refused requests of peers, remembered so that the refusal can be repeated.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    in_order: BTreeMap<u64, ConnId>,
    next: u64,
}

impl Refusals {
    /// Updates the list for a connection whose state has changed. Returns the refused request to drop, if the list
    /// holds more than `most`.
    pub(super) fn follow(&mut self, id: ConnId, conn: &mut Conn, most: usize) -> Option<ConnId> {
        let refused = conn.role == Role::Passive && conn.state == State::Refused;
        match (refused, conn.refused_as) {
            (true, None) => {
                conn.refused_as = Some(self.next);
                self.in_order.insert(self.next, id);
                self.next += 1;
            }
            (false, Some(number)) => {
                conn.refused_as = None;
                self.in_order.remove(&number);
            }
            (true, Some(_)) | (false, None) => {}
        }
        self.oldest().filter(|_| self.in_order.len() > most)
    }

    /// Returns the refused requests, oldest first.
    pub(super) fn in_order(&self) -> Vec<ConnId> {
        self.in_order.values().copied().collect()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.in_order.is_empty()
    }

    /// Returns the refused request that has been remembered longest.
    pub(super) fn oldest(&self) -> Option<ConnId> {
        self.in_order.first_key_value().map(|(_, id)| *id)
    }
}

/// Returns whether a request in this state counts as pending: undecided, or accepted but not established.
const fn is_pending(state: State) -> bool {
    match state {
        State::ReqReceived
        | State::MraSent
        | State::Withdrawn
        | State::RepSent
        | State::RepAcknowledged => true,
        State::Refused
        | State::ReqSent
        | State::ReqAcknowledged
        | State::RepReceived
        | State::Established
        | State::DreqSent
        | State::TimeWait
        | State::Closed => false,
    }
}

/// Increments the count of `key` if `more`, otherwise decrements it. A count of zero is removed.
fn count<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K, more: bool) {
    if more {
        *counts.entry(key).or_insert(0) += 1;
    } else if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl Conn {
    /// Returns the peer's communication ID with the peer's GID and GUID, or `None` before the peer has sent the ID.
    pub(super) fn peer_comm_id(&self) -> Option<PeerName<u32>> {
        self.remote_id.map(|number| self.peer_name(number))
    }

    /// Returns the peer's queue pair number with the peer's GID and GUID, or `None` before the peer has sent the
    /// number.
    pub(super) fn peer_qp(&self) -> Option<PeerName<Qpn>> {
        self.remote_qpn.map(|qpn| self.peer_name(qpn))
    }

    fn peer_name<N>(&self, number: N) -> PeerName<N> {
        PeerName {
            gid: self.peer.path.gid,
            ca_guid: self.remote_ca_guid,
            number,
        }
    }
}
