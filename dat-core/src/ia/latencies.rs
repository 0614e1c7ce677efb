//! What is measured of an instance, and which requests are being timed ([`latency`](super::call::latency)).

use std::collections::HashMap;

use crate::handle::{EpKey, EvdKey};
use crate::latency::Histogram;
use crate::provider::Nanos;
use crate::turns::Turns;

/// What was measured.
#[derive(Default)]
pub(in crate::ia) struct Latencies {
    /// Somebody wants to know.
    pub(in crate::ia) on: bool,
    /// Endpoints whose requests are to be timed.
    pub(in crate::ia) turns: Turns<EpKey>,
    pub(in crate::ia) eps: HashMap<EpKey, OfEp>,
    /// Of all endpoints, those that are no more among them.
    pub(in crate::ia) completion: Histogram,
    pub(in crate::ia) wakeup: Histogram,
}

/// What was measured of an endpoint.
#[derive(Default)]
pub(in crate::ia) struct OfEp {
    pub(in crate::ia) completion: Histogram,
    pub(in crate::ia) wakeup: Histogram,
    /// When a request may be timed again.
    pub(in crate::ia) next: Nanos,
    /// The number of the last one that was.
    pub(in crate::ia) last: u64,
    pub(in crate::ia) sample: Sample,
}

/// The request of an endpoint that is timed.
#[derive(Clone, Copy, Default)]
pub(in crate::ia) enum Sample {
    /// None is.
    #[default]
    Idle,
    /// The next one will be: it is not posted at once.
    Armed,
    /// This one is: nothing is dequeued at once from its EVD.
    Posted(Timed),
}

/// A request.
#[derive(Clone, Copy)]
pub(in crate::ia) struct Timed {
    pub(in crate::ia) at: Nanos,
    /// The queue pair, and how many requests it had with this one.
    pub(in crate::ia) qp: u32,
    pub(in crate::ia) number: u64,
    pub(in crate::ia) evd: EvdKey,
}
