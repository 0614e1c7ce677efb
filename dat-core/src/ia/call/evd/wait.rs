//! Dequeuing events of an EVD: `dat_evd_dequeue`. Waiting for them is in [`waiter`](super::waiter).
//!
//! The fast path of `evd_dequeue` is one poll of the completion queue. Its conditions: nothing is queued in software,
//! the entry names its endpoint by table index, the endpoint is connected, and the DTO succeeded. All other cases take
//! [`Ia::dequeue_slow`], which also runs [`Ia::progress`], so that a consumer that only polls still connects and
//! disconnects. A consumer that always finds an event takes the slow path once in many entries
//! ([`CompletionQueue::advance`]). A consumer that finds none takes it only once in many polls
//! ([`Evd::count_idle_poll`]), because a busy thread mostly polls an empty queue.
//!
//! [`Evd::count_idle_poll`]: crate::object::evd::queue::Evd::count_idle_poll

use crate::error::{DatError, DatResult};
use crate::event::{DtoCompletion, DtoDetail, Event};
use crate::handle::{EpHandle, EpKey, EvdHandle, EvdKey};
use crate::ia::instance::Ia;
use crate::object::ep::Ep;
use crate::object::ep::state::EpState;
use crate::object::evd::mode::EvdInput;
use crate::provider::{
    CompletionEntry, CompletionQueue, Entry, Plain, Provider, QueuePair, SharedReceiveQueue,
};
use crate::slots::Slots;
use crate::types::{DtoCookie, DtoStatus};

/// Result of [`Ia::evd_poll_fast`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPoll<T> {
    /// An ordinary completion, which was dequeued and converted.
    Taken(T),
    /// The EVD is empty.
    Empty,
    /// The fast path cannot decide, and nothing has changed. The caller must call [`Ia::evd_dequeue`].
    Elsewhere,
}

/// Result of [`Ia::evd_poll_fast_each`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of completions that were dequeued.
    pub taken: usize,
    /// True if the run ended because no entry was left.
    pub empty: bool,
}

impl<P: Provider> Ia<P> {
    /// Returns the oldest event of an EVD, or `None` if it is empty (`DAT_QUEUE_EMPTY`).
    ///
    /// Page: dat_evd_dequeue.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE. DAT_INVALID_STATE|EVD_WAITER: a thread waits on it.
    // Always inlined, so that the event is built in the caller's place and not copied there.
    #[inline(always)]
    pub fn evd_dequeue(&mut self, evd: EvdHandle) -> DatResult<Option<Event>> {
        match self.evd_poll_fast(evd, |ep, _, done| dto(ep, done)) {
            FastPoll::Taken(event) => Ok(Some(event)),
            FastPoll::Empty => Ok(None),
            FastPoll::Elsewhere => self.dequeue_other(evd.key, evd.ia),
        }
    }

    /// Polls an EVD once, for a facade with its own form of events. If the next event is the success of the oldest DTO
    /// of a connected endpoint, as most are, it is dequeued and converted by `make`. `make` gets the endpoint, the
    /// facade's identifier of the endpoint ([`Ia::ep_set_name`]), and the completion.
    #[doc(hidden)] // for the C facade
    #[inline(always)]
    pub fn evd_poll_fast<T>(
        &mut self,
        evd: EvdHandle,
        make: impl FnOnce(EpHandle, u64, Plain) -> T,
    ) -> FastPoll<T> {
        if let Some(queue) = self.evds.named_mut(evd.key, evd.ia)
            && queue.is_clear()
            && let Some(cq) = &mut queue.cq
        {
            let Some(entry) = cq.peek() else {
                return if queue.count_idle_poll() {
                    FastPoll::Empty
                } else {
                    FastPoll::Elsewhere
                };
            };
            if let Some((key, name, done)) = plain(&mut self.eps, &entry) {
                let made = make(EpHandle { key, ia: evd.ia }, name, done);
                cq.advance(&mut queue.obstacles);
                return FastPoll::Taken(made);
            }
        }
        FastPoll::Elsewhere
    }

    /// Takes events, oldest first, until there are no more or `events` is full. Returns their number; 0 is no error.
    /// One call is cheaper than as many dequeues. DAT 1.2 has no such call.
    ///
    /// ```text
    /// let mut events = [Event::NONE; 16];
    /// let taken = ia.evd_poll(evd, &mut events)?;
    /// for event in &events[..taken] { /* ... */ }
    /// ```
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE. DAT_INVALID_STATE|EVD_WAITER: a thread waits on it. On an error nothing was taken.
    pub fn evd_poll(&mut self, evd: EvdHandle, events: &mut [Event]) -> DatResult<usize> {
        let mut taken = 0;
        while let Some(places) = events.get_mut(taken..).filter(|places| !places.is_empty()) {
            let run = self.evd_poll_fast_each(evd, &mut *places, |ep, _, done| dto(ep, done));
            taken += run.taken;
            if run.taken == places.len() || (run.empty && taken != 0) {
                break;
            }
            match self.evd_dequeue(evd) {
                Ok(Some(event)) => places[run.taken] = event,
                Ok(None) => break,
                Err(_) if taken != 0 => break,
                Err(error) => return Err(error),
            }
            taken += 1;
        }
        Ok(taken)
    }

    /// Polls as [`Ia::evd_poll_fast`] does, repeatedly: fills `places` while the next event is an ordinary completion.
    /// Most completions are of the same endpoint as the one before, so the endpoint is only looked up when it changes.
    // This is a separate function, so that the loop can use all registers.
    #[doc(hidden)] // for the C facade
    #[inline(never)]
    pub fn evd_poll_fast_each<T>(
        &mut self,
        evd: EvdHandle,
        places: &mut [T],
        make: impl Fn(EpHandle, u64, Plain) -> T,
    ) -> Run {
        let room = places.len();
        let mut places = places.iter_mut();
        let mut empty = false;
        if let Some(queue) = self.evds.named_mut(evd.key, evd.ia)
            && queue.is_clear()
            && let Some(cq) = &mut queue.cq
        {
            while let Some(entry) = cq.peek()
                && let Some((key, name, qp)) = connected(&mut self.eps, entry.owner())
            {
                let before = places.len();
                let ep = EpHandle { key, ia: evd.ia };
                // `complete_plain` refuses an entry of another queue pair, which must not complete a request of this
                // one.
                empty = cq.take_while(&mut queue.obstacles, |entry| {
                    if !places.as_slice().is_empty()
                        && let Some(done) = qp.complete_plain(entry)
                        && let Some(place) = places.next()
                    {
                        *place = make(ep, name, done);
                        return true;
                    }
                    false
                });
                if empty || places.len() == before || places.as_slice().is_empty() {
                    break;
                }
            }
        }
        let taken = room - places.len();
        Run { taken, empty }
    }

    /// Dequeues an event where the fast path cannot: an obstacle exists, other work is due, or the next entry is not
    /// the plain completion of its endpoint's oldest DTO. Buffers of an SRQ, and requests that follow suppressed ones,
    /// are common; all other cases are rare. The entry is read again, and only this second reading is used.
    // The handle is passed as its two fields, which stay in registers. As a struct it would go through memory, also on
    // the fast path.
    #[inline(never)]
    fn dequeue_other(&mut self, evd: EvdKey, ia: u32) -> DatResult<Option<Event>> {
        let mut queue = self.evd_mut(EvdHandle { key: evd, ia })?;
        if queue.obstacles.take_poll_others() {
            // Even if the consumer always finds an entry, connections and the device's health must be checked now and
            // then.
            self.progress();
            queue = &mut self.evds[evd];
        }
        let entry = if queue.is_clear()
            && let Some(cq) = &mut queue.cq
            && let Some(entry) = cq.peek()
        {
            cq.advance(&mut queue.obstacles);
            Some(entry)
        } else {
            None
        };
        let Some(entry) = entry else {
            return self.dequeue_slow(evd);
        };
        if let Some((key, ep)) = self.eps.at_mut(entry.owner())
            && ep.hot.state == EpState::Connected
        {
            let srq = ep.srq.filter(|_| !entry.is_request());
            let done = match srq.and_then(|srq| self.srqs.get_mut(srq)) {
                Some(srq) => {
                    let done = srq.queue.complete_plain(&entry);
                    ep.counts.arrived(done.map_or(0, |done| done.bytes));
                    done
                }
                None => ep.qp.get_mut().and_then(|qp| {
                    qp.complete_plain(&entry)
                        .or_else(|| qp.complete_behind_suppressed(&entry))
                }),
            };
            if let Some(done) = done {
                return Ok(Some(dto(EpHandle { key, ia: self.id }, done)));
            }
        }
        self.dequeue_unusual(evd, &entry)
    }

    #[cold]
    #[inline(never)]
    fn dequeue_unusual(&mut self, evd: EvdKey, entry: &Entry<P>) -> DatResult<Option<Event>> {
        if let Some(processed) = self.process_entry(entry) {
            self.queue_processed(evd, processed);
        }
        self.dequeue_slow(evd)
    }

    #[cold]
    #[inline(never)]
    fn dequeue_slow(&mut self, evd: EvdKey) -> DatResult<Option<Event>> {
        self.evds[evd]
            .mode
            .next(EvdInput::Dequeue)
            .map_err(DatError::state)?;
        self.apply_effects();
        if let Some(event) = self.pop(evd) {
            return Ok(Some(event));
        }
        self.drain_with_feeders(evd);
        if let Some(event) = self.pop(evd) {
            return Ok(Some(event));
        }
        self.progress();
        self.evds[evd].restart_idle_polls();
        self.drain_with_feeders(evd);
        Ok(self.pop(evd))
    }

    pub(in crate::ia) fn pop(&mut self, key: EvdKey) -> Option<Event> {
        let (event, srq) = self.evds.get_mut(key)?.pop()?;
        self.slot_returned(srq);
        Some(event)
    }
}

/// Returns the completion of an entry, if the entry means only that the oldest DTO of a connected endpoint succeeded.
#[inline(always)]
pub(in crate::ia) fn plain<P: Provider>(
    eps: &mut Slots<EpKey, Ep<P>>,
    entry: &Entry<P>,
) -> Option<(EpKey, u64, Plain)> {
    let (key, name, qp) = connected(eps, entry.owner())?;
    Some((key, name, qp.complete_plain(entry)?))
}

/// Returns the endpoint with this owner number, its facade identifier and its queue pair, if it is connected.
#[inline(always)]
fn connected<P: Provider>(
    eps: &mut Slots<EpKey, Ep<P>>,
    owner: u32,
) -> Option<(EpKey, u64, &mut P::Qp)> {
    let (key, ep) = eps.at_mut(owner)?;
    if ep.hot.state != EpState::Connected {
        return None;
    }
    Some((key, ep.name, ep.qp.get_mut()?))
}

/// Makes the event of a plain completion.
#[inline(always)]
pub(in crate::ia) fn dto(ep: EpHandle, done: Plain) -> Event {
    Event::Dto(DtoCompletion {
        ep,
        cookie: DtoCookie(done.cookie),
        transferred_length: u64::from(done.bytes),
        status: DtoStatus::Success,
        request: done.request,
        detail: DtoDetail::None,
    })
}
