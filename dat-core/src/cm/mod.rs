//! The InfiniBand connection manager, as a protocol without I/O.
//!
//! Two sides agree on the queue pairs, packet sequence numbers and limits of a reliable connection by
//! exchanging management datagrams through queue pair 1 (IBTA volume 1, chapter 12):
//!
//! ```text
//!   active                                     passive
//!     connect  ------- REQ ------------------>  Request
//!              <------ MRA  (it takes longer)
//!     Reply    <------ REP -------------------  accept         or  REJ  <-  reject
//!     ready    ------- RTU ------------------>  Established
//!                        ...
//!     disconnect ----- DREQ ----------------->  Disconnected
//!     DisconnectDone <- DREP
//! ```
//!
//! [`Cm`] has no clock, socket or random source. Time, received datagrams and random bits come in as arguments.
//! [`Cm::poll_transmit`] returns datagrams to send, [`Cm::poll_event`] returns events for the consumer, and
//! [`Cm::next_timeout`] returns the time at which to call [`Cm::handle_timeout`]. After any other call, the caller
//! must call `poll_transmit` and `poll_event` until they return `None`.
//!
//! [`State::next`] is the table of all transitions. Datagrams may be lost. So REQ, REP and DREQ are repeated until
//! answered, a bounded number of times, and the receiver of a repetition repeats its answer. Every wait ends, except
//! those that the consumer controls: for its decision about a request, for its `ready` after a reply, and for the end
//! of an established connection.
//!
//! A received datagram is matched to a connection by the communication IDs, which are random, and by the GID of its
//! sender. A datagram that does not match is counted ([`Counters`]) and dropped. All other identifiers in a datagram
//! (GUID, queue pair, source address) are only valid together with the sender's GID, so a third party cannot change
//! connections between others. Module `admission` bounds the resources of undecided requests. Two messages are
//! answered although they belong to no connection, because the peer would wait otherwise: a DREQ (with DREP), and a
//! REP (with REJ, invalid communication ID).
//!
//! The consumer may use a connection's [`ConnId`] until [`Cm::release`]. Answers that the peer still needs after that
//! (a repeated refusal, a DREP) are sent; then the state is dropped.
//!
//! RoCE: LIDs have no meaning and are permissive (0xffff) on a routed path, as in Linux; the P_Key is 0xffff; GIDs
//! are the addresses. Absent: alternate paths, unreliable and datagram services, private data in RTU, DREQ and DREP
//! (DAT 1.2 has none there), peer-to-peer connection.

mod admission;
mod bounds;
mod conn;
mod event;
mod name;
mod outbox;
mod params;
mod parking;
mod private_data;
pub mod rdma_cm;
mod receive;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;
mod timers;
pub mod wire;

use std::collections::{BTreeMap, VecDeque};

pub(crate) use conn::check_path;

pub use bounds::{PEER_NUMBERS, PeerNumber, Treatment};
pub use event::{CmEvent, Counters, PeerReply, PeerRequest, Refused};
pub use name::{ConnId, ListenId};
pub use params::{AcceptParams, CmError, Config, ConnectError, ConnectParams, InUse, ack_timeout};
pub use private_data::{PrivateDataError, reject_limit, reply_limit, request_limit};
pub use snapshot::{CmSnapshot, ConnSnapshot, ListenerSnapshot};
pub use state::{Emit, Input, Report, State, Step};
pub use timers::code_nanos;
pub use wire::RejectReason;

use crate::error::range::first_out_of_range;
use crate::provider::{MadAddress, Nanos, Path, Qpn};
use crate::table::Table;
use admission::{Pending, Refusals};
use conn::{Conn, plain_events};
use name::PeerName;
use outbox::Outbox;
use params::{LONGEST_TIMEOUT, MOST_FLOW_LABEL, MOST_PRIORITY};
use rdma_cm::IpHeader;
use timers::{Kind, Timers};
use wire::{Mad, Message, PathRepr, RepRepr, ReqRepr};

/// P_Key of the default partition, to which every port belongs.
const DEFAULT_PKEY: u16 = 0xffff;
/// Permissive LID, for ports without LIDs.
const PERMISSIVE_LID: u16 = 0xffff;
/// First dynamic port (RFC 6335), the lowest source port of our connections.
const FIRST_DYNAMIC_PORT: u16 = 0xc000;

/// The connection manager of one port.
#[derive(Debug)]
pub struct Cm {
    config: Config,
    conns: Table<ConnId, Conn>,
    listeners: Table<ListenId, u64>,
    pending: Pending,
    refusals: Refusals,
    by_service: BTreeMap<u64, ListenId>,
    /// Connections by our communication ID.
    by_local: BTreeMap<u32, ConnId>,
    /// Connections by the peer's communication ID.
    by_remote: BTreeMap<PeerName<u32>, ConnId>,
    /// Connections by the peer's queue pair.
    by_remote_qp: BTreeMap<PeerName<Qpn>, ConnId>,
    timers: Timers,
    outbox: Outbox,
    events: VecDeque<CmEvent>,
    counters: Counters,
}

impl Cm {
    /// Creates a connection manager without listeners and connections.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config: config.clamped(),
            conns: Table::new(),
            listeners: Table::new(),
            pending: Pending::default(),
            refusals: Refusals::default(),
            by_service: BTreeMap::new(),
            by_local: BTreeMap::new(),
            by_remote: BTreeMap::new(),
            by_remote_qp: BTreeMap::new(),
            timers: Timers::default(),
            outbox: Outbox::default(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Starts listening: requests for `service_id` are reported from now on.
    ///
    /// # Errors
    /// [`InUse`].
    pub fn listen(&mut self, service_id: u64) -> Result<ListenId, InUse> {
        if self.by_service.contains_key(&service_id) {
            return Err(InUse { service_id });
        }
        let id = self.listeners.insert(service_id);
        self.by_service.insert(service_id, id);
        Ok(id)
    }

    /// Stops listening: new requests are refused from now on. The consumer can still answer those already reported.
    pub fn unlisten(&mut self, listen: ListenId) {
        if let Some(service_id) = self.listeners.remove(listen) {
            self.by_service.remove(&service_id);
        }
    }

    /// Returns the listener for `service_id`.
    pub(crate) fn listener(&self, service_id: u64) -> Option<ListenId> {
        self.by_service.get(&service_id).copied()
    }

    /// Returns the owner of a connection, a number that the connection manager does not interpret; `None` if none was
    /// set.
    pub(crate) fn owner(&self, id: ConnId) -> Option<u32> {
        self.conns.get(id)?.owner
    }

    pub(crate) fn set_owner(&mut self, id: ConnId, owner: u32) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.owner = Some(owner);
        }
    }

    /// Returns the ACK timeout code that a peer needs towards our adapter, for a REQ.
    #[must_use]
    pub fn ack_timeout(&self) -> u8 {
        ack_timeout(self.config.packet_lifetime, self.config.ack_delay)
    }

    /// Starts a connection. One of `Reply`, `Rejected`, `Unreachable` and `TimedOut` follows.
    ///
    /// # Errors
    /// [`ConnectError`]; nothing has changed.
    pub fn connect(
        &mut self,
        now: Nanos,
        params: ConnectParams<'_>,
    ) -> Result<ConnId, ConnectError> {
        if let Some((name, value, limit)) = first_out_of_range([
            ("retry_count", params.retry_count.into(), 7),
            ("rnr_retry", params.rnr_retry.into(), 7),
            ("ack_timeout", params.ack_timeout.into(), 31),
        ]) {
            return Err(ConnectError::OutOfRange { name, value, limit });
        }
        if !(1..=5).contains(&params.mtu) {
            return Err(ConnectError::Mtu(params.mtu));
        }
        if self.conns.len() >= self.config.max_connections {
            return Err(ConnectError::TooMany(self.conns.len()));
        }
        let [high, low, ..] = params.random.to_be_bytes();
        let source_port = FIRST_DYNAMIC_PORT | u16::from_be_bytes([high, low]);
        let header = IpHeader {
            source_port,
            source: params.source,
            destination: params.path.gid,
        };
        let private_data =
            private_data::encode_request(params.service_id, &header, params.private_data)?;
        let local_comm_id = self.fresh_comm_id(params.random);
        let req = self.request(&params, local_comm_id, private_data);
        let peer = MadAddress {
            path: Path {
                flow_label: params.path.flow_label & MOST_FLOW_LABEL,
                priority: params.path.priority & MOST_PRIORITY,
                ..params.path
            },
            qpn: Qpn::GSI,
        };
        let port = if rdma_cm::is_service_id(params.service_id) {
            source_port
        } else {
            0
        };
        self.counters.connects += 1;
        let conn = Conn::active(&self.config, peer, &req, scramble(params.random), port);
        let id = self.conns.insert(conn);
        self.by_local.insert(local_comm_id, id);
        self.begin(now, id, params.timeout);
        Ok(id)
    }

    fn request(
        &self,
        params: &ConnectParams<'_>,
        local_comm_id: u32,
        private_data: [u8; 92],
    ) -> ReqRepr {
        let path = &params.path;
        // Like Linux (drivers/infiniband/core/cm.c), we decide by the hop limit, so that Linux peers come to the same
        // result.
        let subnet_local = path.hop_limit <= 1;
        let lid = if subnet_local { 0 } else { PERMISSIVE_LID };
        ReqRepr {
            local_comm_id,
            service_id: params.service_id,
            local_ca_guid: self.config.local_ca_guid,
            local_q_key: 0,
            local_qpn: params.qpn,
            responder_resources: params.reads_in,
            local_eecn: 0,
            initiator_depth: params.reads_out,
            remote_eecn: 0,
            remote_response_timeout: self.config.response_timeout,
            transport: 0,
            flow_control: false,
            starting_psn: params.psn,
            local_response_timeout: self.config.response_timeout,
            retry_count: params.retry_count,
            partition_key: DEFAULT_PKEY,
            mtu: params.mtu,
            rdc_exists: false,
            rnr_retry: params.rnr_retry,
            max_cm_retries: self.config.max_retries,
            srq: params.srq,
            extended_transport: 0,
            primary: PathRepr {
                local_lid: lid,
                remote_lid: lid,
                local_gid: params.source,
                remote_gid: path.gid,
                flow_label: path.flow_label & MOST_FLOW_LABEL,
                packet_rate: self.config.packet_rate,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                sl: path.priority & MOST_PRIORITY,
                subnet_local,
                ack_timeout: params.ack_timeout,
            },
            alternate: PathRepr::default(),
            private_data,
        }
    }

    /// Sends the first message of a new active connection and sets its deadlines.
    fn begin(&mut self, now: Nanos, id: ConnId, timeout: Option<Nanos>) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        if let Some(mad) = conn.message(Emit::Req, State::Closed, Input::Retry) {
            self.counters.sent += u64::from(self.outbox.push(conn.peer, mad));
        }
        let wait = conn.wait_after(State::Closed, Input::Retry).flatten();
        self.timers.set(
            id,
            &mut conn.deadlines,
            Kind::State,
            wait.map(|wait| now.saturating_add(wait)),
        );
        let expiry = timeout.map(|timeout| now.saturating_add(timeout.min(LONGEST_TIMEOUT)));
        self.timers
            .set(id, &mut conn.deadlines, Kind::Consumer, expiry);
    }

    /// Passive side: accepts a request for the consumer. `Established` or `AcceptFailed` follows.
    ///
    /// # Errors
    /// [`CmError`]; nothing has changed.
    pub fn accept(
        &mut self,
        now: Nanos,
        id: ConnId,
        params: AcceptParams<'_>,
    ) -> Result<(), CmError> {
        if let Some((name, value, limit)) =
            first_out_of_range([("rnr_retry", params.rnr_retry.into(), 7)])
        {
            return Err(CmError::OutOfRange { name, value, limit });
        }
        let config = self.config;
        let conn = self
            .conns
            .get_mut(id)
            .filter(|conn| !conn.released)
            .ok_or(CmError::Unknown)?;
        conn.state
            .next(Input::Accept)
            .ok_or(CmError::State(conn.state))?;
        let private_data = private_data::encode_reply(conn.service_id, params.private_data)?;
        let rep = RepRepr {
            local_comm_id: conn.local_id,
            remote_comm_id: conn.remote_id.unwrap_or(0),
            local_q_key: 0,
            local_qpn: params.qpn,
            local_eecn: 0,
            starting_psn: params.psn,
            responder_resources: params.reads_in,
            initiator_depth: params.reads_out,
            target_ack_delay: config.ack_delay,
            failover_accepted: 0,
            flow_control: false,
            rnr_retry: params.rnr_retry,
            srq: params.srq,
            local_ca_guid: config.local_ca_guid,
            private_data,
        };
        conn.local_qpn = Some(params.qpn);
        conn.repeatable = Some(Box::new(
            Message::Rep(Box::new(rep)).to_mad(conn.transaction_id),
        ));
        self.call(now, id, Input::Accept)
    }

    /// Active side: reports that our queue pair can send. The connection is established.
    ///
    /// # Errors
    /// [`CmError`]; nothing has changed.
    pub fn ready(&mut self, now: Nanos, id: ConnId) -> Result<(), CmError> {
        self.call(now, id, Input::Ready)
    }

    /// Refuses a request, or, on the active side, the peer's reply to our request. No event follows.
    ///
    /// # Errors
    /// [`CmError`]; nothing has changed.
    pub fn reject(&mut self, now: Nanos, id: ConnId, reason: RejectReason) -> Result<(), CmError> {
        self.reject_with(now, id, reason, &[])
    }

    /// Refuses with private data. The peer's consumer gets the data only if `reason` is [`RejectReason::Consumer`].
    ///
    /// # Errors
    /// [`CmError`]; nothing has changed.
    pub fn reject_with(
        &mut self,
        now: Nanos,
        id: ConnId,
        reason: RejectReason,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let conn = self
            .conns
            .get_mut(id)
            .filter(|conn| !conn.released)
            .ok_or(CmError::Unknown)?;
        conn.state
            .next(Input::Reject)
            .ok_or(CmError::State(conn.state))?;
        private_data::check_reject(conn.service_id, private_data)?;
        conn.refusal = reason;
        conn.refusal_data = private_data.into();
        self.call(now, id, Input::Reject)
    }

    /// Returns the maximum bytes of private data in the rejection of a request; `None` if there is no such connection.
    pub fn reject_limit(&self, id: ConnId) -> Option<usize> {
        let conn = self.conns.get(id)?;
        Some(private_data::reject_limit(conn.service_id))
    }

    /// Refuses a request for lack of capacity, and keeps no state for it. If its sender repeats the request, that is a
    /// new request. The `ConnId` becomes invalid.
    pub fn decline(&mut self, now: Nanos, id: ConnId, reason: RejectReason) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.refusal = reason;
            self.step(now, id, Input::Decline, None);
        }
        self.release(now, id);
    }

    /// Ends a connection, or the attempt to make one. `DisconnectDone` follows. If the peer has ended the connection
    /// first, `Disconnected` reports the end instead, and the call may fail.
    ///
    /// # Errors
    /// [`CmError`]; nothing has changed.
    pub fn disconnect(&mut self, now: Nanos, id: ConnId) -> Result<(), CmError> {
        self.call(now, id, Input::Disconnect)
    }

    /// Ends a connection or an attempt without further events: events not yet polled are dropped, and no event follows.
    /// The peer still gets a message.
    pub fn abort(&mut self, now: Nanos, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.silent = true;
            self.events.retain(|event| event.conn() != id);
            self.step(now, id, Input::Abort, None);
        }
    }

    /// Passive side: reports that data has arrived on the accepted queue pair. This proves that the peer is ready,
    /// although its RTU has not arrived.
    ///
    /// # Errors
    /// [`CmError`]; nothing has changed.
    pub fn communication_established(&mut self, now: Nanos, id: ConnId) -> Result<(), CmError> {
        self.call(now, id, Input::Data)
    }

    /// Releases the `ConnId` of a connection. A connection or attempt that still exists is aborted.
    pub fn release(&mut self, now: Nanos, id: ConnId) {
        self.abort(now, id);
        if let Some(conn) = self.conns.get_mut(id) {
            conn.released = true;
            self.remove_if_closed(id);
        }
    }

    /// Returns the next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<(MadAddress, Mad)> {
        self.outbox.pop()
    }

    /// Puts a datagram that could not be sent yet back to the front of the queue.
    pub fn unsent(&mut self, to: MadAddress, mad: Mad) {
        self.outbox.put_back(to, mad);
    }

    /// Returns whether no datagram is left to send.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Returns whether [`Cm::poll_event`] would return an event.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the next event for the consumer.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        self.events.pop_front()
    }

    /// Returns the time by which [`Cm::handle_timeout`] must be called; `None` if no deadline is set.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Nanos> {
        self.timers.next()
    }

    /// Handles all deadlines up to `now`.
    pub fn handle_timeout(&mut self, now: Nanos) {
        while let Some((id, kind)) = self.timers.due(now) {
            let Some(conn) = self.conns.get_mut(id) else {
                // Timers are cleared before a connection is removed, so this would be a bug of this module.
                unreachable!("a deadline of {id:?}, which does not exist");
            };
            self.timers.set(id, &mut conn.deadlines, kind, None);
            let input = match kind {
                Kind::Consumer => Input::Expired,
                Kind::State => conn.deadline_expired(),
            };
            if input == Input::Retry {
                self.counters.repeated += 1;
            }
            self.step(now, id, input, None);
        }
    }

    /// Repeats every unanswered message, because it may have been lost while the port was down. Each counts as a
    /// repetition, so that a port that repeatedly goes down and up does not prolong an attempt for ever.
    pub fn port_came_up(&mut self, now: Nanos) {
        let waiting: Vec<ConnId> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.may_repeat())
            .map(|(id, _)| id)
            .collect();
        for id in waiting {
            let Some(conn) = self.conns.get_mut(id) else {
                continue;
            };
            let input = conn.deadline_expired();
            self.counters.repeated += 1;
            self.step(now, id, input, None);
        }
    }

    /// Ends every wait for the answer to a REQ, REP or DREQ that was sent to this address. The caller has found out
    /// that no host answers there.
    pub fn unreachable(&mut self, now: Nanos, gid: [u8; 16]) {
        let waiting: Vec<ConnId> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.peer.path.gid == gid && conn.waits_for_answer())
            .map(|(id, _)| id)
            .collect();
        for id in waiting {
            self.step(now, id, Input::Exhausted, None);
        }
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the state of a connection; `None` if the connection does not exist.
    #[must_use]
    pub fn state(&self, id: ConnId) -> Option<State> {
        self.conns.get(id).map(|conn| conn.state)
    }

    /// Returns our port of a connection that we started through the RDMA CM (the peer sees it as `remote_port`).
    /// Returns `None` for other connections.
    #[must_use]
    pub fn local_port(&self, id: ConnId) -> Option<u16> {
        self.conns
            .get(id)
            .map(|conn| conn.local_port)
            .filter(|&port| port != 0)
    }

    /// Returns the number of connections, in any state, released ones included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// Handles a call of the consumer.
    fn call(&mut self, now: Nanos, id: ConnId, input: Input) -> Result<(), CmError> {
        let conn = self
            .conns
            .get(id)
            .filter(|conn| !conn.released)
            .ok_or(CmError::Unknown)?;
        let state = conn.state;
        if self.step(now, id, input, None) {
            Ok(())
        } else {
            Err(CmError::State(state))
        }
    }

    /// Applies an input to a connection, and drops the refused requests that are over the limit. `event` is the event
    /// to report if the transition reports `Reply` or `Rejected`. Returns false if the table has no transition for the
    /// input.
    fn step(&mut self, now: Nanos, id: ConnId, input: Input, event: Option<CmEvent>) -> bool {
        let (is_possible, mut oldest) = self.apply(now, id, input, event);
        while let Some(id) = oldest {
            (_, oldest) = self.apply(now, id, Input::HoldOver, None);
        }
        is_possible
    }

    /// Applies an input to a connection. No other function changes a connection's state. Returns whether the table has
    /// a transition for the input, and the refused request that must be dropped, if any.
    fn apply(
        &mut self,
        now: Nanos,
        id: ConnId,
        input: Input,
        event: Option<CmEvent>,
    ) -> (bool, Option<ConnId>) {
        let Some(conn) = self.conns.get_mut(id) else {
            return (false, None);
        };
        let from = conn.state;
        let Some(step) = from.next(input) else {
            return (false, None);
        };
        let reason = match &event {
            Some(CmEvent::Rejected { reason, .. }) => Some(RejectReason::from_code(*reason)),
            _ => None,
        };
        self.counters.step(from, input, step, conn.refusal, reason);
        let Step { to, send, report } = step;
        conn.state = to;
        if let Some(mad) = conn.message(send, from, input) {
            self.counters.sent += u64::from(self.outbox.push(conn.peer, mad));
        }
        if !conn.silent {
            self.events
                .extend(plain_events(report, id).into_iter().flatten());
            if matches!(report, Report::Reply | Report::Rejected) {
                self.events.extend(event);
            }
        }
        // `Superseded` has reported the end of the connection to the consumer. Our DREQ concerns only the two
        // connection managers, so its end is not reported.
        conn.silent |= from == State::Established && input == Input::Superseded;
        if let Some(wait) = conn.wait_after(from, input) {
            let at = wait.map(|wait| now.saturating_add(wait));
            self.timers.set(id, &mut conn.deadlines, Kind::State, at);
        }
        if !to.is_connecting() {
            self.timers
                .set(id, &mut conn.deadlines, Kind::Consumer, None);
        }
        if !to.holds_remote_qp()
            && let Some(key) = conn.peer_qp()
            && self.by_remote_qp.get(&key) == Some(&id)
        {
            self.by_remote_qp.remove(&key);
        }
        self.pending.follow(id, conn);
        let most = self.config.max_pending_per_listener;
        let oldest = self.refusals.follow(id, conn, most);
        self.remove_if_closed(id);
        (true, oldest)
    }

    /// Removes a closed connection from the indices. Frees the connection if the consumer has released it.
    fn remove_if_closed(&mut self, id: ConnId) {
        let Some(conn) = self
            .conns
            .get(id)
            .filter(|conn| conn.state == State::Closed)
        else {
            return;
        };
        if self.by_local.get(&conn.local_id) == Some(&id) {
            self.by_local.remove(&conn.local_id);
        }
        if let Some(key) = conn.peer_comm_id()
            && self.by_remote.get(&key) == Some(&id)
        {
            self.by_remote.remove(&key);
        }
        if conn.released {
            self.conns.remove(id);
        }
    }

    /// Returns an unused communication ID, as random as `random` is. Zero is never returned: it stands for "none".
    fn fresh_comm_id(&self, random: u64) -> u32 {
        let [.., a, b, c, d] = random.to_be_bytes();
        let mut id = u32::from_be_bytes([a, b, c, d]);
        while id == 0 || self.by_local.contains_key(&id) {
            id = id.wrapping_add(1);
        }
        id
    }
}

/// Returns different bits that are as unpredictable as `random` (the finaliser of SplitMix64). So one random number
/// gives several identifiers.
const fn scramble(random: u64) -> u64 {
    let mixed = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
