//! Waiting on an EVD: `dat_evd_wait`, whole and in steps.
//!
//! Waiting follows the device's rule: arm, then poll once more, so that no wake-up is lost. A sleep is divided into
//! pieces of at most [`MAX_SLEEP`] and never outlasts a timer of the connection manager. A wake-up does not always end
//! the wait: a completion that is no notification event, because of UNSIGNALLED or by the peer's choice, still raises
//! the device's interrupt. It is queued and counted, and the waiter sleeps again. When the timeout expires, only the
//! number of events decides.
//!
//! [`Ia::evd_wait`] sleeps inside the provider while it borrows the IA. A program whose threads use one IA, or that
//! sleeps by other means, calls the steps itself: [`Ia::evd_wait_begin`], then [`Ia::evd_wait_check`] until the wait is
//! over, or [`Ia::evd_wait_cancel`]. Between the steps the EVD belongs to the waiter, as DAT says
//! ([`EvdMode`](crate::object::evd::mode::EvdMode)).

use super::wait::{dto, plain};
use crate::error::{DatError, DatResult, ReturnType, Subtype};
use crate::event::Event;
use crate::handle::{EpHandle, EpKey, EvdHandle, EvdKey};
use crate::ia::instance::Ia;
use crate::object::evd::mode::{EvdInput, Waiter};
use crate::provider::{CompletionQueue, Nanos, Plain, Provider};
use crate::types::Timeout;
use core::fmt;

/// Longest uninterrupted sleep, in nanoseconds.
const MAX_SLEEP: Nanos = 1_000_000_000;

/// Reason why `evd_wait` returned without an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitError {
    /// The error.
    pub error: DatError,
    /// Number of queued events; meaningful for DAT_TIMEOUT_EXPIRED and DAT_INTERRUPTED_CALL only.
    pub nmore: u32,
}

impl WaitError {
    /// Returns the error's type ([`DatError::return_type`]).
    #[must_use]
    pub const fn return_type(&self) -> ReturnType {
        self.error.return_type()
    }

    /// Returns the error's subtype ([`DatError::subtype`]).
    #[must_use]
    pub const fn subtype(&self) -> Subtype {
        self.error.subtype()
    }
}

impl From<DatError> for WaitError {
    fn from(error: DatError) -> Self {
        Self { error, nmore: 0 }
    }
}

/// Drops the number of events, for callers that return a [`DatResult`].
impl From<WaitError> for DatError {
    fn from(waited: WaitError) -> Self {
        waited.error
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

/// A wait that has begun ([`Ia::evd_wait_begin`]) and is not over. Pass it to [`Ia::evd_wait_check`] until the wait is
/// over, or to [`Ia::evd_wait_cancel`]. If it is dropped instead, the EVD keeps its waiter: no other call can wait on
/// it or dequeue from it.
#[must_use]
#[derive(Debug)]
pub struct EvdWait {
    evd: EvdHandle,
    deadline: Option<Nanos>,
    threshold: u32,
    /// Count of the EVD's notification events at the first check. Before the timeout, a later check ends the wait only
    /// if the count has changed. `None` before the first check, which looks at the number of queued events only.
    seen: Option<u64>,
}

/// Result of [`Ia::evd_wait_check`].
#[derive(Debug)]
pub enum EvdWaitStatus {
    /// The wait is over. Holds the oldest event, and the number of events left.
    Ready(Event, u32),
    /// The wait continues. Check again after an interrupt of the device, and at this time at the latest.
    Pending(EvdWait, Nanos),
}

/// Event that a wait finds without sleeping.
enum AtOnce {
    /// A completion of this endpoint, taken from the completion queue, and the number of events left.
    Completion(EpKey, Plain, u32),
    /// The oldest event in the EVD's queue, if it has one. It was not taken yet.
    Queued,
}

impl<P: Provider> Ia<P> {
    /// Waits until `threshold` events are queued, or, if the consumer controls notification, for a notification event.
    /// Then takes the oldest event. The number returned with the event is the number of events left.
    ///
    /// Page: dat_evd_wait.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE. DAT_INVALID_PARAMETER|ARG3: `threshold` is 0 or beyond the queue's length.
    /// DAT_INVALID_STATE: |EVD_WAITER another thread waits on it, |EVD_UNWAITABLE the EVD is unwaitable, or
    /// `threshold` is not 1 although a stream of the EVD is UNSIGNALLED or SOLICITED_WAIT. DAT_TIMEOUT_EXPIRED: fewer
    /// than `threshold` events came. DAT_ABORT: the device is dead, and fewer than `threshold` events are queued.
    #[inline(always)]
    pub fn evd_wait(
        &mut self,
        evd: EvdHandle,
        timeout: impl Into<Timeout>,
        threshold: u32,
    ) -> Result<(Event, u32), WaitError> {
        // Each arm makes the result in place: a result made by one function for all arms would be copied.
        match self.find_at_once(evd, threshold) {
            Some(AtOnce::Completion(key, done, left)) => {
                Ok((dto(EpHandle { key, ia: evd.ia }, done), left))
            }
            Some(AtOnce::Queued) => match self.queued_at_once(evd.key) {
                Some(there) => Ok(there),
                None => self.evd_wait_asleep(evd, timeout.into(), threshold),
            },
            None => self.evd_wait_asleep(evd, timeout.into(), threshold),
        }
    }

    #[inline(never)]
    fn evd_wait_asleep(
        &mut self,
        evd: EvdHandle,
        timeout: Timeout,
        threshold: u32,
    ) -> Result<(Event, u32), WaitError> {
        let mut wait = self.evd_wait_begin(evd, timeout, threshold)?;
        loop {
            match self.evd_wait_check(wait)? {
                EvdWaitStatus::Ready(event, nmore) => return Ok((event, nmore)),
                EvdWaitStatus::Pending(again, until) => {
                    wait = again;
                    if let Err(error) = self.provider.wait(until) {
                        self.device_died(&error);
                    }
                }
            }
        }
    }

    /// Takes an event that has already arrived, for a wait with threshold 1. Returns the event, and the number of
    /// events left. After `None` the caller must begin a wait: an event may still be queued. This call polls only the
    /// EVD. Once in many calls it returns `None` without polling, because the wait then also serves the rest of the IA.
    ///
    /// Page: dat_evd_wait.
    // Inlined for the same reason as `evd_dequeue`.
    #[doc(hidden)] // for the C facade
    #[inline(always)]
    pub fn evd_wait_at_once(&mut self, evd: EvdHandle, threshold: u32) -> Option<(Event, u32)> {
        match self.find_at_once(evd, threshold)? {
            AtOnce::Completion(key, done, left) => {
                Some((dto(EpHandle { key, ia: evd.ia }, done), left))
            }
            AtOnce::Queued => self.queued_at_once(evd.key),
        }
    }

    /// Finds the event of [`Ia::evd_wait_at_once`], and takes it if it is a completion.
    #[inline(always)]
    fn find_at_once(&mut self, evd: EvdHandle, threshold: u32) -> Option<AtOnce> {
        if threshold != 1 {
            return None;
        }
        let queue = self.evds.named_mut(evd.key, evd.ia)?;
        if queue.mode.next(EvdInput::Wait).is_err() || !queue.count_idle_poll() {
            return None;
        }
        if !queue.is_clear() {
            return Some(AtOnce::Queued);
        }
        let cq = queue.cq.as_mut()?;
        let (key, _, done) = plain(&mut self.eps, &cq.peek()?)?;
        cq.advance(&mut queue.obstacles);
        let left = match cq.peek() {
            None => 0,
            Some(_) => self.count_left(evd.key),
        };
        Some(AtOnce::Completion(key, done, left))
    }

    #[inline(never)]
    fn queued_at_once(&mut self, evd: EvdKey) -> Option<(Event, u32)> {
        let event = self.pop(evd)?;
        Some((event, self.count_left(evd)))
    }

    /// Returns the number of events of an EVD, including those whose entries are still in the completion queue.
    #[inline(never)]
    fn count_left(&mut self, evd: EvdKey) -> u32 {
        let cq = self.evds[evd].cq.as_ref();
        if cq.is_some_and(|cq| cq.peek().is_some()) {
            self.drain_with_feeders(evd);
        }
        self.count(evd)
    }

    /// Begins a wait that [`Ia::evd_wait_check`] continues, for programs that sleep by other means.
    ///
    /// Page: dat_evd_wait.
    ///
    /// # Errors
    /// The errors of [`Ia::evd_wait`], except DAT_TIMEOUT_EXPIRED and DAT_ABORT.
    pub fn evd_wait_begin(
        &mut self,
        evd: EvdHandle,
        timeout: impl Into<Timeout>,
        threshold: u32,
    ) -> DatResult<EvdWait> {
        let queue = self.evd_mut(evd)?;
        if threshold == 0 || threshold > queue.qlen {
            let refused = DatError::parameter(Subtype::Arg3, "threshold");
            return Err(if threshold == 0 {
                refused.because("a threshold of 0: 1 is the least")
            } else {
                refused
                    .because("the queue holds fewer events than the threshold")
                    .over(threshold.into(), queue.qlen.into())
            });
        }
        if threshold != 1 && queue.streams.consumer_controlled() {
            // An error that refuses a wait with any threshold has precedence.
            queue.mode.next(EvdInput::Wait).map_err(DatError::state)?;
            return Err(
                DatError::state(queue_config(queue.streams.solicited_only()))
                    .because("with UNSIGNALLED or SOLICITED_WAIT streams the threshold is 1"),
            );
        }
        let _nobody = queue.step(EvdInput::Wait).map_err(DatError::state)?;
        let deadline = timeout
            .into()
            .nanos()
            .map(|nanos| self.provider.now().saturating_add(nanos));
        Ok(EvdWait {
            evd,
            deadline,
            threshold,
            seen: None,
        })
    }

    /// Checks whether a wait is over. If it is not, everything that can end it is armed on return.
    ///
    /// Page: dat_evd_wait.
    ///
    /// # Errors
    /// The errors of [`Ia::evd_wait`]; the wait is over after an error.
    pub fn evd_wait_check(&mut self, mut wait: EvdWait) -> Result<EvdWaitStatus, WaitError> {
        let key = wait.evd.key;
        if wait.seen.is_some() && self.evd(wait.evd).is_ok() {
            // The latency of the wake-up is measured before any poll consumes its completion.
            self.woke();
            self.evds[key].wakeups += 1;
            self.time_wakeup(key);
        }
        // The handle is still valid, because an EVD with a waiter cannot be freed.
        if self.evd(wait.evd)?.mode.waiter == Waiter::Evicted {
            self.wait_over(key);
            return Err(DatError::state(Subtype::StateEvdUnwaitable)
                .because("the EVD was made unwaitable")
                .into());
        }
        self.progress();
        self.evds[key].restart_idle_polls();
        let seen = match wait.seen {
            Some(seen) => seen,
            None => {
                self.drain_with_feeders(key);
                if self.count(key) >= wait.threshold {
                    return self.take(key);
                }
                let seen = self.evds[key].notifications;
                wait.seen = Some(seen);
                self.progress();
                seen
            }
        };
        let quiet = self.arm_for(key);
        // Between arming and sleeping only completion queues may be polled, not the device's event queue: consuming an
        // event here would leave the completion queue unarmed while the caller sleeps.
        self.drain_with_feeders(key);
        let count = self.count(key);
        if count >= wait.threshold && self.evds[key].notifications != seen {
            return self.take(key);
        }
        let now = self.provider.now();
        let expired = wait.deadline.is_some_and(|deadline| now >= deadline);
        if !expired && !self.health.is_dead() {
            let until = self.sleep_deadline(now, quiet, wait.deadline);
            return Ok(EvdWaitStatus::Pending(wait, until));
        }
        if count >= wait.threshold {
            return self.take(key);
        }
        self.wait_over(key);
        let error = if expired {
            DatError::new(ReturnType::TimeoutExpired, Subtype::None)
        } else {
            DatError::new(ReturnType::Abort, Subtype::None).because("the device is dead")
        };
        Err(WaitError {
            error,
            nmore: count,
        })
    }

    /// Ends a wait whose caller was interrupted. Returns the error that `evd_wait` should return, DAT_INTERRUPTED_CALL
    /// with the number of events queued.
    ///
    /// Page: dat_evd_wait.
    pub fn evd_wait_cancel(&mut self, wait: EvdWait) -> WaitError {
        if let Err(error) = self.evd(wait.evd) {
            return error.into();
        }
        self.wait_over(wait.evd.key);
        WaitError {
            error: DatError::new(ReturnType::InterruptedCall, Subtype::None),
            nmore: self.count(wait.evd.key),
        }
    }

    fn wait_over(&mut self, key: EvdKey) {
        // The mode refuses this input if no waiter is blocked any more. Then the wait has ended already.
        let _wakes = self.evds[key].step(EvdInput::WaitOver);
    }

    /// Returns the time until which to sleep. `quiet` is false if a watched queue could not be emptied and armed. Such
    /// a queue raises no interrupt, so the sleep lasts at most 1 ms.
    pub(in crate::ia) fn sleep_deadline(
        &self,
        now: Nanos,
        quiet: bool,
        deadline: Option<Nanos>,
    ) -> Nanos {
        if self.more_datagrams {
            return now;
        }
        let sleep = if quiet { MAX_SLEEP } else { MAX_SLEEP / 1000 };
        let until = now.saturating_add(sleep);
        let until = deadline.map_or(until, |deadline| until.min(deadline));
        let timers = [
            self.adapter.lock().cm.next_timeout(),
            self.provider.next_timeout(),
            self.keep_alives.next(),
        ];
        timers
            .into_iter()
            .flatten()
            .fold(until, |until, timer| until.min(timer.max(now)))
    }

    /// Drains this EVD. If it takes connection events, also drains some of the feeders: EVDs whose errors cause such
    /// events.
    pub(in crate::ia) fn drain_with_feeders(&mut self, key: EvdKey) {
        // If the consumer controls notification, the drain is unbounded: a notification event may follow many events
        // that do not notify.
        let streams = &self.evds[key].streams;
        let (bounded, connections) = (!streams.consumer_controlled(), streams.connections());
        self.drain_evd(key, bounded);
        if connections != 0 {
            self.poll_feeders();
        }
        self.apply_effects();
    }

    /// Arms every completion queue that can end the wait. Returns false if a watched queue still has entries for which
    /// its EVD has no room. Such a queue is not armed, because it would interrupt at once.
    pub(in crate::ia) fn arm_for(&mut self, key: EvdKey) -> bool {
        let quiet = self.arm_watched(key);
        self.arm_own(key);
        quiet
    }

    /// Arms the completion queue of an EVD. A caller that waits for several EVDs arms these queues last, because the
    /// last arming counts: a queue that is also a feeder may have been armed for errors only, which is less than the
    /// waiter needs.
    pub(in crate::ia) fn arm_own(&mut self, key: EvdKey) {
        let evd = &mut self.evds[key];
        let solicited_only = evd.streams.solicited_only();
        if let Some(cq) = &mut evd.cq {
            cq.arm(solicited_only);
        }
    }

    /// Arms the completion queues of the watched EVDs. Returns false under the same condition as [`Ia::arm_for`].
    pub(in crate::ia) fn arm_watched(&mut self, key: EvdKey) -> bool {
        let connections = self.evds[key].streams.connections();
        // EVDs of pending drains were armed when they were last polled.
        let quiet = self.draining.all_armed_but(key);
        if connections == 0 {
            return quiet;
        }
        self.arm_feeders();
        quiet && self.feeding.all_armed_but(key)
    }

    fn count(&self, key: EvdKey) -> u32 {
        self.evds[key].len()
    }

    fn take(&mut self, key: EvdKey) -> Result<EvdWaitStatus, WaitError> {
        self.wait_over(key);
        match self.pop(key) {
            Some(event) => Ok(EvdWaitStatus::Ready(event, self.count(key))),
            // This cannot happen, because the count was above zero.
            None => Err(DatError::new(ReturnType::InternalError, Subtype::None).into()),
        }
    }
}

const fn queue_config(solicited: bool) -> Subtype {
    if solicited {
        Subtype::StateEvdConfigSolicited
    } else {
        Subtype::StateEvdConfigNotify
    }
}
