//! Tests of the data path against the register-level simulator: two functions on a link, each driven by the shipped
//! provider. The simulator refuses what hardware refuses, and reports driver errors that hardware would ignore
//! silently. Tests that close their nodes check that this report is empty.

mod errors;
mod events;
mod mads;
mod memory;
mod network;
mod pair;
mod rewind;
mod shared;
mod transfers;

pub(crate) use network::mad_from;
