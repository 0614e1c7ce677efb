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
    /// Why a dequeue must not go straight to `cq`: events in `queue`, one for a waiter, one if it is recorded, one
    /// for each request that is timed, and what `cq` says.
    pub(crate) obstacles: Obstacles,
    /// How many more looks at an empty `cq` are nothing but that ([`Evd::take_idle_look`]).
    idle: u8,
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
    /// Events that were queued here, ever, and those that found no room.
    queued: u64,
    overflows: u64,
    pub(crate) flags: EvdFlags,
    pub(crate) streams: Streams,
    /// Moved by [`Evd::step`].
    pub(crate) mode: CurrentMode,
    /// What arriving notification events wake.
    pub(crate) cno: Option<CnoKey>,
    /// What comes here is recorded: no dequeue goes straight to `cq`.
    recorded: bool,
    /// Requests that are timed, and complete here.
    timed: usize,
    /// Times that a wait which slept ran again for it.
    pub(crate) wakeups: u64,
}

/// No EVD: it has no completion queue, and nothing goes in or out.
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

/// Looks at an empty completion queue that are nothing but a look, between two that look after all else.
const IDLE_LOOKS: u8 = 127;

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

    /// An EVD that an IA feeds.
    pub(crate) fn asynchronous(qlen: u32) -> Self {
        let mut evd = Self::new(None, qlen, EvdFlags::ASYNC);
        evd.streams.attach(Stream::Other);
        evd
    }

    /// Nothing in software is older than what is in the completion queue, and nobody waits.
    #[inline]
    pub(crate) const fn is_clear(&self) -> bool {
        self.obstacles.is_none()
    }

    /// Takes one of the looks that are nothing but a look. There is none left once in many: then all else is looked
    /// after first, so that who does nothing but poll still connects ([`Evd::others_had_their_turn`]).
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

    /// All else was looked after just now.
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

    /// Whether what comes here is recorded.
    pub(crate) fn set_recorded(&mut self, on: bool) {
        self.recorded = on;
        self.count_obstacles();
    }

    /// One more request that completes here is timed, or one less.
    pub(crate) fn timed(&mut self, one: bool) {
        self.timed = if one {
            self.timed + 1
        } else {
            self.timed.saturating_sub(1)
        };
        self.count_obstacles();
    }

    /// A step of its mode.
    ///
    /// # Errors
    /// The subtype of the DAT_INVALID_STATE that refuses it; nothing has changed.
    pub(crate) fn step(&mut self, input: EvdInput) -> Result<Wakes, Subtype> {
        let wakes = self.mode.step(input)?;
        self.count_obstacles();
        Ok(wakes)
    }

    /// Another length, at least the number of events in software.
    pub(crate) fn set_qlen(&mut self, qlen: u32) {
        self.qlen = qlen;
        let room = usize::try_from(qlen).unwrap_or(usize::MAX);
        let room = room.min(MAX_RESERVED).saturating_mul(2);
        self.queue.reserve(room.saturating_sub(self.queue.len()));
    }

    /// Events in software.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.queue.len()).unwrap_or(u32::MAX)
    }

    /// What it has taken in.
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

    /// Whether completions may still be taken out early.
    pub(crate) const fn takes_dtos(&self) -> bool {
        self.dtos < self.qlen
    }

    /// Whether an event that is not a completion would fit.
    pub(crate) fn has_room(&self) -> bool {
        self.len() - self.dtos < self.qlen
    }

    /// Whether a request to connect would fit. Who sends requests may be anybody, so they never push out the connection
    /// events of endpoints that use this EVD too: there is a place left for each, up to half of the queue. A queue that
    /// only service points use is theirs whole.
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

    /// The oldest event, and the SRQ that gets a slot back.
    pub(crate) fn pop(&mut self) -> Option<(Event, Option<SrqKey>)> {
        let Queued { event, srq } = self.queue.pop_front()?;
        self.count_obstacles();
        if matches!(event, Event::Dto(_) | Event::RmrBind(_)) {
            self.dtos -= 1;
        }
        Some((event, srq))
    }

    /// All events, oldest first; the EVD is going away.
    pub(crate) fn into_events(self) -> impl Iterator<Item = (Event, Option<SrqKey>)> {
        self.queue
            .into_iter()
            .map(|queued| (queued.event, queued.srq))
    }
}
