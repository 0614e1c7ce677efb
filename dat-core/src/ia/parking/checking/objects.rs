//! Checks of CNOs, queues, regions and windows.

use std::collections::{BTreeMap, BTreeSet};

use super::{Objects, check_counters, existing, key_of, text};
use crate::error::parking::ResumeError;
use crate::event::Event;
use crate::handle::{EvdHandle, Handle};
use crate::ia::snapshot::IaTables;
use crate::object::evd::queue::is_completion;
use crate::object::lmr::MemType;
use crate::object::snapshot::{EvdSnapshot, LmrSnapshot, QueuedSnapshot, RmrSnapshot, SrqSnapshot};
use crate::object::srq::state::Watermark;
use crate::provider::ParkProvider;
use crate::types::{EvdFlags, MemPrivFlags, OF_BINDS, OF_REGIONS};

impl Objects {
    pub(super) fn check_cnos<P: ParkProvider>(
        &self,
        tables: &IaTables<P>,
    ) -> Result<(), ResumeError> {
        for one in &tables.cnos.objects {
            check_counters(one.cno, [("released", one.released)])?;
            if let Some(evd) = one.triggered {
                key_of(one.cno, evd, self.ia)?;
            }
        }
        Ok(())
    }

    pub(super) fn check_srqs<P: ParkProvider>(
        &self,
        tables: &IaTables<P>,
    ) -> Result<(), ResumeError> {
        for one in &tables.srqs.objects {
            existing(one.srq, &self.pzs, one.pz, self.ia)?;
            self.check_srq(one)?;
        }
        Ok(())
    }

    fn check_srq<S>(&self, one: &SrqSnapshot<S>) -> Result<(), ResumeError> {
        let (dtos, iov, low) = (one.max_recv_dtos, one.max_recv_iov, one.low_watermark);
        let (most_dtos, most_iov) = (
            self.attr.max_recv_per_srq,
            self.attr.max_iov_segments_per_dto,
        );
        ResumeError::check_range(
            text(one.srq),
            [
                ("max_recv_dtos", dtos.into(), most_dtos.into()),
                ("max_recv_iov", iov.into(), most_iov.into()),
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

    pub(super) fn check_evds<P: ParkProvider>(
        &self,
        tables: &IaTables<P>,
    ) -> Result<(), ResumeError> {
        let most = self.attr.max_evd_qlen.max(tables.config.async_evd_min_qlen);
        for one in &tables.evds.objects {
            check_evd(one, most)?;
            if let Some(cno) = one.cno {
                existing(one.evd, &self.cnos, cno, self.ia)?;
            }
            for queued in &one.events {
                self.check_queued(one.evd, one.flags, queued)?;
            }
        }
        Ok(())
    }

    fn check_queued(
        &self,
        evd: EvdHandle,
        flags: EvdFlags,
        queued: &QueuedSnapshot,
    ) -> Result<(), ResumeError> {
        let (ia, event) = (self.ia, &queued.event);
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
        if let Some(srq) = queued.srq {
            existing(evd, &self.srqs, srq, ia)?;
        }
        Ok(())
    }

    pub(super) fn check_lmrs<P: ParkProvider>(
        &self,
        tables: &IaTables<P>,
        atomics: bool,
    ) -> Result<(), ResumeError> {
        for one in &tables.lmrs.objects {
            existing(one.lmr, &self.pzs, one.pz, self.ia)?;
            check_privileges(one, atomics)?;
            if let MemType::Lmr(source) = one.kind {
                key_of(one.lmr, source, self.ia)?;
            }
        }
        Ok(())
    }

    pub(super) fn check_rmrs<P: ParkProvider>(
        &self,
        tables: &IaTables<P>,
    ) -> Result<(), ResumeError> {
        let mut outstanding = BTreeMap::new();
        for bind in tables.eps.objects.iter().flat_map(|ep| &ep.binds) {
            let count: &mut u64 = outstanding.entry(bind.rmr.key).or_default();
            *count = count.saturating_add(1);
        }
        let mut contexts = BTreeSet::new();
        for one in &tables.rmrs.objects {
            let binds = outstanding.get(&one.rmr.key).copied().unwrap_or(0);
            self.check_rmr(one, binds)?;
            if let Some(bound) = &one.posted
                && bound.privileges.contains(MemPrivFlags::REMOTE_INVALIDATE)
                && !contexts.insert(bound.rmr_context)
            {
                let what = format!("another RMR has the context {:#x}", bound.rmr_context);
                return Err(ResumeError::snapshot(text(one.rmr), what));
            }
        }
        Ok(())
    }

    fn check_rmr<W>(&self, one: &RmrSnapshot<W>, outstanding: u64) -> Result<(), ResumeError> {
        let wrong = |what: String| Err(ResumeError::snapshot(text(one.rmr), what));
        existing(one.rmr, &self.pzs, one.pz, self.ia)?;
        check_counters(one.rmr, [("binds", one.binds)])?;
        if one.void_up_to > one.binds || outstanding > one.binds {
            return wrong(format!(
                "{} binds, {outstanding} of them outstanding, void up to {}",
                one.binds, one.void_up_to
            ));
        }
        if let Some(lmr) = one.window_lmr {
            existing(one.rmr, &self.lmrs, lmr, self.ia)?;
        }
        if let Some(posted) = &one.posted {
            let pz = existing(one.rmr, &self.lmrs, posted.lmr, self.ia)?;
            if *pz != one.pz.key || !OF_BINDS.contains(posted.privileges) {
                return wrong(format!(
                    "{posted:?} is of another PZ, or has other privileges"
                ));
            }
        }
        if let Some(ep) = one.bound_on {
            key_of(one.rmr, ep, self.ia)?;
        }
        Ok(())
    }
}

/// Checks an EVD. One without a completion queue holds at most `most` events.
fn check_evd<C>(one: &EvdSnapshot<C>, most: u32) -> Result<(), ResumeError> {
    let (name, flags) = (text(one.evd), one.flags);
    let has_queue = one.queue.is_some();
    let needs_queue = flags.intersects(EvdFlags::DTO | EvdFlags::RMR_BIND);
    if flags.is_empty()
        || !EvdFlags::all().contains(flags)
        || one.qlen == 0
        || needs_queue != has_queue
    {
        let (bits, qlen) = (flags.bits(), one.qlen);
        let what = format!("flags {bits:#x}, length {qlen}, completion queue: {has_queue}");
        return Err(ResumeError::snapshot(&name, what));
    }
    let most = if has_queue { u32::MAX } else { most };
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
        ],
    )
}

fn check_privileges<R>(one: &LmrSnapshot<R>, has_atomics: bool) -> Result<(), ResumeError> {
    let privileges = one.privileges;
    let is_atomic = privileges.contains(MemPrivFlags::REMOTE_ATOMIC);
    let allows_atomic = privileges.contains(MemPrivFlags::LOCAL_WRITE) && has_atomics;
    if !OF_REGIONS.contains(privileges) || is_atomic && !allows_atomic {
        let what = format!("privileges {:#x}", privileges.bits());
        return Err(ResumeError::snapshot(text(one.lmr), what));
    }
    Ok(())
}
