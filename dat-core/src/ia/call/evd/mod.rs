//! Event dispatchers: `dat_evd_create`, `_query`, `_free`, `_resize`, `_post_se`, `_modify_cno`, and the waitable and
//! enabled bits. Module `wait` dequeues events, module `waiter` waits for them.

pub(crate) mod wait;
pub(crate) mod waiter;
mod watched;

use crate::attributes::HIDDEN;
use crate::cm::RejectReason;
use crate::error::{DatError, DatResult, ReturnType, Subtype};
use crate::event::{AsyncEvent, Event, SoftwareEvent};
use crate::handle::{CnoHandle, EvdHandle, EvdKey, index_of};
use crate::ia::instance::Ia;
use crate::object::evd::mode::{EvdInput, Wakes};
use crate::object::evd::queue::{Evd, Overflow};
use crate::provider::{CompletionQueue, Provider};
use crate::types::{EvdFlags, EvdState};

/// The parameters of an EVD (`DAT_EVD_PARAM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvdParam {
    /// Maximum number of events that the EVD can hold.
    pub qlen: u32,
    /// State: enabled or not, waitable or not, and how waiters are released.
    pub state: EvdState,
    /// Event streams that the EVD may carry.
    pub flags: EvdFlags,
    /// The CNO that its notification events trigger.
    pub cno: Option<CnoHandle>,
}

impl<P: Provider> Ia<P> {
    /// Creates an event dispatcher that can hold at least `min_qlen` events of the streams in `flags`.
    ///
    /// Page: dat_evd_create.
    ///
    /// # Errors
    /// DAT_INVALID_PARAMETER|ARG2: `min_qlen` is 0. |ARG4: no or unknown flags.
    /// DAT_INSUFFICIENT_RESOURCES|TEVD: more than `max_evd_qlen`, or the device has no more.
    pub fn evd_create(&mut self, min_qlen: u32, flags: EvdFlags) -> DatResult<EvdHandle> {
        self.evd_create_with_cno(min_qlen, None, flags)
    }

    /// Creates an event dispatcher whose notification events trigger a CNO.
    ///
    /// Page: dat_evd_create.
    ///
    /// # Errors
    /// The errors of [`Ia::evd_create`]. DAT_INVALID_HANDLE|CNO.
    pub fn evd_create_with_cno(
        &mut self,
        min_qlen: u32,
        cno: Option<CnoHandle>,
        flags: EvdFlags,
    ) -> DatResult<EvdHandle> {
        self.alive()?;
        if min_qlen == 0 {
            return Err(DatError::parameter(Subtype::Arg2, "min_qlen")
                .because("an EVD holds at least one event"));
        }
        if flags.is_empty() || !EvdFlags::all().contains(flags) {
            return Err(DatError::parameter(Subtype::Arg4, "flags")
                .because("evd_flags: none, or unknown ones"));
        }
        if min_qlen > self.attr.max_evd_qlen {
            return Err(DatError::resources(Subtype::ResourceTevd)
                .because("evd_min_qlen is beyond max_evd_qlen")
                .over(min_qlen.into(), self.attr.max_evd_qlen.into()));
        }
        let cno = cno.map(|cno| self.cno_key(cno)).transpose()?;
        let mut evd = Evd::new(None, min_qlen, flags);
        evd.set_recorded(self.recorder.is_some());
        let key = self.evds.insert(evd);
        if flags.intersects(EvdFlags::DTO | EvdFlags::RMR_BIND) {
            self.overran.remove(&index_of(key));
            match self
                .provider
                .create_cq(min_qlen.saturating_add(HIDDEN), index_of(key))
            {
                Ok(cq) => {
                    let qlen = cq.capacity().saturating_sub(HIDDEN).max(min_qlen);
                    let evd = &mut self.evds[key];
                    evd.cq = Some(cq);
                    evd.set_qlen(qlen);
                }
                Err(error) => {
                    self.evds.remove(key);
                    return Err(self.device_refused("evd_create", error, Subtype::ResourceTevd));
                }
            }
        }
        if let Some(cno) = cno {
            self.evds[key].cno = Some(cno);
            self.attach_to_cno(cno, key);
        }
        Ok(self.evd_handle(key))
    }

    /// Returns the parameters of an EVD.
    ///
    /// Page: dat_evd_query.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE.
    pub fn evd_query(&self, evd: EvdHandle) -> DatResult<EvdParam> {
        let evd = self.evd(evd)?;
        Ok(EvdParam {
            qlen: evd.qlen,
            state: evd.streams.config() | evd.mode.state(),
            flags: evd.flags,
            cno: evd.cno.map(|key| CnoHandle { key, ia: self.id }),
        })
    }

    /// Frees an EVD. Events in it are lost; connection requests among them are rejected.
    ///
    /// Page: dat_evd_free.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE. DAT_INVALID_STATE|EVD_IN_USE: an endpoint, a service point or the IA still uses it.
    /// |EVD_WAITER: a thread waits on it. DAT_INTERNAL_ERROR: the device refused, and nothing has changed.
    pub fn evd_free(&mut self, evd: EvdHandle) -> DatResult<()> {
        let target = self.evd(evd)?;
        target.mode.next(EvdInput::Free).map_err(DatError::state)?;
        if target.streams.any() {
            return Err(DatError::state(Subtype::StateEvdInUse)
                .because("an endpoint, a service point or the IA feeds it"));
        }
        // Draining returns the SRQ slots that completions in this EVD hold. Completions of freed endpoints are gone
        // already.
        self.drain_evd(evd.key, false);
        let removed = self.remove_evd(evd.key);
        self.apply_effects();
        removed
    }

    /// Frees an EVD. If the device refuses, the EVD is unchanged.
    pub(in crate::ia) fn remove_evd(&mut self, key: EvdKey) -> DatResult<()> {
        if let Some(cq) = self.evds.get_mut(key).and_then(|evd| evd.cq.as_mut())
            && let Err(error) = self.provider.destroy_cq(cq)
        {
            return Err(self.not_ended("destroying a completion queue", &error));
        }
        let Some(evd) = self.evds.remove(key) else {
            return Ok(());
        };
        let completions = evd.stats().completions;
        self.ended_completions = self.ended_completions.saturating_add(completions);
        self.async_evds.retain(|bound| *bound != key);
        if let Some(cno) = evd.cno {
            self.detach_from_cno(cno, key, true);
        }
        self.forget_context(self.evd_handle(key));
        for (event, srq) in evd.into_events() {
            self.slot_returned(srq);
            if let Event::ConnectionRequest(request) = event {
                self.refuse_request(request.cr.key, RejectReason::NoResources);
            }
        }
        Ok(())
    }

    /// Queues a software event, made by the program itself.
    ///
    /// Page: dat_evd_post_se.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE. DAT_INVALID_PARAMETER|ARG1: the EVD was made without the SOFTWARE flag.
    /// DAT_QUEUE_FULL: it holds `qlen` events that are not completions; nothing was queued, and no other event results.
    pub fn evd_post_se(&mut self, evd: EvdHandle, event: SoftwareEvent) -> DatResult<()> {
        let key = evd.key;
        let evd = self.evd_mut(evd)?;
        if !evd.flags.contains(EvdFlags::SOFTWARE) {
            return Err(DatError::parameter(Subtype::Arg1, "evd")
                .because("the EVD was made without DAT_EVD_SOFTWARE_FLAG"));
        }
        evd.push(Event::Software(event))
            .map_err(|Overflow| DatError::new(ReturnType::QueueFull, Subtype::None))?;
        self.notified(key);
        Ok(())
    }

    /// Changes the length of an EVD to at least `min_qlen` events. No event is lost, whether it is queued already or
    /// arrives meanwhile. A shorter length is granted as far as the device can shorten its queue.
    ///
    /// Page: dat_evd_resize.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE. DAT_INVALID_PARAMETER|ARG2: `min_qlen` is 0. DAT_INSUFFICIENT_RESOURCES|TEVD: more than
    /// `max_evd_qlen`, or the device has no more. DAT_INVALID_STATE: more than `min_qlen` events are queued;
    /// |EVD_WAITER a thread waits on it. On an error nothing has changed.
    pub fn evd_resize(&mut self, evd: EvdHandle, min_qlen: u32) -> DatResult<()> {
        let key = evd.key;
        let target = self.evd(evd)?;
        if min_qlen == 0 {
            return Err(DatError::parameter(Subtype::Arg2, "min_qlen")
                .because("an EVD holds at least one event"));
        }
        target
            .mode
            .next(EvdInput::Resize)
            .map_err(DatError::state)?;
        self.alive()?;
        if min_qlen > self.attr.max_evd_qlen {
            return Err(DatError::resources(Subtype::ResourceTevd)
                .because("evd_min_qlen is beyond max_evd_qlen")
                .over(min_qlen.into(), self.attr.max_evd_qlen.into()));
        }
        // The drain comes first, so that `len` counts the entries that have arrived, and the device has fewer entries
        // to move.
        self.drain_evd(key, false);
        self.apply_effects();
        let target = &mut self.evds[key];
        if target.len() > min_qlen {
            return Err(DatError::state(Subtype::None).because("more events are queued than that"));
        }
        let mut qlen = min_qlen;
        if let Some(cq) = &mut target.cq {
            let before = cq.capacity();
            let hidden = HIDDEN.saturating_add(self.keep_alives.entries(key));
            let entries = min_qlen.saturating_add(hidden);
            match self.provider.resize_cq(cq, entries) {
                Ok(()) => {}
                // DAT allows a queue longer than requested.
                Err(error) if entries <= before => {
                    tracing::debug!(%error, "a completion queue stays as long as it is");
                }
                Err(error) => {
                    return Err(self.device_refused("evd_resize", error, Subtype::ResourceTevd));
                }
            }
            qlen = cq.capacity().saturating_sub(hidden).max(min_qlen);
        }
        target.set_qlen(qlen);
        self.mark_unarmed(key);
        Ok(())
    }

    /// Attaches an EVD to another CNO, or to none. Events that have arrived before trigger the old CNO only.
    ///
    /// Page: dat_evd_modify_cno.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE: the EVD; |CNO.
    pub fn evd_modify_cno(&mut self, evd: EvdHandle, cno: Option<CnoHandle>) -> DatResult<()> {
        self.evd(evd)?;
        let cno = cno.map(|cno| self.cno_key(cno)).transpose()?;
        self.drain_with_feeders(evd.key);
        let target = &mut self.evds[evd.key];
        let old = core::mem::replace(&mut target.cno, cno);
        if old == cno {
            return Ok(());
        }
        if let Some(old) = old {
            self.detach_from_cno(old, evd.key, false);
        }
        if let Some(cno) = cno {
            self.attach_to_cno(cno, evd.key);
        }
        Ok(())
    }

    /// Lets new notification events trigger the CNO. Events that are queued already do not trigger it.
    ///
    /// Page: dat_evd_enable.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE.
    pub fn evd_enable(&mut self, evd: EvdHandle) -> DatResult<()> {
        self.apply_input(evd, EvdInput::Enable)?;
        if self.evds[evd.key].cno.is_some() {
            self.mark_unarmed(evd.key);
            self.poll_cnos();
        }
        Ok(())
    }

    /// Stops new events from triggering the CNO.
    ///
    /// Page: dat_evd_disable.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE.
    pub fn evd_disable(&mut self, evd: EvdHandle) -> DatResult<()> {
        self.apply_input(evd, EvdInput::Disable)
    }

    /// Applies an input to the EVD's mode. The new mode must affect later events only, so events that have arrived are
    /// queued first.
    fn apply_input(&mut self, evd: EvdHandle, input: EvdInput) -> DatResult<()> {
        self.evd(evd)?;
        self.drain_with_feeders(evd.key);
        let evd = &mut self.evds[evd.key];
        // A waiter that this input evicts ends its wait at its next check.
        let _wakes = evd.step(input).map_err(DatError::state)?;
        Ok(())
    }

    /// Triggers the CNO after a notification event was queued. A waiter on the EVD itself polls, so it is not notified
    /// here.
    pub(in crate::ia) fn notified(&mut self, key: EvdKey) {
        if let Some(evd) = self.evds.get(key)
            && let Some(cno) = evd.cno
            && let Ok((_, Wakes::Cno)) = evd.mode.next(EvdInput::Notify)
        {
            self.trigger(cno, key);
        }
    }

    /// Makes `evd_wait` on this EVD fail. A wait that is in progress ends with DAT_INVALID_STATE.
    ///
    /// Page: dat_evd_set_unwaitable.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE.
    pub fn evd_set_unwaitable(&mut self, evd: EvdHandle) -> DatResult<()> {
        self.apply_input(evd, EvdInput::SetUnwaitable)
    }

    /// Allows `evd_wait` on this EVD again.
    ///
    /// Page: dat_evd_clear_unwaitable.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE.
    pub fn evd_clear_unwaitable(&mut self, evd: EvdHandle) -> DatResult<()> {
        self.apply_input(evd, EvdInput::ClearUnwaitable)
    }

    /// Queues an event of the provider. If the EVD is null, the event is dropped. If the EVD is full, the event is
    /// lost. An asynchronous event reports the loss, unless the EVD itself receives asynchronous events.
    pub(in crate::ia) fn push_event(&mut self, evd: Option<EvdKey>, event: Event) {
        let Some(key) = evd else { return };
        let Some(target) = self.evds.get_mut(key) else {
            return;
        };
        if target.push(event).is_err() {
            tracing::error!(evd = ?self.evd_handle(key), ?event, "event lost: the EVD is full");
            if !self.is_async(key) {
                self.push_async(AsyncEvent::EvdOverflow(self.evd_handle(key)));
            }
            return;
        }
        self.notified(key);
    }
}
