//! Connecting and disconnecting: `dat_ep_connect`, `_disconnect`, `_reset`, and the reports of the connection manager
//! and of the device about a connection.
//!
//! Every end of a connection, or of an attempt, goes through `Ia::end_connection`: the state changes; the connection
//! manager drops the connection and notifies the peer; the queue pair goes to the error state, which flushes
//! outstanding requests (`ep_disconnect` does this first); and one event is queued. Completions that have arrived
//! precede that event if they share its EVD. A second cause finds the state changed and does nothing, so there is
//! exactly one terminal event. Only freeing an endpoint moves it to DISCONNECTED in another way, without an event.
//!
//! A graceful disconnect waits in DISCONNECT_PENDING until the requests are done. Completions show that, except for
//! requests whose completion the consumer suppressed. So after a request posted with SUPPRESS we post a *marker*, an
//! RDMA Write of no bytes. Its completion ends the wait and makes no event. The wait has a time limit
//! ([`DRAIN_TIMEOUT`](crate::object::ep::DRAIN_TIMEOUT)): otherwise a peer that answers but never posts a receive
//! would prolong it for ever.

use super::queues;
use crate::attributes::{MAX_PRIVATE_DATA, MAX_PRIVATE_DATA_TO_PORT, address_of, gid_of};
use crate::cm::{self, ConnectParams};
use crate::error::{DatError, DatResult, ReturnType, Subtype};
use crate::event::{ConnectionEvent, ConnectionEventKind, Event};
use crate::handle::{EpHandle, EpKey, EvdKey};
use crate::ia::effect::Effect;
use crate::ia::instance::Ia;
use crate::object::cr::Peer;
use crate::object::ep::Ends;
use crate::object::ep::cause::EndCause;
use crate::object::ep::state::{EpEvent, EpState};
use crate::object::ep::untimely::EpCall;
use crate::object::service_point::service_id;
use crate::provider::{Path, Provider, ProviderError, Psn, QueuePair, ReadyToReceive, ReadyToSend};
use crate::types::{CloseFlags, ConnQual, ConnectFlags, Qos, Timeout};
use std::net::IpAddr;
use tracing::field;

/// Checks that private data fits into a REQ to this qualifier. `argument` is the position of its length in the call.
pub(in crate::ia) fn check_private_data(
    conn_qual: ConnQual,
    bytes: usize,
    argument: Subtype,
) -> DatResult<()> {
    if bytes > MAX_PRIVATE_DATA {
        return Err(DatError::parameter(argument, "private_data")
            .because("private data is longer than max_private_data_size")
            .over(bytes as u64, MAX_PRIVATE_DATA as u64));
    }
    if bytes > cm::request_limit(service_id(conn_qual)).min(MAX_PRIVATE_DATA) {
        const _: () = assert!(MAX_PRIVATE_DATA_TO_PORT == 56);
        return Err(DatError::parameter(argument, "private_data")
            .because("a request to an RDMA-CM port (conn_qual up to 0xffff) carries at most 56 bytes of private data; larger conn_quals carry 64"));
    }
    Ok(())
}

/// Checks that an address can be a peer's: it is not unspecified, multicast or broadcast.
fn check_address(address: IpAddr) -> DatResult<()> {
    let bad =
        |subtype, detail| Err(DatError::new(ReturnType::InvalidAddress, subtype).because(detail));
    if address.is_unspecified() {
        return bad(Subtype::AddressMalformed, "the unspecified address");
    }
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_multicast() || broadcast {
        return bad(
            Subtype::AddressUnsupported,
            "a multicast or broadcast address",
        );
    }
    Ok(())
}

/// Converts a number of RDMA Reads to the 8 bits that it has on the wire; larger numbers become 255.
fn depth(reads: u32) -> u8 {
    u8::try_from(reads).unwrap_or(u8::MAX)
}

impl<P: Provider> Ia<P> {
    /// Starts a connection to the service at `conn_qual` of `remote`. One event on the connect EVD reports the
    /// outcome.
    ///
    /// Page: dat_ep_connect.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP. DAT_INVALID_STATE: not UNCONNECTED; |EP_NOTREADY no PZ.
    /// DAT_INVALID_PARAMETER: |ARG3 qualifier 0, |ARG4 timeout 0, |ARG5 private data too long, |ARG8
    /// unknown flags. DAT_INVALID_ADDRESS: not an address of a peer, or the port is down, or no route leads there.
    /// DAT_MODEL_NOT_SUPPORTED: quality of service, several paths. DAT_INSUFFICIENT_RESOURCES.
    #[allow(clippy::too_many_arguments, reason = "DAT's own")]
    pub fn ep_connect(
        &mut self,
        ep: EpHandle,
        remote: IpAddr,
        conn_qual: ConnQual,
        timeout: impl Into<Timeout>,
        private_data: &[u8],
        qos: Qos,
        flags: ConnectFlags,
    ) -> DatResult<()> {
        let timeout = timeout.into();
        let state = self.ep(ep)?.hot.state;
        state
            .next(EpEvent::Connect)
            .ok_or(state.refuse(EpCall::Connect))?;
        self.alive()?;
        if conn_qual.0 == 0 {
            return Err(
                DatError::parameter(Subtype::Arg3, "conn_qual").because("connection qualifier 0")
            );
        }
        if timeout == Timeout::ZERO {
            return Err(DatError::parameter(Subtype::Arg4, "timeout").because("a timeout of 0"));
        }
        check_private_data(conn_qual, private_data.len(), Subtype::Arg5)?;
        if !ConnectFlags::all().contains(flags) {
            return Err(
                DatError::parameter(Subtype::Arg8, "flags").because("connect_flags: unknown ones")
            );
        }
        qos.check()?;
        if flags.contains(ConnectFlags::MULTIPATH) {
            return Err(DatError::unsupported().because("one path per connection"));
        }
        check_address(remote)?;
        let source = self.eps[ep.key].transport.source_address;
        let path = match self.provider.route(gid_of(remote), source) {
            Ok(path) => path,
            Err(ProviderError::Unreachable { why, what }) => {
                tracing::warn!(%remote, what, "ep_connect: {why}");
                self.health.note(what);
                return Err(
                    DatError::new(ReturnType::InvalidAddress, Subtype::AddressUnreachable)
                        .because(why),
                );
            }
            Err(error) => {
                return Err(self.device_refused("ep_connect", error, Subtype::ResourceTep));
            }
        };
        let (at, wishes) = ((remote, conn_qual), (timeout, qos));
        self.connect_to(ep, at, path, wishes, private_data)
    }

    /// Starts a connection to a qualifier of the host at the end of a path. The caller has checked everything but the
    /// endpoint's PZ.
    pub(in crate::ia) fn connect_to(
        &mut self,
        ep: EpHandle,
        (remote, conn_qual): (IpAddr, ConnQual),
        path: Path,
        (timeout, qos): (Timeout, Qos),
        private_data: &[u8],
    ) -> DatResult<()> {
        let state = self.ep(ep)?.hot.state;
        state
            .next(EpEvent::Connect)
            .ok_or(state.refuse(EpCall::Connect))?;
        let (now, psn, random) = (
            self.provider.now(),
            self.random_psn(),
            self.provider.random(),
        );
        let limits = self.provider.limits();
        let mtu = limits.mtu;
        // The source address of the path, which has the same address family as the peer's address.
        let source = self
            .provider
            .gid(path.source_gid_index)
            .unwrap_or(limits.gid);
        let target = &self.eps[ep.key];
        let Some(qp) = target.qp.get() else {
            return Err(DatError::state(Subtype::StateEpNotReady)
                .because("the endpoint has no PZ: ep_modify gives it one"));
        };
        let path = target.transport.on(qos | target.attr.qos, path);
        let transport = self.config.transport.with(&target.transport);
        let params = ConnectParams {
            service_id: service_id(conn_qual),
            source,
            path,
            qpn: qp.number(),
            psn,
            reads_out: depth(target.attr.max_rdma_read_out),
            reads_in: depth(target.attr.max_rdma_read_in),
            mtu,
            retry_count: transport.retry_count,
            rnr_retry: transport.rnr_retry,
            ack_timeout: transport
                .ack_timeout
                .unwrap_or_else(|| self.adapter.lock().cm.ack_timeout()),
            private_data,
            timeout: timeout.nanos(),
            srq: target.srq.is_some(),
            random,
        };
        let mut adapter = self.adapter.lock();
        let conn = adapter.cm.connect(now, params).map_err(|error| {
            tracing::warn!(%error, "ep_connect refused by the connection manager");
            self.health.note(error.to_string());
            DatError::resources(Subtype::ResourceTep)
                .because("the connection manager refused; see last_device_error")
        })?;
        adapter.own(conn, self.instance_index);
        let local_port = adapter.cm.local_port(conn);
        drop(adapter);
        self.conns.insert(conn, ep.key);
        let target = &mut self.eps[ep.key];
        let from = target.hot.state;
        target.step(EpEvent::Connect)?;
        target.conn = Some(conn);
        target.ends = Some(Ends {
            local: address_of(source),
            remote,
            remote_port: conn_qual.0,
        });
        target.local_port_qual = local_port.map_or(0, u64::from);
        target.outgoing = Some((path, psn, mtu));
        target.path = Some(path);
        target.cause = None;
        self.log.attempt(
            ep.key,
            tracing::info_span!("connect", instance = self.id, ep = ?ep.key, %remote, port = conn_qual.0, outcome = field::Empty),
        );
        self.state_changed(ep.key, from);
        self.transmit();
        Ok(())
    }

    /// Ends a connection, or an attempt. One event DISCONNECTED follows. Does nothing if the endpoint is DISCONNECTED
    /// already.
    ///
    /// Page: dat_ep_disconnect.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP. DAT_INVALID_STATE: UNCONNECTED, RESERVED, PASSIVE, TENTATIVE. DAT_INTERNAL_ERROR: the
    /// device refused, and nothing has changed.
    pub fn ep_disconnect(&mut self, ep: EpHandle, flags: CloseFlags) -> DatResult<()> {
        let state = self.ep(ep)?.hot.state;
        match (state, flags) {
            (EpState::Disconnected, _) | (EpState::DisconnectPending, CloseFlags::Graceful) => {}
            (EpState::ActiveConnectionPending | EpState::CompletionPending, _) => {
                self.halt(ep.key)?;
                self.end_connection(
                    ep.key,
                    EpEvent::AttemptEnded,
                    ConnectionEventKind::Disconnected,
                    true,
                );
            }
            (EpState::Connected | EpState::DisconnectPending, CloseFlags::Abrupt) => {
                self.halt(ep.key)?;
                self.end_connection(
                    ep.key,
                    EpEvent::ConnectionEnded,
                    ConnectionEventKind::Disconnected,
                    true,
                );
            }
            (EpState::Connected, CloseFlags::Graceful) => {
                self.move_to(ep.key, EpEvent::Drain);
                self.drain_begins(ep.key);
                self.bound_drain(ep.key);
                self.advance_drain(ep.key);
            }
            (
                EpState::Unconnected
                | EpState::Reserved
                | EpState::PassiveConnectionPending
                | EpState::TentativeConnectionPending,
                _,
            ) => return Err(state.refuse(EpCall::Disconnect)),
        }
        self.apply_effects();
        self.transmit();
        Ok(())
    }

    /// Returns a disconnected endpoint to UNCONNECTED. An unconnected endpoint stays as it is, with its receives.
    /// Completions that were not dequeued yet may be lost.
    ///
    /// Page: dat_ep_reset.
    ///
    /// # Errors
    /// DAT_INVALID_HANDLE|EP. DAT_INVALID_STATE: any other state. DAT_INTERNAL_ERROR: the device
    /// refused; the endpoint stays DISCONNECTED.
    pub fn ep_reset(&mut self, ep: EpHandle) -> DatResult<()> {
        let state = self.ep(ep)?.hot.state;
        let next = state
            .next(EpEvent::Reset)
            .ok_or(state.refuse(EpCall::Reset))?;
        if state == next {
            return Ok(());
        }
        self.await_last_buffer(ep.key);
        self.drain_queues_of(ep.key);
        self.apply_effects();
        if let Err(error) = self.with_queues(ep.key, P::reset_qp) {
            let refused = self.device_refused("ep_reset", error, Subtype::ResourceTep);
            self.stop_half_way(ep.key);
            self.apply_effects();
            return Err(refused);
        }
        self.abandon_binds(ep.key);
        self.apply_effects();
        let target = &mut self.eps[ep.key];
        let from = target.hot.state;
        target.step(EpEvent::Reset)?;
        target.own_outstanding = false;
        target.has_received = false;
        target.last_buffer = false;
        target.ends = None;
        target.local_port_qual = 0;
        target.private_data = Box::default();
        target.outgoing = None;
        target.path = None;
        target.cause = None;
        self.state_changed(ep.key, from);
        Ok(())
    }

    /// Calls `change` with an endpoint's queue pair and its completion queues. Returns the default value if there is no
    /// queue pair.
    fn with_queues<T: Default>(
        &mut self,
        key: EpKey,
        change: impl FnOnce(
            &mut P,
            &mut P::Qp,
            &mut P::Cq,
            Option<&mut P::Cq>,
        ) -> Result<T, ProviderError>,
    ) -> Result<T, ProviderError> {
        let Some(ep) = self.eps.get_mut(key) else {
            return Ok(T::default());
        };
        let Some(qp) = ep.qp.get_mut() else {
            return Ok(T::default());
        };
        match queues(
            &mut self.evds,
            ep.discard.as_mut(),
            ep.request_evd,
            ep.recv_evd,
        ) {
            Some((request_cq, recv_cq)) => change(&mut self.provider, qp, request_cq, recv_cq),
            None => Ok(T::default()),
        }
    }

    /// Undoes a `bring_up` that failed half-way. The endpoint keeps its receives, unless a packet has arrived for one
    /// of them; then the others are flushed. Before the undo succeeds, the queue pair may be able to receive, so a
    /// device that refuses repeatedly is stopped.
    pub(in crate::ia) fn rewind(&mut self, key: EpKey) {
        self.end_or_stop_device("rewinding a queue pair", |ia| {
            if ia.health.is_dead() {
                // The device is dead, so the receives have been flushed in software.
                return Ok(());
            }
            let rewound = ia.with_queues(key, P::rewind_qp).and_then(|kept| {
                if kept {
                    return Ok(());
                }
                ia.flush_endpoint(key, QueuePair::take_lost);
                ia.with_queues(key, P::reset_qp)
            });
            rewound.map_err(|error| ia.not_ended("rewinding a queue pair", &error))
        });
        if let Some(ep) = self.eps.get_mut(key) {
            ep.has_received = false;
            ep.last_buffer = false;
            ep.path = None;
        }
    }

    /// Returns a random first packet sequence number.
    pub(in crate::ia) fn random_psn(&mut self) -> Psn {
        let [.., a, b, c, d] = self.provider.random().to_be_bytes();
        Psn::masked(u32::from_be_bytes([a, b, c, d]))
    }

    /// Changes an endpoint's state by an event, and records the change. Does nothing else that the event may need.
    /// Returns false if there is no such endpoint, or if its state does not allow the event.
    pub(in crate::ia) fn move_to(&mut self, key: EpKey, event: EpEvent) -> bool {
        let Some(ep) = self.eps.get_mut(key) else {
            return false;
        };
        let from = ep.hot.state;
        let moved = ep.step(event).is_ok();
        self.state_changed(key, from);
        moved
    }

    /// Queues a connection event of an endpoint.
    pub(in crate::ia) fn report(&mut self, key: EpKey, kind: ConnectionEventKind) {
        let Some(ep) = self.eps.get(key) else { return };
        let private_data_size = if kind.has_private_data() {
            ep.private_data.len()
        } else {
            0
        };
        let event = ConnectionEvent {
            kind,
            ep: EpHandle { key, ia: self.id },
            private_data_size,
        };
        let evd = ep.connect_evd;
        self.notice_connection(key, kind);
        self.record_end(key, kind);
        self.push_event(evd, Event::Connection(event));
    }

    /// Releases the endpoint's connection in the connection manager, which sends the peer any message that is still
    /// needed.
    pub(in crate::ia) fn let_go(&mut self, key: EpKey) {
        if let Some(conn) = self.eps.get_mut(key).and_then(|ep| ep.conn.take()) {
            self.conns.remove(&conn);
            let now = self.provider.now();
            self.adapter.lock().release(now, conn, self.instance_index);
        }
    }

    /// Ends a connection, or an attempt: moves the endpoint to DISCONNECTED and stops the queue pair. Does nothing if
    /// the state does not allow `event`. Two callers do without this function: `ep_disconnect` has stopped the queue
    /// pair itself, and freeing an endpoint makes no event. Afterwards the queue pair receives no packets. If the
    /// device refuses to stop the queue pair, the device is stopped, because the refusal cannot be returned to a
    /// caller.
    pub(in crate::ia) fn enter_disconnected(
        &mut self,
        key: EpKey,
        event: EpEvent,
        kind: ConnectionEventKind,
    ) {
        self.end_connection(key, event, kind, false);
    }

    /// Moves an endpoint from a connection, or an attempt, to DISCONNECTED. `halted` is true if the queue pair has
    /// stopped already.
    fn end_connection(
        &mut self,
        key: EpKey,
        event: EpEvent,
        kind: ConnectionEventKind,
        halted: bool,
    ) {
        let Some(ep) = self.eps.get(key) else { return };
        if ep.hot.state.next(event) != Some(EpState::Disconnected) {
            return;
        }
        if kind == ConnectionEventKind::Disconnected {
            self.set_end_cause(key, EndCause::Disconnected);
        }
        self.drain_over(key);
        self.stop_checks(key);
        self.move_to(key, event);
        self.let_go(key);
        let Some(ep) = self.eps.get(key) else {
            return;
        };
        let (connect, request, recv) = (ep.connect_evd, ep.request_evd, ep.recv_evd);
        let shared = connect.filter(|_| connect == request || connect == recv);
        // If an attempt failed, its event precedes the receives flushed with it. (If the program gave up the attempt,
        // they have been flushed before.) If a connection ended, its event follows the completions of the connection.
        let attempt = event == EpEvent::AttemptEnded;
        if attempt {
            self.report_behind(shared, key, kind);
        }
        if !halted {
            self.end_or_stop_device("stopping a queue pair", |ia| ia.halt(key));
        }
        if !attempt {
            self.report_behind(shared, key, kind);
        }
    }

    /// Queues a connection event after the completions that have arrived for an EVD.
    fn report_behind(&mut self, evd: Option<EvdKey>, key: EpKey, kind: ConnectionEventKind) {
        if let Some(evd) = evd {
            self.drain_evd(evd, false);
        }
        self.report(key, kind);
    }

    /// Handles an error that ends a connection, or an attempt.
    pub(in crate::ia) fn connection_failed(&mut self, key: EpKey) {
        let Some(ep) = self.eps.get(key) else { return };
        match ep.hot.state {
            EpState::Connected | EpState::DisconnectPending => {
                self.enter_disconnected(key, EpEvent::ConnectionEnded, ConnectionEventKind::Broken);
            }
            EpState::CompletionPending => {
                self.enter_disconnected(
                    key,
                    EpEvent::AttemptEnded,
                    ConnectionEventKind::AcceptCompletionError,
                );
            }
            EpState::ActiveConnectionPending => {
                self.enter_disconnected(
                    key,
                    EpEvent::AttemptEnded,
                    ConnectionEventKind::NonPeerRejected,
                );
            }
            EpState::Unconnected
            | EpState::Reserved
            | EpState::PassiveConnectionPending
            | EpState::TentativeConnectionPending
            | EpState::Disconnected => {}
        }
    }

    /// Records why a connection or an attempt is about to end. If a cause is recorded already, the first one is kept.
    pub(in crate::ia) fn set_end_cause(&mut self, key: EpKey, cause: EndCause) {
        if let Some(ep) = self.eps.get_mut(key) {
            ep.cause.get_or_insert(cause);
        }
    }

    /// Handles the completion of the handshake: the endpoint becomes CONNECTED, and ESTABLISHED is queued.
    pub(in crate::ia) fn established(&mut self, key: EpKey) {
        if self.move_to(key, EpEvent::Established) {
            self.keep_alive(key);
            self.report(key, ConnectionEventKind::Established);
        }
    }

    /// Moves the queue pair of an endpoint to RTS. `receive_psn` is the PSN the peer was asked to start with.
    pub(in crate::ia) fn bring_up(
        &mut self,
        key: EpKey,
        peer: &Peer,
        receive_psn: Psn,
    ) -> Result<(), ProviderError> {
        let Some(ep) = self.eps.get_mut(key) else {
            return Ok(());
        };
        let (reads_in, reads_out) = (
            depth(ep.attr.max_rdma_read_in),
            depth(ep.attr.max_rdma_read_out),
        );
        let Some(qp) = ep.qp.get_mut() else {
            return Ok(());
        };
        ep.path = Some(peer.path);
        let transport = self.config.transport.with(&ep.transport);
        self.provider.ready_to_receive(
            qp,
            &ReadyToReceive {
                path: peer.path,
                remote_qpn: peer.qpn,
                receive_psn,
                mtu: peer.mtu,
                reads_in,
                min_rnr_timer: transport.min_rnr_timer,
            },
        )?;
        ep.has_received = true;
        self.provider.ready_to_send(
            qp,
            &ReadyToSend {
                send_psn: peer.psn,
                // The number of outstanding reads must not exceed the number that the peer can answer.
                reads_out: reads_out.min(peer.reads_out),
                retry_count: peer.retry_count,
                rnr_retry: peer.rnr_retry,
                ack_timeout: peer.ack_timeout,
            },
        )
    }

    /// Watches the EVD on which the requests of an endpoint in DISCONNECT_PENDING complete. (If the EVD is null, the
    /// discard queue is used, which is always armed.)
    pub(in crate::ia) fn drain_begins(&mut self, key: EpKey) {
        if let Some(evd) = self.eps.get(key).and_then(|ep| ep.request_evd) {
            self.draining.add(evd);
            self.watch(evd);
        }
    }

    /// Stops watching the EVD of an endpoint's requests when the endpoint is about to leave DISCONNECT_PENDING.
    pub(in crate::ia) fn drain_over(&mut self, key: EpKey) {
        if let Some(ep) = self.eps.get(key)
            && ep.hot.state == EpState::DisconnectPending
            && let Some(evd) = ep.request_evd
        {
            self.draining.remove(evd);
        }
    }

    /// Ends a graceful disconnect if the endpoint's requests are done.
    pub(in crate::ia) fn advance_drain(&mut self, key: EpKey) {
        let Some(ep) = self.eps.get(key) else { return };
        if ep.hot.state != EpState::DisconnectPending {
            return;
        }
        match ep.request_evd {
            Some(evd) => {
                self.drain_evd(evd, true);
            }
            None => {
                self.drain_discard(key);
            }
        }
        if self
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::Failed(failed) if *failed == key))
        {
            // The queue is empty because a request failed. The recorded failure will end the connection.
            return;
        }
        let Some(ep) = self.eps.get_mut(key) else {
            return;
        };
        let Some(qp) = ep.qp.get_mut() else { return };
        if qp.requests_outstanding() == 0 {
            self.drained(key);
            return;
        }
        // If the queue is full, the marker cannot be posted yet. This function is called again after the next
        // completion.
        if qp.ends_silently() && !ep.own_outstanding && qp.post_own().is_ok() {
            ep.own_outstanding = true;
            ep.counts.own();
        }
    }

    /// Ends a graceful disconnect whose time limit has expired, as an abrupt one.
    pub(in crate::ia) fn drain_timed_out(&mut self, key: EpKey) {
        // Requests that have completed by now are taken into account.
        self.drain_queues_of(key);
        self.apply_effects();
        let Some(ep) = self.eps.get(key) else { return };
        if ep.hot.state != EpState::DisconnectPending {
            return;
        }
        let own = u32::from(ep.own_outstanding);
        let outstanding = ep.qp.get().map_or(0, QueuePair::requests_outstanding);
        // If the device loses a completion, the marker may not be among the outstanding requests any more.
        let outstanding = outstanding.saturating_sub(own);
        tracing::warn!(ep = ?key, outstanding, "a graceful disconnect has timed out");
        self.set_end_cause(key, EndCause::DrainTimedOut);
        self.enter_disconnected(
            key,
            EpEvent::ConnectionEnded,
            ConnectionEventKind::Disconnected,
        );
    }

    /// Ends a graceful disconnect whose last request is done.
    pub(in crate::ia) fn drained(&mut self, key: EpKey) {
        if self
            .eps
            .get(key)
            .is_some_and(|ep| ep.hot.state == EpState::DisconnectPending)
        {
            self.enter_disconnected(
                key,
                EpEvent::ConnectionEnded,
                ConnectionEventKind::Disconnected,
            );
        }
    }
}
