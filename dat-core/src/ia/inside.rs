//! What tests see of an IA that no call tells.

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

    /// It is recorded or measured.
    pub(crate) const fn is_observed(&self) -> bool {
        self.observed
    }

    /// Whether a completion may be dequeued without a look at anything else.
    pub(crate) fn dequeues_at_once(&self, evd: EvdHandle) -> bool {
        self.evds[evd.key].is_clear()
    }

    /// Until when a wait that begins now sleeps.
    pub(crate) fn sleeps_until(&self, now: Nanos) -> Nanos {
        self.nap(now, true, None)
    }

    /// Turns of connections that are to come.
    pub(crate) fn turns_ahead(&self) -> usize {
        self.keep_alives.len()
    }

    /// Requests to connect that nobody has decided.
    pub(crate) fn requests(&self) -> usize {
        self.crs.len()
    }
}
