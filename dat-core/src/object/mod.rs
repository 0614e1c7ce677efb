//! The objects of an IA, one each: what it is made of, its states with the one function that steps from one to the
//! next, and the rules that need nothing but the object and what it is handed.
//!
//! None of them knows the tables it lies in, the other objects there, or a call: what concerns several is made by the
//! calls above (`cargo xtask tidy` refuses what names them here). What else an object refers to it knows by its key.

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
