//! The snapshots of objects that were parked: plain data. This module does not interpret them.
//!
//! Each object has the handle by which the program knows it, and other objects are named by their handles. Cookies are
//! the program's words. All times are those of the provider's clock, in nanoseconds.

use std::net::IpAddr;

use super::cr::Peer;
use super::ep::attr::EpAttr;
use super::ep::cause::EndCause;
use super::ep::state::EpState;
use super::ep::transport::EpTransport;
use super::ep::{Ends, Watermarks};
use super::lmr::MemType;
use super::lmr::segment::LmrTriplet;
use super::srq::state::SrqMode;
use crate::cm::{ConnId, ListenId};
use crate::event::Event;
use crate::handle::{
    CnoHandle, CrHandle, EpHandle, EvdHandle, LmrHandle, PspHandle, PzHandle, RmrHandle, RspHandle,
    SrqHandle,
};
use crate::provider::{Nanos, Path, Psn};
use crate::stats::Counts;
use crate::types::{ConnQual, EvdFlags, MemPrivFlags, PspFlags};

/// A table of objects.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct TableSnapshot<T, H> {
    /// The objects, by the index in their handles unless the table says otherwise.
    pub objects: Vec<T>,
    /// Handles of the next objects in empty slots. The last one is used first, unless the table says otherwise.
    pub free: Vec<H>,
}

/// A protection zone.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct PzSnapshot<D> {
    /// Its handle.
    pub pz: PzHandle,
    /// Its protection domain.
    pub domain: D,
}

/// A local memory region.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct LmrSnapshot<R> {
    /// Its handle.
    pub lmr: LmrHandle,
    /// Its protection zone.
    pub pz: PzHandle,
    /// Access rights that the consumer requested.
    pub privileges: MemPrivFlags,
    /// Kind of memory that it was created from. The region of [`MemType::Lmr`] may have been freed.
    pub kind: MemType,
    /// Its region and memory. Contexts, address and length are the provider's.
    pub region: R,
}

/// A consumer notification object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct CnoSnapshot {
    /// Its handle.
    pub cno: CnoHandle,
    /// EVD of a trigger that no waiter has taken. The EVD may have been freed.
    pub triggered: Option<EvdHandle>,
    /// Number of times that all waiters were released without a trigger.
    pub released: u64,
}

/// An event dispatcher.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct EvdSnapshot<C> {
    /// Its handle.
    pub evd: EvdHandle,
    /// Maximum number of events that it can hold; at least 1.
    pub qlen: u32,
    /// Streams of events that it may carry.
    pub flags: EvdFlags,
    /// True if `evd_wait` may be called.
    pub is_waitable: bool,
    /// True if notification events trigger the CNO.
    pub is_enabled: bool,
    /// CNO that notification events trigger.
    pub cno: Option<CnoHandle>,
    /// Events of the software queue, oldest first.
    pub events: Vec<QueuedSnapshot>,
    /// Number of notification events so far.
    pub notifications: u64,
    /// Number of events that were queued in software so far.
    pub queued: u64,
    /// Number of events that did not fit.
    pub overflows: u64,
    /// Number of times that a sleeping wait woke up for this EVD.
    pub wakeups: u64,
    /// Its completion queue, if it may carry completions.
    pub queue: Option<C>,
}

/// An event in the software queue of an EVD.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct QueuedSnapshot {
    /// The event. Objects that it names may have been freed.
    pub event: Event,
    /// SRQ whose slot is occupied until the event is dequeued. A freed one has no slots.
    pub srq: Option<SrqHandle>,
}

/// A shared receive queue.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct SrqSnapshot<S> {
    /// Its handle.
    pub srq: SrqHandle,
    /// Its protection zone.
    pub pz: PzHandle,
    /// Maximum number of outstanding receives; at least 1.
    pub max_recv_dtos: u32,
    /// Maximum number of segments of a receive; at least 1.
    pub max_recv_iov: u32,
    /// Low watermark, in buffers; 0 if none is set.
    pub low_watermark: u32,
    /// State of the SRQ and of its watermark.
    pub mode: SrqMode,
    /// Number of posts that were refused because the SRQ was full.
    pub full: u64,
    /// Its receive queue.
    pub queue: S,
}

/// A remote memory region.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct RmrSnapshot<W> {
    /// Its handle.
    pub rmr: RmrHandle,
    /// Its protection zone.
    pub pz: PzHandle,
    /// Binding that the last posted bind makes; `None` after an unbind.
    pub posted: Option<BindingSnapshot>,
    /// Number of binds posted since its creation.
    pub binds: u64,
    /// Endpoint on which the last bind was posted. It may have been freed.
    pub bound_on: Option<EpHandle>,
    /// LMR that the window uses, according to the completed binds.
    pub window_lmr: Option<LmrHandle>,
    /// Number of the last bind that had been posted when a peer invalidated the context.
    pub void_up_to: u64,
    /// Its memory window.
    pub window: W,
}

/// A binding of an RMR.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct BindingSnapshot {
    /// The LMR.
    pub lmr: LmrHandle,
    /// The part of the LMR.
    pub triplet: LmrTriplet,
    /// Rights that peers have on it.
    pub privileges: MemPrivFlags,
    /// RMR context, for use by peers.
    pub rmr_context: u32,
}

/// An endpoint.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct EpSnapshot<Q, C> {
    /// Its handle.
    pub ep: EpHandle,
    /// Name that the C ABI has given to it; 0 if it has none.
    pub name: u64,
    /// Its protection zone.
    pub pz: Option<PzHandle>,
    /// EVD on which receives complete.
    pub recv_evd: Option<EvdHandle>,
    /// EVD on which requests complete.
    pub request_evd: Option<EvdHandle>,
    /// EVD that receives connection events.
    pub connect_evd: Option<EvdHandle>,
    /// SRQ from which it takes buffers.
    pub srq: Option<SrqHandle>,
    /// Its attributes.
    pub attr: EpAttr,
    /// Transport settings of its connections.
    pub transport: EpTransport,
    /// Its state.
    pub state: EpState,
    /// Its connection, or its attempt to connect.
    pub conn: Option<ConnId>,
    /// The two ends of the connection or of the attempt, also after its end.
    pub ends: Option<Ends>,
    /// Our port, if the connection was started through the RDMA CM; otherwise 0.
    pub local_port_qual: u64,
    /// Active side: path, first receive PSN and MTU code (1..=5) of our connection request.
    pub outgoing: Option<(Path, Psn, u8)>,
    /// Path of the connection or of the attempt, also after its end.
    pub path: Option<Path>,
    /// Cause of the end of the last connection, or of the imminent end of the current one.
    pub cause: Option<EndCause>,
    /// Private data that the peer sent with its accept or its reject.
    pub private_data: Vec<u8>,
    /// True if a request that the library posted for itself is outstanding.
    pub own_outstanding: bool,
    /// Number of requests posted, and number outstanding, at the last keep-alive check.
    pub idle_since: (u64, u32),
    /// Time of the next keep-alive check, or the deadline of a graceful disconnect; `None` if there is none.
    pub next_check: Option<Nanos>,
    /// True if the queue pair has been able to receive since it was created, reset or rewound.
    pub has_received: bool,
    /// True if the device has reported the queue pair's last SRQ buffer.
    pub last_buffer: bool,
    /// Outstanding binds, oldest first.
    pub binds: Vec<PendingBindSnapshot>,
    /// High watermarks of receive buffers.
    pub marks: Watermarks,
    /// Counters, in addition to those of the queue pair.
    pub counts: Counts,
    /// Its queue pair, if it has a protection zone.
    pub queue_pair: Option<Q>,
    /// Completion queue for completions without an EVD, if the EVD of requests or of receives is missing.
    pub discard: Option<C>,
}

/// A bind that was posted and has not completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct PendingBindSnapshot {
    /// The RMR. It may have been freed.
    pub rmr: RmrHandle,
    /// Number of this bind among the binds of its RMR, from 1.
    pub number: u64,
    /// The LMR to bind to; `None` for an unbind.
    pub lmr: Option<LmrHandle>,
    /// True if a successful completion makes no event.
    pub suppress: bool,
}

/// A public service point.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct PspSnapshot {
    /// Its handle.
    pub psp: PspHandle,
    /// Its listener in the connection manager.
    pub listen: ListenId,
    /// Connection qualifier at which it listens; not 0.
    pub conn_qual: ConnQual,
    /// EVD that receives the connection requests.
    pub evd: EvdHandle,
    /// Side that creates the endpoint of a request: the consumer or the provider.
    pub flags: PspFlags,
    /// True if other instances may listen at the same qualifier.
    pub is_shared: bool,
}

/// A reserved service point.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct RspSnapshot {
    /// Its handle.
    pub rsp: RspHandle,
    /// Its listener in the connection manager; `None` if its request has arrived.
    pub listen: Option<ListenId>,
    /// Connection qualifier at which it listens, or has listened; not 0.
    pub conn_qual: ConnQual,
    /// EVD that receives the connection request. If the request has arrived, the EVD may have been freed.
    pub evd: EvdHandle,
    /// Endpoint that is reserved for the request. If the request has arrived, it may have been freed.
    pub ep: Option<EpHandle>,
}

/// A connection request.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct CrSnapshot {
    /// Its handle.
    pub cr: CrHandle,
    /// Its connection.
    pub conn: ConnId,
    /// Parameters of the peer, and the path to it.
    pub peer: Peer,
    /// Connection qualifier of the request.
    pub conn_qual: ConnQual,
    /// Our address, to which the request was sent.
    pub local: IpAddr,
    /// The peer's GID.
    pub remote_gid: [u8; 16],
    /// The peer's port; 0 if it has none.
    pub remote_port: u16,
    /// Private data of the request.
    pub private_data: Vec<u8>,
    /// Number of outstanding RDMA Reads towards this side that the peer requests.
    pub reads_in: u8,
    /// Endpoint that came with the request.
    pub local_ep: Option<EpHandle>,
    /// True if that endpoint was created for the request; false if it is that of an RSP.
    pub is_lent: bool,
}
