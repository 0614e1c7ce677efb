//! A world's history from outside, in a file, and the same world once more from that file.
//!
//! A world does nothing by itself: its history follows from its seed, from what it is made of, and from what comes from
//! outside, in that order. All of that is one list of [`Record`]s, written under the world's lock, so that the order is
//! the one in which the world took them:
//!
//! ```text
//!   of the world    cards with their profiles, links, switches, faults, settings
//!   of drivers      register and configuration writes, resets, interrupts, memory mapped and taken back
//!   of their memory what each DMA read found; a sum over what DMA writes wrote
//!   of the network  frames that arrive from another world, and when those for it are taken
//!   of time         how far it moves
//!   the event log   what came of it
//! ```
//!
//! Register reads are not in it: they change nothing, and what they give follows from the rest. Nor are eventfds, which
//! nobody waits for in a replay.
//!
//! While a world is recorded its functions reach memory through `WatchedMemory`, which is
//! memory that has to be asked for; in a replay such memory answers from the file ([`replay`]). So the data path has no
//! part in either, and a world that is not recorded pays one comparison per register write.
//!
//! [`file`] has the form of a file. A replay compares the event log after each record, byte for byte, and ends at the
//! first difference.

mod entry;
pub(crate) mod file;
pub(crate) mod recorder;
pub mod replay;

pub use entry::{CableEnd, Record};
pub use file::{Header, RecordingError, VERSION, packed};
pub use recorder::{LARGEST, RecordError};
pub use replay::{Difference, End, Replay, ReplayError, Step};
