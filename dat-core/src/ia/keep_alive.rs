//! Whose turn it is to be tried when nothing was posted, or to have disconnected
//! ([`keep_alive`](super::call::keep_alive)).

use std::collections::{BTreeMap, BTreeSet};

use crate::handle::{EpKey, EvdKey};
use crate::object::ep::Setup;
use crate::provider::Nanos;

/// When whose turn is.
pub(in crate::ia) struct KeepAlives {
    turns: BTreeSet<(Nanos, EpKey)>,
    /// How many such endpoints have their requests complete in an EVD: so many more entries can be in its completion
    /// queue.
    evds: BTreeMap<EvdKey, u32>,
}

impl KeepAlives {
    pub(in crate::ia) const fn new() -> Self {
        Self {
            turns: BTreeSet::new(),
            evds: BTreeMap::new(),
        }
    }

    /// When the next turn is.
    pub(in crate::ia) fn next(&self) -> Option<Nanos> {
        self.turns.first().map(|(at, _)| *at)
    }

    #[cfg(test)]
    pub(in crate::ia) fn len(&self) -> usize {
        self.turns.len()
    }

    /// Entries that an EVD's completion queue needs for them.
    pub(in crate::ia) fn entries(&self, evd: EvdKey) -> u32 {
        self.evds.get(&evd).copied().unwrap_or(0)
    }

    /// An endpoint's next turn.
    pub(in crate::ia) fn add(&mut self, at: Nanos, key: EpKey) {
        self.turns.insert((at, key));
    }

    /// An endpoint's turn that will not be needed.
    pub(in crate::ia) fn remove(&mut self, at: Nanos, key: EpKey) {
        self.turns.remove(&(at, key));
    }

    /// Whose turn has come, and since when.
    pub(in crate::ia) fn take_due(&mut self, now: Nanos) -> Option<(Nanos, EpKey)> {
        let due = self.turns.first().copied().filter(|(at, _)| *at <= now)?;
        self.turns.remove(&due);
        Some(due)
    }

    /// An endpoint is configured so.
    pub(in crate::ia) fn attach(&mut self, setup: &Setup) {
        if let (Some(evd), Some(_)) = (setup.request_evd, setup.transport.keep_alive) {
            *self.evds.entry(evd).or_insert(0) += 1;
        }
    }

    /// An endpoint was configured so.
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
