//! A connection that is parked and resumed.
//!
//! The resumption checks that a connection has what its state requires, because the code that handles the state relies
//! on it. A state that repeats a message has the message. A state that ends by time has a deadline. A connection that
//! may send a DREQ knows the peer's queue pair.

use core::fmt;

use super::{Conn, MAX_REFUSAL_EXTENSIONS, MAX_STALE, Role};
use crate::cm::name::ConnId;
use crate::cm::params::{Config, LONGEST_TIMEOUT, MOST_FLOW_LABEL, MOST_PRIORITY, MOST_RETRIES};
use crate::cm::private_data;
use crate::cm::rdma_cm::is_service_id;
use crate::cm::snapshot::ConnSnapshot;
use crate::cm::state::State;
use crate::cm::timers::{Deadlines, Kind};
use crate::cm::wire::{DreqRepr, Mad, Message, RejectReason};
use crate::error::parking::ResumeError;
use crate::provider::{MadAddress, Nanos, Path, Psn, Qpn};

/// Requirements of a state on its connections.
struct Requirements {
    /// The side that has the state; `None`: both.
    side: Option<Role>,
    /// True if the state ends by time.
    is_timed: bool,
    /// The message that the state repeats.
    repeats: Repeats,
    /// True if the peer's queue pair is known, false if it is not. `None`: the passive side knows it, and the active
    /// side may know it.
    knows_peer: Option<bool>,
    /// True if our queue pair is known, false if it is not. `None`: the active side knows it, and the passive side may
    /// know it.
    knows_own: Option<bool>,
}

/// The message that a state repeats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeats {
    Nothing,
    Req,
    Rep,
    Dreq,
}

impl Requirements {
    const fn of(state: State) -> Self {
        let (side, is_timed, repeats, knows_peer, knows_own) = match state {
            State::ReqSent | State::ReqAcknowledged => {
                (Some(Role::Active), true, Repeats::Req, Some(false), None)
            }
            State::RepReceived => (
                Some(Role::Active),
                false,
                Repeats::Nothing,
                Some(true),
                None,
            ),
            State::ReqReceived => (
                Some(Role::Passive),
                true,
                Repeats::Nothing,
                None,
                Some(false),
            ),
            State::MraSent | State::Withdrawn => (
                Some(Role::Passive),
                false,
                Repeats::Nothing,
                None,
                Some(false),
            ),
            State::RepSent | State::RepAcknowledged => {
                (Some(Role::Passive), true, Repeats::Rep, None, Some(true))
            }
            State::Established => (None, false, Repeats::Nothing, Some(true), Some(true)),
            State::DreqSent => (None, true, Repeats::Dreq, Some(true), Some(true)),
            State::Refused | State::TimeWait => (None, true, Repeats::Nothing, None, None),
            State::Closed => (None, false, Repeats::Nothing, None, None),
        };
        Self {
            side,
            is_timed,
            repeats,
            knows_peer,
            knows_own,
        }
    }
}

impl Conn {
    /// Writes the connection out.
    pub(in crate::cm) fn park(&self, id: ConnId) -> ConnSnapshot {
        let repeatable = match Requirements::of(self.state).repeats {
            Repeats::Req | Repeats::Rep => self.repeatable.as_deref().copied(),
            Repeats::Dreq | Repeats::Nothing => None,
        };
        ConnSnapshot {
            id,
            state: self.state,
            peer: self.peer,
            service_id: self.service_id,
            listen: self.listen,
            local_id: self.local_id,
            remote_id: self.remote_id,
            remote_ca_guid: self.remote_ca_guid,
            local_qpn: self.local_qpn,
            remote_qpn: self.remote_qpn,
            local_port: self.local_port,
            transaction_id: self.transaction_id,
            disconnect_transaction_id: self.disconnect_transaction_id,
            repeatable,
            retries: self.retries,
            max_retries: self.max_retries,
            response_wait: self.response_wait,
            peer_wait: self.peer_wait,
            service_wait: self.service_wait,
            mra_after: self.mra_after,
            refusal: self.refusal.code(),
            refusal_data: self.refusal_data.to_vec(),
            holds: self.holds,
            stale: self.stale,
            owner: self.owner,
            silent: self.silent,
            released: self.released,
            state_deadline: self.deadlines.get(Kind::State),
            consumer_deadline: self.deadlines.get(Kind::Consumer),
        }
    }

    /// Makes a connection that was parked at `parked_at`. It counts neither as pending nor as accepted nor as refused,
    /// and its deadlines are not set yet.
    ///
    /// # Errors
    /// The numbers of the snapshot are out of range, or contradict each other or the state.
    pub(in crate::cm) fn resume(
        config: &Config,
        parked_at: Nanos,
        snapshot: &ConnSnapshot,
    ) -> Result<Self, ResumeError> {
        check_ranges(config, parked_at, snapshot)?;
        check_address(Name(snapshot.id), &snapshot.peer)?;
        check_state(snapshot)?;
        let repeatable = match Requirements::of(snapshot.state).repeats {
            Repeats::Nothing => None,
            Repeats::Req | Repeats::Rep => snapshot.repeatable,
            Repeats::Dreq => dreq(snapshot),
        };
        Ok(Self {
            state: snapshot.state,
            role: side(snapshot),
            peer: snapshot.peer,
            service_id: snapshot.service_id,
            listen: snapshot.listen,
            pending: false,
            accepted_as: None,
            refused_as: None,
            local_id: snapshot.local_id,
            remote_id: snapshot.remote_id,
            remote_ca_guid: snapshot.remote_ca_guid,
            local_qpn: snapshot.local_qpn,
            remote_qpn: snapshot.remote_qpn,
            local_port: snapshot.local_port,
            transaction_id: snapshot.transaction_id,
            disconnect_transaction_id: snapshot.disconnect_transaction_id,
            repeatable: repeatable.map(Box::new),
            retries: snapshot.retries,
            max_retries: snapshot.max_retries,
            response_wait: snapshot.response_wait,
            peer_wait: snapshot.peer_wait,
            service_wait: snapshot.service_wait,
            mra_after: snapshot.mra_after,
            time_wait: Self::round_trip(config, config.ack_delay),
            refusal: RejectReason::from_code(snapshot.refusal),
            refusal_data: snapshot.refusal_data.clone().into(),
            holds: snapshot.holds,
            stale: snapshot.stale,
            owner: snapshot.owner,
            silent: snapshot.silent,
            released: snapshot.released,
            deadlines: Deadlines::default(),
            config: *config,
        })
    }
}

impl ConnSnapshot {
    /// Returns the first PSN and the MTU code of the request that the connection repeats; `None` if it repeats none.
    pub(crate) fn requested(&self) -> Option<(Psn, u8)> {
        let (_, message) = Message::parse(self.repeatable.as_ref()?).ok()?;
        let Message::Req(req) = message else {
            return None;
        };
        Some((req.starting_psn, req.mtu))
    }

    /// Returns whether a request of a peer is that of the connection, according to its queue pair, its GID and its
    /// path.
    pub(crate) fn is_asked_by(&self, qpn: Qpn, gid: [u8; 16], path: &Path) -> bool {
        is_asked_by((self.remote_qpn, &self.peer.path), qpn, gid, path)
    }
}

/// Returns whether a request is that of a connection, whose peer's queue pair and path are given.
pub(in crate::cm) fn is_asked_by(
    (remote_qpn, to_peer): (Option<Qpn>, &Path),
    qpn: Qpn,
    gid: [u8; 16],
    path: &Path,
) -> bool {
    remote_qpn == Some(qpn)
        && gid == to_peer.gid
        && path.gid == to_peer.gid
        && path.source_gid_index == to_peer.source_gid_index
}

/// Checks the address of a datagram. `table` names the table or the entry that it is in.
pub(in crate::cm) fn check_address(
    table: impl ToString,
    address: &MadAddress,
) -> Result<(), ResumeError> {
    check_path(table, &address.path)
}

/// Checks a path. `table` names the table or the entry that it is in.
pub(crate) fn check_path(table: impl ToString, path: &Path) -> Result<(), ResumeError> {
    let (label, priority) = (path.flow_label.into(), path.priority.into());
    ResumeError::check_range(
        table,
        [
            ("flow_label", label, MOST_FLOW_LABEL.into()),
            ("priority", priority, MOST_PRIORITY.into()),
        ],
    )
}

/// The name of a connection in errors.
struct Name(ConnId);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {:?}", self.0)
    }
}

const fn side(snapshot: &ConnSnapshot) -> Role {
    match snapshot.listen {
        None => Role::Active,
        Some(_) => Role::Passive,
    }
}

/// Makes the DREQ of a connection again. `None` if it does not know its peer.
fn dreq(snapshot: &ConnSnapshot) -> Option<Mad> {
    let dreq = DreqRepr {
        local_comm_id: snapshot.local_id,
        remote_comm_id: snapshot.remote_id?,
        remote_qpn: snapshot.remote_qpn?,
    };
    Some(Message::Dreq(dreq).to_mad(snapshot.disconnect_transaction_id))
}

/// Checks the numbers of a connection, each by itself.
fn check_ranges(
    config: &Config,
    parked_at: Nanos,
    snapshot: &ConnSnapshot,
) -> Result<(), ResumeError> {
    let longest = Conn::round_trip(config, u8::MAX);
    // A refusal is remembered for twice the time that the peer waits, which is the longest time of a state.
    let last = parked_at.saturating_add(2 * longest);
    let last_of_consumer = parked_at.saturating_add(LONGEST_TIMEOUT);
    let most_data = private_data::reject_limit(snapshot.service_id);
    let data_bytes = snapshot.refusal_data.len();
    ResumeError::check_range(
        Name(snapshot.id),
        [
            (
                "max_retries",
                snapshot.max_retries.into(),
                MOST_RETRIES.into(),
            ),
            (
                "retries",
                snapshot.retries.into(),
                snapshot.max_retries.into(),
            ),
            ("response_wait", snapshot.response_wait, longest),
            ("peer_wait", snapshot.peer_wait, longest),
            ("service_wait", snapshot.service_wait, longest),
            ("mra_after", snapshot.mra_after, longest),
            ("refusal_data", data_bytes as u64, most_data as u64),
            (
                "holds",
                snapshot.holds.into(),
                MAX_REFUSAL_EXTENSIONS.into(),
            ),
            ("stale", snapshot.stale.into(), MAX_STALE.into()),
            ("state_deadline", snapshot.state_deadline.unwrap_or(0), last),
            (
                "consumer_deadline",
                snapshot.consumer_deadline.unwrap_or(0),
                last_of_consumer,
            ),
        ],
    )
}

/// Checks that a connection has what its state requires, and nothing that the state cannot have.
fn check_state(snapshot: &ConnSnapshot) -> Result<(), ResumeError> {
    let (state, side) = (snapshot.state, side(snapshot));
    let refused = |what: String| Err(ResumeError::snapshot(Name(snapshot.id), what));
    let needs = Requirements::of(state);
    if needs.side.is_some_and(|needed| needed != side) {
        return refused(format!("the {side:?} side is never in state {state:?}"));
    }
    if snapshot.local_id == 0 {
        return refused("our communication ID is 0".to_owned());
    }
    let knows_peer = snapshot.remote_qpn.is_some();
    let must_know = needs.knows_peer.or((side == Role::Passive).then_some(true));
    if must_know.is_some_and(|known| known != knows_peer) {
        let qpn = snapshot.remote_qpn;
        return refused(format!(
            "the peer's queue pair is {qpn:?} in state {state:?}"
        ));
    }
    // An active connection that ended may know the communication ID of a reply that it did not accept.
    let knows_id = snapshot.remote_id.is_some();
    if knows_peer && !knows_id || needs.knows_peer == Some(false) && knows_id {
        let id = snapshot.remote_id;
        return refused(format!(
            "the peer's communication ID is {id:?} in state {state:?}"
        ));
    }
    let must_know = needs.knows_own.or((side == Role::Active).then_some(true));
    if must_know.is_some_and(|known| known != snapshot.local_qpn.is_some()) {
        let qpn = snapshot.local_qpn;
        return refused(format!("our queue pair is {qpn:?} in state {state:?}"));
    }
    if snapshot.local_port != 0 && !(side == Role::Active && is_service_id(snapshot.service_id)) {
        let (port, id) = (snapshot.local_port, snapshot.service_id);
        return refused(format!("our port is {port} for service {id:#x}, {side:?}"));
    }
    let deadline = snapshot.state_deadline;
    if needs.is_timed != deadline.is_some() {
        return refused(format!("the deadline of state {state:?} is {deadline:?}"));
    }
    if let Some(deadline) = snapshot.consumer_deadline
        && !state.is_connecting()
    {
        return refused(format!(
            "the consumer's deadline in state {state:?} is {deadline}"
        ));
    }
    let (silent, released) = (snapshot.silent, snapshot.released);
    let may_be_silent = match state {
        State::DreqSent | State::Refused | State::TimeWait => true,
        // A connection that is closed and released does not exist.
        State::Closed => !released,
        State::ReqSent
        | State::ReqAcknowledged
        | State::RepReceived
        | State::ReqReceived
        | State::MraSent
        | State::Withdrawn
        | State::RepSent
        | State::RepAcknowledged
        | State::Established => false,
    };
    if released && !silent || silent && !may_be_silent {
        return refused(format!(
            "silent {silent} and released {released} in state {state:?}"
        ));
    }
    let has_message = matches!(needs.repeats, Repeats::Req | Repeats::Rep);
    match &snapshot.repeatable {
        None if !has_message => Ok(()),
        None => refused(format!("no message to repeat in state {state:?}")),
        Some(mad) if !repeats(snapshot, needs.repeats, mad) => {
            refused(format!("another message to repeat in state {state:?}"))
        }
        Some(_) => Ok(()),
    }
}

/// Returns whether a datagram is the message of this kind that the connection has sent.
fn repeats(snapshot: &ConnSnapshot, kind: Repeats, mad: &Mad) -> bool {
    let Ok((transaction_id, message)) = Message::parse(mad) else {
        return false;
    };
    let is_ours = match (kind, &message) {
        (Repeats::Req, Message::Req(req)) => {
            req.local_comm_id == snapshot.local_id
                && req.service_id == snapshot.service_id
                && Some(req.local_qpn) == snapshot.local_qpn
                && req.primary.remote_gid == snapshot.peer.path.gid
        }
        (Repeats::Rep, Message::Rep(rep)) => {
            rep.local_comm_id == snapshot.local_id
                && Some(rep.remote_comm_id) == snapshot.remote_id
                && Some(rep.local_qpn) == snapshot.local_qpn
        }
        (Repeats::Nothing | Repeats::Req | Repeats::Rep | Repeats::Dreq, _) => false,
    };
    // Reserved bits of our messages are 0.
    is_ours && transaction_id == snapshot.transaction_id && message.to_mad(transaction_id) == *mad
}
