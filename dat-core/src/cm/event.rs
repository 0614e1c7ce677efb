//! Events for the consumer, and counters.

use super::name::{ConnId, ListenId};
use super::state::{Emit, Input, Report, State, Step};
use super::wire::RejectReason;
use crate::provider::{Path, Psn, Qpn};

/// A peer's request for a connection. RDMA Read depths are given from our side.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PeerRequest {
    /// Listener that the request came to.
    pub listen: ListenId,
    /// Service ID in the peer's request.
    pub service_id: u64,
    /// GID of the peer.
    pub remote_gid: [u8; 16],
    /// Path to the peer.
    pub path: Path,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// Starting PSN that the peer requests for the packets we send.
    pub remote_psn: Psn,
    /// Number of outstanding RDMA Reads towards us that the peer requests (its initiator depth).
    pub reads_in: u8,
    /// Number of RDMA Reads that the peer can answer at a time, so our maximum.
    pub reads_out: u8,
    /// Path MTU code, 1..=5.
    pub mtu: u8,
    /// ACK timeout code for our queue pair, 1..=31: the code that the peer requests, at most `Config::max_ack_timeout`;
    /// 0 becomes that maximum.
    pub ack_timeout: u8,
    /// Transport retries we should make, 0..=7.
    pub retry_count: u8,
    /// RNR retries we should make, 0..=7.
    pub rnr_retry: u8,
    /// The peer's private data. From an RDMA CM peer it includes the padding, 56 bytes in total.
    pub private_data: Vec<u8>,
    /// The peer's port if the request came through the RDMA CM, otherwise 0.
    pub remote_port: u16,
    /// True if the peer's queue pair uses a shared receive queue.
    pub srq: bool,
}

/// A peer's reply that accepts our request. RDMA Read depths are given from our side.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PeerReply {
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// Starting PSN that the peer requests for the packets we send.
    pub remote_psn: Psn,
    /// Number of outstanding RDMA Reads towards us that the peer requests (its initiator depth).
    pub reads_in: u8,
    /// Number of RDMA Reads that the peer can answer at a time, so our maximum.
    pub reads_out: u8,
    /// RNR retries we should make, 0..=7.
    pub rnr_retry: u8,
    /// ACK timeout code for our queue pair, long enough for the ACK delay of the peer's adapter, 1..=31.
    pub ack_timeout: u8,
    /// The peer's private data. From an RDMA CM peer it includes the padding, 196 bytes in total.
    pub private_data: Vec<u8>,
}

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum CmEvent {
    /// Passive side: a peer requests a connection. The consumer answers with `accept` or `reject`, at any time. The
    /// peer decides how long it waits.
    Request {
        /// Identifier of the new connection.
        conn: ConnId,
        /// Contents of the peer's REQ.
        request: Box<PeerRequest>,
    },
    /// Active side: the peer accepts. The consumer moves its queue pair to RTS and calls `ready`, or it calls `reject`.
    /// After `ready` no further event reports the establishment.
    Reply {
        /// The connection.
        conn: ConnId,
        /// Contents of the peer's REP.
        reply: PeerReply,
    },
    /// Passive side: the accepted connection is established.
    Established {
        /// The connection.
        conn: ConnId,
    },
    /// Active side: the request was refused.
    Rejected {
        /// The connection.
        conn: ConnId,
        /// True if the peer's consumer refused (reason 28), false if its connection manager did.
        by_consumer: bool,
        /// Reason code on the wire.
        reason: u16,
        /// Private data of the refusal by the peer's consumer. From an RDMA CM peer it includes the padding, 148 bytes
        /// in total. Empty if the peer sent none, or if its consumer did not refuse.
        private_data: Vec<u8>,
    },
    /// Active side: neither a REP nor a REJ came for the request or any repetition, or no host answers at the peer's
    /// address.
    Unreachable {
        /// The connection.
        conn: ConnId,
    },
    /// Active side: the timeout that the consumer set has expired.
    TimedOut {
        /// The connection.
        conn: ConnId,
    },
    /// The peer has ended the connection: by a DREQ, which is answered, by a REJ, or by a REQ or REP that names the
    /// same queue pair for a new connection.
    Disconnected {
        /// The connection.
        conn: ConnId,
    },
    /// Our `disconnect` is complete. An attempt ends at once. For an established connection, the peer answered the
    /// DREQ, or all repetitions were sent without an answer.
    DisconnectDone {
        /// The connection.
        conn: ConnId,
    },
    /// Passive side: the accepted connection will not be established, because the peer refused it, stopped waiting, has
    /// begun another connection, or does not answer, or because a request of another peer replaced it.
    AcceptFailed {
        /// The connection.
        conn: ConnId,
    },
}

impl CmEvent {
    /// Returns the connection of the event.
    #[must_use]
    pub const fn conn(&self) -> ConnId {
        match self {
            Self::Request { conn, .. }
            | Self::Reply { conn, .. }
            | Self::Established { conn }
            | Self::Rejected { conn, .. }
            | Self::Unreachable { conn }
            | Self::TimedOut { conn }
            | Self::Disconnected { conn }
            | Self::DisconnectDone { conn }
            | Self::AcceptFailed { conn } => *conn,
        }
    }
}

/// Counters of the connection manager. Each received datagram counts once under `received`, and at most once under one
/// of the other counters of received datagrams, with one exception: a repeated REQ counts under `duplicates`, and also
/// under `unexpected` if the state of its connection does not allow it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams queued to be sent. A datagram that is dropped because the queue is full does not count.
    pub sent: u64,
    /// Number of datagrams in `sent` that repeat an unanswered message.
    pub repeated: u64,
    /// Datagrams received that are not a known connection management message.
    pub malformed: u64,
    /// Datagrams received that belong to no connection, do not come from the connection's peer, or name another queue
    /// pair than the connection's.
    pub foreign: u64,
    /// Datagrams received that the state of their connection does not allow.
    pub unexpected: u64,
    /// Requests that we refused without asking a consumer.
    pub refused: u64,
    /// Repeated requests received.
    pub duplicates: u64,

    /// Connections that our consumers asked for.
    pub connects: u64,
    /// Requests of peers that were reported to consumers.
    pub requests: u64,
    /// Number of `requests` that consumers accepted.
    pub accepted: u64,
    /// Connections that were established, by either side.
    pub established: u64,
    /// Established connections that ended, by either side.
    pub ended: u64,
    /// Number of `connects` that no peer answered.
    pub unreachable: u64,
    /// Number of `connects` that ended because the consumer's timeout expired.
    pub timed_out: u64,
    /// Number of `accepted` requests whose connection was not established.
    pub accept_failed: u64,
    /// Number of `connects` that peers refused, by reason.
    pub refused_by_peers: Refused,
    /// Number of refusals that we sent, by reason: of requests (by a consumer's decision, or without asking one, see
    /// `refused`), of replies, and of attempts that we gave up. The repetitions that the state `Refused` sends are not
    /// counted.
    pub refused_by_us: Refused,
}

/// Number of refusals for each reason (REJ, IBTA volume 1, "Rejection Reason").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Refused([u64; REASONS.len()]);

/// Reasons that are counted separately. The last entry counts all other reasons.
const REASONS: [RejectReason; 13] = [
    RejectReason::NoQp,
    RejectReason::NoResources,
    RejectReason::Timeout,
    RejectReason::Unsupported,
    RejectReason::InvalidCommId,
    RejectReason::InvalidServiceId,
    RejectReason::InvalidTransportType,
    RejectReason::StaleConnection,
    RejectReason::InvalidGid,
    RejectReason::InvalidMtu,
    RejectReason::InsufficientResponderResources,
    RejectReason::Consumer,
    RejectReason::Other(0),
];

impl Refused {
    fn place(reason: RejectReason) -> usize {
        let named = REASONS.iter().position(|other| *other == reason);
        named.unwrap_or(REASONS.len() - 1)
    }

    /// Returns the number of refusals for a reason. All reasons that are not counted separately count as
    /// [`RejectReason::Other`].
    #[must_use]
    pub fn times(&self, reason: RejectReason) -> u64 {
        self.0[Self::place(reason)]
    }

    /// Returns the number of refusals for all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |all, one| all.saturating_add(*one))
    }

    /// Returns each reason that occurred, with its number of refusals.
    pub fn each(&self) -> impl Iterator<Item = (RejectReason, u64)> {
        let all = REASONS.into_iter().zip(self.0);
        all.filter(|(_, times)| *times != 0)
    }

    /// Makes the counts again from those that [`each`](Self::each) returns. Counts of the same reason are added.
    #[cfg(test)]
    pub(crate) fn of_each(counts: impl IntoIterator<Item = (RejectReason, u64)>) -> Self {
        let mut refused = Self::default();
        for (reason, times) in counts {
            let place = &mut refused.0[Self::place(reason)];
            *place = place.saturating_add(times);
        }
        refused
    }

    pub(crate) fn count(&mut self, reason: RejectReason) {
        self.0[Self::place(reason)] += 1;
    }
}

impl Counters {
    /// Counts a transition of a connection. `given` is the reason for which our side refuses, `theirs` the reason in
    /// the peer's refusal.
    pub(crate) fn step(
        &mut self,
        from: State,
        input: Input,
        step: Step,
        given: RejectReason,
        theirs: Option<RejectReason>,
    ) {
        self.accepted += u64::from(step.send == Emit::Rep && input == Input::Accept);
        let there = step.to == State::Established && from != State::Established;
        let briefly = step.report == Report::EstablishedAndDisconnected;
        self.established += u64::from(there || briefly);
        let ends = from == State::Established && step.to != State::Established;
        self.ended += u64::from(ends || briefly);
        self.unreachable += u64::from(step.report == Report::Unreachable);
        self.timed_out += u64::from(step.report == Report::TimedOut);
        self.accept_failed += u64::from(step.report == Report::AcceptFailed);
        if input == Input::Rej
            && step.report == Report::Rejected
            && let Some(reason) = theirs
        {
            self.refused_by_peers.count(reason);
        }
        let ours = match step.send {
            Emit::RejTimeout => RejectReason::Timeout,
            Emit::RejConsumer => RejectReason::Consumer,
            Emit::RejGiven => given,
            Emit::RejStale => RejectReason::StaleConnection,
            Emit::Nothing
            | Emit::Req
            | Emit::Mra
            | Emit::Rep
            | Emit::Rtu
            | Emit::Dreq
            | Emit::Drep
            | Emit::RejAgain => return,
        };
        self.refused_by_us.count(ours);
    }
}
