//! Connections: service points, requests, rejections, and the cause of a connection's end.
//!
//! A server listens at a [`ConnQual`](crate::ConnQual) with a public service point ([`PspHandle`]), which serves any
//! number of requests, or with a reserved one ([`RspHandle`]), which serves one request. A request arrives as
//! [`Event::ConnectionRequest`](crate::Event::ConnectionRequest) with a [`CrHandle`]. The server queries it
//! ([`CrParam`]) and then accepts it, rejects it, or hands it to another service point. A client
//! connects with [`Ia::ep_connect`](crate::Ia::ep_connect). Both sides get a
//! [`ConnectionEvent`](crate::event::ConnectionEvent) for each change of the connection. DAT has few numbers for the
//! causes of a connection's end. [`EndCause`] ([`Ia::ep_end_cause`](crate::Ia::ep_end_cause)) is more precise.
//! [`RejectReason`] names the code of a rejection. A rejection can carry private data, which DAT 1.2 lacks:
//! [`Ia::cr_reject_with`](crate::Ia::cr_reject_with) sends them, and the peer reads them with
//! [`Ia::ep_private_data`](crate::Ia::ep_private_data).

pub use dat_core::cm::RejectReason;
pub use dat_core::{CrHandle, CrParam, EndCause, PspHandle, PspParam, RspHandle, RspParam};
