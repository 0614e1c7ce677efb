//! The EVD itself: a completion queue and a software queue.
//!
//! DTO completions stay in the device's completion queue until a call polls it. All other events are kept in `queue`.
//! `queue` also holds completions that had to be polled early: to count them, to keep an order, or to detect an error.
//! Within a stream, an event in `queue` is older than those in the completion queue, so it is delivered first.
//!
//! Completions and other events in `queue` have separate limits, each equal to the length that the consumer sees. So
//! completions that were polled early never displace a connection event. Memory for both is allocated at creation, for
//! at most 65,536 events each. The limit of completions is exceeded where a whole completion queue must be polled, for
//! example before a DISCONNECTED event, or for a waiter that a notification event ends. Each time at most as many
//! completions are added as the completion queue holds.

mod parking;

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
    /// Reasons why a dequeue must not poll `cq` directly: events in `queue`, a waiter, recording, timed requests, and
    /// the reasons that `cq` adds.
    pub(crate) obstacles: Obstacles,
    /// Number of further polls of an empty `cq` that do no other work ([`Evd::count_idle_poll`]).
    idle: u8,
    /// Events in order of delivery.
    queue: VecDeque<Queued>,
    /// The device's completion queue; present only with the DTO or RMR_BIND flag.
    pub(crate) cq: Option<P::Cq>,
    /// Queue length that the consumer sees.
    pub(crate) qlen: u32,
    /// Number of completions in `queue`.
    dtos: u32,
    /// Number of notification events so far; a waiter compares two readings of this count.
    pub(crate) notifications: u64,
    /// Number of events queued here so far. `overflows` counts the events that did not fit.
    queued: u64,
    overflows: u64,
    pub(crate) flags: EvdFlags,
    pub(crate) streams: Streams,
    /// Mode of the EVD; only [`Evd::step`] changes it.
    pub(crate) mode: CurrentMode,
    /// CNO that notification events trigger.
    pub(crate) cno: Option<CnoKey>,
    /// True while the EVD is recorded; no dequeue then polls `cq` directly.
    recorded: bool,
    /// Number of timed requests that will complete here.
    timed: usize,
    /// Number of times that a sleeping wait woke up for this EVD.
    pub(crate) wakeups: u64,
}

/// The value in an empty slot has no completion queue, and no event can be queued to it or dequeued from it.
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

/// Number of polls of an empty completion queue between two polls that also do other work.
const IDLE_POLLS: u8 = 127;

/// Maximum number of completions, and of other events, for which memory is reserved at creation; a longer queue grows
/// on demand.
const MAX_RESERVED: usize = 65_536;

/// An event in the software queue.
#[derive(Clone, Copy)]
struct Queued {
    event: Event,
    /// SRQ whose slot is occupied until the event is dequeued; `None` if the event occupies no slot.
    srq: Option<SrqKey>,
}

/// Returns whether an event is a completion. An EVD has separate limits for completions and for other events.
pub(crate) const fn is_completion(event: &Event) -> bool {
    matches!(event, Event::Dto(_) | Event::RmrBind(_))
}

/// Error for an event that did not fit into the queue.
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

    /// Makes an EVD that receives the IA's asynchronous events.
    pub(crate) fn asynchronous(qlen: u32) -> Self {
        let mut evd = Self::new(None, qlen, EvdFlags::ASYNC);
        evd.streams.attach(Stream::Other);
        evd
    }

    /// Returns the number of events for which memory is reserved.
    #[cfg(test)]
    pub(crate) fn reserved(&self) -> usize {
        self.queue.capacity()
    }

    /// Returns whether a dequeue may poll the completion queue directly: no event is in software, and no other obstacle
    /// exists.
    #[inline]
    pub(crate) const fn is_clear(&self) -> bool {
        self.obstacles.is_none()
    }

    /// Counts one poll of an empty completion queue. Returns false once in many such polls: the caller must then do all
    /// other work of the IA first, and call [`Evd::restart_idle_polls`]. Otherwise a program that only polls would
    /// never connect.
    #[inline]
    pub(crate) const fn count_idle_poll(&mut self) -> bool {
        match self.idle.checked_sub(1) {
            Some(left) => {
                self.idle = left;
                true
            }
            None => false,
        }
    }

    /// Restarts the count of idle polls, after all other work of the IA was done.
    pub(crate) const fn restart_idle_polls(&mut self) {
        self.idle = IDLE_POLLS;
        let _was_due = self.obstacles.take_poll_others();
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

    /// Adds (`one` is true) or subtracts a timed request that will complete here.
    pub(crate) fn timed(&mut self, one: bool) {
        self.timed = if one {
            self.timed + 1
        } else {
            self.timed.saturating_sub(1)
        };
        self.count_obstacles();
    }

    /// Applies an input to the mode of the EVD.
    ///
    /// # Errors
    /// The subtype of the DAT_INVALID_STATE error with which the input is refused; nothing has changed.
    pub(crate) fn step(&mut self, input: EvdInput) -> Result<Wakes, Subtype> {
        let wakes = self.mode.step(input)?;
        self.count_obstacles();
        Ok(wakes)
    }

    /// Sets the queue length and reserves memory for it. The caller ensures that the events in software fit.
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

    /// Returns whether the software queue accepts further completions that are polled early.
    pub(crate) const fn takes_dtos(&self) -> bool {
        self.dtos < self.qlen
    }

    /// Returns whether an event that is not a completion would fit.
    pub(crate) fn has_room(&self) -> bool {
        self.len() - self.dtos < self.qlen
    }

    /// Returns whether a connection request would fit. Any peer can send requests, so requests must not displace the
    /// connection events of endpoints that use the same EVD. One slot is therefore kept free for each of these
    /// endpoints, up to half of the queue. If only service points use the EVD, requests may fill the whole queue.
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

    /// Queues an event that is not a completion. Every such event is a notification event.
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

    /// Removes the oldest event. Returns the event, and the SRQ that gets a slot back.
    pub(crate) fn pop(&mut self) -> Option<(Event, Option<SrqKey>)> {
        let Queued { event, srq } = self.queue.pop_front()?;
        self.count_obstacles();
        if is_completion(&event) {
            self.dtos -= 1;
        }
        Some((event, srq))
    }

    /// Consumes a freed EVD, and returns all its events, oldest first.
    pub(crate) fn into_events(self) -> impl Iterator<Item = (Event, Option<SrqKey>)> {
        self.queue
            .into_iter()
            .map(|queued| (queued.event, queued.srq))
    }
}
