//! The objects of an IA, one module each: its data, its states with the one function that takes a step, and the rules
//! that concern the object alone.
//!
//! An object does not know its table, other objects, or a call. The calls above handle everything that concerns
//! several objects (`cargo xtask tidy` refuses their names here). An object refers to others by key.

pub(crate) mod cno;
pub(crate) mod cr;
pub mod ep;
pub mod evd;
pub(crate) mod lmr;
pub(crate) mod psp;
pub(crate) mod pz;
pub mod recorder;
pub(crate) mod rmr;
pub(crate) mod rsp;
pub(crate) mod service_point;
pub mod srq;
pub(crate) mod view;
