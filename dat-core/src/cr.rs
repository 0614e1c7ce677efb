//! Connection requests: `dat_cr_query`, `_accept`, `_reject`.
//!
//! A request waits for the consumer's decision as long as it takes; the peer has its own timer. A
//! peer that gave up meanwhile is noticed by accepting: the accept succeeds and ends in
//! ACCEPT_COMPLETION_ERROR.

use crate::attributes::{MAX_PRIVATE_DATA, address_of};
use crate::cm::{AcceptParams, ConnId, RejectReason};
use crate::ep::state::{EpEvent, EpState};
use crate::error::{DatError, DatResult, Subtype};
use crate::event::{ConnectionEventKind, ConnectionRequest, Event};
use crate::handle::{CrHandle, CrKey, EpHandle, PspKey};
use crate::ia::Ia;
use crate::provider::{Path, Provider, QueuePair};
use crate::refusal::Refusal;
use crate::types::ConnQual;
use std::net::IpAddr;

/// What the peer of a connection asked for, and how it is reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) path: Path,
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) mtu: u8,
    /// RDMA Reads it can answer at a time.
    pub(crate) reads_out: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) ack_timeout: u8,
}

pub(crate) struct Cr {
    pub(crate) conn: ConnId,
    pub(crate) peer: Peer,
    pub(crate) conn_qual: ConnQual,
    pub(crate) remote_gid: [u8; 16],
    pub(crate) remote_port: u16,
    pub(crate) private_data: Vec<u8>,
}

/// What `cr_query` tells (`DAT_CR_PARAM`). The local endpoint is always null so far: the consumer
/// brings it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrParam<'a> {
    /// Who asks.
    pub remote_ia_address: IpAddr,
    /// From which port; 0 when it did not come through the RDMA CM.
    pub remote_port_qual: u64,
    /// The qualifier asked for.
    pub conn_qual: ConnQual,
    /// What it sent along; from an RDMA-CM port always 56 bytes, with zeros at the end.
    pub private_data: &'a [u8],
}

impl<P: Provider> Ia<P> {
    /// What a request says.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|CR.
    pub fn cr_query(&self, cr: CrHandle) -> DatResult<CrParam<'_>> {
        let cr = self.cr(cr)?;
        Ok(CrParam {
            remote_ia_address: address_of(cr.remote_gid),
            remote_port_qual: cr.remote_port.into(),
            conn_qual: cr.conn_qual,
            private_data: &cr.private_data,
        })
    }

    /// Accepts a request with an endpoint of the consumer's. ESTABLISHED or ACCEPT_COMPLETION_ERROR
    /// follows on its connect EVD. The request is gone, unless there was an error.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE: |CR; |EP also for no endpoint. DAT_INVALID_STATE: the endpoint is not
    /// UNCONNECTED; |EP_NOTREADY it has no PZ. DAT_INVALID_PARAMETER|ARG3: private data too long.
    pub fn cr_accept(
        &mut self,
        cr: CrHandle,
        ep: Option<EpHandle>,
        private_data: &[u8],
    ) -> DatResult<()> {
        let (conn, peer, remote_gid, remote_port) = {
            let cr = self.cr(cr)?;
            (cr.conn, cr.peer, cr.remote_gid, cr.remote_port)
        };
        let ep = ep.ok_or_else(|| Refusal::NoEp.error())?;
        let target = self.ep(ep)?;
        let state = target.hot.state;
        // The two states an endpoint that came with the request would be in are not for this one.
        let next = match state.next(EpEvent::Accept) {
            Some(next) if state == EpState::Unconnected => next,
            Some(_) | None => return Err(state.refuse()),
        };
        if private_data.len() > MAX_PRIVATE_DATA {
            return Err(DatError::parameter(Subtype::Arg3)
                .because("private data is longer than max_private_data_size, 64"));
        }
        self.alive()?;
        let Some(qpn) = target.qp.as_ref().map(QueuePair::number) else {
            return Err(DatError::state(Subtype::StateEpNotReady).because("the endpoint has no PZ"));
        };
        let reads_in = u8::try_from(target.attr.max_rdma_read_in).unwrap_or(u8::MAX);
        let reads_out = u8::try_from(target.attr.max_rdma_read_out).unwrap_or(u8::MAX);
        let srq = target.hot.srq.is_some();
        let psn = self.random_psn();
        let mut peer = peer;
        peer.mtu = peer.mtu.min(self.provider.limits().mtu);
        if let Err(error) = self.bring_up(ep.key, &peer, psn) {
            return Err(self.device_refused("cr_accept", error, Subtype::ResourceTep));
        }
        let now = self.provider.now();
        let rnr_retry = self.config.transport.rnr_retry;
        let accepted = self.cm.accept(
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
        let target = &mut self.eps[ep.key];
        target.hot.state = next;
        target.remote = Some(crate::ep::Remote {
            address: address_of(remote_gid),
            port_qual: remote_port.into(),
        });
        target.conn = Some(conn);
        self.conns.insert(conn, ep.key);
        if let Err(error) = accepted {
            // The request ended while it was undecided.
            tracing::info!(%error, "cr_accept: the request is over");
            self.enter_disconnected(
                ep.key,
                EpEvent::AttemptEnded,
                ConnectionEventKind::AcceptCompletionError,
            );
            self.settle_effects();
        }
        self.connection_manager_events();
        self.transmit();
        Ok(())
    }

    /// Refuses a request; the peer learns that the consumer did.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|CR.
    pub fn cr_reject(&mut self, cr: CrHandle) -> DatResult<()> {
        let conn = self.cr(cr)?.conn;
        self.crs.remove(cr.key);
        self.refuse_connection(conn, RejectReason::Consumer);
        self.transmit();
        Ok(())
    }

    /// Refuses a request nobody can decide on any more.
    pub(crate) fn refuse_request(&mut self, key: CrKey) {
        if let Some(cr) = self.crs.remove(key) {
            self.refuse_connection(cr.conn, RejectReason::NoResources);
        }
    }

    pub(crate) fn refuse_connection(&mut self, conn: ConnId, reason: RejectReason) {
        let now = self.provider.now();
        self.conns.remove(&conn);
        if let Err(error) = self.cm.reject(now, conn, reason) {
            tracing::debug!(%error, "a request to be refused is over already");
        }
        self.cm.release(now, conn);
    }

    /// A request has come: an event, or a refusal when the backlog is full.
    pub(crate) fn request_arrived(&mut self, psp: Option<PspKey>, mut cr: Cr) {
        let listening =
            psp.and_then(|key| self.psps.get(key).map(|psp| (key, psp.evd, psp.conn_qual)));
        let Some((psp, evd, conn_qual)) =
            listening.filter(|(_, evd, _)| self.evds[*evd].has_room())
        else {
            self.refuse_connection(cr.conn, RejectReason::NoResources);
            return;
        };
        cr.conn_qual = conn_qual;
        let key = self.crs.insert(cr);
        let cr = CrHandle { key, ia: self.id };
        self.push_event(
            Some(evd),
            Event::ConnectionRequest(ConnectionRequest {
                psp: self.psp_handle(psp),
                conn_qual,
                cr,
            }),
        );
    }

    fn cr(&self, cr: CrHandle) -> DatResult<&Cr> {
        let missing =
            DatError::handle(Subtype::HandleCr).because("no such connection request in this IA");
        if cr.ia != self.id {
            return Err(missing);
        }
        self.crs.get(cr.key).ok_or(missing)
    }
}
