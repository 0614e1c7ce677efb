//! What a caller is told, asked or not.

use std::net::IpAddr;
use std::time::Duration;

use crate::address::Mac;
use crate::state::State;

/// Where frames to a destination go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// To this MAC.
    Known(Mac),
    /// It is being asked for: an event says how it ends, about [`next_hop`](crate::Neighbours::next_hop).
    Pending,
    /// Nowhere.
    Unreachable(Reason),
}

/// Why a destination is not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The source is no address of ours, or of the other family.
    #[error("the source is not an address of ours of this family")]
    NotOurs,
    /// The source is being looked for on the network: [`Event::Announced`] says when it serves.
    #[error("whether the source is somebody else's is not known yet")]
    Detecting,
    /// The source was found to be somebody else's.
    #[error("the source is somebody else's address, too")]
    Duplicate,
    /// The destination is no address of one node elsewhere: unspecified, loopback, a group or a broadcast.
    #[error("the destination is not one node")]
    NotUnicast,
    /// The destination is not on link, and there is no gateway; or the source is link-local, which no router forwards.
    #[error("no route: not on link, and no gateway serves this source")]
    NoRoute,
    /// Nobody has answered.
    #[error("nobody has answered")]
    NoAnswer,
    /// The link is down, and no MAC is known from before.
    #[error("the link is down")]
    LinkDown,
    /// All entries are neighbours that are being asked.
    #[error("too many neighbours are being asked for")]
    TableFull,
    /// The entry has made room for another, or the last address of ours in its VLAN is gone.
    #[error("no longer asked for")]
    Forgotten,
}

/// What happened by itself. Events are about a neighbour, as [`next_hop`](crate::Neighbours::next_hop) names it, or
/// about an address of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A neighbour that was asked for has a MAC.
    Resolved {
        /// The neighbour.
        address: IpAddr,
        /// Where it lives.
        vlan: Option<u16>,
        /// Its MAC.
        mac: Mac,
    },
    /// A neighbour that was asked for has none.
    Unreachable {
        /// The neighbour.
        address: IpAddr,
        /// Where it was asked for.
        vlan: Option<u16>,
        /// Why.
        reason: Reason,
    },
    /// A neighbour has another MAC than before: what was made for the old one has to be made anew. `Resolved` follows.
    Moved {
        /// The neighbour.
        address: IpAddr,
        /// Where it lives.
        vlan: Option<u16>,
        /// The MAC that does not answer any more.
        old: Mac,
        /// The one that does.
        new: Mac,
    },
    /// Somebody else uses an address of ours.
    Duplicate {
        /// The address.
        address: IpAddr,
        /// Where it lives.
        vlan: Option<u16>,
        /// Who does.
        mac: Mac,
        /// Whether we were still looking for that: then the address is not ours, and serves no more until it is added
        /// again or the link has been down. If not, it stays ours and is defended (RFC 5227, 2.4 (c)).
        detecting: bool,
    },
    /// A neighbour, or somebody behind a gateway, has answered [`echo`](crate::Neighbours::echo).
    Echoed {
        /// Who.
        address: IpAddr,
        /// To which of the echoes.
        sequence: u16,
        /// With how much data.
        bytes: usize,
    },
    /// An address of ours is ours, as far as the network knows, and is being announced; again after the link has been
    /// down.
    Announced {
        /// The address.
        address: IpAddr,
        /// Where it lives.
        vlan: Option<u16>,
    },
}

/// A neighbour, for people to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its address.
    pub address: IpAddr,
    /// Where it lives. A static entry lives everywhere.
    pub vlan: Option<u16>,
    /// Its MAC, if one is known; it may be used if the state is usable.
    pub mac: Option<Mac>,
    /// What is known of it; `None`: the caller has said it.
    pub state: Option<State>,
    /// For how long that has been so.
    pub age: Duration,
}
