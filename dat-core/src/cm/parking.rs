//! A connection manager that outlives its process.
//!
//! [`Cm::park`] writes all tables out as a [`CmSnapshot`], which is plain data, and [`Cm::resume`] makes a connection
//! manager of it, in another process or in the same one. Every connection goes on in its state: with its communication
//! IDs, its counts of repetitions, its deadlines, the message that it repeats and the refusal that it remembers.
//! [`ConnId`]s and [`ListenId`](super::ListenId)s stay the same, and so do those that are given out next.
//!
//! ```text
//!   the old process                                  the new process
//!     park  ------------ CmSnapshot ------------->    resume
//!     (no call any more)                              handle_mad, for the datagrams that arrived meanwhile
//!                                                     handle_timeout, for the deadlines that passed meanwhile
//!                                                     poll_transmit, poll_event
//! ```
//!
//! Deadlines are times of the provider's clock. That of a real adapter is the system's monotonic clock, which all
//! processes share until the next start of the system. If it shows an earlier time than at the parking, the snapshot is
//! of another start, and is refused. A snapshot of an earlier start is not detected if the clock has passed that time
//! again; the layer above compares the starts. A deadline that passed meanwhile is due at once. Answers of peers to
//! which the deadline applied may have arrived meanwhile, so the caller handles the received datagrams first: a
//! repetition would do no harm, but a connection would be given up although its peer has answered.
//!
//! `park` changes nothing, so it need not be undone if something else cannot be parked. It refuses nothing, because all
//! that a connection manager has is plain data. It does not write out what follows from the connections: the indices by
//! communication ID, by queue pair and by service ID, the queue of deadlines, and the counts of pending requests. It
//! does not write out messages that are not repeated any more.
//!
//! `resume` does not trust the snapshot. Every number is bounded, and the parts of a connection must fit its state. The
//! connection manager cannot check that the peer is in the matching state, or that the queue pair and the owner
//! ([`ConnSnapshot::owner`](super::ConnSnapshot::owner)) exist. The layers above know queue pairs and owners.

mod events;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::Cm;
use super::conn::{Conn, check_address};
use super::event::Counters;
use super::name::ConnId;
use super::outbox::{self, Outbox};
use super::params::Config;
use super::snapshot::{CmSnapshot, ListenerSnapshot};
use super::state::State;
use super::timers::Kind;
use super::wire::Message;
use crate::error::parking::ResumeError;
use crate::provider::Nanos;
use crate::table::Table;
use events::check_events;

/// Name of the list of accepted requests in errors.
const ACCEPTED: &str = "accepted requests";
/// Name of the list of refused requests in errors.
const REFUSED: &str = "refused requests";
/// Limit of the slots of listeners. No program has so many ports.
const MOST_LISTENERS: u64 = 1 << 20;

impl Cm {
    /// Writes the connection manager out at the time `now`. Nothing changes. The caller makes no further call if the
    /// snapshot is resumed: of two connection managers with the same connections, each would answer the peers.
    #[must_use]
    pub fn park(&self, now: Nanos) -> CmSnapshot {
        let listeners = self.listeners.iter();
        CmSnapshot {
            parked_at: now,
            config: self.config,
            conns: self.conns.iter().map(|(id, conn)| conn.park(id)).collect(),
            free_conns: self.conns.free().to_vec(),
            listeners: listeners
                .map(|(id, &service_id)| ListenerSnapshot { id, service_id })
                .collect(),
            free_listeners: self.listeners.free().to_vec(),
            accepted: self.pending.accepted(),
            refused: self.refusals.in_order(),
            outbox: self.outbox.iter().copied().collect(),
            events: self.events.iter().cloned().collect(),
            counters: self.counters,
        }
    }

    /// Goes on with a connection manager that this or another process has parked. Deadlines that passed meanwhile are
    /// due at once. They are not handled yet: the caller handles the datagrams that arrived meanwhile, and then calls
    /// [`Cm::handle_timeout`].
    ///
    /// Codes and the GUID are those of the snapshot, because connections were made with them. The limits of connections
    /// and of pending requests are those of the snapshot, too, but at most those of `limits`.
    ///
    /// # Errors
    /// [`ResumeError::Clock`]: `now` is earlier than the parking. [`ResumeError::OutOfRange`]: a number is over its
    /// limit. [`ResumeError::Snapshot`]: values are impossible, or contradict each other.
    pub fn resume(snapshot: &CmSnapshot, limits: &Config, now: Nanos) -> Result<Self, ResumeError> {
        let parked_at = snapshot.parked_at;
        if now < parked_at {
            return Err(ResumeError::Clock { parked_at, now });
        }
        check_config(&snapshot.config)?;
        check_counters(&snapshot.counters)?;
        let config = snapshot.config.limited(limits);
        let slots = snapshot.conns.len() + snapshot.free_conns.len();
        let most = config.max_connections;
        ResumeError::check_range("connections", [("slots", slots as u64, most as u64)])?;
        let mut cm = Self::new(config);
        cm.counters = snapshot.counters;
        cm.resume_listeners(snapshot)?;
        cm.resume_conns(snapshot)?;
        cm.resume_orders(snapshot)?;
        cm.outbox = resume_outbox(snapshot)?;
        check_events(&cm, &snapshot.events)?;
        cm.events = snapshot.events.iter().cloned().collect();
        Ok(cm)
    }

    fn resume_listeners(&mut self, snapshot: &CmSnapshot) -> Result<(), ResumeError> {
        let slots = snapshot.listeners.len() + snapshot.free_listeners.len();
        ResumeError::check_range("listeners", [("slots", slots as u64, MOST_LISTENERS)])?;
        let listeners = snapshot.listeners.iter();
        let listeners = listeners.map(|one| (one.id, one.service_id));
        self.listeners = Table::resume(listeners, &snapshot.free_listeners)
            .map_err(|error| ResumeError::of_table("listeners", error))?;
        for &ListenerSnapshot { id, service_id } in &snapshot.listeners {
            if let Some(other) = self.by_service.insert(service_id, id) {
                let what = format!("{other:?} and {id:?} listen at {service_id:#x}");
                return Err(ResumeError::snapshot("listeners", what));
            }
        }
        Ok(())
    }

    /// Makes the connections, their indices and the queue of their deadlines.
    fn resume_conns(&mut self, snapshot: &CmSnapshot) -> Result<(), ResumeError> {
        let mut conns = Vec::new();
        for one in &snapshot.conns {
            let conn = Conn::resume(&self.config, snapshot.parked_at, one)?;
            if let Some(listen) = conn.listen
                && !self.listeners.has_given_out(listen)
            {
                let what = format!("{:?} came to {listen:?}, which never listened", one.id);
                return Err(ResumeError::snapshot("connections", what));
            }
            conns.push((one.id, conn));
        }
        self.conns = Table::resume(conns.into_iter(), &snapshot.free_conns)
            .map_err(|error| ResumeError::of_table("connections", error))?;
        for one in &snapshot.conns {
            // PANIC: the table was made of these connections.
            let conn = self.conns.get_mut(one.id).expect("a connection");
            let deadlines = [
                (Kind::State, one.state_deadline),
                (Kind::Consumer, one.consumer_deadline),
            ];
            for (kind, at) in deadlines {
                self.timers.set(one.id, &mut conn.deadlines, kind, at);
            }
            if conn.state == State::Closed {
                continue;
            }
            index(
                &mut self.by_local,
                conn.local_id,
                one.id,
                "communication ID",
            )?;
            // A connection that has not accepted a reply is found by our communication ID alone.
            if let Some(queue_pair) = conn.peer_qp()
                && let Some(name) = conn.peer_comm_id()
            {
                index(&mut self.by_remote, name, one.id, "peer's communication ID")?;
                // A request of the peer's queue pair does not change a connection that we are ending.
                if conn.state.holds_remote_qp() && conn.state != State::DreqSent {
                    index(
                        &mut self.by_remote_qp,
                        queue_pair,
                        one.id,
                        "peer's queue pair",
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Makes the lists of accepted and of refused requests, and the counts of pending ones.
    fn resume_orders(&mut self, snapshot: &CmSnapshot) -> Result<(), ResumeError> {
        let (refused, most) = (snapshot.refused.len(), self.config.max_pending_per_listener);
        ResumeError::check_range(REFUSED, [("connections", refused as u64, most as u64)])?;
        let (pending, refusals) = (&mut self.pending, &mut self.refusals);
        number(&mut self.conns, ACCEPTED, &snapshot.accepted, |id, conn| {
            let before = conn.accepted_as;
            pending.follow(id, conn);
            before.is_none() && conn.accepted_as.is_some()
        })?;
        number(&mut self.conns, REFUSED, &snapshot.refused, |id, conn| {
            let before = conn.refused_as;
            refusals.follow(id, conn, most);
            before.is_none() && conn.refused_as.is_some()
        })?;
        // Connections that are in no list count as pending, if they are. One that this loop adds to a list was missing.
        for one in &snapshot.conns {
            let Some(conn) = self.conns.get_mut(one.id) else {
                continue;
            };
            let (was_accepted, was_refused) = (conn.accepted_as, conn.refused_as);
            self.pending.follow(one.id, conn);
            self.refusals.follow(one.id, conn, most);
            if conn.accepted_as != was_accepted {
                return Err(not_once(ACCEPTED, one.id));
            }
            if conn.refused_as != was_refused {
                return Err(not_once(REFUSED, one.id));
            }
        }
        Ok(())
    }
}

/// Adds connections to a list of the connection manager, in order. `follow` adds one, and returns whether it has.
fn number(
    conns: &mut Table<ConnId, Conn>,
    list: &'static str,
    ids: &[ConnId],
    mut follow: impl FnMut(ConnId, &mut Conn) -> bool,
) -> Result<(), ResumeError> {
    for &id in ids {
        if !conns.get_mut(id).is_some_and(|conn| follow(id, conn)) {
            return Err(not_once(list, id));
        }
    }
    Ok(())
}

/// Adds a connection to an index, in which each key has one connection.
fn index<K: Ord>(
    index: &mut BTreeMap<K, ConnId>,
    key: K,
    id: ConnId,
    what: &str,
) -> Result<(), ResumeError> {
    match index.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert(id);
            Ok(())
        }
        Entry::Occupied(entry) => {
            let what = format!("{:?} and {id:?} have the same {what}", entry.get());
            Err(ResumeError::snapshot("connections", what))
        }
    }
}

/// Returns the error for a list that does not have exactly the connections that belong in it, once each.
fn not_once(list: &'static str, id: ConnId) -> ResumeError {
    ResumeError::snapshot(
        list,
        format!("{id:?} is missing, repeated, or not such a request"),
    )
}

fn check_config(config: &Config) -> Result<(), ResumeError> {
    let most = config.clamped();
    let code = |name, value: u8, limit: u8| (name, u64::from(value), u64::from(limit));
    ResumeError::check_range(
        "the configuration",
        [
            code(
                "response_timeout",
                config.response_timeout,
                most.response_timeout,
            ),
            code(
                "packet_lifetime",
                config.packet_lifetime,
                most.packet_lifetime,
            ),
            code("max_retries", config.max_retries, most.max_retries),
            code(
                "service_timeout",
                config.service_timeout,
                most.service_timeout,
            ),
            code("ack_delay", config.ack_delay, most.ack_delay),
            code("packet_rate", config.packet_rate, most.packet_rate),
            code("max_mtu", config.max_mtu, most.max_mtu),
            code(
                "max_ack_timeout",
                config.max_ack_timeout,
                most.max_ack_timeout,
            ),
        ],
    )?;
    if config.max_ack_timeout == 0 {
        return Err(ResumeError::snapshot(
            "the configuration",
            "max_ack_timeout is 0",
        ));
    }
    Ok(())
}

/// Checks that the counters can go on counting.
fn check_counters(counters: &Counters) -> Result<(), ResumeError> {
    let Counters {
        received,
        sent,
        repeated,
        malformed,
        foreign,
        unexpected,
        refused,
        duplicates,
        connects,
        requests,
        accepted,
        established,
        ended,
        unreachable,
        timed_out,
        accept_failed,
        refused_by_peers,
        refused_by_us,
    } = *counters;
    ResumeError::check_counters(
        "the counters",
        [
            ("received", received),
            ("sent", sent),
            ("repeated", repeated),
            ("malformed", malformed),
            ("foreign", foreign),
            ("unexpected", unexpected),
            ("refused", refused),
            ("duplicates", duplicates),
            ("connects", connects),
            ("requests", requests),
            ("accepted", accepted),
            ("established", established),
            ("ended", ended),
            ("unreachable", unreachable),
            ("timed_out", timed_out),
            ("accept_failed", accept_failed),
        ],
    )?;
    for (name, refused) in [
        ("refused_by_peers", refused_by_peers),
        ("refused_by_us", refused_by_us),
    ] {
        for (_, times) in refused.each() {
            ResumeError::check_counters("the counters", [(name, times)])?;
        }
    }
    Ok(())
}

/// Makes the queue of datagrams to send. Refuses a datagram that no connection manager would make.
fn resume_outbox(snapshot: &CmSnapshot) -> Result<Outbox, ResumeError> {
    const TABLE: &str = "the datagrams to send";
    let count = snapshot.outbox.len() as u64;
    ResumeError::check_range(TABLE, [("datagrams", count, outbox::MOST as u64)])?;
    for (index, (to, mad)) in snapshot.outbox.iter().enumerate() {
        check_address(TABLE, to)?;
        let is_ours = Message::parse(mad).is_ok_and(|(id, message)| message.to_mad(id) == *mad);
        if !is_ours {
            let what = format!("number {index} is not a message of ours");
            return Err(ResumeError::snapshot(TABLE, what));
        }
    }
    Ok(Outbox::resume(&snapshot.outbox))
}
