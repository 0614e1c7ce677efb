//! The calls of DAT, by group of manual pages, and the internal work around them: completions, housekeeping, closing.
//!
//! Each call is a method of [`Ia`](super::instance::Ia), because a call may concern any object of the IA.

mod address;
pub(crate) mod arm;
mod asynchronous;
pub(crate) mod close;
pub(crate) mod cno;
mod completion;
mod context;
pub(crate) mod cr;
pub(crate) mod ep;
pub(crate) mod evd;
mod keep_alive;
mod latency;
pub(crate) mod lmr;
mod progress;
pub(crate) mod psp;
mod pz;
mod recorder;
pub(crate) mod reserve;
pub(crate) mod rmr;
pub(crate) mod rsp;
pub(crate) mod srq;
mod stats;
mod view;
