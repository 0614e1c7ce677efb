//! An EVD that is parked and resumed. No thread waits on it.

use super::{Evd, Queued, is_completion};
use crate::event::Event;
use crate::handle::{CnoHandle, CnoKey, EvdHandle, EvdKey, Handle, SrqHandle, SrqKey};
use crate::object::evd::mode::CurrentMode;
use crate::object::snapshot::{EvdSnapshot, QueuedSnapshot};
use crate::provider::ParkProvider;

/// Number of events for which memory is reserved in an EVD without completion queue. It grows on demand.
const MOST_RESERVED: u32 = 64;

impl<P: ParkProvider> Evd<P> {
    /// Writes the EVD out. An SRQ that was freed has no slots, so its completions are written out without one.
    pub(crate) fn park(
        self,
        key: EvdKey,
        ia: u32,
        is_srq: impl Fn(SrqKey) -> bool,
        parking: &mut P::Parking,
    ) -> EvdSnapshot<P::CqSnapshot> {
        let Self {
            place: _,
            obstacles: _,
            idle: _,
            queue,
            cq,
            qlen,
            dtos: _,
            notifications,
            queued,
            overflows,
            flags,
            streams: _,
            mode,
            cno,
            recorded: _,
            timed: _,
            wakeups,
        } = self;
        let queue = queue
            .into_iter()
            .map(|Queued { event, srq }| QueuedSnapshot {
                event,
                srq: srq
                    .filter(|srq| is_srq(*srq))
                    .map(|srq| SrqHandle::new(srq, ia)),
            });
        EvdSnapshot {
            evd: EvdHandle { key, ia },
            qlen,
            flags,
            is_waitable: mode.waitable,
            is_enabled: mode.enabled,
            cno: cno.map(|cno| CnoHandle::new(cno, ia)),
            events: queue.collect(),
            notifications,
            queued,
            overflows,
            wakeups,
            queue: cq.map(|cq| P::park_cq(parking, cq)),
        }
    }

    /// Makes an EVD without streams. `events` are those of its software queue.
    pub(crate) fn resume(
        snapshot: &EvdSnapshot<P::CqSnapshot>,
        cq: Option<P::Cq>,
        cno: Option<CnoKey>,
        events: impl Iterator<Item = (Event, Option<SrqKey>)>,
    ) -> Self {
        // Only a completion queue proves that the EVD is as long as the snapshot says.
        let reserved = match &cq {
            Some(_) => snapshot.qlen,
            None => snapshot.qlen.min(MOST_RESERVED),
        };
        let mut evd = Self::new(cq, reserved, snapshot.flags);
        evd.qlen = snapshot.qlen;
        for (event, srq) in events {
            evd.dtos += u32::from(is_completion(&event));
            evd.queue.push_back(Queued { event, srq });
        }
        evd.notifications = snapshot.notifications;
        evd.queued = snapshot.queued;
        evd.overflows = snapshot.overflows;
        evd.wakeups = snapshot.wakeups;
        evd.mode = CurrentMode::resume(snapshot.is_waitable, snapshot.is_enabled);
        evd.cno = cno;
        evd.count_obstacles();
        evd
    }
}
