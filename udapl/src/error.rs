//! Errors: the numbers of DAT, and errors of opening, closing, memory and waiting.
//!
//! A call of DAT fails with a [`DatError`](crate::DatError). It has a [`ReturnType`] (the return code in the manual
//! pages), a [`Subtype`], which names the argument or state at fault, and a sentence with the numbers. The text of the
//! device's own error is in [`Ia::last_device_error`](crate::Ia::last_device_error). [`OpenError`] names the step of
//! opening that failed. [`NotClosed`] returns the adapter if objects kept it open. A request that was posted can fail
//! later, with the [`DtoStatus`](crate::DtoStatus) of its completion; [`explain`](crate::explain) describes that in one
//! readable line.
//!
//! Modules [`reactor`](crate::reactor), [`registry`](crate::registry), `future`, `control`, `recorder` and
//! `fabric` have errors of their own.

pub use dat_core::{ReturnType, Subtype, TransportError, WaitError, strerror};
pub use driver::{BytesError, DmaError};
pub use hw_mlx::CloseError;

pub use crate::open::{NotClosed, OpenError, StillOpen};
