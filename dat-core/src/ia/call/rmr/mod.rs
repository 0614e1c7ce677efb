//! Remote memory regions: `dat_rmr_create`, `_query`, `_free`. Binding is in [`bind`].
//!
//! An RMR is a memory window of the device. The binding of an RMR is tracked in two views:
//!
//! - *posted*: the result of the last bind posted. `rmr_query` returns this binding, and it keeps an LMR from being
//!   freed.
//! - *window LMRs*: the LMRs that the device's window may still use, according to the binds that are known to be done.
//!   The device's region must outlive the window's use and every outstanding bind. Until then its LMR is in use
//!   ([`Ia::let_go_of_lmr`]). Closing an adapter removes LMRs in any state; the device's region is then deregistered
//!   after the last use.
//!
//! A bind that fails, or is flushed, leaves the RMR unbound, unless a later bind was posted meanwhile. The device's
//! window still has the old binding then, so a command unbinds the window.
//!
//! A peer that has the context of an RMR bound with [`MemPrivFlags::REMOTE_INVALIDATE`] may unbind the RMR (IBTA volume
//! 1, "Send with Invalidate"). The device does so before it completes the receive, and that completion reports the
//! invalidation: from then on the RMR is unbound in both views. If the completion is lost with its endpoint, the RMR
//! counts as bound, and its LMR as in use, until the RMR is bound again or freed.

mod bind;

use crate::error::{DatError, DatResult, Subtype};
use crate::handle::{PzHandle, RmrHandle, RmrKey};
use crate::ia::instance::Ia;
use crate::object::lmr::segment::LmrTriplet;
use crate::object::rmr::{ReleasedLmrs, Rmr};
use crate::provider::Provider;
use crate::types::MemPrivFlags;

/// Result of `rmr_query` (`DAT_RMR_PARAM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmrParam {
    /// Protection zone of the RMR.
    pub pz: PzHandle,
    /// Binding of the RMR; `None` while the RMR is unbound.
    pub binding: Option<RmrBinding>,
}

/// Binding of an RMR, as the last posted bind set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmrBinding {
    /// Memory that the RMR is bound to.
    pub lmr_triplet: LmrTriplet,
    /// Privileges that peers have on the memory.
    pub privileges: MemPrivFlags,
    /// RMR context, for use by peers.
    pub rmr_context: u32,
}

impl<P: Provider> Ia<P> {
    /// Creates an unbound RMR.
    ///
    /// Page: dat_rmr_create.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|PZ. DAT_MODEL_NOT_SUPPORTED: the device has no memory windows (`max_rmrs` is 0).
    /// DAT_INSUFFICIENT_RESOURCES|MEMORY_REGION: the device has no free memory window.
    pub fn rmr_create(&mut self, pz: PzHandle) -> DatResult<RmrHandle> {
        let pz = self.pz_key(pz)?;
        self.alive()?;
        if self.attr.max_rmrs == 0 {
            return Err(DatError::unsupported().because("the device has no memory windows"));
        }
        let window = match self.provider.create_window(self.pzs[pz].pd) {
            Ok(window) => window,
            Err(error) => {
                let subtype = Subtype::ResourceMemoryRegion;
                return Err(self.device_refused("rmr_create", error, subtype));
            }
        };
        self.pzs[pz].users += 1;
        let key = self.rmrs.insert(Rmr::new(window, pz));
        Ok(RmrHandle { key, ia: self.id })
    }

    /// Returns the parameters of an RMR.
    ///
    /// Page: dat_rmr_query.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|RMR.
    pub fn rmr_query(&self, rmr: RmrHandle) -> DatResult<RmrParam> {
        let rmr = &self.rmrs[self.rmr_key(rmr)?];
        Ok(RmrParam {
            pz: PzHandle {
                key: rmr.pz,
                ia: self.id,
            },
            binding: rmr.posted().map(|bound| RmrBinding {
                lmr_triplet: bound.triplet,
                privileges: bound.privileges,
                rmr_context: bound.rmr_context,
            }),
        })
    }

    /// Frees an RMR, bound or not. From then on peers cannot use its context. An outstanding bind of the RMR fails.
    ///
    /// Page: dat_rmr_free.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|RMR. DAT_INTERNAL_ERROR: the device refused, and nothing has changed.
    pub fn rmr_free(&mut self, rmr: RmrHandle) -> DatResult<()> {
        let key = self.rmr_key(rmr)?;
        self.remove_rmr(key)
    }

    /// Removes an RMR and destroys its window. If the device refuses, the RMR is unchanged.
    pub(in crate::ia) fn remove_rmr(&mut self, key: RmrKey) -> DatResult<()> {
        if let Some(rmr) = self.rmrs.get_mut(key)
            && let Err(error) = self.provider.destroy_window(&mut rmr.window)
        {
            return Err(self.not_ended("destroying a memory window", &error));
        }
        let Some(rmr) = self.rmrs.remove(key) else {
            return Ok(());
        };
        self.forget_context(RmrHandle { key, ia: self.id });
        if let Some(bound) = rmr.posted() {
            self.rmrs_invalidatable.remove(&bound.rmr_context);
            self.unbound_from(bound.lmr);
        }
        if let Some(lmr) = rmr.window_lmr() {
            self.let_go_of_lmr(lmr);
        }
        self.pzs[rmr.pz].users -= 1;
        Ok(())
    }

    /// Handles the device's report that a peer has invalidated a context. If the RMR has been bound to a newer context,
    /// its binding is kept.
    pub(in crate::ia) fn invalidated_by_peer(&mut self, rmr_context: u32) {
        let Some(key) = self.rmrs_invalidatable.remove(&rmr_context) else {
            return;
        };
        let Some(rmr) = self.rmrs.get_mut(key) else {
            return;
        };
        let is_under_way = rmr
            .bound_on()
            .and_then(|ep| self.eps.get(ep))
            .is_some_and(|ep| ep.binds.iter().any(|pending| pending.rmr == key));
        let over = rmr.invalidated(is_under_way);
        self.let_go_of(over);
    }

    /// Releases the LMRs that an RMR no longer uses.
    fn let_go_of(&mut self, over: ReleasedLmrs) {
        if let Some(bound) = over.bound {
            self.rmrs_invalidatable.remove(&bound.rmr_context);
            self.unbound_from(bound.lmr);
        }
        for lmr in over.held.into_iter().flatten() {
            self.let_go_of_lmr(lmr);
        }
    }
}
