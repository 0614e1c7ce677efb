//! Watched EVDs ([`Neighbours`](crate::ia::neighbours::Neighbours)): the device reports when a completion queue among
//! them has entries, and only then is that queue looked at.

use crate::handle::EvdKey;
use crate::ia::instance::Ia;
use crate::ia::neighbours::LOOKS;
use crate::provider::{CompletionQueue, Provider};

impl<P: Provider> Ia<P> {
    /// Makes the device report entries in the completion queue of an EVD once it is armed.
    pub(in crate::ia) fn watch(&mut self, key: EvdKey) {
        if let Some(cq) = self.evds.get(key).and_then(|evd| evd.cq.as_ref()) {
            self.provider.watch_cq(cq);
        }
    }

    /// Handles the device's report that the armed completion queue with this owner number has entries.
    pub(in crate::ia) fn evd_answered(&mut self, owner: u32) {
        if let Some(key) = self.evds.key_at(owner) {
            self.has_to_be_asked(key);
        }
    }

    /// Marks the completion queue of an EVD as unarmed: it reports no entries until it is armed again.
    pub(in crate::ia) fn has_to_be_asked(&mut self, key: EvdKey) {
        self.feeding.answered(key);
        self.draining.answered(key);
        let cno = self.evds.get(key).and_then(|evd| evd.cno);
        if let Some(cno) = cno.and_then(|cno| self.cnos.get_mut(cno)) {
            cno.unasked.insert(key);
        }
    }

    /// Drains EVDs on which endpoints in DISCONNECT_PENDING complete, a bounded number, and arms them again.
    pub(in crate::ia) fn look_after_drains(&mut self) {
        for _ in 0..self.draining.unasked().min(LOOKS) {
            if let Some(key) = self.draining.next()
                && self.drain_evd(key, true)
            {
                self.ask(key);
            }
        }
    }

    /// Drains EVDs that may show errors of connections, a bounded number at a time.
    pub(in crate::ia) fn look_at_feeders(&mut self) {
        for _ in 0..self.feeding.unasked().min(LOOKS) {
            if let Some(key) = self.feeding.next() {
                self.drain_evd(key, true);
            }
        }
    }

    /// Drains and arms the unarmed feeders. The caller has to settle the effects afterwards.
    pub(in crate::ia) fn ask_feeders(&mut self) {
        for key in self.feeding.all_unasked() {
            if self.drain_evd(key, true) {
                self.ask(key);
            }
        }
    }

    /// Arms an empty completion queue for an interrupt. An entry that has arrived meanwhile interrupts too.
    fn ask(&mut self, key: EvdKey) {
        let any = self.draining.contains(key);
        if let Some(evd) = self.evds.get_mut(key)
            && let Some(cq) = &mut evd.cq
        {
            // An error notifies even if only solicited entries were asked for, and the last arming counts. So a
            // waiter that has armed the queue for more than errors keeps that.
            if any || !cq.is_armed() {
                cq.arm(!any);
            }
            self.feeding.asked(key);
            self.draining.asked(key);
        }
    }
}
