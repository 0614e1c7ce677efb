//! Inspection of a process that drives adapters, from another process.
//!
//! The protocol is JSON-RPC 2.0 over a Unix stream socket, with one object per line. [`serve`] starts a thread in the
//! inspected process, which answers permitted clients through a [`Subject`]. [`Client`] is the other side. [`schema`]
//! defines the messages; docs/control.md shows examples.
//!
//! The system identifies a client (`SO_PEERCRED`), but the client stays untrusted: requests, unread output, and the
//! number of clients are limited. When that number is reached, a client of the user with the most clients is evicted:
//! a client that has never sent a request, or else the client that was idle for the longest time.
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
pub use server::{Access, Notifier, ServeError, Service, Subject, serve, serve_handed_in};
