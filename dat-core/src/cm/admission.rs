//! How much of the connection manager others may take.
//!
//! A request costs memory before anybody has decided about it, and who sends it may be anybody. So what is under way
//! is counted, by the address it comes from and by the listener it is for, and bounded by both
//! ([`Config::max_pending_per_peer`], [`Config::max_pending_per_listener`]). A part of all connections is kept for
//! those we start ourselves. Whatever is over a bound is refused, and nothing is remembered of it.
//!
//! An accepted request costs more, since the consumer gives it an endpoint before the peer has shown that it hears the
//! reply. If a listener has as many requests as it may have, one of an address that has few of them
//! ([`FEW`]) is admitted all the same: the accepted request of that listener that has waited longest for its peer makes
//! room. A peer that answers needs one round trip, so a flood from many addresses does not keep it out: it would have
//! to be as fast as to turn over all of the listener's places in that time.
//!
//! What the consumer has refused is not under way any more. It is remembered for a while, since the refusal may be lost
//! and is then asked for again, but it is in nobody's way: it counts under no bound but one of its own, and the oldest
//! makes room ([`Refusals`]).
//!
//! Established connections are not counted here: the consumer has agreed to each of them.

use std::collections::BTreeMap;

use super::conn::{Conn, Role};
use super::name::{ConnId, ListenId, PeerName};
use super::params::Config;
use super::state::State;
use super::wire::RejectReason;

/// One of how many connections requests of others leave free.
const KEPT_FOR_US: usize = 16;

/// One of how many places of a listener an address may have under way, at all listeners, and still have others make
/// room.
pub(super) const FEW: usize = 64;

/// Requests of others that are under way.
#[derive(Debug, Default)]
pub(super) struct Pending {
    by_peer: BTreeMap<[u8; 16], usize>,
    by_listener: BTreeMap<ListenId, usize>,
    /// Those that the consumer has accepted, by listener, oldest first.
    accepted: BTreeMap<(ListenId, u64), ConnId>,
    next: u64,
}

impl Pending {
    /// Whether one more request may be kept, with `connections` existing already; and the accepted request that makes
    /// room for it, if one has to.
    ///
    /// # Errors
    /// The reason to refuse it with.
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

    /// Brings the counts up to date with a connection whose state has changed.
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

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_peer.is_empty() && self.by_listener.is_empty() && self.accepted.is_empty()
    }
}

/// Connections that there may be before requests are refused.
pub(super) const fn room(config: &Config) -> usize {
    config.max_connections - config.max_connections / KEPT_FOR_US
}

/// Requests of others that were refused, and are remembered so that the refusal can be said again.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    in_order: BTreeMap<u64, ConnId>,
    next: u64,
}

impl Refusals {
    /// Follows a connection whose state has changed; the one to forget, if there are more than `most` then.
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

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.in_order.is_empty()
    }

    /// The one that has been remembered longest.
    pub(super) fn oldest(&self) -> Option<ConnId> {
        self.in_order.first_key_value().map(|(_, id)| *id)
    }
}

/// The request is neither decided nor forgotten.
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

/// One more or one less; what comes to nothing takes no room.
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
    /// The peer's adapter and its communication ID, once it has told us.
    pub(super) fn peer_comm_id(&self) -> Option<PeerName> {
        self.remote_id.map(|number| self.peer_name(number))
    }

    /// The peer's adapter and its queue pair.
    pub(super) fn peer_qp(&self) -> PeerName {
        self.peer_name(self.remote_qpn)
    }

    fn peer_name(&self, number: u32) -> PeerName {
        PeerName {
            gid: self.peer.path.gid,
            ca_guid: self.remote_ca_guid,
            number,
        }
    }
}
