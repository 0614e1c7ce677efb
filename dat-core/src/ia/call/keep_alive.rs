//! Keep-alive: a connection on which nothing was posted and nothing completed for a while is probed with an RDMA
//! Write of no bytes. This detects a peer that died silently. The same timers end a graceful disconnect that takes too
//! long ([`DRAIN_TIMEOUT`]).
//!
//! No call scans all endpoints: each endpoint has the time of its next check, and a call checks only those whose time
//! has come.
//!
//! A probe is due whether or not requests are outstanding. The success of a suppressed request is not reported, so
//! that request stays outstanding until a later one is reported, possibly for ever. One case needs no probe: the last
//! outstanding request will be reported, and its entry has not arrived. If the peer is dead, that request itself
//! fails, and a probe after it would fail no sooner.
//!
//! A probe has an entry of its own in the send queue and in the completion queue. So it can be posted even if a queue
//! is full of suppressed or unsignalled requests. If a program takes no completions, its EVD fills up, and entries stay
//! in the completion queue, where the failure of a probe is not seen. So if a probe is outstanding at the next check,
//! the completion queue is emptied beyond the EVD's queue length.

use crate::attributes::HIDDEN;
use crate::error::{DatResult, Subtype};
use crate::handle::{EpKey, EvdKey};
use crate::ia::instance::Ia;
use crate::object::ep::state::EpState;
use crate::object::ep::{DRAIN_TIMEOUT, Setup};
use crate::provider::{CompletionQueue, Nanos, Provider, QueuePair};

/// Maximum number of endpoints checked per call.
const CHECKS_PER_CALL: usize = 64;

impl<P: Provider> Ia<P> {
    /// Starts the keep-alive checks of a newly established connection.
    pub(in crate::ia) fn keep_alive(&mut self, key: EpKey) {
        let now = self.provider.now();
        if let Some(ep) = self.eps.get_mut(key) {
            let qp = ep.qp.get();
            ep.idle_since = qp.map_or((0, 0), |qp| (qp.counts().requests, 0));
            self.schedule_check(key, now);
        }
    }

    fn schedule_check(&mut self, key: EpKey, now: Nanos) {
        if let Some(ep) = self.eps.get_mut(key)
            && let Some(interval) = ep.transport.keep_alive
        {
            let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
            ep.next_check = now.saturating_add(interval);
            self.keep_alives.add(ep.next_check, key);
        }
    }

    /// Checks the connections whose check is due, and ends the graceful disconnects whose deadline has passed, at most
    /// `CHECKS_PER_CALL` together.
    pub(in crate::ia) fn check_idle(&mut self) {
        if self.keep_alives.next().is_none() {
            return;
        }
        let now = self.provider.now();
        for _ in 0..CHECKS_PER_CALL {
            let Some((at, key)) = self.keep_alives.take_due(now) else {
                return;
            };
            // The endpoint may have been given another check time since; then this one is void.
            let Some(ep) = self.eps.get(key).filter(|ep| ep.next_check == at) else {
                continue;
            };
            match ep.hot.state {
                EpState::Connected => {
                    self.probe_if_idle(key, ep.request_evd);
                    self.schedule_check(key, now);
                }
                EpState::DisconnectPending => self.drain_timed_out(key),
                EpState::Unconnected
                | EpState::Reserved
                | EpState::PassiveConnectionPending
                | EpState::ActiveConnectionPending
                | EpState::TentativeConnectionPending
                | EpState::CompletionPending
                | EpState::Disconnected => {}
            }
        }
    }

    /// Sets the deadline of a graceful disconnect that begins now.
    pub(in crate::ia) fn bound_drain(&mut self, key: EpKey) {
        let now = self.provider.now();
        self.stop_checks(key);
        if let Some(ep) = self.eps.get_mut(key) {
            ep.next_check = now.saturating_add(DRAIN_TIMEOUT);
            self.keep_alives.add(ep.next_check, key);
        }
    }

    /// Cancels the next keep-alive check of an endpoint, or the deadline of its graceful disconnect.
    pub(in crate::ia) fn stop_checks(&mut self, key: EpKey) {
        if let Some(ep) = self.eps.get(key) {
            self.keep_alives.remove(ep.next_check, key);
        }
    }

    /// Probes a connection if no request was posted and none completed since its last check; receives do not count.
    /// Posts no probe while one is outstanding, or if an outstanding request would itself reveal a dead peer.
    fn probe_if_idle(&mut self, key: EpKey, request_evd: Option<EvdKey>) {
        let is_tried = self.eps.get(key).is_some_and(|ep| ep.own_outstanding);
        // The completion of the last probe may have arrived.
        let all_seen = match request_evd {
            Some(evd) => self.drain_evd(evd, !is_tried),
            None => {
                self.drain_discard(key);
                true
            }
        };
        let Some(ep) = self.eps.get_mut(key) else {
            return;
        };
        let Some(qp) = ep.qp.get_mut() else { return };
        let now = (qp.counts().requests, qp.requests_outstanding());
        let fails_by_itself = all_seen && now.1 != 0 && !qp.ends_silently();
        // Posting the probe fails only if the queue has the maximum size of the device: otherwise `create_ep_qp` has
        // reserved an entry for the probe.
        if now == ep.idle_since
            && !fails_by_itself
            && !ep.own_outstanding
            && ep.hot.state == EpState::Connected
            && qp.post_own().is_ok()
        {
            ep.own_outstanding = true;
            ep.counts.own();
        }
        // With a probe outstanding, 0 is expected at the next check: all earlier requests complete before the probe,
        // and the probe's own completion is no activity of the program.
        let outstanding = if ep.own_outstanding {
            0
        } else {
            qp.requests_outstanding()
        };
        ep.idle_since = (qp.counts().requests, outstanding);
    }

    /// Enlarges the completion queue of an endpoint's requests by the entries that its keep-alive needs.
    pub(in crate::ia) fn room_for_keep_alive(&mut self, setup: &Setup) -> DatResult<()> {
        let (Some(key), Some(_)) = (setup.request_evd, setup.transport.keep_alive) else {
            return Ok(());
        };
        let more = self.keep_alives.entries(key).saturating_add(1);
        let evd = &mut self.evds[key];
        let (qlen, Some(cq)) = (evd.qlen, evd.cq.as_mut()) else {
            return Ok(());
        };
        let entries = qlen.saturating_add(HIDDEN).saturating_add(more);
        if cq.capacity() >= entries {
            return Ok(());
        }
        match self.provider.resize_cq(cq, entries) {
            Ok(()) => {
                self.mark_unarmed(key);
                Ok(())
            }
            Err(error) => Err(self.device_refused("ep_modify", error, Subtype::ResourceTevd)),
        }
    }
}
