//! Reserved service points: `dat_rsp_create`, `_query`, `_free`.
//!
//! An RSP listens for one request, which only the RSP's endpoint can accept. When that request arrives, the RSP is
//! *spent*: it stops listening and other service points may use its qualifier. A spent RSP needs no `rsp_free`, but
//! `rsp_free` still succeeds. (DAT's header lets the provider destroy the RSP then; the manual pages leave that to the
//! consumer.)
//!
//! The endpoint is the consumer's, and it is RESERVED while the RSP waits. If the consumer gave no endpoint, the
//! provider creates one when the request arrives, as for a PSP with the PROVIDER flag.

use super::psp::qualifier_in_use;
use crate::error::{DatError, DatResult, Subtype};
use crate::handle::{EpHandle, EpKey, EvdHandle, RspHandle, RspKey};
use crate::ia::instance::Ia;
use crate::object::ep::state::EpEvent;
use crate::object::ep::untimely::EpCall;
use crate::object::evd::streams::Stream;
use crate::object::rsp::Rsp;
use crate::object::service_point::{ServicePoint, service_id};
use crate::provider::Provider;
use crate::types::ConnQual;

/// Result of `rsp_query` (`DAT_RSP_PARAM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RspParam {
    /// Connection qualifier at which the RSP listens, or listened before it was spent.
    pub conn_qual: ConnQual,
    /// EVD that receives the connection request.
    pub evd: EvdHandle,
    /// Endpoint that is reserved for the request; `None` if the consumer gave none.
    pub ep: Option<EpHandle>,
}

impl<P: Provider> Ia<P> {
    /// Listens at a connection qualifier for one request, for which `ep` is reserved. If `ep` is `None`, an endpoint is
    /// created when the request arrives.
    ///
    /// Page: dat_rsp_create.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE: |EVD_CR, |EP. DAT_INVALID_PARAMETER: |ARG2 qualifier 0, |ARG4 the EVD has UNSIGNALLED or
    /// SOLICITED_WAIT streams and takes no other events. DAT_INVALID_STATE: the endpoint is not UNCONNECTED.
    /// DAT_CONN_QUAL_IN_USE.
    pub fn rsp_create(
        &mut self,
        conn_qual: ConnQual,
        ep: Option<EpHandle>,
        evd: EvdHandle,
    ) -> DatResult<RspHandle> {
        let evd = self.check_request_evd(evd, Subtype::Arg4)?;
        if conn_qual.0 == 0 {
            return Err(
                DatError::parameter(Subtype::Arg2, "conn_qual").because("connection qualifier 0")
            );
        }
        if let Some(ep) = ep {
            let state = self.ep(ep)?.hot.state;
            if state.next(EpEvent::ReservedByRsp).is_none() {
                return Err(state.refuse(EpCall::Connect));
            }
        }
        let listen = self
            .adapter
            .lock()
            .listen(self.instance_index, service_id(conn_qual), false)
            .map_err(|_in_use| qualifier_in_use())?;
        let ep = ep.map(|ep| ep.key);
        if let Some(ep) = ep {
            self.move_to(ep, EpEvent::ReservedByRsp);
        }
        let key = self.rsps.insert(Rsp::new(listen, conn_qual, evd, ep));
        self.listeners.insert(listen, ServicePoint::Rsp(key));
        self.evds[evd].streams.attach(Stream::Other);
        Ok(RspHandle { key, ia: self.id })
    }

    /// Returns the parameters of a reserved service point.
    ///
    /// Page: dat_rsp_query.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|RSP.
    pub fn rsp_query(&self, rsp: RspHandle) -> DatResult<RspParam> {
        let rsp = self.rsp(rsp)?;
        Ok(RspParam {
            conn_qual: rsp.conn_qual,
            evd: self.evd_handle(rsp.evd),
            ep: rsp.ep.map(|key| EpHandle { key, ia: self.id }),
        })
    }

    /// Stops listening; the endpoint becomes UNCONNECTED. If the request has already arrived, only the RSP is freed:
    /// the request and its endpoint are kept, and the request can be accepted or rejected.
    ///
    /// Page: dat_rsp_free.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|RSP.
    pub fn rsp_free(&mut self, rsp: RspHandle) -> DatResult<()> {
        self.rsp(rsp)?;
        self.remove_rsp(rsp.key);
        Ok(())
    }

    pub(in crate::ia) fn remove_rsp(&mut self, key: RspKey) {
        if let Some(ep) = self.spend_rsp(key) {
            self.move_to(ep, EpEvent::RspFreed);
        }
        self.rsps.remove(key);
        self.forget_context(RspHandle { key, ia: self.id });
    }

    /// Stops the listener of an RSP that has not been spent. Returns the endpoint that was reserved, if there was one;
    /// `None` for a spent RSP.
    pub(in crate::ia) fn spend_rsp(&mut self, key: RspKey) -> Option<EpKey> {
        let rsp = self.rsps.get_mut(key)?;
        let listen = rsp.spend()?;
        let (evd, ep) = (rsp.evd, rsp.ep);
        self.adapter.lock().unlisten(self.instance_index, listen);
        self.listeners.remove(&listen);
        self.evds[evd].streams.detach(Stream::Other);
        ep
    }
}
