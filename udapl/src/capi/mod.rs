//! The C ABI: DAT 1.2 as `dat/udat.h` declares it, for programs that link `-ldat`.
//!
//! A call here does four things: it finds what its handles stand for (`table`), gets its turn at the adapter
//! (`gate`), makes the call of the same name on the [`Ia`](crate::Ia), and writes what comes of it where the caller's
//! pointers say. What a call means, and what it answers, is said there.
//!
//! | from C | is |
//! |---|---|
//! | a handle | a number, looked up and never followed: what names nothing is DAT_INVALID_HANDLE with the subtype of the kind, unless it is an object of another library's provider ([`foreign`]) |
//! | an enumeration, flags | a number, checked |
//! | a pointer | null, or memory of the type the header says: by contract, below |
//! | a thread that is cancelled | goes on until the call is over (`cancel`) |
//! | a panic of ours | does not get out: the call answers DAT_INTERNAL_ERROR and the adapter is put away |
//!
//! # Contracts
//!
//! What a C program promises with its arguments, by the names that SAFETY comments use. The library checks what it can,
//! which is null and ranges of numbers; where a pointer leads only the program knows. A `# Safety` section says which
//! arguments a contract is about, in the words of `dat/udat.h`.
//!
//! | Contract | The program promises | Who checks |
//! |---|---|---|
//! | GIVEN | a pointer to read from is null, or leads to as many values of its type as the call says, aligned, which nobody writes until the call returns | null: the call, before it reads. The rest: nobody |
//! | TEXT | the same for a string with its NUL | as GIVEN |
//! | ROOM | a pointer to write to is null, or leads to memory for a value of its type, aligned, which nobody else reads or writes until the call returns | null: the call, or `call::put`, which leaves it out. The rest: nobody |
//! | LENT | memory that is registered stays mapped and is the program's until the LMR is freed or the adapter closed; the device reads and writes it meanwhile | length and overflow: `lmr_create`. That it is mapped: pinning it, which fails |
//! | AGENT | the function may be called with its word, once, from another thread, until it is taken back or the adapter is closed | a missing function: the call. The rest: nobody |
//! | TABLE | a provider's table of functions has the size of its version and stays where it is while it is registered | the address, by process_vm_readv(2); the rest: whoever wrote the library |
//! | PASSED ON | the arguments of this call, as they came, go to a function of ours with the same `# Safety` | that function |
//!
//! An adapter is registered both as thread safe and as not. Opened as not thread safe, which is what the header asks
//! for unless `DAT_THREADSAFE` says otherwise, calls for one instance are made one at a time, except that others may be
//! made while a thread is blocked in `dat_evd_wait` or `dat_cno_wait`; posts and dequeues then lock nothing. Opened as
//! thread safe, all calls may be made at all times.

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

pub use cno::*;
pub use connect::*;
pub use counters::*;
pub use ep::*;
pub use evd::*;
pub use ext::*;
pub use generic::*;
pub use hot::*;
pub use ia::*;
pub use last_error::*;
pub use many::*;
pub use memory::*;
pub use provider::*;
pub use registry::*;
pub use srq::*;
