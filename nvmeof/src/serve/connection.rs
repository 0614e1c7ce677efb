//! Connections: requests, their beginning and their end.

use udapl::{CloseFlags, ConnectionRequest, EpAttr, EpEvds, EpHandle, EpState};
use zerocopy::IntoBytes;

use super::io::State as IoState;
use super::queue::{Attached, QueueId, State, Step};
use super::worker::{Worker, WorkerError};
use crate::model::{ADMIN_ENTRIES, Moment, Place, QUEUE_ENTRIES, QUEUES};
use crate::nvme::Status;
use crate::nvme::rdma::{AcceptData, Reject, RequestData};

/// RDMA Reads of a connection at once; the adapter keeps the others back.
const READS: u32 = 16;
/// How long a connection may stay without Connect.
const STRANGERS: Moment = Moment::from_secs(60);

/// Entries of the queue that is asked for.
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
    /// Somebody wants to connect.
    pub(super) fn asked(&mut self, request: &ConnectionRequest) -> Result<(), WorkerError> {
        let Ok(asked) = self.ia.cr_query(request.cr) else {
            // It has given up.
            return Ok(());
        };
        let host = asked.remote_ia_address;
        let data = RequestData::parse(asked.private_data);
        let taken = data.and_then(|data| Ok((data, check(data)?)));
        let taken = taken.and_then(|(data, entries)| {
            let ep = self.endpoint(entries).map_err(|error| {
                let told = self.lines.take(host, "endpoint", self.target.now());
                if let Some(unlogged) = told {
                    tracing::warn!(worker = self.id, %host, %error, unlogged, "no endpoint for one more queue");
                }
                Reject::Resources
            })?;
            Ok((data, entries, ep))
        });
        let (data, entries, ep) = match taken {
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
        self.queues.add(ep, place, room, self.target.now());
        Ok(())
    }

    fn endpoint(&mut self, entries: u16) -> Result<EpHandle, udapl::DatError> {
        let limits = self.ia.query().ia;
        let attr = EpAttr {
            // A response and the data before it, twice: a host that has the response may send the next command before
            // its leaving is known here.
            max_request_dtos: (4 * u32::from(entries)).min(limits.max_dto_per_ep),
            max_request_iov: 1,
            max_rdma_read_in: 0,
            max_rdma_read_out: READS.min(limits.max_rdma_read_per_ep_out),
            ..EpAttr::defaults(limits)
        };
        let evds = EpEvds::all(self.events);
        self.ia
            .ep_create_with_srq(Some(self.zone), evds, self.srq, &attr)
    }

    /// A connection is there; commands may have come before.
    pub(super) fn established(&mut self, ep: EpHandle) -> Result<(), WorkerError> {
        let Some(id) = self.queues.of(ep) else {
            return Ok(());
        };
        let mut early = Vec::new();
        if let Some(queue) = self.queues.get_mut(id)
            && queue.step(Step::Up)
        {
            early = core::mem::take(&mut queue.early);
        }
        for io in early {
            self.begin(io)?;
        }
        Ok(())
    }

    /// A connection is over: I/Os that are nowhere else end at once, the others when what they are at does.
    pub(super) fn ended(&mut self, ep: EpHandle) -> Result<(), WorkerError> {
        let Some(id) = self.queues.of(ep) else {
            return Ok(());
        };
        let Some(queue) = self
            .queues
            .get_mut(id)
            .filter(|queue| queue.state() != State::Ending)
        else {
            return Ok(());
        };
        queue.step(Step::End);
        queue.early.clear();
        queue.fused = None;
        queue.behind.clear();
        let of = queue
            .attached
            .as_ref()
            .map(|one| (one.controller, one.number));
        let queue_shelf = queue.attached.as_ref().and_then(|one| one.shelf);
        tracing::debug!(worker = self.id, queue = ?of, cause = ?self.ia.ep_end_cause(ep), "connection over");
        if let Some((controller, number)) = of {
            if number == 0 {
                self.held.remove(&controller);
            }
            self.target
                .with(|model| model.queue_lost(controller, number));
        }
        if let Some(shelf) = queue_shelf {
            self.shelves.leave(shelf);
        }
        self.ready.retain(|io| self.ios[*io as usize].queue != id);
        for at in 0..self.config.ios {
            let io = &self.ios[at as usize];
            if io.queue != id {
                continue;
            }
            match io.state() {
                IoState::Waiting => {
                    self.buffers.forget(at);
                    self.locked_out.retain(|one| *one != at);
                    self.drop_io(at)?;
                }
                IoState::Here | IoState::Paired | IoState::Held | IoState::Ready => {
                    self.drop_io(at)?
                }
                IoState::Posted
                | IoState::Fetching
                | IoState::AtDisk
                | IoState::Locking
                | IoState::Sending => {}
            }
        }
        self.clear_away(id)
    }

    /// The connections of a controller end.
    pub(super) fn controller_over(&mut self, controller: u16) -> Result<(), WorkerError> {
        if self.is_stopping.is_some() {
            // Its admin queue, which had nothing to do, has left first. The others are answered what is here.
            return Ok(());
        }
        for id in self.queues.ids() {
            let attached = self
                .queues
                .get(id)
                .and_then(|queue| queue.attached.as_ref());
            if attached.is_some_and(|one| one.controller == controller) {
                self.leave(id)?;
            }
        }
        Ok(())
    }

    /// The host of a queue has not shown who it is.
    pub(super) fn queue_over(&mut self, controller: u16, number: u16) -> Result<(), WorkerError> {
        for id in self.queues.ids() {
            let queue = self.queues.get(id);
            let attached = queue.and_then(|queue| queue.attached.as_ref());
            // One of the same number that is known is another connection.
            let is_it = |one: &Attached| {
                (one.controller, one.number) == (controller, number) && one.must_authenticate
            };
            if attached.is_some_and(is_it) {
                self.leave(id)?;
            }
        }
        Ok(())
    }

    /// A controller was disabled or shut down: its I/O queues end, and whoever waits for an event is told.
    pub(super) fn controller_reset(&mut self, controller: u16) -> Result<(), WorkerError> {
        for id in self.queues.ids() {
            let attached = self
                .queues
                .get(id)
                .and_then(|queue| queue.attached.as_ref());
            if attached.is_some_and(|one| one.controller == controller && one.number != 0) {
                self.leave(id)?;
            }
        }
        let aborted = crate::model::Answer::refused(Status::ABORTED);
        for at in self.held.remove(&controller).into_iter().flatten() {
            self.ios[at as usize].happened(&aborted);
            self.ready.push(at);
        }
        Ok(())
    }

    /// Connections of which nobody has made a queue for so long are over.
    pub(super) fn expire_strangers(&mut self, now: Moment) -> Result<(), WorkerError> {
        for id in self.queues.ids() {
            let Some(queue) = self.queues.get(id) else {
                continue;
            };
            if matches!(queue.state(), State::Accepted | State::Connected)
                && now.saturating_sub(queue.since) >= STRANGERS
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
                self.leave(id)?;
            }
        }
        Ok(())
    }

    /// Ends a connection from here. What it has posted comes back, and then its end.
    pub(super) fn leave(&mut self, id: QueueId) -> Result<(), WorkerError> {
        let Some(queue) = self.queues.get_mut(id) else {
            return Ok(());
        };
        if core::mem::replace(&mut queue.is_leaving, true) || queue.state() == State::Ending {
            return Ok(());
        }
        let ep = queue.ep;
        match self.ia.ep_get_status(ep)?.state {
            EpState::Disconnected => self.ended(ep),
            EpState::CompletionPending | EpState::Connected | EpState::DisconnectPending => {
                Ok(self.ia.ep_disconnect(ep, CloseFlags::Abrupt)?)
            }
            // There is nothing to end yet; it is tried again.
            EpState::Unconnected
            | EpState::Reserved
            | EpState::PassiveConnectionPending
            | EpState::ActiveConnectionPending
            | EpState::TentativeConnectionPending => {
                queue.is_leaving = false;
                Ok(())
            }
        }
    }
}
