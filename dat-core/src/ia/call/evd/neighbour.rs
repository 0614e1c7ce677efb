//! EVDs beside those that are waited on: their completion queues are watched, and looked at when they have said
//! something ([`Neighbours`](crate::ia::neighbours::Neighbours)).

use crate::handle::EvdKey;
use crate::ia::instance::Ia;
use crate::ia::neighbours::LOOKS;
use crate::provider::{CompletionQueue, Provider};

impl<P: Provider> Ia<P> {
    /// The completion queue of an EVD says from now on when it has something, if it was asked.
    pub(in crate::ia) fn watch(&mut self, key: EvdKey) {
        if let Some(cq) = self.evds.get(key).and_then(|evd| evd.cq.as_ref()) {
            self.provider.watch_cq(cq);
        }
    }

    /// The completion queue with this owner number has said that it has something.
    pub(in crate::ia) fn evd_answered(&mut self, owner: u32) {
        if let Some(key) = self.evds.key_at(owner) {
            self.has_to_be_asked(key);
        }
    }

    /// The completion queue of an EVD will not say that it has something, unless it is asked again.
    pub(in crate::ia) fn has_to_be_asked(&mut self, key: EvdKey) {
        self.feeding.answered(key);
        self.draining.answered(key);
        let cno = self.evds.get(key).and_then(|evd| evd.cno);
        if let Some(cno) = cno.and_then(|cno| self.cnos.get_mut(cno)) {
            cno.unasked.insert(key);
        }
    }

    /// Sees what EVDs have to tell in which endpoints in DISCONNECT_PENDING complete, some at a time, and asks them.
    pub(in crate::ia) fn look_after_drains(&mut self) {
        for _ in 0..self.draining.unasked().min(LOOKS) {
            if let Some(key) = self.draining.next()
                && self.drain_evd(key, true)
            {
                self.ask(key);
            }
        }
    }

    /// Sees what EVDs have to tell that may show errors of connections, some at a time.
    pub(in crate::ia) fn look_at_feeders(&mut self) {
        for _ in 0..self.feeding.unasked().min(LOOKS) {
            if let Some(key) = self.feeding.next() {
                self.drain_evd(key, true);
            }
        }
    }

    /// Takes in what is in those that are not asked, and asks them. What follows from it is to be settled then.
    pub(in crate::ia) fn ask_feeders(&mut self) {
        for key in self.feeding.all_unasked() {
            if self.drain_evd(key, true) {
                self.ask(key);
            }
        }
    }

    /// Asks a queue, which is empty, for an interrupt. What has come meanwhile interrupts too.
    fn ask(&mut self, key: EvdKey) {
        let any = self.draining.contains(key);
        if let Some(evd) = self.evds.get_mut(key)
            && let Some(cq) = &mut evd.cq
        {
            // Errors notify even when only solicited entries were asked for, and the device goes by what it was asked
            // last: who waits for more than errors keeps what he has asked for.
            if any || !cq.is_armed() {
                cq.arm(!any);
            }
            self.feeding.asked(key);
            self.draining.asked(key);
        }
    }
}
