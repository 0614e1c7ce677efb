//! Watched EVDs: EVDs whose completions concern more than the caller that looks at them. An error in one of them
//! breaks a connection whose events go to another EVD. The last request of an endpoint that is being disconnected
//! ends its connection.
//!
//! No call scans all of them. The completion queue of each is armed and *watched*
//! ([`Provider::watch_cq`](crate::provider::Provider::watch_cq)), and only those are looked at that have reported
//! entries, or that were never armed.

use crate::handle::EvdKey;
use crate::turns::{Counted, Turns};

/// Maximum number of EVDs looked at per call.
pub(in crate::ia) const LOOKS: usize = 32;

/// Watched EVDs of one kind.
pub(in crate::ia) struct Neighbours {
    /// Number of endpoints for which each EVD is watched.
    endpoints: Counted<EvdKey>,
    /// EVDs that are not armed, as far as we have been told.
    unasked: Turns<EvdKey>,
}

impl Neighbours {
    pub(in crate::ia) fn new() -> Self {
        Self {
            endpoints: Counted::new(),
            unasked: Turns::new(),
        }
    }

    /// Watches an EVD for one more endpoint.
    pub(in crate::ia) fn add(&mut self, evd: EvdKey) {
        if self.endpoints.add(evd) {
            self.unasked.insert(evd);
        }
    }

    /// Watches an EVD for one endpoint less.
    pub(in crate::ia) fn remove(&mut self, evd: EvdKey) {
        if self.endpoints.remove(evd) {
            self.unasked.remove(evd);
        }
    }

    pub(in crate::ia) fn contains(&self, evd: EvdKey) -> bool {
        self.endpoints.contains(evd)
    }

    /// Returns the number of unarmed EVDs.
    pub(in crate::ia) const fn unasked(&self) -> usize {
        self.unasked.len()
    }

    /// Returns whether all EVDs but `own` are armed.
    pub(in crate::ia) fn are_asked_but(&self, own: EvdKey) -> bool {
        self.unasked.len() == usize::from(self.unasked.contains(own))
    }

    /// Returns all unarmed EVDs.
    pub(in crate::ia) fn all_unasked(&self) -> Vec<EvdKey> {
        self.unasked.iter().collect()
    }

    /// Returns the next unarmed EVD, in turn.
    pub(in crate::ia) fn next(&mut self) -> Option<EvdKey> {
        self.unasked.next()
    }

    /// Marks an EVD as armed: its completion queue was drained or interrupts for its entries, and reports the next
    /// one.
    pub(in crate::ia) fn asked(&mut self, evd: EvdKey) {
        self.unasked.remove(evd);
    }

    /// Marks an EVD as unarmed, because its completion queue has reported entries or was changed.
    pub(in crate::ia) fn answered(&mut self, evd: EvdKey) {
        if self.contains(evd) {
            self.unasked.insert(evd);
        }
    }
}
