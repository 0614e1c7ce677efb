//! Counters of an instance: plain integers that are never reset. They only grow, except the current numbers of objects,
//! of outstanding DTOs and of waiting events.
//!
//! The queues themselves count posts and dequeues ([`QueuePairCounts`]), with one addition each. All other events are
//! rare, and other code counts them.

use crate::provider::{Completion, Provider, QueuePair, QueuePairCounts};
use crate::types::DtoStatus;

/// Possible statuses of a DTO or a bind.
const STATUSES: [DtoStatus; 12] = [
    DtoStatus::Success,
    DtoStatus::ErrFlushed,
    DtoStatus::ErrLocalLength,
    DtoStatus::ErrLocalEp,
    DtoStatus::ErrLocalProtection,
    DtoStatus::ErrBadResponse,
    DtoStatus::ErrRemoteAccess,
    DtoStatus::ErrRemoteResponder,
    DtoStatus::ErrTransport,
    DtoStatus::ErrReceiverNotReady,
    DtoStatus::ErrPartialPacket,
    DtoStatus::RmrOperationFailed,
];

/// Makes the names of the counters of failures, in the order of `STATUSES`.
macro_rules! of_each_status {
    ($side:literal) => {
        [
            concat!($side, "_DAT_DTO_SUCCESS"),
            concat!($side, "_DAT_DTO_ERR_FLUSHED"),
            concat!($side, "_DAT_DTO_ERR_LOCAL_LENGTH"),
            concat!($side, "_DAT_DTO_ERR_LOCAL_EP"),
            concat!($side, "_DAT_DTO_ERR_LOCAL_PROTECTION"),
            concat!($side, "_DAT_DTO_ERR_BAD_RESPONSE"),
            concat!($side, "_DAT_DTO_ERR_REMOTE_ACCESS"),
            concat!($side, "_DAT_DTO_ERR_REMOTE_RESPONDER"),
            concat!($side, "_DAT_DTO_ERR_TRANSPORT"),
            concat!($side, "_DAT_DTO_ERR_RECEIVER_NOT_READY"),
            concat!($side, "_DAT_DTO_ERR_PARTIAL_PACKET"),
            concat!($side, "_DAT_RMR_OPERATION_FAILED"),
        ]
    };
}
const OF_REQUESTS: [&str; STATUSES.len()] = of_each_status!("requests");
const OF_RECVS: [&str; STATUSES.len()] = of_each_status!("recvs");

/// Counters with their names; docs/observability.md explains the names.
pub type Named = Vec<(&'static str, u64)>;

/// Number of DTOs and binds that did not succeed, by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Failures([u64; STATUSES.len()]);

impl Failures {
    /// Returns each status except success, with the number of DTOs and binds that ended with it.
    pub fn each(&self) -> impl Iterator<Item = (DtoStatus, u64)> {
        STATUSES.into_iter().zip(self.0).skip(1)
    }

    /// Returns the number of DTOs and binds that ended with this status; 0 for success.
    #[must_use]
    pub fn of(&self, status: DtoStatus) -> u64 {
        self.0[status as usize]
    }

    /// Returns the number of all DTOs and binds that did not succeed.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |all, one| all.saturating_add(*one))
    }

    /// Returns all numbers, in the order of the statuses' own numbers; the first one is 0, for success.
    #[must_use]
    pub const fn to_raw(&self) -> [u64; STATUSES.len()] {
        self.0
    }

    /// Makes the counters again from the numbers of `to_raw`.
    #[cfg(test)]
    pub(crate) const fn from_raw(numbers: [u64; STATUSES.len()]) -> Self {
        Self(numbers)
    }

    const fn count(&mut self, status: DtoStatus) {
        if !matches!(status, DtoStatus::Success) {
            self.0[status as usize] += 1;
        }
    }

    fn add(&mut self, more: &Self) {
        for (all, one) in self.0.iter_mut().zip(more.0) {
            *all = all.saturating_add(one);
        }
    }
}

/// Counters of an endpoint since it was created, over all its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct EpStats {
    /// Number of requests posted: DTOs and binds.
    pub requests: u64,
    /// Number of bytes of the posted requests, including the bytes that RDMA Reads requested.
    pub request_bytes: u64,
    /// Number of doorbells rung for these requests and for requests that the library posted for itself; a batch rings
    /// one.
    pub doorbells: u64,
    /// Number of requests that failed or were flushed, by status.
    pub requests_failed: Failures,
    /// Number of receives posted to the endpoint itself, not to an SRQ.
    pub recvs: u64,
    /// Number of bytes of messages that arrived, in receives of the endpoint or of an SRQ.
    pub received_bytes: u64,
    /// Number of receives that failed or were flushed, by status.
    pub recvs_failed: Failures,
    /// Number of posts that were refused because the queue was full.
    pub full: u64,
    /// Current number of requests that are not known to be done.
    pub requests_outstanding: u64,
    /// Current number of receives of the endpoint itself that are not known to be done.
    pub recvs_outstanding: u64,
}

impl EpStats {
    /// Returns all counters by name, each status separately.
    #[must_use]
    pub fn named(&self) -> Named {
        let mut named = vec![
            ("requests", self.requests),
            ("request_bytes", self.request_bytes),
            ("doorbells", self.doorbells),
            ("recvs", self.recvs),
            ("received_bytes", self.received_bytes),
            ("full", self.full),
            ("requests_outstanding", self.requests_outstanding),
            ("recvs_outstanding", self.recvs_outstanding),
            ("requests_failed", self.requests_failed.total()),
            ("recvs_failed", self.recvs_failed.total()),
        ];
        let requests = OF_REQUESTS.into_iter().zip(self.requests_failed.0);
        let recvs = OF_RECVS.into_iter().zip(self.recvs_failed.0);
        named.extend(requests.skip(1).chain(recvs.skip(1)));
        named
    }

    /// Adds the counters of another endpoint.
    fn add(&mut self, more: &Self) {
        let add = |all: &mut u64, one| *all = all.saturating_add(one);
        add(&mut self.requests, more.requests);
        add(&mut self.request_bytes, more.request_bytes);
        add(&mut self.doorbells, more.doorbells);
        self.requests_failed.add(&more.requests_failed);
        add(&mut self.recvs, more.recvs);
        add(&mut self.received_bytes, more.received_bytes);
        self.recvs_failed.add(&more.recvs_failed);
        add(&mut self.full, more.full);
        add(&mut self.requests_outstanding, more.requests_outstanding);
        add(&mut self.recvs_outstanding, more.recvs_outstanding);
    }
}

/// Counters of an EVD since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EvdStats {
    /// Number of entries taken from the device's completion queue, including entries that make no event.
    pub completions: u64,
    /// Number of events that went through the EVD's software queue: all events that are not completions, and
    /// completions that were polled early.
    pub queued: u64,
    /// Number of notification events.
    pub notifications: u64,
    /// Number of events that did not fit into the EVD.
    pub overflows: u64,
    /// Number of times that a sleeping wait woke up: a wait on this EVD, or a wait on several EVDs that found an event
    /// here.
    pub wakeups: u64,
    /// Current number of events in the software queue.
    pub waiting: u32,
}

impl EvdStats {
    /// Returns all counters by name.
    #[must_use]
    pub fn named(&self) -> Named {
        vec![
            ("completions", self.completions),
            ("queued", self.queued),
            ("notifications", self.notifications),
            ("overflows", self.overflows),
            ("wakeups", self.wakeups),
            ("waiting", self.waiting.into()),
        ]
    }
}

/// Counters of an SRQ since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqStats {
    /// Number of buffers posted.
    pub posted: u64,
    /// Current number of buffers that are posted, or whose completion was not dequeued.
    pub outstanding: u32,
    /// Number of posts that were refused because the queue was full.
    pub full: u64,
}

impl SrqStats {
    /// Returns all counters by name.
    #[must_use]
    pub fn named(&self) -> Named {
        vec![
            ("posted", self.posted),
            ("outstanding", self.outstanding.into()),
            ("full", self.full),
        ]
    }
}

/// Counters of an instance since it was opened, and its current numbers of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IaStats {
    /// Current number of endpoints.
    pub eps: usize,
    /// Current number of EVDs, including asynchronous EVDs.
    pub evds: usize,
    /// Current number of shared receive queues.
    pub srqs: usize,
    /// Current number of protection zones.
    pub pzs: usize,
    /// Current number of local memory regions.
    pub lmrs: usize,
    /// Current number of remote memory regions.
    pub rmrs: usize,
    /// Sums of the counters of all endpoints, freed endpoints included.
    pub traffic: EpStats,
    /// Number of completions that the EVDs took from the device.
    pub completions: u64,
    /// Number of times that a sleeping wait woke up.
    pub wakeups: u64,
}

impl IaStats {
    /// Returns all counters by name: first the sums over all endpoints, then the instance's own counters.
    #[must_use]
    pub fn named(&self) -> Named {
        let mut named = self.traffic.named();
        named.push(("completions", self.completions));
        named.push(("wakeups", self.wakeups));
        let objects = [
            ("eps", self.eps),
            ("evds", self.evds),
            ("srqs", self.srqs),
            ("pzs", self.pzs),
            ("lmrs", self.lmrs),
            ("rmrs", self.rmrs),
        ];
        // CAST: widening.
        named.extend(objects.map(|(name, number)| (name, number as u64)));
        named
    }
}

/// Counters of an endpoint in addition to those of its queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Sums of the counters of the endpoint's former queue pairs.
    pub before: QueuePairCounts,
    /// Number of requests that failed or were flushed, by status.
    pub requests_failed: Failures,
    /// Number of receives that failed or were flushed, by status.
    pub recvs_failed: Failures,
    /// Number of bytes that arrived in buffers of an SRQ.
    pub shared_bytes: u64,
    /// Number of requests that rang no doorbell of their own.
    pub unrung: u64,
    /// Number of requests that the library posted for itself.
    pub own: u64,
    /// Number of posts that were refused because the queue was full.
    pub full: u64,
}

impl Counts {
    /// Counts a completion, if it did not succeed or if it used a buffer of an SRQ.
    pub(crate) const fn done(&mut self, done: &Completion, shared: bool) {
        let failed = if done.request {
            &mut self.requests_failed
        } else {
            &mut self.recvs_failed
        };
        failed.count(done.status);
        if shared && !done.request && matches!(done.status, DtoStatus::Success) {
            self.shared_bytes += done.transferred;
        }
    }

    /// Counts the bytes of a message that used a buffer of an SRQ.
    #[inline(always)]
    pub(crate) const fn arrived(&mut self, bytes: u32) {
        self.shared_bytes += bytes as u64; // CAST: widening.
    }

    /// Counts requests that rang no doorbell of their own.
    pub(crate) const fn unrung(&mut self, requests: u64) {
        self.unrung += requests;
    }

    /// Counts a request that the library posted for itself.
    pub(crate) const fn own(&mut self) {
        self.own += 1;
    }

    /// Counts a post that was refused because the queue was full.
    pub(crate) const fn full(&mut self) {
        self.full += 1;
    }

    /// Adds to `before` the counters of a queue pair that is about to be destroyed or replaced.
    pub(crate) fn keep(&mut self, ending: &QueuePairCounts) {
        self.before = self.with(ending);
    }

    fn with(&self, now: &QueuePairCounts) -> QueuePairCounts {
        let before = &self.before;
        QueuePairCounts {
            requests: before.requests.saturating_add(now.requests),
            request_bytes: before.request_bytes.saturating_add(now.request_bytes),
            recvs: before.recvs.saturating_add(now.recvs),
            received_bytes: before.received_bytes.saturating_add(now.received_bytes),
        }
    }

    /// Returns all counters of the endpoint, including those of its current queue pair.
    pub(crate) fn stats<P: Provider>(&self, qp: Option<&P::Qp>) -> EpStats {
        let posted = self.with(&qp.map(QueuePair::counts).unwrap_or_default());
        EpStats {
            requests: posted.requests - self.own,
            request_bytes: posted.request_bytes,
            doorbells: posted.requests - self.unrung,
            requests_failed: self.requests_failed,
            recvs: posted.recvs,
            received_bytes: posted.received_bytes.saturating_add(self.shared_bytes),
            recvs_failed: self.recvs_failed,
            full: self.full,
            requests_outstanding: qp.map_or(0, |qp| qp.requests_outstanding().into()),
            recvs_outstanding: qp.map_or(0, |qp| qp.recvs_outstanding().into()),
        }
    }
}

/// Sums of the counters of freed endpoints.
#[derive(Default)]
pub(crate) struct Ended(EpStats);

impl Ended {
    /// Returns the sums.
    pub(crate) const fn sums(&self) -> EpStats {
        self.0
    }

    /// Makes the sums again.
    pub(crate) const fn of(sums: EpStats) -> Self {
        Self(sums)
    }

    pub(crate) fn ep(&mut self, last: &EpStats) {
        let ended = EpStats {
            requests_outstanding: 0,
            recvs_outstanding: 0,
            ..*last
        };
        self.0.add(&ended);
    }

    /// Returns the sums of the counters of freed and existing endpoints.
    pub(crate) fn and(&self, living: impl Iterator<Item = EpStats>) -> EpStats {
        let mut all = self.0;
        living.for_each(|one| all.add(&one));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_is_counted_in_its_own_place() {
        for (at, status) in STATUSES.into_iter().enumerate() {
            assert_eq!(status as usize, at);
            assert_eq!(OF_REQUESTS[at], format!("requests_{}", status.name()));
            assert_eq!(OF_RECVS[at], format!("recvs_{}", status.name()));
        }
    }

    /// The length of a completion has no meaning unless the status is success ([`Completion::transferred`]).
    #[test]
    fn only_a_shared_receive_that_succeeded_counts_its_bytes() {
        for status in STATUSES {
            let mut counts = Counts::default();
            let done = Completion {
                status,
                transferred: 64,
                ..Completion::flushed(0, false, false)
            };
            counts.done(&done, true);
            let arrived = u64::from(status == DtoStatus::Success) * 64;
            assert_eq!(counts.shared_bytes, arrived, "{status:?}");
        }
    }
}
