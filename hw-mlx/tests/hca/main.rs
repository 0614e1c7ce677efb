//! The driver against devices that show what it does: a double that a test scripts, and the register-level simulator.
//!
//! `commands_trace`, beside this folder, is a program of its own: which of `tracing`'s events are wanted is remembered
//! for a whole process.

mod bringup;
mod bringup_sim;
mod commands;
mod daemon;
mod double;
mod ethernet;
mod health;
mod instances;
mod queues;
mod record;
mod selftest;
mod wakeup;
