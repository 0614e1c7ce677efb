//! What an instance counts: plain words that only grow, and that nothing sets back.
//!
//! What posts and dequeues count, the queues themselves count ([`QueuePairCounts`]): one addition each. All else is
//! counted where it is rare.

use crate::provider::{Completion, Provider, QueuePair, QueuePairCounts};
use crate::types::DtoStatus;

/// What can become of a DTO or a bind.
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

/// Names of what failed so, in the same order.
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

/// Counters with their names, which docs/observability.md explains.
pub type Named = Vec<(&'static str, u64)>;

/// DTOs and binds that did not succeed, by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures([u64; STATUSES.len()]);

impl Failures {
    /// Each status but success, and how many ended so.
    pub fn each(&self) -> impl Iterator<Item = (DtoStatus, u64)> {
        STATUSES.into_iter().zip(self.0).skip(1)
    }

    /// How many ended with this status; none with success.
    #[must_use]
    pub fn of(&self, status: DtoStatus) -> u64 {
        self.0[status as usize]
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    const fn count(&mut self, status: DtoStatus) {
        if !matches!(status, DtoStatus::Success) {
            self.0[status as usize] += 1;
        }
    }

    fn add(&mut self, more: &Self) {
        for (all, one) in self.0.iter_mut().zip(more.0) {
            *all += one;
        }
    }
}

/// What an endpoint has done since it was created, in all its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EpStats {
    /// Requests posted: DTOs and binds.
    pub requests: u64,
    /// Bytes of the DTOs among them, what RDMA Reads asked for included.
    pub request_bytes: u64,
    /// Doorbells rung for them. A batch rings one.
    pub doorbells: u64,
    /// Requests that failed or were flushed, by status.
    pub requests_failed: Failures,
    /// Receives posted to the endpoint itself, not to an SRQ.
    pub recvs: u64,
    /// Messages that arrived, whatever receive they took.
    pub received_bytes: u64,
    /// Receives that failed or were flushed, by status.
    pub recvs_failed: Failures,
    /// Posts that were refused because the queue was full.
    pub full: u64,
    /// Requests that are not known to be done, now.
    pub requests_outstanding: u64,
    /// Receives of the endpoint itself that are not known to be done, now.
    pub recvs_outstanding: u64,
}

impl EpStats {
    /// All of them by name, each status of its own.
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

    /// Those of another endpoint besides.
    fn add(&mut self, more: &Self) {
        self.requests += more.requests;
        self.request_bytes += more.request_bytes;
        self.doorbells += more.doorbells;
        self.requests_failed.add(&more.requests_failed);
        self.recvs += more.recvs;
        self.received_bytes += more.received_bytes;
        self.recvs_failed.add(&more.recvs_failed);
        self.full += more.full;
        self.requests_outstanding += more.requests_outstanding;
        self.recvs_outstanding += more.recvs_outstanding;
    }
}

/// What an EVD has taken in since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EvdStats {
    /// Entries taken from the device's completion queue, with those that nobody is told of.
    pub completions: u64,
    /// Events that went through its queue in software: all that are no completions, and completions that were taken in
    /// before somebody asked for them.
    pub queued: u64,
    /// Notification events among these.
    pub notifications: u64,
    /// Events that found no room.
    pub overflows: u64,
    /// Times that a wait which slept ran again: a wait on it, or one on it among others that found something here.
    pub wakeups: u64,
    /// Events in software, now.
    pub waiting: u32,
}

impl EvdStats {
    /// All of them by name.
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

/// What an SRQ has taken in since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqStats {
    /// Buffers posted.
    pub posted: u64,
    /// Buffers that are posted, or whose completion was not dequeued, now.
    pub outstanding: u32,
    /// Posts that were refused because the queue was full.
    pub full: u64,
}

impl SrqStats {
    /// All of them by name.
    #[must_use]
    pub fn named(&self) -> Named {
        vec![
            ("posted", self.posted),
            ("outstanding", self.outstanding.into()),
            ("full", self.full),
        ]
    }
}

/// What an instance has done since it was opened, and what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IaStats {
    /// Endpoints, now.
    pub eps: usize,
    /// EVDs, asynchronous ones among them.
    pub evds: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Protection zones.
    pub pzs: usize,
    /// Local memory regions.
    pub lmrs: usize,
    /// Remote memory regions.
    pub rmrs: usize,
    /// All endpoints together, those that were freed among them.
    pub traffic: EpStats,
    /// Completions that the EVDs took from the device.
    pub completions: u64,
    /// Times that a wait which slept ran again.
    pub wakeups: u64,
}

impl IaStats {
    /// All of them by name: those of all endpoints together, then its own.
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

/// What an endpoint counts beside its queue pair.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    /// Queue pairs that it had before.
    before: QueuePairCounts,
    requests_failed: Failures,
    recvs_failed: Failures,
    /// Bytes that arrived in buffers of an SRQ.
    shared_bytes: u64,
    /// Requests whose doorbell was another's, and requests of our own.
    unrung: u64,
    own: u64,
    full: u64,
}

impl Counts {
    /// A DTO or a bind is done that did not succeed, or took a buffer of an SRQ.
    pub(crate) const fn done(&mut self, done: &Completion, shared: bool) {
        let failed = if done.request {
            &mut self.requests_failed
        } else {
            &mut self.recvs_failed
        };
        failed.count(done.status);
        if shared && !done.request {
            self.shared_bytes += done.transferred;
        }
    }

    /// A message took a buffer of an SRQ.
    #[inline(always)]
    pub(crate) const fn arrived(&mut self, bytes: u32) {
        self.shared_bytes += bytes as u64; // CAST: widening.
    }

    /// So many requests had no doorbell of their own.
    pub(crate) const fn unrung(&mut self, requests: u64) {
        self.unrung += requests;
    }

    /// A request was posted that no consumer asked for.
    pub(crate) const fn own(&mut self) {
        self.own += 1;
    }

    /// A post found no room.
    pub(crate) const fn full(&mut self) {
        self.full += 1;
    }

    /// A queue pair is about to end, or to be replaced.
    pub(crate) fn keep(&mut self, ending: &QueuePairCounts) {
        self.before = self.with(ending);
    }

    fn with(&self, now: &QueuePairCounts) -> QueuePairCounts {
        let before = &self.before;
        QueuePairCounts {
            requests: before.requests + now.requests,
            request_bytes: before.request_bytes + now.request_bytes,
            recvs: before.recvs + now.recvs,
            received_bytes: before.received_bytes + now.received_bytes,
        }
    }

    /// All of it.
    pub(crate) fn stats<P: Provider>(&self, qp: Option<&P::Qp>) -> EpStats {
        let posted = self.with(&qp.map(QueuePair::counts).unwrap_or_default());
        EpStats {
            requests: posted.requests - self.own,
            request_bytes: posted.request_bytes,
            doorbells: posted.requests - self.unrung,
            requests_failed: self.requests_failed,
            recvs: posted.recvs,
            received_bytes: posted.received_bytes + self.shared_bytes,
            recvs_failed: self.recvs_failed,
            full: self.full,
            requests_outstanding: qp.map_or(0, |qp| qp.requests_outstanding().into()),
            recvs_outstanding: qp.map_or(0, |qp| qp.recvs_outstanding().into()),
        }
    }
}

/// What endpoints counted that are no more.
#[derive(Default)]
pub(crate) struct Ended(EpStats);

impl Ended {
    pub(crate) fn ep(&mut self, last: &EpStats) {
        let ended = EpStats {
            requests_outstanding: 0,
            recvs_outstanding: 0,
            ..*last
        };
        self.0.add(&ended);
    }

    /// They and these.
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
}
