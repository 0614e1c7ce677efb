//! Internals of an IA that the tests read and no DAT call returns.

use crate::handle::{EpHandle, EvdHandle};
use crate::ia::instance::Ia;
use crate::provider::{Nanos, Provider, Qpn, QueuePair};

impl<P: Provider> Ia<P> {
    pub(crate) fn qp_number(&self, ep: EpHandle) -> Option<Qpn> {
        Some(self.eps.get(ep.key)?.qp.get()?.number())
    }

    /// Counts wake-ups that never were.
    pub(crate) const fn count_wakeups(&mut self, wakeups: u64) {
        self.wakeups += wakeups;
    }

    pub(crate) const fn is_dead(&self) -> bool {
        self.health.is_dead()
    }

    /// Returns whether the instance records events or measures latencies.
    pub(crate) const fn is_observed(&self) -> bool {
        self.observed
    }

    /// Returns whether a dequeue may take a completion directly from the completion queue, without other work.
    pub(crate) fn dequeues_at_once(&self, evd: EvdHandle) -> bool {
        self.evds[evd.key].is_clear()
    }

    /// Returns the time at which a wait that begins now would wake up.
    pub(crate) fn sleeps_until(&self, now: Nanos) -> Nanos {
        self.sleep_deadline(now, true, None)
    }

    /// Returns the number of events for which an EVD has reserved memory.
    pub(crate) fn events_reserved(&self, evd: EvdHandle) -> usize {
        self.evds[evd.key].reserved()
    }

    /// Returns the number of scheduled keep-alive checks.
    pub(crate) fn checks_ahead(&self) -> usize {
        self.keep_alives.len()
    }

    /// Returns the number of undecided connection requests.
    pub(crate) fn requests(&self) -> usize {
        self.crs.len()
    }
}
