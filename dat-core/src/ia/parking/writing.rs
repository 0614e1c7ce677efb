//! An instance that is written out.

use core::mem::take;
use std::collections::BTreeMap;

use crate::handle::{
    AnyHandle, CrHandle, CrKey, EvdHandle, Handle, LmrHandle, PspHandle, PspKey, PzHandle,
    RspHandle,
};
use crate::ia::instance::Ia;
use crate::ia::snapshot::IaTables;
use crate::object::cr::Cr;
use crate::object::evd::queue::Evd;
use crate::object::psp::Psp;
use crate::object::pz::Pz;
use crate::object::snapshot::{
    CrSnapshot, LmrSnapshot, PspSnapshot, PzSnapshot, RspSnapshot, TableSnapshot,
};
use crate::provider::ParkProvider;
use crate::slots::{Resident, Slots};
use crate::table::Table;

impl<P: ParkProvider> Ia<P> {
    /// Writes the instance out, whose provider is at its quiet point. The instance has no objects afterwards.
    pub(super) fn write_out(&mut self, parking: &mut P::Parking) -> IaTables<P> {
        let Self {
            id: ia,
            regions,
            eps,
            evds,
            srqs,
            number: _,
            provider: _,
            pzs,
            rmrs_invalidatable: _,
            rmrs,
            psps,
            rsps,
            cnos,
            cno_keys,
            contexts,
            crs,
            adapter,
            instance_index: _,
            port_ups: _,
            overran: _,
            conns: _,
            listeners: _,
            draining: _,
            feeding: _,
            keep_alives,
            log: _,
            marked: _,
            effects: _,
            async_evd,
            async_evds,
            config,
            attr: _,
            provider_attr: _,
            more_datagrams: _,
            health: _,
            last_buffer_wait_left: _,
            recorder: _,
            latencies: _,
            observed: _,
            wakeups,
            may_sleep: _,
            ended,
            ended_completions,
            stopped: _,
        } = self;
        let (ia, state) = (*ia, adapter.lock());
        let mut contexts: Vec<(AnyHandle, u64)> = take(contexts).into_iter().collect();
        contexts.sort_by_key(|(handle, _)| handle.order());
        let free_lmrs = handles(regions.free().iter().copied(), ia);
        let lmrs = regions.drain().map(|(key, lmr)| {
            let (region, memory, pz, privileges, kind) = lmr.into_parts();
            LmrSnapshot {
                lmr: LmrHandle { key, ia },
                pz: PzHandle { key: pz, ia },
                privileges,
                kind,
                region: P::park_region(parking, region, memory),
            }
        });
        let lmrs = TableSnapshot {
            objects: lmrs.collect(),
            free: free_lmrs,
        };
        let mut cnos = table(cnos, ia, |key, cno| cno.park(key, ia));
        let order: BTreeMap<_, _> = cno_keys.iter().zip(0_usize..).collect();
        cnos.objects
            .sort_by_key(|cno| order.get(&cno.cno.key).copied());
        IaTables {
            number: ia,
            config: *config,
            async_evd: EvdHandle::new(*async_evd, ia),
            async_evds: handles(async_evds.iter().copied(), ia),
            contexts,
            wakeups: *wakeups,
            ended: ended.sums(),
            ended_completions: *ended_completions,
            lmrs,
            cnos,
            rmrs: table(rmrs, ia, |key, rmr| rmr.park(key, ia, parking)),
            eps: slots(eps, ia, |key, ep| {
                let is_scheduled = keep_alives.contains(ep.next_check, key);
                let next_check = is_scheduled.then_some(ep.next_check);
                ep.park(key, ia, next_check, parking)
            }),
            evds: slots(evds, ia, |key, evd: Evd<P>| {
                evd.park(key, ia, |srq| srqs.contains_key(srq), parking)
            }),
            srqs: table(srqs, ia, |key, srq| srq.park(key, ia, parking)),
            pzs: table(pzs, ia, |key, Pz { pd, users: _ }| PzSnapshot {
                pz: PzHandle { key, ia },
                domain: P::park_pd(parking, pd),
            }),
            psps: table(psps, ia, |key, psp| {
                let is_shared = state.is_shared(psp.listen);
                park_psp(key, ia, psp, is_shared)
            }),
            rsps: table(rsps, ia, |key, rsp| RspSnapshot {
                rsp: RspHandle { key, ia },
                listen: rsp.listen(),
                conn_qual: rsp.conn_qual,
                evd: EvdHandle::new(rsp.evd, ia),
                ep: rsp.ep.map(|ep| Handle::new(ep, ia)),
            }),
            crs: table(crs, ia, |key, cr| park_cr(key, ia, cr)),
        }
    }
}

fn park_psp(key: PspKey, ia: u32, psp: Psp, is_shared: bool) -> PspSnapshot {
    let Psp {
        listen,
        conn_qual,
        evd,
        flags,
    } = psp;
    PspSnapshot {
        psp: PspHandle { key, ia },
        listen,
        conn_qual,
        evd: EvdHandle::new(evd, ia),
        flags,
        is_shared,
    }
}

fn park_cr(key: CrKey, ia: u32, cr: Cr) -> CrSnapshot {
    let Cr {
        conn,
        peer,
        conn_qual,
        local,
        remote_gid,
        remote_port,
        private_data,
        reads_in,
        local_ep,
        lent: is_lent,
    } = cr;
    CrSnapshot {
        cr: CrHandle { key, ia },
        conn,
        peer,
        conn_qual,
        local,
        remote_gid,
        remote_port,
        private_data,
        reads_in,
        local_ep: local_ep.map(|ep| Handle::new(ep, ia)),
        is_lent,
    }
}

/// Makes handles of keys.
fn handles<H: Handle>(keys: impl Iterator<Item = H::Key>, ia: u32) -> Vec<H> {
    keys.map(|key| H::new(key, ia)).collect()
}

/// Empties a table, and returns its objects, each written out by `park`.
fn table<V, H: Handle, T>(
    table: &mut Table<H::Key, V>,
    ia: u32,
    mut park: impl FnMut(H::Key, V) -> T,
) -> TableSnapshot<T, H> {
    let free = handles(table.free().iter().copied(), ia);
    let objects = table.drain().map(|(key, value)| park(key, value)).collect();
    TableSnapshot { objects, free }
}

/// Does the same for a table of endpoints or of EVDs.
fn slots<V: Resident<H::Key>, H: Handle, T>(
    slots: &mut Slots<H::Key, V>,
    ia: u32,
    mut park: impl FnMut(H::Key, V) -> T,
) -> TableSnapshot<T, H> {
    let free = handles(slots.free(), ia);
    let objects = slots.drain().map(|(key, value)| park(key, value)).collect();
    TableSnapshot { objects, free }
}
