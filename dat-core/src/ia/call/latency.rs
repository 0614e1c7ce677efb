//! How long requests and wakeups take, for as long as somebody wants to know. DAT 1.2 has no such calls.
//!
//! A post takes no time of day and leaves no mark. While it is measured, one request of an endpoint at a time is a
//! *sample*: the endpoint lets nothing through at once until the next request ([`AtOnce`]), which so comes by the place
//! where all of them are checked in order, and where it is looked whether it is to be timed. From then on the endpoint
//! posts at once again, and the EVD of its requests has an obstacle instead, so that the completion comes by the place
//! where all of them are settled. Between two samples of an endpoint lies [`BETWEEN`], or [`REQUESTS`]
//! that were posted, and meanwhile posts and dequeues cost what they always cost.
//!
//! | what | from | to |
//! |---|---|---|
//! | completion | behind the doorbell of the request | the instance takes its completion in, because a call looks at the EVD |
//! | wakeup | the device wrote the completion, by its own clock | a wait that slept runs again, and finds that completion |
//!
//! A request whose completion is suppressed is not timed, nor one whose EVD is null, nor one that failed.
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

/// The time after which an endpoint has another sample.
const BETWEEN: Nanos = 1_000_000;
/// The requests after which it has one before that.
const REQUESTS: u64 = 1_024;
/// Endpoints that are looked at, at a time.
const TURNS: usize = 64;

impl<P: Provider> Ia<P> {
    /// Switches measuring on or off: how long requests and wakeups take. What was measured is kept.
    pub fn measure(&mut self, on: bool) {
        let latencies = self.latencies.get_or_insert_default();
        if core::mem::replace(&mut latencies.on, on) == on {
            return;
        }
        if on {
            let eps = self.eps.iter().map(|(key, _)| key);
            eps.for_each(|key| latencies.turns.insert(key));
        } else {
            let eps: Vec<EpKey> = latencies.turns.iter().collect();
            for key in eps {
                self.end_sample(key);
                self.forget_turn(key);
            }
        }
        self.observe();
    }

    /// What was measured of this instance: completions, and wakeups.
    #[must_use]
    pub fn latencies(&self) -> LatencyView {
        let all = self.latencies.as_ref();
        LatencyView::new(all.map(|all| (&all.completion, &all.wakeup)))
    }

    /// And of one endpoint.
    pub(in crate::ia) fn latencies_of(&self, key: EpKey) -> LatencyView {
        let of = self.latencies.as_ref().and_then(|all| all.eps.get(&key));
        LatencyView::new(of.map(|of| (&of.completion, &of.wakeup)))
    }

    fn measured(&mut self) -> Option<&mut Latencies> {
        self.latencies.as_deref_mut().filter(|all| all.on)
    }

    /// An endpoint is there, and has its turns while it is measured.
    pub(in crate::ia) fn measure_ep(&mut self, key: EpKey) {
        if let Some(all) = self.measured() {
            all.turns.insert(key);
        }
    }

    /// It is there no more.
    pub(in crate::ia) fn measure_no_more(&mut self, key: EpKey) {
        self.end_sample(key);
        self.forget_turn(key);
        if let Some(all) = &mut self.latencies {
            all.eps.remove(&key);
        }
    }

    fn forget_turn(&mut self, key: EpKey) {
        if let Some(all) = &mut self.latencies {
            all.turns.remove(key);
        }
    }

    /// Gives some endpoints their turn: the next request of one that is connected becomes a sample, and a sample that
    /// will not be done any more is over.
    pub(in crate::ia) fn look_after_samples(&mut self) {
        let now = self.provider.now();
        let Some(all) = self.measured() else { return };
        for _ in 0..all.turns.len().min(TURNS) {
            let Some(all) = self.measured() else { return };
            let Some(key) = all.turns.next() else { return };
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

    /// A request was posted in order: perhaps it is a sample.
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

    /// A request is done: perhaps the sample, or one behind it.
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

    /// No request of an endpoint is timed, nor will the next one be.
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

    /// A wait that slept runs again.
    pub(in crate::ia) fn woke(&mut self) {
        self.wakeups += 1;
    }

    /// It was a wait on this EVD: how long ago did the device write what it finds there?
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

/// Requests that an endpoint's queue pair has had.
fn requests<P: Provider>(ep: &Ep<P>) -> u64 {
    ep.qp.get().map_or(0, |qp| qp.counts().requests)
}
