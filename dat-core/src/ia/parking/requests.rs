//! Service points and connection requests of an instance that is read in.

use std::collections::BTreeSet;

use super::names::{Conns, free_keys, key_of, refused, text};
use crate::cm::{ListenId, State};
use crate::error::Subtype;
use crate::error::parking::ResumeError;
use crate::handle::{CrHandle, EpHandle, EpKey, Handle};
use crate::ia::instance::Ia;
use crate::ia::snapshot::IaTables;
use crate::object::cr::{Cr, Peer};
use crate::object::ep::state::EpState;
use crate::object::evd::streams::Stream;
use crate::object::psp::Psp;
use crate::object::rsp::Rsp;
use crate::object::service_point::{ServicePoint, service_id};
use crate::object::snapshot::CrSnapshot;
use crate::provider::{ParkProvider, Path};
use crate::table::Table;
use crate::types::{ConnQual, EvdFlags, PspFlags};

/// Largest flow label.
const MOST_FLOW_LABEL: u64 = (1 << 20) - 1;
/// Limit of private data in bytes: no datagram carries more.
pub(super) const MOST_PRIVATE_DATA: u64 = 256;
/// Largest code of a path MTU.
pub(super) const MOST_MTU: u64 = 5;

/// Checks a path.
pub(super) fn check_path(object: &str, path: &Path) -> Result<(), ResumeError> {
    let (label, priority) = (path.flow_label.into(), path.priority.into());
    ResumeError::check_range(
        object,
        [
            ("flow_label", label, MOST_FLOW_LABEL),
            ("priority", priority, 7),
        ],
    )
}

impl<P: ParkProvider> Ia<P> {
    /// Makes service points and connection requests again. The endpoints were made before.
    pub(super) fn read_requests(
        &mut self,
        tables: &IaTables<P>,
        conns: &mut Conns<'_>,
    ) -> Result<(), ResumeError> {
        // Endpoints that wait for a request, or belong to one.
        let mut held = BTreeSet::new();
        self.read_psps(tables)?;
        self.read_rsps(tables, &mut held)?;
        self.read_crs(tables, conns, &mut held)?;
        let used = self.listeners.len();
        if used != tables.cm.listeners.len() {
            let what = format!("{used} of them have a service point");
            return Err(ResumeError::snapshot("the listeners", what));
        }
        for (key, ep) in self.eps.iter() {
            let state = ep.hot.state;
            let waits = matches!(
                state,
                EpState::Reserved
                    | EpState::PassiveConnectionPending
                    | EpState::TentativeConnectionPending
            );
            if waits != held.contains(&key) {
                let ep = text(EpHandle::new(key, self.id));
                let what = format!("state {state:?}, and no request or RSP for it");
                return Err(ResumeError::snapshot(ep, what));
            }
        }
        Ok(())
    }

    fn read_psps(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the PSPs";
        let mut all = Vec::new();
        for one in &tables.psps.objects {
            let key = key_of(format_args!("{TABLE}"), one.psp, self.id)?;
            let evd = self
                .evd_for(Some(one.evd), EvdFlags::CR, Subtype::HandleEvdCr)
                .map_err(refused(one.psp))?;
            // PANIC: `evd_for` returns the key of the EVD that it was given.
            let evd = evd.expect("an EVD");
            if !PspFlags::all().contains(one.flags) {
                let what = format!("flags {:#x}", one.flags.bits());
                return Err(ResumeError::snapshot(text(one.psp), what));
            }
            let (name, point) = (text(one.psp), ServicePoint::Psp(key));
            self.listen_again(&name, point, (one.listen, one.conn_qual), one.is_shared)?;
            self.evds[evd].streams.attach(Stream::Other);
            let psp = Psp {
                listen: one.listen,
                conn_qual: one.conn_qual,
                evd,
                flags: one.flags,
            };
            all.push((key, psp));
        }
        let free = free_keys(TABLE, &tables.psps, self.id)?;
        self.psps = Table::resume(all.into_iter(), &free)
            .map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(())
    }

    fn read_rsps(
        &mut self,
        tables: &IaTables<P>,
        held: &mut BTreeSet<EpKey>,
    ) -> Result<(), ResumeError> {
        const TABLE: &str = "the RSPs";
        let mut all = Vec::new();
        for one in &tables.rsps.objects {
            let key = key_of(format_args!("{TABLE}"), one.rsp, self.id)?;
            let mut evd = key_of(one.rsp, one.evd, self.id)?;
            let ep = one.ep.map(|ep| key_of(one.rsp, ep, self.id)).transpose()?;
            let name = text(one.rsp);
            if let Some(listen) = one.listen {
                let known = self
                    .evd_for(Some(one.evd), EvdFlags::CR, Subtype::HandleEvdCr)
                    .map_err(refused(one.rsp))?;
                // PANIC: `evd_for` returns the key of the EVD that it was given.
                evd = known.expect("an EVD");
                let point = ServicePoint::Rsp(key);
                self.listen_again(&name, point, (listen, one.conn_qual), false)?;
                self.evds[evd].streams.attach(Stream::Other);
                if let Some(ep) = ep {
                    self.hold(&name, ep, EpState::Reserved, held)?;
                }
            }
            all.push((key, Rsp::resume(one.listen, one.conn_qual, evd, ep)));
        }
        let free = free_keys(TABLE, &tables.rsps, self.id)?;
        self.rsps = Table::resume(all.into_iter(), &free)
            .map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(())
    }

    fn listen_again(
        &mut self,
        object: &str,
        point: ServicePoint,
        (listen, conn_qual): (ListenId, ConnQual),
        is_shared: bool,
    ) -> Result<(), ResumeError> {
        let at = (listen, service_id(conn_qual));
        let mut adapter = self.adapter.lock();
        if conn_qual.0 == 0 || !adapter.listen_again(self.instance_index, at, is_shared) {
            let what = format!("{listen:?} does not listen at {:#x}", conn_qual.0);
            return Err(ResumeError::snapshot(object, what));
        }
        drop(adapter);
        self.listeners.insert(listen, point);
        Ok(())
    }

    /// Records that an endpoint waits for a request or belongs to one.
    fn hold(
        &self,
        object: &str,
        ep: EpKey,
        expected: EpState,
        held: &mut BTreeSet<EpKey>,
    ) -> Result<(), ResumeError> {
        let state = self.eps.somebody(ep).map(|ep| ep.hot.state);
        if state == Some(expected) && held.insert(ep) {
            return Ok(());
        }
        let ep = EpHandle::new(ep, self.id);
        let what = format!("{ep:?} is not in state {expected:?}, or is that of another request");
        Err(ResumeError::snapshot(object, what))
    }

    fn read_crs(
        &mut self,
        tables: &IaTables<P>,
        conns: &mut Conns<'_>,
        held: &mut BTreeSet<EpKey>,
    ) -> Result<(), ResumeError> {
        const TABLE: &str = "the connection requests";
        let mut all = Vec::new();
        for one in &tables.crs.objects {
            let key = key_of(format_args!("{TABLE}"), one.cr, self.id)?;
            check_numbers(one)?;
            let conn = conns.take(one.cr, one.conn)?;
            if !matches!(
                conn.state,
                State::ReqReceived | State::MraSent | State::Withdrawn
            ) {
                let what = format!("{:?} is in state {:?}", conn.id, conn.state);
                return Err(ResumeError::snapshot(text(one.cr), what));
            }
            let local_ep = one.local_ep;
            let local_ep = local_ep.map(|ep| key_of(one.cr, ep, self.id)).transpose()?;
            let expected = if one.is_lent {
                EpState::TentativeConnectionPending
            } else {
                EpState::PassiveConnectionPending
            };
            match local_ep {
                Some(ep) => self.hold(&text(one.cr), ep, expected, held)?,
                None if one.is_lent => {
                    return Err(ResumeError::snapshot(text(one.cr), "no endpoint is lent"));
                }
                None => {}
            }
            let cr = Cr {
                conn: one.conn,
                peer: one.peer,
                conn_qual: one.conn_qual,
                local: one.local,
                remote_gid: one.remote_gid,
                remote_port: one.remote_port,
                private_data: one.private_data.clone(),
                reads_in: one.reads_in,
                local_ep,
                lent: one.is_lent,
            };
            all.push((key, cr));
        }
        let free = free_keys(TABLE, &tables.crs, self.id)?;
        self.crs = Table::resume(all.into_iter(), &free)
            .map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(())
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
    let name = text(CrHandle::new(cr.cr.key, cr.cr.ia));
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
