//! The driver against devices that show its behaviour: a double scripted by the test, and the register-level
//! simulator.
//!
//! `commands_trace`, beside this folder, is a program of its own: `tracing` caches for the whole process which events
//! are wanted.

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
