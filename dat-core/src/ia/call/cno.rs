//! Consumer notification objects: one object to wait on for many EVDs (`dat_cno_create`, `_wait`, `_query`,
//! `_modify_agent`, `_free`).
//!
//! Module [`crate::object::cno`] documents which events trigger a CNO.
//!
//! The library has no thread of its own, so an event is noticed only when a call polls: `cno_wait`, or
//! [`Ia::progress`], which runs in most waits and in some of the dequeues. A completion that was dequeued before such a
//! poll triggers nothing. Polling consumes completions of the device's queues. Therefore a CNO that is triggered
//! already is not polled.
//!
//! An agent passes a trigger on to another thread or another wait: DAT's *OS wait proxy*. The call that noticed the
//! trigger calls the agent, at most once per trigger. An agent may write to an eventfd, for example. While an agent
//! is set, the completion queues of the attached EVDs are kept armed, so that an interrupt of the device shows when to
//! call [`Ia::progress`].
//!
//! Deliberately absent: freeing an EVD does not revoke a trigger, because the same poll may have noticed events of
//! other EVDs too. Freeing the last EVD of a CNO revokes the trigger, and releases all waiters without an EVD.

use crate::error::{DatError, DatResult, ReturnType, Subtype};
use crate::handle::{CnoHandle, CnoKey, EvdHandle, EvdKey};
use crate::ia::instance::Ia;
use crate::ia::watched_evds::MAX_PER_CALL;
use crate::object::cno::{Agent, Cno};
use crate::provider::{CompletionQueue, Nanos, Provider};
use crate::types::Timeout;

/// Result of `cno_query` (`DAT_CNO_PARAM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CnoParam {
    /// True if an agent is set and has not been called yet.
    pub has_agent: bool,
}

/// A wait that has begun ([`Ia::cno_wait_begin`]) and is not over. Pass it to [`Ia::cno_wait_check`] until the wait is
/// over, or to [`Ia::cno_wait_cancel`]. If it is dropped instead, the CNO keeps a waiter and cannot be freed.
#[must_use]
#[derive(Debug)]
pub struct CnoWait {
    cno: CnoHandle,
    deadline: Option<Nanos>,
    /// Value of the CNO's count of releases when the wait began.
    released: u64,
    /// True if the wait was checked before, so that its caller may have slept.
    slept: bool,
}

/// Result of [`Ia::cno_wait_check`].
#[derive(Debug)]
pub enum CnoWaitStatus {
    /// The wait is over. Holds the EVD that triggered the CNO, or another of its EVDs if that one was freed. `None` if
    /// that EVD was freed and the CNO has no other.
    Woken(Option<EvdHandle>),
    /// The wait continues. Check again after an interrupt of the device, and at this time at the latest.
    Pending(CnoWait, Nanos),
}

impl<P: Provider> Ia<P> {
    /// Creates a notification object without EVDs, with or without an agent.
    ///
    /// Page: dat_cno_create.
    ///
    /// # Errors
    /// DAT_INTERNAL_ERROR: the device is dead.
    pub fn cno_create(&mut self, agent: Option<Agent>) -> DatResult<CnoHandle> {
        self.alive()?;
        let key = self.cnos.insert(Cno::new(agent));
        self.cno_keys.push(key);
        Ok(CnoHandle { key, ia: self.id })
    }

    /// Replaces or removes the agent of a CNO. The agent is called at the next trigger, not for an earlier one.
    ///
    /// Page: dat_cno_modify_agent.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|CNO.
    pub fn cno_modify_agent(&mut self, cno: CnoHandle, agent: Option<Agent>) -> DatResult<()> {
        let key = self.cno_key(cno)?;
        self.cnos[key].set_agent(agent);
        self.poll_cno(key);
        Ok(())
    }

    /// Returns the parameters of a CNO.
    ///
    /// Page: dat_cno_query.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|CNO.
    pub fn cno_query(&self, cno: CnoHandle) -> DatResult<CnoParam> {
        let key = self.cno_key(cno)?;
        Ok(CnoParam {
            has_agent: self.cnos[key].has_agent(),
        })
    }

    /// Waits until an attached EVD notifies, and returns that EVD, or another EVD of the CNO if that one was freed
    /// meanwhile. Other EVDs may have events too. Returns `None` if that EVD was freed and the CNO has no other.
    ///
    /// Page: dat_cno_wait.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|CNO. DAT_QUEUE_EMPTY: no EVD notified in time. DAT_ABORT: the device is dead.
    pub fn cno_wait(
        &mut self,
        cno: CnoHandle,
        timeout: impl Into<Timeout>,
    ) -> DatResult<Option<EvdHandle>> {
        let mut wait = self.cno_wait_begin(cno, timeout)?;
        loop {
            match self.cno_wait_check(wait)? {
                CnoWaitStatus::Woken(evd) => return Ok(evd),
                CnoWaitStatus::Pending(again, until) => {
                    wait = again;
                    if let Err(error) = self.provider.wait(until) {
                        self.device_died(&error);
                    }
                }
            }
        }
    }

    /// Begins a wait that [`Ia::cno_wait_check`] continues, for programs that sleep by other means.
    ///
    /// Page: dat_cno_wait.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|CNO.
    pub fn cno_wait_begin(
        &mut self,
        cno: CnoHandle,
        timeout: impl Into<Timeout>,
    ) -> DatResult<CnoWait> {
        let key = self.cno_key(cno)?;
        let released = self.cnos[key].wait_begins();
        let deadline = timeout
            .into()
            .nanos()
            .map(|nanos| self.provider.now().saturating_add(nanos));
        Ok(CnoWait {
            cno,
            deadline,
            released,
            slept: false,
        })
    }

    /// Checks whether a wait is over. If it is not, everything that can end it is armed on return.
    ///
    /// Page: dat_cno_wait.
    ///
    /// # Errors
    /// The errors of [`Ia::cno_wait`]; the wait is over after an error.
    pub fn cno_wait_check(&mut self, mut wait: CnoWait) -> DatResult<CnoWaitStatus> {
        // The handle is still valid, because a CNO with a waiter cannot be freed.
        let key = self.cno_key(wait.cno)?;
        let slept = core::mem::replace(&mut wait.slept, true);
        if slept {
            self.woke();
            // The latency of the wake-up is measured before any poll consumes its completion.
            self.time_wakeup_of_cno(key);
        }
        self.progress();
        let mut quiet = true;
        if !self.over(key, &wait) {
            self.poll_cno_evds(key, usize::MAX);
        }
        if !self.over(key, &wait) {
            // EVDs of pending drains were armed when they were last polled.
            self.arm_feeders();
            self.apply_effects();
            self.arm_evds_of(key);
            let own = self.cnos[key].unarmed.len();
            quiet = own + self.draining.unarmed() + self.feeding.unarmed() == 0;
        }
        if let Some(evd) = self.cnos[key].end_wait(wait.released) {
            // The wait names another EVD of the CNO in place of an EVD that was freed meanwhile.
            let evd = evd.and_then(|evd| match self.evds.get(evd) {
                Some(_) => Some(evd),
                None => self.cnos[key].evds().next(),
            });
            if slept && let Some(evd) = evd.and_then(|evd| self.evds.get_mut(evd)) {
                evd.wakeups += 1;
            }
            return Ok(CnoWaitStatus::Woken(evd.map(|evd| self.evd_handle(evd))));
        }
        let now = self.provider.now();
        if self.health.is_dead() || wait.deadline.is_some_and(|deadline| now >= deadline) {
            self.cnos[key].wait_over();
            return Err(if self.health.is_dead() {
                DatError::new(ReturnType::Abort, Subtype::None).because("the device is dead")
            } else {
                DatError::new(ReturnType::QueueEmpty, Subtype::None)
            });
        }
        let until = self.sleep_deadline(now, quiet, wait.deadline);
        Ok(CnoWaitStatus::Pending(wait, until))
    }

    /// Ends a wait whose caller was interrupted. Returns DAT_INTERRUPTED_CALL, the error that `cno_wait` should return.
    ///
    /// Page: dat_cno_wait.
    pub fn cno_wait_cancel(&mut self, wait: CnoWait) -> DatError {
        if let Ok(key) = self.cno_key(wait.cno) {
            self.cnos[key].wait_over();
        }
        DatError::new(ReturnType::InterruptedCall, Subtype::None)
    }

    /// Frees a CNO. Its agent is not called.
    ///
    /// Page: dat_cno_free.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|CNO. DAT_INVALID_STATE|CNO_IN_USE: an EVD refers to it, or a thread waits on it.
    pub fn cno_free(&mut self, cno: CnoHandle) -> DatResult<()> {
        let key = self.cno_key(cno)?;
        if self.cnos[key].is_in_use() {
            return Err(DatError::state(Subtype::StateCnoInUse)
                .because("an EVD refers to it or a thread waits on it"));
        }
        self.cnos.remove(key);
        self.cno_keys.retain(|other| *other != key);
        self.forget_context(cno);
        Ok(())
    }

    /// Removes a CNO even if EVDs refer to it. Releases its waiters and calls its agent.
    pub(in crate::ia) fn remove_cno(&mut self, key: CnoKey) {
        let Some(mut cno) = self.cnos.remove(key) else {
            return;
        };
        self.cno_keys.retain(|other| *other != key);
        self.forget_context(CnoHandle { key, ia: self.id });
        for evd in cno.evds() {
            if let Some(evd) = self.evds.get_mut(evd) {
                evd.cno = None;
            }
        }
        cno.release_waiters();
    }

    /// Triggers a CNO because a notification event was queued on one of its EVDs.
    pub(in crate::ia) fn trigger(&mut self, cno: CnoKey, evd: EvdKey) {
        let hint = self.evd_handle(evd);
        if let Some(cno) = self.cnos.get_mut(cno) {
            cno.trigger(evd, hint);
        }
    }

    /// Attaches an EVD to a CNO.
    pub(in crate::ia) fn attach_to_cno(&mut self, cno: CnoKey, evd: EvdKey) {
        self.cnos[cno].attach(evd);
        self.watch(evd);
        self.mark_unarmed(evd);
        self.poll_cno(cno);
    }

    /// Detaches an EVD from a CNO. `gone` is true if the EVD was freed.
    pub(in crate::ia) fn detach_from_cno(&mut self, cno: CnoKey, evd: EvdKey, gone: bool) {
        if let Some(cno) = self.cnos.get_mut(cno) {
            cno.detach(evd, gone);
        }
    }

    /// Polls the EVDs of all CNOs.
    pub(in crate::ia) fn poll_cnos(&mut self) {
        for at in 0..self.cno_keys.len() {
            self.poll_cno(self.cno_keys[at]);
        }
    }

    /// Polls the EVDs of a CNO that is not triggered. With an agent, polls all of them and keeps them armed. Without an
    /// agent, polls a bounded number.
    fn poll_cno(&mut self, key: CnoKey) {
        if self.cnos[key].is_triggered() {
            return;
        }
        let has_agent = self.cnos[key].has_agent();
        self.poll_cno_evds(key, if has_agent { usize::MAX } else { MAX_PER_CALL });
        if has_agent && !self.cnos[key].is_triggered() {
            self.arm_evds_of(key);
        }
    }

    /// Polls at most `most` EVDs of a CNO, until the CNO triggers.
    fn poll_cno_evds(&mut self, key: CnoKey, most: usize) {
        if self.cnos[key].evds().next().is_none() {
            return;
        }
        // Some of the EVDs may receive connection events, which errors on feeders cause.
        self.poll_feeders();
        self.apply_effects();
        for _ in 0..self
            .cnos
            .get(key)
            .map_or(0, |cno| cno.unarmed.len().min(most))
        {
            let Some(cno) = self.cnos.get_mut(key).filter(|cno| !cno.is_triggered()) else {
                return;
            };
            if let Some(evd) = cno.unarmed.next()
                && self.evds[evd].mode.enabled
            {
                self.drain_with_feeders(evd);
            }
        }
    }

    /// Arms the completion queues of the CNO's unarmed EVDs, which have just been polled. An entry that arrived after
    /// the poll raises an interrupt too. A disabled EVD is not armed; enabling it marks it as unarmed.
    fn arm_evds_of(&mut self, key: CnoKey) {
        let unarmed: Vec<EvdKey> = self.cnos[key].unarmed.iter().collect();
        for evd in unarmed {
            let enabled = self.evds[evd].mode.enabled;
            let cq = self.evds[evd].cq.as_ref();
            if enabled && cq.is_some_and(|cq| cq.peek().is_some()) {
                // The EVD's software queue is full, so entries stay in the completion queue. They would interrupt again
                // and again.
                continue;
            }
            if enabled {
                self.arm_own(evd);
            }
            self.cnos[key].unarmed.remove(evd);
        }
    }

    fn time_wakeup_of_cno(&mut self, key: CnoKey) {
        if self.observed {
            let evds: Vec<EvdKey> = self.cnos[key].evds().collect();
            evds.into_iter().for_each(|evd| self.time_wakeup(evd));
        }
    }

    fn over(&self, key: CnoKey, wait: &CnoWait) -> bool {
        self.cnos[key].ends_wait(wait.released) || self.health.is_dead()
    }
}
