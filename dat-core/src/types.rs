//! Scalar types and flags of DAT 1.2 (`dat.h`).
//!
//! Flags from a caller keep unknown bits (`from_bits_retain`). So an illegal bit reaches the check that refuses it, and
//! is not silently dropped.

use crate::error::{DatError, DatResult, Subtype};
use core::time::Duration;

pub use rdma_types::Access as MemPrivFlags;

/// Privileges with which a region may be registered.
pub(crate) const OF_REGIONS: MemPrivFlags = MemPrivFlags::all().union(MemPrivFlags::REMOTE_ATOMIC);
/// Privileges with which an RMR may be bound.
pub(crate) const OF_BINDS: MemPrivFlags =
    MemPrivFlags::all().union(MemPrivFlags::REMOTE_INVALIDATE);

/// Status of a finished DTO (`DAT_DTO_COMPLETION_STATUS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
pub enum DtoStatus {
    /// The DTO succeeded.
    Success = 0,
    /// The DTO was not attempted, or was interrupted, because the connection ended.
    ErrFlushed = 1,
    /// The incoming message is longer than the receive buffer.
    ErrLocalLength = 2,
    /// The endpoint's queue is inconsistent.
    ErrLocalEp = 3,
    /// A local memory region refused the access.
    ErrLocalProtection = 4,
    /// The peer's response was invalid.
    ErrBadResponse = 5,
    /// The peer's memory refused the access.
    ErrRemoteAccess = 6,
    /// The peer could not carry the request out.
    ErrRemoteResponder = 7,
    /// The peer did not acknowledge or answer the request.
    ErrTransport = 8,
    /// The peer had no receive buffer.
    ErrReceiverNotReady = 9,
    /// A packet was truncated.
    ErrPartialPacket = 10,
    /// A memory window bind failed after it was posted.
    RmrOperationFailed = 11,
}

impl DtoStatus {
    /// Returns the name in `dat.h`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "DAT_DTO_SUCCESS",
            Self::ErrFlushed => "DAT_DTO_ERR_FLUSHED",
            Self::ErrLocalLength => "DAT_DTO_ERR_LOCAL_LENGTH",
            Self::ErrLocalEp => "DAT_DTO_ERR_LOCAL_EP",
            Self::ErrLocalProtection => "DAT_DTO_ERR_LOCAL_PROTECTION",
            Self::ErrBadResponse => "DAT_DTO_ERR_BAD_RESPONSE",
            Self::ErrRemoteAccess => "DAT_DTO_ERR_REMOTE_ACCESS",
            Self::ErrRemoteResponder => "DAT_DTO_ERR_REMOTE_RESPONDER",
            Self::ErrTransport => "DAT_DTO_ERR_TRANSPORT",
            Self::ErrReceiverNotReady => "DAT_DTO_ERR_RECEIVER_NOT_READY",
            Self::ErrPartialPacket => "DAT_DTO_ERR_PARTIAL_PACKET",
            Self::RmrOperationFailed => "DAT_RMR_OPERATION_FAILED",
        }
    }
}

/// A number that the consumer gives with a DTO and gets back with its completion (`DAT_DTO_COOKIE`). The library does
/// not interpret it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
#[repr(transparent)]
pub struct DtoCookie(pub u64);

/// A number that the consumer gives with a bind and gets back with its completion (`DAT_RMR_COOKIE`). The library does
/// not interpret it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
#[repr(transparent)]
pub struct RmrCookie(pub u64);

/// A connection qualifier (`DAT_CONN_QUAL`), at which a server listens. Up to 0xffff it is a TCP port of the RDMA-CM
/// (NVMe over RDMA listens at port 4420). Above that it is an IB service ID. 0 is not allowed.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[repr(transparent)]
pub struct ConnQual(pub u64);

impl ConnQual {
    /// Returns the qualifier of a TCP port of the RDMA-CM (IBTA annex A11). A request to it carries at most 56 bytes of
    /// private data.
    #[must_use]
    pub const fn port(port: u16) -> Self {
        // CAST: widening.
        Self(port as u64)
    }

    /// Returns the qualifier of an IB service ID (IBTA 12.7.3) above 0xffff; lower numbers are ports. A request to it
    /// carries at most 64 bytes of private data.
    #[must_use]
    pub const fn service_id(id: u64) -> Self {
        Self(id)
    }
}

/// Formats the qualifier as `port 4420` or `service 0x100000001`.
impl core::fmt::Display for ConnQual {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            port @ ..=0xffff => write!(f, "port {port}"),
            id => write!(f, "service {id:#x}"),
        }
    }
}

impl core::fmt::Debug for ConnQual {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "ConnQual({:#x})", self.0)
    }
}

bitflags::bitflags! {
    /// Flags that determine how a DTO completes (`DAT_COMPLETION_FLAGS`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct CompletionFlags: u32 {
        /// A successful DTO makes no event.
        const SUPPRESS = 0x01;
        /// On a Send: the matching receive is a notification event at the peer. As a receive attribute of an endpoint:
        /// the peer's flag decides which receives are notification events.
        const SOLICITED_WAIT = 0x02;
        /// On a DTO: its completion is not a notification event. As an attribute of an endpoint: posts may use this
        /// flag.
        const UNSIGNALLED = 0x04;
        /// The DTO does not start before the RDMA Reads posted earlier are complete.
        const BARRIER_FENCE = 0x08;
        /// Only as an attribute of an endpoint: a count of events releases waiters.
        const EVD_THRESHOLD = 0x10;
    }

    /// The event streams an EVD may carry (`DAT_EVD_FLAGS`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct EvdFlags: u32 {
        /// Events that the consumer posts.
        const SOFTWARE = 0x001;
        /// Connection requests.
        const CR = 0x010;
        /// DTO completions.
        const DTO = 0x020;
        /// Connection events.
        const CONNECTION = 0x040;
        /// RMR bind completions.
        const RMR_BIND = 0x080;
        /// Asynchronous events: errors of the IA, and changes on the network.
        const ASYNC = 0x100;
        /// `DAT_EVD_DEFAULT_FLAG`: all but software events.
        const DEFAULT = 0x1f0;
    }

    /// State of an EVD as `evd_query` returns it (`DAT_EVD_STATE`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct EvdState: u32 {
        /// Notification events trigger the CNO.
        const ENABLED = 0x01;
        /// Notification events do not trigger the CNO.
        const DISABLED = 0x02;
        /// `evd_wait` may be called.
        const WAITABLE = 0x04;
        /// `evd_wait` is refused.
        const UNWAITABLE = 0x08;
        /// At least one stream notifies by the UNSIGNALLED flag of each post.
        const CONFIG_NOTIFY = 0x10;
        /// At least one receive stream notifies by the peer's SOLICITED_WAIT flag.
        const CONFIG_SOLICITED = 0x20;
        /// Every event notifies, and waiters count events. (The value has both bits set.)
        const CONFIG_THRESHOLD = 0x30;
    }

    /// Flags that determine who creates the endpoint for a connection request (`DAT_PSP_FLAGS`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct PspFlags: u32 {
        /// The provider creates the endpoint. Without this flag the consumer creates it.
        const PROVIDER = 0x01;
    }

    /// Flags of a connect (`DAT_CONNECT_FLAGS`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ConnectFlags: u32 {
        /// The consumer asks for several paths.
        const MULTIPATH = 0x01;
    }

    /// Quality of service (`DAT_QOS`); no bit set means best effort.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Qos: u32 {
        /// High throughput.
        const HIGH_THROUGHPUT = 0x01;
        /// Low latency.
        const LOW_LATENCY = 0x02;
        /// Economy.
        const ECONOMY = 0x04;
        /// Premium.
        const PREMIUM = 0x08;
    }
}

impl PspFlags {
    /// The consumer creates the endpoint.
    pub const CONSUMER: Self = Self::empty();
}

impl Qos {
    /// Quality of service that every provider supports.
    pub const BEST_EFFORT: Self = Self::empty();

    /// Checks that no unknown bit is set.
    pub(crate) fn check(self) -> DatResult<()> {
        if Self::all().contains(self) {
            return Ok(());
        }
        Err(DatError::unsupported().because("qos: a bit that is none of the four qualities"))
    }
}

/// Ways to end a connection or to close an IA (`DAT_CLOSE_FLAGS`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CloseFlags {
    /// Ends the connection, or closes the IA, at once.
    Abrupt = 0,
    /// Ends a connection after the posted requests are done. Closes an IA only if it has no objects left.
    Graceful = 1,
}

impl CloseFlags {
    /// Returns the flag with this number.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG2: neither 0 nor 1.
    pub const fn from_value(value: u32) -> Result<Self, DatError> {
        match value {
            0 => Ok(Self::Abrupt),
            1 => Ok(Self::Graceful),
            _ => Err(DatError::parameter(Subtype::Arg2, "flags")
                .because("close_flags: 0 is abrupt, 1 is graceful")),
        }
    }
}

/// A time limit in microseconds (`DAT_TIMEOUT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timeout(u32);

impl Timeout {
    /// A wait without time limit (`DAT_TIMEOUT_INFINITE`).
    pub const INFINITE: Self = Self(u32::MAX);
    /// A time limit of zero: the call does not wait.
    pub const ZERO: Self = Self(0);

    /// Converts a `DAT_TIMEOUT` in microseconds; all ones means infinite.
    #[must_use]
    pub const fn from_micros(micros: u32) -> Self {
        Self(micros)
    }

    /// Returns the limit as a `DAT_TIMEOUT` in microseconds.
    #[must_use]
    pub const fn as_micros(self) -> u32 {
        self.0
    }

    /// Returns the limit in nanoseconds; `None` means infinite.
    pub(crate) const fn nanos(self) -> Option<u64> {
        // CAST: widening.
        if self.0 == u32::MAX {
            None
        } else {
            Some(self.0 as u64 * 1000)
        }
    }
}

/// Converts to whole microseconds, rounded up. [`Duration::MAX`] means no limit. Any other value that is too long for a
/// `DAT_TIMEOUT` becomes the longest limit, 1 hour and 11 minutes.
impl From<Duration> for Timeout {
    fn from(limit: Duration) -> Self {
        const LONGEST: u32 = u32::MAX - 1;
        if limit == Duration::MAX {
            return Self::INFINITE;
        }
        let micros = u32::try_from(limit.as_nanos().div_ceil(1000)).unwrap_or(LONGEST);
        Self(micros.min(LONGEST))
    }
}

/// Implements serialization as the bits. Unknown bits are kept, as those of a caller are.
macro_rules! as_bits {
    ($($name:ident),+) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_u32(self.bits())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                serde::Deserialize::deserialize(from).map(Self::from_bits_retain)
            }
        }
    )+};
}

as_bits!(CompletionFlags, EvdFlags, PspFlags, Qos);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_timeout_in_whole_microseconds_and_no_limit_only_if_it_is_the_longest() {
        for (limit, micros) in [
            (Duration::ZERO, 0),
            (Duration::from_nanos(1), 1),
            (Duration::from_micros(7), 7),
            (Duration::from_nanos(7_001), 8),
            (Duration::from_hours(2), u32::MAX - 1),
            (Duration::from_micros(u64::from(u32::MAX)), u32::MAX - 1),
            (Duration::MAX, u32::MAX),
        ] {
            assert_eq!(Timeout::from(limit).as_micros(), micros, "{limit:?}");
        }
    }

    #[test]
    fn a_qualifier_says_whether_it_is_a_port() {
        assert_eq!(ConnQual::port(4420), ConnQual(4420));
        assert_eq!(ConnQual::port(4420).to_string(), "port 4420");
        assert_eq!(
            ConnQual::service_id(0x1_0000_0001).to_string(),
            "service 0x100000001"
        );
    }
}
