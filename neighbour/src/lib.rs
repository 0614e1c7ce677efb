//! An adapter's neighbours: which MAC an address has, and being found by those who ask for ours. A protocol without
//! I/O.
//!
//! ARP for IPv4 (RFC 826, RFC 5227), neighbour discovery for IPv6 (RFC 4861, RFC 4862, RFC 4429), reports of our groups
//! (RFC 3810), and echoes. [`Neighbours`] is a state machine: frames and the time go in, frames and events come out. It
//! has no thread, socket, clock or random source. A caller
//! 1. says which addresses are its own ([`Neighbours::add`]) and whether the link is up ([`Neighbours::link`]);
//! 2. hands in every frame that came and is not a queue pair's ([`Neighbours::received`]), and the time when it is
//!    [`Neighbours::due`] ([`Neighbours::tick`]);
//! 3. after each of these and after [`Neighbours::resolve`], sends what [`Neighbours::next_frame`] has and looks at
//!    [`Neighbours::next_event`];
//! 4. receives frames to its own MAC, to all, and to [`Neighbours::groups`].
//!
//! | module | is |
//! |---|---|
//! | `address`, `config`, `counters`, `event` | what is said and asked |
//! | `wire` | frames: what they say, how ours are written. Knows no state |
//! | `state`, `table` | a neighbour: its states, its times; the table of them |
//! | `own`, `membership` | an address of ours: detected, announced, defended; the groups it is asked for in |
//! | `budget`, `draw`, `outbox` | bounds and delays |
//! | `neighbours`, `route`, `turns`, `receive` | all of it: what a caller says, where frames go, what the time brings, what a frame does |
//!
//! **Who uses an entry proves it.** Traffic of a queue pair does not pass here. A caller that has connections to a
//! neighbour calls `resolve` for them from time to time, or [`Neighbours::confirm`] when something has come back from
//! there: only neighbours that are used are asked again.
//!
//! **Strangers** are everybody. Entries are made by our own asking alone; what somebody says can fill in what was
//! asked, and can make us ask a MAC that we have, no more (`docs/decisions/neighbours.md`).
//!
//! Not taken: router advertisements and redirects (addresses and gateways are the caller's), fragments, options of
//! IPv4, errors of ICMP, queries of MLDv1, tags within tags. Groups of IPv4 are not reported by IGMP, since we are in
//! none but that of all hosts (RFC 1112, 4).
#![forbid(unsafe_code)]
#![warn(clippy::missing_errors_doc)]

mod address;
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
mod route;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod turns;
mod wire;

pub use address::{AddressError, Interface, Mac, Vlan};
pub use config::{Config, Detection};
pub use counters::{Counters, Refusal};
pub use event::{Entry, Event, Reason, Resolution};
pub use neighbours::Neighbours;
pub use state::State;
pub use wire::ethernet::MOST_FRAME_BYTES;
