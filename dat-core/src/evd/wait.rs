//! Taking events out of an EVD: `dat_evd_dequeue` and `dat_evd_wait`.
//!
//! The fast path of `evd_dequeue` is one poll of the completion queue: nothing is queued in software,
//! the entry names its endpoint by table index, the endpoint is connected, the DTO succeeded. All
//! else is [`Ia::dequeue_slow`], which also looks after the rest of the IA ([`Ia::progress`]), so
//! that a consumer that only polls still connects and disconnects.
//!
//! Waiting follows the device's rule, arm and then poll once more, so that no wake-up is lost. A sleep
//! is cut into pieces of at most [`MAX_SLEEP`] and never outlasts a timer of the connection manager.
//! Waking up is not being satisfied: a completion made non-notifying by UNSIGNALLED or by the peer
//! wakes the device's interrupt, is queued and counted, and the waiter sleeps on (objects of DAT:
//! "notification event"). At the end of the time the count alone decides.

use crate::completion::Entry;
use crate::ep::state::EpState;
use crate::error::{DatError, DatResult, ReturnType, Subtype};
use crate::event::{DtoCompletion, Event};
use crate::handle::{EpHandle, EvdHandle, EvdKey};
use crate::ia::Ia;
use crate::provider::{
    CompletionEntry, CompletionQueue, Nanos, Plain, Provider, QueuePair, SharedReceiveQueue,
};
use crate::types::{DtoStatus, Timeout};
use core::fmt;

/// The longest uninterrupted sleep.
const MAX_SLEEP: Nanos = 1_000_000_000;

/// Why `evd_wait` returned without an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitError {
    /// The error.
    pub error: DatError,
    /// Events on the queue; meaningful for DAT_TIMEOUT_EXPIRED only.
    pub nmore: u32,
}

impl From<DatError> for WaitError {
    fn from(error: DatError) -> Self {
        Self { error, nmore: 0 }
    }
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        if self.error.return_type() == ReturnType::TimeoutExpired {
            write!(f, " ({} events queued)", self.nmore)?;
        }
        Ok(())
    }
}

impl core::error::Error for WaitError {}

impl<P: Provider> Ia<P> {
    /// The oldest event of an EVD.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE. DAT_QUEUE_EMPTY.
    // Always inlined: the event is then made where the caller wants it, and not copied there.
    #[inline(always)]
    pub fn evd_dequeue(&mut self, evd: EvdHandle) -> DatResult<Event> {
        if evd.ia == self.id
            && let Some(queue) = self.evds.get_mut(evd.key)
            && queue.is_empty()
            && let Some(cq) = &mut queue.cq
            && let Some(entry) = cq.poll()
        {
            if let Some((key, ep)) = self.eps.at_mut(entry.owner())
                && ep.hot.state == EpState::Connected
                && let Some(qp) = &mut ep.qp
                && let Some(done) = qp.complete_plain(&entry)
            {
                return Ok(dto(EpHandle { key, ia: evd.ia }, done));
            }
            return self.dequeue_entry(evd.key, entry);
        }
        self.dequeue_slow(evd.key, evd.ia)
    }

    /// Makes an event of an entry just polled that is not plainly its queue pair's: a buffer of an SRQ is as
    /// common, all else is rare.
    #[inline(never)]
    fn dequeue_entry(&mut self, evd: EvdKey, entry: Entry<P>) -> DatResult<Event> {
        if !entry.is_request()
            && let Some((key, ep)) = self.eps.at_mut(entry.owner())
            && ep.hot.state == EpState::Connected
            && let Some(srq) = ep.hot.srq
            && let Some(srq) = self.srqs.get_mut(srq)
            && let Some(done) = srq.queue.complete_plain(&entry)
        {
            let ep = EpHandle { key, ia: self.id };
            return Ok(dto(ep, done));
        }
        self.dequeue_unusual(evd, &entry)
    }

    #[cold]
    #[inline(never)]
    fn dequeue_unusual(&mut self, evd: EvdKey, entry: &Entry<P>) -> DatResult<Event> {
        if let Some(settled) = self.settle(entry) {
            self.queue_settled(evd, settled);
        }
        self.dequeue_slow(evd, self.id)
    }

    // The handle comes in its parts, which stay in registers; as a whole it would go through memory, on the
    // fast path too.
    #[cold]
    #[inline(never)]
    fn dequeue_slow(&mut self, key: EvdKey, ia: u32) -> DatResult<Event> {
        let evd = EvdHandle { key, ia };
        self.evd(evd)?;
        self.settle_effects();
        if let Some(event) = self.pop(evd.key) {
            return Ok(event);
        }
        self.look_around(evd.key);
        if let Some(event) = self.pop(evd.key) {
            return Ok(event);
        }
        self.progress();
        self.look_around(evd.key);
        self.pop(evd.key)
            .ok_or(DatError::new(ReturnType::QueueEmpty, Subtype::None))
    }

    /// Waits until `threshold` events are queued, or, where the consumer controls notification,
    /// until a notification event arrives; then takes the oldest. The number that comes with it is
    /// how many are left.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE. DAT_INVALID_PARAMETER|ARG3: `threshold` is 0 or beyond the queue's length.
    /// DAT_INVALID_STATE: the EVD is unwaitable, or `threshold` is not 1 although a stream of the EVD
    /// is UNSIGNALLED or SOLICITED_WAIT. DAT_TIMEOUT_EXPIRED: fewer than `threshold` events came.
    /// DAT_ABORT: the device is dead and nothing is queued.
    pub fn evd_wait(
        &mut self,
        evd: EvdHandle,
        timeout: Timeout,
        threshold: u32,
    ) -> Result<(Event, u32), WaitError> {
        let queue = self.evd(evd)?;
        if threshold == 0 || threshold > queue.qlen {
            return Err(DatError::parameter(Subtype::Arg3)
                .because("threshold: 1 up to the length of the queue")
                .into());
        }
        if !queue.waitable {
            return Err(DatError::state(Subtype::StateEvdUnwaitable).into());
        }
        if threshold != 1 && queue.streams.consumer_controlled() {
            return Err(
                DatError::state(queue_config(queue.streams.solicited_only()))
                    .because("with UNSIGNALLED or SOLICITED_WAIT streams the threshold is 1")
                    .into(),
            );
        }
        let deadline = timeout
            .nanos()
            .map(|nanos| self.provider.now().saturating_add(nanos));

        self.progress();
        self.look_around(evd.key);
        if self.count(evd.key) >= threshold {
            return self.take(evd.key);
        }
        let seen = self.evds[evd.key].notifications;
        loop {
            self.progress();
            let quiet = self.arm_for(evd.key);
            // Between arming and sleeping only completion queues are looked at, no event queue: an
            // event taken in here would leave us asleep with its completion queue no longer armed.
            self.look_around(evd.key);
            let count = self.count(evd.key);
            if count >= threshold && self.evds[evd.key].notifications != seen {
                return self.take(evd.key);
            }
            let now = self.provider.now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                if count >= threshold {
                    return self.take(evd.key);
                }
                return Err(WaitError {
                    error: DatError::new(ReturnType::TimeoutExpired, Subtype::None),
                    nmore: count,
                });
            }
            if self.dead {
                if count >= threshold {
                    return self.take(evd.key);
                }
                return Err(WaitError {
                    error: DatError::new(ReturnType::Abort, Subtype::None)
                        .because("the device is dead"),
                    nmore: count,
                });
            }
            // A neighbour's queue that could not be emptied cannot wake us: look again soon.
            let sleep = if quiet { MAX_SLEEP } else { MAX_SLEEP / 1000 };
            let mut until = now.saturating_add(sleep);
            until = deadline.map_or(until, |deadline| until.min(deadline));
            until = self
                .cm
                .next_timeout()
                .map_or(until, |timer| until.min(timer.max(now)));
            if let Err(error) = self.provider.wait(until) {
                self.device_died(&error);
            }
        }
    }

    /// Counts what is queued here and sees what the neighbours have to tell.
    fn look_around(&mut self, key: EvdKey) {
        // A notification event behind many that do not notify must be found too.
        let bounded = !self.evds[key].streams.consumer_controlled();
        self.drain_evd(key, bounded);
        let mut at = 0;
        while let Some(&(feeder, _)) = self.evds[key].feeders.get(at) {
            self.drain_evd(feeder, true);
            at += 1;
        }
        self.settle_effects();
    }

    /// Asks every completion queue that can end the wait for an interrupt. False: one of them has
    /// entries that nobody takes, so arming it would not let us sleep.
    fn arm_for(&mut self, key: EvdKey) -> bool {
        let mut quiet = true;
        let solicited_only = self.evds[key].streams.solicited_only();
        if let Some(cq) = &mut self.evds[key].cq {
            cq.arm(solicited_only);
        }
        let mut at = 0;
        while let Some(&(feeder, _)) = self.evds[key].feeders.get(at) {
            // Errors notify even when only solicited entries were asked for.
            quiet &= self.arm_neighbour(feeder, true);
            at += 1;
        }
        for at in 0..self.draining.len() {
            if let Some(evd) = self
                .eps
                .get(self.draining[at])
                .and_then(|ep| ep.request_evd)
                && evd != key
            {
                quiet &= self.arm_neighbour(evd, false);
            }
        }
        for at in 0..self.discarding.len() {
            if let Some(cq) = self
                .eps
                .get_mut(self.discarding[at])
                .and_then(|ep| ep.discard.as_mut())
            {
                cq.arm(false);
            }
        }
        quiet
    }

    fn arm_neighbour(&mut self, key: EvdKey, solicited_only: bool) -> bool {
        let Some(evd) = self.evds.get_mut(key) else {
            return true;
        };
        if !evd.takes_dtos() {
            return false;
        }
        if let Some(cq) = &mut evd.cq {
            cq.arm(solicited_only);
        }
        true
    }

    fn count(&self, key: EvdKey) -> u32 {
        self.evds[key].len()
    }

    fn take(&mut self, key: EvdKey) -> Result<(Event, u32), WaitError> {
        match self.pop(key) {
            Some(event) => Ok((event, self.count(key))),
            // The count was above zero.
            None => Err(DatError::new(ReturnType::InternalError, Subtype::None).into()),
        }
    }

    pub(crate) fn pop(&mut self, key: EvdKey) -> Option<Event> {
        let (event, srq) = self.evds.get_mut(key)?.pop()?;
        self.slot_returned(srq);
        Some(event)
    }
}

/// The event of a plain completion.
#[inline(always)]
fn dto(ep: EpHandle, done: Plain) -> Event {
    Event::Dto(DtoCompletion {
        ep,
        cookie: done.cookie,
        transferred_length: u64::from(done.bytes),
        status: DtoStatus::Success,
        request: done.request,
        syndrome: (0, 0),
    })
}

const fn queue_config(solicited: bool) -> Subtype {
    if solicited {
        Subtype::StateEvdConfigSolicited
    } else {
        Subtype::StateEvdConfigNotify
    }
}
