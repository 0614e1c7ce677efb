//! The IA's housekeeping: events of the device, datagrams of the connection manager in both directions, and the
//! connection manager's timers and events.
//!
//! [`Ia::progress`] runs on every wait that does not find its event at once. It also runs on dequeues, and on waits
//! that find their event at once, but only once in many of these. Unless the device is dead, its work does not grow
//! with the number of endpoints: an event, a timer or a datagram names the endpoint it concerns, and checks of all
//! endpoints are spread over many calls. The order matters in one case: the device's report about a queue pair is
//! handled before the peer's message about the connection. Otherwise a broken connection would be reported as
//! disconnected.

use crate::adapter::Arrival;
use crate::attributes::address_of;
use crate::cm::{CmEvent, ConnId, PeerReply, PeerRequest};
use crate::error::{DatResult, ReturnType};
use crate::event::{AsyncEvent, ConnectionEventKind, NetworkEvent};
use crate::handle::{EpHandle, EpKey, EvdKey, SrqKey, index_of};
use crate::ia::instance::Ia;
use crate::object::cr::{Cr, Peer};
use crate::object::ep::DISCARD_OWNER;
use crate::object::ep::cause::EndCause;
use crate::object::ep::state::{EpEvent, EpState};
use crate::object::view::Question;
use crate::provider::{Completion, Nanos, Provider, ProviderError, ProviderEvent, QueuePair};
use crate::types::{CloseFlags, ConnQual};

/// Longest time, in nanoseconds, that a closing IA waits until the device can accept its last datagrams.
pub(in crate::ia) const FINAL_SEND_TIMEOUT: Nanos = 100_000_000;
/// Maximum number of datagrams received per call.
const DATAGRAMS: usize = 64;
/// Number of attempts to make the device free or stop an object.
const END_TRIES: u32 = 3;
/// Time in nanoseconds after which a failed command is not repeated: such a delay means that the device did not answer
/// at all.
const END_TIMEOUT: Nanos = 10_000_000_000;
/// Maximum number of wake-ups while the last datagrams are sent.
const FINAL_SEND_WAKEUPS: u32 = 10_000;

impl<P: Provider> Ia<P> {
    /// Does all work that is due now, without waiting: events of the device, messages of peers, timers. A program that
    /// neither waits nor dequeues for a while must call `progress` to keep its connections alive.
    pub fn progress(&mut self) {
        self.provider.progress();
        while let Some(event) = self.provider.next_event() {
            self.device_event(event);
        }
        self.apply_effects();
        self.end_stopped();
        if self.health.is_dead() {
            self.flush_in_software();
        }
        self.take_datagrams();
        let now = self.provider.now();
        let mut adapter = self.adapter.lock();
        if adapter.cm.next_timeout().is_some_and(|at| at <= now) {
            adapter.cm.handle_timeout(now);
        }
        drop(adapter);
        self.connection_manager_events();
        self.check_some_watermarks();
        self.poll_draining();
        self.check_idle();
        if self.observed {
            self.schedule_samples();
        }
        self.apply_effects();
        self.poll_cnos();
        self.transmit();
    }

    /// Returns whether the last [`Ia::progress`] stopped early, to limit its own duration, and left work for the next
    /// call.
    #[must_use]
    pub const fn has_more(&self) -> bool {
        self.more_datagrams
    }

    /// Ends connections whose queue pairs had stopped when the instance was resumed, unless an event of the device has
    /// ended them.
    fn end_stopped(&mut self) {
        for (key, conn) in core::mem::take(&mut self.stopped) {
            if self.ep_of(conn) != Some(key) {
                continue;
            }
            // A failed completion is a better cause.
            self.drain_queues_of(key);
            self.set_end_cause(key, EndCause::QueuePair(0));
            self.apply_effects();
            self.connection_failed(key);
        }
    }

    /// Passes received datagrams to the connection manager, at most `DATAGRAMS` per call. So a peer that sends
    /// datagrams as fast as they are handled cannot delay the caller.
    pub(in crate::ia) fn take_datagrams(&mut self) {
        // The adapter's lock is held, so that datagrams are handled in the order of arrival, whichever instance polls.
        let mut adapter = self.adapter.lock();
        for _ in 0..DATAGRAMS {
            let Some((from, mad)) = self.provider.poll_mad() else {
                self.more_datagrams = false;
                return;
            };
            let (now, random) = (self.provider.now(), self.provider.random());
            adapter.cm.handle_mad(now, &from, &mad, random);
        }
        self.more_datagrams = true;
    }

    /// Sends the connection manager's datagrams until the device accepts no more. The rest is sent after earlier
    /// datagrams have completed.
    pub(in crate::ia) fn transmit(&mut self) {
        let mut failed = None;
        let mut adapter = self.adapter.lock();
        while let Some((to, mad)) = adapter.cm.poll_transmit() {
            match self.provider.send_mad(&to, &mad) {
                Ok(()) => {}
                Err(ProviderError::Resources(_)) => {
                    adapter.cm.unsent(to, mad);
                    break;
                }
                // Not stored: the cause of the device's death is the more useful error.
                Err(ProviderError::Dead(_)) => {}
                Err(error) => failed = Some(error),
            }
        }
        drop(adapter);
        if let Some(error) = failed {
            self.note_device_error("sending a management datagram", &error);
        }
    }

    /// Sends the last datagrams of an IA that is being closed. Waits for the device to accept them, up to
    /// [`FINAL_SEND_TIMEOUT`]. Datagrams that arrive for this instance in that time are not answered.
    pub(in crate::ia) fn transmit_last(&mut self) {
        let deadline = self.provider.now().saturating_add(FINAL_SEND_TIMEOUT);
        for _ in 0..FINAL_SEND_WAKEUPS {
            self.transmit();
            if self.adapter.lock().cm.is_silent() {
                return;
            }
            if self.instances() > 1 {
                // Arriving datagrams may be for other instances.
                self.take_datagrams();
            } else {
                for _ in 0..DATAGRAMS {
                    if self.provider.poll_mad().is_none() {
                        break;
                    }
                }
            }
            match self.provider.wait(deadline) {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
        }
    }

    pub(in crate::ia) fn connection_manager_events(&mut self) {
        loop {
            // The lock is released before the arrival is handled.
            let arrival = self.adapter.lock().next_arrival(self.instance_index);
            match arrival {
                Some(Arrival::Event(event)) => self.connection_manager_event(event),
                Some(Arrival::HandedOff {
                    listen,
                    cr: request,
                    ..
                }) => {
                    let at = self.listeners.get(&listen).copied();
                    self.handed_off_here(at, *request);
                }
                Some(Arrival::Question(Question { what, to })) => {
                    // An error means that the caller that requested the view no longer waits for it.
                    let _ = to.send(self.view(what));
                }
                Some(Arrival::Measure(on)) => self.measure(on),
                None => return,
            }
        }
    }

    fn connection_manager_event(&mut self, event: CmEvent) {
        let conn = event.conn();
        match event {
            CmEvent::Request { request, .. } => {
                let PeerRequest {
                    listen,
                    service_id,
                    remote_gid,
                    path,
                    remote_qpn: qpn,
                    remote_psn: psn,
                    reads_in,
                    reads_out,
                    mtu,
                    ack_timeout,
                    retry_count,
                    rnr_retry,
                    private_data,
                    remote_port,
                    srq: _,
                } = *request;
                let peer = Peer {
                    path,
                    qpn,
                    psn,
                    mtu,
                    reads_out,
                    retry_count,
                    rnr_retry,
                    ack_timeout,
                };
                let at = self.listeners.get(&listen).copied();
                let local = self.provider.gid(path.source_gid_index);
                let local = local.map_or(self.attr.ia_address, address_of);
                self.request_arrived(
                    at,
                    service_id,
                    Cr {
                        conn,
                        peer,
                        conn_qual: ConnQual(service_id),
                        local,
                        remote_gid,
                        remote_port,
                        private_data,
                        reads_in,
                        local_ep: None,
                        lent: false,
                    },
                );
            }
            CmEvent::Reply { reply, .. } => {
                if let Some(key) = self.ep_of(conn) {
                    self.reply_arrived(conn, key, reply);
                }
            }
            CmEvent::Established { .. } => {
                if let Some(key) = self.ep_of(conn) {
                    self.established(key);
                }
            }
            CmEvent::Rejected {
                by_consumer,
                reason,
                private_data,
                ..
            } => {
                if let Some(unlogged) = self.log.refused.take(self.provider.now()) {
                    let ep = self.ep_of(conn);
                    tracing::info!(?ep, reason, by_consumer, unlogged, "connection refused");
                }
                if let Some(ep) = self.ep_of(conn).and_then(|key| self.eps.get_mut(key))
                    && ep.hot.state == EpState::ActiveConnectionPending
                {
                    ep.private_data = private_data.into();
                }
                self.set_end_cause_of(
                    conn,
                    EndCause::Rejected {
                        by_consumer,
                        reason,
                    },
                );
                let kind = if by_consumer {
                    ConnectionEventKind::PeerRejected
                } else {
                    ConnectionEventKind::NonPeerRejected
                };
                self.attempt_ended(conn, kind);
            }
            CmEvent::Unreachable { .. } => {
                let cause = if self.provider.port_is_up() {
                    EndCause::Unreachable
                } else {
                    EndCause::PortDown
                };
                self.set_end_cause_of(conn, cause);
                self.attempt_ended(conn, ConnectionEventKind::Unreachable);
            }
            CmEvent::TimedOut { .. } => {
                self.set_end_cause_of(conn, EndCause::TimedOut);
                self.attempt_ended(conn, ConnectionEventKind::TimedOut);
            }
            CmEvent::AcceptFailed { .. } => {
                self.set_end_cause_of(conn, EndCause::AcceptFailed);
                self.attempt_ended(conn, ConnectionEventKind::AcceptCompletionError);
            }
            CmEvent::Disconnected { .. } => {
                let Some(key) = self.ep_of(conn) else { return };
                // An error completion that is already in the queues precedes the peer's disconnect.
                self.drain_queues_of(key);
                self.apply_effects();
                self.set_end_cause(key, EndCause::PeerDisconnected);
                self.enter_disconnected(
                    key,
                    EpEvent::ConnectionEnded,
                    ConnectionEventKind::Disconnected,
                );
            }
            // The endpoint dropped this connection's ID earlier, so no call waits for this event.
            CmEvent::DisconnectDone { .. } => {}
        }
    }

    /// Active side: connects the queue pair after the peer's REP has arrived, and then confirms to the peer (RTU).
    fn reply_arrived(&mut self, conn: ConnId, key: EpKey, reply: PeerReply) {
        let Some(ep) = self.eps.get_mut(key) else {
            return;
        };
        let Some((path, receive_psn, mtu)) = ep
            .outgoing
            .filter(|_| ep.hot.state == EpState::ActiveConnectionPending)
        else {
            return;
        };
        let PeerReply {
            remote_qpn: qpn,
            remote_psn: psn,
            reads_in: _,
            reads_out,
            rnr_retry,
            ack_timeout,
            private_data,
        } = reply;
        let transport = self.config.transport.with(&ep.transport);
        let peer = Peer {
            path,
            qpn,
            psn,
            mtu,
            reads_out,
            retry_count: transport.retry_count,
            rnr_retry: self
                .config
                .transport
                .rnr_retry_asked(&ep.transport, rnr_retry),
            ack_timeout: transport.ack_timeout.unwrap_or(ack_timeout),
        };
        ep.private_data = private_data.into();
        let up = self.bring_up(key, &peer, receive_psn);
        if let Err(error) = up {
            self.note_device_error("bringing a queue pair up", &error);
            self.set_end_cause(key, EndCause::NotBroughtUp);
            self.attempt_ended(conn, ConnectionEventKind::NonPeerRejected);
            return;
        }
        let ready = self.adapter.lock().cm.ready(self.provider.now(), conn);
        match ready {
            Ok(()) => self.established(key),
            // An event with the reason follows.
            Err(error) => {
                tracing::debug!(%error, "the connection ended while it was being brought up")
            }
        }
    }

    fn attempt_ended(&mut self, conn: ConnId, kind: ConnectionEventKind) {
        let Some(key) = self.ep_of(conn) else { return };
        let Some(ep) = self.eps.get(key) else { return };
        if ep.hot.state == EpState::Connected || ep.hot.state == EpState::DisconnectPending {
            // Data from the peer has already established the connection, so the connection ends, not the attempt.
            self.connection_failed(key);
        } else {
            self.enter_disconnected(key, EpEvent::AttemptEnded, kind);
        }
    }

    fn set_end_cause_of(&mut self, conn: ConnId, cause: EndCause) {
        if let Some(key) = self.ep_of(conn) {
            self.set_end_cause(key, cause);
        }
    }

    fn ep_of(&self, conn: ConnId) -> Option<EpKey> {
        self.conns.get(&conn).copied()
    }

    fn device_event(&mut self, event: ProviderEvent) {
        match event {
            ProviderEvent::CommunicationEstablished { owner } => {
                if let Some(key) = self.ep_owner(owner) {
                    self.communication_established(key);
                }
            }
            ProviderEvent::QpError { owner, event } => {
                let Some(key) = self.ep_owner(owner) else {
                    return;
                };
                if let Some(unlogged) = self.log.broken.take(self.provider.now()) {
                    tracing::info!(ep = ?key, event, unlogged, "the device stopped a queue pair");
                }
                self.drain_queues_of(key);
                self.apply_effects();
                self.set_end_cause(key, EndCause::QueuePair(event));
                self.connection_failed(key);
            }
            ProviderEvent::SrqLastBuffer { owner } => {
                if let Some(ep) = self.ep_owner(owner).and_then(|key| self.eps.get_mut(key)) {
                    ep.last_buffer = true;
                }
            }
            ProviderEvent::CqEntries { owner } => {
                if owner & DISCARD_OWNER == 0 {
                    self.evd_fired(owner);
                } else if let Some(key) = self.ep_owner(owner & !DISCARD_OWNER) {
                    self.empty_discard(key);
                }
            }
            ProviderEvent::CqError { owner } => self.cq_overran(owner),
            ProviderEvent::SrqLimit { owner } => {
                if let Some(key) = self.srq_owner(owner) {
                    self.srq_ran_low(key);
                }
            }
            ProviderEvent::SrqError { owner } => {
                if let Some(key) = self.srq_owner(owner) {
                    self.srq_failed(key);
                }
            }
            ProviderEvent::Network(event) => {
                if let NetworkEvent::PortUp { .. } = event {
                    self.port_ups += 1;
                    let (now, times) = (self.provider.now(), self.port_ups);
                    self.adapter.lock().port_came_up(now, times);
                }
                self.network_event(event);
            }
            ProviderEvent::AddressRemoved {
                source_gid_index,
                address,
            } => {
                self.network_event(NetworkEvent::AddressRemoved(address));
                self.address_is_gone(source_gid_index);
            }
            ProviderEvent::Unreachable { gid } => {
                let now = self.provider.now();
                self.adapter.lock().cm.unreachable(now, gid);
            }
            ProviderEvent::DeviceDead => self.handle_dead_device(),
            ProviderEvent::DeviceRequested => self.handle_device_request(),
        }
    }

    fn ep_owner(&self, owner: u32) -> Option<EpKey> {
        self.eps.key_at(owner)
    }

    fn srq_owner(&self, owner: u32) -> Option<SrqKey> {
        self.srqs.keys().find(|key| index_of(*key) == owner)
    }

    /// Breaks the connections of a completion queue that lost an entry: the completions of its endpoints can no
    /// longer be reported.
    fn cq_overran(&mut self, owner: u32) {
        self.overran.insert(owner);
        if owner & DISCARD_OWNER != 0 {
            if let Some(key) = self.ep_owner(owner & !DISCARD_OWNER) {
                self.set_end_cause(key, EndCause::CompletionQueue);
                self.connection_failed(key);
            }
            return;
        }
        let Some(evd) = self.evds.key_at(owner) else {
            return;
        };
        tracing::error!(evd = ?self.evd_handle(evd), "the completion queue of an EVD overran");
        self.push_async(AsyncEvent::EvdOverflow(self.evd_handle(evd)));
        for key in self.eps_of(evd) {
            self.set_end_cause(key, EndCause::CompletionQueue);
            self.connection_failed(key);
        }
    }

    fn eps_of(&self, evd: EvdKey) -> Vec<EpKey> {
        let uses = |key: &Option<EvdKey>| *key == Some(evd);
        self.eps
            .iter()
            .filter(|(_, ep)| uses(&ep.request_evd) || uses(&ep.recv_evd))
            .map(|(key, _)| key)
            .collect()
    }

    /// Handles a wait that found the device dead.
    pub(in crate::ia) fn device_died(&mut self, error: &ProviderError) {
        self.note_device_error("waiting", error);
        self.handle_dead_device();
    }

    /// Breaks every connection, and reports the death of the device on the IA's own asynchronous EVD. Does so only
    /// once.
    fn handle_dead_device(&mut self) {
        if !self.health.mark_dead() {
            return;
        }
        tracing::error!("the device is dead");
        // If the system requested the release of the device earlier, the consumer already got this event.
        if !self.health.is_release_requested() {
            self.push_async(AsyncEvent::IaCatastrophic);
        }
        let all: Vec<EpKey> = self.eps.keys().collect();
        for key in all {
            self.set_end_cause(key, EndCause::AdapterDead);
            self.connection_failed(key);
        }
        self.flush_in_software();
    }

    /// Handles the system's request to give the device back. The consumer gets the event that the adapter is unusable,
    /// and every connection ends as by an abrupt disconnect. The device still works, so peers are notified, and the
    /// device flushes outstanding requests. The consumer then has to close the adapter.
    fn handle_device_request(&mut self) {
        if !self.health.mark_release_requested() {
            return;
        }
        tracing::warn!("the device is wanted back: the adapter should be closed");
        self.push_async(AsyncEvent::IaCatastrophic);
        let all: Vec<EpKey> = self.eps.keys().collect();
        for key in all {
            self.set_end_cause(key, EndCause::AdapterWanted);
            let ep = EpHandle { key, ia: self.id };
            // Disconnecting an endpoint without a connection is an error of another type and changes nothing.
            self.end_or_stop_device("disconnecting", |ia| {
                match ia.ep_disconnect(ep, CloseFlags::Abrupt) {
                    Err(error) if error.return_type() == ReturnType::InternalError => Err(error),
                    Err(_) | Ok(()) => Ok(()),
                }
            });
        }
    }

    /// Calls `end`, which frees or stops an object, where no call can report a failure: for the consumer the object has
    /// already ended. If the device refuses, `end` is called again, up to `END_TRIES` times in all. Then the device
    /// is stopped, and `end` is called once more, which now works in software only.
    pub(in crate::ia) fn end_or_stop_device(
        &mut self,
        what: &'static str,
        mut end: impl FnMut(&mut Self) -> DatResult<()>,
    ) {
        let begun = self.provider.now();
        for _ in 0..END_TRIES {
            if end(self).is_ok() {
                return;
            }
            if self.provider.now().saturating_sub(begun) > END_TIMEOUT {
                break;
            }
        }
        tracing::error!(what, "the device keeps refusing and is stopped");
        self.provider.stop(what);
        self.handle_dead_device();
        if let Err(error) = end(self) {
            // The device may still write to memory, so the provider does not reuse that memory.
            tracing::error!(what, %error, "the device cannot be stopped");
        }
    }

    /// Flushes all outstanding DTOs of a dead device, in order. `progress` calls this function again, for DTOs that
    /// were posted after the death. Buffers on SRQs stay, because no endpoint has taken them.
    fn flush_in_software(&mut self) {
        let all: Vec<EpKey> = self.eps.keys().collect();
        for key in all {
            self.flush_endpoint(key, QueuePair::take_outstanding);
        }
    }

    /// Moves an endpoint's queue pair to ERR after the device refused to reset or to destroy it. If the refusal left
    /// the queue pair in RESET, the device has forgotten the DTOs posted so far and will flush only later ones. The
    /// forgotten DTOs are flushed here.
    pub(in crate::ia) fn stop_half_way(&mut self, key: EpKey) {
        self.flush_endpoint(key, QueuePair::take_lost);
        self.end_or_stop_device("stopping a queue pair", |ia| ia.halt(key));
    }

    /// Reports the outstanding DTOs of an endpoint that `take` returns as flushed, after the completions that the
    /// device has written.
    pub(in crate::ia) fn flush_endpoint(
        &mut self,
        key: EpKey,
        take: impl Fn(&mut P::Qp) -> Option<Completion>,
    ) {
        self.drain_queues_of(key);
        while let Some(ep) = self.eps.get_mut(key)
            && let Some(done) = ep.qp.get_mut().and_then(&take)
        {
            let evd = if done.request {
                ep.request_evd
            } else {
                ep.recv_evd
            };
            let processed = self.process_completion(key, done.request, Some(done));
            if let (Some(processed), Some(evd)) = (processed, evd) {
                self.queue_processed(evd, processed);
            }
        }
    }
}
