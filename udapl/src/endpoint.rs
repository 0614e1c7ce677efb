//! Endpoints: attributes, states, transport settings, and batches of posts.
//!
//! An endpoint ([`EpHandle`](crate::EpHandle)) is one end of a connection. It has a queue of requests (Sends, RDMA
//! Writes and Reads, binds) and a queue of receives; [`EpEvds`](crate::EpEvds) names the EVDs that get its events, and
//! [`EpAttr`] has the lengths of the queues. [`EpState`] has the states from creation to the end of the connection.
//! [`Ia::ep_modify`](crate::Ia::ep_modify) takes an [`EpChange`], which can set the timeouts and retries of connections
//! ([`EpTransport`]). A [`Batch`] posts several requests with one doorbell. Module [`post`](crate::post) has
//! the posts as values, module [`srq`](crate::srq) has receive queues that several endpoints use.

pub use dat_core::{
    Batch, EpAttr, EpChange, EpEvent, EpParam, EpRecvParam, EpState, EpStatus, EpTransport,
};
