//! Tests of the driver against a device double scripted by the test, and against the register-level simulator.
//!
//! `commands_trace`, beside this folder, is a separate program, because `tracing` caches for the whole process which
//! events are enabled.

mod bringup;
mod bringup_sim;
mod commands;
mod daemon;
mod double;
mod ethernet;
mod health;
mod instances;
mod keys;
mod parking;
mod queues;
mod record;
mod resize;
mod selftest;
mod wakeup;
