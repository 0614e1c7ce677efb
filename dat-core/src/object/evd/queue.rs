//! The EVD itself: a completion queue and a queue in software.
//!
//! DTO completions stay in the device's completion queue until a call looks. Everything else is kept in `queue`, and
//! so are completions that had to be taken out early (to count them, to keep an order, to see an error). Within a
//! stream, an event in `queue` is older than those in the completion queue, so it is delivered first.
//!
//! The two kinds have separate limits, each the length that the consumer sees: completions taken out early never push
//! out a connection event. Room for both is allocated at creation. One case goes beyond the limit: the completions
//! that must precede a DISCONNECTED event are all taken out (at most as many as the completion queue holds).

use super::mode::{CurrentMode, EvdInput, Waiter, Wakes};
use super::streams::{Stream, Streams};
use crate::error::Subtype;
use crate::event::Event;
use crate::handle::{CnoKey, EvdKey, SrqKey};
use crate::provider::{CompletionQueue, Obstacles, Provider};
use crate::slots::{Name, Resident};
use crate::stats::EvdStats;
use crate::types::EvdFlags;
use std::collections::VecDeque;

pub(crate) struct Evd<P: Provider> {
    place: Name<EvdKey>,
    /// Reasons why a dequeue must not go straight to `cq`: events in `queue`, a waiter, recording, timed requests,
    /// and those that `cq` adds.
    pub(crate) obstacles: Obstacles,
    /// Number of further looks at an empty `cq` that do no other work ([`Evd::take_idle_look`]).
    idle: u8,
    /// Events in order of delivery.
    queue: VecDeque<Queued>,
    /// The device's completion queue; only with the DTO or RMR_BIND flag.
    pub(crate) cq: Option<P::Cq>,
    /// Queue length that the consumer sees.
    pub(crate) qlen: u32,
    /// Number of completions in `queue`.
    dtos: u32,
    /// Number of notification events ever; a waiter compares two readings.
    pub(crate) notifications: u64,
    /// Number of events ever queued here, and of those that found no room.
    queued: u64,
    overflows: u64,
    pub(crate) flags: EvdFlags,
    pub(crate) streams: Streams,
    /// Changed by [`Evd::step`].
    pub(crate) mode: CurrentMode,
    /// The CNO that notification events trigger.
    pub(crate) cno: Option<CnoKey>,
    /// True while the EVD is recorded: then no dequeue goes straight to `cq`.
    recorded: bool,
    /// Number of timed requests that complete here.
    timed: usize,
    /// Number of times that a wait which slept ran again for this EVD.
    pub(crate) wakeups: u64,
}

/// A vacant slot: it has no completion queue, and nothing is queued or dequeued.
impl<P: Provider> Resident<EvdKey> for Evd<P> {
    #[inline(always)]
    fn name(&mut self) -> &mut Name<EvdKey> {
        &mut self.place
    }

    #[inline(always)]
    fn named(&self) -> &Name<EvdKey> {
        &self.place
    }

    fn vacant() -> Self {
        Self::new(None, 0, EvdFlags::empty())
    }
}

/// Number of looks at an empty completion queue that do no other work, between two that do.
const IDLE_LOOKS: u8 = 127;

/// Maximum number of events that room is reserved for at creation; a longer queue grows on demand.
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
            place: Name::none(),
            obstacles: Obstacles::default(),
            idle: 0,
            queue: VecDeque::with_capacity(room.min(MAX_RESERVED).saturating_mul(2)),
            cq,
            qlen,
            dtos: 0,
            notifications: 0,
            queued: 0,
            overflows: 0,
            flags,
            streams: Streams::new(flags.contains(EvdFlags::SOFTWARE)),
            mode: CurrentMode::NEW,
            cno: None,
            recorded: false,
            timed: 0,
            wakeups: 0,
        }
    }

    /// Makes an EVD that the IA feeds.
    pub(crate) fn asynchronous(qlen: u32) -> Self {
        let mut evd = Self::new(None, qlen, EvdFlags::ASYNC);
        evd.streams.attach(Stream::Other);
        evd
    }

    /// Returns whether nothing in software precedes the completion queue, and no thread waits.
    #[inline]
    pub(crate) const fn is_clear(&self) -> bool {
        self.obstacles.is_none()
    }

    /// Takes one of the idle looks. Returns false if none is left, once in many looks: then the caller does all other
    /// work first, so that a program that only polls still connects ([`Evd::others_had_their_turn`]).
    #[inline]
    pub(crate) const fn take_idle_look(&mut self) -> bool {
        match self.idle.checked_sub(1) {
            Some(left) => {
                self.idle = left;
                true
            }
            None => false,
        }
    }

    /// Renews the idle looks after all other work was done.
    pub(crate) const fn others_had_their_turn(&mut self) {
        self.idle = IDLE_LOOKS;
        let _was_due = self.obstacles.is_others_turn();
    }

    fn count_obstacles(&mut self) {
        let waiter = usize::from(self.mode.waiter != Waiter::Nobody);
        let recorded = usize::from(self.recorded);
        self.obstacles
            .count(self.queue.len() + waiter + recorded + self.timed);
    }

    /// Switches recording of the EVD on or off.
    pub(crate) fn set_recorded(&mut self, on: bool) {
        self.recorded = on;
        self.count_obstacles();
    }

    /// Counts one more, or one less, timed request that completes here.
    pub(crate) fn timed(&mut self, one: bool) {
        self.timed = if one {
            self.timed + 1
        } else {
            self.timed.saturating_sub(1)
        };
        self.count_obstacles();
    }

    /// Takes a step of its mode.
    ///
    /// # Errors
    /// The subtype of the DAT_INVALID_STATE that refuses it; nothing has changed.
    pub(crate) fn step(&mut self, input: EvdInput) -> Result<Wakes, Subtype> {
        let wakes = self.mode.step(input)?;
        self.count_obstacles();
        Ok(wakes)
    }

    /// Changes the length, to at least the number of events in software.
    pub(crate) fn set_qlen(&mut self, qlen: u32) {
        self.qlen = qlen;
        let room = usize::try_from(qlen).unwrap_or(usize::MAX);
        let room = room.min(MAX_RESERVED).saturating_mul(2);
        self.queue.reserve(room.saturating_sub(self.queue.len()));
    }

    /// Returns the number of events in software.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.queue.len()).unwrap_or(u32::MAX)
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> EvdStats {
        EvdStats {
            completions: self.cq.as_ref().map_or(0, CompletionQueue::taken),
            queued: self.queued,
            notifications: self.notifications,
            overflows: self.overflows,
            wakeups: self.wakeups,
            waiting: self.len(),
        }
    }

    /// Returns whether completions may still be taken out early.
    pub(crate) const fn takes_dtos(&self) -> bool {
        self.dtos < self.qlen
    }

    /// Returns whether an event that is not a completion would fit.
    pub(crate) fn has_room(&self) -> bool {
        self.len() - self.dtos < self.qlen
    }

    /// Returns whether a connection request would fit. Any peer can send requests, so they must not push out the
    /// connection events of endpoints that use this EVD, too: a place is left for each of these, up to half of the
    /// queue. A queue that only service points use is theirs entirely.
    pub(crate) fn has_room_for_request(&self) -> bool {
        let kept = self.streams.connections().min(self.qlen / 2);
        self.len() - self.dtos < self.qlen - kept
    }

    /// Queues the completion of a DTO or a bind.
    pub(crate) fn push_dto(&mut self, completion: Event, notify: bool, srq: Option<SrqKey>) {
        self.queue.push_back(Queued {
            event: completion,
            srq,
        });
        self.count_obstacles();
        self.queued += 1;
        self.dtos += 1;
        self.notifications += u64::from(notify);
    }

    /// Queues an event that is not a completion. All of those notify.
    pub(crate) fn push(&mut self, event: Event) -> Result<(), Overflow> {
        if !self.has_room() {
            self.overflows += 1;
            return Err(Overflow);
        }
        self.queue.push_back(Queued { event, srq: None });
        self.count_obstacles();
        self.queued += 1;
        self.notifications += 1;
        Ok(())
    }

    /// Takes the oldest event, and returns the SRQ that gets a slot back.
    pub(crate) fn pop(&mut self) -> Option<(Event, Option<SrqKey>)> {
        let Queued { event, srq } = self.queue.pop_front()?;
        self.count_obstacles();
        if matches!(event, Event::Dto(_) | Event::RmrBind(_)) {
            self.dtos -= 1;
        }
        Some((event, srq))
    }

    /// Returns all events, oldest first, of an EVD that is freed.
    pub(crate) fn into_events(self) -> impl Iterator<Item = (Event, Option<SrqKey>)> {
        self.queue
            .into_iter()
            .map(|queued| (queued.event, queued.srq))
    }
}
