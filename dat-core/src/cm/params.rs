//! What callers give, and what they are told is wrong with it.

use super::private_data::PrivateDataError;
use super::state::State;
use crate::provider::{Nanos, Path};

/// How this connection manager behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// GUID of our adapter: with a communication ID it names a connection for the whole fabric.
    pub local_ca_guid: u64,
    /// How soon we expect a peer to answer, and promise to answer ourselves (5 bits,
    /// 4.096 us * 2^n).
    pub response_timeout: u8,
    /// How long a packet can be on its way (5 bits, 4.096 us * 2^n).
    pub packet_lifetime: u8,
    /// How often a message is repeated, at most 15.
    pub max_retries: u8,
    /// How much longer a peer shall wait while our consumer decides (5 bits, 4.096 us * 2^n).
    pub service_timeout: u8,
    /// How long our adapter takes to acknowledge a packet (5 bits, 4.096 us * 2^n); peers are told.
    pub ack_delay: u8,
    /// Packet rate of our port (IBTA rate code, 6 bits; 16 is 100 Gb/s).
    pub packet_rate: u8,
    /// Largest path MTU of our port (IBTA code, 1..=5). A reply cannot ask for less than the REQ says, so a
    /// REQ over it is refused.
    pub max_mtu: u8,
    /// Connections, in whatever state, that may exist; a REQ over it is refused for lack of
    /// resources. A sixteenth of them is kept for [`super::Cm::connect`]: REQs leave so many free.
    pub max_connections: usize,
    /// Requests from one address that may be under way, undecided or accepted and not yet established; one over it is
    /// refused for lack of resources.
    pub max_pending_per_peer: usize,
    /// Requests to one listener that may be under way, likewise. One over it is refused for lack of resources, unless
    /// its address has few of them; then the oldest accepted one makes room. This is also how many requests that the
    /// consumer has refused are remembered, of all listeners together.
    ///
    /// Each is a kilobyte here. An accepted one has the consumer's endpoint besides, 6 KiB with the smallest queues: 24
    /// MiB with the default.
    pub max_pending_per_listener: usize,
    /// The longest local ACK timeout that a peer may ask of our queue pair, or have it take by naming a delay of its
    /// adapter (5 bits, 4.096 us * 2^n). Longer ones, and 0, which is for ever, are taken as this: with them the peer's
    /// death would not be noticed.
    pub max_ack_timeout: u8,
}

impl Default for Config {
    /// An answer within a second, sixteen attempts: a silent peer is unreachable after 20 seconds.
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
            // 17 s; with seven repetitions some minutes.
            max_ack_timeout: 22,
        }
    }
}

impl Config {
    /// Codes wider than their fields are taken as the largest that fits.
    #[must_use]
    pub(super) fn clamped(self) -> Self {
        Self {
            response_timeout: self.response_timeout.min(31),
            packet_lifetime: self.packet_lifetime.min(31),
            max_retries: self.max_retries.min(15),
            service_timeout: self.service_timeout.min(31),
            ack_delay: self.ack_delay.min(31),
            packet_rate: self.packet_rate.min(63),
            max_ack_timeout: self.max_ack_timeout.clamp(1, 31),
            ..self
        }
    }

    /// The ACK timeout our queue pair uses where the peer asks for `asked`.
    pub(super) fn bounded(&self, asked: u8) -> u8 {
        let most = self.max_ack_timeout;
        if asked == 0 { most } else { asked.min(most) }
    }

    /// The ACK timeout our queue pair uses towards an adapter that takes `ack_delay` to acknowledge.
    pub(super) fn ack_timeout(&self, ack_delay: u8) -> u8 {
        self.bounded(ack_timeout(self.packet_lifetime, ack_delay))
    }
}

/// How long to wait for an acknowledgement before a packet is sent again, as a code (4.096 us * 2^n, at most 31): not
/// shorter than the way there and back and the acknowledging adapter's delay, both codes of the same unit (IBTA volume
/// 1, "Local ACK Timeout"). A shorter time repeats packets that were not lost. Linux (`cm.c` `cm_ack_timeout`) rounds
/// down instead where the smaller part is less than half of the larger.
#[must_use]
pub fn ack_timeout(packet_lifetime: u8, ack_delay: u8) -> u8 {
    let time = (2_u64 << packet_lifetime.min(31)) + (1_u64 << ack_delay.min(31));
    let code = time.next_power_of_two().ilog2();
    u8::try_from(code.min(31)).unwrap_or(31)
}

/// What a connection request says.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams<'a> {
    /// Whom to ask for. Service IDs of [`super::rdma_cm`] get its IP header.
    pub service_id: u64,
    /// Our GID on the path; an IPv4 address is `::ffff:a.b.c.d`.
    pub source: [u8; 16],
    /// The way to the peer.
    pub path: Path,
    /// Our queue pair (24 bits).
    pub qpn: u32,
    /// First packet sequence number the peer is to send (24 bits).
    pub psn: u32,
    /// RDMA Reads we want to have outstanding.
    pub reads_out: u8,
    /// RDMA Reads we can answer at a time.
    pub reads_in: u8,
    /// Path MTU code, 1..=5.
    pub mtu: u8,
    /// Transport retries the peer should make, 0..=7.
    pub retry_count: u8,
    /// RNR retries the peer should make, 0..=7, 7 is for ever.
    pub rnr_retry: u8,
    /// ACK timeout code the peer should use, 0..=31.
    pub ack_timeout: u8,
    /// The consumer's private data; see [`super::request_limit`].
    pub private_data: &'a [u8],
    /// Nanoseconds from now after which the attempt is given up; `None` leaves only the limits of
    /// the protocol.
    pub timeout: Option<Nanos>,
    /// Our queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// 64 random bits, for names nobody can guess.
    pub random: u64,
}

/// What the acceptance of a request says.
#[derive(Clone, Copy, Debug)]
pub struct AcceptParams<'a> {
    /// Our queue pair (24 bits).
    pub qpn: u32,
    /// First packet sequence number the peer is to send (24 bits).
    pub psn: u32,
    /// RDMA Reads we want to have outstanding.
    pub reads_out: u8,
    /// RDMA Reads we can answer at a time.
    pub reads_in: u8,
    /// RNR retries the peer should make, 0..=7, 7 is for ever.
    pub rnr_retry: u8,
    /// Our queue pair takes its receives from a shared queue.
    pub srq: bool,
    /// The consumer's private data; see [`super::reply_limit`].
    pub private_data: &'a [u8],
}

/// Somebody listens at the service ID already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("service ID {service_id:#018x} is in use")]
pub struct InUse {
    /// The service ID asked for.
    pub service_id: u64,
}

/// Why a connection was not even tried; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The private data cannot be sent.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataError),
    /// A number does not fit its field.
    #[error("{name} is {value}, at most {limit} is possible")]
    OutOfRange {
        /// Of the parameter.
        name: &'static str,
        /// Given.
        value: u32,
        /// Largest possible.
        limit: u32,
    },
    /// Path MTU codes are 1..=5.
    #[error("path MTU code {0} is none")]
    Mtu(u8),
    /// [`Config::max_connections`] exist.
    #[error("{0} connections exist, and no more may")]
    TooMany(usize),
}

/// Why a call on a connection was refused; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CmError {
    /// It was released, or never existed.
    #[error("no such connection")]
    Unknown,
    /// The connection is in a state in which the call means nothing.
    #[error("not possible in state {0:?}")]
    State(State),
    /// The private data cannot be sent.
    #[error(transparent)]
    PrivateData(#[from] PrivateDataError),
    /// A number does not fit its field.
    #[error("{name} is {value}, at most {limit} is possible")]
    OutOfRange {
        /// Of the parameter.
        name: &'static str,
        /// Given.
        value: u32,
        /// Largest possible.
        limit: u32,
    },
}

/// A parameter that is wider than its field: name, value, limit.
pub(super) type Wide = (&'static str, u32, u32);

/// The first of `(name, value, limit)` whose value is over its limit.
pub(super) fn first_out_of_range<const N: usize>(parameters: [Wide; N]) -> Option<Wide> {
    parameters
        .into_iter()
        .find(|&(_, value, limit)| value > limit)
}

/// The largest 24-bit number.
pub(super) const MAX_24_BITS: u32 = (1 << 24) - 1;

#[cfg(test)]
mod tests {
    use super::ack_timeout;

    /// Rows by hand: the sum of two powers of two, and the next power. Our way with a ConnectX-4 Lx, which says 16, is
    /// the second.
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
