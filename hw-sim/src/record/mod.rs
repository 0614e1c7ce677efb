//! Recording of a world's inputs in a file, and replay of the world from that file.
//!
//! A world does nothing by itself: its course follows from its seed, its parts, and its inputs from outside, in their
//! order. All of these are one list of [`Record`]s, written under the world's lock, so that the order is the one in
//! which the world received them:
//!
//! ```text
//!   of the world    cards with their profiles, links, switches, faults, settings
//!   of drivers      register and configuration writes, resets, interrupts, memory mapped and taken back
//!   of their memory the data of each DMA read; a sum over the data of DMA writes
//!   of the network  frames that arrive from another world, and when those for it are taken
//!   of time         how far it advances
//!   the event log   the results
//! ```
//!
//! Register reads are not recorded: they change nothing, and their values follow from the rest. Nor are eventfds,
//! which have no waiters in a replay.
//!
//! While a world is recorded its functions reach memory through `WatchedMemory`, which is accessed by messages; in a
//! replay such memory answers from the file ([`replay`]). So the data path is the same in both, and a world that is
//! not recorded pays one comparison per register write.
//!
//! [`file`] defines the form of a file. A replay compares the event log after each record, byte for byte, and ends at
//! the first difference.

mod entry;
pub(crate) mod file;
pub(crate) mod recorder;
pub mod replay;

pub use entry::{CableEnd, Record};
pub use file::{Header, RecordingError, VERSION, packed};
pub use recorder::{LARGEST, RecordError};
pub use replay::{Difference, End, Replay, ReplayError, Step};
