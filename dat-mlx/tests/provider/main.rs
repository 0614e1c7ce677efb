//! Tests of the provider against the register-level simulator, and against its profiles of card generations.

mod datapath;
mod essential;
mod not_joined;
mod parking;
mod profiles;
mod reopen;
