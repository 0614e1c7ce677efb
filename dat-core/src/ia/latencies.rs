//! Measured latencies of an instance, and the requests being timed ([`latency`](super::call::latency)).

use std::collections::HashMap;

use crate::handle::{EpKey, EvdKey};
use crate::latency::Histogram;
use crate::provider::{Nanos, Qpn};
use crate::round_robin::RoundRobin;

/// Measured latencies.
#[derive(Default)]
pub(in crate::ia) struct Latencies {
    /// True while measuring is switched on.
    pub(in crate::ia) on: bool,
    /// Endpoints whose requests are timed.
    pub(in crate::ia) timed_eps: RoundRobin<EpKey>,
    pub(in crate::ia) eps: HashMap<EpKey, OfEp>,
    /// Latencies of the completions of all endpoints, freed endpoints included.
    pub(in crate::ia) completion: Histogram,
    pub(in crate::ia) wakeup: Histogram,
}

/// Measured latencies of an endpoint.
#[derive(Default)]
pub(in crate::ia) struct OfEp {
    pub(in crate::ia) completion: Histogram,
    pub(in crate::ia) wakeup: Histogram,
    /// Time from which a request may be timed again, even if few requests were posted since the last timed one.
    pub(in crate::ia) next: Nanos,
    /// Number of the last timed request.
    pub(in crate::ia) last: u64,
    pub(in crate::ia) sample: Sample,
}

/// State of an endpoint's sample.
#[derive(Clone, Copy, Default)]
pub(in crate::ia) enum Sample {
    /// No request is being timed.
    #[default]
    Idle,
    /// The next request will be timed, so it is not posted on the fast path.
    Armed,
    /// This request is being timed. Until it completes, its EVD does not dequeue on the fast path.
    Posted(Timed),
}

/// A timed request.
#[derive(Clone, Copy)]
pub(in crate::ia) struct Timed {
    pub(in crate::ia) at: Nanos,
    /// Queue pair of the request. `number` is the count of requests posted to this queue pair, including this one.
    pub(in crate::ia) qp: Qpn,
    pub(in crate::ia) number: u64,
    pub(in crate::ia) evd: EvdKey,
}
