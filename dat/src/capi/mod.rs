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
//! | a pointer | null, or memory of the type the header says, which is the caller's promise |
//! | a thread that is cancelled | goes on until the call is over (`cancel`) |
//! | a panic of ours | does not get out: the call answers DAT_INTERNAL_ERROR and the adapter is put away |
//!
//! An adapter is registered both as thread safe and as not. Opened as not thread safe, which is what the header asks for
//! unless `DAT_THREADSAFE` says otherwise, calls for one instance are made one at a time, except that others may be made
//! while a thread is blocked in `dat_evd_wait` or `dat_cno_wait`; posts and dequeues then lock nothing. Opened as thread safe,
//! all calls may be made at all times.

#![expect(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "handles: one is followed by the provider only that it was found to belong to"
)]

mod adapter;
mod call;
mod cancel;
mod cno;
mod connect;
pub mod dat2;
mod ep;
mod evd;
mod event;
pub mod foreign;
mod fork;
mod gate;
mod generic;
mod hot;
mod ia;
mod instance;
mod memory;
mod messages;
mod openings;
mod primitives;
mod records;
mod registry;
mod sleep;
mod srq;
mod table;
pub mod types;
mod watch;

pub use cno::*;
pub use connect::*;
pub use ep::*;
pub use evd::*;
pub use generic::*;
pub use hot::*;
pub use ia::*;
pub use memory::*;
pub use registry::*;
pub use srq::*;
