//! EVDs whose completions concern others than who looks at them: an error in one of them breaks a connection whose
//! events go elsewhere, and the last request of an endpoint that is being disconnected ends its connection.
//!
//! Nobody looks at all of them. The completion queue of each is asked for an interrupt and *watched*
//! ([`Provider::watch_cq`](crate::provider::Provider::watch_cq)), and only those are looked at that have something, or
//! were never asked.

use crate::handle::EvdKey;
use crate::turns::{Counted, Turns};

/// How many of them are looked at, at a time.
pub(in crate::ia) const LOOKS: usize = 32;

/// EVDs of one such kind.
pub(in crate::ia) struct Neighbours {
    /// For how many endpoints each is one.
    endpoints: Counted<EvdKey>,
    /// Those that are not asked, as far as we have been told.
    unasked: Turns<EvdKey>,
}

impl Neighbours {
    pub(in crate::ia) fn new() -> Self {
        Self {
            endpoints: Counted::new(),
            unasked: Turns::new(),
        }
    }

    /// It is one for one more endpoint.
    pub(in crate::ia) fn add(&mut self, evd: EvdKey) {
        if self.endpoints.add(evd) {
            self.unasked.insert(evd);
        }
    }

    /// It is one for one endpoint less.
    pub(in crate::ia) fn remove(&mut self, evd: EvdKey) {
        if self.endpoints.remove(evd) {
            self.unasked.remove(evd);
        }
    }

    pub(in crate::ia) fn contains(&self, evd: EvdKey) -> bool {
        self.endpoints.contains(evd)
    }

    /// How many there are to be looked at.
    pub(in crate::ia) const fn unasked(&self) -> usize {
        self.unasked.len()
    }

    /// Whether there is nothing to be looked at but what `own` has.
    pub(in crate::ia) fn are_asked_but(&self, own: EvdKey) -> bool {
        self.unasked.len() == usize::from(self.unasked.contains(own))
    }

    /// All of them.
    pub(in crate::ia) fn all_unasked(&self) -> Vec<EvdKey> {
        self.unasked.iter().collect()
    }

    /// The next one to be looked at.
    pub(in crate::ia) fn next(&mut self) -> Option<EvdKey> {
        self.unasked.next()
    }

    /// Its completion queue says so when something comes, and whatever is in it has been taken out or will make it say
    /// so.
    pub(in crate::ia) fn asked(&mut self, evd: EvdKey) {
        self.unasked.remove(evd);
    }

    /// Its completion queue has said so, or was changed: it has to be asked again.
    pub(in crate::ia) fn answered(&mut self, evd: EvdKey) {
        if self.contains(evd) {
            self.unasked.insert(evd);
        }
    }
}
