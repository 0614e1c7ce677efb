//! Watched EVDs ([`WatchedEvds`](crate::ia::watched_evds::WatchedEvds)): the device reports when the completion queue
//! of a watched EVD has entries. These functions poll such a queue only after a report, or if it was never armed.

use crate::handle::EvdKey;
use crate::ia::instance::Ia;
use crate::ia::watched_evds::MAX_PER_CALL;
use crate::provider::{CompletionQueue, Provider};

impl<P: Provider> Ia<P> {
    /// Makes the device report entries in the completion queue of an EVD whenever the queue is armed.
    pub(in crate::ia) fn watch(&mut self, key: EvdKey) {
        if let Some(cq) = self.evds.get(key).and_then(|evd| evd.cq.as_ref()) {
            self.provider.watch_cq(cq);
        }
    }

    /// Handles the device's report that the armed completion queue with this owner number has entries.
    pub(in crate::ia) fn evd_fired(&mut self, owner: u32) {
        if let Some(key) = self.evds.key_at(owner) {
            self.mark_unarmed(key);
        }
    }

    /// Marks the completion queue of an EVD as unarmed: the device reports no entries until the queue is armed again.
    pub(in crate::ia) fn mark_unarmed(&mut self, key: EvdKey) {
        self.feeding.fired(key);
        self.draining.fired(key);
        let cno = self.evds.get(key).and_then(|evd| evd.cno);
        if let Some(cno) = cno.and_then(|cno| self.cnos.get_mut(cno)) {
            cno.unarmed.insert(key);
        }
    }

    /// Drains and arms unarmed EVDs on which requests of endpoints in DISCONNECT_PENDING complete; a bounded number per
    /// call.
    pub(in crate::ia) fn poll_draining(&mut self) {
        for _ in 0..self.draining.unarmed().min(MAX_PER_CALL) {
            if let Some(key) = self.draining.next()
                && self.drain_evd(key, true)
            {
                self.arm_watched_cq(key);
            }
        }
    }

    /// Drains unarmed feeders, which are EVDs that may show errors of connections; a bounded number per call.
    pub(in crate::ia) fn poll_feeders(&mut self) {
        for _ in 0..self.feeding.unarmed().min(MAX_PER_CALL) {
            if let Some(key) = self.feeding.next() {
                self.drain_evd(key, true);
            }
        }
    }

    /// Drains and arms the unarmed feeders. The caller must call `apply_effects` afterwards.
    pub(in crate::ia) fn arm_feeders(&mut self) {
        for key in self.feeding.all_unarmed() {
            if self.drain_evd(key, true) {
                self.arm_watched_cq(key);
            }
        }
    }

    /// Arms an empty completion queue for an interrupt. An entry that has arrived since the drain interrupts too.
    fn arm_watched_cq(&mut self, key: EvdKey) {
        let any = self.draining.contains(key);
        if let Some(evd) = self.evds.get_mut(key)
            && let Some(cq) = &mut evd.cq
        {
            // An error interrupts even if the queue is armed for solicited entries only, and the last arming counts. So
            // a queue that a waiter has armed for more than errors is not armed again.
            if any || !cq.is_armed() {
                cq.arm(!any);
            }
            self.feeding.armed(key);
            self.draining.armed(key);
        }
    }
}
