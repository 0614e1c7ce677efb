//! Counters of an instance and of its objects. DAT 1.2 has no such calls.

use crate::error::DatResult;
use crate::handle::{EpHandle, EvdHandle, SrqHandle};
use crate::ia::instance::Ia;
use crate::provider::{CompletionQueue, Provider};
use crate::stats::{EpStats, EvdStats, IaStats, SrqStats};

impl<P: Provider> Ia<P> {
    /// Returns the counters of this instance since it was opened: the sums over all endpoints and EVDs.
    #[must_use]
    pub fn stats(&self) -> IaStats {
        let living = self.eps.iter().map(|(_, ep)| ep.stats());
        let queues = self.evds.iter().filter_map(|(_, evd)| evd.cq.as_ref());
        IaStats {
            eps: self.eps.len(),
            evds: self.evds.len(),
            srqs: self.srqs.len(),
            pzs: self.pzs.len(),
            lmrs: self.regions.len(),
            rmrs: self.rmrs.len(),
            traffic: self.ended.and(living),
            completions: queues.fold(self.ended_completions, |all, queue| {
                all.saturating_add(queue.taken())
            }),
            wakeups: self.wakeups,
        }
    }

    /// Returns the counters of an endpoint since it was created.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP.
    pub fn ep_stats(&self, ep: EpHandle) -> DatResult<EpStats> {
        Ok(self.ep(ep)?.stats())
    }

    /// Returns the counters of an EVD since it was created.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE.
    pub fn evd_stats(&self, evd: EvdHandle) -> DatResult<EvdStats> {
        Ok(self.evd(evd)?.stats())
    }

    /// Returns the counters of an SRQ since it was created.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|SRQ.
    pub fn srq_stats(&self, srq: SrqHandle) -> DatResult<SrqStats> {
        Ok(self.srqs[self.srq_key(srq)?].stats())
    }
}
