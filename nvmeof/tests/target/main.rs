//! The target, with a host of our own on the other end of a simulated wire.

mod authentication;
mod blocks;
mod changes;
mod discovery;
mod ends;
mod faults;
mod fused;
mod host;
mod hostile;
mod neighbours;
mod paths;
mod reservations;
mod scale;
mod slow;
mod world;
