//! `datctl`, run as a person or a script runs it.
//!
//! Commands that inspect the machine are tested on trees in a directory ([`tree`]). Commands on adapters are tested on
//! simulated functions in their own process and in another.

mod accept;
mod adapters;
mod bind;
mod broken;
mod devices;
mod disks;
mod doctor;
mod live;
mod perf;
mod pictures;
mod record;
mod served;
mod sockets;
mod tree;
mod usage;
