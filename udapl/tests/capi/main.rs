//! The C ABI, called as from C: handles, threads, upcalls, the registry.
//!
//! The effects of the calls are tested in Rust; the C program `udapl/tests/c/demo.c` uses all of them once.

// UNSAFETY: calls of the C ABI.
#![expect(unsafe_code, reason = "calls of the C ABI")]

mod calls;
mod counters;
mod errors;
mod ext;
mod handles;
mod instances;
mod many;
mod mixed;
mod named;
mod served;
mod support;
mod threads;
mod upcalls;
