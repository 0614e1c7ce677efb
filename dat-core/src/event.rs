//! Events that an EVD delivers (`DAT_EVENT`).

use crate::handle::{AnyHandle, CrHandle, EpHandle, EvdHandle, PspHandle, RmrHandle, SrqHandle};
use crate::types::{ConnQual, DtoCookie, DtoStatus, RmrCookie};
use std::net::IpAddr;

mod number;

pub use number::{EVENT_NUMBERS, EventNumber};
pub use rdma_types::Detail as DtoDetail;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Event {
    /// A data transfer operation has ended.
    Dto(DtoCompletion),
    /// A bind of an RMR has ended.
    RmrBind(RmrBindCompletion),
    /// A peer wants to connect.
    ConnectionRequest(ConnectionRequest),
    /// The state of a connection, or of a connection attempt, has changed.
    Connection(ConnectionEvent),
    /// An asynchronous error, or a change on the network.
    Async(AsyncEvent),
    /// An event that the consumer posted with `evd_post_se`.
    Software(SoftwareEvent),
}

impl Event {
    /// Placeholder for an unused queue entry.
    pub const NONE: Self = Self::Software(SoftwareEvent(0));

    /// Returns the `DAT_EVENT_NUMBER`.
    #[must_use]
    pub const fn number(&self) -> u32 {
        match self {
            Self::Dto(_) => 0x00001,
            Self::RmrBind(_) => 0x01001,
            Self::ConnectionRequest(_) => 0x02001,
            Self::Connection(event) => event.kind.number(),
            Self::Async(event) => event.number(),
            Self::Software(_) => 0x10001,
        }
    }
}

/// A finished Send, Receive, RDMA Read, RDMA Write or atomic operation (`DAT_DTO_COMPLETION_EVENT_DATA`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct DtoCompletion {
    /// The endpoint of the operation. For a buffer of an SRQ: the endpoint that took the buffer. The handle is stale if
    /// the endpoint was freed before its completions were dequeued.
    pub ep: EpHandle,
    /// The cookie given to the post.
    pub cookie: DtoCookie,
    /// Number of bytes transferred; meaningless unless `status` is success.
    pub transferred_length: u64,
    /// Result of the operation.
    pub status: DtoStatus,
    /// True for a request (Send, RDMA Read, RDMA Write, atomic operation), false for a receive. (Not in `DAT_EVENT`.)
    pub request: bool,
    /// Error codes, or data that came with the message. (Not in `DAT_EVENT`.)
    pub detail: DtoDetail,
}

impl DtoCompletion {
    /// Returns the device's syndrome and vendor syndrome; zero on success.
    #[must_use]
    pub const fn syndrome(&self) -> (u8, u8) {
        self.detail.syndrome()
    }
}

// Each dequeue copies an event, so its size affects the speed.
static_assertions::const_assert_eq!(size_of::<Event>(), 40);

/// A finished bind (`DAT_RMR_BIND_COMPLETION_EVENT_DATA`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct RmrBindCompletion {
    /// The RMR. The handle is stale if the RMR was freed before the completion was dequeued.
    pub rmr: RmrHandle,
    /// The cookie given to the bind.
    pub cookie: RmrCookie,
    /// Result of the bind: success, flushed, or failed.
    pub status: DtoStatus,
    /// The device's syndrome and vendor syndrome; zero on success. (Not in `DAT_EVENT`.)
    pub syndrome: (u8, u8),
}

/// A peer wants to connect (`DAT_CR_ARRIVAL_EVENT_DATA`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct ConnectionRequest {
    /// The PSP at which the request arrived; `None` for an RSP, because an RSP accepts one request only.
    pub psp: Option<PspHandle>,
    /// The connection qualifier of the request.
    pub conn_qual: ConnQual,
    /// The request, to be queried, accepted or rejected.
    pub cr: CrHandle,
}

/// A change of a connection's state (`DAT_CONNECTION_EVENT_DATA`). [`crate::Ia::ep_private_data`] returns the private
/// data that came with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct ConnectionEvent {
    /// The kind of change.
    pub kind: ConnectionEventKind,
    /// The endpoint of the connection.
    pub ep: EpHandle,
    /// Number of bytes of private data. With ESTABLISHED on the active side: those of the accept. With PEER_REJECTED:
    /// those of the rejection, if it had any ([`crate::Ia::cr_reject_with`]). Otherwise 0.
    pub private_data_size: usize,
}

/// Kind of a connection's change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[repr(u32)]
pub enum ConnectionEventKind {
    /// The connection is established.
    Established = 0x04001,
    /// The peer's program rejected the request.
    PeerRejected = 0x04002,
    /// No program listens at the qualifier, a connection manager rejected the request, or this side's device or source
    /// address failed during the attempt.
    NonPeerRejected = 0x04003,
    /// The connection of an accepted request was not established.
    AcceptCompletionError = 0x04004,
    /// Either side ended the connection.
    Disconnected = 0x04005,
    /// An error ended the connection.
    Broken = 0x04006,
    /// The timeout given to `ep_connect` expired.
    TimedOut = 0x04007,
    /// The peer does not answer.
    Unreachable = 0x04008,
}

impl ConnectionEventKind {
    /// Returns whether private data of the peer can come with an event of this kind.
    #[must_use]
    pub const fn has_private_data(self) -> bool {
        match self {
            Self::Established | Self::PeerRejected => true,
            Self::NonPeerRejected
            | Self::AcceptCompletionError
            | Self::Disconnected
            | Self::Broken
            | Self::TimedOut
            | Self::Unreachable => false,
        }
    }

    /// Returns the `DAT_EVENT_NUMBER`.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// An asynchronous event and its object (`DAT_ASYNCH_ERROR_EVENT_DATA`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum AsyncEvent {
    /// An event was lost because this EVD was full, or its completion queue is unusable.
    EvdOverflow(EvdHandle),
    /// The IA is unusable: its device is dead, or the system has requested the device back. The program should close
    /// the IA.
    IaCatastrophic,
    /// This endpoint itself is broken, not only its connection. DAT defines this event; the library does not report it.
    EpBroken(EpHandle),
    /// This SRQ had an error inside the provider.
    SrqError(SrqHandle),
    /// This SRQ has fewer buffers than its low watermark. This is no error. DAT 1.2 defines a reason for it but no
    /// event number, so the number is ours.
    SrqLowWatermark(SrqHandle),
    /// This endpoint has more receive buffers than its soft high watermark. This is no error, and the number is ours,
    /// as for the low watermark.
    EpSoftHighWatermark(EpHandle),
    /// An error inside the provider. DAT defines this event; the library does not report it.
    ProviderInternalError,
    /// A change on the network. This is no error; the event numbers are ours ([`NetworkEvent::number`]).
    Network(NetworkEvent),
}

/// A change of the port, of an address of the adapter, or of a neighbour. The program need not react: connections
/// that end because of the change have events of their own. If the asynchronous EVD is half full, these events are
/// dropped, so that errors still fit. Events about neighbours, and about other stations that use an address which we
/// keep, are dropped if it is a quarter full, because others can cause many of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum NetworkEvent {
    /// The port is down.
    PortDown,
    /// The port is up.
    PortUp {
        /// Speed of the port in Mb/s, if the device reports it.
        megabits: Option<u32>,
        /// MTU of the port in bytes, as IP counts it, if the device reports it.
        mtu: Option<u32>,
    },
    /// An address was added to the adapter.
    AddressAdded(IpAddr),
    /// An address was removed from the adapter. Connections that used it end as
    /// [`EndCause::AddressRemoved`](crate::EndCause).
    AddressRemoved(IpAddr),
    /// Another station also uses one of our addresses.
    AddressDuplicate {
        /// The address.
        address: IpAddr,
        /// MAC of the other station.
        mac: [u8; 6],
        /// True if the address was newly added and now belongs to the other station: it is not used until it is added
        /// again, or until the link has gone down and up. False if we defend the address (RFC 5227, 2.4).
        lost: bool,
    },
    /// The MAC of a neighbour has changed. Existing connections keep sending to the old MAC; new ones use the new
    /// one.
    NeighbourMoved {
        /// Address of the neighbour.
        address: IpAddr,
        /// New MAC of the neighbour.
        mac: [u8; 6],
    },
    /// No station answers for the address of a neighbour that a connection or a waiting datagram needs.
    NeighbourLost(IpAddr),
    /// The adapter does not take part in the network. Either it was configured to do so if possible and could not join,
    /// or the device later stopped answering for the Ethernet port. Peers are then searched among the configured
    /// neighbours only.
    NotJoined,
}

impl NetworkEvent {
    /// Returns the `DAT_EVENT_NUMBER`. The numbers are ours: DAT 1.2 has none for these.
    #[must_use]
    pub const fn number(&self) -> u32 {
        match self {
            Self::PortDown => 0x08020,
            Self::PortUp { .. } => 0x08021,
            Self::AddressAdded(_) => 0x08022,
            Self::AddressRemoved(_) => 0x08023,
            Self::AddressDuplicate { .. } => 0x08024,
            Self::NeighbourMoved { .. } => 0x08025,
            Self::NeighbourLost(_) => 0x08026,
            Self::NotJoined => 0x08027,
        }
    }
}

impl core::fmt::Display for NetworkEvent {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mac = |f: &mut core::fmt::Formatter<'_>, mac: &[u8; 6]| {
            let [a, b, c, d, e, last] = mac;
            write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{last:02x}")
        };
        match self {
            Self::PortDown => f.write_str("the port is down"),
            Self::PortUp { megabits, mtu } => {
                f.write_str("the port is up")?;
                if let Some(megabits) = megabits {
                    write!(f, ", {megabits} Mb/s")?;
                }
                mtu.map_or(Ok(()), |mtu| write!(f, ", MTU {mtu} bytes"))
            }
            Self::AddressAdded(address) => write!(f, "{address} is an address of ours"),
            Self::AddressRemoved(address) => write!(f, "{address} is no address of ours any more"),
            Self::AddressDuplicate {
                address,
                mac: whose,
                lost,
            } => {
                let whom = if *lost {
                    "somebody else, and not by us"
                } else {
                    "somebody else, too"
                };
                write!(f, "{address} is used by {whom}: ")?;
                mac(f, whose)
            }
            Self::NeighbourMoved { address, mac: now } => {
                write!(f, "{address} has moved to ")?;
                mac(f, now)
            }
            Self::NeighbourLost(address) => write!(f, "nobody answers for {address}"),
            Self::NotJoined => f.write_str("the adapter takes no part in the network"),
        }
    }
}

impl AsyncEvent {
    /// Returns the object of the event; `None` if it is the adapter.
    #[must_use]
    pub fn object(&self) -> Option<AnyHandle> {
        match *self {
            Self::EvdOverflow(evd) => Some(evd.into()),
            Self::EpBroken(ep) | Self::EpSoftHighWatermark(ep) => Some(ep.into()),
            Self::SrqError(srq) | Self::SrqLowWatermark(srq) => Some(srq.into()),
            Self::IaCatastrophic | Self::ProviderInternalError | Self::Network(_) => None,
        }
    }

    /// Returns the `DAT_EVENT_NUMBER`.
    #[must_use]
    pub const fn number(&self) -> u32 {
        match self {
            Self::EvdOverflow(_) => 0x08001,
            Self::IaCatastrophic => 0x08002,
            Self::EpBroken(_) => 0x08003,
            Self::SrqError(_) | Self::ProviderInternalError => 0x08005,
            Self::EpSoftHighWatermark(_) => 0x08010,
            Self::SrqLowWatermark(_) => 0x08011,
            Self::Network(event) => event.number(),
        }
    }

    /// Returns the `reason` member of the event. It is the number of one of these names: DAT_EVD_OVERFLOW_ERROR,
    /// DAT_IA_CATASTROPHIC_ERROR, DAT_EP_TRANSFER_TO_ERROR, DAT_SRQ_TRANSFER_TO_ERROR, DAT_IA_OTHER_ERROR,
    /// DAT_SRQ_LOW_WATERMARK_EVENT, DAT_SRQ_SOFT_HIGH_WATERMARK_EVENT. For a network event it is 0.
    #[must_use]
    pub const fn reason(&self) -> u32 {
        match self {
            Self::EvdOverflow(_)
            | Self::IaCatastrophic
            | Self::EpBroken(_)
            | Self::SrqError(_)
            | Self::Network(_) => 0,
            Self::ProviderInternalError => 1,
            Self::SrqLowWatermark(_) | Self::EpSoftHighWatermark(_) => 2,
        }
    }
}

/// An event posted by the consumer (`DAT_SOFTWARE_EVENT_DATA`). It holds the 64-bit word that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SoftwareEvent(pub u64);
