//! The IA's housekeeping: what the device reported, datagrams of the connection manager both ways, its
//! timers, and what it has to say.
//!
//! [`Ia::progress`] runs on every wait and, once in many times, when a dequeue finds nothing. So it looks at nothing
//! for each endpoint: what happened to one is said by an event, a timer or a datagram. The order matters in one place:
//! what the device says about a queue pair comes before what the peer says about the connection, so that a connection
//! that broke is not taken for one that was disconnected.

use crate::adapter::Arrival;
use crate::cm::{CmEvent, ConnId};
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

/// How long closing waits for room for what peers have to be told.
pub(in crate::ia) const LAST_WORDS: Nanos = 100_000_000;
/// Datagrams that are taken in at a time.
const DATAGRAMS: usize = 64;
/// How often a device is asked for what it may not refuse.
const TRIES: u32 = 3;
/// Nor is it asked again when it has taken longer than this: that was no refusal, but no answer.
const PATIENCE: Nanos = 10_000_000_000;
/// How often something may happen meanwhile.
const LAST_ROUNDS: u32 = 10_000;

impl<P: Provider> Ia<P> {
    /// Does all work that is due now, without waiting: events of the device, messages of peers, timers. A program that
    /// neither waits nor dequeues for a while calls it, so that its connections live.
    pub fn progress(&mut self) {
        self.provider.progress();
        while let Some(event) = self.provider.next_event() {
            self.device_event(event);
        }
        self.settle_effects();
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
        self.check_some_marks();
        self.look_after_drains();
        self.look_after_idle();
        if self.observed {
            self.look_after_samples();
        }
        self.settle_effects();
        self.look_after_cnos();
        self.transmit();
    }

    /// Whether [`Ia::progress`] has left work for the next call, so that it did not take too long.
    #[must_use]
    pub const fn has_more(&self) -> bool {
        self.more_datagrams
    }

    /// Gives the connection manager the datagrams that have arrived, a bounded number at a time: a peer that sends them
    /// as fast as they are handled must not hold up who called.
    fn take_datagrams(&mut self) {
        // In the order in which they came, whichever instances look.
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

    /// Sends what the connection manager has to send, as far as there is room. What finds none is sent when something
    /// before it has left.
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
                // What it died of is the better word.
                Err(ProviderError::Dead(_)) => {}
                Err(error) => failed = Some(error),
            }
        }
        drop(adapter);
        if let Some(error) = failed {
            self.note_device_error("sending a management datagram", &error);
        }
    }

    /// Sends the last datagrams of an IA that is closed: waits a little while for room. What arrives meanwhile for it
    /// is not answered.
    pub(in crate::ia) fn transmit_last(&mut self) {
        let patience = self.provider.now().saturating_add(LAST_WORDS);
        for _ in 0..LAST_ROUNDS {
            self.transmit();
            if self.adapter.lock().cm.is_silent() {
                return;
            }
            if self.instances() > 1 {
                // They may be the others'.
                self.take_datagrams();
            } else {
                for _ in 0..DATAGRAMS {
                    if self.provider.poll_mad().is_none() {
                        break;
                    }
                }
            }
            match self.provider.wait(patience) {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
        }
    }

    pub(in crate::ia) fn connection_manager_events(&mut self) {
        loop {
            // The lock is given back before anything is done about it.
            let arrival = self.adapter.lock().next_arrival(self.seat);
            match arrival {
                Some(Arrival::Event(event)) => self.connection_manager_event(event),
                Some(Arrival::HandedOff(listen, request)) => {
                    let at = self.listeners.get(&listen).copied();
                    self.request_arrived(at, *request);
                }
                Some(Arrival::Question(Question { what, to })) => {
                    // Who asked may have gone.
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
            CmEvent::Request {
                listen,
                service_id,
                remote_gid,
                path,
                remote_qpn,
                remote_psn,
                reads_in,
                reads_out,
                mtu,
                ack_timeout,
                retry_count,
                rnr_retry,
                private_data,
                remote_port,
                srq: _,
                ..
            } => {
                let peer = Peer {
                    path,
                    qpn: remote_qpn,
                    psn: remote_psn,
                    mtu,
                    reads_out,
                    retry_count,
                    rnr_retry,
                    ack_timeout,
                };
                let at = self.listeners.get(&listen).copied();
                self.request_arrived(
                    at,
                    Cr {
                        conn,
                        peer,
                        conn_qual: ConnQual(service_id),
                        remote_gid,
                        remote_port,
                        private_data,
                        reads_in,
                        local_ep: None,
                        lent: false,
                    },
                );
            }
            CmEvent::Reply {
                remote_qpn,
                remote_psn,
                reads_in: _,
                reads_out,
                rnr_retry,
                ack_timeout,
                private_data,
                ..
            } => {
                let Some(key) = self.ep_of(conn) else { return };
                self.reply_arrived(
                    conn,
                    key,
                    (remote_qpn, remote_psn, reads_out, rnr_retry, ack_timeout),
                    private_data,
                );
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
                self.blame_for(
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
                self.blame_for(conn, cause);
                self.attempt_ended(conn, ConnectionEventKind::Unreachable);
            }
            CmEvent::TimedOut { .. } => {
                self.blame_for(conn, EndCause::TimedOut);
                self.attempt_ended(conn, ConnectionEventKind::TimedOut);
            }
            CmEvent::AcceptFailed { .. } => {
                self.blame_for(conn, EndCause::AcceptFailed);
                self.attempt_ended(conn, ConnectionEventKind::AcceptCompletionError);
            }
            CmEvent::Disconnected { .. } => {
                let Some(key) = self.ep_of(conn) else { return };
                // An error that is in the queues already came first.
                self.drain_queues_of(key);
                self.settle_effects();
                self.blame(key, EndCause::PeerDisconnected);
                self.enter_disconnected(
                    key,
                    EpEvent::ConnectionEnded,
                    ConnectionEventKind::Disconnected,
                );
            }
            // The endpoint has let go of the name before; nobody waits for this.
            CmEvent::DisconnectDone { .. } => {}
        }
    }

    /// Active side: the peer accepts, so our queue pair goes up, and then the peer is told.
    fn reply_arrived(
        &mut self,
        conn: ConnId,
        key: EpKey,
        reply: (u32, u32, u8, u8, u8),
        private_data: Vec<u8>,
    ) {
        let Some(ep) = self.eps.get_mut(key) else {
            return;
        };
        let Some((path, receive_psn, mtu)) = ep
            .outgoing
            .filter(|_| ep.hot.state == EpState::ActiveConnectionPending)
        else {
            return;
        };
        let (qpn, psn, reads_out, rnr_retry, ack_timeout) = reply;
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
            self.blame(key, EndCause::NotBroughtUp);
            self.attempt_ended(conn, ConnectionEventKind::NonPeerRejected);
            return;
        }
        let ready = self.adapter.lock().cm.ready(self.provider.now(), conn);
        match ready {
            Ok(()) => self.established(key),
            // The event that says why is on its way.
            Err(error) => {
                tracing::debug!(%error, "the connection ended while it was being brought up")
            }
        }
    }

    fn attempt_ended(&mut self, conn: ConnId, kind: ConnectionEventKind) {
        let Some(key) = self.ep_of(conn) else { return };
        let Some(ep) = self.eps.get(key) else { return };
        if ep.hot.state == EpState::Connected || ep.hot.state == EpState::DisconnectPending {
            // Data proved the connection established; what ends now is that connection.
            self.connection_failed(key);
        } else {
            self.enter_disconnected(key, EpEvent::AttemptEnded, kind);
        }
    }

    fn blame_for(&mut self, conn: ConnId, cause: EndCause) {
        if let Some(key) = self.ep_of(conn) {
            self.blame(key, cause);
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
                self.settle_effects();
                self.blame(key, EndCause::QueuePair(event));
                self.connection_failed(key);
            }
            ProviderEvent::SrqLastBuffer { owner } => {
                if let Some(ep) = self.ep_owner(owner).and_then(|key| self.eps.get_mut(key)) {
                    ep.last_buffer = true;
                }
            }
            ProviderEvent::CqEntries { owner } => {
                if owner & DISCARD_OWNER == 0 {
                    self.evd_answered(owner);
                } else if let Some(key) = self.ep_owner(owner & !DISCARD_OWNER) {
                    self.empty_discard(key);
                }
            }
            ProviderEvent::CqError { owner } => self.queue_lost(owner),
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
            ProviderEvent::DeviceDead => self.device_is_gone(),
            ProviderEvent::DeviceRequested => self.device_is_wanted(),
        }
    }

    fn ep_owner(&self, owner: u32) -> Option<EpKey> {
        self.eps.key_at(owner)
    }

    fn srq_owner(&self, owner: u32) -> Option<SrqKey> {
        self.srqs.keys().find(|key| index_of(*key) == owner)
    }

    /// A completion queue lost an entry: the completions of its endpoints cannot be told any more,
    /// so their connections are broken.
    fn queue_lost(&mut self, owner: u32) {
        if owner & DISCARD_OWNER != 0 {
            if let Some(key) = self.ep_owner(owner & !DISCARD_OWNER) {
                self.blame(key, EndCause::CompletionQueue);
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
            self.blame(key, EndCause::CompletionQueue);
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

    /// A wait found the device dead.
    pub(in crate::ia) fn device_died(&mut self, error: &ProviderError) {
        self.note_device_error("waiting", error);
        self.device_is_gone();
    }

    /// Every connection breaks, and every asynchronous EVD says why. Once.
    fn device_is_gone(&mut self) {
        if !self.health.die() {
            return;
        }
        tracing::error!("the device is dead");
        // Who was asked to close the adapter has been told that it is of no use any more.
        if !self.health.is_leaving() {
            self.push_async(AsyncEvent::IaCatastrophic);
        }
        let all: Vec<EpKey> = self.eps.keys().collect();
        for key in all {
            self.blame(key, EndCause::AdapterDead);
            self.connection_failed(key);
        }
        self.flush_in_software();
    }

    /// The device is wanted back: the consumer is told that the adapter is of no use any more, and every
    /// connection ends as if he had disconnected it abruptly. The device lives, so peers hear of it, and what is
    /// outstanding is flushed by the queues themselves. What is left to do is to close the adapter.
    fn device_is_wanted(&mut self) {
        if !self.health.leave() {
            return;
        }
        tracing::warn!("the device is wanted back: the adapter should be closed");
        self.push_async(AsyncEvent::IaCatastrophic);
        let all: Vec<EpKey> = self.eps.keys().collect();
        for key in all {
            self.blame(key, EndCause::AdapterWanted);
            let ep = EpHandle { key, ia: self.id };
            // An endpoint without a connection has nothing to end, which is an error of another type.
            self.insist("disconnecting", |ia| {
                match ia.ep_disconnect(ep, CloseFlags::Abrupt) {
                    Err(error) if error.return_type() == ReturnType::InternalError => Err(error),
                    Err(_) | Ok(()) => Ok(()),
                }
            });
        }
    }

    /// Ends something for which no call could fail: who would have to hear of it has been told that it is over. A
    /// device that refuses is asked again, and if it goes on refusing it is stopped; then the ending is ours alone.
    pub(in crate::ia) fn insist(
        &mut self,
        what: &'static str,
        mut end: impl FnMut(&mut Self) -> DatResult<()>,
    ) {
        let begun = self.provider.now();
        for _ in 0..TRIES {
            if end(self).is_ok() {
                return;
            }
            if self.provider.now().saturating_sub(begun) > PATIENCE {
                break;
            }
        }
        tracing::error!(what, "the device refuses for good and is stopped");
        self.provider.stop(what);
        self.device_is_gone();
        if let Err(error) = end(self) {
            // Nothing stops it: the provider keeps the memory out of use.
            tracing::error!(what, %error, "the device cannot be stopped");
        }
    }

    /// A dead device completes nothing any more: what endpoints have outstanding, and what is posted to
    /// them from now on, is flushed here, in order. Buffers on SRQs stay; no endpoint took them.
    fn flush_in_software(&mut self) {
        let all: Vec<EpKey> = self.eps.keys().collect();
        for key in all {
            self.flush_endpoint(key, QueuePair::take_outstanding);
        }
    }

    /// The queue pair of an endpoint goes to ERR after the device refused to reset or to destroy it. Where that was
    /// half-way, in RESET, the device has forgotten what was posted, and will flush only what comes.
    pub(in crate::ia) fn stop_half_way(&mut self, key: EpKey) {
        self.flush_endpoint(key, QueuePair::take_lost);
        self.insist("stopping a queue pair", |ia| ia.halt(key));
    }

    /// Tells of outstanding DTOs of an endpoint as flushed, as far as `take` takes them; of completions before.
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
            let settled = self.settle_completion(key, done.request, Some(done));
            if let (Some(settled), Some(evd)) = (settled, evd) {
                self.queue_settled(evd, settled);
            }
        }
    }
}
