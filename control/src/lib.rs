//! How a process that drives adapters is looked at from outside.
//!
//! JSON-RPC 2.0 over a Unix stream socket, one object a line. [`serve`] is the side of the process that is looked at: a
//! thread that answers whoever may ask, by way of a [`Subject`]. [`Client`] is the other. [`schema`] says what passes;
//! docs/control.md says it with examples.
//!
//! Whoever connects is a stranger until the system has said who it is (`SO_PEERCRED`), and untrusted afterwards:
//! requests, what waits to be read by a client, and clients are bounded. Where all places are taken, a client of the
//! user who has the most makes room: one that has never asked for anything, or else the one that has not for the
//! longest time.
#![forbid(unsafe_code)]

mod client;
mod connection;
pub mod metrics;
mod places;
pub mod rpc;
pub mod schema;
mod server;
#[cfg(test)]
mod tests;

pub use client::{Client, ClientError, Side};
pub use server::{Access, ServeError, Service, Subject, Tell, serve, serve_handed_in};
