//! The data path against the register-level simulator: two functions on a link, each driven by the provider as it
//! is shipped. The simulator refuses what hardware refuses and reports what hardware would suffer in
//! silence; every test ends with an empty report.

mod errors;
mod events;
mod mads;
mod memory;
mod network;
mod pair;
mod rewind;
mod shared;
mod transfers;
