//! Inspection of a process that drives adapters, from another process.
//!
//! JSON-RPC 2.0 over a Unix stream socket, one object per line. [`serve`] is the side of the inspected process: a
//! thread that answers permitted clients through a [`Subject`]. [`Client`] is the other side. [`schema`] defines the
//! messages; docs/control.md shows examples.
//!
//! A client is identified by the system (`SO_PEERCRED`) and stays untrusted: requests, unread output, and the number
//! of clients are limited. When all places are taken, a client of the user with the most clients is evicted: one that
//! has never sent a request, or else the one idle for the longest time.
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
