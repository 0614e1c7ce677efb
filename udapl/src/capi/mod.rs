//! The C ABI: DAT 1.2 as `dat/udat.h` declares it, for programs that link `-ldat`.
//!
//! A call here has four steps. It finds the objects of its handles (`table`), gets exclusive access to the adapter
//! (`gate`), calls the method of the same name of the [`Ia`](crate::Ia), and writes the results through the caller's
//! pointers. The method documents the meaning and the errors of the call.
//!
//! | in C | here |
//! |---|---|
//! | a handle | a number, looked up and never dereferenced. A handle of no object is DAT_INVALID_HANDLE with the subtype of the kind, unless it belongs to another library's provider ([`foreign`]) |
//! | an enumeration, flags | a number, checked |
//! | a pointer | null, or memory of the type in the header; the contracts below say which |
//! | pthread_cancel(3) | delayed until the end of the call (`cancel`) |
//! | a panic of the library | does not unwind into C: the call returns DAT_INTERNAL_ERROR, and the adapter is broken from then on |
//!
//! # Contracts
//!
//! The promises of a C program about its arguments, by the names that SAFETY comments use. The library checks for
//! null and for ranges of numbers; it cannot check where a pointer leads. A `# Safety` section names the arguments of
//! a contract, in the words of `dat/udat.h`.
//!
//! | Contract | The program promises | Checked by |
//! |---|---|---|
//! | GIVEN | a pointer to read from is null, or leads to aligned values of its type, as many as the call says, which no thread writes before the call returns | null: the call, before it reads. The rest: not checked |
//! | TEXT | the same for a string with its NUL | like GIVEN |
//! | ROOM | a pointer to write to is null, or leads to aligned memory for a value of its type, which no other thread reads or writes before the call returns | null: the call; `argument::put` writes nothing then. The rest: not checked |
//! | OPEN | a number of a descriptor is that of one that the program has open, and does not close before the call returns | the duplication of it: it fails if nothing is open |
//! | LENT | registered memory stays mapped and owned by the program until the LMR is freed or the adapter closed; the device reads and writes it meanwhile | length and overflow: `lmr_create`. The mapping at the call: the pinning of its pages |
//! | AGENT | the function may be called with its argument, once, from another thread, until it is removed or the adapter is closed | a null function: the call. The rest: not checked |
//! | TABLE | a provider's table of functions has the size of its version and is not moved or freed while it is registered | the address, by process_vm_readv(2). The rest: the author of the library |
//! | PASSED ON | the arguments of this call are passed unchanged to a function of this library with the same `# Safety` | that function |
//!
//! An adapter is registered both as thread safe and as not thread safe. The header opens it as not thread safe unless
//! `DAT_THREADSAFE` is set. Then the program makes one call at a time for one instance, except while a thread is
//! blocked in `dat_evd_wait` or `dat_cno_wait`; posts and dequeues take no lock. On an adapter opened as thread safe,
//! any call may be made at any time.

#![expect(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "handles: one is followed by the provider only that it was found to belong to"
)]

mod adapter;
mod answer;
mod argument;
mod call;
mod cancel;
mod cno;
mod connect;
mod counters;
pub mod dat2;
mod directory;
mod ep;
mod error;
mod evd;
mod event;
mod ext;
pub mod foreign;
mod fork;
mod gate;
#[cfg(test)]
#[path = "gate/tests.rs"]
mod gate_tests;
mod generic;
#[cfg(test)]
#[path = "hand_overs/tests.rs"]
mod hand_overs;
mod handed;
mod hot;
mod ia;
mod instance;
mod last_error;
mod locked;
mod log;
mod many;
mod memory;
mod messages;
#[cfg(test)]
mod models;
mod named;
mod openings;
mod operations;
mod parking;
mod place;
mod primitives;
mod provider;
mod records;
mod registry;
mod room;
mod siblings;
mod sleep;
mod sleepers;
mod srq;
mod table;
pub mod types;
mod upcalls;
mod watch;
mod words;

pub use cno::*;
pub use connect::*;
pub use counters::*;
pub use ep::*;
pub use evd::*;
pub use ext::*;
pub use generic::*;
pub use handed::*;
pub use hot::*;
pub use ia::*;
pub use last_error::*;
pub use many::*;
pub use memory::*;
pub use provider::*;
pub use registry::*;
pub use srq::*;
