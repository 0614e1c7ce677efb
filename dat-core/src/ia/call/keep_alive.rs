//! Keep-alive: connections on which nothing was posted for a while are tried with an RDMA Write of no bytes, so that a
//! peer that has died without a word is noticed.
//!
//! Nobody looks at all endpoints: each has the time of its next turn, and those whose time has come are looked at. A
//! connection with requests outstanding needs no trial: they fail if nobody answers.

use crate::attributes::HIDDEN;
use crate::error::{DatResult, Subtype};
use crate::handle::{EpKey, EvdKey};
use crate::ia::instance::Ia;
use crate::object::ep::Setup;
use crate::object::ep::state::EpState;
use crate::provider::{CompletionQueue, Nanos, Provider, QueuePair};

/// How many are looked at, at a time.
const TURNS: usize = 64;

impl<P: Provider> Ia<P> {
    /// A connection is there: from now on it has its turns.
    pub(in crate::ia) fn keep_alive(&mut self, key: EpKey) {
        let now = self.provider.now();
        if let Some(ep) = self.eps.get_mut(key) {
            ep.idle_since = ep.qp.get().map_or(0, |qp| qp.counts().requests);
            self.next_turn(key, now);
        }
    }

    fn next_turn(&mut self, key: EpKey, now: Nanos) {
        if let Some(ep) = self.eps.get_mut(key)
            && let Some(interval) = ep.transport.keep_alive
        {
            let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
            ep.next_turn = now.saturating_add(interval);
            self.keep_alives.add(ep.next_turn, key);
        }
    }

    /// Looks at connections whose time has come.
    pub(in crate::ia) fn look_after_idle(&mut self) {
        if self.keep_alives.next().is_none() {
            return;
        }
        let now = self.provider.now();
        for _ in 0..TURNS {
            let Some((at, key)) = self.keep_alives.take_due(now) else {
                return;
            };
            // Another turn may have taken its place.
            if let Some(ep) = self.eps.get(key).filter(|ep| ep.next_turn == at)
                && ep.hot.state == EpState::Connected
            {
                self.try_idle(key, ep.request_evd);
                self.next_turn(key, now);
            }
        }
    }

    /// Tries a connection if nothing has been posted on it since its last turn.
    fn try_idle(&mut self, key: EpKey, request_evd: Option<EvdKey>) {
        // The completion of the last trial may be there.
        match request_evd {
            Some(evd) => {
                self.drain_evd(evd, true);
            }
            None => {
                self.drain_discard(key);
            }
        }
        let Some(ep) = self.eps.get_mut(key) else {
            return;
        };
        let Some(qp) = ep.qp.get_mut() else { return };
        let is_idle = qp.requests_outstanding() == 0 && qp.counts().requests == ep.idle_since;
        // Refused only where the device has as many requests outstanding as it can: none of them is ours.
        if is_idle && ep.hot.state == EpState::Connected && qp.post_own().is_ok() {
            ep.own_outstanding = true;
            ep.counts.own();
        }
        ep.idle_since = qp.counts().requests;
    }

    /// Makes room for what such an endpoint brings into the completion queue of its requests.
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
                self.has_to_be_asked(key);
                Ok(())
            }
            Err(error) => Err(self.device_refused("ep_modify", error, Subtype::ResourceTevd)),
        }
    }
}
