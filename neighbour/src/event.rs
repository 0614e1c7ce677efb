//! Results and events for the caller.

use std::net::IpAddr;
use std::time::Duration;

use crate::address::Mac;
use crate::state::State;

/// Next hop's MAC for a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Send to this MAC.
    Known(Mac),
    /// The neighbour is being asked for. An event about [`next_hop`](crate::Neighbours::next_hop) reports the result.
    Pending,
    /// The destination cannot be reached.
    Unreachable(Reason),
}

/// Reason why a destination is not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The source is not an address of ours, or of the other family.
    #[error("the source is not an address of ours of this family")]
    NotOurs,
    /// Duplicate detection for the source is not finished: [`Event::Announced`] says when it is usable.
    #[error("duplicate detection of the source is not finished")]
    Detecting,
    /// Another node has the source address, too.
    #[error("another node has the source address, too")]
    Duplicate,
    /// The destination is not the address of one other node: unspecified, loopback, a group or a broadcast.
    #[error("the destination is not one node")]
    NotUnicast,
    /// The destination is not on link, and there is no gateway; or the source is link-local, which no router forwards.
    #[error("no route: not on link, and no gateway serves this source")]
    NoRoute,
    /// No reply has come.
    #[error("no reply came")]
    NoAnswer,
    /// The link is down, and no MAC is known from an earlier time.
    #[error("the link is down")]
    LinkDown,
    /// The table is full of neighbours that are being asked.
    #[error("too many neighbours are being asked for")]
    TableFull,
    /// The entry was dropped for another, or the last address of ours in its VLAN was removed.
    #[error("no longer asked for")]
    Forgotten,
}

/// An event. It is about a neighbour, as [`next_hop`](crate::Neighbours::next_hop) names it, or about an address of
/// ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A neighbour that was asked for has a MAC.
    Resolved {
        /// The neighbour.
        address: IpAddr,
        /// Its VLAN.
        vlan: Option<u16>,
        /// Its MAC.
        mac: Mac,
    },
    /// A neighbour that was asked for was not found.
    Unreachable {
        /// The neighbour.
        address: IpAddr,
        /// The VLAN in which it was asked for.
        vlan: Option<u16>,
        /// The reason.
        reason: Reason,
    },
    /// A neighbour has another MAC than before: state made for the old one has to be made again. `Resolved` follows.
    Moved {
        /// The neighbour.
        address: IpAddr,
        /// Its VLAN.
        vlan: Option<u16>,
        /// The MAC that no longer answers.
        old: Mac,
        /// The MAC that answers.
        new: Mac,
    },
    /// Another node uses an address of ours.
    Duplicate {
        /// The address.
        address: IpAddr,
        /// Its VLAN.
        vlan: Option<u16>,
        /// MAC of the other node.
        mac: Mac,
        /// True if duplicate detection was still running: then the address is not ours, and is not usable until it is
        /// added again or the link has been down. If false, it stays ours and is defended (RFC 5227, 2.4 (c)).
        detecting: bool,
    },
    /// A neighbour, or a node behind a gateway, has answered [`echo`](crate::Neighbours::echo).
    Echoed {
        /// Address of the node.
        address: IpAddr,
        /// Sequence number of the echo.
        sequence: u16,
        /// Bytes of data in the reply.
        bytes: usize,
    },
    /// An address is ours, as far as the network tells, and is being announced. Repeated after the link has been
    /// down.
    Announced {
        /// The address.
        address: IpAddr,
        /// Its VLAN.
        vlan: Option<u16>,
    },
}

/// A neighbour, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its address.
    pub address: IpAddr,
    /// Its VLAN. A static entry is valid in every VLAN.
    pub vlan: Option<u16>,
    /// Its MAC, if one is known; it may be used if the state is usable.
    pub mac: Option<Mac>,
    /// Its state; `None` for a static entry.
    pub state: Option<State>,
    /// Time since the state began.
    pub age: Duration,
}
