//! Checks of the tables of an adapter and of its instances that need no device.
//!
//! The old process makes them before its provider finishes the parking, so that the next process is not the first one
//! that finds a contradiction. The next process makes them before it claims the handover: a refusal then changes
//! nothing, and the old process can go on.
//!
//! Every handle must be that of an object of the same snapshot, or of a freed one where the field allows it. Every
//! number has a bound. Endpoints, requests and service points must fit the connection manager's tables. What only the
//! device knows is compared when the objects are made.

mod endpoints;
mod objects;
mod requests;

use self::requests::Listeners;
use super::names::{Conns, check_counters, check_empty, free_keys, key_of, text};
use crate::attributes::IaAttr;
use crate::cm::Cm;
use crate::error::parking::ResumeError;
use crate::handle::{
    AnyHandle, CnoKey, CrKey, EpKey, EvdKey, Handle, LmrKey, PspKey, PzKey, RmrKey, RspKey, SrqKey,
};
use crate::ia::instance::{IaConfig, cm_config};
use crate::ia::snapshot::{AdapterTables, IaTables};
use crate::object::ep::state::EpState;
use crate::object::evd::streams::{Stream, Streams};
use crate::object::snapshot::TableSnapshot;
use crate::provider::{Nanos, ParkProvider};
use crate::slots::{Name, Resident, Slots};
use crate::stats::{EpStats, Failures};
use crate::table::Table;
use crate::types::EvdFlags;
use core::fmt::Debug;
use slotmap::Key;
use std::collections::BTreeSet;

/// Checks tables at the time `now`, and makes the connection manager.
pub(super) fn check<P: ParkProvider>(
    adapter: &AdapterTables,
    instances: &[IaTables<P>],
    now: Nanos,
) -> Result<Cm, ResumeError> {
    let AdapterTables { limits, cm: tables } = adapter;
    if !tables.events.is_empty() {
        let what = "the connection manager has events that were not handled";
        return Err(ResumeError::snapshot("the events", what));
    }
    let cm = Cm::resume(tables, &cm_config(limits), now)?;
    let count = instances.len() as u64;
    for conn in &tables.conns {
        if let Some(owner) = conn.owner.filter(|owner| u64::from(*owner) >= count) {
            let what = format!("{:?} is of instance {owner} of {count}", conn.id);
            return Err(ResumeError::snapshot("connections", what));
        }
    }
    check_empty(instances)?;
    let mut shared = SharedChecks {
        attr: IaAttr::from_limits(limits),
        atomics: limits.atomics,
        parked_at: tables.parked_at,
        cm: &cm,
        conns: Conns::new(tables),
        listeners: Listeners::default(),
    };
    for (index, tables) in (0..).zip(instances) {
        let checked = check_instance(tables, index, &mut shared);
        checked.map_err(|error| error.of_instance(tables.number))?;
    }
    let SharedChecks {
        conns, listeners, ..
    } = shared;
    listeners.check_all(tables.listeners.len())?;
    conns.check_left()?;
    Ok(cm)
}

/// What the checks of all instances share.
struct SharedChecks<'a> {
    /// Attributes of an adapter with the limits of the snapshot.
    attr: IaAttr,
    /// True if the device has atomic operations.
    atomics: bool,
    parked_at: Nanos,
    cm: &'a Cm,
    conns: Conns<'a>,
    listeners: Listeners,
}

/// Checks the tables of the instance at the place `index`.
fn check_instance<P: ParkProvider>(
    tables: &IaTables<P>,
    index: u32,
    shared: &mut SharedChecks<'_>,
) -> Result<(), ResumeError> {
    check_config(&tables.config)?;
    check_sums(tables)?;
    let mut objects = Objects::of(tables, index, shared.attr.clone())?;
    objects.check_cnos(tables)?;
    objects.check_srqs(tables)?;
    objects.check_evds(tables)?;
    objects.check_lmrs(tables, shared.atomics)?;
    objects.check_rmrs(tables)?;
    objects.check_eps(tables, shared.parked_at, &mut shared.conns)?;
    objects.check_requests(tables, shared)?;
    objects.check_async_evds(tables)?;
    objects.check_shares(tables)?;
    objects.check_contexts(tables)
}

fn check_config(config: &IaConfig) -> Result<(), ResumeError> {
    let IaConfig {
        async_evd_min_qlen,
        strict_evd_sharing: _,
        local_write_implies_read: _,
        network_events: _,
        recorder: _,
        transport,
    } = config;
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
    if *async_evd_min_qlen == 0 {
        let what = "the asynchronous EVD has no room";
        return Err(ResumeError::snapshot("the configuration", what));
    }
    Ok(())
}

/// Checks the instance's own counters.
fn check_sums<P: ParkProvider>(tables: &IaTables<P>) -> Result<(), ResumeError> {
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
    ResumeError::check_bytes(
        "the counters",
        [
            ("request_bytes", request_bytes),
            ("received_bytes", received_bytes),
        ],
    )?;
    check_counters(
        format_args!("the counters"),
        [
            ("requests", requests),
            ("doorbells", doorbells),
            ("requests_failed", most(requests_failed)),
            ("recvs", recvs),
            ("recvs_failed", most(recvs_failed)),
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
    )
}

/// Returns the largest number of failures with one status.
fn most(failures: Failures) -> u64 {
    failures.to_raw().into_iter().fold(0, u64::max)
}

/// The objects of a snapshot, by key, each with what the checks of other objects need.
struct Objects {
    ia: u32,
    /// Place of the instance in the snapshot, which is the owner of its connections.
    index: u32,
    /// Attributes of an adapter with the limits of the snapshot.
    attr: IaAttr,
    pzs: Table<PzKey, ()>,
    cnos: Table<CnoKey, ()>,
    srqs: Table<SrqKey, ()>,
    evds: KnownSlots<EvdKey, KnownEvd>,
    /// Each with its PZ.
    lmrs: Table<LmrKey, PzKey>,
    /// Each with the number of its binds.
    rmrs: Table<RmrKey, u64>,
    eps: KnownSlots<EpKey, EpState>,
    psps: Table<PspKey, ()>,
    rsps: Table<RspKey, ()>,
    crs: Table<CrKey, ()>,
}

struct KnownEvd {
    flags: EvdFlags,
    streams: Streams,
}

impl Objects {
    fn of<P: ParkProvider>(
        tables: &IaTables<P>,
        index: u32,
        attr: IaAttr,
    ) -> Result<Self, ResumeError> {
        let ia = tables.number;
        Ok(Self {
            ia,
            index,
            attr,
            pzs: table("the PZs", &tables.pzs, ia, |one| Ok((one.pz, ())))?,
            cnos: table("the CNOs", &tables.cnos, ia, |one| Ok((one.cno, ())))?,
            srqs: table("the SRQs", &tables.srqs, ia, |one| Ok((one.srq, ())))?,
            evds: slots("the EVDs", &tables.evds, ia, |one| {
                let streams = Streams::new(one.flags.contains(EvdFlags::SOFTWARE));
                let flags = one.flags;
                (one.evd, KnownEvd { flags, streams })
            })?,
            lmrs: table("the LMRs", &tables.lmrs, ia, |one| {
                Ok((one.lmr, key_of(one.lmr, one.pz, ia)?))
            })?,
            rmrs: table("the RMRs", &tables.rmrs, ia, |one| Ok((one.rmr, one.binds)))?,
            eps: slots("the endpoints", &tables.eps, ia, |one| (one.ep, one.state))?,
            psps: table("the PSPs", &tables.psps, ia, |one| Ok((one.psp, ())))?,
            rsps: table("the RSPs", &tables.rsps, ia, |one| Ok((one.rsp, ())))?,
            crs: table("the connection requests", &tables.crs, ia, |one| {
                Ok((one.cr, ()))
            })?,
        })
    }

    /// Checks that an EVD exists and may receive a stream.
    fn feed(
        &mut self,
        object: impl Debug,
        evd: crate::handle::EvdHandle,
        flag: EvdFlags,
    ) -> Result<&mut Streams, ResumeError> {
        let key = key_of(&object, evd, self.ia)?;
        let known = self.evds.get_mut(key).and_then(|evd| evd.value.as_mut());
        let Some(known) = known else {
            return Err(missing(object, evd));
        };
        if !known.flags.contains(flag) {
            let what = format!("{evd:?} was made without the flag of this stream");
            return Err(ResumeError::snapshot(text(object), what));
        }
        Ok(&mut known.streams)
    }

    fn check_async_evds<P: ParkProvider>(
        &mut self,
        tables: &IaTables<P>,
    ) -> Result<(), ResumeError> {
        const TABLE: &str = "the asynchronous EVDs";
        let mut seen = BTreeSet::new();
        for &evd in core::iter::once(&tables.async_evd).chain(&tables.async_evds) {
            let is_own = seen.is_empty();
            let streams = self.feed(format_args!("{TABLE}"), evd, EvdFlags::ASYNC)?;
            // The instance's own one has no stream of the program's.
            if is_own && streams.any() || !seen.insert(evd.key) {
                let what = format!("{evd:?} has other streams, or is there twice");
                return Err(ResumeError::snapshot(TABLE, what));
            }
            streams.attach(Stream::Other);
        }
        Ok(())
    }

    /// Checks that the streams of each EVD may share it.
    fn check_shares<P: ParkProvider>(&self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        if !tables.config.strict_evd_sharing {
            return Ok(());
        }
        let may_share = |known: &KnownEvd| known.streams.may_share();
        let evds = self.evds.iter();
        let refused = evds.filter(|(_, evd)| !evd.value.as_ref().is_none_or(may_share));
        refused.take(1).try_for_each(|(key, _)| {
            let evd = text(crate::handle::EvdHandle::new(key, self.ia));
            Err(ResumeError::snapshot(evd, "its streams may not share it"))
        })
    }

    fn check_contexts<P: ParkProvider>(&self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        let mut seen = BTreeSet::new();
        for &(handle, _) in &tables.contexts {
            if !self.has(handle) {
                return Err(missing(format_args!("the contexts"), handle));
            }
            if !seen.insert(handle.order()) {
                return Err(ResumeError::snapshot(text(handle), "it has two contexts"));
            }
        }
        Ok(())
    }

    fn has(&self, handle: AnyHandle) -> bool {
        match handle {
            AnyHandle::Ia => true,
            AnyHandle::Cr(h) => is_in(&self.crs, h, self.ia),
            AnyHandle::Ep(h) => h.of(self.ia).is_some_and(|key| self.ep(key).is_some()),
            AnyHandle::Evd(h) => h
                .of(self.ia)
                .is_some_and(|key| self.evds.somebody(key).is_some()),
            AnyHandle::Lmr(h) => is_in(&self.lmrs, h, self.ia),
            AnyHandle::Psp(h) => is_in(&self.psps, h, self.ia),
            AnyHandle::Pz(h) => is_in(&self.pzs, h, self.ia),
            AnyHandle::Rmr(h) => is_in(&self.rmrs, h, self.ia),
            AnyHandle::Rsp(h) => is_in(&self.rsps, h, self.ia),
            AnyHandle::Cno(h) => is_in(&self.cnos, h, self.ia),
            AnyHandle::Srq(h) => is_in(&self.srqs, h, self.ia),
        }
    }

    /// Returns the state of an endpoint; `None` if there is none with this key.
    fn ep(&self, key: EpKey) -> Option<EpState> {
        self.eps.somebody(key).and_then(|ep| ep.value)
    }
}

fn is_in<H: Handle, V>(table: &Table<H::Key, V>, handle: H, ia: u32) -> bool {
    handle.of(ia).is_some_and(|key| table.contains_key(key))
}

/// Checks that an object exists.
///
/// # Errors
/// `handle`, in `object`, does not name an object of the table.
fn existing<H: Handle, V>(
    object: impl Debug,
    table: &Table<H::Key, V>,
    handle: H,
    ia: u32,
) -> Result<&V, ResumeError> {
    let key = key_of(&object, handle, ia)?;
    table.get(key).ok_or_else(|| missing(object, handle))
}

fn missing(object: impl Debug, handle: impl Debug) -> ResumeError {
    ResumeError::snapshot(text(object), format!("{handle:?} does not exist"))
}

/// Makes the table of the objects of a snapshot.
fn table<T, H: Handle, V>(
    name: &'static str,
    snapshot: &TableSnapshot<T, H>,
    ia: u32,
    known: impl Fn(&T) -> Result<(H, V), ResumeError>,
) -> Result<Table<H::Key, V>, ResumeError> {
    let free = free_keys(name, snapshot, ia)?;
    let mut all = Vec::new();
    for one in &snapshot.objects {
        let (handle, value) = known(one)?;
        all.push((key_of(format_args!("{name}"), handle, ia)?, value));
    }
    Table::resume(all.into_iter(), &free).map_err(|error| ResumeError::of_table(name, error))
}

/// Does the same for endpoints and EVDs.
fn slots<T, H: Handle, V>(
    name: &'static str,
    snapshot: &TableSnapshot<T, H>,
    ia: u32,
    known: impl Fn(&T) -> (H, V),
) -> Result<KnownSlots<H::Key, V>, ResumeError> {
    let free = free_keys(name, snapshot, ia)?;
    let mut all = Vec::new();
    for one in &snapshot.objects {
        let (handle, value) = known(one);
        let known = Known {
            name: Name::none(),
            value: Some(value),
        };
        all.push((key_of(format_args!("{name}"), handle, ia)?, known));
    }
    Slots::resume(ia, all.into_iter(), &free).map_err(|error| ResumeError::of_table(name, error))
}

/// A table of endpoints or of EVDs.
type KnownSlots<K, V> = Slots<K, Known<K, V>>;

/// A value in a table of endpoints or of EVDs; `None` in an empty slot.
struct Known<K, V> {
    name: Name<K>,
    value: Option<V>,
}

impl<K: Key, V> Resident<K> for Known<K, V> {
    fn vacant() -> Self {
        Self {
            name: Name::none(),
            value: None,
        }
    }

    fn name(&mut self) -> &mut Name<K> {
        &mut self.name
    }

    fn named(&self) -> &Name<K> {
        &self.name
    }
}
