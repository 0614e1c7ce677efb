//! Schedule of keep-alive checks and of the deadlines of graceful disconnects
//! ([`keep_alive`](super::call::keep_alive)).

use std::collections::{BTreeMap, BTreeSet};

use crate::handle::{EpKey, EvdKey};
use crate::object::ep::Setup;
use crate::provider::Nanos;

/// Endpoints by the time of their next check.
pub(in crate::ia) struct KeepAlives {
    checks: BTreeSet<(Nanos, EpKey)>,
    /// Number of endpoints with keep-alive whose requests complete in an EVD. The EVD's completion queue needs one more
    /// entry for each of these endpoints.
    evds: BTreeMap<EvdKey, u32>,
}

impl KeepAlives {
    pub(in crate::ia) const fn new() -> Self {
        Self {
            checks: BTreeSet::new(),
            evds: BTreeMap::new(),
        }
    }

    /// Returns the time of the earliest scheduled check.
    pub(in crate::ia) fn next(&self) -> Option<Nanos> {
        self.checks.first().map(|(at, _)| *at)
    }

    #[cfg(test)]
    pub(in crate::ia) fn len(&self) -> usize {
        self.checks.len()
    }

    /// Returns the number of entries that an EVD's completion queue needs for probes.
    pub(in crate::ia) fn entries(&self, evd: EvdKey) -> u32 {
        self.evds.get(&evd).copied().unwrap_or(0)
    }

    /// Returns whether a check of an endpoint is scheduled at a time.
    pub(in crate::ia) fn contains(&self, at: Nanos, key: EpKey) -> bool {
        self.checks.contains(&(at, key))
    }

    /// Schedules an endpoint's next check.
    pub(in crate::ia) fn add(&mut self, at: Nanos, key: EpKey) {
        self.checks.insert((at, key));
    }

    /// Cancels a scheduled check of an endpoint.
    pub(in crate::ia) fn remove(&mut self, at: Nanos, key: EpKey) {
        self.checks.remove(&(at, key));
    }

    /// Removes and returns the earliest check that is due: its time and its endpoint.
    pub(in crate::ia) fn take_due(&mut self, now: Nanos) -> Option<(Nanos, EpKey)> {
        let due = self.checks.first().copied().filter(|(at, _)| *at <= now)?;
        self.checks.remove(&due);
        Some(due)
    }

    /// Counts an endpoint at its request EVD, if the endpoint has keep-alive.
    pub(in crate::ia) fn attach(&mut self, setup: &Setup) {
        if let (Some(evd), Some(_)) = (setup.request_evd, setup.transport.keep_alive) {
            *self.evds.entry(evd).or_insert(0) += 1;
        }
    }

    /// Undoes [`KeepAlives::attach`] for an endpoint.
    pub(in crate::ia) fn detach(&mut self, setup: &Setup) {
        if let (Some(evd), Some(_)) = (setup.request_evd, setup.transport.keep_alive)
            && let Some(count) = self.evds.get_mut(&evd)
        {
            *count -= 1;
            if *count == 0 {
                self.evds.remove(&evd);
            }
        }
    }
}
