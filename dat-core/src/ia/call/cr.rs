//! Connection requests: `dat_cr_query`, `_accept`, `_reject`, `_handoff`.
//!
//! A request waits for the consumer's decision without a time limit; the peer has its own timer. If the peer has given
//! up meanwhile, the consumer learns that by accepting: the accept succeeds and ends in ACCEPT_COMPLETION_ERROR.
//!
//! For a request to a PSP with the PROVIDER flag, or to an RSP without an endpoint, an endpoint is made. It is in a
//! TENTATIVE state. The accept gives it to the consumer, a rejection frees it. A request to an RSP with an endpoint
//! uses that endpoint, in a PASSIVE state; a rejection returns it to UNCONNECTED.
//!
//! A request that is handed off arrives again at another service point; the peer does not notice. If the backlog of
//! that service point is full, the request is refused, as if the peer had sent it there.
//!
//! If an instance cannot take a request to a shared service point, it hands the request to another instance of the
//! service point, once.

use crate::attributes::{MAX_PRIVATE_DATA, address_of};
use crate::cm::{AcceptParams, ConnId, RejectReason, reject_limit};
use crate::error::{DatError, DatResult, Subtype};
use crate::event::{ConnectionEventKind, ConnectionRequest, Event};
use crate::handle::{AnyHandle, CrHandle, CrKey, EpHandle, RspHandle, RspKey};
use crate::ia::instance::Ia;
use crate::object::cr::Cr;
use crate::object::ep::state::{EpEvent, EpState};
use crate::object::ep::untimely::EpCall;
use crate::object::rsp::Rsp;
use crate::object::service_point::{ServicePoint, service_id};
use crate::provider::{Provider, QueuePair};
use crate::types::{ConnQual, PspFlags};
use std::net::IpAddr;
use tracing::field;

/// Result of `cr_query` (`DAT_CR_PARAM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrParam<'a> {
    /// Our address, to which the request was sent.
    pub local_ia_address: IpAddr,
    /// The peer's address.
    pub remote_ia_address: IpAddr,
    /// The peer's port; 0 if the request did not come through the RDMA CM.
    pub remote_port_qual: u64,
    /// The connection qualifier in the peer's request.
    pub conn_qual: ConnQual,
    /// The peer's private data. From an RDMA CM port it always has 56 bytes, padded with zeros.
    pub private_data: &'a [u8],
    /// The endpoint that comes with the request, if any. For a PSP with the PROVIDER flag, or an RSP without an
    /// endpoint, it was made for the request: it needs a PZ and EVDs (`ep_modify`) before the request is accepted, and
    /// a rejection frees it. Otherwise it is the RSP's endpoint.
    pub local_ep: Option<EpHandle>,
}

impl<P: Provider> Ia<P> {
    /// Returns the parameters of a request: our address, the peer, its qualifier, its private data.
    ///
    /// Page: dat_cr_query.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|CR.
    pub fn cr_query(&self, cr: CrHandle) -> DatResult<CrParam<'_>> {
        let cr = self.cr(cr)?;
        Ok(CrParam {
            local_ia_address: cr.local,
            remote_ia_address: address_of(cr.remote_gid),
            remote_port_qual: cr.remote_port.into(),
            conn_qual: cr.conn_qual,
            private_data: &cr.private_data,
            local_ep: cr.local_ep.map(|key| EpHandle { key, ia: self.id }),
        })
    }

    /// Accepts a request with an endpoint of the consumer, or with the one that came with the request. ESTABLISHED or
    /// ACCEPT_COMPLETION_ERROR follows on the endpoint's connect EVD. The request becomes invalid unless the call
    /// fails.
    ///
    /// Page: dat_cr_accept.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE: |CR; |EP also if both the request and the call bring an endpoint, or neither does.
    /// DAT_INVALID_STATE: the endpoint is not UNCONNECTED; |EP_NOTREADY it has no PZ. DAT_INVALID_PARAMETER|ARG3:
    /// private data too long. DAT_INSUFFICIENT_RESOURCES, DAT_INTERNAL_ERROR: the device refused to connect the queue
    /// pair; the request and the endpoint can be used again.
    pub fn cr_accept(
        &mut self,
        cr: CrHandle,
        ep: Option<EpHandle>,
        private_data: &[u8],
    ) -> DatResult<()> {
        let (conn, mut peer, ends, local_ep) = {
            let cr = self.cr(cr)?;
            (
                cr.conn,
                cr.peer,
                cr.ends(),
                cr.local_ep.map(|ep| (ep, cr.lent)),
            )
        };
        let (ep, expected) = match (ep, local_ep) {
            (Some(ep), None) => (ep, EpState::Unconnected),
            (None, Some((key, lent))) => {
                let expected = if lent {
                    EpState::TentativeConnectionPending
                } else {
                    EpState::PassiveConnectionPending
                };
                (EpHandle { key, ia: self.id }, expected)
            }
            (Some(_), Some(_)) | (None, None) => {
                return Err(DatError::handle(Subtype::HandleEp)
                    .because("either the request brings an endpoint or the call does"));
            }
        };
        let target = self.ep(ep)?;
        let state = target.hot.state;
        if state != expected || state.next(EpEvent::Accept).is_none() {
            return Err(state.refuse(EpCall::Connect));
        }
        if private_data.len() > MAX_PRIVATE_DATA {
            return Err(DatError::parameter(Subtype::Arg3, "private_data")
                .because("private data is longer than max_private_data_size")
                .over(private_data.len() as u64, MAX_PRIVATE_DATA as u64));
        }
        self.alive()?;
        let Some(qpn) = target.qp.get().map(QueuePair::number) else {
            return Err(DatError::state(Subtype::StateEpNotReady)
                .because("the endpoint has no PZ: ep_modify gives it one"));
        };
        let reads_in = u8::try_from(target.attr.max_rdma_read_in).unwrap_or(u8::MAX);
        let reads_out = u8::try_from(target.attr.max_rdma_read_out).unwrap_or(u8::MAX);
        let srq = target.srq.is_some();
        let psn = self.random_psn();
        peer.mtu = peer.mtu.min(self.provider.limits().mtu);
        let asked = self.eps[ep.key].transport;
        peer.path = asked.on(self.eps[ep.key].attr.qos, peer.path);
        peer.retry_count = asked.retry_count.unwrap_or(peer.retry_count);
        peer.rnr_retry = self
            .config
            .transport
            .rnr_retry_asked(&asked, peer.rnr_retry);
        peer.ack_timeout = asked.ack_timeout.unwrap_or(peer.ack_timeout);
        if let Err(error) = self.bring_up(ep.key, &peer, psn) {
            // The queue pair may be in any state between INIT and RTS. The endpoint must become usable again.
            self.rewind(ep.key);
            return Err(self.device_refused("cr_accept", error, Subtype::ResourceTep));
        }
        let now = self.provider.now();
        let rnr_retry = asked.rnr_retry.unwrap_or(self.config.transport.rnr_retry);
        let accepted = self.adapter.lock().cm.accept(
            now,
            conn,
            AcceptParams {
                qpn,
                psn,
                reads_out,
                reads_in,
                rnr_retry,
                srq,
                private_data,
            },
        );
        self.crs.remove(cr.key);
        self.forget_context(cr);
        let target = &mut self.eps[ep.key];
        let from = target.hot.state;
        target.step(EpEvent::Accept)?;
        target.ends = Some(ends);
        target.conn = Some(conn);
        target.cause = None;
        self.conns.insert(conn, ep.key);
        self.log.attempt(
            ep.key,
            tracing::info_span!("accept", instance = self.id, ep = ?ep.key, remote = %ends.remote, port = ends.remote_port, outcome = field::Empty),
        );
        self.state_changed(ep.key, from);
        if let Err(error) = accepted {
            // The peer's request ended before the consumer accepted it.
            tracing::info!(%error, "cr_accept: the request is over");
            self.enter_disconnected(
                ep.key,
                EpEvent::AttemptEnded,
                ConnectionEventKind::AcceptCompletionError,
            );
            self.apply_effects();
        }
        self.connection_manager_events();
        self.transmit();
        Ok(())
    }

    /// Rejects a request. The peer gets PEER_REJECTED. An endpoint that was made for the request is freed; an endpoint
    /// of an RSP becomes UNCONNECTED.
    ///
    /// Page: dat_cr_reject.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|CR.
    pub fn cr_reject(&mut self, cr: CrHandle) -> DatResult<()> {
        self.cr_reject_with(cr, &[])
    }

    /// Rejects a request with private data. The peer gets it from its endpoint ([`Ia::ep_private_data`]) after
    /// PEER_REJECTED. For a request from an RDMA CM port the limit is 148 bytes, and the peer gets all 148, padded with
    /// zeros. For other requests the limit is 144 bytes, and the peer gets exactly the bytes given. DAT 1.2 has no such
    /// call.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|CR. DAT_INVALID_PARAMETER|ARG2: private data too long; nothing has changed.
    pub fn cr_reject_with(&mut self, cr: CrHandle, private_data: &[u8]) -> DatResult<()> {
        let request = self.cr(cr)?;
        // The service ID in the peer's REQ decides, also after a handoff to another qualifier.
        let limit = self.adapter.lock().cm.reject_limit(request.conn);
        let limit = limit.unwrap_or_else(|| reject_limit(service_id(request.conn_qual)));
        if private_data.len() > limit {
            return Err(DatError::parameter(Subtype::Arg2, "private_data").because(
                "private data is longer than a rejection can carry: 148 bytes from an RDMA-CM port, 144 else",
            ));
        }
        self.refuse_request_with(cr.key, RejectReason::Consumer, private_data);
        self.transmit();
        Ok(())
    }

    /// Hands a request to the service point at another qualifier, of this IA or of another instance of its adapter.
    /// The request arrives there as a new one, to be accepted or rejected. The old request becomes invalid, and an
    /// endpoint that came with it is treated as after a rejection.
    ///
    /// Page: dat_cr_handoff.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|CR. DAT_INVALID_PARAMETER|ARG2: no service point of the adapter listens at `conn_qual`. On
    /// an error nothing has changed.
    pub fn cr_handoff(&mut self, cr: CrHandle, conn_qual: ConnQual) -> DatResult<()> {
        self.cr(cr)?;
        let here = self.service_point(conn_qual);
        let service = service_id(conn_qual);
        if here.is_none()
            && !self
                .adapter
                .lock()
                .is_listened_to(service, self.instance_index)
        {
            return Err(DatError::parameter(Subtype::Arg2, "conn_qual")
                .because("no service point of the adapter listens at that qualifier"));
        }
        let Some(mut request) = self.crs.remove(cr.key) else {
            return Ok(());
        };
        self.forget_context(cr);
        self.return_ep(&request);
        request.local_ep = None;
        request.lent = false;
        if here.is_some() {
            self.handed_off_here(here, request);
        } else {
            // The service point may have been freed after the check above.
            self.hand_off_or_decline(service, Box::new(request));
        }
        self.transmit();
        Ok(())
    }

    /// Returns the handle of this IA's service point that listens at a qualifier.
    #[doc(hidden)] // for the C facade
    #[must_use]
    pub fn listener(&self, conn_qual: ConnQual) -> Option<AnyHandle> {
        self.service_point(conn_qual).map(|at| match at {
            ServicePoint::Psp(key) => self.psp_handle(key).into(),
            ServicePoint::Rsp(key) => RspHandle { key, ia: self.id }.into(),
        })
    }

    /// Returns this IA's service point that listens at a qualifier.
    fn service_point(&self, conn_qual: ConnQual) -> Option<ServicePoint> {
        let here = |other: ConnQual| service_id(other) == service_id(conn_qual);
        let psp = self.psps.iter().find(|(_, psp)| here(psp.conn_qual));
        let rsp = |(_, rsp): &(RspKey, &Rsp)| !rsp.is_spent() && here(rsp.conn_qual);
        psp.map(|(key, _)| ServicePoint::Psp(key)).or_else(|| {
            let rsp = self.rsps.iter().find(rsp);
            rsp.map(|(key, _)| ServicePoint::Rsp(key))
        })
    }

    /// Refuses a request. Returns its endpoint to the owner, or frees the endpoint if it was made for the request.
    pub(in crate::ia) fn refuse_request(&mut self, key: CrKey, reason: RejectReason) {
        self.refuse_request_with(key, reason, &[]);
    }

    fn refuse_request_with(&mut self, key: CrKey, reason: RejectReason, private_data: &[u8]) {
        let Some(cr) = self.crs.remove(key) else {
            return;
        };
        self.forget_context(CrHandle { key, ia: self.id });
        self.refuse_connection(cr.conn, reason, private_data);
        self.return_ep(&cr);
    }

    /// Returns the endpoint of a finished request to its owner, or frees it if it was made for the request.
    fn return_ep(&mut self, cr: &Cr) {
        let Some(ep) = cr.local_ep else { return };
        if cr.lent {
            self.end_or_stop_device("taking back a lent endpoint", |ia| ia.remove_ep(ep));
        } else if self.move_to(ep, EpEvent::RequestRejected)
            && let Some(ep) = self.eps.get_mut(ep)
        {
            ep.ends = None;
        }
    }

    fn refuse_connection(&mut self, conn: ConnId, reason: RejectReason, private_data: &[u8]) {
        let now = self.provider.now();
        self.conns.remove(&conn);
        let mut adapter = self.adapter.lock();
        if let Err(error) = adapter.cm.reject_with(now, conn, reason, private_data) {
            tracing::debug!(%error, "a request to be refused is over already");
        }
        adapter.release(now, conn, self.instance_index);
    }

    /// Declines a request for lack of capacity. Keeps no state for the request, so that a peer cannot use up more
    /// memory by sending many.
    fn decline_connection(&mut self, conn: ConnId) {
        self.conns.remove(&conn);
        let now = self.provider.now();
        self.adapter
            .lock()
            .decline(now, conn, self.instance_index, RejectReason::NoResources);
    }

    /// Handles a peer's new request to `service`. If this instance cannot take the request, another instance that
    /// listens there gets it. If there is none, the request is declined.
    pub(in crate::ia) fn request_arrived(
        &mut self,
        at: Option<ServicePoint>,
        service: u64,
        cr: Cr,
    ) {
        if let Err(cr) = self.take_request(at, cr) {
            self.hand_off_or_decline(service, cr);
        }
    }

    /// Handles a request that was handed off to a service point of this instance. Declines the request if this instance
    /// cannot take it: handed off again, it could go round for ever.
    pub(in crate::ia) fn handed_off_here(&mut self, at: Option<ServicePoint>, cr: Cr) {
        if let Err(cr) = self.take_request(at, cr) {
            self.decline_connection(cr.conn);
        }
    }

    fn hand_off_or_decline(&mut self, service: u64, cr: Box<Cr>) {
        let from = self.instance_index;
        let handed = self.adapter.lock().hand_off(from, service, cr);
        if let Err(cr) = handed {
            self.decline_connection(cr.conn);
        }
    }

    /// Queues the event of a new request. Returns the request if nothing listens there any more, the backlog is full,
    /// or no endpoint can be created for it.
    fn take_request(&mut self, at: Option<ServicePoint>, mut cr: Cr) -> Result<(), Box<Cr>> {
        let listening = at.and_then(|at| match at {
            ServicePoint::Psp(key) => self.psps.get(key).map(|psp| {
                let lend = psp.flags.contains(PspFlags::PROVIDER);
                (psp.evd, psp.conn_qual, lend, None)
            }),
            ServicePoint::Rsp(key) => self
                .rsps
                .get(key)
                .filter(|rsp| !rsp.is_spent())
                .map(|rsp| (rsp.evd, rsp.conn_qual, rsp.ep.is_none(), rsp.ep)),
        });
        let Some((evd, conn_qual, lend, reserved)) =
            listening.filter(|(evd, ..)| self.evds[*evd].has_room_for_request())
        else {
            return Err(Box::new(cr));
        };
        if lend {
            match self.create_tentative_ep(cr.reads_in, cr.peer.reads_out, cr.ends()) {
                Ok(ep) => (cr.local_ep, cr.lent) = (Some(ep), true),
                Err(error) => {
                    if let Some(unlogged) = self.log.no_endpoint.take(self.provider.now()) {
                        tracing::warn!(%error, remote = %cr.ends().remote, unlogged, "no endpoint for a connection request");
                    }
                    return Err(Box::new(cr));
                }
            }
        }
        let psp = match at {
            Some(ServicePoint::Rsp(key)) => {
                self.spend_rsp(key);
                None
            }
            Some(ServicePoint::Psp(key)) => Some(self.psp_handle(key)),
            None => None,
        };
        if let Some(key) = reserved
            && self.move_to(key, EpEvent::RequestArrived)
            && let Some(ep) = self.eps.get_mut(key)
        {
            ep.ends = Some(cr.ends());
            cr.local_ep = Some(key);
        }
        cr.conn_qual = conn_qual;
        let cr = CrHandle {
            key: self.crs.insert(cr),
            ia: self.id,
        };
        self.push_event(
            Some(evd),
            Event::ConnectionRequest(ConnectionRequest { psp, conn_qual, cr }),
        );
        Ok(())
    }
}
