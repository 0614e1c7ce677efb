//! Internals of an IA that tests read and no call returns.

use crate::handle::{EpHandle, EvdHandle};
use crate::ia::instance::Ia;
use crate::provider::{Nanos, Provider, QueuePair};

impl<P: Provider> Ia<P> {
    pub(crate) fn qp_number(&self, ep: EpHandle) -> Option<u32> {
        Some(self.eps.get(ep.key)?.qp.get()?.number())
    }

    pub(crate) const fn is_dead(&self) -> bool {
        self.health.is_dead()
    }

    /// Returns whether the instance is recorded or measured.
    pub(crate) const fn is_observed(&self) -> bool {
        self.observed
    }

    /// Returns whether a completion may be dequeued without a look at anything else.
    pub(crate) fn dequeues_at_once(&self, evd: EvdHandle) -> bool {
        self.evds[evd.key].is_clear()
    }

    /// Returns the time until which a wait that begins now sleeps.
    pub(crate) fn sleeps_until(&self, now: Nanos) -> Nanos {
        self.nap(now, true, None)
    }

    /// Number of keep-alive checks that are scheduled.
    pub(crate) fn checks_ahead(&self) -> usize {
        self.keep_alives.len()
    }

    /// Number of undecided connection requests.
    pub(crate) fn requests(&self) -> usize {
        self.crs.len()
    }
}
