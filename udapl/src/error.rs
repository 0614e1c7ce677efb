//! Errors: the numbers of DAT, and errors of opening, closing, memory and waiting.
//!
//! A call of DAT fails with a [`DatError`](crate::DatError): a [`ReturnType`], the return code of the manual pages, a
//! [`Subtype`], which names the argument or state at fault, and a sentence with the numbers. The device's own words are
//! in [`Ia::last_device_error`](crate::Ia::last_device_error). [`OpenError`] says which step of opening failed.
//! [`NotClosed`] returns the adapter if objects kept it open. Work that was posted fails later, with the
//! [`DtoStatus`](crate::DtoStatus) of its completion; [`explain`](crate::explain) turns that into a line for people.
//!
//! Modules [`reactor`](crate::reactor), [`registry`](crate::registry), `future`, `control`, `recorder` and
//! `fabric` have errors of their own.

pub use dat_core::{ReturnType, Subtype, TransportError, WaitError, strerror};
pub use driver::{BytesError, DmaError};
pub use hw_mlx::CloseError;

pub use crate::open::{NotClosed, OpenError, StillOpen};
