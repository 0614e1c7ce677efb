//! The C ABI, called as C calls it: handles, threads, upcalls, the registry.
//!
//! What the calls themselves do is tested in Rust; the C program `udapl/tests/c/demo.c` goes once through all of it.

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
