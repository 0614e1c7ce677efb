//! `datctl`, run as a person or a script runs it.
//!
//! What it says of the machine is tested on trees in a directory ([`tree`]); what it does with adapters, on simulated
//! functions in its own process and in another's.

mod accept;
mod adapters;
mod bind;
mod broken;
mod devices;
mod doctor;
mod live;
mod perf;
mod pictures;
mod record;
mod served;
mod sockets;
mod tree;
mod usage;
