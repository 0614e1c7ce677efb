//! Watched EVDs: EVDs that must be polled although no caller waits on them. There are two reasons. An error completion
//! on one EVD breaks a connection whose events go to another EVD. The last request of an endpoint in DISCONNECT_PENDING
//! ends its connection.
//!
//! No call scans all of these EVDs. Each EVD's completion queue is armed and *watched*
//! ([`Provider::watch_cq`](crate::provider::Provider::watch_cq)). A call polls only EVDs whose completion queues have
//! reported entries, or were never armed.

use crate::handle::EvdKey;
use crate::round_robin::{Counted, RoundRobin};

/// Maximum number of EVDs that are polled per call.
pub(in crate::ia) const MAX_PER_CALL: usize = 32;

/// Watched EVDs that are watched for the same reason.
pub(in crate::ia) struct WatchedEvds {
    /// Number of endpoints for which each EVD is watched.
    endpoints: Counted<EvdKey>,
    /// EVDs that are not armed, according to the events handled so far.
    unarmed: RoundRobin<EvdKey>,
}

impl WatchedEvds {
    pub(in crate::ia) fn new() -> Self {
        Self {
            endpoints: Counted::new(),
            unarmed: RoundRobin::new(),
        }
    }

    /// Watches an EVD for one additional endpoint.
    pub(in crate::ia) fn add(&mut self, evd: EvdKey) {
        if self.endpoints.add(evd) {
            self.unarmed.insert(evd);
        }
    }

    /// Stops watching an EVD for one endpoint.
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

    /// Returns whether all watched EVDs except `own` are armed.
    pub(in crate::ia) fn all_armed_but(&self, own: EvdKey) -> bool {
        self.unarmed.len() == usize::from(self.unarmed.contains(own))
    }

    /// Returns all unarmed EVDs.
    pub(in crate::ia) fn all_unarmed(&self) -> Vec<EvdKey> {
        self.unarmed.iter().collect()
    }

    /// Returns the next unarmed EVD, round-robin.
    pub(in crate::ia) fn next(&mut self) -> Option<EvdKey> {
        self.unarmed.next()
    }

    /// Marks an EVD as armed: its completion queue will report the next entry, and any entry that is in it already.
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
