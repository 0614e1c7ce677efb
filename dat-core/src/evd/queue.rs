//! The EVD itself: a completion queue and a queue in software.
//!
//! DTO completions wait in the device's completion queue until somebody looks. Everything else, and
//! completions that had to be taken out early (to count them, to keep an order, to see an error),
//! waits in `queue`. What is in `queue` is older than what is in the completion queue, stream by
//! stream, so it is delivered first.
//!
//! The two kinds have their own limits, each the length the consumer sees: completions taken out
//! early never push out a connection event. Room for both is allocated at creation. One case goes
//! beyond it: the completions that must precede a DISCONNECTED event are taken out however many they
//! are (at most what the completion queue holds).

use super::streams::Streams;
use crate::event::{DtoCompletion, Event};
use crate::handle::{EvdKey, SrqKey};
use crate::provider::Provider;
use crate::types::EvdFlags;
use std::collections::VecDeque;

pub(crate) struct Evd<P: Provider> {
    /// In the order they will be delivered.
    queue: VecDeque<Queued>,
    /// Where the device writes; only with the DTO or RMR_BIND flag.
    pub(crate) cq: Option<P::Cq>,
    /// Events it can hold, as the consumer is told.
    pub(crate) qlen: u32,
    /// Completions among `queue`.
    dtos: u32,
    /// Notification events that arrived, ever: a waiter compares two looks at it.
    pub(crate) notifications: u64,
    pub(crate) flags: EvdFlags,
    pub(crate) streams: Streams,
    pub(crate) waitable: bool,
    pub(crate) enabled: bool,
    /// EVDs that take the completions of endpoints whose connection events come here, and how many
    /// such endpoints: an error there is a BROKEN event here.
    pub(crate) feeders: Vec<(EvdKey, u32)>,
}

/// Events room is reserved for at creation, at most: a longer queue grows when it gets that full.
const MAX_RESERVED: usize = 65_536;

/// An event in software.
#[derive(Clone, Copy)]
struct Queued {
    event: Event,
    /// The SRQ whose slot is occupied until the event is dequeued.
    srq: Option<SrqKey>,
}

/// The event did not fit.
pub(crate) struct Overflow;

impl<P: Provider> Evd<P> {
    pub(crate) fn new(cq: Option<P::Cq>, qlen: u32, flags: EvdFlags) -> Self {
        let room = usize::try_from(qlen).unwrap_or(usize::MAX);
        Self {
            queue: VecDeque::with_capacity(room.min(MAX_RESERVED).saturating_mul(2)),
            cq,
            qlen,
            dtos: 0,
            notifications: 0,
            flags,
            streams: Streams::new(flags.contains(EvdFlags::SOFTWARE)),
            waitable: true,
            enabled: true,
            feeders: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Events in software.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.queue.len()).unwrap_or(u32::MAX)
    }

    /// Whether completions may still be taken out early.
    pub(crate) const fn takes_dtos(&self) -> bool {
        self.dtos < self.qlen
    }

    /// Whether an event that is not a completion would fit.
    pub(crate) fn has_room(&self) -> bool {
        self.len() - self.dtos < self.qlen
    }

    pub(crate) fn push_dto(
        &mut self,
        completion: DtoCompletion,
        notify: bool,
        srq: Option<SrqKey>,
    ) {
        self.queue.push_back(Queued {
            event: Event::Dto(completion),
            srq,
        });
        self.dtos += 1;
        self.notifications += u64::from(notify);
    }

    /// Queues an event that is not a completion. All of those notify.
    pub(crate) fn push(&mut self, event: Event) -> Result<(), Overflow> {
        if !self.has_room() {
            return Err(Overflow);
        }
        self.queue.push_back(Queued { event, srq: None });
        self.notifications += 1;
        Ok(())
    }

    /// The oldest event, and the SRQ that gets a slot back.
    pub(crate) fn pop(&mut self) -> Option<(Event, Option<SrqKey>)> {
        let Queued { event, srq } = self.queue.pop_front()?;
        if matches!(event, Event::Dto(_)) {
            self.dtos -= 1;
        }
        Some((event, srq))
    }

    /// All events, oldest first; the EVD is going away.
    pub(crate) fn into_events(
        self,
    ) -> (Option<P::Cq>, impl Iterator<Item = (Event, Option<SrqKey>)>) {
        (
            self.cq,
            self.queue
                .into_iter()
                .map(|queued| (queued.event, queued.srq)),
        )
    }

    pub(crate) fn add_feeder(&mut self, evd: EvdKey) {
        match self.feeders.iter_mut().find(|(key, _)| *key == evd) {
            Some((_, count)) => *count += 1,
            None => self.feeders.push((evd, 1)),
        }
    }

    pub(crate) fn remove_feeder(&mut self, evd: EvdKey) {
        if let Some(at) = self.feeders.iter().position(|(key, _)| *key == evd) {
            self.feeders[at].1 -= 1;
            if self.feeders[at].1 == 0 {
                self.feeders.swap_remove(at);
            }
        }
    }
}
