//! Neighbour discovery for an adapter: finds the MAC of an IP address, and answers requests for our addresses. The
//! crate does no I/O.
//!
//! The crate implements ARP for IPv4 (RFC 826, RFC 5227), neighbour discovery for IPv6 (RFC 4861, RFC 4862, RFC 4429),
//! reports of our groups (RFC 3810), and echoes. [`Neighbours`] is a state machine. Its inputs are frames and the time,
//! its outputs are frames and events. It has no thread, socket, clock or random source. A caller
//! 1. passes in the adapter's addresses ([`Neighbours::add`]) and whether the link is up ([`Neighbours::link`]);
//! 2. passes in every received frame that does not belong to a queue pair ([`Neighbours::received`]), and the time
//!    when it is [`Neighbours::due`] ([`Neighbours::tick`]);
//! 3. after each of these and after [`Neighbours::resolve`], sends the frames of [`Neighbours::next_frame`] and
//!    handles the events of [`Neighbours::next_event`];
//! 4. receives frames to its own MAC, to broadcast, and to [`Neighbours::groups`].
//!
//! | module | contents |
//! |---|---|
//! | `address`, `config`, `counters`, `event` | arguments and results |
//! | `wire` | parsing and building of frames, without state |
//! | `state`, `table` | a neighbour: its states and times; the table of neighbours |
//! | `own`, `membership` | an address of ours: detection, announcement, defence; its groups |
//! | `budget`, `draw`, `outbox` | rate limits, random delays, queues |
//! | `neighbours`, `route`, `timers`, `receive` | the state machine: calls, next hops, timers, received frames |
//! | `snapshot`, `bounds`, `resume_error`, and `parking` below each table | the state machine in another process |
//!
//! **Callers confirm entries.** Traffic of a queue pair does not pass through this crate. So a caller that has
//! connections to a neighbour calls `resolve` for them from time to time, or [`Neighbours::confirm`] when traffic has
//! come back from the neighbour. The crate renews only the entries of neighbours in use.
//!
//! **No sender is trusted.** Only `resolve`, `resolve_for` and `echo` create entries. A received message can only
//! complete or confirm an entry, or make us send a request to a known MAC (`docs/decisions/neighbours.md`). A caller
//! that answers a datagram looks for its sender by [`Neighbours::resolve_for`] with [`Need::Sender`]. Such entries are
//! limited to a share of the table and of the requests, and evict each other. If our own senders have filled that
//! share, too, the neighbour that was unused for longest is evicted.
//!
//! **The state may outlive its process.** [`Neighbours::park`] describes it as plain data, and [`Neighbours::resume`]
//! goes on with it. The times of the caller need the same origin in both processes.
//!
//! The crate does not handle router advertisements and redirects (addresses and gateways come from the caller),
//! fragments, IPv4 options, ICMP errors, MLDv1 queries, and tags within tags. It sends no IGMP reports of IPv4 groups,
//! since the only IPv4 group that we join is that of all hosts (RFC 1112, 4).
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod address;
mod bounds;
mod budget;
mod config;
mod counters;
mod draw;
mod event;
mod membership;
mod neighbours;
mod outbox;
mod own;
mod receive;
mod resume_error;
mod route;
mod snapshot;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod timers;
mod wire;

pub use address::{Address, AddressError, Mac, Vlan};
pub use config::{Config, Detection};
pub use counters::{Counters, Refusal};
pub use event::{Entry, Event, Reason, Resolution};
pub use neighbours::Neighbours;
pub use own::Claim;
pub use resume_error::ResumeError;
pub use route::Need;
pub use snapshot::{
    AddressSnapshot, BudgetsSnapshot, ChangeSnapshot, EchoSnapshot, MembershipSnapshot,
    NeighbourSnapshot, NeighboursSnapshot,
};
pub use state::State;
pub use wire::ethernet::MOST_FRAME_BYTES;
