//! Results and events for the caller.

use std::net::IpAddr;
use std::time::Duration;

use crate::address::Mac;
use crate::state::State;

/// Result of the resolution of the next hop's MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The MAC is known: the caller sends frames to it.
    Known(Mac),
    /// A request for the MAC is outstanding. An event for [`next_hop`](crate::Neighbours::next_hop) reports the result.
    Pending,
    /// The destination cannot be reached.
    Unreachable(Reason),
}

/// Reason why a destination cannot be reached.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize,
)]
pub enum Reason {
    /// The source is not an address of ours, or its family is not that of the destination.
    #[error("the source is not an address of ours of this family")]
    NotOurs,
    /// Duplicate detection for the source is not finished. [`Event::Announced`] reports that the source is usable.
    #[error("duplicate detection of the source is not finished")]
    Detecting,
    /// Another node also has the source address.
    #[error("another node has the source address, too")]
    Duplicate,
    /// The destination is not the address of one other node: it is unspecified, loopback, a group or a broadcast.
    #[error("the destination is not one node")]
    NotUnicast,
    /// The destination is not on link, and there is no gateway; or the source is link-local, and routers do not
    /// forward such packets.
    #[error("no route: not on link, and no gateway serves this source")]
    NoRoute,
    /// The neighbour did not reply.
    #[error("no reply came")]
    NoAnswer,
    /// The link is down, and no MAC is known from before.
    #[error("the link is down")]
    LinkDown,
    /// The table is full of neighbours with outstanding requests, or the neighbour, a stranger, has made room for
    /// another one.
    #[error("too many neighbours are being asked for")]
    TableFull,
    /// We have no more address of the neighbour's family in its VLAN: the last one was removed or is a duplicate.
    #[error("no longer asked for")]
    Forgotten,
}

/// An event about a neighbour or about an address of ours. The neighbour is the one that
/// [`next_hop`](crate::Neighbours::next_hop) returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Event {
    /// A requested MAC of a neighbour is known.
    Resolved {
        /// IP address of the neighbour.
        address: IpAddr,
        /// VLAN of the neighbour.
        vlan: Option<u16>,
        /// MAC of the neighbour.
        mac: Mac,
    },
    /// A requested MAC of a neighbour was not found.
    Unreachable {
        /// IP address of the neighbour.
        address: IpAddr,
        /// VLAN in which the requests were sent.
        vlan: Option<u16>,
        /// Reason why the neighbour is unreachable.
        reason: Reason,
    },
    /// The MAC of a neighbour has changed. The caller must replace state that it made for the old MAC. `Resolved`
    /// follows.
    Moved {
        /// IP address of the neighbour.
        address: IpAddr,
        /// VLAN of the neighbour.
        vlan: Option<u16>,
        /// The previous MAC, which no longer answers.
        old: Mac,
        /// The new MAC, which answers.
        new: Mac,
    },
    /// Another node uses an address of ours.
    Duplicate {
        /// The address of ours.
        address: IpAddr,
        /// VLAN of the address.
        vlan: Option<u16>,
        /// MAC of the other node.
        mac: Mac,
        /// True if duplicate detection was still running. The address is then not ours, and is not usable until the
        /// caller removes and adds it again, or the link has been down. If false, the address stays ours, and we
        /// defend it (RFC 5227, 2.4 (c)).
        detecting: bool,
    },
    /// A neighbour, or a node behind a gateway, has answered [`echo`](crate::Neighbours::echo).
    Echoed {
        /// IP address of the node that answered.
        address: IpAddr,
        /// Sequence number of the echo.
        sequence: u16,
        /// Number of data bytes in the reply.
        bytes: usize,
    },
    /// An address is ours: duplicate detection, if any, found no other user, and the address is being announced. The
    /// event is repeated after the link has been down.
    Announced {
        /// The address of ours.
        address: IpAddr,
        /// VLAN of the address.
        vlan: Option<u16>,
    },
}

/// A neighbour, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// IP address of the neighbour.
    pub address: IpAddr,
    /// VLAN of the neighbour. A static entry is valid in every VLAN.
    pub vlan: Option<u16>,
    /// MAC of the neighbour, if known. Senders may use it if the state is usable.
    pub mac: Option<Mac>,
    /// State of the neighbour; `None` for a static entry.
    pub state: Option<State>,
    /// Time since the neighbour entered the state; zero for a static entry.
    pub age: Duration,
}
