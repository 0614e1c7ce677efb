//! Tests of the C ABI, called as from C: handles, instances, errors, threads, upcalls.
//!
//! The tests in `udapl/tests/dat` test the effects of the calls. The C program `udapl/tests/c/demo.c` is a client and a
//! server in C.

// UNSAFETY: calls of the C ABI.
#![expect(unsafe_code, reason = "calls of the C ABI")]

mod allocated;
mod calls;
mod counters;
mod dat2;
mod errors;
mod ext;
mod handles;
mod instances;
mod many;
mod mixed;
mod named;
mod parked;
mod served;
mod support;
mod threads;
mod upcalls;
