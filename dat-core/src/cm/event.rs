//! Events for the consumer, and counters.

use super::name::{ConnId, ListenId};
use super::state::{Emit, Input, State, Step, Tell};
use super::wire::RejectReason;
use crate::provider::Path;

/// An event of a connection.
///
/// RDMA Read depths are given from our side: `reads_in` is the number that the peer wants to have outstanding towards
/// us. `reads_out` is the number that it can answer, and so the most we may have outstanding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// Passive side: a peer asks for a connection. The consumer answers with `accept` or `reject`, at any time; the
    /// peer waits as long as it is willing to.
    Request {
        /// The name of the new connection.
        conn: ConnId,
        /// The listener.
        listen: ListenId,
        /// Service ID that was asked for.
        service_id: u64,
        /// GID of the peer.
        remote_gid: [u8; 16],
        /// Path to the peer.
        path: Path,
        /// The peer's queue pair (24 bits).
        remote_qpn: u32,
        /// First packet sequence number the peer wants us to send (24 bits).
        remote_psn: u32,
        /// RDMA Reads the peer wants to have outstanding towards us.
        reads_in: u8,
        /// RDMA Reads the peer can answer at a time.
        reads_out: u8,
        /// Path MTU code, 1..=5.
        mtu: u8,
        /// ACK timeout code we should use, 0..=31.
        ack_timeout: u8,
        /// Transport retries we should make, 0..=7.
        retry_count: u8,
        /// RNR retries we should make, 0..=7.
        rnr_retry: u8,
        /// The peer's private data; from an RDMA CM peer with the padding, 56 bytes.
        private_data: Vec<u8>,
        /// The peer's port if the request came through the RDMA CM, otherwise 0.
        remote_port: u16,
        /// True if the peer's queue pair takes its receives from a shared queue.
        srq: bool,
    },
    /// Active side: the peer accepts. The consumer moves its queue pair to RTS and calls `ready`, or
    /// it calls `reject`. There is no further event for `ready`.
    Reply {
        /// The connection.
        conn: ConnId,
        /// The peer's queue pair (24 bits).
        remote_qpn: u32,
        /// First packet sequence number the peer wants us to send (24 bits).
        remote_psn: u32,
        /// RDMA Reads the peer wants to have outstanding towards us.
        reads_in: u8,
        /// RDMA Reads the peer can answer at a time.
        reads_out: u8,
        /// RNR retries we should make, 0..=7.
        rnr_retry: u8,
        /// ACK timeout code that leaves the peer's adapter the time it needs, 1..=31.
        ack_timeout: u8,
        /// The peer's private data; from an RDMA CM peer with the padding, 196 bytes.
        private_data: Vec<u8>,
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
        /// True if the peer's consumer refused (reason 28).
        by_consumer: bool,
        /// Reason code on the wire.
        reason: u16,
        /// Private data of the refusal by the peer's consumer; from an RDMA CM peer with the padding, 148 bytes.
        /// Empty if there was none, or if the consumer did not refuse.
        private_data: Vec<u8>,
    },
    /// Active side: the peer answered none of the repetitions.
    Unreachable {
        /// The connection.
        conn: ConnId,
    },
    /// Active side: the consumer's timeout passed.
    TimedOut {
        /// The connection.
        conn: ConnId,
    },
    /// The peer disconnected; the handshake is done.
    Disconnected {
        /// The connection.
        conn: ConnId,
    },
    /// A `disconnect` has been answered, or all its repetitions were made.
    DisconnectDone {
        /// The connection.
        conn: ConnId,
    },
    /// Passive side: the accepted connection will not be established: the peer refused, gave up, or is gone.
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

/// Counters. Each received datagram counts once under `received` and at most once below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Repetitions among those sent, for lack of an answer.
    pub repeated: u64,
    /// Datagrams received that are no known connection management message.
    pub malformed: u64,
    /// Datagrams received that name no connection, or do not come from its peer.
    pub foreign: u64,
    /// Datagrams received that have no meaning in the state of their connection.
    pub unexpected: u64,
    /// Requests refused without asking a consumer.
    pub refused: u64,
    /// Requests received again.
    pub duplicates: u64,

    /// Connections that our consumers asked for.
    pub connects: u64,
    /// Requests of peers that were reported to consumers.
    pub requests: u64,
    /// Requests among `requests` that consumers accepted.
    pub accepted: u64,
    /// Connections that were established, by either side.
    pub established: u64,
    /// Established connections that ended, by either side.
    pub ended: u64,
    /// Connects among `connects` that no peer answered.
    pub unreachable: u64,
    /// Connects among `connects` whose consumer's timeout passed.
    pub timed_out: u64,
    /// Accepts among `accepted` whose connection was not established.
    pub accept_failed: u64,
    /// Refusals by peers of `connects`.
    pub refused_by_peers: Refused,
    /// Refusals by us: of requests, by consumers and without asking one (`refused`), and of replies that came too
    /// late.
    pub refused_by_us: Refused,
}

/// Refusals by their reason (REJ, IBTA volume 1, "Rejection Reason").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused([u64; REASONS.len()]);

/// Reasons that are counted separately; the last stands for all others.
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

    /// Returns the number for a reason; all reasons without a name count under [`RejectReason::Other`].
    #[must_use]
    pub fn times(&self, reason: RejectReason) -> u64 {
        self.0[Self::place(reason)]
    }

    /// Returns the total.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the reasons that occurred, with their numbers.
    pub fn each(&self) -> impl Iterator<Item = (RejectReason, u64)> {
        let all = REASONS.into_iter().zip(self.0);
        all.filter(|(_, times)| *times != 0)
    }

    pub(crate) fn count(&mut self, reason: RejectReason) {
        self.0[Self::place(reason)] += 1;
    }
}

impl Counters {
    /// Counts a step of a connection. `given` is the reason that its consumer named, `told` that of the peer.
    pub(crate) fn step(
        &mut self,
        from: State,
        input: Input,
        step: Step,
        given: RejectReason,
        told: Option<RejectReason>,
    ) {
        self.accepted += u64::from(step.send == Emit::Rep && input == Input::Accept);
        let there = step.to == State::Established && from != State::Established;
        let briefly = step.tell == Tell::EstablishedAndDisconnected;
        self.established += u64::from(there || briefly);
        let ends = from == State::Established && step.to != State::Established;
        self.ended += u64::from(ends || briefly);
        self.unreachable += u64::from(step.tell == Tell::Unreachable);
        self.timed_out += u64::from(step.tell == Tell::TimedOut);
        self.accept_failed += u64::from(step.tell == Tell::AcceptFailed);
        if input == Input::Rej
            && step.tell == Tell::Rejected
            && let Some(reason) = told
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
