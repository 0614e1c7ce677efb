//! Checks of endpoints, and of their connections.

use super::{Conns, Objects, check_counters, existing, key_of, most, text};
use crate::cm::{State, check_path};
use crate::error::Subtype;
use crate::error::parking::ResumeError;
use crate::ia::parking::endpoints::{has_connection, setup_of};
use crate::ia::parking::requests::{MOST_MTU, MOST_PRIVATE_DATA};
use crate::ia::snapshot::IaTables;
use crate::object::ep::state::EpState;
use crate::object::ep::{DRAIN_TIMEOUT, streams_of};
use crate::object::snapshot::{EpSnapshot, PendingBindSnapshot};
use crate::provider::{Nanos, ParkProvider};
use crate::types::EvdFlags;

impl Objects {
    pub(super) fn check_eps<P: ParkProvider>(
        &mut self,
        tables: &IaTables<P>,
        parked_at: Nanos,
        conns: &mut Conns<'_>,
    ) -> Result<(), ResumeError> {
        for one in &tables.eps.objects {
            self.check_setup(one)?;
            check_ep(one, parked_at)?;
            self.check_binds(one)?;
            check_connection(one, conns, self.index)?;
            check_counts(one)?;
        }
        Ok(())
    }

    /// Checks the objects and the attributes with which an endpoint was made.
    fn check_setup<Q, C>(&mut self, one: &EpSnapshot<Q, C>) -> Result<(), ResumeError> {
        if let Some(pz) = one.pz {
            existing(one.ep, &self.pzs, pz, self.ia)?;
        }
        if let Some(srq) = one.srq {
            existing(one.ep, &self.srqs, srq, self.ia)?;
        }
        let (dto, connection) = (EvdFlags::DTO, EvdFlags::CONNECTION);
        for (evd, flag) in [
            (one.recv_evd, dto),
            (one.request_evd, dto),
            (one.connect_evd, connection),
        ] {
            if let Some(evd) = evd {
                self.feed(one.ep, evd, flag)?;
            }
        }
        let setup = setup_of(one);
        let argument = Subtype::Arg3;
        setup
            .attr
            .check(&self.attr, setup.srq.is_some(), argument)
            .and_then(|()| setup.transport.check(argument))
            .map_err(|error| ResumeError::snapshot(text(one.ep), error.to_string()))?;
        for (evd, stream) in streams_of(&setup) {
            let known = self.evds.get_mut(evd).and_then(|evd| evd.value.as_mut());
            known.into_iter().for_each(|evd| evd.streams.attach(stream));
        }
        Ok(())
    }

    /// Checks the outstanding binds of an endpoint.
    fn check_binds<Q, C>(&self, one: &EpSnapshot<Q, C>) -> Result<(), ResumeError> {
        for bind in &one.binds {
            let PendingBindSnapshot {
                rmr,
                number,
                lmr,
                suppress: _,
            } = *bind;
            let key = key_of(one.ep, rmr, self.ia)?;
            let posted = self.rmrs.get(key).copied().unwrap_or(u64::MAX);
            if number == 0 || number > posted {
                let what = format!("bind {number} of {rmr:?}, of which {posted} were posted");
                return Err(ResumeError::snapshot(text(one.ep), what));
            }
            if let Some(lmr) = lmr {
                existing(one.ep, &self.lmrs, lmr, self.ia)?;
            }
        }
        Ok(())
    }
}

/// Checks that an endpoint has what its state needs, and nothing that the state cannot have.
fn check_ep<Q, C>(one: &EpSnapshot<Q, C>, parked_at: Nanos) -> Result<(), ResumeError> {
    let (name, state) = (text(one.ep), one.state);
    let wrong = |what: String| Err(ResumeError::snapshot(&name, what));
    let (has_pair, has_discard) = (one.queue_pair.is_some(), one.discard.is_some());
    if one.pz.is_some() != has_pair {
        return wrong(format!(
            "protection zone {:?}, and queue pair: {has_pair}",
            one.pz
        ));
    }
    let needs_discard = one.recv_evd.is_none() || one.request_evd.is_none();
    if has_discard != (has_pair && needs_discard) {
        return wrong(format!(
            "receive EVD {:?}, request EVD {:?}, and discard queue: {has_discard}",
            one.recv_evd, one.request_evd
        ));
    }
    if one.conn.is_some() != has_connection(state) {
        return wrong(format!("connection {:?} in state {state:?}", one.conn));
    }
    if !has_pair && (has_connection(state) || one.has_received) {
        return wrong(format!("no queue pair in state {state:?}"));
    }
    if state == EpState::ActiveConnectionPending && one.outgoing.is_none() {
        return wrong(format!("no path in state {state:?}"));
    }
    check_deadline(one, parked_at)?;
    let mtu = one.outgoing.map_or(1, |(_, _, mtu)| mtu);
    let private_data = one.private_data.len() as u64;
    ResumeError::check_range(
        &name,
        [
            ("private_data", private_data, MOST_PRIVATE_DATA),
            ("mtu", mtu.into(), MOST_MTU),
        ],
    )?;
    if mtu == 0 {
        return wrong("an MTU code of 0".to_owned());
    }
    let outgoing = one.outgoing.map(|(path, _, _)| path);
    for path in [outgoing, one.path].into_iter().flatten() {
        check_path(&name, &path)?;
    }
    let none = Some(0);
    if one.srq.is_some() && (one.marks.soft == none || one.marks.hard == none) {
        return wrong(format!("{:?} with an SRQ", one.marks));
    }
    Ok(())
}

/// Checks the time of the next keep-alive check, or the deadline of a graceful disconnect.
fn check_deadline<Q, C>(one: &EpSnapshot<Q, C>, parked_at: Nanos) -> Result<(), ResumeError> {
    let state = one.state;
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
        let what = format!("check at {:?} in state {state:?}", one.next_check);
        return Err(ResumeError::snapshot(text(one.ep), what));
    }
    let interval = one.transport.keep_alive.map_or(0, |it| it.as_nanos());
    let interval = u64::try_from(interval).unwrap_or(u64::MAX);
    let last = parked_at.saturating_add(interval.max(DRAIN_TIMEOUT));
    let next_check = one.next_check.unwrap_or(0);
    ResumeError::check_range(text(one.ep), [("next_check", next_check, last)])
}

/// Checks that an endpoint's connection is its own and in a state that fits.
fn check_connection<Q, C>(
    one: &EpSnapshot<Q, C>,
    conns: &mut Conns<'_>,
    owner: u32,
) -> Result<(), ResumeError> {
    let Some(id) = one.conn else { return Ok(()) };
    let conn = conns.take(one.ep, id, owner)?;
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
    if !fits {
        let what = format!("state {:?}, and {id:?} is in {:?}", one.state, conn.state);
        return Err(ResumeError::snapshot(text(one.ep), what));
    }
    let Some((path, psn, mtu)) = one.outgoing.filter(|_| conn.requested().is_some()) else {
        return Ok(());
    };
    let to_peer = &conn.peer.path;
    let is_same_path = (path.gid, path.source_gid_index) == (to_peer.gid, to_peer.source_gid_index);
    if is_same_path && conn.requested() == Some((psn, mtu)) {
        return Ok(());
    }
    let what = format!("{:?} is not what {id:?} has asked for", one.outgoing);
    Err(ResumeError::snapshot(text(one.ep), what))
}

/// Checks the counters of an endpoint. Those of its queue pair are not known yet.
fn check_counts<Q, C>(one: &EpSnapshot<Q, C>) -> Result<(), ResumeError> {
    let counts = &one.counts;
    ResumeError::check_bytes(
        text(one.ep),
        [
            ("request_bytes", counts.before.request_bytes),
            ("received_bytes", counts.before.received_bytes),
            ("shared_bytes", counts.shared_bytes),
        ],
    )?;
    check_counters(
        one.ep,
        [
            ("requests", counts.before.requests),
            ("recvs", counts.before.recvs),
            ("full", counts.full),
            ("requests_failed", most(counts.requests_failed)),
            ("recvs_failed", most(counts.recvs_failed)),
        ],
    )
}
