//! Protection zones. Endpoints, SRQs, LMRs and RMRs belong to one; on the device, it is a protection domain.

use crate::error::{DatError, DatResult, Left, Subtype};
use crate::handle::{HandleType, PzHandle, PzKey};
use crate::ia::instance::Ia;
use crate::object::pz::Pz;
use crate::provider::Provider;

impl<P: Provider> Ia<P> {
    /// Creates a protection zone.
    ///
    /// Page: dat_pz_create.
    ///
    /// # Errors
    /// DAT_INSUFFICIENT_RESOURCES|PROTECTION_DOMAIN: the device has no more.
    pub fn pz_create(&mut self) -> DatResult<PzHandle> {
        self.alive()?;
        let pd = match self.provider.alloc_pd() {
            Ok(pd) => pd,
            Err(error) => {
                return Err(self.device_refused(
                    "pz_create",
                    error,
                    Subtype::ResourceProtectionDomain,
                ));
            }
        };
        let key = self.pzs.insert(Pz { pd, users: 0 });
        Ok(PzHandle { key, ia: self.id })
    }

    /// Checks that a protection zone exists. The only parameter of a protection zone is its IA.
    ///
    /// Page: dat_pz_query.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|PZ.
    pub fn pz_query(&self, pz: PzHandle) -> DatResult<()> {
        self.pz_key(pz).map(|_| ())
    }

    /// Frees a protection zone.
    ///
    /// Page: dat_pz_free.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|PZ. DAT_INVALID_STATE|PZ_IN_USE: an endpoint, SRQ, LMR or RMR is in it. DAT_INTERNAL_ERROR:
    /// the device refused, and nothing has changed.
    pub fn pz_free(&mut self, pz: PzHandle) -> DatResult<()> {
        let key = self.pz_key(pz)?;
        if self.pzs[key].users != 0 {
            return Err(DatError::state(Subtype::StatePzInUse)
                .because("objects are in the zone")
                .with_left(self.users_of(key)));
        }
        self.remove_pz(key)
    }

    /// Returns the objects that belong to a PZ, counted by kind.
    fn users_of(&self, pz: PzKey) -> Left {
        let eps = self.eps.values().filter(|ep| ep.pz == Some(pz));
        let srqs = self.srqs.values().filter(|srq| srq.pz == pz);
        let lmrs = self.regions.iter().filter(|lmr| lmr.pz == pz);
        let rmrs = self.rmrs.values().filter(|rmr| rmr.pz == pz);
        let (eps, srqs) = (eps.map(|_| HandleType::Ep), srqs.map(|_| HandleType::Srq));
        let (lmrs, rmrs) = (lmrs.map(|_| HandleType::Lmr), rmrs.map(|_| HandleType::Rmr));
        eps.chain(srqs).chain(lmrs).chain(rmrs).collect()
    }

    /// Frees a PZ. If the device refuses, the PZ is unchanged.
    pub(in crate::ia) fn remove_pz(&mut self, key: PzKey) -> DatResult<()> {
        let Some(pz) = self.pzs.get(key) else {
            return Ok(());
        };
        if let Err(error) = self.provider.free_pd(pz.pd) {
            return Err(self.not_ended("freeing a protection domain", &error));
        }
        self.pzs.remove(key);
        self.forget_context(PzHandle { key, ia: self.id });
        Ok(())
    }
}
