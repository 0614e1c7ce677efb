//! Connection requests: `dat_cr_query`, `_accept`, `_reject`.
//!
//! A request waits for the consumer's decision as long as it takes; the peer has its own timer. A
//! peer that gave up meanwhile is noticed by accepting: the accept succeeds and ends in
//! ACCEPT_COMPLETION_ERROR.
//!
//! A request that came to a PSP with the PROVIDER flag brings an endpoint along, TENTATIVE, which is
//! the consumer's from the accept on and vanishes with a rejection.

use crate::attributes::{MAX_PRIVATE_DATA, address_of};
use crate::cm::{AcceptParams, ConnId, RejectReason};
use crate::ep::Remote;
use crate::ep::state::{EpEvent, EpState};
use crate::error::{DatError, DatResult, Subtype};
use crate::event::{ConnectionEventKind, ConnectionRequest, Event};
use crate::handle::{CrHandle, CrKey, EpHandle, EpKey, PspKey};
use crate::ia::Ia;
use crate::provider::{Path, Provider, QueuePair};
use crate::types::{ConnQual, PspFlags};
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
    /// RDMA Reads the peer wants to have outstanding towards us.
    pub(crate) reads_in: u8,
    /// The endpoint lent to the consumer with the request, TENTATIVE.
    pub(crate) local_ep: Option<EpKey>,
}

impl Cr {
    fn remote(&self) -> Remote {
        Remote {
            address: address_of(self.remote_gid),
            port_qual: self.remote_port.into(),
        }
    }
}

/// What `cr_query` tells (`DAT_CR_PARAM`).
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
    /// The endpoint made for it, if it came to a PSP with the PROVIDER flag. It needs a PZ and EVDs
    /// (`ep_modify`) before the request is accepted, and is gone when it is rejected.
    pub local_ep: Option<EpHandle>,
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
            local_ep: cr.local_ep.map(|key| EpHandle { key, ia: self.id }),
        })
    }

    /// Accepts a request, with an endpoint of the consumer's unless one came with the request.
    /// ESTABLISHED or ACCEPT_COMPLETION_ERROR follows on its connect EVD. The request is gone, unless
    /// there was an error.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE: |CR; |EP also when there are two endpoints, or none. DAT_INVALID_STATE: the
    /// endpoint is not UNCONNECTED; |EP_NOTREADY it has no PZ. DAT_INVALID_PARAMETER|ARG3: private
    /// data too long.
    pub fn cr_accept(
        &mut self,
        cr: CrHandle,
        ep: Option<EpHandle>,
        private_data: &[u8],
    ) -> DatResult<()> {
        let (conn, mut peer, remote, local_ep) = {
            let cr = self.cr(cr)?;
            (cr.conn, cr.peer, cr.remote(), cr.local_ep)
        };
        let (ep, expected) = match (ep, local_ep) {
            (Some(ep), None) => (ep, EpState::Unconnected),
            (None, Some(key)) => (
                EpHandle { key, ia: self.id },
                EpState::TentativeConnectionPending,
            ),
            (Some(_), Some(_)) | (None, None) => {
                return Err(DatError::handle(Subtype::HandleEp)
                    .because("either the request brings an endpoint or the call does"));
            }
        };
        let target = self.ep(ep)?;
        let state = target.hot.state;
        let next = match state.next(EpEvent::Accept) {
            Some(next) if state == expected => next,
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
        peer.mtu = peer.mtu.min(self.provider.limits().mtu);
        if let Err(error) = self.bring_up(ep.key, &peer, psn) {
            // The queue pair is somewhere between INIT and RTS; its endpoint must be usable again.
            self.rewind(ep.key);
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
        target.remote = Some(remote);
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

    /// Refuses a request; the peer learns that the consumer did. An endpoint that came with it is
    /// gone.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|CR.
    pub fn cr_reject(&mut self, cr: CrHandle) -> DatResult<()> {
        self.cr(cr)?;
        self.refuse_request(cr.key, RejectReason::Consumer);
        self.transmit();
        Ok(())
    }

    /// Refuses a request and takes back what came with it.
    pub(crate) fn refuse_request(&mut self, key: CrKey, reason: RejectReason) {
        let Some(cr) = self.crs.remove(key) else {
            return;
        };
        self.refuse_connection(cr.conn, reason);
        if let Some(ep) = cr.local_ep {
            self.remove_ep(ep);
        }
    }

    fn refuse_connection(&mut self, conn: ConnId, reason: RejectReason) {
        let now = self.provider.now();
        self.conns.remove(&conn);
        if let Err(error) = self.cm.reject(now, conn, reason) {
            tracing::debug!(%error, "a request to be refused is over already");
        }
        self.cm.release(now, conn);
    }

    /// A request has come: an event, or a refusal when the backlog is full.
    pub(crate) fn request_arrived(&mut self, psp: Option<PspKey>, mut cr: Cr) {
        let listening = psp.and_then(|key| self.psps.get(key).map(|psp| (key, *psp)));
        let Some((key, psp)) = listening.filter(|(_, psp)| self.evds[psp.evd].has_room()) else {
            self.refuse_connection(cr.conn, RejectReason::NoResources);
            return;
        };
        if psp.flags.contains(PspFlags::PROVIDER) {
            match self.lend_ep(cr.reads_in, cr.peer.reads_out, cr.remote()) {
                Ok(ep) => cr.local_ep = Some(ep),
                Err(error) => {
                    tracing::warn!(%error, "no endpoint for a connection request");
                    self.refuse_connection(cr.conn, RejectReason::NoResources);
                    return;
                }
            }
        }
        let (evd, conn_qual, psp) = (psp.evd, psp.conn_qual, self.psp_handle(key));
        cr.conn_qual = conn_qual;
        let cr = CrHandle {
            key: self.crs.insert(cr),
            ia: self.id,
        };
        self.push_event(
            Some(evd),
            Event::ConnectionRequest(ConnectionRequest { psp, conn_qual, cr }),
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
