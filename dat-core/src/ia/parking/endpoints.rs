//! Endpoints of an instance that is read in. Protection zones, regions, windows, SRQs and EVDs were made before.

use std::collections::BTreeMap;

use super::names::{key_of, refused, text};
use crate::cm::{ConnId, ConnSnapshot};
use crate::error::parking::ResumeError;
use crate::handle::{EpKey, EvdKey, LmrKey, index_of};
use crate::ia::instance::Ia;
use crate::ia::snapshot::IaTables;
use crate::object::ep::state::EpState;
use crate::object::ep::{DISCARD_OWNER, Ep, MAX_OWNER, Setup};
use crate::object::rmr::PendingBind;
use crate::object::snapshot::{EpSnapshot, PendingBindSnapshot};
use crate::provider::{CompletionQueue, ParkProvider, QueuePair, QueuesOf, ResumedQp};
use crate::slots::Slots;

type EpSnapshotOf<P> = EpSnapshot<<P as ParkProvider>::QpSnapshot, <P as ParkProvider>::CqSnapshot>;

/// The connections of an adapter that is resumed.
pub(super) type ConnsById<'a> = BTreeMap<ConnId, &'a ConnSnapshot>;

/// Queue pair and discard queue of an endpoint.
type QueuesOfEp<P> = (
    Option<<P as crate::provider::Provider>::Qp>,
    Option<<P as crate::provider::Provider>::Cq>,
);

impl<P: ParkProvider> Ia<P> {
    /// Makes the endpoints again.
    pub(super) fn read_eps(
        &mut self,
        tables: &IaTables<P>,
        conns: &ConnsById<'_>,
    ) -> Result<(), ResumeError> {
        const TABLE: &str = "the endpoints";
        let mut setups = Vec::new();
        let make = |ia: &mut Self, key, one: &EpSnapshot<_, _>| {
            let setup = ia.existing_setup_of(one)?;
            let ep = ia.read_ep(key, &setup, one, conns)?;
            setups.push((key, setup));
            Ok(ep)
        };
        let (all, free) = self.read(TABLE, &tables.eps, |one| one.ep, make)?;
        self.eps = Slots::resume(self.id, all, &free)
            .map_err(|error| ResumeError::of_table(TABLE, error))?;
        for (key, setup) in setups {
            self.list_ep(key, &setup);
        }
        Ok(())
    }

    fn read_ep(
        &mut self,
        key: EpKey,
        setup: &Setup,
        one: &EpSnapshotOf<P>,
        conns: &ConnsById<'_>,
    ) -> Result<Ep<P>, ResumeError> {
        let binds = self.binds_of(one)?;
        let (qp, discard) = self.queues_of(key, setup, one)?;
        self.check_addresses(one)?;
        let conn = one.conn.and_then(|conn| conns.get(&conn));
        conn.map_or(Ok(()), |conn| self.check_conn(one, qp.as_ref(), conn))?;
        check_counts::<P>(one, qp.as_ref())?;
        let room = self.room_for_binds(setup);
        let outstanding = qp.as_ref().map_or(0, QueuePair::requests_outstanding);
        let most = room.min(outstanding as usize); // CAST: widening.
        let count = binds.len() as u64;
        ResumeError::check_range(text(one.ep), [("binds", count, most as u64)])?;
        let max_read_iov = setup.attr.read_iov(&self.attr);
        let binds = binds.into_iter();
        Ok(Ep::resume(
            one,
            (setup, max_read_iov),
            (qp, discard),
            binds,
            room,
        ))
    }

    /// Returns the setup of an endpoint, whose objects exist.
    fn existing_setup_of(&self, one: &EpSnapshotOf<P>) -> Result<Setup, ResumeError> {
        let refused = refused(one.ep);
        if let Some(pz) = one.pz {
            self.pz_key(pz).map_err(&refused)?;
        }
        if let Some(srq) = one.srq {
            self.srq_key(srq).map_err(&refused)?;
        }
        let evds = [one.recv_evd, one.request_evd, one.connect_evd];
        for evd in evds.into_iter().flatten() {
            self.evd(evd).map_err(&refused)?;
        }
        Ok(setup_of(one))
    }

    /// Adds an endpoint to the lists that follow from its state.
    fn list_ep(&mut self, key: EpKey, setup: &Setup) {
        self.attach(key, setup);
        let Some(ep) = self.eps.get(key) else { return };
        let (state, next_check) = (ep.hot.state, ep.next_check);
        if let Some(cq) = &ep.discard {
            self.provider.watch_cq(cq);
        }
        if let Some(conn) = ep.conn {
            self.conns.insert(conn, key);
        }
        let is_marked = ep.marks.soft.is_some() || ep.marks.hard.is_some();
        if is_marked && ep.srq.is_none() {
            self.marked.insert(key);
        }
        if next_check != 0 {
            self.keep_alives.add(next_check, key);
        }
        if state == EpState::DisconnectPending {
            self.drain_begins(key);
        }
    }

    /// Checks that we have the addresses of an endpoint's paths.
    fn check_addresses(&self, one: &EpSnapshotOf<P>) -> Result<(), ResumeError> {
        let outgoing = one.outgoing.map(|(path, _, _)| path);
        let paths = [outgoing, one.path].into_iter().flatten();
        for path in paths.filter(|_| has_connection(one.state)) {
            let index = path.source_gid_index;
            if self.provider.gid(index).is_none() {
                let what = format!("no address of ours has the index {index}");
                return Err(ResumeError::snapshot(text(one.ep), what));
            }
        }
        Ok(())
    }

    /// Returns the outstanding binds of an endpoint.
    fn binds_of(&self, one: &EpSnapshotOf<P>) -> Result<Vec<PendingBind>, ResumeError> {
        let binds = one.binds.iter().map(|bind| {
            let PendingBindSnapshot {
                rmr,
                number,
                lmr,
                suppress,
            } = *bind;
            let key = key_of(one.ep, rmr, self.id)?;
            let lmr = lmr.map(|lmr| self.used_lmr(one.ep, lmr)).transpose()?;
            Ok(PendingBind {
                rmr: key,
                number,
                lmr,
                suppress,
            })
        });
        binds.collect()
    }

    /// Returns the key of an LMR that a window or a bind uses.
    pub(super) fn used_lmr(
        &self,
        object: impl core::fmt::Debug,
        lmr: crate::handle::LmrHandle,
    ) -> Result<LmrKey, ResumeError> {
        let key = key_of(&object, lmr, self.id)?;
        if self.regions.get(key).is_none() {
            let what = format!("{lmr:?} does not exist");
            return Err(ResumeError::snapshot(text(object), what));
        }
        Ok(key)
    }

    /// Makes the queue pair and the discard queue of an endpoint again.
    fn queues_of(
        &mut self,
        key: EpKey,
        setup: &Setup,
        one: &EpSnapshotOf<P>,
    ) -> Result<QueuesOfEp<P>, ResumeError> {
        let (Some(pz), Some(snapshot)) = (setup.pz, &one.queue_pair) else {
            return Ok((None, None));
        };
        let owner = index_of(key);
        let name = text(one.ep);
        ResumeError::check_range(&name, [("owner", owner.into(), MAX_OWNER.into())])?;
        let device = |error| ResumeError::device(&name, &error);
        let discard = match &one.discard {
            None => None,
            Some(snapshot) => {
                let cq = self.provider.resume_cq(DISCARD_OWNER | owner, snapshot);
                Some(cq.map_err(device)?)
            }
        };
        let needed = self.discard_entries(setup);
        if let Some(cq) = discard.as_ref().filter(|cq| cq.capacity() < needed) {
            let what = format!(
                "its discard queue has {} entries, and {needed} are needed",
                cq.capacity()
            );
            return Err(ResumeError::snapshot(&name, what));
        }
        let sizes = self.queue_sizes(setup);
        let cq = |evd: Option<EvdKey>| match evd {
            Some(evd) => self.evds[evd].cq.as_ref(),
            None => discard.as_ref(),
        };
        let (Some(request_cq), Some(recv_cq)) = (cq(setup.request_evd), cq(setup.recv_evd)) else {
            return Err(ResumeError::snapshot(
                &name,
                "an EVD has no completion queue",
            ));
        };
        let queues = QueuesOf {
            request_cq,
            recv_cq,
            srq: setup.srq.map(|srq| &self.srqs[srq].queue),
        };
        let pd = self.pzs[pz].pd;
        let qp = self.provider.resume_qp(pd, queues, sizes, owner, snapshot);
        let qp = qp.map_err(device)?;
        let found = self.provider.qp_state(&qp).map_err(device)?;
        if found == ResumedQp::Error
            && one.state != EpState::ActiveConnectionPending
            && let Some(conn) = one.conn
        {
            self.stopped.push((key, conn));
        }
        let is_possible = match (found, one.state) {
            (ResumedQp::Error, _) => true,
            (ResumedQp::ReadyToSend, state) => {
                has_connection(state) && state != EpState::ActiveConnectionPending
            }
            (ResumedQp::Init, state) => {
                !has_connection(state) || state == EpState::ActiveConnectionPending
            }
            (ResumedQp::ReadyToReceive, _) => false,
        };
        if !is_possible {
            let what = format!("state {:?}, and its queue pair is in {found:?}", one.state);
            return Err(ResumeError::snapshot(&name, what));
        }
        Ok((Some(qp), discard))
    }

    /// Checks that a connection is that of an endpoint's queue pair, and that we have its address.
    fn check_conn(
        &self,
        one: &EpSnapshotOf<P>,
        qp: Option<&P::Qp>,
        conn: &ConnSnapshot,
    ) -> Result<(), ResumeError> {
        let index = conn.peer.path.source_gid_index;
        let has_source = self.provider.gid(index).is_some();
        if has_source && conn.local_qpn == qp.map(QueuePair::number) {
            return Ok(());
        }
        let what = format!(
            "{:?} is of queue pair {:?}, from the address with index {index}",
            conn.id, conn.local_qpn
        );
        Err(ResumeError::snapshot(text(one.ep), what))
    }

    /// Arms the discard queues. The device also reports entries that are in them.
    pub(super) fn arm_discards(&mut self) {
        let all: Vec<EpKey> = self.eps.keys().collect();
        for key in all {
            let discard = self.eps.get_mut(key).and_then(|ep| ep.discard.as_mut());
            discard.into_iter().for_each(|cq| cq.arm(false));
        }
    }
}

/// Returns whether an endpoint in this state has a connection, or an attempt to connect.
pub(super) const fn has_connection(state: EpState) -> bool {
    matches!(
        state,
        EpState::ActiveConnectionPending
            | EpState::CompletionPending
            | EpState::Connected
            | EpState::DisconnectPending
    )
}

/// Checks the counters of an endpoint that depend on those of its queue pair.
fn check_counts<P: ParkProvider>(
    one: &EpSnapshotOf<P>,
    qp: Option<&P::Qp>,
) -> Result<(), ResumeError> {
    let outstanding = qp.map_or(0, QueuePair::requests_outstanding);
    if one.own_outstanding && outstanding == 0 {
        let what = "a request of the library is outstanding, and its queue pair has none";
        return Err(ResumeError::snapshot(text(one.ep), what));
    }
    let counts = &one.counts;
    let now = qp.map(QueuePair::counts).unwrap_or_default();
    let requests = counts.before.requests.saturating_add(now.requests);
    ResumeError::check_range(
        text(one.ep),
        [
            ("unrung", counts.unrung, requests),
            ("own", counts.own, requests),
        ],
    )
}

/// Returns the setup of an endpoint.
pub(super) fn setup_of<Q, C>(one: &EpSnapshot<Q, C>) -> Setup {
    Setup {
        pz: one.pz.map(|pz| pz.key),
        recv_evd: one.recv_evd.map(|evd| evd.key),
        request_evd: one.request_evd.map(|evd| evd.key),
        connect_evd: one.connect_evd.map(|evd| evd.key),
        srq: one.srq.map(|srq| srq.key),
        attr: one.attr,
        transport: one.transport,
    }
}
