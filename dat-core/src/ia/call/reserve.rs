//! The reserve of an instance: how much its device can do without the program.

use std::collections::BTreeMap;

use crate::handle::EvdKey;
use crate::ia::instance::Ia;
use crate::object::ep::state::EpState;
use crate::provider::{CompletionQueue, Provider, QueuePair, SharedReceiveQueue};

/// How much a device can do for an instance while its program polls and posts nothing, as between two processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reserve {
    /// Fewest posted receives of a connected endpoint, with those that were filled and whose completions were not
    /// dequeued. At most so many messages of its peer find a receive. Endpoints of an SRQ share its receives. `None` if
    /// no endpoint is connected.
    pub recvs: Option<u32>,
    /// Fewest entries of an EVD's completion queue that are left when all posted DTOs have completed. If it is 0, the
    /// queue is full then, or overruns. `None` if no EVD has a completion queue.
    pub completions: Option<u32>,
}

impl Reserve {
    /// Returns the reserve of several instances together: the least of each number.
    #[must_use]
    pub fn least(all: impl IntoIterator<Item = Self>) -> Self {
        let least = |one: Option<u32>, other: Option<u32>| one.into_iter().chain(other).min();
        all.into_iter().fold(Self::default(), |sum, one| Self {
            recvs: least(sum.recvs, one.recvs),
            completions: least(sum.completions, one.completions),
        })
    }
}

impl<P: Provider> Ia<P> {
    /// Returns how much the device can do without the program. A program that is going to [park](Self::park) posts
    /// receives first, if they are few. A DTO counts as posted until its completion was dequeued.
    #[must_use]
    pub fn reserve(&self) -> Reserve {
        let mut posted = BTreeMap::<EvdKey, u32>::new();
        let mut count = |evd: Option<EvdKey>, dtos: u32| {
            if let Some(evd) = evd {
                let all = posted.entry(evd).or_default();
                *all = all.saturating_add(dtos);
            }
        };
        let mut recvs = None;
        for (_, ep) in self.eps.iter() {
            let Some(qp) = ep.qp.get() else { continue };
            count(ep.request_evd, qp.requests_outstanding());
            let srq = ep.srq.and_then(|srq| self.srqs.get(srq));
            let own = qp.recvs_outstanding();
            if srq.is_none() {
                count(ep.recv_evd, own);
            }
            if ep.hot.state == EpState::Connected {
                let left = srq.map_or(own, |srq| srq.queue.outstanding());
                recvs = Some(recvs.map_or(left, |least: u32| least.min(left)));
            }
        }
        for (_, srq) in self.srqs.iter() {
            for evd in srq.recv_evds.keys() {
                count(Some(evd), srq.queue.outstanding());
            }
        }
        let left = self.evds.iter().filter_map(|(key, evd)| {
            let dtos = posted.get(&key).copied().unwrap_or(0);
            Some(evd.cq.as_ref()?.capacity().saturating_sub(dtos))
        });
        Reserve {
            recvs,
            completions: left.min(),
        }
    }
}
