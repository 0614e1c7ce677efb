//! Connections: connection requests, and the beginning and end of a connection.

use udapl::connection::EndCause;
use udapl::endpoint::{EpAttr, EpChange, EpState, EpTransport};
use udapl::event::ConnectionRequest;
use udapl::{CloseFlags, EpEvds, EpHandle};
use zerocopy::IntoBytes;

use super::admission::{Admission, Share};
use super::error::WorkerError;
use super::queue::{Attached, State, Step};
use super::worker::Worker;
use crate::io::{Owner, QueueId, State as IoState};
use crate::model::{ADMIN_ENTRIES, Moment, Party, Place, QUEUE_ENTRIES, QUEUES};
use crate::nvme::rdma::{AcceptData, Reject, RequestData};

/// Maximum number of outstanding RDMA Reads of a connection. The adapter delays further ones.
const READS: u32 = 16;
/// Maximum lifetime of a connection without Connect.
const CONNECT_TIMEOUT: Moment = Moment::from_secs(60);

/// Time-outs of connections, which a host cannot change. If a host posts no receives, the target retries a response
/// six times, each after up to 655 ms: the connection breaks after 3.9 s. If a host does not acknowledge, the target
/// waits eight time-outs of 1.07 s: 8.6 s (an adapter may take up to four times as long). If the target has no receive,
/// a host waits 10.24 ms before each RNR retry. A loop iteration of the worker may take as long as these retries while
/// other hosts have used up the receives.
///
/// The target does not probe silent connections, because hosts send Keep Alive. A controller without keep-alive time
/// has a time limit of its own ([`crate::model::Controller`]), and so has a connection without Connect.
const PATIENCE: EpTransport = EpTransport {
    source_address: None,
    dscp: None,
    priority: None,
    flow_label: None,
    hop_limit: None,
    ack_timeout: Some(18),
    retry_count: Some(7),
    rnr_retry: Some(6),
    min_rnr_timer: Some(20),
    keep_alive: None,
};

/// Checks the private data of a connection request, and returns the number of entries of the queue.
fn check(data: RequestData) -> Result<u16, Reject> {
    let entries = data.host_sends.get().saturating_add(1);
    let most = if data.queue.get() == 0 {
        ADMIN_ENTRIES
    } else {
        QUEUE_ENTRIES
    };
    if data.queue.get() > QUEUES {
        Err(Reject::Queue)
    } else if !(2..=most).contains(&entries) {
        Err(Reject::HostSends)
    } else {
        Ok(entries)
    }
}

impl Worker {
    /// Accepts or rejects a connection request.
    pub(super) fn asked(&mut self, request: &ConnectionRequest) -> Result<(), WorkerError> {
        let Ok(asked) = self.ia.cr_query(request.cr) else {
            // Does not happen: a request stays valid until it is decided, even if the host has given up.
            return Ok(());
        };
        let host = asked.remote_ia_address;
        let data = RequestData::parse(asked.private_data);
        let taken = data.and_then(|data| Ok((data, check(data)?)));
        let taken = taken.and_then(|(data, entries)| {
            let share = self.share(host, data, entries).ok_or(Reject::Resources)?;
            let ep = self.endpoint(entries).map_err(|error| {
                let told = self.lines.take(host, "endpoint", self.target.now());
                if let Some(unlogged) = told {
                    tracing::warn!(worker = self.id, %host, %error, unlogged, "no endpoint for one more queue");
                }
                self.admission.release_share(&share);
                Reject::Resources
            })?;
            Ok((data, entries, share, ep))
        });
        let (data, entries, share, ep) = match taken {
            Ok(taken) => taken,
            Err(reject) => {
                let told = self.lines.take(host, "rejected", self.target.now());
                if let Some(unlogged) = told {
                    tracing::info!(worker = self.id, %host, reason = reject.text(), unlogged, "connection rejected");
                }
                if let Err(error) = self.ia.cr_reject_with(request.cr, reject.data().as_bytes()) {
                    tracing::debug!(worker = self.id, %host, %error, "it had given up");
                }
                return Ok(());
            }
        };
        let reply = AcceptData::new(entries);
        if let Err(error) = self.ia.cr_accept(request.cr, Some(ep), reply.as_bytes()) {
            let told = self.lines.take(host, "accept", self.target.now());
            if let Some(unlogged) = told {
                tracing::info!(worker = self.id, %host, %error, unlogged, "connection not accepted");
            }
            self.admission.release_share(&share);
            return Ok(self.ia.ep_free(ep)?);
        }
        self.over.connections += 1;
        let place = Place {
            port: self.config.port,
            worker: self.id,
            queue: data.queue.get(),
            entries,
            source: host,
        };
        let room = self.ia.query().ia.max_dto_per_ep;
        let now = self.target.now();
        self.queues.add(ep, (place, share), room, now);
        self.report_capacity();
        self.displace(&share)
    }

    /// Admits a requested connection as a guest; `None` if a limit is exceeded.
    fn share(&mut self, host: std::net::IpAddr, data: RequestData, entries: u16) -> Option<Share> {
        // An I/O queue will become a host's, so its entries must be free. An admin queue may stay a guest (discovery).
        if data.queue.get() != 0 && !self.admission.has_entries(entries.into()) {
            self.admission.room.refused_hosts += 1;
            self.report_capacity();
            return None;
        }
        let share = self.admission.admit_guest(host);
        if share.is_none() {
            self.report_capacity();
        }
        share
    }

    /// Ends a guest's connection for a newcomer, if there are too many guests.
    fn displace(&mut self, newcomer: &Share) -> Result<(), WorkerError> {
        let ids = self.queues.ids();
        let guests = ids.into_iter().filter_map(|id| {
            let queue = self.queues.get(id)?;
            let stays = !queue.is_disconnecting && queue.state() != State::Ending;
            (queue.share.is_guest() && stays).then_some((id, queue.share.source(), queue.since))
        });
        let guests: Vec<_> = guests.collect();
        if let Some(id) = Admission::displaced(&guests, newcomer) {
            self.admission.room.displaced_guests += 1;
            let source = self.queues.get(id).map(|queue| queue.place.source);
            let now = self.target.now();
            if let Some(source) = source
                && let Some(unlogged) = self.lines.take(source, "displaced", now)
            {
                tracing::info!(
                    worker = self.id,
                    guests = guests.len(),
                    %source,
                    unlogged,
                    "a guest's connection ends for a newcomer"
                );
            }
            self.disconnect(id)?;
        }
        Ok(())
    }

    /// Turns a guest into a queue of a host. Returns false if its entries do not fit.
    pub(super) fn admit(&mut self, id: QueueId, party: &Party, entries: u16) -> bool {
        let Some(queue) = self.queues.get_mut(id) else {
            return false;
        };
        let held = queue.outstanding;
        let admission = &mut self.admission;
        let is_admitted = admission.admit(&mut queue.share, held, party, entries.into());
        if !is_admitted {
            let left = admission.room.entries_left;
            let (queue, source) = (queue.place.queue, queue.place.source);
            let told = self.lines.take(source, "full", self.target.now());
            if let Some(unlogged) = told {
                tracing::warn!(
                    worker = self.id,
                    queue,
                    entries,
                    left,
                    host = ?party,
                    unlogged,
                    "no room for a queue of so many entries: the host has reached its quota, or too few are left"
                );
            }
        }
        self.report_capacity();
        is_admitted
    }

    /// Returns the number of I/O queues that this port's workers can still admit for a party. The adapter spreads
    /// connections over the workers, so the party is assumed to have as many entries at each of them.
    pub(super) fn queues_left(&self, owner: Owner) -> u16 {
        let here = self.admission.queues_left(owner, None);
        let others = self.target.entries_left(self.config.port, self.id);
        let others = others.into_iter();
        let there: u32 = others
            .map(|left| self.admission.queues_left(owner, Some(left)))
            .sum();
        u16::try_from(here + there).unwrap_or(u16::MAX)
    }

    pub(super) fn endpoint(&mut self, entries: u16) -> Result<EpHandle, udapl::DatError> {
        let limits = self.ia.query().ia;
        let attr = EpAttr {
            // Each entry may have two responses posted, each after an RDMA Write: a host that has a response may send
            // the next command before the worker gets the response's completion.
            max_request_dtos: (4 * u32::from(entries)).min(limits.max_dto_per_ep),
            max_request_iov: 1,
            max_rdma_read_in: 0,
            max_rdma_read_out: READS.min(limits.max_rdma_read_per_ep_out),
            ..EpAttr::defaults(limits)
        };
        let evds = EpEvds::all(self.events);
        let ep = self
            .ia
            .ep_create_with_srq(Some(self.zone), evds, self.srq, &attr)?;
        let change = EpChange {
            transport: Some(PATIENCE),
            ..EpChange::default()
        };
        if let Err(error) = self.ia.ep_modify(ep, &change) {
            self.ia.ep_free(ep)?;
            return Err(error);
        }
        Ok(ep)
    }

    /// Handles the event that a connection is established: begins the commands that came before the event.
    pub(super) fn established(&mut self, ep: EpHandle) -> Result<(), WorkerError> {
        let Some((_, queue)) = self.queues.of(ep) else {
            return Ok(());
        };
        let mut early = Vec::new();
        if queue.step(Step::Up) {
            early = core::mem::take(&mut queue.early);
        }
        for io in early {
            self.begin(io)?;
        }
        Ok(())
    }

    /// Handles the event that a connection has ended. Its commands end at once, or when the adapter or the disk has
    /// finished with them.
    pub(super) fn ended(&mut self, ep: EpHandle) -> Result<(), WorkerError> {
        let ended = self.queues.of(ep);
        let Some((id, queue)) = ended.filter(|(_, queue)| queue.state() != State::Ending) else {
            return Ok(());
        };
        queue.step(Step::End);
        self.drop_capsules(ep)?;
        // PANIC: dropping capsules removes no queue.
        let queue = self.queues.get_mut(id).expect("a queue");
        queue.early.clear();
        queue.fused = None;
        queue.behind.clear();
        queue.held = 0;
        let mut here = queue.outstanding;
        let of = queue
            .attached
            .as_ref()
            .map(|one| (one.controller, one.number, one.connection));
        let list = queue.attached.as_ref().and_then(|one| one.list);
        let cause = self.ia.ep_end_cause(ep).ok().flatten();
        tracing::debug!(worker = self.id, queue = ?of, ?cause, "connection over");
        if let Some((controller, number, connection)) = of {
            if number == 0 {
                self.held.remove(&controller);
            }
            let broke = cause.filter(|cause| !is_orderly(*cause));
            self.target.with(|model| {
                if let Some(cause) = &broke {
                    model.queue_broke(controller, number, connection, cause);
                }
                model.queue_lost(controller, number, connection);
            });
        }
        if let Some(list) = list {
            self.commands.lists.remove_user(list);
        }
        let ios = &self.commands.ios;
        self.ready.retain(|io| ios[*io as usize].queue != id); // CAST: widening.
        for (at, place) in (0..).zip(0..self.commands.ios.len()) {
            if here == 0 {
                break;
            }
            let io = &self.commands.ios[place];
            if io.queue != id || io.state() == IoState::Free {
                continue;
            }
            here -= 1;
            if self.commands.orphan(at) {
                self.drop_io(at)?;
            }
        }
        self.remove_ended(id)
    }

    /// Ends the connections of a controller that has ended.
    pub(super) fn controller_over(&mut self, controller: u16) -> Result<(), WorkerError> {
        if self.is_stopping.is_some() {
            // The worker is stopping. It ended the controller's idle admin queue first, and that ended the controller.
            // Commands of the I/O queues are still answered.
            return Ok(());
        }
        for id in self.queues.ids() {
            let attached = self
                .queues
                .get(id)
                .and_then(|queue| queue.attached.as_ref());
            if attached.is_some_and(|one| one.controller == controller) {
                self.disconnect(id)?;
            }
        }
        Ok(())
    }

    /// Ends the connection of a queue whose host has not authenticated, or not in time.
    pub(super) fn queue_over(&mut self, connection: u64) -> Result<(), WorkerError> {
        for id in self.queues.ids() {
            let queue = self.queues.get(id);
            let attached = queue.and_then(|queue| queue.attached.as_ref());
            if attached.is_some_and(|one| one.connection == connection) {
                self.disconnect(id)?;
            }
        }
        Ok(())
    }

    /// Handles the disabling or shutdown of a controller: ends its I/O queues whose connection number is at most
    /// `last`, and answers its event requests.
    pub(super) fn controller_reset(
        &mut self,
        controller: u16,
        last: u64,
    ) -> Result<(), WorkerError> {
        for id in self.queues.ids() {
            let attached = self
                .queues
                .get(id)
                .and_then(|queue| queue.attached.as_ref());
            let is_its = |one: &Attached| {
                one.controller == controller && one.number != 0 && one.connection <= last
            };
            if attached.is_some_and(is_its) {
                self.disconnect(id)?;
            }
        }
        self.abort_events(controller);
        Ok(())
    }

    /// Ends connections that have been without Connect for too long.
    pub(super) fn expire_unconnected(&mut self, now: Moment) -> Result<(), WorkerError> {
        for id in self.queues.ids() {
            let Some(queue) = self.queues.get(id) else {
                continue;
            };
            if matches!(queue.state(), State::Accepted | State::Connected)
                && now.saturating_sub(queue.since) >= CONNECT_TIMEOUT
            {
                if let Some(unlogged) = self.lines.take(queue.place.source, "stranger", now) {
                    tracing::info!(
                        worker = self.id,
                        queue = queue.place.queue,
                        host = %queue.place.source,
                        unlogged,
                        "a connection without Connect"
                    );
                }
                self.disconnect(id)?;
            }
        }
        Ok(())
    }

    /// Disconnects a connection. Its posted requests complete first, and then the adapter reports the end.
    pub(super) fn disconnect(&mut self, id: QueueId) -> Result<(), WorkerError> {
        let Some(queue) = self.queues.get_mut(id) else {
            return Ok(());
        };
        if core::mem::replace(&mut queue.is_disconnecting, true) || queue.state() == State::Ending {
            return Ok(());
        }
        let ep = queue.ep;
        match self.ia.ep_get_status(ep)?.state {
            EpState::Disconnected => self.ended(ep),
            EpState::CompletionPending | EpState::Connected | EpState::DisconnectPending => {
                Ok(self.ia.ep_disconnect(ep, CloseFlags::Abrupt)?)
            }
            // The endpoint cannot be disconnected in this state; a later call tries again.
            EpState::Unconnected
            | EpState::Reserved
            | EpState::PassiveConnectionPending
            | EpState::ActiveConnectionPending
            | EpState::TentativeConnectionPending => {
                queue.is_disconnecting = false;
                Ok(())
            }
        }
    }
}

/// Returns whether one side has disconnected, so that the end is not a failure.
const fn is_orderly(cause: EndCause) -> bool {
    matches!(cause, EndCause::Disconnected | EndCause::PeerDisconnected)
}
