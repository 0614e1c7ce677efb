//! Watched EVDs: EVDs whose completions concern more than the caller that looks at them. An error in one of them
//! breaks a connection whose events go to another EVD. The last request of an endpoint that is being disconnected
//! ends its connection.
//!
//! No call scans all of them. The completion queue of each is armed and *watched*
//! ([`Provider::watch_cq`](crate::provider::Provider::watch_cq)), and only those are looked at that have reported
//! entries, or that were never armed.

use crate::handle::EvdKey;
use crate::round_robin::{Counted, RoundRobin};

/// Maximum number of EVDs looked at per call.
pub(in crate::ia) const LOOKS: usize = 32;

/// Watched EVDs of one kind.
pub(in crate::ia) struct WatchedEvds {
    /// Number of endpoints for which each EVD is watched.
    endpoints: Counted<EvdKey>,
    /// EVDs that are not armed, as far as we have been told.
    unarmed: RoundRobin<EvdKey>,
}

impl WatchedEvds {
    pub(in crate::ia) fn new() -> Self {
        Self {
            endpoints: Counted::new(),
            unarmed: RoundRobin::new(),
        }
    }

    /// Watches an EVD for one more endpoint.
    pub(in crate::ia) fn add(&mut self, evd: EvdKey) {
        if self.endpoints.add(evd) {
            self.unarmed.insert(evd);
        }
    }

    /// Watches an EVD for one endpoint less.
    pub(in crate::ia) fn remove(&mut self, evd: EvdKey) {
        if self.endpoints.remove(evd) {
            self.unarmed.remove(evd);
        }
    }

    pub(in crate::ia) fn contains(&self, evd: EvdKey) -> bool {
        self.endpoints.contains(evd)
    }

    /// Returns the number of unarmed EVDs.
    pub(in crate::ia) const fn unarmed(&self) -> usize {
        self.unarmed.len()
    }

    /// Returns whether all EVDs but `own` are armed.
    pub(in crate::ia) fn all_armed_but(&self, own: EvdKey) -> bool {
        self.unarmed.len() == usize::from(self.unarmed.contains(own))
    }

    /// Returns all unarmed EVDs.
    pub(in crate::ia) fn all_unarmed(&self) -> Vec<EvdKey> {
        self.unarmed.iter().collect()
    }

    /// Returns the next unarmed EVD, in turn.
    pub(in crate::ia) fn next(&mut self) -> Option<EvdKey> {
        self.unarmed.next()
    }

    /// Marks an EVD as armed: its completion queue was drained or interrupts for its entries, and reports the next
    /// one.
    pub(in crate::ia) fn armed(&mut self, evd: EvdKey) {
        self.unarmed.remove(evd);
    }

    /// Marks an EVD as unarmed, because its completion queue has reported entries or was changed.
    pub(in crate::ia) fn fired(&mut self, evd: EvdKey) {
        if self.contains(evd) {
            self.unarmed.insert(evd);
        }
    }
}
