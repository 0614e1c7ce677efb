//! The interface adapter: one opened device and all objects created on it.
//!
//! An [`Ia`](instance::Ia) owns all its objects, in tables; a handle is a table index with a generation. Its fields are
//! visible in this module only, so lower layers cannot reach them. [`call`] has the DAT calls, by group of manual
//! pages.

pub(crate) mod call;
mod effect;
mod health;
#[cfg(test)]
mod inside;
pub(crate) mod instance;
mod keep_alive;
mod latencies;
mod log;
mod lookup;
mod number;
pub(crate) mod parking;
mod refused;
mod regions;
pub(crate) mod snapshot;
mod watched_evds;
