//! The daemon: its configuration file and its process. Our own host reaches the daemon over a simulated wire.

#[path = "../target/card.rs"]
#[allow(dead_code, reason = "the tests of the target use the rest")]
mod card;
#[path = "../target/host.rs"]
#[allow(dead_code, reason = "the tests of the target use the rest")]
mod host;

mod descriptors;
mod locks;
mod methods;
mod mistakes;
mod nvmetcli;
mod process;
mod restarted;
mod serving;
mod started;
mod store;
