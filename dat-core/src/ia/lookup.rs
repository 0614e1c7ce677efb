//! Lookup of objects: checks that a handle belongs to this IA and that its object exists.

use crate::error::{DatError, DatResult, Subtype};
use crate::handle::{
    AnyHandle, CnoHandle, CnoKey, CrHandle, EpHandle, EvdHandle, EvdKey, LmrHandle, PspHandle,
    PspKey, PzHandle, PzKey, RmrHandle, RmrKey, RspHandle, SrqHandle, SrqKey,
};
use crate::ia::instance::Ia;
use crate::object::cr::Cr;
use crate::object::ep::Ep;
use crate::object::evd::queue::Evd;
use crate::object::lmr::Lmr;
use crate::object::psp::Psp;
use crate::object::rsp::Rsp;
use crate::provider::Provider;
use crate::refusal::Refusal;
use crate::types::EvdFlags;

impl<P: Provider> Ia<P> {
    pub(in crate::ia) const fn evd_handle(&self, key: EvdKey) -> EvdHandle {
        EvdHandle { key, ia: self.id }
    }

    /// Checks an optional EVD handle of a call, and that the EVD carries the stream `flag`. `subtype` names the handle
    /// in the error.
    pub(in crate::ia) fn evd_for(
        &self,
        evd: Option<EvdHandle>,
        flag: EvdFlags,
        subtype: Subtype,
    ) -> DatResult<Option<EvdKey>> {
        let Some(handle) = evd else { return Ok(None) };
        let evd = self.evd(handle).map_err(|_| DatError::handle(subtype))?;
        if !evd.flags.contains(flag) {
            return Err(DatError::handle(subtype)
                .because("the EVD was made without the flag of this stream"));
        }
        Ok(Some(handle.key))
    }

    pub(in crate::ia) fn evd(&self, handle: EvdHandle) -> DatResult<&Evd<P>> {
        if handle.ia != self.id {
            return Err(foreign_evd());
        }
        self.evds.somebody(handle.key).ok_or_else(foreign_evd)
    }

    pub(in crate::ia) fn evd_mut(&mut self, handle: EvdHandle) -> DatResult<&mut Evd<P>> {
        self.evds
            .named_mut(handle.key, handle.ia)
            .ok_or_else(foreign_evd)
    }

    pub(in crate::ia) fn ep(&self, handle: EpHandle) -> DatResult<&Ep<P>> {
        if handle.ia != self.id {
            return Err(Refusal::NoEp.error());
        }
        self.eps
            .somebody(handle.key)
            .ok_or_else(|| Refusal::NoEp.error())
    }

    pub(in crate::ia) fn pz_key(&self, pz: PzHandle) -> DatResult<PzKey> {
        if pz.ia != self.id || !self.pzs.contains_key(pz.key) {
            return Err(DatError::handle(Subtype::HandlePz).because("no such PZ in this IA"));
        }
        Ok(pz.key)
    }

    pub(in crate::ia) fn srq_key(&self, srq: SrqHandle) -> DatResult<SrqKey> {
        if srq.ia != self.id || !self.srqs.contains_key(srq.key) {
            return Err(Refusal::NoSrq.error());
        }
        Ok(srq.key)
    }

    pub(in crate::ia) fn cno_key(&self, cno: CnoHandle) -> DatResult<CnoKey> {
        if cno.ia != self.id || !self.cnos.contains_key(cno.key) {
            return Err(DatError::handle(Subtype::HandleCno).because("no such CNO in this IA"));
        }
        Ok(cno.key)
    }

    pub(in crate::ia) fn cr(&self, cr: CrHandle) -> DatResult<&Cr> {
        let missing =
            DatError::handle(Subtype::HandleCr).because("no such connection request in this IA");
        if cr.ia != self.id {
            return Err(missing);
        }
        self.crs.get(cr.key).ok_or(missing)
    }

    pub(in crate::ia) const fn psp_handle(&self, key: PspKey) -> PspHandle {
        PspHandle { key, ia: self.id }
    }

    pub(in crate::ia) fn psp(&self, psp: PspHandle) -> DatResult<&Psp> {
        let missing = DatError::handle(Subtype::HandlePsp).because("no such PSP in this IA");
        if psp.ia != self.id {
            return Err(missing);
        }
        self.psps.get(psp.key).ok_or(missing)
    }

    pub(in crate::ia) fn rsp(&self, rsp: RspHandle) -> DatResult<&Rsp> {
        let missing = DatError::handle(Subtype::HandleRsp).because("no such RSP in this IA");
        if rsp.ia != self.id {
            return Err(missing);
        }
        self.rsps.get(rsp.key).ok_or(missing)
    }

    pub(in crate::ia) fn lmr(&self, lmr: LmrHandle) -> DatResult<&Lmr<P>> {
        let missing = DatError::handle(Subtype::HandleLmr).because("no such LMR in this IA");
        if lmr.ia != self.id {
            return Err(missing);
        }
        self.regions.get(lmr.key).ok_or(missing)
    }

    pub(in crate::ia) fn rmr_key(&self, rmr: RmrHandle) -> DatResult<RmrKey> {
        if rmr.ia != self.id || !self.rmrs.contains_key(rmr.key) {
            return Err(DatError::handle(Subtype::HandleRmr).because("no such RMR in this IA"));
        }
        Ok(rmr.key)
    }

    pub(in crate::ia) fn check_any(&self, handle: AnyHandle) -> DatResult<()> {
        let (ia, exists, subtype) = match handle {
            AnyHandle::Ia => return Ok(()),
            AnyHandle::Cr(h) => (h.ia, self.crs.contains_key(h.key), Subtype::HandleCr),
            AnyHandle::Ep(h) => (h.ia, self.eps.somebody(h.key).is_some(), Subtype::HandleEp),
            AnyHandle::Evd(h) => (h.ia, self.evds.somebody(h.key).is_some(), Subtype::Handle1),
            AnyHandle::Lmr(h) => (h.ia, self.regions.get(h.key).is_some(), Subtype::HandleLmr),
            AnyHandle::Psp(h) => (h.ia, self.psps.contains_key(h.key), Subtype::HandlePsp),
            AnyHandle::Pz(h) => (h.ia, self.pzs.contains_key(h.key), Subtype::HandlePz),
            AnyHandle::Rmr(h) => (h.ia, self.rmrs.contains_key(h.key), Subtype::HandleRmr),
            AnyHandle::Rsp(h) => (h.ia, self.rsps.contains_key(h.key), Subtype::HandleRsp),
            AnyHandle::Cno(h) => (h.ia, self.cnos.contains_key(h.key), Subtype::HandleCno),
            AnyHandle::Srq(h) => (h.ia, self.srqs.contains_key(h.key), Subtype::HandleSrq),
        };
        if ia != self.id || !exists {
            return Err(DatError::handle(subtype).because("no such object in this IA"));
        }
        Ok(())
    }

    /// Drops the consumer context of an object that was freed.
    pub(in crate::ia) fn forget_context(&mut self, handle: impl Into<AnyHandle>) {
        self.contexts.remove(&handle.into());
    }
}

#[cold]
#[inline(never)]
fn foreign_evd() -> DatError {
    DatError::handle(Subtype::None).because("no such EVD in this IA")
}
