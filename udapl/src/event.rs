//! Events: the content of each kind of [`Event`](crate::Event).
//!
//! An event dispatcher (EVD, [`EvdHandle`](crate::EvdHandle)) queues events of the streams that it was created for
//! ([`EvdFlags`](crate::EvdFlags)). A [`DtoCompletion`] reports the end of a transfer, an [`RmrBindCompletion`] the end
//! of a bind. A [`ConnectionRequest`] arrives at a service point, a [`ConnectionEvent`] at both ends of a connection.
//! An [`AsyncEvent`] reports an error that belongs to no call, a watermark, or a [`NetworkEvent`]. The program posts a
//! [`SoftwareEvent`] itself. [`EVENT_NUMBERS`] has DAT's numbers and names of all events. Module [`wait`](crate::wait)
//! lists the ways to get events.

pub use dat_core::{
    AsyncEvent, ConnectionEvent, ConnectionRequest, DtoCompletion, DtoDetail, EVENT_NUMBERS,
    EventNumber, NetworkEvent, RmrBindCompletion, SoftwareEvent,
};
