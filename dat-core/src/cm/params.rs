//! Parameters that callers give, and the errors about them.

use super::private_data::PrivateDataError;
use super::state::State;
use crate::provider::{Nanos, Path, Psn, Qpn};

/// Largest flow label (20 bits).
pub(super) const MOST_FLOW_LABEL: u32 = 0xf_ffff;
/// Largest priority of a frame (3 bits).
pub(super) const MOST_PRIORITY: u8 = 0x7;
/// Largest number of repetitions of a message (4 bits).
pub(super) const MOST_RETRIES: u8 = 0xf;
/// Longest time that a consumer may allow for establishing a connection, in nanoseconds: that of a `DAT_TIMEOUT`, whose
/// 32 bits count microseconds. A longer time is treated as this one.
pub(super) const LONGEST_TIMEOUT: Nanos = 0xffff_ffff * 1_000;

/// Configuration of a connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Config {
    /// GUID of our adapter. Together with a communication ID it identifies a connection in the whole fabric.
    pub local_ca_guid: u64,
    /// Time within which we expect an answer from a peer, and within which we promise to answer (5 bits, 4.096 us *
    /// 2^n).
    pub response_timeout: u8,
    /// Longest time that a packet is in the network (5 bits, 4.096 us * 2^n).
    pub packet_lifetime: u8,
    /// Maximum number of repetitions of a message, at most 15.
    pub max_retries: u8,
    /// Service timeout in our MRA: additional time for which the peer waits while our consumer decides (5 bits,
    /// 4.096 us * 2^n).
    pub service_timeout: u8,
    /// Time that our adapter takes to acknowledge a packet, reported to peers (5 bits, 4.096 us * 2^n).
    pub ack_delay: u8,
    /// Packet rate of our port (IBTA rate code, 6 bits; 16 is 100 Gb/s).
    pub packet_rate: u8,
    /// Largest path MTU of our port (IBTA code, 1..=5). A REQ with a larger MTU is refused, because a REP cannot reduce
    /// the MTU of the REQ.
    pub max_mtu: u8,
    /// Maximum number of connections in any state. A REQ above the limit is refused for lack of resources. One
    /// sixteenth of the connections is reserved for [`super::Cm::connect`].
    pub max_connections: usize,
    /// Maximum number of pending requests from one address: undecided, or accepted and not yet established. A request
    /// above the limit is refused for lack of resources.
    pub max_pending_per_peer: usize,
    /// Maximum number of pending requests to one listener. A request above the limit is refused for lack of resources,
    /// unless its address has few pending requests; then the oldest accepted request is dropped. This is also the
    /// maximum number of refused requests that are remembered, for all listeners together.
    ///
    /// Each request takes one kilobyte here. An accepted one also takes the consumer's endpoint, 6 KiB with the
    /// smallest queues: 24 MiB with the default.
    pub max_pending_per_listener: usize,
    /// Upper limit for the local ACK timeout of our queue pair (5 bits, 4.096 us * 2^n). A peer asks for a timeout
    /// directly, or by the ACK delay of its adapter. Longer timeouts are reduced to this limit. So is 0, which means no
    /// timeout: the peer's death would not be noticed.
    pub max_ack_timeout: u8,
}

impl Default for Config {
    /// Returns the defaults. A peer is expected to answer within a second and gets at most sixteen copies of a message,
    /// so a silent peer is unreachable after 20 seconds.
    fn default() -> Self {
        Self {
            local_ca_guid: 0,
            response_timeout: 18,
            packet_lifetime: 14,
            max_retries: 15,
            service_timeout: 22,
            ack_delay: 15,
            packet_rate: 16,
            max_mtu: 5,
            max_connections: 65_536,
            max_pending_per_peer: 2_048,
            max_pending_per_listener: 4_096,
            // Code 22 is 17 s; with seven retries a queue pair fails after some minutes.
            max_ack_timeout: 22,
        }
    }
}

impl Config {
    /// Reduces each code that is over its limit to the limit. Raises `max_ack_timeout` to at least 1.
    #[must_use]
    pub(super) fn clamped(self) -> Self {
        Self {
            response_timeout: self.response_timeout.min(31),
            packet_lifetime: self.packet_lifetime.min(31),
            max_retries: self.max_retries.min(MOST_RETRIES),
            service_timeout: self.service_timeout.min(31),
            ack_delay: self.ack_delay.min(31),
            packet_rate: self.packet_rate.min(63),
            max_mtu: self.max_mtu.min(5),
            max_ack_timeout: self.max_ack_timeout.clamp(1, 31),
            ..self
        }
    }

    /// Reduces the numbers of connections and requests to those of `limits`.
    #[must_use]
    pub(super) fn limited(self, limits: &Self) -> Self {
        Self {
            max_connections: self.max_connections.min(limits.max_connections),
            max_pending_per_peer: self.max_pending_per_peer.min(limits.max_pending_per_peer),
            max_pending_per_listener: self
                .max_pending_per_listener
                .min(limits.max_pending_per_listener),
            ..self
        }
    }

    /// Returns the ACK timeout code that our queue pair uses if the peer requests `asked`.
    pub(super) fn bounded(&self, asked: u8) -> u8 {
        let most = self.max_ack_timeout;
        if asked == 0 { most } else { asked.min(most) }
    }

    /// Returns the ACK timeout code that our queue pair uses towards an adapter with this ACK delay code.
    pub(super) fn ack_timeout(&self, ack_delay: u8) -> u8 {
        self.bounded(ack_timeout(self.packet_lifetime, ack_delay))
    }
}

/// Returns the time that a queue pair should wait for an acknowledgement before it repeats a packet, as a code
/// (4.096 us * 2^n, at most 31). The time covers two packet lifetimes and the ACK delay of the other adapter (IBTA
/// volume 1, "Local ACK Timeout"); both parameters are codes of the same unit. A shorter time would repeat packets
/// that were not lost. Linux (`cm.c` `cm_ack_timeout`) rounds down instead if the smaller part is less than half of
/// the larger.
#[must_use]
pub fn ack_timeout(packet_lifetime: u8, ack_delay: u8) -> u8 {
    let time = (2_u64 << packet_lifetime.min(31)) + (1_u64 << ack_delay.min(31));
    let code = time.next_power_of_two().ilog2();
    u8::try_from(code.min(31)).unwrap_or(31)
}

/// Parameters of a connection request.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams<'a> {
    /// Service ID to connect to. For a service ID of [`super::rdma_cm`], the REQ gets the RDMA CM's IP header.
    pub service_id: u64,
    /// Our GID on the path; an IPv4 address is `::ffff:a.b.c.d`.
    pub source: [u8; 16],
    /// Path to the peer.
    pub path: Path,
    /// Our queue pair.
    pub qpn: Qpn,
    /// First packet sequence number the peer is to send.
    pub psn: Psn,
    /// Number of RDMA Reads we want to have outstanding.
    pub reads_out: u8,
    /// Number of RDMA Reads we can answer at a time.
    pub reads_in: u8,
    /// Path MTU code, 1..=5.
    pub mtu: u8,
    /// Transport retries the peer should make, 0..=7.
    pub retry_count: u8,
    /// RNR retries the peer should make, 0..=7, 7 is for ever.
    pub rnr_retry: u8,
    /// ACK timeout code the peer should use, 0..=31.
    pub ack_timeout: u8,
    /// The consumer's private data; [`super::request_limit`] returns the maximum length.
    pub private_data: &'a [u8],
    /// Time from now, in nanoseconds, after which the attempt is given up; at most that of a `DAT_TIMEOUT`, 1 hour and
    /// 11 minutes. With `None` only the protocol's limits apply.
    pub timeout: Option<Nanos>,
    /// True if our queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// 64 random bits, from which unpredictable identifiers are made.
    pub random: u64,
}

/// Parameters of an accept.
#[derive(Clone, Copy, Debug)]
pub struct AcceptParams<'a> {
    /// Our queue pair.
    pub qpn: Qpn,
    /// First packet sequence number the peer is to send.
    pub psn: Psn,
    /// Number of RDMA Reads we want to have outstanding.
    pub reads_out: u8,
    /// Number of RDMA Reads we can answer at a time.
    pub reads_in: u8,
    /// RNR retries the peer should make, 0..=7, 7 is for ever.
    pub rnr_retry: u8,
    /// True if our queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// The consumer's private data; [`super::reply_limit`] returns the maximum length.
    pub private_data: &'a [u8],
}

/// Error: the service ID has a listener already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("service ID {service_id:#018x} is in use")]
pub struct InUse {
    /// The service ID that is in use.
    pub service_id: u64,
}

/// Reason why `connect` refused to start a connection; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The private data cannot be sent.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataError),
    /// A number does not fit its field.
    #[error("{name} is {value}, at most {limit} is possible")]
    OutOfRange {
        /// Name of the parameter.
        name: &'static str,
        /// Value given.
        value: u32,
        /// Largest possible value.
        limit: u32,
    },
    /// The path MTU code is not in 1..=5.
    #[error("path MTU code {0} is outside 1 to 5")]
    Mtu(u8),
    /// The number of connections has reached [`Config::max_connections`].
    #[error("{0} connections exist, which is the maximum")]
    TooMany(usize),
}

/// Reason why a call on a connection was refused; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// The connection was released, or never existed.
    #[error("no such connection")]
    Unknown,
    /// The call is not permitted in the connection's state.
    #[error("not possible in state {0:?}")]
    State(State),
    /// The private data cannot be sent.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataError),
    /// A number does not fit its field.
    #[error("{name} is {value}, at most {limit} is possible")]
    OutOfRange {
        /// Name of the parameter.
        name: &'static str,
        /// Value given.
        value: u32,
        /// Largest possible value.
        limit: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::ack_timeout;

    /// An ACK timeout covers two packet lifetimes and the adapter's delay. The expected codes, computed by hand, stand
    /// for the sum of these times, rounded up to a power of two, and are at most 31. The second row is our path with a
    /// ConnectX-4 Lx, whose delay is 16.
    #[test]
    fn an_acknowledgement_has_the_way_there_and_back_and_the_adapters_delay() {
        for (lifetime, delay, code) in [
            (14, 15, 16),
            (14, 16, 17),
            (14, 13, 16),
            (18, 16, 20),
            (0, 0, 2),
            (31, 31, 31),
            (255, 255, 31),
        ] {
            assert_eq!(ack_timeout(lifetime, delay), code, "{lifetime} {delay}");
        }
    }
}
