//! Service points and connection requests of an instance that is read in.

use super::names::{key_of, refused, text};
use crate::cm::ListenId;
use crate::error::parking::ResumeError;
use crate::handle::EvdHandle;
use crate::ia::instance::Ia;
use crate::ia::snapshot::IaTables;
use crate::object::cr::Cr;
use crate::object::evd::streams::Stream;
use crate::object::psp::Psp;
use crate::object::rsp::Rsp;
use crate::object::service_point::{ServicePoint, service_id};
use crate::object::snapshot::{CrSnapshot, PspSnapshot, RspSnapshot};
use crate::provider::ParkProvider;
use crate::table::Table;
use crate::types::ConnQual;

/// Limit of private data in bytes: no datagram carries more.
pub(super) const MOST_PRIVATE_DATA: u64 = 256;
/// Largest code of a path MTU.
pub(super) const MOST_MTU: u64 = 5;

impl<P: ParkProvider> Ia<P> {
    /// Makes service points and connection requests again. The endpoints were made before.
    pub(super) fn read_requests(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        self.read_psps(tables)?;
        self.read_rsps(tables)?;
        self.read_crs(tables)
    }

    fn read_psps(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the PSPs";
        let make = |ia: &mut Self, key, one: &PspSnapshot| {
            let point = ServicePoint::Psp(key);
            let at = (one.listen, one.conn_qual);
            ia.listen_again(&text(one.psp), (point, one.evd), at, one.is_shared)?;
            Ok(Psp {
                listen: one.listen,
                conn_qual: one.conn_qual,
                evd: one.evd.key,
                flags: one.flags,
            })
        };
        let (all, free) = self.read(TABLE, &tables.psps, |one| one.psp, make)?;
        self.psps =
            Table::resume(all, &free).map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(())
    }

    fn read_rsps(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the RSPs";
        let make = |ia: &mut Self, key, one: &RspSnapshot| {
            let (listen, conn_qual) = (one.listen, one.conn_qual);
            let evd = key_of(one.rsp, one.evd, ia.id)?;
            let ep = one.ep.map(|ep| key_of(one.rsp, ep, ia.id)).transpose()?;
            if let Some(listen) = listen {
                let point = ServicePoint::Rsp(key);
                let at = (listen, conn_qual);
                ia.listen_again(&text(one.rsp), (point, one.evd), at, false)?;
            }
            Ok(Rsp::resume(listen, conn_qual, evd, ep))
        };
        let (all, free) = self.read(TABLE, &tables.rsps, |one| one.rsp, make)?;
        self.rsps =
            Table::resume(all, &free).map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(())
    }

    /// Directs the requests at a listener to a service point and its EVD.
    fn listen_again(
        &mut self,
        object: &str,
        (point, evd): (ServicePoint, EvdHandle),
        (listen, conn_qual): (ListenId, ConnQual),
        is_shared: bool,
    ) -> Result<(), ResumeError> {
        let known = self.evd_mut(evd).map_err(refused(object))?;
        known.streams.attach(Stream::Other);
        let at = (listen, service_id(conn_qual));
        let mut adapter = self.adapter.lock();
        if !adapter.listen_again(self.instance_index, at, is_shared) {
            let what = format!("{listen:?} does not listen at {:#x}", conn_qual.0);
            return Err(ResumeError::snapshot(object, what));
        }
        drop(adapter);
        self.listeners.insert(listen, point);
        Ok(())
    }

    fn read_crs(&mut self, tables: &IaTables<P>) -> Result<(), ResumeError> {
        const TABLE: &str = "the connection requests";
        let make = |ia: &mut Self, _, one: &CrSnapshot| {
            let ep = one.local_ep;
            let local_ep = ep.map(|ep| key_of(one.cr, ep, ia.id)).transpose()?;
            Ok(Cr {
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
            })
        };
        let (all, free) = self.read(TABLE, &tables.crs, |one| one.cr, make)?;
        self.crs =
            Table::resume(all, &free).map_err(|error| ResumeError::of_table(TABLE, error))?;
        Ok(())
    }
}
