//! What tests see of an IA that no call tells.

use crate::handle::EpHandle;
use crate::ia::instance::Ia;
use crate::provider::{Nanos, Provider, QueuePair};

impl<P: Provider> Ia<P> {
    pub(crate) fn qp_number(&self, ep: EpHandle) -> Option<u32> {
        Some(self.eps.get(ep.key)?.qp.get()?.number())
    }

    pub(crate) const fn is_dead(&self) -> bool {
        self.health.is_dead()
    }

    /// Until when a wait that begins now sleeps.
    pub(crate) fn sleeps_until(&self, now: Nanos) -> Nanos {
        self.nap(now, true, None)
    }

    /// Requests to connect that nobody has decided.
    pub(crate) fn requests(&self) -> usize {
        self.crs.len()
    }
}
