//! State of one connection, and the messages made from it.
//!
//! A message that may have to be repeated (REQ, REP or DREQ) is stored, so that a repetition has the same bytes. The
//! other messages are made when they are needed, because they depend on the message they answer.

mod parking;

use super::event::CmEvent;
use super::name::{ConnId, ListenId};
use super::params::Config;
use super::private_data;
use super::state::{Emit, Input, Report, State};
use super::timers::{Deadlines, code_nanos};
use super::wire::{
    DrepRepr, DreqRepr, Mad, Message, MraRepr, RejRepr, RejectReason, Rejected, ReqRepr, RtuRepr,
};
use crate::provider::{MadAddress, Nanos, Qpn};
pub(crate) use parking::check_path;
pub(super) use parking::{check_address, is_asked_by};

/// Maximum number of times that a remembered refusal is prolonged because the peer still sends messages.
const MAX_REFUSAL_EXTENSIONS: u8 = 16;
/// Maximum number of repetitions of a request that the peer refuses as stale. When the first repetition arrives, the
/// peer has normally ended its old connection; it has not if the message that ends that connection was lost.
pub(super) const MAX_STALE: u8 = 4;

/// Upper limit for the response timeout code in a peer's request: 8.6 s. Linux sends 20, which is 4.3 s
/// (`CMA_CM_RESPONSE_TIMEOUT`). A longer timeout would only let an unknown peer occupy our resources for longer.
const MAX_RESPONSE_CODE: u8 = 21;

/// Upper limit for the service timeout code in a peer's MRA: 69 s, the value that Linux sends (`CMA_CM_MRA_SETTING`
/// 24).
const MAX_SERVICE_CODE: u8 = 24;

/// Our side of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Active,
    Passive,
}

/// State of one connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) state: State,
    pub(super) role: Role,
    /// Destination of our messages to the peer.
    pub(super) peer: MadAddress,
    pub(super) service_id: u64,
    /// Listener that the request came to; `None` on the active side.
    pub(super) listen: Option<ListenId>,
    /// True while the connection counts as a pending request.
    pub(super) pending: bool,
    /// Sequence number of the request in the list of accepted requests, while it is accepted but not established.
    pub(super) accepted_as: Option<u64>,
    /// Sequence number of the request in the list of refused requests, while its refusal is remembered.
    pub(super) refused_as: Option<u64>,
    /// Our communication ID.
    pub(super) local_id: u32,
    /// The peer's communication ID. The active side learns it from the REP.
    pub(super) remote_id: Option<u32>,
    /// GUID of the peer's adapter, learned from the REQ, or from the REP that we accept.
    pub(super) remote_ca_guid: u64,
    /// Our queue pair. The passive side learns it when the consumer accepts.
    pub(super) local_qpn: Option<Qpn>,
    /// The peer's queue pair, learned from the same message as `remote_ca_guid`. A REP that we do not accept sets
    /// `remote_id` only.
    pub(super) remote_qpn: Option<Qpn>,
    /// Our port if we started the connection through the RDMA CM, otherwise 0.
    pub(super) local_port: u16,
    /// Transaction ID of the current handshake: that of the REQ, later that of the DREQ.
    pub(super) transaction_id: u64,
    /// Transaction ID for our own DREQ.
    pub(super) disconnect_transaction_id: u64,
    /// REQ, REP or DREQ that we repeat until the peer answers.
    pub(super) repeatable: Option<Box<Mad>>,
    /// Number of repetitions made so far.
    retries: u8,
    /// Maximum number of repetitions.
    max_retries: u8,
    /// Time that we wait for an answer.
    response_wait: Nanos,
    /// Time that the peer waits for our answer before it repeats its message.
    peer_wait: Nanos,
    /// Time that we wait for an answer after the peer has acknowledged our message with an MRA. On the passive side it
    /// is 0 until the peer sends an MRA.
    service_wait: Nanos,
    /// Time after which we send the peer an MRA for its undecided request.
    mra_after: Nanos,
    /// Duration of the `TimeWait` state.
    time_wait: Nanos,
    /// Reason that our refusal carries.
    pub(super) refusal: RejectReason,
    /// Private data of our consumer's refusal.
    pub(super) refusal_data: Box<[u8]>,
    /// Number of times that our refusal was prolonged.
    holds: u8,
    /// Number of times the peer has refused our request as stale.
    stale: u8,
    /// Number of the instance that owns the connection, if one was set. It is not interpreted here.
    pub(super) owner: Option<u32>,
    /// True if the consumer wants no more events.
    pub(super) silent: bool,
    /// True if the consumer has released the connection's `ConnId`.
    pub(super) released: bool,
    pub(super) deadlines: Deadlines,
    config: Config,
}

impl Conn {
    /// Returns the time for a round trip plus the other side's processing. `code` is the timeout code of the
    /// processing.
    fn round_trip(config: &Config, code: u8) -> Nanos {
        code_nanos(code) + 2 * code_nanos(config.packet_lifetime)
    }

    /// Creates the active side's connection for a call of `connect`. `req` is the message to send.
    pub(super) fn active(
        config: &Config,
        peer: MadAddress,
        req: &ReqRepr,
        transaction_id: u64,
        port: u16,
    ) -> Self {
        let wait = Self::round_trip(config, config.response_timeout);
        Self {
            state: State::ReqSent,
            role: Role::Active,
            peer,
            service_id: req.service_id,
            listen: None,
            pending: false,
            accepted_as: None,
            refused_as: None,
            local_id: req.local_comm_id,
            remote_id: None,
            remote_ca_guid: 0,
            local_qpn: Some(req.local_qpn),
            remote_qpn: None,
            local_port: port,
            transaction_id,
            disconnect_transaction_id: transaction_id.wrapping_add(1),
            repeatable: Some(Box::new(
                Message::Req(Box::new(req.clone())).to_mad(transaction_id),
            )),
            retries: 0,
            max_retries: config.max_retries,
            response_wait: wait,
            peer_wait: wait,
            service_wait: wait,
            mra_after: wait,
            time_wait: Self::round_trip(config, config.ack_delay),
            refusal: RejectReason::Timeout,
            refusal_data: Box::default(),
            holds: 0,
            stale: 0,
            owner: None,
            silent: false,
            released: false,
            deadlines: Deadlines::default(),
            config: *config,
        }
    }

    /// Creates the passive side's connection for a received REQ.
    pub(super) fn passive(
        config: &Config,
        peer: MadAddress,
        req: &ReqRepr,
        transaction_id: u64,
        local_id: u32,
        disconnect_transaction_id: u64,
        listen: ListenId,
    ) -> Self {
        Self {
            state: State::ReqReceived,
            role: Role::Passive,
            peer,
            service_id: req.service_id,
            listen: Some(listen),
            pending: false,
            accepted_as: None,
            refused_as: None,
            local_id,
            remote_id: Some(req.local_comm_id),
            remote_ca_guid: req.local_ca_guid,
            local_qpn: None,
            remote_qpn: Some(req.local_qpn),
            local_port: 0,
            transaction_id,
            disconnect_transaction_id,
            repeatable: None,
            retries: 0,
            max_retries: req.max_cm_retries,
            response_wait: Self::round_trip(
                config,
                req.local_response_timeout.min(MAX_RESPONSE_CODE),
            ),
            peer_wait: Self::round_trip(config, req.remote_response_timeout.min(MAX_RESPONSE_CODE)),
            service_wait: 0,
            // We send the MRA after half of the time that the peer waits. The other half is for the wire and for our
            // own queue.
            mra_after: code_nanos(req.remote_response_timeout.min(MAX_RESPONSE_CODE)) / 2,
            time_wait: Self::round_trip(config, config.ack_delay),
            refusal: RejectReason::Timeout,
            refusal_data: Box::default(),
            holds: 0,
            stale: 0,
            owner: None,
            silent: false,
            released: false,
            deadlines: Deadlines::default(),
            config: *config,
        }
    }

    /// Returns whether the peer has already sent an MRA for our reply. A peer may do so once. If each repetition of our
    /// reply could bring a further MRA, the peer would occupy the endpoint many times as long.
    pub(super) fn has_sent_mra(&self) -> bool {
        self.role == Role::Passive && self.service_wait != 0
    }

    /// Extends the wait for an answer by the `service_timeout` code of the peer's MRA.
    pub(super) fn extend_wait(&mut self, service_timeout: u8) {
        self.service_wait = Self::round_trip(&self.config, service_timeout.min(MAX_SERVICE_CODE));
    }

    /// Returns the input that the expiry of the state's deadline causes. Counts a repetition if that input is `Retry`.
    pub(super) fn deadline_expired(&mut self) -> Input {
        match self.state {
            State::ReqReceived => Input::MraDue,
            State::Refused | State::TimeWait => Input::HoldOver,
            State::ReqSent
            | State::ReqAcknowledged
            | State::RepReceived
            | State::MraSent
            | State::Withdrawn
            | State::RepSent
            | State::RepAcknowledged
            | State::Established
            | State::DreqSent
            | State::Closed => {
                if self.retries >= self.max_retries {
                    return Input::Exhausted;
                }
                self.retries += 1;
                Input::Retry
            }
        }
    }

    /// Returns whether a message of ours is unanswered and may be sent again.
    pub(super) fn may_repeat(&self) -> bool {
        self.waits_for_answer() && self.retries < self.max_retries
    }

    /// Returns whether we have sent the peer a message that it has not answered.
    pub(super) const fn waits_for_answer(&self) -> bool {
        matches!(
            self.state,
            State::ReqSent | State::RepSent | State::DreqSent
        )
    }

    /// Returns whether a request that the peer refuses as stale may be repeated.
    pub(super) fn may_repeat_stale(&self) -> bool {
        self.stale < MAX_STALE && matches!(self.state, State::ReqSent | State::ReqAcknowledged)
    }

    /// Returns the time that the current state may last, after `input` led to it from `from`. `None` leaves the
    /// deadline unchanged, `Some(None)` clears it.
    pub(super) fn wait_after(&mut self, from: State, input: Input) -> Option<Option<Nanos>> {
        if self.state == State::Refused && from == State::Refused {
            if self.holds == MAX_REFUSAL_EXTENSIONS || input == Input::Abort {
                return None;
            }
            self.holds += 1;
            return Some(Some(2 * self.peer_wait));
        }
        if input == Input::RejStale {
            self.stale += 1;
            // After this time no packet of the old connection is in the network any more, so the request may succeed.
            return Some(Some(self.time_wait));
        }
        if self.state == from && input != Input::Retry {
            return None;
        }
        if input == Input::Accept || from == State::Established {
            self.retries = 0;
        }
        Some(match self.state {
            State::ReqSent | State::RepSent | State::DreqSent => Some(self.response_wait),
            State::ReqAcknowledged | State::RepAcknowledged => Some(self.service_wait),
            State::ReqReceived => Some(self.mra_after),
            State::Refused => Some(2 * self.peer_wait),
            State::TimeWait => Some(self.time_wait),
            // These states have no deadline here. `RepReceived` ends with the consumer's `ready` or with the consumer's
            // timeout, `MraSent` and `Withdrawn` with the consumer's decision. `Established` and `Closed` have no
            // limit.
            State::RepReceived
            | State::MraSent
            | State::Withdrawn
            | State::Established
            | State::Closed => None,
        })
    }

    /// Makes the message that a transition sends, if any. `input` is the input of the transition, `from` the former
    /// state.
    pub(super) fn message(&mut self, send: Emit, from: State, input: Input) -> Option<Mad> {
        let local_comm_id = self.local_id;
        let remote_comm_id = self.remote_id.unwrap_or(0);
        let message = match send {
            Emit::Nothing => return None,
            Emit::Req | Emit::Rep => return self.repeatable.as_deref().copied(),
            Emit::Dreq => {
                if from != State::DreqSent {
                    let dreq = DreqRepr {
                        local_comm_id,
                        remote_comm_id,
                        // PANIC: only an established connection sends a DREQ, and the message that established it
                        // named the queue pair.
                        remote_qpn: self.remote_qpn.expect("the peer has named its queue pair"),
                    };
                    self.transaction_id = self.disconnect_transaction_id;
                    self.repeatable =
                        Some(Box::new(Message::Dreq(dreq).to_mad(self.transaction_id)));
                }
                return self.repeatable.as_deref().copied();
            }
            Emit::Mra => {
                let service_timeout = self.config.service_timeout;
                self.peer_wait = Self::round_trip(&self.config, service_timeout);
                Message::Mra(MraRepr {
                    local_comm_id,
                    remote_comm_id,
                    acknowledged: Rejected::Req,
                    service_timeout,
                })
            }
            Emit::Rtu => Message::Rtu(RtuRepr {
                local_comm_id,
                remote_comm_id,
            }),
            Emit::Drep => Message::Drep(DrepRepr {
                local_comm_id,
                remote_comm_id,
            }),
            Emit::RejTimeout => self.refuse(RejectReason::Timeout, from, input),
            Emit::RejConsumer => self.refuse(RejectReason::Consumer, from, input),
            Emit::RejStale => self.refuse(RejectReason::StaleConnection, from, input),
            Emit::RejGiven | Emit::RejAgain => self.refuse(self.refusal, from, input),
        };
        Some(message.to_mad(self.transaction_id))
    }

    fn refuse(&mut self, reason: RejectReason, from: State, input: Input) -> Message {
        let rejected = match (input, from) {
            (Input::Req, _) | (_, State::ReqReceived | State::MraSent) => Rejected::Req,
            (Input::Rep, _) | (_, State::RepReceived) => Rejected::Rep,
            _ => Rejected::Other,
        };
        self.refusal = reason;
        let mut rej = RejRepr::new(self.local_id, self.remote_id.unwrap_or(0), rejected, reason);
        if reason == RejectReason::Consumer {
            rej.private_data = private_data::encode_reject(self.service_id, &self.refusal_data);
        }
        let timeout = reason == RejectReason::Timeout;
        Message::Rej(Box::new(if timeout {
            rej.with_ca_guid(self.config.local_ca_guid)
        } else {
            rej
        }))
    }
}

/// Returns the events of `report` that carry only the connection. `Reply` and `Rejected` carry contents of a message,
/// so the code that reads the message makes them.
pub(super) fn plain_events(report: Report, conn: ConnId) -> [Option<CmEvent>; 2] {
    let one = |event| [Some(event), None];
    match report {
        Report::Nothing | Report::Reply | Report::Rejected => [None, None],
        Report::Established => one(CmEvent::Established { conn }),
        Report::EstablishedAndDisconnected => [
            Some(CmEvent::Established { conn }),
            Some(CmEvent::Disconnected { conn }),
        ],
        Report::Unreachable => one(CmEvent::Unreachable { conn }),
        Report::TimedOut => one(CmEvent::TimedOut { conn }),
        Report::AcceptFailed => one(CmEvent::AcceptFailed { conn }),
        Report::Disconnected => one(CmEvent::Disconnected { conn }),
        Report::DisconnectDone => one(CmEvent::DisconnectDone { conn }),
    }
}
