//! Commands as they come, and answers as they leave.

use udapl::{CompletionFlags, EpHandle, ReturnType, RmrTriplet};
use zerocopy::FromZeros;
use zerocopy::little_endian::U64;

use super::io::Step;
use super::layout::{COMMAND, PAGE, Spot};
use super::queue::{Attached, State, Step as QueueStep};
use super::worker::{Worker, WorkerError, cookie, kind};
use crate::model::{Answer, Connected, MAX_TRANSFER, NUMBER_OF_QUEUES, Outcome};
use crate::nvme::command::{Direction, admin};
use crate::nvme::fabrics::{Connect, ConnectData, kind as fabrics};
use crate::nvme::sgl::Data;
use crate::nvme::{Cqe, Sqe, Status};

/// A command of an I/O queue that the model carries out without the disk's part.
const fn is_models(opcode: u8) -> bool {
    matches!(
        opcode,
        admin::FABRICS | crate::nvme::command::io::RESERVATION_REPORT
    )
}

impl Worker {
    /// A receive has come back: with a command, or because it failed.
    pub(super) fn received(
        &mut self,
        at: u32,
        ep: EpHandle,
        bytes: Option<u32>,
    ) -> Result<(), WorkerError> {
        self.over.here += 1;
        let Some(id) = self.queues.of(ep) else {
            self.ios[at as usize].begin(super::queue::QueueId::NONE, Sqe::new_zeroed(), 0);
            return self.drop_io(at);
        };
        let sqe = self.memory.command(at);
        self.ios[at as usize].begin(id, sqe, bytes.unwrap_or(0).saturating_sub(COMMAND));
        self.begin_time(at);
        let Some(queue) = self.queues.get_mut(id) else {
            return self.drop_io(at);
        };
        queue.outstanding += 1;
        let (is_overrun, source) = (queue.is_overrun(), queue.place.source);
        let is_overdrawn = queue.share.is_guest() && !self.admission.borrow(queue.outstanding);
        match (queue.state(), bytes) {
            (State::Ending | State::Draining, _) => self.drop_io(at),
            // Not even a capsule: the connection is on its way out.
            (_, None) => {
                self.drop_io(at)?;
                self.leave(id)
            }
            // Guests have more than they may, and this one more than its greeting.
            _ if is_overdrawn => {
                self.admission.room.overdrawn += 1;
                let told = self.lines.take(source, "overdrawn", self.target.now());
                if let Some(unlogged) = told {
                    tracing::info!(
                        worker = self.id,
                        %source,
                        unlogged,
                        "a guest holds more commands than there are for it: its connection ends"
                    );
                }
                self.tell_room();
                self.drop_io(at)?;
                self.leave(id)
            }
            _ if is_overrun => {
                self.admission.room.overdrawn += 1;
                let of = queue.attached.as_ref().map(|one| one.controller);
                let told = self.lines.take(source, "overrun", self.target.now());
                if let Some(unlogged) = told {
                    tracing::warn!(
                        worker = self.id,
                        controller = of,
                        %source,
                        unlogged,
                        "more commands than the queue has entries"
                    );
                }
                self.drop_io(at)?;
                self.fail(id)
            }
            (_, Some(..COMMAND)) => {
                // A capsule without a whole command cannot be answered: the host breaks the rules, and its controller
                // is over.
                let of = queue.attached.as_ref().map(|one| one.controller);
                let told = self.lines.take(source, "capsule", self.target.now());
                if let Some(unlogged) = told {
                    tracing::warn!(
                        worker = self.id,
                        controller = of,
                        bytes,
                        %source,
                        unlogged,
                        "a capsule without a command"
                    );
                }
                self.drop_io(at)?;
                self.fail(id)
            }
            (State::Accepted, _) => {
                queue.early.push(at);
                Ok(())
            }
            (State::Connected | State::Attached, _) => self.begin(at),
        }
    }

    /// A host breaks the rules: its controller is over, or its connection if it has none.
    pub(super) fn fail(&mut self, id: super::queue::QueueId) -> Result<(), WorkerError> {
        let queue = self.queues.get(id);
        match queue.and_then(|queue| queue.attached.as_ref()) {
            // An I/O queue that has not authenticated has not shown that the controller is its host's.
            Some(one) if one.number == 0 || !one.must_authenticate => {
                let controller = one.controller;
                self.target.with(|model| model.fail_controller(controller));
                Ok(())
            }
            Some(_) | None => self.leave(id),
        }
    }

    /// Looks at a command of a connection that is there.
    pub(super) fn begin(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &mut self.ios[at as usize];
        let Some(queue) = self.queues.get_mut(io.queue) else {
            return self.drop_io(at);
        };
        queue.advance();
        let sqe = io.sqe;
        // A command without data has no descriptor: what is in its place says nothing.
        if sqe.direction() != Direction::None {
            match sqe.sgl.data() {
                Ok(data) => io.data = data,
                Err(status) => return self.refuse(at, status),
            }
        }
        let is_fabrics = sqe.opcode == admin::FABRICS;
        if let Data::Capsule { offset, bytes } = io.data {
            let is_admin = queue.place.queue == 0;
            if is_admin || sqe.direction() != Direction::ToController {
                return self.refuse(at, Status::INVALID_FIELD.dnr());
            }
            if offset != 0 || bytes > io.in_capsule {
                return self.refuse(at, Status::SGL_OFFSET.dnr());
            }
        }
        if queue.fused.is_some() && self.follow(at)? {
            return Ok(());
        }
        let Some(queue) = self.queues.get(self.ios[at as usize].queue) else {
            return self.drop_io(at);
        };
        let attached = queue.attached.as_ref();
        let number = attached.map(|one| one.number);
        let is_stranger = attached.is_some_and(|one| one.must_authenticate);
        match number {
            Some(_) if is_fabrics && sqe.fabrics_type() == fabrics::AUTHENTICATION_SEND => {
                let bytes = sqe.cdw11.get();
                if !(1..=PAGE).contains(&bytes) {
                    return self.refuse(at, Status::INVALID_FIELD.dnr());
                }
                self.gather(at, bytes)
            }
            Some(1..) if is_stranger && !is_fabrics => {
                self.refuse(at, Status::AUTHENTICATION_REQUIRED.dnr())
            }
            None if is_fabrics && sqe.fabrics_type() == fabrics::CONNECT => {
                self.gather(at, ConnectData::BYTES)
            }
            None => self.refuse(at, Status::SEQUENCE.dnr()),
            Some(0) => self.administer(at),
            Some(_) if is_fabrics => self.administer(at),
            Some(_) => self.begin_io(at),
        }
    }

    /// Has data of exactly this length come here, which is no longer than a page.
    fn gather(&mut self, at: u32, bytes: u32) -> Result<(), WorkerError> {
        let io = &mut self.ios[at as usize];
        io.spot = Some(Spot::Page(at));
        io.bytes = bytes;
        match io.data {
            Data::Capsule { bytes: there, .. } if there == bytes => self.fetched(at),
            Data::Remote { bytes: there, .. } if there == bytes => self.fetch(at),
            Data::None | Data::Capsule { .. } | Data::Remote { .. } => {
                self.refuse(at, Status::SGL_LENGTH.dnr())
            }
        }
    }

    /// Fetches an I/O's data from the host.
    pub(super) fn fetch(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &mut self.ios[at as usize];
        let Data::Remote { address, key, .. } = io.data else {
            return self.refuse(at, Status::SGL_TYPE.dnr());
        };
        let there = RmrTriplet {
            rmr_context: key,
            target_address: address,
            segment_length: io.bytes.into(),
        };
        let spot = io
            .spot
            .and_then(|spot| self.memory.slice(spot, 0, io.bytes));
        let (Some(here), Some(queue)) = (spot, self.queues.get(io.queue)) else {
            return self.drop_io(at);
        };
        let posted = self.ia.ep_post_rdma_read(
            queue.ep,
            &[here],
            cookie(at, kind::FETCH),
            &there,
            CompletionFlags::empty(),
        );
        match posted {
            Ok(()) => {
                io.step(Step::Fetch);
                Ok(())
            }
            // The host tries again.
            Err(error) if error.return_type() == ReturnType::InsufficientResources => {
                self.refuse(at, Status::DATA_TRANSFER)
            }
            // The connection has gone; that is told by itself.
            Err(_) => self.drop_io(at),
        }
    }

    /// An I/O's data is here.
    pub(super) fn fetched(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &self.ios[at as usize];
        let Some(queue) = self
            .queues
            .get(io.queue)
            .filter(|queue| queue.state() != State::Ending)
        else {
            return self.drop_io(at);
        };
        match &queue.attached {
            None => self.connect(at),
            Some(Attached { number: 0, .. }) => self.administer(at),
            Some(_) if io.sqe.opcode == admin::FABRICS => self.administer(at),
            Some(_) => self.resume(at),
        }
    }

    fn connect(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &self.ios[at as usize];
        let (id, sqe) = (io.queue, io.sqe);
        let Some(queue) = self.queues.get_mut(id) else {
            return self.drop_io(at);
        };
        let (region, from) = self.memory.at(Spot::Page(at));
        let data: ConnectData = region.buffer.read_obj(from as usize);
        let (place, now) = (queue.place, self.target.now());
        let made = self
            .target
            .with(|model| model.connect(place, Connect::of(&sqe), &data, now));
        match made {
            Ok(connected) => {
                let is_host = connected.shelf.is_some() && !connected.must_authenticate;
                if is_host && !self.admit(id, &connected.party, connected.entries) {
                    self.target.with(|model| {
                        let Connected {
                            controller,
                            queue,
                            connection,
                            ..
                        } = connected;
                        model.queue_lost(controller, queue, connection);
                    });
                    // Without DNR: the host tries again.
                    self.respond_with(at, Status::CONTROLLER_BUSY, 0);
                    return Ok(());
                }
                let Some(queue) = self.queues.get_mut(id) else {
                    return self.drop_io(at);
                };
                let shelf = connected
                    .shelf
                    .as_ref()
                    .map(|shelf| self.shelves.join(shelf));
                queue.step(QueueStep::Attach);
                queue.head = 1 % connected.entries;
                queue.entries = connected.entries;
                queue.attached = Some(Attached::new(&connected, shelf));
                self.respond_with(at, Status::SUCCESS, connected.result());
            }
            Err(refused) => {
                if let Some(unlogged) = self.lines.take(place.source, "connect", now) {
                    tracing::info!(worker = self.id, queue = place.queue, host = %place.source, status = %refused.status, unlogged, "connect refused");
                }
                self.respond_with(at, refused.status, refused.result);
            }
        }
        Ok(())
    }

    /// A command that the model carries out.
    pub(super) fn administer(&mut self, at: u32) -> Result<(), WorkerError> {
        self.administer_with(at, false)
    }

    /// Likewise; `has_buffer`: it has waited for one.
    fn administer_with(&mut self, at: u32, has_buffer: bool) -> Result<(), WorkerError> {
        let io = &mut self.ios[at as usize];
        let room = match (io.sqe.direction(), io.data) {
            (Direction::ToHost, Data::Remote { bytes, .. }) => bytes,
            _ => 0,
        };
        // What an authentication says fits into a page, and so needs no buffer while it waits for its turn.
        let is_authentication = io.sqe.opcode == admin::FABRICS
            && io.sqe.fabrics_type() == fabrics::AUTHENTICATION_RECEIVE;
        if room > MAX_TRANSFER || is_authentication && room > PAGE {
            return self.refuse(at, Status::SGL_LENGTH.dnr());
        }
        if io.spot.is_none() && room > PAGE {
            let owner = self.queues.get(io.queue).map(|queue| queue.share.owner);
            let owner = owner.unwrap_or_default();
            if !has_buffer && !self.buffers.has(owner, 1) {
                io.step(Step::Lack);
                self.buffers.wait(at, owner, 1);
                return Ok(());
            }
            io.spot = self.buffers.take(owner).map(Spot::Buffer);
        }
        let spot = *io.spot.get_or_insert(Spot::Page(at));
        let Some(queue) = self.queues.get(io.queue) else {
            return self.drop_io(at);
        };
        let Some(attached) = &queue.attached else {
            return self.refuse(at, Status::SEQUENCE.dnr());
        };
        let owner = queue.share.owner;
        let (controller, number, sqe, now) = (
            attached.controller,
            attached.number,
            io.sqe,
            self.target.now(),
        );
        // The keys that a reservation command comes with.
        let (region, from) = self.memory.at(spot);
        let keys = [0, 8].map(|key| region.buffer.read_obj::<U64>(from as usize + key).get());
        let is_reservation = number != 0 && sqe.opcode != admin::FABRICS;
        if sqe.opcode == admin::FABRICS
            && matches!(
                sqe.fabrics_type(),
                fabrics::AUTHENTICATION_SEND | fabrics::AUTHENTICATION_RECEIVE
            )
        {
            return self.authenticate(at, (controller, number), room);
        }
        if number == 0
            && sqe.opcode == admin::SET_FEATURES
            && sqe.cdw10.get() & 0xff == u32::from(NUMBER_OF_QUEUES)
        {
            let most = self.queues_left(owner);
            self.target
                .with(|model| model.limit_queues(controller, most));
        }
        let outcome = self.target.with(|model| {
            if is_reservation {
                model.reserve(controller, number, &sqe, keys, room)
            } else {
                model.command(controller, number, &sqe, room, now)
            }
        });
        match outcome {
            Outcome::Waits => {
                self.hold(at, controller)?;
            }
            Outcome::Answered(answer) => self.answer_with(at, &answer),
        }
        Ok(())
    }

    /// Answers a command as the model says, whose data is no longer than the host has room for.
    pub(super) fn answer_with(&mut self, at: u32, answer: &Answer) {
        let io = &mut self.ios[at as usize];
        let (region, to) = self.memory.at(io.spot.unwrap_or(Spot::Page(at)));
        region.buffer.write_bytes(to as usize, &answer.data);
        // The model gives no more than there is room for, which is 32 bits.
        io.bytes = u32::try_from(answer.data.len()).unwrap_or(0);
        io.answer(answer.status, answer.result, io.bytes != 0);
        self.ready.push(at);
    }

    /// There are buffers for an I/O that waited for them.
    pub(super) fn found(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &mut self.ios[at as usize];
        io.step(Step::Found);
        let queue = self.queues.get(io.queue);
        match queue.and_then(|queue| queue.attached.as_ref()) {
            Some(Attached { number: 0, .. }) | None => self.administer_with(at, true),
            Some(_) if is_models(io.sqe.opcode) => self.administer_with(at, true),
            Some(_) => self.place(at, true),
        }
    }

    /// Answers a command that is not carried out; it goes into the error log.
    pub(super) fn refuse(&mut self, at: u32, status: Status) -> Result<(), WorkerError> {
        self.over.refused += 1;
        let io = &self.ios[at as usize];
        if let Some(attached) = self
            .queues
            .get(io.queue)
            .and_then(|queue| queue.attached.as_ref())
            .filter(|one| one.number == 0 || !one.must_authenticate)
        {
            let (controller, number, sqe) = (attached.controller, attached.number, io.sqe);
            self.target
                .with(|model| model.note_error(controller, number, &sqe, status));
        }
        self.respond_with(at, status, 0);
        if self.ios[at as usize].partner.is_some() {
            self.fail_partner(at)?;
        }
        Ok(())
    }

    /// Answers a command, at the end of the turn.
    #[inline]
    pub(super) fn respond_with(&mut self, at: u32, status: Status, result: u64) {
        self.ios[at as usize].answer(status, result, false);
        self.ready.push(at);
    }

    /// Answers a command that has read something, likewise.
    #[inline]
    pub(super) fn respond_with_data(&mut self, at: u32) {
        self.ios[at as usize].answer(Status::SUCCESS, 0, true);
        self.ready.push(at);
    }

    /// Posts the answers of a turn: those of one queue that come behind each other by one doorbell. They leave in
    /// order, so the last one alone is told when it has left, or one of so many that the places of the others are not
    /// missed.
    pub(super) fn respond(&mut self) -> Result<(), WorkerError> {
        let mut ready = core::mem::take(&mut self.ready);
        let mut rest = &ready[..];
        while let Some(first) = rest.first() {
            let of = self.ios[*first as usize].queue;
            let same = rest
                .iter()
                .take_while(|io| self.ios[**io as usize].queue == of);
            let (run, others) = rest.split_at(same.count());
            rest = others;
            self.respond_run(of, run)?;
        }
        ready.clear();
        // What came up meanwhile, for want of a place in a send queue, has its turn when one is free.
        ready.append(&mut self.ready);
        self.ready = ready;
        Ok(())
    }

    fn respond_run(&mut self, id: super::queue::QueueId, run: &[u32]) -> Result<(), WorkerError> {
        let Self {
            ia,
            ios,
            memory,
            queues,
            ..
        } = self;
        let Some(queue) = queues.get_mut(id) else {
            return Ok(());
        };
        // No more leave at once than the queue has entries: so many places are its own.
        let (run, later) = run.split_at(run.len().min(queue.answers_left()));
        if run.is_empty() {
            queue.behind.extend(later);
            return Ok(());
        }
        let mut posted = 0;
        let (last, stretch) = (run.len() - 1, queue.stretch);
        // What there is no room for waits behind the others; order among the answers of a queue does not matter to a
        // host.
        let full = ia.batch(queue.ep, |batch| {
            for (number, at) in run.iter().enumerate() {
                let io = &ios[*at as usize];
                let put = (io.writes && io.status.is_success()).then(|| {
                    let Data::Remote { address, key, .. } = io.data else {
                        return None;
                    };
                    let from = io.spot.and_then(|spot| memory.slice(spot, 0, io.bytes))?;
                    let there = RmrTriplet {
                        rmr_context: key,
                        target_address: address,
                        segment_length: io.bytes.into(),
                    };
                    Some((from, there))
                });
                // Data that has no place here or there is none that the host is told it has.
                let status = match put {
                    Some(None) => Status::INTERNAL,
                    Some(Some(_)) | None => io.status,
                };
                let attached = queue.attached.as_ref();
                let cqe = Cqe {
                    result: io.result.into(),
                    sq_head: if attached.is_some_and(|one| one.without_head) {
                        // Of Connect it says that this is granted.
                        u16::from(io.sqe.opcode == admin::FABRICS).wrapping_neg()
                    } else {
                        queue.head
                    }
                    .into(),
                    sqid: queue.place.queue.into(),
                    cid: io.sqe.cid,
                    status: status.field().into(),
                };
                let to = memory.response_at(*at);
                memory.places.buffer.write_obj(to as usize, &cqe);
                if let Some(Some((from, there))) = put {
                    let named = cookie(*at, kind::PUT);
                    batch.rdma_write(&[from], named, &there, CompletionFlags::SUPPRESS)?;
                }
                let response = memory.response(*at);
                let is_told = number == last || (number + 1) % stretch == 0;
                let flags = if is_told {
                    CompletionFlags::empty()
                } else {
                    CompletionFlags::SUPPRESS
                };
                let named = cookie(*at, kind::RESPONSE);
                match io.invalidates() {
                    Some(key) => batch.send_invalidate(&[response], named, key, flags)?,
                    None => batch.send(&[response], named, flags)?,
                }
                posted += 1;
            }
            Ok(())
        });
        for at in &run[..posted] {
            ios[*at as usize].step(Step::Send);
        }
        queue.leaving.extend(&run[..posted]);
        let left = &run[posted..];
        match full {
            Ok(()) => {}
            Err(error) if error.return_type() == ReturnType::InsufficientResources => {
                queue.behind.extend(left);
            }
            Err(error) => {
                // The connection has gone, and nobody is answered.
                tracing::debug!(worker = self.id, %error, "no answer");
                for at in left {
                    self.drop_io(*at)?;
                }
            }
        }
        if !later.is_empty()
            && let Some(queue) = self.queues.get_mut(id)
        {
            queue.behind.extend(later);
        }
        Ok(())
    }
}
