//! An instance that is read in. Every handle must be that of an object of the same snapshot, or of a freed one where
//! the field allows it. Every number is checked.

use std::collections::BTreeMap;

use super::endpoints::most;
use super::names::{Conns, check_counters, free_keys, key_of, refused, text};
use crate::attributes::HIDDEN;
use crate::error::parking::ResumeError;
use crate::event::Event;
use crate::handle::{EvdHandle, Handle, LmrHandle, LmrKey, SrqKey, index_of};
use crate::ia::instance::{Ia, IaConfig};
use crate::ia::regions::Regions;
use crate::ia::snapshot::IaTables;
use crate::object::cno::Cno;
use crate::object::evd::queue::{Evd, is_completion};
use crate::object::evd::streams::Stream;
use crate::object::lmr::{Lmr, MemType, Registered};
use crate::object::pz::Pz;
use crate::object::rmr::Rmr;
use crate::object::snapshot::{EvdSnapshot, LmrSnapshot, QueuedSnapshot, RmrSnapshot, SrqSnapshot};
use crate::object::srq::Srq;
use crate::object::srq::state::Watermark;
use crate::provider::{CompletionQueue, Limits, ParkProvider};
use crate::slots::Slots;
use crate::stats::{Ended, EpStats};
use crate::table::Table;
use crate::types::{EvdFlags, MemPrivFlags, OF_REGIONS};

/// Number of RMRs that are bound to an LMR, and of windows and outstanding binds that use it.
type Uses = BTreeMap<LmrKey, (u32, u32)>;

/// Checks that the tables are those of an instance on this device.
pub(super) fn check<P: ParkProvider>(
    provider: &P,
    tables: &IaTables<P>,
) -> Result<(), ResumeError> {
    // Two limits are not compared: the name is the process's, and the number of regions depends on mapped memory.
    let device = provider.limits();
    let snapshot = Limits {
        adapter_name: device.adapter_name.clone(),
        max_regions: device.max_regions,
        ..tables.limits.clone()
    };
    if snapshot != *device {
        let what = format!("they are {snapshot:?}, and the device has {device:?}");
        return Err(ResumeError::snapshot("the limits", what));
    }
    let IaConfig {
        async_evd_min_qlen,
        strict_evd_sharing: _,
        local_write_implies_read: _,
        network_events: _,
        recorder: _,
        transport,
    } = tables.config;
    let code = |name, value: u8, limit| (name, u64::from(value), limit);
    ResumeError::check_range(
        "the configuration",
        [
            code("retry_count", transport.retry_count, 7),
            code("rnr_retry", transport.rnr_retry, 7),
            code("ack_timeout", transport.ack_timeout.unwrap_or(0), 31),
            code("min_rnr_timer", transport.min_rnr_timer, 31),
        ],
    )?;
    if async_evd_min_qlen == 0 {
        let what = "the asynchronous EVD has no room";
        return Err(ResumeError::snapshot("the configuration", what));
    }
    if !tables.cm.events.is_empty() {
        let what = "the connection manager has events that were not handled";
        return Err(ResumeError::snapshot("the events", what));
    }
    Ok(())
}

impl<P: ParkProvider> Ia<P> {
    /// Makes all objects again, except that no queue is armed.
    pub(super) fn read_in(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        let mut conns = Conns::new(&tables.cm);
        self.read_pzs(tables)?;
        self.read_cnos(tables)?;
        self.read_srqs(tables)?;
        self.read_evds(tables)?;
        self.read_lmrs(tables)?;
        self.read_rmrs(tables)?;
        self.read_eps(tables, &mut conns)?;
        self.read_requests(tables, &mut conns)?;
        self.read_async_evds(tables)?;
        self.check_shares()?;
        for &(handle, context) in &tables.contexts {
            self.check_any(handle).map_err(refused(handle))?;
            if self.contexts.insert(handle, context).is_some() {
                return Err(ResumeError::snapshot(text(handle), "it has two contexts"));
            }
        }
        self.read_counters(tables)?;
        let connections = self.conns.len() + self.crs.len();
        let mut adapter = self.adapter.lock();
        adapter.set_connections(self.instance_index, connections);
        Ok(())
    }

    fn read_counters(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        let EpStats {
            requests,
            request_bytes,
            doorbells,
            requests_failed,
            recvs,
            received_bytes,
            recvs_failed,
            full,
            requests_outstanding,
            recvs_outstanding,
        } = tables.ended;
        check_counters(
            format_args!("the counters"),
            [
                ("requests", requests),
                ("request_bytes", request_bytes),
                ("doorbells", doorbells),
                ("requests_failed", most(requests_failed.to_raw())),
                ("recvs", recvs),
                ("received_bytes", received_bytes),
                ("recvs_failed", most(recvs_failed.to_raw())),
                ("full", full),
                ("wakeups", tables.wakeups),
                ("ended_completions", tables.ended_completions),
            ],
        )?;
        ResumeError::check_range(
            format_args!("the counters"),
            [
                ("requests_outstanding", requests_outstanding, 0),
                ("recvs_outstanding", recvs_outstanding, 0),
            ],
        )?;
        self.ended = Ended::of(tables.ended);
        self.wakeups = tables.wakeups;
        self.ended_completions = tables.ended_completions;
        Ok(())
    }

    fn read_pzs(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the PZs";
        let mut all = Vec::new();
        for one in &tables.pzs.objects {
            let key = key_of(format_args!("{TABLE}"), one.pz, self.id)?;
            let pd = self.provider.resume_pd(&one.domain);
            let pd = pd.map_err(|error| ResumeError::device(text(one.pz), &error))?;
            all.push((key, Pz { pd, users: 0 }));
        }
        let free = free_keys(TABLE, &tables.pzs, self.id)?;
        self.pzs = Table::resume(all.into_iter(), &free)
            .map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(())
    }

    fn read_cnos(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the CNOs";
        let mut all = Vec::new();
        for one in &tables.cnos.objects {
            let key = key_of(format_args!("{TABLE}"), one.cno, self.id)?;
            check_counters(one.cno, [("released", one.released)])?;
            let triggered = one.triggered.map(|evd| key_of(one.cno, evd, self.id));
            all.push((key, Cno::resume(triggered.transpose()?, one.released)));
            self.cno_keys.push(key);
        }
        let free = free_keys(TABLE, &tables.cnos, self.id)?;
        self.cnos = Table::resume(all.into_iter(), &free)
            .map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(())
    }

    fn read_srqs(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the SRQs";
        let mut all = Vec::new();
        for one in &tables.srqs.objects {
            let key = key_of(format_args!("{TABLE}"), one.srq, self.id)?;
            self.check_srq(one)?;
            let pz = self.pz_key(one.pz).map_err(refused(one.srq))?;
            let (pd, owner) = (self.pzs[pz].pd, index_of(key));
            let (recvs, segments) = (one.max_recv_dtos, one.max_recv_iov);
            let queue = self
                .provider
                .resume_srq(pd, recvs, segments, owner, &one.queue);
            let queue = queue.map_err(|error| ResumeError::device(text(one.srq), &error))?;
            self.pzs[pz].users += 1;
            all.push((key, Srq::resume(one, queue, pz)));
        }
        let free = free_keys(TABLE, &tables.srqs, self.id)?;
        self.srqs = Table::resume(all.into_iter(), &free)
            .map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(())
    }

    fn check_srq(&self, one: &SrqSnapshot<P::SrqSnapshot>) -> Result<(), ResumeError> {
        let (dtos, iov, low) = (one.max_recv_dtos, one.max_recv_iov, one.low_watermark);
        let most = self.attr.max_iov_segments_per_dto;
        ResumeError::check_range(
            text(one.srq),
            [
                (
                    "max_recv_dtos",
                    dtos.into(),
                    self.attr.max_recv_per_srq.into(),
                ),
                ("max_recv_iov", iov.into(), most.into()),
                ("low_watermark", low.into(), dtos.into()),
            ],
        )?;
        check_counters(one.srq, [("full", one.full)])?;
        let is_off = one.mode.watermark == Watermark::Off;
        if dtos == 0 || iov == 0 || is_off != (low == 0) {
            let what = format!(
                "{dtos} receives of {iov} segments, low watermark {low} in {:?}",
                one.mode
            );
            return Err(ResumeError::snapshot(text(one.srq), what));
        }
        Ok(())
    }

    fn read_evds(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the EVDs";
        let free = free_keys(TABLE, &tables.evds, self.id)?;
        let mut all = Vec::new();
        for one in &tables.evds.objects {
            let key = key_of(format_args!("{TABLE}"), one.evd, self.id)?;
            let name = text(one.evd);
            let owner = index_of(key);
            let cq = match &one.queue {
                None => None,
                Some(snapshot) => {
                    let cq = self.provider.resume_cq(owner, snapshot);
                    Some(cq.map_err(|error| ResumeError::device(&name, &error))?)
                }
            };
            let keep_alives = entries_of_keep_alives(tables, one.evd);
            self.check_evd(one, cq.as_ref(), keep_alives)?;
            let cno = one.cno.map(|cno| self.cno_key(cno)).transpose();
            let cno = cno.map_err(refused(one.evd))?;
            let mut events = Vec::new();
            for queued in &one.events {
                events.push((queued.event, self.slot_of(one.evd, one.flags, queued)?));
            }
            all.push((key, Evd::resume(one, cq, cno, events.into_iter())));
        }
        self.evds = Slots::resume(self.id, all.into_iter(), &free)
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

    fn check_evd(
        &self,
        one: &EvdSnapshot<P::CqSnapshot>,
        cq: Option<&P::Cq>,
        keep_alives: u32,
    ) -> Result<(), ResumeError> {
        let (name, flags) = (text(one.evd), one.flags);
        let wrong = |what: String| Err(ResumeError::snapshot(&name, what));
        if flags.is_empty() || !EvdFlags::all().contains(flags) || one.qlen == 0 {
            return wrong(format!("flags {:#x}, length {}", flags.bits(), one.qlen));
        }
        if flags.intersects(EvdFlags::DTO | EvdFlags::RMR_BIND) != cq.is_some() {
            return wrong(format!("flags {:#x}, queue {:?}", flags.bits(), one.queue));
        }
        let hidden = HIDDEN.saturating_add(keep_alives);
        let most = match cq {
            Some(cq) => cq.capacity().saturating_sub(hidden),
            None => self.attr.max_evd_qlen.max(self.config.async_evd_min_qlen),
        };
        let others = one.events.iter().filter(|one| !is_completion(&one.event));
        let others = others.count() as u64;
        ResumeError::check_range(
            &name,
            [
                ("qlen", one.qlen.into(), most.into()),
                ("events", others, one.qlen.into()),
                (
                    "completions",
                    one.events.len() as u64 - others,
                    u32::MAX.into(),
                ),
            ],
        )?;
        check_counters(
            one.evd,
            [
                ("notifications", one.notifications),
                ("queued", one.queued),
                ("overflows", one.overflows),
                ("wakeups", one.wakeups),
                ("taken", cq.map_or(0, CompletionQueue::taken)),
            ],
        )
    }

    /// Checks an event of an EVD, and returns the SRQ whose slot it occupies.
    fn slot_of(
        &mut self,
        evd: EvdHandle,
        flags: EvdFlags,
        queued: &QueuedSnapshot,
    ) -> Result<Option<SrqKey>, ResumeError> {
        let (ia, event) = (self.id, &queued.event);
        let (flag, is_ours) = match event {
            Event::Dto(done) => (EvdFlags::DTO, done.ep.of(ia).is_some()),
            Event::RmrBind(done) => (EvdFlags::RMR_BIND, done.rmr.of(ia).is_some()),
            Event::ConnectionRequest(request) => (EvdFlags::CR, request.cr.of(ia).is_some()),
            Event::Connection(change) => (EvdFlags::CONNECTION, change.ep.of(ia).is_some()),
            // The event may be of another instance.
            Event::Async(_) => (EvdFlags::ASYNC, true),
            Event::Software(_) => (EvdFlags::SOFTWARE, true),
        };
        let takes_slot = matches!(event, Event::Dto(done) if !done.request);
        if !flags.contains(flag) || !is_ours || queued.srq.is_some() && !takes_slot {
            let what = format!("flags {:#x}, and {queued:?}", flags.bits());
            return Err(ResumeError::snapshot(text(evd), what));
        }
        let Some(srq) = queued.srq else {
            return Ok(None);
        };
        let key = self.srq_key(srq).map_err(refused(evd))?;
        self.srqs[key].taken_early();
        Ok(Some(key))
    }

    fn read_lmrs(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the LMRs";
        let uses = self.uses_of_lmrs(tables)?;
        let mut all = Vec::new();
        for one in &tables.lmrs.objects {
            let key = key_of(format_args!("{TABLE}"), one.lmr, self.id)?;
            let mut lmr = self.read_lmr(one)?;
            let (bound, held) = uses.get(&key).copied().unwrap_or_default();
            lmr.resume_uses(bound, held);
            all.push((key, lmr));
        }
        let free = free_keys(TABLE, &tables.lmrs, self.id)?;
        self.regions = Regions::resume(all, &free)?;
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
        let is_atomic = privileges.contains(MemPrivFlags::REMOTE_ATOMIC);
        let allows_atomic =
            privileges.contains(MemPrivFlags::LOCAL_WRITE) && self.provider.limits().atomics;
        if !OF_REGIONS.contains(privileges) || is_atomic && !allows_atomic {
            return wrong(format!("privileges {:#x}", privileges.bits()));
        }
        if let MemType::Lmr(source) = one.kind {
            key_of(one.lmr, source, self.id)?;
        }
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
        let mut all = Vec::new();
        for one in &tables.rmrs.objects {
            let key = key_of(format_args!("{TABLE}"), one.rmr, self.id)?;
            let binds = outstanding.get(&key).copied().unwrap_or(0);
            let rmr = self.read_rmr(one, binds)?;
            if let Some(bound) = rmr.posted()
                && bound.privileges.contains(MemPrivFlags::REMOTE_INVALIDATE)
                && self
                    .rmrs_invalidatable
                    .insert(bound.rmr_context, key)
                    .is_some()
            {
                let what = format!("another RMR has the context {:#x}", bound.rmr_context);
                return Err(ResumeError::snapshot(text(one.rmr), what));
            }
            all.push((key, rmr));
        }
        let free = free_keys(TABLE, &tables.rmrs, self.id)?;
        self.rmrs = Table::resume(all.into_iter(), &free)
            .map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(())
    }

    fn read_rmr(
        &mut self,
        one: &RmrSnapshot<P::WindowSnapshot>,
        outstanding: u32,
    ) -> Result<Rmr<P>, ResumeError> {
        let wrong = |what: String| Err(ResumeError::snapshot(text(one.rmr), what));
        let pz = self.pz_key(one.pz).map_err(refused(one.rmr))?;
        check_counters(one.rmr, [("binds", one.binds)])?;
        if one.void_up_to > one.binds || u64::from(outstanding) > one.binds {
            return wrong(format!(
                "{} binds, {outstanding} of them outstanding, void up to {}",
                one.binds, one.void_up_to
            ));
        }
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
        let own = key_of(format_args!("{TABLE}"), tables.async_evd, self.id)?;
        self.async_evd = own;
        for &evd in core::iter::once(&tables.async_evd).chain(&tables.async_evds) {
            let known = self.evd(evd).map_err(refused(format_args!("{TABLE}")))?;
            let is_second = evd.key != own && self.async_evds.contains(&evd.key);
            let is_again = evd.key == own && self.evds[own].streams.any();
            if !known.flags.contains(EvdFlags::ASYNC) || is_second || is_again {
                let what = format!("{evd:?} is not an asynchronous EVD, or is there twice");
                return Err(ResumeError::snapshot(TABLE, what));
            }
            self.evds[evd.key].streams.attach(Stream::Other);
            if evd.key != own {
                self.async_evds.push(evd.key);
            }
        }
        Ok(())
    }

    /// Checks that the streams of each EVD may share it.
    fn check_shares(&self) -> Result<(), ResumeError> {
        let mut shared = self.evds.iter().filter(|(_, evd)| !evd.streams.may_share());
        match shared.next() {
            Some((key, _)) if self.config.strict_evd_sharing => {
                let evd = text(self.evd_handle(key));
                Err(ResumeError::snapshot(evd, "its streams may not share it"))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the number of entries that the completion queue of an EVD needs for keep-alive probes.
fn entries_of_keep_alives<P: ParkProvider>(tables: &IaTables<P>, evd: EvdHandle) -> u32 {
    let probes = tables.eps.objects.iter();
    let probes =
        probes.filter(|ep| ep.request_evd == Some(evd) && ep.transport.keep_alive.is_some());
    u32::try_from(probes.count()).unwrap_or(u32::MAX)
}
