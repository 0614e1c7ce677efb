//! The target, with our own host on the other end of a simulated wire.

mod authentication;
mod blocks;
mod card;
mod changes;
mod contention;
mod discovery;
mod ends;
mod faults;
mod files;
mod fused;
mod held;
mod host;
mod hostile;
mod limits;
mod neighbours;
mod paths;
mod permits;
mod reservations;
mod restarted;
mod scale;
mod slow;
mod tenants;
mod world;
