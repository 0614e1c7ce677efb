//! An instance that is read in. The tables were checked before ([`checking`](super::checking)), so most of the checks
//! here are those of the device: each object must be as the tables say.

use std::collections::BTreeMap;
use std::vec;

use super::endpoints::ConnsById;
use super::names::{check_counters, free_keys, key_of, refused, text};
use crate::attributes::HIDDEN;
use crate::error::parking::ResumeError;
use crate::handle::{EvdKey, Handle, LmrHandle, LmrKey, index_of};
use crate::ia::instance::Ia;
use crate::ia::regions::Regions;
use crate::ia::snapshot::IaTables;
use crate::object::cno::Cno;
use crate::object::evd::queue::Evd;
use crate::object::evd::streams::Stream;
use crate::object::lmr::{Lmr, Registered};
use crate::object::pz::Pz;
use crate::object::rmr::Rmr;
use crate::object::snapshot::{
    CnoSnapshot, EvdSnapshot, LmrSnapshot, PzSnapshot, RmrSnapshot, SrqSnapshot, TableSnapshot,
};
use crate::object::srq::Srq;
use crate::provider::{CompletionQueue, Limits, ParkProvider};
use crate::slots::Slots;
use crate::stats::Ended;
use crate::table::Table;
use crate::types::MemPrivFlags;

/// Number of RMRs that are bound to an LMR, and of windows and outstanding binds that use it.
type Uses = BTreeMap<LmrKey, (u32, u32)>;
/// Objects with their keys, and the keys of the next objects in empty slots.
type Read<K, V> = (vec::IntoIter<(K, V)>, Vec<K>);

/// Checks that the limits of a snapshot are those of an instance of the device, the first one or a further one.
pub(super) fn check_limits(
    device: &Limits,
    limits: &Limits,
    is_first: bool,
) -> Result<(), ResumeError> {
    // Two limits are not compared: the name is the process's, and the number of regions depends on mapped memory. The
    // path MTU is that of the time at which an instance was opened, and the snapshot has that of the first one.
    let snapshot = Limits {
        adapter_name: device.adapter_name.clone(),
        max_regions: device.max_regions,
        mtu: if is_first { limits.mtu } else { device.mtu },
        ..limits.clone()
    };
    if snapshot != *device {
        let what = format!("they are {snapshot:?}, and the device has {device:?}");
        return Err(ResumeError::snapshot("the limits", what));
    }
    Ok(())
}

impl<P: ParkProvider> Ia<P> {
    /// Makes all objects again, except that no queue is armed.
    pub(super) fn read_in(
        &mut self,
        tables: &IaTables<P>,
        conns: &ConnsById<'_>,
    ) -> Result<(), ResumeError> {
        self.read_pzs(tables)?;
        self.read_cnos(tables)?;
        self.read_srqs(tables)?;
        self.read_evds(tables)?;
        self.read_lmrs(tables)?;
        self.read_rmrs(tables)?;
        self.read_eps(tables, conns)?;
        self.read_requests(tables)?;
        self.read_async_evds(tables)?;
        self.contexts = tables.contexts.iter().copied().collect();
        self.ended = Ended::of(tables.ended);
        self.wakeups = tables.wakeups;
        self.ended_completions = tables.ended_completions;
        let connections = self.conns.len() + self.crs.len();
        let mut adapter = self.adapter.lock();
        adapter.set_connections(self.instance_index, connections);
        Ok(())
    }

    /// Makes the objects of a table by `make`.
    pub(super) fn read<T, H: Handle, V>(
        &mut self,
        table: &'static str,
        snapshot: &TableSnapshot<T, H>,
        handle: impl Fn(&T) -> H,
        mut make: impl FnMut(&mut Self, H::Key, &T) -> Result<V, ResumeError>,
    ) -> Result<Read<H::Key, V>, ResumeError> {
        let free = free_keys(table, snapshot, self.id)?;
        let mut all = Vec::new();
        for one in &snapshot.objects {
            let key = key_of(format_args!("{table}"), handle(one), self.id)?;
            all.push((key, make(self, key, one)?));
        }
        Ok((all.into_iter(), free))
    }

    fn read_pzs(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the PZs";
        let make = |ia: &mut Self, _, one: &_| {
            let PzSnapshot { pz, domain } = one;
            let pd = ia.provider.resume_pd(domain);
            let pd = pd.map_err(|error| ResumeError::device(text(pz), &error))?;
            Ok(Pz { pd, users: 0 })
        };
        let (all, free) = self.read(TABLE, &tables.pzs, |one| one.pz, make)?;
        self.pzs =
            Table::resume(all, &free).map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(())
    }

    fn read_cnos(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the CNOs";
        let make = |ia: &mut Self, key, one: &CnoSnapshot| {
            let triggered = one.triggered.map(|evd| key_of(one.cno, evd, ia.id));
            ia.cno_keys.push(key);
            Ok(Cno::resume(triggered.transpose()?, one.released))
        };
        let (all, free) = self.read(TABLE, &tables.cnos, |one| one.cno, make)?;
        self.cnos =
            Table::resume(all, &free).map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(())
    }

    fn read_srqs(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the SRQs";
        let make = |ia: &mut Self, key, one: &SrqSnapshot<_>| {
            let pz = ia.pz_key(one.pz).map_err(refused(one.srq))?;
            let (pd, owner) = (ia.pzs[pz].pd, index_of(key));
            let (recvs, segments) = (one.max_recv_dtos, one.max_recv_iov);
            let queue = ia
                .provider
                .resume_srq(pd, recvs, segments, owner, &one.queue);
            let queue = queue.map_err(|error| ResumeError::device(text(one.srq), &error))?;
            ia.pzs[pz].users += 1;
            Ok(Srq::resume(one, queue, pz))
        };
        let (all, free) = self.read(TABLE, &tables.srqs, |one| one.srq, make)?;
        self.srqs =
            Table::resume(all, &free).map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(())
    }

    fn read_evds(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the EVDs";
        let probes = entries_of_keep_alives(tables);
        let make = |ia: &mut Self, key, one: &_| ia.read_evd(key, one, &probes);
        let (all, free) = self.read(TABLE, &tables.evds, |one| one.evd, make)?;
        self.evds = Slots::resume(self.id, all, &free)
            .map_err(|error| ResumeError::of_table(TABLE, error))?;
        for one in &tables.evds.objects {
            let (key, cno) = (one.evd.key, one.cno);
            if let Some(cno) = cno.and_then(|cno| self.cnos.get_mut(cno.key)) {
                cno.attach(key);
                self.watch(key);
                self.mark_unarmed(key);
            }
        }
        Ok(())
    }

    fn read_evd(
        &mut self,
        key: EvdKey,
        one: &EvdSnapshot<P::CqSnapshot>,
        probes: &BTreeMap<EvdKey, u32>,
    ) -> Result<Evd<P>, ResumeError> {
        let name = text(one.evd);
        let cq = match &one.queue {
            None => None,
            Some(snapshot) => {
                let cq = self.provider.resume_cq(index_of(key), snapshot);
                let cq = cq.map_err(|error| ResumeError::device(&name, &error))?;
                let probes = probes.get(&key).copied().unwrap_or(0);
                let most = cq.capacity().saturating_sub(HIDDEN.saturating_add(probes));
                ResumeError::check_range(&name, [("qlen", one.qlen.into(), most.into())])?;
                check_counters(one.evd, [("taken", cq.taken())])?;
                Some(cq)
            }
        };
        let cno = one.cno.map(|cno| self.cno_key(cno)).transpose();
        let cno = cno.map_err(refused(one.evd))?;
        let mut events = Vec::new();
        for queued in &one.events {
            let srq = queued.srq.map(|srq| self.srq_key(srq)).transpose();
            let srq = srq.map_err(refused(one.evd))?;
            srq.into_iter().for_each(|srq| self.srqs[srq].taken_early());
            events.push((queued.event, srq));
        }
        Ok(Evd::resume(one, cq, cno, events.into_iter()))
    }

    fn read_lmrs(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the LMRs";
        let uses = self.uses_of_lmrs(tables)?;
        let make = |ia: &mut Self, key, one: &_| {
            let mut lmr = ia.read_lmr(one)?;
            let (bound, held) = uses.get(&key).copied().unwrap_or_default();
            lmr.resume_uses(bound, held);
            Ok(lmr)
        };
        let (all, free) = self.read(TABLE, &tables.lmrs, |one| one.lmr, make)?;
        self.regions = Regions::resume(all.collect(), &free)?;
        Ok(())
    }

    fn uses_of_lmrs(&self, tables: &IaTables<P>) -> Result<Uses, ResumeError> {
        let mut uses = Uses::new();
        let mut count = |lmr: LmrHandle, (bound, held): (u32, u32)| {
            let key = key_of(lmr, lmr, self.id)?;
            let all = uses.entry(key).or_default();
            *all = (all.0.saturating_add(bound), all.1.saturating_add(held));
            Ok(())
        };
        for rmr in &tables.rmrs.objects {
            if let Some(posted) = &rmr.posted {
                count(posted.lmr, (1, 0))?;
            }
            if let Some(lmr) = rmr.window_lmr {
                count(lmr, (0, 1))?;
            }
        }
        for bind in tables.eps.objects.iter().flat_map(|ep| &ep.binds) {
            if let Some(lmr) = bind.lmr {
                count(lmr, (0, 1))?;
            }
        }
        Ok(uses)
    }

    fn read_lmr(&mut self, one: &LmrSnapshot<P::RegionSnapshot>) -> Result<Lmr<P>, ResumeError> {
        let wrong = |what: String| Err(ResumeError::snapshot(text(one.lmr), what));
        let pz = self.pz_key(one.pz).map_err(refused(one.lmr))?;
        let privileges = one.privileges;
        let pd = self.pzs[pz].pd;
        let made = self.provider.resume_region(pd, privileges, &one.region);
        let (registration, memory) =
            made.map_err(|error| ResumeError::device(text(one.lmr), &error))?;
        let created = Registered::new(&registration, privileges);
        if created.bytes == 0 || created.address.checked_add(created.bytes - 1).is_none() {
            let (bytes, address) = (created.bytes, created.address);
            return wrong(format!("{bytes} bytes at {address:#x}"));
        }
        self.pzs[pz].users += 1;
        Ok(Lmr::new(
            (registration.region, memory, created),
            pz,
            (privileges, self.effective(privileges)),
            one.kind,
        ))
    }

    fn read_rmrs(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the RMRs";
        let mut outstanding = BTreeMap::new();
        for bind in tables.eps.objects.iter().flat_map(|ep| &ep.binds) {
            let count: &mut u32 = outstanding.entry(bind.rmr.key).or_default();
            *count = count.saturating_add(1);
        }
        let make = |ia: &mut Self, key, one: &RmrSnapshot<_>| {
            let binds = outstanding.get(&key).copied().unwrap_or(0);
            let rmr = ia.read_rmr(one, binds)?;
            if let Some(bound) = rmr.posted()
                && bound.privileges.contains(MemPrivFlags::REMOTE_INVALIDATE)
            {
                ia.rmrs_invalidatable.insert(bound.rmr_context, key);
            }
            Ok(rmr)
        };
        let (all, free) = self.read(TABLE, &tables.rmrs, |one| one.rmr, make)?;
        self.rmrs =
            Table::resume(all, &free).map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(())
    }

    fn read_rmr(
        &mut self,
        one: &RmrSnapshot<P::WindowSnapshot>,
        outstanding: u32,
    ) -> Result<Rmr<P>, ResumeError> {
        let wrong = |what: String| Err(ResumeError::snapshot(text(one.rmr), what));
        let pz = self.pz_key(one.pz).map_err(refused(one.rmr))?;
        let used = |lmr: LmrHandle| self.used_lmr(one.rmr, lmr);
        let posted_lmr = one.posted.map(|posted| used(posted.lmr)).transpose()?;
        let window_lmr = one.window_lmr.map(used).transpose()?;
        if let (Some(posted), Some(key)) = (&one.posted, posted_lmr)
            && let Some(lmr) = self.regions.get(key)
        {
            let (created, triplet) = (&lmr.created, &posted.triplet);
            let offset = triplet.virtual_address.checked_sub(created.address);
            let end = offset.and_then(|offset| offset.checked_add(triplet.segment_length));
            if end.is_none_or(|end| end > created.bytes)
                || triplet.lmr_context != created.lmr_context
                || lmr.pz != pz
            {
                return wrong(format!("{posted:?} is not a part of that LMR"));
            }
        }
        let bound_on = one.bound_on.map(|ep| key_of(one.rmr, ep, self.id));
        let bound_on = bound_on.transpose()?;
        let pd = self.pzs[pz].pd;
        let window = self.provider.resume_window(pd, outstanding, &one.window);
        let window = window.map_err(|error| ResumeError::device(text(one.rmr), &error))?;
        self.pzs[pz].users += 1;
        Ok(Rmr::resume(
            one, window, pz, posted_lmr, window_lmr, bound_on,
        ))
    }

    fn read_async_evds(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the asynchronous EVDs";
        for &evd in core::iter::once(&tables.async_evd).chain(&tables.async_evds) {
            let known = self
                .evd_mut(evd)
                .map_err(refused(format_args!("{TABLE}")))?;
            known.streams.attach(Stream::Other);
        }
        self.async_evd = tables.async_evd.key;
        self.async_evds = tables.async_evds.iter().map(|evd| evd.key).collect();
        Ok(())
    }
}

/// Returns the number of entries that the completion queue of each EVD needs for keep-alive probes.
fn entries_of_keep_alives<P: ParkProvider>(tables: &IaTables<P>) -> BTreeMap<EvdKey, u32> {
    let mut entries = BTreeMap::new();
    for ep in &tables.eps.objects {
        if let Some(evd) = ep.request_evd
            && ep.transport.keep_alive.is_some()
        {
            *entries.entry(evd.key).or_insert(0) += 1;
        }
    }
    entries
}
