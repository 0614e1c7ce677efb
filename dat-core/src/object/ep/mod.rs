//! The endpoint: its parts and its own state.
//!
//! The queue pair is created, in INIT, as soon as the endpoint has a PZ, normally together with the endpoint. So
//! receives can be posted in every state. From then on the state of the endpoint determines the state of the queue
//! pair:
//!
//! | endpoint | queue pair |
//! |---|---|
//! | UNCONNECTED, RESERVED, PASSIVE_, TENTATIVE_ and ACTIVE_CONNECTION_PENDING | INIT |
//! | COMPLETION_PENDING | RTS, but we post nothing |
//! | CONNECTED, DISCONNECT_PENDING | RTS |
//! | DISCONNECTED | ERR: the device flushes outstanding and later requests |

pub mod attr;
pub mod cause;
pub mod evds;
pub(crate) mod extension;
pub(crate) mod installed;
mod parking;
pub(crate) mod request;
pub mod state;
pub mod transport;
pub(crate) mod untimely;

use super::evd::streams::{DtoMode, Stream};
use super::rmr::PendingBind;
use crate::cm::ConnId;
use crate::error::DatResult;
use crate::handle::{EpKey, EvdKey, PzKey, SrqKey, index_of};
use crate::provider::{MAX_SEGMENT, Nanos, Path, Provider, Psn};
use crate::slots::{Name, Resident};
use crate::stats::{Counts, EpStats};
use crate::types::CompletionFlags;
use attr::EpAttr;
use cause::EndCause;
use installed::Installed;
use state::{CurrentState, EpEvent, EpState, Lifecycle};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Deref;
use transport::EpTransport;

/// Largest owner number of an endpoint. Owner numbers have 24 bits; the upper half of the range is for `discard`
/// queues.
pub(crate) const MAX_OWNER: u32 = (1 << 23) - 1;
/// Bit that marks the owner number of an endpoint's `discard` queue.
pub(crate) const DISCARD_OWNER: u32 = 1 << 23;

/// Fields that posts and completions read first.
#[repr(C)]
pub(crate) struct Hot {
    pub(crate) at_once: AtOnce,
    /// Index of the PZ.
    pub(crate) pz: u32,
    pub(crate) request_flags_refused: u32,
    pub(crate) recv_flags_refused: u32,
    life: Lifecycle,
    /// True if the peer's SOLICITED_WAIT flag decides which receives notify.
    pub(crate) solicited_wait: bool,
    /// True if the state takes requests and they need not be recorded or timed. An inline Send checks this first.
    pub(crate) takes_inline: bool,
}

/// Time limit of a graceful disconnect, in nanoseconds. At this limit the disconnect becomes abrupt: outstanding
/// requests are flushed, and DISCONNECTED is reported with [`EndCause::DrainTimedOut`](cause::EndCause::DrainTimedOut).
/// The limit is longer than all retries of a request to a dead peer, with the longest ACK timeout that a peer may ask
/// for ([`Config::max_ack_timeout`](crate::cm::Config::max_ack_timeout)). So the failure of such a request is reported
/// with its own cause.
pub const DRAIN_TIMEOUT: Nanos = 180_000_000_000;

/// Maximum length, in bytes, of a DTO of one segment on the fast path, for each operation; never more than a segment
/// can hold. The limits of requests are 0 if the endpoint is not connected, or if the next request must be recorded or
/// timed. The limit of an operation that allows no segment is 0. The limit of receives is 0 if buffers come from an
/// SRQ, have no segments, or are recorded. So a single comparison of the length checks all of these conditions.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct AtOnce {
    pub(crate) send: u32,
    pub(crate) write: u32,
    pub(crate) read: u32,
    pub(crate) recv: u32,
}

/// Limits that the ordered path checks a post against.
pub(crate) struct Bounds {
    pub(crate) max_request_iov: u32,
    pub(crate) max_write_iov: u32,
    pub(crate) max_read_iov: u32,
    pub(crate) max_recv_iov: u32,
    pub(crate) max_reads_out: u32,
    /// Maximum length of a Send, in bytes.
    pub(crate) max_send_bytes: u64,
    /// Maximum length of an RDMA Write, in bytes.
    pub(crate) max_write_bytes: u64,
    /// Maximum length of an RDMA Read, in bytes.
    pub(crate) max_read_bytes: u64,
}

/// An endpoint. The fields are in the order in which posts and completions use them. The fields up to and including the
/// queue pair's tag form one cache line. Every post and every completion reads this line, and none writes it. The queue
/// pair begins on the next line, with its most used fields first. No frequent operation reads the fields after the
/// queue pair.
#[repr(C, align(64))]
pub(crate) struct Ep<P: Provider> {
    place: Name<EpKey>,
    pub(crate) hot: Hot,
    /// Name that the C facade has given to the endpoint; 0 if it has none.
    pub(crate) name: u64,
    pub(crate) qp: Installed<P::Qp>,
    pub(crate) bounds: Bounds,
    pub(crate) srq: Option<SrqKey>,
    /// Completion queue for the completions of the endpoint's null EVDs.
    pub(crate) discard: Option<P::Cq>,
    pub(crate) attr: EpAttr,
    pub(crate) transport: EpTransport,
    pub(crate) pz: Option<PzKey>,
    pub(crate) recv_evd: Option<EvdKey>,
    pub(crate) request_evd: Option<EvdKey>,
    pub(crate) connect_evd: Option<EvdKey>,
    pub(crate) conn: Option<ConnId>,
    pub(crate) ends: Option<Ends>,
    pub(crate) local_port_qual: u64,
    /// Active side: path, first receive PSN and MTU of our connection request.
    pub(crate) outgoing: Option<(Path, Psn, u8)>,
    /// Path of the connection, or of the attempt.
    pub(crate) path: Option<Path>,
    /// Cause of the end of the last connection, or of the imminent end of the current one.
    pub(crate) cause: Option<EndCause>,
    /// Private data that the peer sent with its accept or its reject.
    pub(crate) private_data: Box<[u8]>,
    /// True if a request that the library posted for itself is outstanding: a keep-alive probe, or the marker of a
    /// graceful disconnect.
    pub(crate) own_outstanding: bool,
    /// Number of requests posted, and number outstanding, at the last keep-alive check.
    pub(crate) idle_since: (u64, u32),
    /// Time of the next keep-alive check, or the deadline of a graceful disconnect.
    pub(crate) next_check: Nanos,
    /// True if the queue pair has been able to receive since it was created, reset or rewound. If so, the device will
    /// report the queue pair's last SRQ buffer.
    pub(crate) has_received: bool,
    /// True if the device has reported the queue pair's last SRQ buffer.
    pub(crate) last_buffer: bool,
    /// Outstanding binds, oldest first; never more than the allocated capacity.
    pub(crate) binds: VecDeque<PendingBind>,
    pub(crate) marks: Watermarks,
    pub(crate) counts: Counts,
    /// True while the endpoint is recorded; no post then uses the fast path.
    recorded: bool,
    /// True if the next request will be timed; that request then does not use the fast path.
    timed: bool,
}

/// The two ends of a connection or of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Ends {
    /// Our address. The address table may have lost it meanwhile.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// The peer's port or connection qualifier; 0 if it has none.
    pub remote_port: u64,
}

/// Configuration of an endpoint: everything that `ep_create` and `ep_modify` set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) pz: Option<PzKey>,
    pub(crate) recv_evd: Option<EvdKey>,
    pub(crate) request_evd: Option<EvdKey>,
    pub(crate) connect_evd: Option<EvdKey>,
    pub(crate) srq: Option<SrqKey>,
    pub(crate) attr: EpAttr,
    pub(crate) transport: EpTransport,
}

impl Hot {
    fn new(setup: &Setup) -> Self {
        let attr = &setup.attr;
        let mut request_flags = CompletionFlags::SUPPRESS
            | CompletionFlags::SOLICITED_WAIT
            | CompletionFlags::BARRIER_FENCE;
        if attr.request_mode() == DtoMode::Unsignalled {
            request_flags |= CompletionFlags::UNSIGNALLED;
        }
        let mut recv_flags = CompletionFlags::empty();
        if attr.recv_mode() == DtoMode::Unsignalled {
            recv_flags |= CompletionFlags::UNSIGNALLED;
        }
        let receives = setup.srq.is_none() && attr.max_recv_iov != 0;
        Self {
            at_once: AtOnce {
                recv: if receives { MAX_SEGMENT } else { 0 },
                ..AtOnce::default()
            },
            // No LMR is in PZ u32::MAX, so every check of a segment fails.
            pz: setup.pz.map_or(u32::MAX, index_of),
            request_flags_refused: !request_flags.bits(),
            recv_flags_refused: !recv_flags.bits(),
            life: Lifecycle::NEW,
            solicited_wait: attr.recv_mode() == DtoMode::Solicited,
            takes_inline: false,
        }
    }
}

impl Bounds {
    fn new(attr: &EpAttr, max_read_iov: u32) -> Self {
        Self {
            max_request_iov: attr.max_request_iov,
            max_write_iov: attr.write_iov(),
            max_read_iov,
            max_recv_iov: attr.max_recv_iov,
            max_reads_out: attr.max_rdma_read_out,
            max_send_bytes: attr.max_message_size,
            max_write_bytes: attr.max_rdma_size,
            max_read_bytes: attr.max_rdma_size,
        }
    }
}

/// Lets all modules read `hot.state`, and none write it.
impl Deref for Hot {
    type Target = CurrentState;

    #[inline]
    fn deref(&self) -> &CurrentState {
        &self.life
    }
}

impl<P: Provider> Ep<P> {
    pub(crate) fn new(setup: &Setup, max_read_iov: u32) -> Self {
        Self {
            place: Name::none(),
            hot: Hot::new(setup),
            name: 0,
            qp: Installed::Nothing,
            bounds: Bounds::new(&setup.attr, max_read_iov),
            srq: setup.srq,
            discard: None,
            attr: setup.attr,
            transport: setup.transport,
            pz: setup.pz,
            recv_evd: setup.recv_evd,
            request_evd: setup.request_evd,
            connect_evd: setup.connect_evd,
            conn: None,
            ends: None,
            local_port_qual: 0,
            outgoing: None,
            path: None,
            cause: None,
            private_data: Box::default(),
            own_outstanding: false,
            idle_since: (0, 0),
            next_check: 0,
            has_received: false,
            last_buffer: false,
            binds: VecDeque::new(),
            marks: Watermarks::default(),
            counts: Counts::default(),
            recorded: false,
            timed: false,
        }
    }

    /// Applies an event to the state. No other function changes the state.
    ///
    /// # Errors
    /// The errors of [`Lifecycle::step`]; nothing has changed.
    pub(crate) fn step(&mut self, event: EpEvent) -> DatResult<()> {
        self.hot.life.step(event)?;
        self.update_at_once();
        Ok(())
    }

    /// Changes the configuration without changing the state.
    pub(crate) fn configure(&mut self, setup: &Setup, max_read_iov: u32) {
        let hot = Hot::new(setup);
        let before = core::mem::replace(&mut self.hot, hot);
        self.hot.life = before.life;
        self.bounds = Bounds::new(&setup.attr, max_read_iov);
        self.srq = setup.srq;
        self.update_at_once();
    }

    /// Switches recording of the endpoint on or off.
    pub(crate) fn set_recorded(&mut self, on: bool) {
        self.recorded = on;
        self.update_at_once();
    }

    /// Sets whether the next request will be timed.
    pub(crate) fn set_timed(&mut self, on: bool) {
        self.timed = on;
        self.update_at_once();
    }

    fn update_at_once(&mut self) {
        let unobserved = !self.recorded && !self.timed;
        let connected = unobserved && self.hot.state == EpState::Connected;
        self.hot.takes_inline = unobserved && self.hot.state.takes_requests();
        let receives = !self.recorded && self.srq.is_none() && self.bounds.max_recv_iov != 0;
        let most = |segments: u32, limit: u64| {
            if connected && segments != 0 {
                u32::try_from(limit).map_or(MAX_SEGMENT, |limit| limit.min(MAX_SEGMENT))
            } else {
                0
            }
        };
        let bounds = &self.bounds;
        self.hot.at_once = AtOnce {
            send: most(bounds.max_request_iov, bounds.max_send_bytes),
            write: most(bounds.max_write_iov, bounds.max_write_bytes),
            read: most(
                bounds.max_read_iov.min(bounds.max_reads_out),
                bounds.max_read_bytes,
            ),
            recv: if receives { MAX_SEGMENT } else { 0 },
        };
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> EpStats {
        let mut stats = self.counts.stats::<P>(self.qp.get());
        let own = u64::from(self.own_outstanding);
        // If the device loses a completion, the library's own request may already have been counted as done.
        stats.requests_outstanding = stats.requests_outstanding.saturating_sub(own);
        stats
    }

    pub(crate) fn setup(&self) -> Setup {
        Setup {
            pz: self.pz,
            recv_evd: self.recv_evd,
            request_evd: self.request_evd,
            connect_evd: self.connect_evd,
            srq: self.srq,
            attr: self.attr,
            transport: self.transport,
        }
    }
}

/// The value in an empty slot has no queue pair, and a state that takes no posts.
impl<P: Provider> Resident<EpKey> for Ep<P> {
    #[inline(always)]
    fn name(&mut self) -> &mut Name<EpKey> {
        &mut self.place
    }

    #[inline(always)]
    fn named(&self) -> &Name<EpKey> {
        &self.place
    }

    fn vacant() -> Self {
        let setup = Setup {
            pz: None,
            recv_evd: None,
            request_evd: None,
            connect_evd: None,
            srq: None,
            attr: EpAttr::NONE,
            transport: EpTransport::default(),
        };
        Self::new(&setup, 0)
    }
}

/// Returns the event streams of an endpoint, each with its EVD.
pub(crate) fn streams_of(setup: &Setup) -> impl Iterator<Item = (EvdKey, Stream)> {
    [
        (setup.recv_evd, Stream::Dto(setup.attr.recv_mode())),
        (setup.request_evd, Stream::Dto(setup.attr.request_mode())),
        (setup.connect_evd, Stream::Connection),
    ]
    .into_iter()
    .filter_map(|(evd, stream)| Some((evd?, stream)))
}

/// Returns the endpoint's recv and request EVDs that differ from its connect EVD. A completion on one of these EVDs may
/// be the first sign of an error that ends the connection.
pub(crate) fn feeders_of(setup: &Setup) -> impl Iterator<Item = EvdKey> {
    let connect = setup.connect_evd;
    [setup.recv_evd, setup.request_evd]
        .into_iter()
        .flatten()
        .filter(move |evd| connect.is_some_and(|connect| connect != *evd))
}

/// High watermarks of an endpoint's receive buffers. `None` is DAT_WATERMARK_INFINITE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Watermarks {
    /// Number of buffers above which one asynchronous event is reported.
    pub soft: Option<u32>,
    /// Number of buffers above which the connection is broken.
    pub hard: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Mock, MockQp};
    use core::mem::{align_of, offset_of, size_of};

    #[test]
    fn fields_that_posts_read_are_one_cache_line_and_the_queue_pair_begins_the_next() {
        let tells = offset_of!(Ep<Mock>, qp);
        assert_eq!((align_of::<Ep<Mock>>(), tells), (64, 56));
        let before = size_of::<Installed<MockQp>>() - size_of::<MockQp>();
        assert_eq!(tells + before, 64);
    }
}
