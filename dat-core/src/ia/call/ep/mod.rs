//! The calls on endpoints: `dat_ep_create`, `_create_with_srq`, `_query`, `_get_status`, `_free`; the others are in
//! files of their own.
//!
//! An endpoint that has a PZ owns a queue pair of the device. The queue pair is destroyed with the endpoint, or when
//! `ep_modify` replaces it.
//!
//! A null EVD means that the consumer does not need those completions. The device still writes them, so such an
//! endpoint has a completion queue of its own, `discard`, which is always armed. It is drained when the device reports
//! entries, and when a post finds no free queue entry. An error found there breaks the connection like any other.

pub(crate) mod batch;
pub(crate) mod connect;
pub(crate) mod dup_connect;
pub(crate) mod ext;
pub(crate) mod holding;
pub(crate) mod inline;
pub(crate) mod modify;
pub(crate) mod post;

use crate::error::{DatError, DatResult, Subtype};
use crate::handle::{EpHandle, EpKey, EvdHandle, EvdKey, PzHandle, SrqHandle, SrqKey, index_of};
use crate::ia::instance::Ia;
use crate::object::ep::attr::EpAttr;
use crate::object::ep::cause::EndCause;
use crate::object::ep::evds::EpEvds;
use crate::object::ep::state::{EpEvent, EpState};
use crate::object::ep::transport::EpTransport;
use crate::object::ep::untimely::EpCall;
use crate::object::ep::{DISCARD_OWNER, Ends, Ep, MAX_OWNER, Setup, feeders_of, streams_of};
use crate::object::evd::queue::Evd;
use crate::provider::{CompletionQueue, Nanos, Provider, QueuePair, QueueSizes};
use crate::slots::Slots;
use crate::types::EvdFlags;
use std::collections::VecDeque;
use std::net::IpAddr;

/// Maximum time, in nanoseconds, that freeing or resetting an endpoint waits for the buffers that it took from its SRQ.
/// A close of the IA waits no longer for all its endpoints together.
pub(in crate::ia) const LAST_BUFFER_WAIT: Nanos = 500_000_000;

/// Result of `ep_query` (`DAT_EP_PARAM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpParam {
    /// State of the endpoint.
    pub state: EpState,
    /// Our address of the connection or of the attempt. Without either, the address of the adapter (`ia_address`).
    pub local_ia_address: IpAddr,
    /// Our source port, if the endpoint connected to an RDMA CM port; otherwise 0.
    pub local_port_qual: u64,
    /// The peer's address. An attempt or a request sets it; a reset of the endpoint, or a rejection of the request,
    /// removes it.
    pub remote_ia_address: Option<IpAddr>,
    /// Qualifier that the endpoint connected to, or port from which the accepted peer connected; 0 if unknown.
    pub remote_port_qual: u64,
    /// The protection zone.
    pub pz: Option<PzHandle>,
    /// The EVD on which receives complete.
    pub recv_evd: Option<EvdHandle>,
    /// The EVD on which requests complete.
    pub request_evd: Option<EvdHandle>,
    /// The EVD that receives connection events.
    pub connect_evd: Option<EvdHandle>,
    /// The SRQ that supplies the endpoint's receive buffers.
    pub srq: Option<SrqHandle>,
    /// The attributes, as requested.
    pub attr: EpAttr,
    /// Transport settings of the endpoint's connections, as requested.
    pub transport: EpTransport,
}

/// Result of `ep_get_status`, a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpStatus {
    /// State of the endpoint.
    pub state: EpState,
    /// True if no receive is outstanding. It is always true for an endpoint with an SRQ, because the device does not
    /// report which buffers the endpoint has taken.
    pub recv_idle: bool,
    /// True if no request is outstanding.
    pub request_idle: bool,
}

impl<P: Provider> Ia<P> {
    /// Sets the C facade's identifier of an endpoint. [`Ia::evd_poll_fast`] returns it with the endpoint's completions.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP.
    #[doc(hidden)] // for the C facade
    pub fn ep_set_name(&mut self, ep: EpHandle, name: u64) -> DatResult<()> {
        self.ep(ep)?;
        self.eps[ep.key].name = name;
        Ok(())
    }

    /// Creates an endpoint. Without attributes it gets [`EpAttr::defaults`].
    ///
    /// Page: dat_ep_create.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE: the PZ, or an EVD (also an EVD created without the flag of the stream).
    /// DAT_INVALID_PARAMETER|ARG6: an attribute is illegal or beyond the IA's limit, or the EVDs cannot carry these
    /// streams together. DAT_MODEL_NOT_SUPPORTED: quality of service, watermark. DAT_INSUFFICIENT_RESOURCES|TEP.
    pub fn ep_create(
        &mut self,
        pz: Option<PzHandle>,
        evds: EpEvds,
        attr: Option<&EpAttr>,
    ) -> DatResult<EpHandle> {
        let attr = attr
            .copied()
            .unwrap_or_else(|| EpAttr::defaults(&self.attr));
        self.create(pz, evds, None, attr, Subtype::Arg6)
    }

    /// Creates an endpoint that takes its receive buffers from an SRQ.
    ///
    /// Page: dat_ep_create_with_srq.
    ///
    /// # Errors
    /// As [`Ia::ep_create`], except that the attributes are ARG7; DAT_INVALID_HANDLE|SRQ.
    pub fn ep_create_with_srq(
        &mut self,
        pz: Option<PzHandle>,
        evds: EpEvds,
        srq: SrqHandle,
        attr: &EpAttr,
    ) -> DatResult<EpHandle> {
        let srq = self.srq_key(srq)?;
        self.create(pz, evds, Some(srq), *attr, Subtype::Arg7)
    }

    fn create(
        &mut self,
        pz: Option<PzHandle>,
        evds: EpEvds,
        srq: Option<SrqKey>,
        attr: EpAttr,
        argument: Subtype,
    ) -> DatResult<EpHandle> {
        self.alive()?;
        let setup = Setup {
            pz: pz.map(|pz| self.pz_key(pz)).transpose()?,
            recv_evd: self.evd_for(evds.recv, EvdFlags::DTO, Subtype::HandleEvdRecv)?,
            request_evd: self.evd_for(evds.request, EvdFlags::DTO, Subtype::HandleEvdRequest)?,
            connect_evd: self.evd_for(
                evds.connect,
                EvdFlags::CONNECTION,
                Subtype::HandleEvdConn,
            )?,
            srq,
            attr,
            transport: EpTransport::default(),
        };
        attr.check(&self.attr, srq.is_some(), argument)?;
        self.check_sharing(&setup, None, argument)?;
        let key = self.insert_ep(&setup)?;
        Ok(EpHandle { key, ia: self.id })
    }

    /// Creates an endpoint for a request to a PSP with the PROVIDER flag, or to an RSP without an endpoint. The
    /// endpoint has no PZ and no EVDs. It is TENTATIVE until the request is decided. Its RDMA Read depths are those
    /// that the peer requests, up to the adapter's limits.
    pub(in crate::ia) fn create_tentative_ep(
        &mut self,
        reads_in: u8,
        reads_out: u8,
        ends: Ends,
    ) -> DatResult<EpKey> {
        let attr = EpAttr {
            max_rdma_read_in: u32::from(reads_in).min(self.attr.max_rdma_read_per_ep_in),
            max_rdma_read_out: u32::from(reads_out).min(self.attr.max_rdma_read_per_ep_out),
            ..EpAttr::defaults(&self.attr)
        };
        let (pz, evd, srq) = (None, None, None);
        let setup = Setup {
            pz,
            recv_evd: evd,
            request_evd: evd,
            connect_evd: evd,
            srq,
            attr,
            transport: EpTransport::default(),
        };
        let key = self.insert_ep(&setup)?;
        let ep = &mut self.eps[key];
        let from = ep.hot.state;
        ep.step(EpEvent::Lent)?;
        ep.ends = Some(ends);
        self.state_changed(key, from);
        Ok(key)
    }

    fn insert_ep(&mut self, setup: &Setup) -> DatResult<EpKey> {
        let attr = setup.attr;
        let room = self.room_for_binds(setup);
        let mut ep = Ep::new(setup, attr.read_iov(&self.attr));
        ep.set_recorded(self.recorder.is_some());
        let key = self.eps.insert(ep);
        match self.create_ep_qp(key, setup) {
            Ok((qp, discard)) => {
                let ep = &mut self.eps[key];
                (ep.qp, ep.discard) = (qp.into(), discard);
                ep.binds = VecDeque::with_capacity(room);
            }
            Err(error) => {
                self.eps.remove(key);
                return Err(error);
            }
        }
        self.measure_ep(key);
        self.attach(key, setup);
        Ok(key)
    }

    /// Creates the queue pair of an endpoint that has a PZ, and its discard queue if its request EVD or receive EVD is
    /// null.
    #[allow(clippy::type_complexity, reason = "the two things an endpoint gets")]
    fn create_ep_qp(
        &mut self,
        key: EpKey,
        setup: &Setup,
    ) -> DatResult<(Option<P::Qp>, Option<P::Cq>)> {
        let Some(pz) = setup.pz else {
            return Ok((None, None));
        };
        let owner = index_of(key);
        if owner > MAX_OWNER {
            return Err(DatError::resources(Subtype::ResourceTep).because("2^23 endpoints exist"));
        }
        let discard = if setup.request_evd.is_some() && setup.recv_evd.is_some() {
            None
        } else {
            self.overran.remove(&(DISCARD_OWNER | owner));
            let entries = self.discard_entries(setup).max(1);
            match self.provider.create_cq(entries, DISCARD_OWNER | owner) {
                Ok(mut cq) => {
                    self.provider.watch_cq(&cq);
                    cq.arm(false);
                    Some(cq)
                }
                Err(error) => {
                    return Err(self.device_refused("ep_create", error, Subtype::ResourceTevd));
                }
            }
        };
        let sizes = self.queue_sizes(setup);
        let cq = |evd: Option<EvdKey>| match evd {
            Some(evd) => self.evds[evd].cq.as_ref(),
            None => discard.as_ref(),
        };
        let (Some(request_cq), Some(recv_cq)) = (cq(setup.request_evd), cq(setup.recv_evd)) else {
            // Unreachable: `evd_for` has checked the DTO flag, so the EVD has a completion queue.
            return Err(DatError::handle(Subtype::HandleEvdRecv));
        };
        let srq = setup.srq.map(|srq| &self.srqs[srq].queue);
        match self
            .provider
            .create_qp(self.pzs[pz].pd, request_cq, recv_cq, srq, sizes, owner)
        {
            Ok(qp) => Ok((Some(qp), discard)),
            Err(error) => {
                let refused = self.device_refused("ep_create", error, Subtype::ResourceTep);
                if let Some(mut cq) = discard {
                    self.end_or_stop_device("destroying a completion queue", |ia| {
                        ia.end_discard(&mut cq)
                    });
                }
                Err(refused)
            }
        }
    }

    /// Returns the sizes that an endpoint's queue pair is made with.
    pub(in crate::ia) fn queue_sizes(&self, setup: &Setup) -> QueueSizes {
        let attr = &setup.attr;
        // With an SRQ, the SRQ limits the segments of receives.
        let (max_recvs, max_recv_segments) = match setup.srq {
            Some(_) => (0, 1),
            None => (attr.max_recv_dtos, attr.max_recv_iov),
        };
        QueueSizes {
            max_requests: self.max_requests(setup),
            max_recvs,
            max_request_segments: attr.max_request_iov.max(attr.write_iov()),
            max_read_segments: attr.read_iov(&self.attr),
            max_recv_segments,
            binds: self.binds_on(setup),
        }
    }

    /// Returns the number of requests that an endpoint's queue pair is made for. The keep-alive probe needs one more
    /// than the program.
    fn max_requests(&self, setup: &Setup) -> u32 {
        let asked = setup.attr.max_request_dtos;
        if setup.transport.keep_alive.is_some() {
            let most = self.provider.limits().max_dtos;
            asked.saturating_add(1).min(most)
        } else {
            asked
        }
    }

    /// Returns the number of completions that an endpoint's discard queue must hold: those of its null EVDs.
    pub(in crate::ia) fn discard_entries(&self, setup: &Setup) -> u32 {
        let requests = if setup.request_evd.is_none() {
            self.max_requests(setup)
        } else {
            0
        };
        let recvs = match (setup.recv_evd, setup.srq) {
            (Some(_), _) => 0,
            (None, None) => setup.attr.max_recv_dtos,
            (None, Some(srq)) => self.srqs[srq].max_recv_dtos(),
        };
        requests.saturating_add(recvs)
    }

    fn end_discard(&mut self, cq: &mut P::Cq) -> DatResult<()> {
        match self.provider.destroy_cq(cq) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.not_ended("destroying a completion queue", &error)),
        }
    }

    /// Returns whether an endpoint may bind RMRs. It needs a request EVD that takes completions of binds.
    fn binds_on(&self, setup: &Setup) -> bool {
        let flags = setup.request_evd.map(|evd| self.evds[evd].flags);
        flags.is_some_and(|flags| flags.contains(EvdFlags::RMR_BIND)) && self.attr.max_rmrs != 0
    }

    /// Returns the maximum number of outstanding binds of an endpoint.
    pub(in crate::ia) fn room_for_binds(&self, setup: &Setup) -> usize {
        if self.binds_on(setup) {
            usize::try_from(self.max_requests(setup)).unwrap_or(usize::MAX)
        } else {
            0
        }
    }

    /// Destroys a queue pair and its discard queue. If the device refuses, `qp` and `discard` keep the objects that are
    /// left. Completions already taken from the completion queues stay delivered.
    fn destroy_ep_qp(
        &mut self,
        qp: &mut Option<P::Qp>,
        discard: &mut Option<P::Cq>,
        setup: &Setup,
    ) -> DatResult<()> {
        let found = queues(
            &mut self.evds,
            discard.as_mut(),
            setup.request_evd,
            setup.recv_evd,
        );
        if let (Some(ending), Some((request_cq, recv_cq))) = (qp.as_mut(), found)
            && let Err(error) = self.provider.destroy_qp(ending, request_cq, recv_cq)
        {
            return Err(self.not_ended("destroying a queue pair", &error));
        }
        *qp = None;
        if let Some(cq) = discard {
            // Only this queue pair used the discard queue, and it is destroyed.
            self.end_or_stop_device("destroying a completion queue", |ia| ia.end_discard(cq));
        }
        *discard = None;
        Ok(())
    }

    /// Checks that the EVDs can take the streams of `setup` after the streams of `instead_of` are removed.
    fn check_sharing(
        &self,
        setup: &Setup,
        instead_of: Option<&Setup>,
        argument: Subtype,
    ) -> DatResult<()> {
        if !self.config.strict_evd_sharing {
            return Ok(());
        }
        for (evd, _) in streams_of(setup) {
            let mut streams = self.evds[evd].streams;
            let old = instead_of.into_iter().flat_map(streams_of);
            old.filter(|(other, _)| *other == evd)
                .for_each(|(_, stream)| streams.detach(stream));
            streams_of(setup)
                .filter(|(other, _)| *other == evd)
                .for_each(|(_, stream)| streams.attach(stream));
            if !streams.may_share() {
                return Err(DatError::parameter(argument, "evds")
                    .because("streams on one EVD need equal completion flags, and EVD_THRESHOLD if other kinds of event go there"));
            }
        }
        Ok(())
    }

    /// Counts the references of an endpoint in the objects that it refers to.
    pub(in crate::ia) fn attach(&mut self, key: EpKey, setup: &Setup) {
        for (evd, stream) in streams_of(setup) {
            self.evds[evd].streams.attach(stream);
            // The EVD may have been armed for less than this stream reports.
            self.mark_unarmed(evd);
        }
        self.keep_alives.attach(setup);
        for feeder in feeders_of(setup) {
            self.feeding.add(feeder);
            self.watch(feeder);
        }
        if let Some(pz) = setup.pz {
            self.pzs[pz].users += 1;
        }
        if let Some(srq) = setup.srq {
            let srq = &mut self.srqs[srq];
            srq.users += 1;
            match setup.recv_evd {
                Some(evd) => {
                    srq.recv_evds.add(evd);
                }
                None => srq.unwanted.insert(key),
            }
        }
    }

    /// Removes the references of an endpoint from the counts of the objects that it referred to.
    fn detach(&mut self, key: EpKey, setup: &Setup) {
        for (evd, stream) in streams_of(setup) {
            self.evds[evd].streams.detach(stream);
        }
        self.keep_alives.detach(setup);
        for feeder in feeders_of(setup) {
            self.feeding.remove(feeder);
        }
        if let Some(pz) = setup.pz {
            self.pzs[pz].users -= 1;
        }
        if let Some(srq) = setup.srq {
            let srq = &mut self.srqs[srq];
            srq.users -= 1;
            match setup.recv_evd {
                Some(evd) => {
                    srq.recv_evds.remove(evd);
                }
                None => srq.unwanted.remove(key),
            }
        }
    }

    /// Returns the parameters of an endpoint.
    ///
    /// Page: dat_ep_query.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP.
    pub fn ep_query(&self, ep: EpHandle) -> DatResult<EpParam> {
        let ia = self.id;
        let ep = self.ep(ep)?;
        let evd = |key: Option<EvdKey>| key.map(|key| EvdHandle { key, ia });
        Ok(EpParam {
            state: ep.hot.state,
            local_ia_address: ep.ends.map_or(self.attr.ia_address, |ends| ends.local),
            local_port_qual: ep.local_port_qual,
            remote_ia_address: ep.ends.map(|ends| ends.remote),
            remote_port_qual: ep.ends.map_or(0, |ends| ends.remote_port),
            pz: ep.pz.map(|key| PzHandle { key, ia }),
            recv_evd: evd(ep.recv_evd),
            request_evd: evd(ep.request_evd),
            connect_evd: evd(ep.connect_evd),
            srq: ep.srq.map(|key| SrqHandle { key, ia }),
            attr: ep.attr,
            transport: ep.transport,
        })
    }

    /// Returns the state of an endpoint, and whether its queues are empty. This call does not poll the device. An
    /// operation counts as outstanding until another call polls its completion.
    ///
    /// Page: dat_ep_get_status.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP.
    pub fn ep_get_status(&self, ep: EpHandle) -> DatResult<EpStatus> {
        let ep = self.ep(ep)?;
        Ok(EpStatus {
            state: ep.hot.state,
            recv_idle: ep.qp.get().is_none_or(|qp| qp.recvs_outstanding() == 0),
            request_idle: ep
                .qp
                .get()
                .is_none_or(|qp| qp.requests_outstanding() == u32::from(ep.own_outstanding)),
        })
    }

    /// Returns the private data that came with ESTABLISHED on the connecting side, or with PEER_REJECTED; otherwise
    /// an empty slice. The data is kept while the endpoint is CONNECTED, DISCONNECT_PENDING or DISCONNECTED.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP.
    pub fn ep_private_data(&self, ep: EpHandle) -> DatResult<&[u8]> {
        Ok(&self.ep(ep)?.private_data)
    }

    /// Returns why the last connection, or the last attempt to connect, ended. `None` if none has ended since the
    /// endpoint was created or [reset](Ia::ep_reset).
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP.
    pub fn ep_end_cause(&self, ep: EpHandle) -> DatResult<Option<EndCause>> {
        let ep = self.ep(ep)?;
        Ok(ep.cause.filter(|_| ep.hot.state == EpState::Disconnected))
    }

    /// Frees an endpoint, and ends its connection or attempt. No event follows. Completions that were not dequeued yet
    /// may be lost.
    ///
    /// Page: dat_ep_free.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP. DAT_INVALID_STATE: RESERVED, PASSIVE or TENTATIVE. DAT_INTERNAL_ERROR: the device
    /// refused. Then either nothing has changed, or the endpoint is DISCONNECTED and can be freed again.
    pub fn ep_free(&mut self, ep: EpHandle) -> DatResult<()> {
        let state = self.ep(ep)?.hot.state;
        if matches!(
            state,
            EpState::Reserved
                | EpState::PassiveConnectionPending
                | EpState::TentativeConnectionPending
        ) {
            return Err(state.refuse(EpCall::Free));
        }
        let removed = self.remove_ep(ep.key);
        self.apply_effects();
        self.transmit();
        removed
    }

    /// Frees an endpoint. First its queue pair stops sending and receiving; if the device refuses that, nothing has
    /// changed. If the device refuses a later step, the endpoint remains, DISCONNECTED.
    pub(in crate::ia) fn remove_ep(&mut self, key: EpKey) -> DatResult<()> {
        self.drain_queues_of(key);
        let Some(ep) = self.eps.get(key) else {
            return Ok(());
        };
        let may_receive = ep.has_received || ep.conn.is_some();
        if may_receive && ep.hot.state != EpState::Disconnected {
            self.halt(key)?;
        }
        self.let_go(key);
        self.drain_over(key);
        self.stop_checks(key);
        if may_receive {
            self.move_to(key, EpEvent::Freed);
        }
        if self.eps.get(key).is_some_and(|ep| ep.srq.is_some()) {
            // The device must report the SRQ buffers that the endpoint took, before the queue pair is destroyed.
            self.await_last_buffer(key);
            self.drain_queues_of(key);
        }
        let Some(ep) = self.eps.get_mut(key) else {
            return Ok(());
        };
        let setup = ep.setup();
        let last = ep.stats();
        let (mut qp, mut discard) = (ep.qp.exchange(None), ep.discard.take());
        let unmade = self.destroy_ep_qp(&mut qp, &mut discard, &setup);
        if let Err(error) = unmade {
            if let Some(ep) = self.eps.get_mut(key) {
                (ep.qp, ep.discard) = (qp.into(), discard);
            }
            self.move_to(key, EpEvent::Freed);
            self.stop_half_way(key);
            return Err(error);
        }
        self.ended.ep(&last);
        self.abandon_binds(key);
        self.stop_measuring(key);
        self.eps.remove(key);
        self.marked.remove(key);
        self.forget_context(EpHandle { key, ia: self.id });
        self.detach(key, &setup);
        self.transmit();
        Ok(())
    }

    /// Moves the queue pair of an endpoint to ERR. The queue pair then sends and receives no more packets, and posted
    /// requests are flushed.
    pub(in crate::ia) fn halt(&mut self, key: EpKey) -> DatResult<()> {
        let Some(qp) = self.eps.get_mut(key).and_then(|ep| ep.qp.get_mut()) else {
            return Ok(());
        };
        match self.provider.to_error(qp) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.not_ended("stopping a queue pair", &error)),
        }
    }

    /// Waits until an endpoint has returned the buffers that it took from its SRQ, for `LAST_BUFFER_WAIT` at most. The
    /// device reports the last one. The queue pair must be in ERR.
    pub(in crate::ia) fn await_last_buffer(&mut self, key: EpKey) {
        let wait = self.last_buffer_wait_left.unwrap_or(LAST_BUFFER_WAIT);
        let until = self.provider.now().saturating_add(wait);
        self.await_last_buffer_until(key, until);
        if let Some(left) = &mut self.last_buffer_wait_left {
            *left = until.saturating_sub(self.provider.now());
        }
    }

    fn await_last_buffer_until(&mut self, key: EpKey, until: Nanos) {
        loop {
            let Some(ep) = self.eps.get(key) else {
                return;
            };
            if ep.srq.is_none() || !ep.has_received || ep.last_buffer || self.health.is_dead() {
                return;
            }
            self.progress();
            if self.eps.get(key).is_some_and(|ep| ep.last_buffer) {
                return;
            }
            if self.provider.now() >= until {
                tracing::warn!(ep = ?key, "the device did not report the last SRQ buffer of an endpoint");
                return;
            }
            if let Err(error) = self.provider.wait(until) {
                self.device_died(&error);
            }
        }
    }
}

/// Returns the completion queues of a queue pair: the queue of its requests, and the queue of its receives if it is a
/// different one.
pub(in crate::ia) fn queues<'a, P: Provider>(
    evds: &'a mut Slots<EvdKey, Evd<P>>,
    discard: Option<&'a mut P::Cq>,
    request: Option<EvdKey>,
    recv: Option<EvdKey>,
) -> Option<(&'a mut P::Cq, Option<&'a mut P::Cq>)> {
    match (request, recv) {
        (Some(request), Some(recv)) if request == recv => {
            Some((evds.get_mut(request)?.cq.as_mut()?, None))
        }
        (Some(request), Some(recv)) => {
            let [request, recv] = evds.two_mut(request, recv)?;
            Some((request.cq.as_mut()?, recv.cq.as_mut()))
        }
        (Some(request), None) => Some((evds.get_mut(request)?.cq.as_mut()?, discard)),
        (None, Some(recv)) => Some((discard?, evds.get_mut(recv)?.cq.as_mut())),
        (None, None) => Some((discard?, None)),
    }
}
