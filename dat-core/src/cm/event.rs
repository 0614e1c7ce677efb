//! What the consumer is told, and what is counted.

use super::name::{ConnId, ListenId};
use super::state::{Emit, Input, State, Step, Tell};
use super::wire::RejectReason;
use crate::provider::Path;

/// Something that happened to a connection.
///
/// RDMA Read depths are given from our side: `reads_in` is how many the peer wants to have
/// outstanding towards us, `reads_out` how many it can answer, and so the most we may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmEvent {
    /// Passive side: a peer asks. The consumer answers with `accept` or `reject`, when it likes; the
    /// peer is kept waiting as long as it cares to.
    Request {
        /// The name of the new connection.
        conn: ConnId,
        /// Who listens.
        listen: ListenId,
        /// What was asked for.
        service_id: u64,
        /// GID of the peer.
        remote_gid: [u8; 16],
        /// The way to the peer.
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
        /// The peer's private data; of an RDMA CM peer with the padding, 56 bytes.
        private_data: Vec<u8>,
        /// The peer's port when it comes through the RDMA CM, otherwise 0.
        remote_port: u16,
        /// The peer's queue pair takes its receives from a shared queue.
        srq: bool,
    },
    /// Active side: the peer accepts. The consumer moves its queue pair to RTS and calls `ready`, or
    /// it calls `reject`. There is no further event for `ready`.
    Reply {
        /// Which connection.
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
        /// The peer's private data; of an RDMA CM peer with the padding, 196 bytes.
        private_data: Vec<u8>,
    },
    /// Passive side: what was accepted is connected.
    Established {
        /// Which connection.
        conn: ConnId,
    },
    /// Active side: refused.
    Rejected {
        /// Which connection.
        conn: ConnId,
        /// The peer's consumer said no (reason 28).
        by_consumer: bool,
        /// The reason on the wire.
        reason: u16,
        /// What the peer's consumer said with it; of an RDMA CM peer with the padding, 148 bytes. Empty if it said
        /// nothing, or if it was not the consumer.
        private_data: Vec<u8>,
    },
    /// Active side: the peer did not answer, however often it was asked.
    Unreachable {
        /// Which connection.
        conn: ConnId,
    },
    /// Active side: the consumer's timeout passed.
    TimedOut {
        /// Which connection.
        conn: ConnId,
    },
    /// The peer disconnected; the handshake is done.
    Disconnected {
        /// Which connection.
        conn: ConnId,
    },
    /// A `disconnect` has been answered, or has been repeated often enough.
    DisconnectDone {
        /// Which connection.
        conn: ConnId,
    },
    /// Passive side: what was accepted will not be: the peer refused, gave up, or is gone.
    AcceptFailed {
        /// Which connection.
        conn: ConnId,
    },
}

impl CmEvent {
    /// The connection it is about.
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

/// How many of what. Each received datagram counts once under `received` and at most once below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Of those sent, repetitions for want of an answer.
    pub repeated: u64,
    /// Received, and no connection management message we know.
    pub malformed: u64,
    /// Received, and naming no connection, or from another place than its peer.
    pub foreign: u64,
    /// Received, and without meaning in the state of the connection it names.
    pub unexpected: u64,
    /// Requests refused without asking a consumer.
    pub refused: u64,
    /// Requests received again.
    pub duplicates: u64,

    /// Connections that our consumers asked for.
    pub connects: u64,
    /// Requests of peers that consumers were asked about.
    pub requests: u64,
    /// Those that consumers accepted.
    pub accepted: u64,
    /// Connections that came about, whoever asked for them.
    pub established: u64,
    /// Connections that were there and ended, whoever ended them.
    pub ended: u64,
    /// Of `connects`: nobody answered.
    pub unreachable: u64,
    /// Of `connects`: the consumer's own time was over.
    pub timed_out: u64,
    /// Of `accepted`: nothing came of it.
    pub accept_failed: u64,
    /// Refusals that peers sent of `connects`.
    pub refused_by_peers: Refused,
    /// Refusals that we sent: of requests, by consumers and without asking any (`refused`), and of answers that came
    /// too late.
    pub refused_by_us: Refused,
}

/// Refusals by their reason (REJ, IBTA volume 1, "Rejection Reason").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused([u64; REASONS.len()]);

/// Reasons that are counted apart; the last stands for all others.
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

    /// How many for this reason; those for reasons without a name are all [`RejectReason::Other`]'s.
    #[must_use]
    pub fn times(&self, reason: RejectReason) -> u64 {
        self.0[Self::place(reason)]
    }

    /// How many in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Reasons and how many, those that there were.
    pub fn each(&self) -> impl Iterator<Item = (RejectReason, u64)> {
        let all = REASONS.into_iter().zip(self.0);
        all.filter(|(_, times)| *times != 0)
    }

    pub(crate) fn count(&mut self, reason: RejectReason) {
        self.0[Self::place(reason)] += 1;
    }
}

impl Counters {
    /// A connection took a step. `given` is the reason that its consumer has named, `told` that of the peer.
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
