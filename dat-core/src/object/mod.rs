//! The objects of an IA, one module each. A module has the object's data, its states with the only function that
//! changes them, and the rules that concern the object alone.
//!
//! An object does not refer to its table, to other objects or to a call, except by the keys of other objects. The
//! calls, in the layer above, handle everything that concerns several objects. `cargo xtask tidy` rejects references to
//! that layer here.

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
pub(crate) mod snapshot;
pub mod srq;
pub(crate) mod view;
