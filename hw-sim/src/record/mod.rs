//! Recording of a simulation's inputs in a file, and replay of the simulation from that file.
//!
//! A simulation does nothing by itself. Its course follows from its seed, its parts, and its external inputs in their
//! order. All of these are one list of [`Record`]s, written under the simulation's lock, so that their order is the
//! order in which the simulation received them:
//!
//! ```text
//!   of the world    cards with their profiles, links, switches, faults, settings
//!   of drivers      register and configuration writes, resets, enabled interrupts, mapped and unmapped memory
//!   of their memory the data of each DMA read; a checksum of the data of DMA writes
//!   of the network  frames that arrive from outside, and each fetch of the frames that left
//!   of time         each advance
//!   the event log   the results
//! ```
//!
//! Register reads are not recorded: they change nothing, and their values follow from the inputs. Eventfds are not
//! recorded either, because nothing waits for them in a replay.
//!
//! While a simulation is recorded, its functions access memory through `WatchedMemory`, as they access memory of
//! another process by messages. In a replay such memory answers from the file ([`replay`]). So the data path is the
//! same in both. A simulation that is not recorded pays one comparison per register write.
//!
//! [`file`] defines the file format. A replay compares the event log after each record, byte for byte, and ends at the
//! first difference.

mod entry;
pub(crate) mod file;
pub(crate) mod recorder;
pub mod replay;

pub use entry::{CableEnd, Record};
pub use file::{Header, RecordingError, VERSION, packed};
pub use recorder::{LARGEST, RecordError};
pub use replay::{Difference, End, Replay, ReplayError, Step};
