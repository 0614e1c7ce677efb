//! Latency of requests and wakeups, measured while a program asks for it. DAT 1.2 has no such calls.
//!
//! A post takes no time stamp of its own. While measuring is on, one request of an endpoint at a time is a *sample*. To
//! start a sample, the endpoint's fast path ([`AtOnce`]) is disabled until the next request. That request then takes
//! the path where all checks are made in order, and its sample is started there. From then on the endpoint uses the
//! fast path again, and its request EVD has an obstacle instead. So the completion takes the path where all completions
//! are processed. Between two samples of an endpoint there is a time of [`BETWEEN`], or [`REQUESTS`] posted requests.
//! Meanwhile posts and dequeues have their usual cost.
//!
//! | what | from | to |
//! |---|---|---|
//! | completion | after the doorbell of the request | the instance consumes its completion, as a call polls the EVD |
//! | wakeup | the device wrote the completion, by its own clock | a wait that slept runs again and finds it |
//!
//! Requests are not measured if their completion is suppressed, their EVD is null, or they fail.
//!
//! [`AtOnce`]: crate::object::ep::AtOnce

use crate::handle::{EpKey, EvdKey};
use crate::ia::instance::Ia;
use crate::ia::latencies::{Latencies, OfEp, Sample, Timed};
use crate::object::ep::Ep;
use crate::object::ep::state::EpState;
use crate::object::view::LatencyView;
use crate::provider::{Completion, CompletionEntry, CompletionQueue, Nanos, Provider, QueuePair};
use crate::types::DtoStatus;

/// Time, in nanoseconds, between two samples of an endpoint.
const BETWEEN: Nanos = 1_000_000;
/// Number of posted requests after which an endpoint gets another sample before [`BETWEEN`] is over.
const REQUESTS: u64 = 1_024;
/// Maximum number of endpoints handled per call.
const EPS_PER_CALL: usize = 64;

impl<P: Provider> Ia<P> {
    /// Switches measuring of requests and wakeups on or off. Earlier measurements are kept.
    pub fn measure(&mut self, on: bool) {
        let latencies = self.latencies.get_or_insert_default();
        if core::mem::replace(&mut latencies.on, on) == on {
            return;
        }
        if on {
            let eps = self.eps.iter().map(|(key, _)| key);
            eps.for_each(|key| latencies.timed_eps.insert(key));
        } else {
            let eps: Vec<EpKey> = latencies.timed_eps.iter().collect();
            for key in eps {
                self.end_sample(key);
                self.forget_timed(key);
            }
        }
        self.observe();
    }

    /// Returns this instance's measurements of completions and wakeups.
    #[must_use]
    pub fn latencies(&self) -> LatencyView {
        let all = self.latencies.as_ref();
        LatencyView::new(all.map(|all| (&all.completion, &all.wakeup)))
    }

    /// Returns the measurements of one endpoint.
    pub(in crate::ia) fn latencies_of(&self, key: EpKey) -> LatencyView {
        let of = self.latencies.as_ref().and_then(|all| all.eps.get(&key));
        LatencyView::new(of.map(|of| (&of.completion, &of.wakeup)))
    }

    fn measured(&mut self) -> Option<&mut Latencies> {
        self.latencies.as_deref_mut().filter(|all| all.on)
    }

    /// Schedules the samples of a new endpoint.
    pub(in crate::ia) fn measure_ep(&mut self, key: EpKey) {
        if let Some(all) = self.measured() {
            all.timed_eps.insert(key);
        }
    }

    /// Stops the samples of an endpoint that is freed.
    pub(in crate::ia) fn stop_measuring(&mut self, key: EpKey) {
        self.end_sample(key);
        self.forget_timed(key);
        if let Some(all) = &mut self.latencies {
            all.eps.remove(&key);
        }
    }

    fn forget_timed(&mut self, key: EpKey) {
        if let Some(all) = &mut self.latencies {
            all.timed_eps.remove(key);
        }
    }

    /// Handles some of the measured endpoints. If a connected endpoint is due, its next request becomes a sample. If an
    /// endpoint is no longer connected, its sample is ended, because it will not complete.
    pub(in crate::ia) fn schedule_samples(&mut self) {
        let now = self.provider.now();
        let Some(all) = self.measured() else { return };
        for _ in 0..all.timed_eps.len().min(EPS_PER_CALL) {
            let Some(all) = self.measured() else { return };
            let Some(key) = all.timed_eps.next() else {
                return;
            };
            let of = all.eps.get(&key);
            let (sample, next, last) =
                of.map_or((Sample::Idle, 0, 0), |of| (of.sample, of.next, of.last));
            let ep = self.eps.get(key);
            let ready = ep.filter(|ep| ep.hot.state == EpState::Connected);
            match (sample, ready) {
                (Sample::Idle, Some(ep))
                    if ep.request_evd.is_some()
                        && (now >= next || requests(ep).abs_diff(last) >= REQUESTS) =>
                {
                    if let Some(all) = self.measured() {
                        all.eps.entry(key).or_default().sample = Sample::Armed;
                    }
                    if let Some(ep) = self.eps.get_mut(key) {
                        ep.set_timed(true);
                    }
                }
                (Sample::Armed | Sample::Posted(_), None) => self.end_sample(key),
                (_, _) => {}
            }
        }
    }

    /// Starts a sample if the request that was just posted should be one.
    pub(in crate::ia) fn time_post(&mut self, key: EpKey) {
        let now = self.provider.now();
        let Some(of) = self.of(key).filter(|of| matches!(of.sample, Sample::Armed)) else {
            return;
        };
        of.sample = Sample::Idle;
        let Some(ep) = self.eps.get_mut(key) else {
            return;
        };
        ep.set_timed(false);
        let (Some(evd), Some(qp)) = (ep.request_evd, ep.qp.get()) else {
            return;
        };
        let timed = Timed {
            at: now,
            qp: qp.number(),
            number: qp.counts().requests,
            evd,
        };
        if let Some(queue) = self.evds.get_mut(evd) {
            queue.timed(true);
        }
        if let Some(of) = self.of(key) {
            of.sample = Sample::Posted(timed);
        }
    }

    /// Ends a sample if the completed request is the sample or a later one. Records the latency if the request
    /// succeeded.
    pub(in crate::ia) fn time_done(&mut self, key: EpKey, done: &Completion) {
        let now = self.provider.now();
        let Some(OfEp {
            sample: Sample::Posted(timed),
            ..
        }) = self.of(key)
        else {
            return;
        };
        let timed = *timed;
        let Some(qp) = self.eps.get(key).and_then(|ep| ep.qp.get()) else {
            return;
        };
        let is_same = qp.number() == timed.qp;
        let known = qp.counts().requests - u64::from(qp.requests_outstanding());
        if is_same && known < timed.number {
            return;
        }
        self.end_sample(key);
        let took = now.saturating_sub(timed.at);
        if is_same
            && done.status == DtoStatus::Success
            && let Some(all) = self.measured()
        {
            all.completion.add(took);
            let of = all.eps.entry(key).or_default();
            of.completion.add(took);
            of.next = now.saturating_add(BETWEEN);
            of.last = timed.number;
        }
    }

    fn of(&mut self, key: EpKey) -> Option<&mut OfEp> {
        self.measured()?.eps.get_mut(&key)
    }

    /// Ends the sample of an endpoint, whether its request is posted or not.
    fn end_sample(&mut self, key: EpKey) {
        let all = self.latencies.as_mut();
        let Some(of) = all.and_then(|all| all.eps.get_mut(&key)) else {
            return;
        };
        match core::mem::take(&mut of.sample) {
            Sample::Idle => {}
            Sample::Armed => {
                if let Some(ep) = self.eps.get_mut(key) {
                    ep.set_timed(false);
                }
            }
            Sample::Posted(timed) => {
                if let Some(evd) = self.evds.get_mut(timed.evd) {
                    evd.timed(false);
                }
            }
        }
    }

    /// Counts a wake-up of a wait that slept.
    pub(in crate::ia) fn woke(&mut self) {
        self.wakeups += 1;
    }

    /// Records the latency of a wake-up for this EVD: the time since the device wrote the next entry of its completion
    /// queue.
    pub(in crate::ia) fn time_wakeup(&mut self, key: EvdKey) {
        if self.measured().is_none() {
            return;
        }
        let Some(cq) = self.evds.get(key).and_then(|evd| evd.cq.as_ref()) else {
            return;
        };
        let (Some(entry), Some(written)) = (cq.peek(), cq.written()) else {
            return;
        };
        let Some(took) = self.provider.since(written) else {
            return;
        };
        let ep = self.eps.at_mut(entry.owner()).map(|(key, _)| key);
        let Some(all) = self.measured() else { return };
        all.wakeup.add(took);
        if let Some(ep) = ep {
            all.eps.entry(ep).or_default().wakeup.add(took);
        }
    }
}

/// Returns the number of requests that were posted to an endpoint's queue pair.
fn requests<P: Provider>(ep: &Ep<P>) -> u64 {
    ep.qp.get().map_or(0, |qp| qp.counts().requests)
}
