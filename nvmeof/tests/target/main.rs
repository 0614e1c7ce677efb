//! The target, with a host of our own on the other end of a simulated wire.

mod blocks;
mod changes;
mod discovery;
mod ends;
mod faults;
mod host;
mod reservations;
mod world;
