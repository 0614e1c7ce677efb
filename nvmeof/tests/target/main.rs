//! The target, with a host of our own on the other end of a simulated wire.

mod blocks;
mod discovery;
mod host;
mod world;
