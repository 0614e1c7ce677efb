//! Snapshots, by which another process goes on with an adapter's neighbours.
//!
//! A snapshot is plain data, and its fields are public, so that a layer above can write it out and read it in.
//! [`Neighbours::resume`](crate::Neighbours::resume) does not trust a snapshot: it checks every number. A snapshot has
//! no groups that we have joined and no time of the first timer, because they follow from other fields. It has no
//! limits, because those of the configuration apply.
//!
//! All times are those of the caller's clock, whose origin the crate does not know. They are valid in another process
//! if its clock has the same origin, as CLOCK_MONOTONIC does until the machine boots again.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crate::address::{Address, Mac};
use crate::counters::Counters;
use crate::event::Event;
use crate::own::Claim;
use crate::state::State;

/// The neighbours of an adapter, parked ([`Neighbours::park`](crate::Neighbours::park)).
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct NeighboursSnapshot {
    /// Our MAC.
    pub mac: Mac,
    /// Time of the last call before the parking. No time that has passed is later.
    pub parked: Duration,
    /// True if the link is up.
    pub up: bool,
    /// Our addresses, in the order in which they were added.
    pub addresses: Vec<AddressSnapshot>,
    /// Neighbours with a static MAC, and these MACs.
    pub statics: Vec<(IpAddr, Mac)>,
    /// Neighbours that were learnt by requests.
    pub neighbours: Vec<NeighbourSnapshot>,
    /// Pending reports of our groups, at most one for each VLAN.
    pub memberships: Vec<MembershipSnapshot>,
    /// Rate limits.
    pub budgets: BudgetsSnapshot,
    /// Our outstanding echo request, if any.
    pub echo: Option<EchoSnapshot>,
    /// Frames that were not sent yet, in order.
    pub frames: Vec<Vec<u8>>,
    /// Events that the caller has not taken yet, in order.
    pub events: Vec<Event>,
    /// Counters. Their number of neighbours is that of the table, and is not read.
    pub counters: Counters,
    /// Number of 32-bit words that were taken from the random numbers of [`Config::seed`](crate::Config::seed). The
    /// seed is not in the snapshot.
    pub random_words: u64,
}

/// An address of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct AddressSnapshot {
    /// The address.
    pub address: Address,
    /// State of the address.
    pub claim: Claim,
    /// Number of probes that are still to be sent if detection is running, otherwise of announcements.
    pub left: u8,
    /// Time of the next action.
    pub due: Option<Duration>,
    /// Time at which we last defended the address.
    pub defended: Option<Duration>,
}

/// A neighbour that was learnt by requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct NeighbourSnapshot {
    /// IP address of the neighbour.
    pub address: IpAddr,
    /// VLAN of the neighbour.
    pub vlan: Option<u16>,
    /// State of the entry; never [`State::Absent`].
    pub state: State,
    /// MAC last learnt. In [`State::Incomplete`], the MAC that was known before the requests had no reply.
    pub mac: Option<Mac>,
    /// Address of ours from which a sender last wanted to send.
    pub asker: IpAddr,
    /// True if the entry counts as a stranger's: it was made for a datagram's sender
    /// ([`Need::Sender`](crate::Need::Sender)), and no local sender has needed it with
    /// [`Need::Own`](crate::Need::Own) since.
    pub stranger: bool,
    /// Number of requests sent in this state.
    pub tries: u8,
    /// True if a message has named another MAC, and the known MAC is probed at `due` for that reason.
    pub suspect: bool,
    /// Time of the next action; `None` also for requests that wait until an address of ours is usable.
    pub due: Option<Duration>,
    /// Time at which a sender last needed the neighbour.
    pub used: Duration,
    /// Time at which the state began.
    pub since: Duration,
}

/// Pending reports of the groups of one VLAN.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct MembershipSnapshot {
    /// The VLAN.
    pub vlan: Option<u16>,
    /// Groups that were joined or left, in the order of the report.
    pub changes: Vec<ChangeSnapshot>,
    /// Time of the next report of the changes; `None` if there are none.
    pub change_due: Option<Duration>,
    /// Time of the answer to a query.
    pub answer_due: Option<Duration>,
}

/// A group that was joined or left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct ChangeSnapshot {
    /// The group: the solicited-node group of an address that is or was ours.
    pub group: Ipv6Addr,
    /// True if the group was joined, false if it was left.
    pub joined: bool,
    /// Number of times that the change is still to be reported.
    pub left: u8,
}

/// Rate limits: for each, the time up to which it is used up, at most one second later than the time of the parking.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct BudgetsSnapshot {
    /// Requests ([`Config::asks_per_second`](crate::Config::asks_per_second)).
    pub asks: Duration,
    /// Requests to strangers.
    pub asks_of_strangers: Duration,
    /// Replies ([`Config::answers_per_second`](crate::Config::answers_per_second)).
    pub answers: Duration,
    /// Echo replies ([`Config::echoes_per_second`](crate::Config::echoes_per_second)).
    pub echoes: Duration,
}

/// An outstanding echo request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct EchoSnapshot {
    /// Address of ours from which the request was sent.
    pub source: IpAddr,
    /// Destination of the request.
    pub destination: IpAddr,
    /// Identifier of the request.
    pub identifier: u16,
    /// Sequence number of the request.
    pub sequence: u16,
}
