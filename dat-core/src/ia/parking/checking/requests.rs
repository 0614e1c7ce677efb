//! Checks of service points and connection requests.

use std::collections::{BTreeMap, BTreeSet};

use super::{Conns, Objects, SharedChecks, key_of, text};
use crate::cm::{Cm, ListenId, State, check_path};
use crate::error::parking::ResumeError;
use crate::handle::{EpHandle, EpKey, Handle};
use crate::ia::parking::requests::{MOST_MTU, MOST_PRIVATE_DATA};
use crate::ia::snapshot::IaTables;
use crate::object::cr::Peer;
use crate::object::ep::state::EpState;
use crate::object::evd::streams::Stream;
use crate::object::service_point::service_id;
use crate::object::snapshot::CrSnapshot;
use crate::provider::ParkProvider;
use crate::types::{ConnQual, EvdFlags, PspFlags};

/// The listeners of the service points that were checked, of all instances so far.
#[derive(Default)]
pub(super) struct Listeners(BTreeMap<ListenId, ListenedTo>);

/// The service points of a listener.
struct ListenedTo {
    /// True if all of them share the listener.
    is_shared: bool,
    /// Place of the last instance with such a service point.
    last: u32,
}

/// The endpoints of service points and requests that were checked.
type Held = BTreeSet<EpKey>;

impl Objects {
    pub(super) fn check_requests<P: ParkProvider>(
        &mut self,
        tables: &IaTables<P>,
        shared: &mut SharedChecks<'_>,
    ) -> Result<(), ResumeError> {
        let mut held = Held::new();
        let (cm, listeners) = (shared.cm, &mut shared.listeners);
        self.check_psps(tables, cm, listeners)?;
        self.check_rsps(tables, cm, listeners, &mut held)?;
        self.check_crs(tables, &mut shared.conns, &mut held)?;
        for one in &tables.eps.objects {
            let state = one.state;
            let waits = matches!(
                state,
                EpState::Reserved
                    | EpState::PassiveConnectionPending
                    | EpState::TentativeConnectionPending
            );
            if waits != held.contains(&one.ep.key) {
                let what = format!("state {state:?}, and no request or RSP for it");
                return Err(ResumeError::snapshot(text(one.ep), what));
            }
        }
        Ok(())
    }

    fn check_psps<P: ParkProvider>(
        &mut self,
        tables: &IaTables<P>,
        cm: &Cm,
        listeners: &mut Listeners,
    ) -> Result<(), ResumeError> {
        for one in &tables.psps.objects {
            let streams = self.feed(one.psp, one.evd, EvdFlags::CR)?;
            streams.attach(Stream::Other);
            let name = text(one.psp);
            if !PspFlags::all().contains(one.flags) {
                let what = format!("flags {:#x}", one.flags.bits());
                return Err(ResumeError::snapshot(name, what));
            }
            let at = (one.listen, one.conn_qual);
            listeners.add(&name, cm, at, (self.index, one.is_shared))?;
        }
        Ok(())
    }

    fn check_rsps<P: ParkProvider>(
        &mut self,
        tables: &IaTables<P>,
        cm: &Cm,
        listeners: &mut Listeners,
        held: &mut Held,
    ) -> Result<(), ResumeError> {
        for one in &tables.rsps.objects {
            key_of(one.rsp, one.evd, self.ia)?;
            let ep = one.ep.map(|ep| key_of(one.rsp, ep, self.ia)).transpose()?;
            let Some(listen) = one.listen else { continue };
            let streams = self.feed(one.rsp, one.evd, EvdFlags::CR)?;
            streams.attach(Stream::Other);
            let name = text(one.rsp);
            listeners.add(&name, cm, (listen, one.conn_qual), (self.index, false))?;
            if let Some(ep) = ep {
                self.hold(&name, ep, EpState::Reserved, held)?;
            }
        }
        Ok(())
    }

    /// Records that an endpoint waits for a request or belongs to one.
    fn hold(
        &self,
        object: &str,
        ep: EpKey,
        expected: EpState,
        held: &mut Held,
    ) -> Result<(), ResumeError> {
        if self.ep(ep) == Some(expected) && held.insert(ep) {
            return Ok(());
        }
        let ep = EpHandle::new(ep, self.ia);
        let what = format!("{ep:?} is not in state {expected:?}, or is that of another request");
        Err(ResumeError::snapshot(object, what))
    }

    fn check_crs<P: ParkProvider>(
        &self,
        tables: &IaTables<P>,
        conns: &mut Conns<'_>,
        held: &mut Held,
    ) -> Result<(), ResumeError> {
        for one in &tables.crs.objects {
            check_numbers(one)?;
            let name = text(one.cr);
            let conn = conns.take(one.cr, one.conn, self.index)?;
            if !matches!(
                conn.state,
                State::ReqReceived | State::MraSent | State::Withdrawn
            ) {
                let what = format!("{:?} is in state {:?}", conn.id, conn.state);
                return Err(ResumeError::snapshot(name, what));
            }
            let peer = &one.peer;
            if !conn.is_asked_by(peer.qpn, one.remote_gid, &peer.path) {
                let (qpn, to) = (conn.remote_qpn, &conn.peer);
                let what = format!("{peer:?}, and {:?} is with {qpn:?} at {to:?}", conn.id);
                return Err(ResumeError::snapshot(name, what));
            }
            let local_ep = one.local_ep;
            let local_ep = local_ep.map(|ep| key_of(one.cr, ep, self.ia)).transpose()?;
            let expected = if one.is_lent {
                EpState::TentativeConnectionPending
            } else {
                EpState::PassiveConnectionPending
            };
            match local_ep {
                Some(ep) => self.hold(&name, ep, expected, held)?,
                None if one.is_lent => {
                    return Err(ResumeError::snapshot(name, "no endpoint is lent"));
                }
                None => {}
            }
        }
        Ok(())
    }
}

impl Listeners {
    /// Records that a service point of the instance at the place `index` has a listener.
    fn add(
        &mut self,
        object: &str,
        cm: &Cm,
        (listen, conn_qual): (ListenId, ConnQual),
        (index, is_shared): (u32, bool),
    ) -> Result<(), ResumeError> {
        let found = cm.listener(service_id(conn_qual));
        if conn_qual.0 == 0 || found != Some(listen) {
            let what = format!("{listen:?} does not listen at {:#x}", conn_qual.0);
            return Err(ResumeError::snapshot(object, what));
        }
        let one = ListenedTo {
            is_shared,
            last: index,
        };
        let Some(before) = self.0.insert(listen, one) else {
            return Ok(());
        };
        // Instances come in the order of their places.
        if before.is_shared && is_shared && before.last != index {
            return Ok(());
        }
        let what = format!("another service point has {listen:?}, and does not share it");
        Err(ResumeError::snapshot(object, what))
    }

    /// Checks that each of the connection manager's listeners has a service point.
    pub(super) fn check_all(&self, all: usize) -> Result<(), ResumeError> {
        let used = self.0.len();
        if used == all {
            return Ok(());
        }
        let what = format!("{used} of {all} have a service point");
        Err(ResumeError::snapshot("the listeners", what))
    }
}

/// Checks the numbers that a request has from its peer.
fn check_numbers(cr: &CrSnapshot) -> Result<(), ResumeError> {
    let Peer {
        path,
        qpn: _,
        psn: _,
        mtu,
        reads_out: _,
        retry_count,
        rnr_retry,
        ack_timeout,
    } = cr.peer;
    let name = text(cr.cr);
    check_path(&name, &path)?;
    let private_data = cr.private_data.len() as u64;
    ResumeError::check_range(
        &name,
        [
            ("mtu", mtu.into(), MOST_MTU),
            ("retry_count", retry_count.into(), 7),
            ("rnr_retry", rnr_retry.into(), 7),
            ("ack_timeout", ack_timeout.into(), 31),
            ("private_data", private_data, MOST_PRIVATE_DATA),
        ],
    )?;
    if mtu == 0 || cr.conn_qual.0 == 0 {
        let what = format!("mtu {mtu}, conn_qual {:#x}", cr.conn_qual.0);
        return Err(ResumeError::snapshot(name, what));
    }
    Ok(())
}
