//! Cause of the end of a connection.

use core::fmt;

use super::DRAIN_TIMEOUT;
use crate::cm::RejectReason;
use crate::provider::PORT_DOWN;
use crate::types::DtoStatus;

/// Cause of the end of a connection, or of an attempt to connect. It is more specific than the number of the connection
/// event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum EndCause {
    /// This side disconnected, or gave up the attempt.
    Disconnected,
    /// The peer disconnected, or has begun another connection with the same queue pair.
    PeerDisconnected,
    /// This side disconnected gracefully, but requests were still outstanding at the time limit. These requests are
    /// flushed.
    DrainTimedOut,
    /// The request was rejected.
    Rejected {
        /// True if the peer's program rejected the request; false if the peer's connection manager did.
        by_consumer: bool,
        /// Reason code of the reject (IBTA volume 1, "Rejection Reason").
        reason: u16,
    },
    /// No host answered at the peer's address.
    Unreachable,
    /// The local port is down, so no answer could arrive.
    PortDown,
    /// The consumer's time limit for the connect expired.
    TimedOut,
    /// This side accepted the request, but the connection was not established.
    AcceptFailed,
    /// The device refused to connect the queue pair (to move it to RTR or RTS).
    NotBroughtUp,
    /// A request or a receive failed.
    Dto {
        /// Status of the failed request or receive.
        status: DtoStatus,
        /// Syndrome and vendor syndrome that the device reported.
        syndrome: (u8, u8),
    },
    /// The peer did not answer a request that the library posted for itself: a keep-alive probe, or the marker of a
    /// graceful disconnect (an RDMA Write of no bytes).
    KeepAlive {
        /// Syndrome and vendor syndrome that the device reported.
        syndrome: (u8, u8),
    },
    /// The device stopped the queue pair and reported an event of this type (PRM "Event Types"); 0 if the event was
    /// not received, because the instance was parked meanwhile.
    QueuePair(u8),
    /// A completion queue lost an entry.
    CompletionQueue,
    /// The endpoint held more receive buffers than its hard high watermark.
    HardHighWatermark,
    /// The connection's source address was removed from the adapter.
    AddressRemoved,
    /// The adapter is dead.
    AdapterDead,
    /// The system has requested that the adapter's device be released.
    AdapterWanted,
}

impl fmt::Display for EndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("this side has disconnected"),
            Self::PeerDisconnected => f.write_str("the peer has disconnected"),
            Self::DrainTimedOut => write!(
                f,
                "this side has disconnected gracefully, and requests were still outstanding after {} s",
                DRAIN_TIMEOUT / 1_000_000_000
            ),
            Self::Rejected {
                by_consumer: true, ..
            } => f.write_str("the peer's program has rejected the request"),
            Self::Rejected { reason, .. } => write!(
                f,
                "the peer's connection manager has rejected the request: {} (reason {reason})",
                RejectReason::from_code(*reason)
            ),
            Self::Unreachable => f.write_str("no host answers there"),
            Self::PortDown => f.write_str(PORT_DOWN),
            Self::TimedOut => f.write_str("the connect timed out"),
            Self::AcceptFailed => {
                f.write_str("the peer did not complete the connection that was accepted, or it made room for another request")
            }
            Self::NotBroughtUp => f.write_str("the device refused to bring the queue pair up"),
            Self::Dto {
                status,
                syndrome: (syndrome, vendor),
            } => write!(
                f,
                "a DTO failed: {}, syndrome {syndrome:#04x}, vendor syndrome {vendor:#04x}",
                status.name()
            ),
            Self::KeepAlive {
                syndrome: (syndrome, vendor),
            } => write!(
                f,
                "the peer does not answer on an idle connection: syndrome {syndrome:#04x}, vendor syndrome {vendor:#04x}"
            ),
            Self::QueuePair(event) => write!(
                f,
                "the device has stopped the queue pair, with event type {event:#04x}"
            ),
            Self::CompletionQueue => f.write_str("a completion queue has lost an entry"),
            Self::HardHighWatermark => {
                f.write_str("more receive buffers were held than the hard high watermark allows")
            }
            Self::AddressRemoved => {
                f.write_str("the adapter no longer has the address that it left from")
            }
            Self::AdapterDead => f.write_str("the adapter is dead"),
            Self::AdapterWanted => f.write_str("the adapter is wanted back"),
        }
    }
}
