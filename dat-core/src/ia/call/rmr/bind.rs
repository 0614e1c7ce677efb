//! `dat_rmr_bind`: posts a request that changes the memory which an RMR names.
//!
//! Binds of an endpoint complete in the order in which they were posted, and the provider reports every one of them. So
//! the endpoint keeps its outstanding binds in a queue ([`PendingBind`]). The completion of a bind belongs to the first
//! bind in the queue. The provider does not apply SUPPRESS to binds; this module does.

use crate::error::{DatError, DatResult, ReturnType, Subtype};
use crate::event::{Event, RmrBindCompletion};
use crate::handle::{EpHandle, EpKey, EvdKey, LmrKey, RmrHandle, RmrKey};
use crate::ia::effect::Effect;
use crate::ia::instance::Ia;
use crate::object::ep::state::EpState;
use crate::object::ep::untimely::EpCall;
use crate::object::lmr::segment::LmrTriplet;
use crate::object::recorder::Posted;
use crate::object::rmr::{Bound, PendingBind};
use crate::provider::{Completion, Provider, QueueFull, QueuePair, RequestFlags, WindowTarget};
use crate::refusal::Refusal;
use crate::types::{CompletionFlags, DtoStatus, EvdFlags, MemPrivFlags, OF_BINDS, RmrCookie};

impl<P: Provider> Ia<P> {
    /// Binds an RMR to the part of an LMR that the triplet names. A triplet of zero bytes unbinds the RMR. Returns the
    /// new context for peers. Once the bind has completed, the new context is valid, and the old one is not. The new
    /// context may be sent to the peer at once on the same endpoint, because the Send stays behind the bind.
    ///
    /// Page: dat_rmr_bind.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE: |RMR, |EP, |EVD_REQUEST the endpoint has no request EVD with the RMR_BIND flag.
    /// DAT_INVALID_STATE: the endpoint is neither CONNECTED nor DISCONNECTED; |EP_NOTREADY it has no PZ.
    /// DAT_INVALID_PARAMETER: |ARG3 unknown privileges, |ARG6 flags unknown or not allowed by the endpoint, |ARG2 no
    /// LMR has the context, the range reaches outside of the LMR or is longer than a window can be.
    /// DAT_PROTECTION_VIOLATION: RMR, LMR and endpoint are not all in one PZ. DAT_PRIVILEGES_VIOLATION: the LMR lacks
    /// local read for remote read, or local write for remote write. DAT_INSUFFICIENT_RESOURCES: `max_request_dtos` are
    /// outstanding, or a bind of the RMR is outstanding on another endpoint.
    pub fn rmr_bind(
        &mut self,
        rmr: RmrHandle,
        lmr_triplet: &LmrTriplet,
        privileges: MemPrivFlags,
        ep: EpHandle,
        cookie: RmrCookie,
        flags: CompletionFlags,
    ) -> DatResult<u32> {
        let key = self.rmr_key(rmr)?;
        let evd = self.bind_evd(ep)?;
        let hot = &self.ep(ep)?.hot;
        if !matches!(hot.state, EpState::Connected | EpState::Disconnected) {
            return Err(hot.state.refuse(EpCall::Post));
        }
        if self.ep(ep)?.qp.get().is_none() {
            return Err(Refusal::NotReady.error());
        }
        if !OF_BINDS.contains(privileges) {
            return Err(DatError::parameter(Subtype::Arg3, "privileges")
                .because("mem_privileges: unknown ones"));
        }
        if flags.bits() & hot.request_flags_refused != 0 {
            return Err(Refusal::RdmaFlags.error());
        }
        let ep_pz = self.ep(ep)?.pz;
        if ep_pz != Some(self.rmrs[key].pz) {
            return Err(in_another_pz());
        }
        let lmr = if lmr_triplet.segment_length == 0 {
            None
        } else {
            Some(self.check_bind(key, lmr_triplet, privileges)?)
        };
        self.one_endpoint_at_a_time(key, ep.key)?;
        let target = WindowTarget {
            lmr_context: lmr_triplet.lmr_context,
            address: lmr_triplet.virtual_address,
            bytes: lmr_triplet.segment_length,
            access: privileges & (MemPrivFlags::REMOTE | MemPrivFlags::REMOTE_INVALIDATE),
        };
        let how = RequestFlags {
            suppress: false,
            solicited: false,
            fence: flags.contains(CompletionFlags::BARRIER_FENCE),
            unsignalled: flags.contains(CompletionFlags::UNSIGNALLED),
        };
        let mut rmr_context = self.post_bind(key, ep.key, &target, cookie, how);
        if rmr_context.is_err() {
            // Polling the completion queue may free a slot: a slot is free when its request is done, even if the event
            // has not been dequeued.
            self.drain_evd(evd, true);
            rmr_context = self.post_bind(key, ep.key, &target, cookie, how);
        }
        let rmr_context = rmr_context.map_err(Refusal::error)?;
        let bound = lmr.map(|lmr| Bound {
            lmr,
            triplet: *lmr_triplet,
            privileges,
            rmr_context,
        });
        let suppress = flags.contains(CompletionFlags::SUPPRESS);
        self.bind_posted(key, ep.key, bound, suppress);
        let what = (Posted::Bind, rmr_context);
        self.record_post(ep.key, what, lmr_triplet.segment_length, cookie.0);
        Ok(rmr_context)
    }

    /// Refuses to bind an RMR while another endpoint has a bind of it outstanding. The device orders the requests of
    /// one queue pair only. Also, the device may carry out a bind and still report it as flushed. With two endpoints
    /// the library could not determine which context is the current one.
    fn one_endpoint_at_a_time(&mut self, key: RmrKey, ep: EpKey) -> DatResult<()> {
        let Some(before) = self.rmrs[key].bound_on().filter(|before| *before != ep) else {
            return Ok(());
        };
        let request_evd = |ia: &Self| {
            let ep = ia.eps.get(before)?;
            let is_under_way = ep.binds.iter().any(|pending| pending.rmr == key);
            ep.request_evd.filter(|_| is_under_way)
        };
        if let Some(evd) = request_evd(self) {
            // The bind on the other endpoint may be done, but its completion not yet polled.
            self.drain_evd(evd, true);
        }
        match request_evd(self) {
            None => Ok(()),
            Some(_) => Err(
                DatError::new(ReturnType::InsufficientResources, Subtype::None)
                    .because("a bind of the RMR is under way on another endpoint"),
            ),
        }
    }

    /// Returns the request EVD of an endpoint, if that EVD accepts bind completions.
    fn bind_evd(&self, ep: EpHandle) -> DatResult<EvdKey> {
        let evd = self.ep(ep)?.request_evd;
        evd.filter(|evd| self.evds[*evd].flags.contains(EvdFlags::RMR_BIND))
            .ok_or(
                DatError::handle(Subtype::HandleEvdRequest)
                    .because("the endpoint has no request EVD with DAT_EVD_RMR_BIND_FLAG"),
            )
    }

    /// Returns the LMR of a triplet, if the RMR may be bound to it with these privileges.
    fn check_bind(
        &self,
        rmr: RmrKey,
        triplet: &LmrTriplet,
        privileges: MemPrivFlags,
    ) -> DatResult<LmrKey> {
        let bad = |detail| DatError::parameter(Subtype::Arg2, "lmr_triplet").because(detail);
        let entry = self
            .regions
            .table()
            .entry(triplet.lmr_context)
            .ok_or(bad("no LMR has this lmr_context"))?;
        if !entry.contains(triplet.virtual_address, triplet.segment_length) {
            return Err(bad("the range reaches outside its LMR"));
        }
        let lmr = self
            .lmr_with_context(triplet.lmr_context)
            .ok_or(bad("no LMR has this lmr_context"))?;
        if self.lmr_pz(lmr) != Some(self.rmrs[rmr].pz) {
            return Err(in_another_pz());
        }
        let lacks = |subtype, detail| {
            Err(DatError::new(ReturnType::PrivilegesViolation, subtype).because(detail))
        };
        let has = |right| entry.privileges.contains(right);
        if privileges.contains(MemPrivFlags::REMOTE_READ) && !has(MemPrivFlags::LOCAL_READ) {
            return lacks(
                Subtype::PrivilegesRead,
                "remote read of an LMR without local read",
            );
        }
        if privileges.contains(MemPrivFlags::REMOTE_WRITE) && !has(MemPrivFlags::LOCAL_WRITE) {
            return lacks(
                Subtype::PrivilegesWrite,
                "remote write of an LMR without local write",
            );
        }
        if triplet.segment_length > self.provider.limits().max_window_bytes {
            return Err(bad("longer than a memory window of this device"));
        }
        Ok(lmr)
    }

    fn post_bind(
        &mut self,
        rmr: RmrKey,
        ep: EpKey,
        target: &WindowTarget,
        cookie: RmrCookie,
        how: RequestFlags,
    ) -> Result<u32, Refusal> {
        let rmr = &mut self.rmrs[rmr];
        let ep = self.eps.get_mut(ep).ok_or(Refusal::NoEp)?;
        let qp = ep.qp.get_mut().ok_or(Refusal::NotReady)?;
        let context = qp
            .post_bind(&mut rmr.window, target, cookie.0, how)
            .map_err(|QueueFull| Refusal::Full)?;
        Ok(context)
    }

    /// Accounts for a bind that was posted.
    fn bind_posted(&mut self, key: RmrKey, ep: EpKey, bound: Option<Bound>, suppress: bool) {
        let (number, before) = self.rmrs[key].bind_posted(ep, bound);
        let pending = PendingBind {
            rmr: key,
            number,
            lmr: bound.map(|bound| bound.lmr),
            suppress,
        };
        if let Some(before) = before {
            self.rmrs_invalidatable.remove(&before.rmr_context);
        }
        if let Some(bound) = bound {
            if bound.privileges.contains(MemPrivFlags::REMOTE_INVALIDATE) {
                self.rmrs_invalidatable.insert(bound.rmr_context, key);
            }
            self.bound_to(bound.lmr);
        }
        if let Some(before) = before {
            self.unbound_from(before.lmr);
        }
        self.eps[ep].binds.push_back(pending);
    }

    /// Handles the completion of an endpoint's oldest bind, and returns its event; `None` for a suppressed success.
    pub(in crate::ia) fn bind_done(&mut self, ep: EpKey, done: &Completion) -> Option<Event> {
        let pending = self.eps.get_mut(ep)?.binds.pop_front()?;
        let succeeded = done.status == DtoStatus::Success;
        self.bind_ended(pending, succeeded);
        if succeeded && pending.suppress {
            return None;
        }
        Some(Event::RmrBind(RmrBindCompletion {
            rmr: RmrHandle {
                key: pending.rmr,
                ia: self.id,
            },
            cookie: RmrCookie(done.cookie),
            status: if succeeded || done.status == DtoStatus::ErrFlushed {
                done.status
            } else {
                DtoStatus::RmrOperationFailed
            },
            syndrome: done.detail.syndrome(),
        }))
    }

    fn bind_ended(&mut self, pending: PendingBind, succeeded: bool) {
        let Some(rmr) = self.rmrs.get_mut(pending.rmr) else {
            // The RMR was freed meanwhile, and its window was destroyed.
            if let Some(lmr) = pending.lmr {
                self.let_go_of_lmr(lmr);
            }
            return;
        };
        let over = rmr.bind_ended(&pending, succeeded);
        if over.needs_unbind {
            let effect = Effect::BindFailed(pending.rmr, pending.number);
            self.effects.push_back(effect);
        }
        self.let_go_of(over);
    }

    /// Unbinds, by a command, an RMR whose last bind failed: the device's window still has an earlier binding. The
    /// consumer was already notified that the RMR is unbound. So if the device keeps refusing, the device is stopped.
    /// Does nothing if another bind or unbind was posted after `bind`: the command would destroy the window that the
    /// posted request names.
    pub(in crate::ia) fn unbind_by_command(&mut self, key: RmrKey, bind: u64) {
        self.end_or_stop_device("unbinding a memory window", |ia| ia.unbind(key, bind));
    }

    fn unbind(&mut self, key: RmrKey, bind: u64) -> DatResult<()> {
        let Some(rmr) = self.rmrs.get_mut(key).filter(|rmr| rmr.binds() == bind) else {
            return Ok(());
        };
        let pd = self.pzs[rmr.pz].pd;
        // A window of a dead device reaches no memory.
        if !self.health.is_dead()
            && let Err(error) = self.provider.unbind_window(pd, &mut rmr.window)
        {
            return Err(self.not_ended("unbinding a memory window", &error));
        }
        let Some(rmr) = self.rmrs.get_mut(key) else {
            return Ok(());
        };
        if let Some(lmr) = rmr.unbound() {
            self.let_go_of_lmr(lmr);
        }
        Ok(())
    }

    /// Polls the completions of outstanding binds of all endpoints.
    pub(in crate::ia) fn poll_binds(&mut self) {
        let evds: Vec<EvdKey> = self
            .eps
            .values()
            .filter(|ep| !ep.binds.is_empty())
            .filter_map(|ep| ep.request_evd)
            .collect();
        for evd in evds {
            self.drain_evd(evd, true);
        }
        self.apply_effects();
    }

    /// Handles an endpoint's outstanding binds as failed, because the endpoint's queue pair forgets them.
    pub(in crate::ia) fn abandon_binds(&mut self, ep: EpKey) {
        while let Some(pending) = self.eps.get_mut(ep).and_then(|ep| ep.binds.pop_front()) {
            self.bind_ended(pending, false);
        }
    }
}

fn in_another_pz() -> DatError {
    DatError::new(ReturnType::ProtectionViolation, Subtype::None)
        .because("RMR, LMR and endpoint are not in one protection zone")
}
