//! Closing an IA.
//!
//! Objects are freed by kind. CNOs are first, so that their agents are notified of the close only. The other kinds
//! follow, each before the kinds that it refers to: connection requests, reserved service points, endpoints, public
//! service points, RMRs, LMRs, SRQs, EVDs with their events, and protection zones. The close waits for no peer. It
//! waits for the SRQ buffers that endpoints took, at most `LAST_BUFFER_WAIT` in total, and until the device accepts the
//! last datagrams, at most `FINAL_SEND_TIMEOUT`. If the device refuses to free an object, the command is repeated. If
//! the device goes on refusing, or if the whole close takes longer than the limit for one command, the device is
//! stopped. After the close all objects are freed.

use super::ep::LAST_BUFFER_WAIT;
use super::progress::FINAL_SEND_TIMEOUT;
use crate::cm::RejectReason;
use crate::error::{DatError, DatResult, Subtype};
use crate::handle::AnyHandle;
use crate::handle::{
    CnoHandle, CnoKey, CrHandle, CrKey, EpHandle, EpKey, EvdKey, LmrHandle, LmrKey, PspKey,
    PzHandle, PzKey, RmrHandle, RmrKey, RspHandle, RspKey, SrqHandle, SrqKey,
};
use crate::ia::instance::Ia;
use crate::object::ep::state::EpState;
use crate::provider::Provider;
use crate::types::CloseFlags;
use core::fmt;

/// Refusal of a graceful close because objects are left. It returns the unchanged IA to the caller.
pub struct CloseRefused<P: Provider> {
    /// The IA, still open.
    pub ia: Ia<P>,
    /// The error DAT_INVALID_STATE|IA_IN_USE.
    pub error: DatError,
}

impl<P: Provider> fmt::Debug for CloseRefused<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloseRefused")
            .field("ia", &self.ia)
            .field("error", &self.error)
            .finish()
    }
}

/// Keys of the objects to free, by kind.
#[derive(Default)]
struct ClosingObjects {
    cnos: Vec<CnoKey>,
    crs: Vec<CrKey>,
    rsps: Vec<RspKey>,
    eps: Vec<EpKey>,
    psps: Vec<PspKey>,
    rmrs: Vec<RmrKey>,
    lmrs: Vec<LmrKey>,
    srqs: Vec<SrqKey>,
    pzs: Vec<PzKey>,
    evds: Vec<EvdKey>,
}

impl ClosingObjects {
    fn add(&mut self, object: AnyHandle) {
        match object {
            AnyHandle::Ia => {}
            AnyHandle::Cr(h) => self.crs.push(h.key),
            AnyHandle::Ep(h) => self.eps.push(h.key),
            AnyHandle::Evd(h) => self.evds.push(h.key),
            AnyHandle::Lmr(h) => self.lmrs.push(h.key),
            AnyHandle::Psp(h) => self.psps.push(h.key),
            AnyHandle::Pz(h) => self.pzs.push(h.key),
            AnyHandle::Rmr(h) => self.rmrs.push(h.key),
            AnyHandle::Rsp(h) => self.rsps.push(h.key),
            AnyHandle::Cno(h) => self.cnos.push(h.key),
            AnyHandle::Srq(h) => self.srqs.push(h.key),
        }
    }
}

impl<P: Provider> Ia<P> {
    /// Returns whether the program has no objects left in the IA.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        !self.objects().any(|object| self.is_in_use(object))
    }

    /// Checks whether a close with these flags would succeed.
    ///
    /// # Errors
    /// DAT_INVALID_STATE|IA_IN_USE: GRACEFUL, and objects are left; the error lists how many of each kind.
    pub fn may_close(&self, flags: CloseFlags) -> DatResult<()> {
        if flags != CloseFlags::Graceful || self.is_unused() {
            return Ok(());
        }
        let left = self.objects().filter(|object| self.is_in_use(*object));
        Err(DatError::state(Subtype::StateIaInUse)
            .because("objects are left in the IA")
            .with_left(left.map(AnyHandle::handle_type).collect()))
    }

    /// Returns whether an object prevents a graceful close. These do not: connection requests, endpoints made for
    /// undecided requests, spent reserved service points, and the asynchronous EVD of the IA.
    fn is_in_use(&self, object: impl Into<AnyHandle>) -> bool {
        let object = object.into();
        if self.check_any(object).is_err() {
            return false;
        }
        match object {
            AnyHandle::Ia | AnyHandle::Cr(_) => false,
            AnyHandle::Ep(h) => self.eps[h.key].hot.state != EpState::TentativeConnectionPending,
            AnyHandle::Rsp(h) => self.rsps.get(h.key).is_some_and(|rsp| !rsp.is_spent()),
            AnyHandle::Evd(h) => h.key != self.async_evd,
            AnyHandle::Lmr(_)
            | AnyHandle::Psp(_)
            | AnyHandle::Pz(_)
            | AnyHandle::Rmr(_)
            | AnyHandle::Cno(_)
            | AnyHandle::Srq(_) => true,
        }
    }

    /// Returns handles of all objects in the IA.
    fn objects(&self) -> impl Iterator<Item = AnyHandle> {
        let ia = self.id;
        let crs = self.crs.keys().map(move |key| CrHandle { key, ia }.into());
        let eps = self.eps.keys().map(move |key| EpHandle { key, ia }.into());
        let evds = self.evds.keys().map(|key| self.evd_handle(key).into());
        let lmrs = self.regions.keys();
        let psps = self.psps.keys().map(|key| self.psp_handle(key).into());
        let pzs = self.pzs.keys().map(move |key| PzHandle { key, ia }.into());
        let rmrs = self.rmrs.keys();
        let rsps = self.rsps.keys();
        let cnos = self.cnos.keys();
        let srqs = self.srqs.keys();
        crs.chain(eps)
            .chain(evds)
            .chain(lmrs.map(move |key| LmrHandle { key, ia }.into()))
            .chain(psps)
            .chain(pzs)
            .chain(rmrs.map(move |key| RmrHandle { key, ia }.into()))
            .chain(rsps.map(move |key| RspHandle { key, ia }.into()))
            .chain(cnos.map(move |key| CnoHandle { key, ia }.into()))
            .chain(srqs.map(move |key| SrqHandle { key, ia }.into()))
    }

    /// Closes the IA and returns the device. ABRUPT ends everything in the IA: connections are aborted, requests are
    /// refused, events are lost. Agents of CNOs are called without an EVD.
    ///
    /// Page: dat_ia_close.
    ///
    /// # Errors
    /// GRACEFUL with objects left: [`CloseRefused`], DAT_INVALID_STATE|IA_IN_USE.
    // The error is as large as the IA because it returns the IA to the caller.
    #[allow(clippy::result_large_err, reason = "the error hands the IA back")]
    pub fn close(mut self, flags: CloseFlags) -> Result<P, CloseRefused<P>> {
        if let Err(error) = self.may_close(flags) {
            return Err(CloseRefused { ia: self, error });
        }
        let _span = tracing::info_span!("close", instance = self.id).entered();
        self.free_all_objects();
        self.remove_from_adapter();
        // PANIC: only this statement and `drop` take the provider.
        Ok(self.provider.take().expect("an IA that is open"))
    }

    /// Frees all objects. The time limit for this also covers the provider's own close.
    pub(in crate::ia) fn free_all_objects(&mut self) {
        self.provider.one_limit(true);
        self.last_buffer_wait_left = Some(LAST_BUFFER_WAIT);
        self.end_all();
        self.transmit_last();
    }

    /// Removes this instance from the adapter. It is called once per instance.
    pub(in crate::ia) fn remove_from_adapter(&mut self) {
        let now = self.provider.now();
        self.adapter
            .lock()
            .remove_instance(self.instance_index, now);
        self.transmit();
    }

    /// Notifies each peer that its connection or request is over. Frees nothing in the device.
    pub(in crate::ia) fn abandon(&mut self) {
        self.provider.one_limit(true);
        let now = self.provider.now();
        let of_requests = self.crs.values().map(|cr| cr.conn);
        for conn in self.conns.keys().copied().chain(of_requests) {
            self.adapter.lock().release(now, conn, self.instance_index);
        }
        self.transmit_last();
        self.provider
            .await_mads(now.saturating_add(FINAL_SEND_TIMEOUT));
    }

    fn end_all(&mut self) {
        let mut closing = ClosingObjects::default();
        for object in self.objects() {
            closing.add(object);
        }
        for key in closing.cnos {
            self.remove_cno(key);
        }
        for key in closing.crs {
            self.refuse_request(key, RejectReason::NoResources);
        }
        for key in closing.rsps {
            self.remove_rsp(key);
        }
        for key in closing.eps {
            self.end_or_stop_device("ending an endpoint", |ia| ia.remove_ep(key));
        }
        for key in closing.psps {
            self.remove_psp(key);
        }
        for key in closing.rmrs {
            self.end_or_stop_device("ending an RMR", |ia| ia.remove_rmr(key));
        }
        for key in closing.lmrs {
            self.end_or_stop_device("ending an LMR", |ia| ia.remove_lmr(key));
        }
        for key in closing.srqs {
            if self.srqs.get(key).is_some_and(|srq| srq.users == 0) {
                self.end_or_stop_device("ending an SRQ", |ia| ia.remove_srq(key));
            }
        }
        for key in closing.evds {
            self.async_evd_unbind(self.evd_handle(key));
            // The IA's own asynchronous EVD receives the last events, so it is not freed here if it still has streams.
            if self.evds.get(key).is_some_and(|evd| !evd.streams.any()) {
                self.end_or_stop_device("ending an EVD", |ia| ia.remove_evd(key));
            }
        }
        // Endpoints made for requests that arrived during the close were freed with the EVDs.
        for key in closing.pzs {
            if self.pzs.get(key).is_some_and(|pz| pz.users == 0) {
                self.end_or_stop_device("ending a PZ", |ia| ia.remove_pz(key));
            }
        }
        self.apply_effects();
        // This sends messages to the peers. No call waits for their answers.
        self.transmit();
    }
}

impl<P: Provider> Drop for Ia<P> {
    /// Closes an IA that is dropped without `close`.
    ///
    /// If other instances use the device, this one is closed abruptly. If it is the only instance, it notifies its
    /// peers that their connections are over, within a short time limit. Then the provider is dropped, which ends the
    /// device's use of all memory. Only after that is the memory freed. During a panic any state may be inconsistent:
    /// then no peer is notified, and the device is stopped.
    fn drop(&mut self) {
        if self.provider.is_open() {
            let panics = std::thread::panicking();
            let alone = self.provider.retire();
            if panics && !alone {
                // After a panic no call can free what this instance has posted and registered.
                self.provider
                    .stop("a thread panicked with an instance of the adapter");
            } else if !alone {
                tracing::info!(
                    ia = self.id,
                    "an instance was dropped, not closed: it is closed now"
                );
                self.free_all_objects();
            } else if !self.health.is_dead() && !panics {
                tracing::info!(
                    ia = self.id,
                    "an IA was dropped, not closed: its device is stopped"
                );
                self.abandon();
            }
            self.remove_from_adapter();
        }
        drop(self.provider.take());
    }
}
