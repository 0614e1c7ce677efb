//! Endpoints of an instance that is read in.

use super::names::{Conns, check_counters, free_keys, key_of, refused, text};
use super::requests::{MOST_MTU, MOST_PRIVATE_DATA, check_path};
use crate::cm::State;
use crate::error::Subtype;
use crate::error::parking::ResumeError;
use crate::handle::{EpKey, EvdHandle, EvdKey, LmrKey, index_of};
use crate::ia::instance::Ia;
use crate::ia::snapshot::IaTables;
use crate::object::ep::cause::EndCause;
use crate::object::ep::state::EpState;
use crate::object::ep::{DISCARD_OWNER, DRAIN_TIMEOUT, Ep, MAX_OWNER, Setup};
use crate::object::rmr::PendingBind;
use crate::object::snapshot::{EpSnapshot, PendingBindSnapshot};
use crate::provider::{CompletionQueue, Nanos, ParkProvider, QueuePair, QueuesOf, ResumedQp};
use crate::slots::Slots;
use crate::types::EvdFlags;

type EpSnapshotOf<P> = EpSnapshot<<P as ParkProvider>::QpSnapshot, <P as ParkProvider>::CqSnapshot>;

/// Queue pair and discard queue of an endpoint.
type QueuesOfEp<P> = (
    Option<<P as crate::provider::Provider>::Qp>,
    Option<<P as crate::provider::Provider>::Cq>,
);

impl<P: ParkProvider> Ia<P> {
    /// Makes the endpoints again. Protection zones, regions, windows, SRQs and EVDs were made before.
    pub(super) fn read_eps(
        &mut self,
        tables: &IaTables<P>,
        conns: &mut Conns<'_>,
    ) -> Result<(), ResumeError> {
        const TABLE: &str = "the endpoints";
        let free = free_keys(TABLE, &tables.eps, self.id)?;
        let (mut all, mut setups) = (Vec::new(), Vec::new());
        for one in &tables.eps.objects {
            let key = key_of(format_args!("{TABLE}"), one.ep, self.id)?;
            let setup = self.setup_of(one)?;
            self.check_ep(one, tables.cm.parked_at)?;
            let binds = self.binds_of(one)?;
            let (qp, discard) = self.queues_of(key, &setup, one)?;
            self.check_connection(one, qp.as_ref(), conns)?;
            check_counts::<P>(one, qp.as_ref())?;
            let room = self.room_for_binds(&setup);
            let outstanding = qp.as_ref().map_or(0, QueuePair::requests_outstanding);
            let most = room.min(outstanding as usize); // CAST: widening.
            let count = binds.len() as u64;
            ResumeError::check_range(text(one.ep), [("binds", count, most as u64)])?;
            let max_read_iov = setup.attr.read_iov(&self.attr);
            let binds = binds.into_iter();
            let ep = Ep::resume(one, (&setup, max_read_iov), (qp, discard), binds, room);
            all.push((key, ep));
            setups.push((key, setup));
        }
        self.eps = Slots::resume(self.id, all.into_iter(), &free)
            .map_err(|error| ResumeError::of_table(TABLE, error))?;
        for (key, setup) in setups {
            self.list_ep(key, &setup);
        }
        Ok(())
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

    fn setup_of(&self, one: &EpSnapshotOf<P>) -> Result<Setup, ResumeError> {
        let refused = refused(one.ep);
        let evd = |evd: Option<EvdHandle>, flag, subtype| {
            self.evd_for(evd, flag, subtype).map_err(&refused)
        };
        let dto = EvdFlags::DTO;
        let setup = Setup {
            pz: one
                .pz
                .map(|pz| self.pz_key(pz))
                .transpose()
                .map_err(&refused)?,
            recv_evd: evd(one.recv_evd, dto, Subtype::HandleEvdRecv)?,
            request_evd: evd(one.request_evd, dto, Subtype::HandleEvdRequest)?,
            connect_evd: evd(
                one.connect_evd,
                EvdFlags::CONNECTION,
                Subtype::HandleEvdConn,
            )?,
            srq: one
                .srq
                .map(|srq| self.srq_key(srq))
                .transpose()
                .map_err(&refused)?,
            attr: one.attr,
            transport: one.transport,
        };
        let (attr, argument) = (&setup.attr, Subtype::Arg3);
        attr.check(&self.attr, setup.srq.is_some(), argument)
            .and_then(|()| setup.transport.check(argument))
            .map_err(&refused)?;
        Ok(setup)
    }

    /// Checks that an endpoint has what its state needs, and nothing that the state cannot have.
    fn check_ep(&self, one: &EpSnapshotOf<P>, parked_at: Nanos) -> Result<(), ResumeError> {
        let (name, state) = (text(one.ep), one.state);
        let wrong = |what: String| Err(ResumeError::snapshot(&name, what));
        if one.pz.is_some() != one.queue_pair.is_some() {
            return wrong(format!(
                "protection zone {:?}, and queue pair {:?}",
                one.pz, one.queue_pair
            ));
        }
        let needs_discard = one.recv_evd.is_none() || one.request_evd.is_none();
        if one.discard.is_some() != (one.queue_pair.is_some() && needs_discard) {
            return wrong(format!(
                "receive EVD {:?}, request EVD {:?}, and discard queue {:?}",
                one.recv_evd, one.request_evd, one.discard
            ));
        }
        if one.conn.is_some() != has_connection(state) {
            return wrong(format!("connection {:?} in state {state:?}", one.conn));
        }
        if one.queue_pair.is_none() && (has_connection(state) || one.has_received) {
            return wrong(format!("no queue pair in state {state:?}"));
        }
        if state == EpState::ActiveConnectionPending && one.outgoing.is_none() {
            return wrong(format!("no path in state {state:?}"));
        }
        let is_checked = match state {
            EpState::Connected => one.transport.keep_alive.is_some(),
            EpState::DisconnectPending => true,
            EpState::Unconnected
            | EpState::Reserved
            | EpState::PassiveConnectionPending
            | EpState::ActiveConnectionPending
            | EpState::TentativeConnectionPending
            | EpState::CompletionPending
            | EpState::Disconnected => false,
        };
        if one.next_check.is_some() != is_checked || one.next_check == Some(0) {
            return wrong(format!("check at {:?} in state {state:?}", one.next_check));
        }
        let interval = one.transport.keep_alive.map_or(0, |it| it.as_nanos());
        let interval = u64::try_from(interval).unwrap_or(u64::MAX);
        let last = parked_at.saturating_add(interval.max(DRAIN_TIMEOUT));
        let mtu = one.outgoing.map_or(1, |(_, _, mtu)| mtu);
        ResumeError::check_range(
            &name,
            [
                ("next_check", one.next_check.unwrap_or(0), last),
                (
                    "private_data",
                    one.private_data.len() as u64,
                    MOST_PRIVATE_DATA,
                ),
                ("mtu", mtu.into(), MOST_MTU),
            ],
        )?;
        if mtu == 0 {
            return wrong("an MTU code of 0".to_owned());
        }
        let outgoing = one.outgoing.map(|(path, _, _)| path);
        for path in [outgoing, one.path].into_iter().flatten() {
            check_path(&name, &path)?;
            let index = path.source_gid_index;
            if has_connection(state) && self.provider.gid(index).is_none() {
                return wrong(format!("no address of ours has the index {index}"));
            }
        }
        let none = Some(0);
        if one.srq.is_some() && (one.marks.soft == none || one.marks.hard == none) {
            return wrong(format!("{:?} with an SRQ", one.marks));
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
            let most = self.rmrs.get(key).map_or(u64::MAX, |rmr| rmr.binds());
            if number == 0 || number > most {
                let what = format!("bind {number} of {rmr:?}, of which {most} were posted");
                return Err(ResumeError::snapshot(text(one.ep), what));
            }
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

    /// Checks that an endpoint's connection is its own and in a state that fits.
    fn check_connection(
        &self,
        one: &EpSnapshotOf<P>,
        qp: Option<&P::Qp>,
        conns: &mut Conns<'_>,
    ) -> Result<(), ResumeError> {
        let Some(id) = one.conn else { return Ok(()) };
        let conn = conns.take(one.ep, id)?;
        let fits = match one.state {
            EpState::ActiveConnectionPending => {
                matches!(conn.state, State::ReqSent | State::ReqAcknowledged)
            }
            EpState::CompletionPending => {
                matches!(conn.state, State::RepSent | State::RepAcknowledged)
            }
            EpState::Connected | EpState::DisconnectPending => conn.state == State::Established,
            EpState::Unconnected
            | EpState::Reserved
            | EpState::PassiveConnectionPending
            | EpState::TentativeConnectionPending
            | EpState::Disconnected => false,
        };
        let index = conn.peer.path.source_gid_index;
        let has_source = self.provider.gid(index).is_some();
        if fits && has_source && conn.local_qpn == qp.map(QueuePair::number) {
            return Ok(());
        }
        let what = format!(
            "state {:?}, and {id:?} is in {:?}, of queue pair {:?}, from the address with index {index}",
            one.state, conn.state, conn.local_qpn
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

    /// Ends connections whose queue pairs have stopped meanwhile, unless an event of the device reports that. A queue
    /// pair with outstanding work flushes it, so there the completions report it.
    pub(super) fn end_broken(&mut self) -> Result<(), ResumeError> {
        let connected = |key: &EpKey| {
            let state = self.eps.get(*key).map(|ep| ep.hot.state);
            state.is_some_and(|state| {
                has_connection(state) && state != EpState::ActiveConnectionPending
            })
        };
        let all: Vec<EpKey> = self.eps.keys().filter(connected).collect();
        let mut broken = Vec::new();
        for key in all {
            let qp = self.eps.get(key).and_then(|ep| ep.qp.get());
            let is_idle = |qp: &&P::Qp| qp.requests_outstanding() + qp.recvs_outstanding() == 0;
            let Some(qp) = qp.filter(is_idle) else {
                continue;
            };
            let state = self.provider.qp_state(qp);
            let state = state.map_err(|error| ResumeError::device("a queue pair", &error))?;
            if state == ResumedQp::Error {
                broken.push(key);
            }
        }
        if broken.is_empty() {
            return Ok(());
        }
        self.progress();
        for key in broken {
            self.drain_queues_of(key);
            self.apply_effects();
            self.set_end_cause(key, EndCause::QueuePair(0));
            self.connection_failed(key);
        }
        self.apply_effects();
        Ok(())
    }
}

/// Returns whether an endpoint in this state has a connection, or an attempt to connect.
const fn has_connection(state: EpState) -> bool {
    matches!(
        state,
        EpState::ActiveConnectionPending
            | EpState::CompletionPending
            | EpState::Connected
            | EpState::DisconnectPending
    )
}

/// Checks the counters of an endpoint.
fn check_counts<P: ParkProvider>(
    one: &EpSnapshotOf<P>,
    qp: Option<&P::Qp>,
) -> Result<(), ResumeError> {
    let counts = &one.counts;
    let now = qp.map(QueuePair::counts).unwrap_or_default();
    check_counters(
        one.ep,
        [
            ("requests", counts.before.requests),
            ("request_bytes", counts.before.request_bytes),
            ("recvs", counts.before.recvs),
            ("received_bytes", counts.before.received_bytes),
            ("shared_bytes", counts.shared_bytes),
            ("full", counts.full),
            ("requests_failed", most(counts.requests_failed.to_raw())),
            ("recvs_failed", most(counts.recvs_failed.to_raw())),
        ],
    )?;
    let requests = counts.before.requests.saturating_add(now.requests);
    ResumeError::check_range(
        text(one.ep),
        [
            ("unrung", counts.unrung, requests),
            ("own", counts.own, requests),
        ],
    )
}

/// Returns the largest of some numbers.
pub(super) fn most(numbers: [u64; 12]) -> u64 {
    numbers.into_iter().fold(0, u64::max)
}
