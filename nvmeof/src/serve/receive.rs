//! Commands: how they are received, and the steps of their execution.

use std::sync::Arc;

use udapl::error::ReturnType;
use udapl::memory::RmrTriplet;
use udapl::{CompletionFlags, EpHandle};
use zerocopy::little_endian::U64;

use super::error::WorkerError;
use super::layout::COMMAND;
use super::queue::{Attached, Queue, State, Step as QueueStep};
use super::worker::{Worker, cookie, kind};
use crate::io::{Commands, DataBuffer, Do, Event, Io, PAGE, QueueId, State as IoState, Step};
use crate::model::{Answer, Connected, HostId, Moment, Outcome};
use crate::nvme::Status;
use crate::nvme::command::{Direction, admin};
use crate::nvme::fabrics::{Connect, ConnectData, kind as fabrics};
use crate::nvme::feature::NUMBER_OF_QUEUES;
use crate::nvme::sgl::Data;

/// Returns whether the model executes a command of an I/O queue with this opcode, after it has waited for a buffer.
const fn is_models(opcode: u8) -> bool {
    matches!(
        opcode,
        admin::FABRICS | crate::nvme::command::io::RESERVATION_REPORT
    )
}

/// Adds a command to its queue, and reads the SGL descriptor of its data.
#[inline]
fn admit(io: &mut Io, queue: &mut Queue) -> Result<(), Status> {
    queue.advance();
    locate(io, || queue.place.queue == 0)
}

/// Reads the SGL descriptor of a command's data. `is_admin`: whether the command is one of an admin queue, which only
/// data in the capsule depends on.
#[inline(always)]
fn locate(io: &mut Io, is_admin: impl FnOnce() -> bool) -> Result<(), Status> {
    let direction = io.sqe.direction();
    // A command without data has no descriptor, so the bytes of that field have no meaning.
    if direction == Direction::None {
        return Ok(());
    }
    io.data = io.sqe.sgl.data()?;
    if let Data::Capsule { offset, bytes } = io.data {
        if is_admin() || direction != Direction::ToController {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if offset != 0 || bytes > io.in_capsule {
            return Err(Status::SGL_OFFSET.dnr());
        }
    }
    Ok(())
}

/// Begins an I/O command and returns its next step; `None` if the command needs [`Worker::begin_other`].
#[inline(always)]
fn start(commands: &mut Commands, queue: &mut Queue, at: u32) -> Option<Do> {
    let io = &mut commands.ios[at as usize]; // CAST: widening.
    if let Err(status) = admit(io, queue) {
        return Some(Do::Refuse(status));
    }
    if queue.fused.is_some() || io.sqe.opcode == admin::FABRICS {
        return None;
    }
    let issuer = queue.issuer()?;
    Some(commands.begin(at, &issuer))
}

/// Prepares a command of a resumed worker that was the first of a fused pair and waits for the second. Returns false if
/// it is none.
pub(super) fn prepare_first(commands: &mut Commands, at: u32) -> bool {
    let io = &mut commands.ios[at as usize]; // CAST: widening.
    locate(io, || false).is_ok() && commands.is_first(at)
}

impl Worker {
    /// Handles the completion of a receive. `bytes`: length of the capsule; `None` if the receive failed.
    pub(super) fn received(
        &mut self,
        at: u32,
        ep: EpHandle,
        bytes: Option<u32>,
    ) -> Result<(), WorkerError> {
        self.over.here += 1;
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        self.memory.read_command(at, &mut io.sqe);
        let Some((id, queue)) = self.queues.of(ep) else {
            io.begin(QueueId::NONE, 0);
            return self.drop_io(at);
        };
        io.begin(id, bytes.unwrap_or(0).saturating_sub(COMMAND));
        self.timing.left -= 1;
        if self.timing.left == 0 {
            io.began = Some(self.timing.begin(self.target.now()));
        }
        queue.outstanding += 1;
        let is_ordinary = queue.state() == State::Attached
            && !queue.share.is_guest()
            && !queue.is_overrun(0)
            && bytes.is_some_and(|bytes| bytes >= COMMAND);
        if !is_ordinary {
            return self.received_other(at, id, bytes);
        }
        match start(&mut self.commands, queue, at) {
            // Only the response is left, as for a read of a null disk.
            Some(Do::Put | Do::Respond) => {
                self.ready.push(at);
                Ok(())
            }
            Some(act) => self.carry_out(at, act),
            None => self.begin_other(at),
        }
    }

    /// Handles a receive that is not of the fast path: the queue is a guest or not attached, the receive failed, the
    /// capsule is too short, or the host exceeds a limit.
    #[cold]
    fn received_other(
        &mut self,
        at: u32,
        id: QueueId,
        bytes: Option<u32>,
    ) -> Result<(), WorkerError> {
        let Some(queue) = self.queues.get_mut(id) else {
            return self.drop_io(at);
        };
        let (is_overrun, source) = (queue.is_overrun(0), queue.place.source);
        let is_overdrawn = queue.share.is_guest() && !self.admission.borrow(queue.outstanding);
        match (queue.state(), bytes) {
            (State::Ending | State::Draining, _) => self.drop_io(at),
            // The receive failed, so there is no capsule: the connection is ending.
            (_, None) => {
                self.drop_io(at)?;
                self.disconnect(id)
            }
            // All guests together exceed the loan, and this guest is one that borrows.
            _ if is_overdrawn => {
                self.report_overdrawn(id);
                self.drop_io(at)?;
                self.disconnect(id)
            }
            _ if is_overrun => {
                self.report_overrun(id);
                self.drop_io(at)?;
                self.fail(id)
            }
            (_, Some(..COMMAND)) => {
                // A capsule without a whole command cannot be answered. The host violates the protocol, so its
                // controller ends.
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

    /// Counts and logs a guest that holds more commands than there are for it.
    #[cold]
    pub(super) fn report_overdrawn(&mut self, id: QueueId) {
        self.admission.room.overdrawn += 1;
        let source = self.queues.get(id).map(|queue| queue.place.source);
        if let Some(source) = source
            && let Some(unlogged) = self.lines.take(source, "overdrawn", self.target.now())
        {
            tracing::info!(
                worker = self.id,
                %source,
                unlogged,
                "a guest holds more commands than there are for it: its connection ends"
            );
        }
        self.report_capacity();
    }

    /// Counts and logs a host that has sent more commands than its queue has entries.
    #[cold]
    pub(super) fn report_overrun(&mut self, id: QueueId) {
        self.admission.room.overdrawn += 1;
        if let Some(queue) = self.queues.get(id) {
            let of = queue.attached.as_ref().map(|one| one.controller);
            let source = queue.place.source;
            if let Some(unlogged) = self.lines.take(source, "overrun", self.target.now()) {
                tracing::warn!(
                    worker = self.id,
                    controller = of,
                    %source,
                    unlogged,
                    "more commands than the queue has entries"
                );
            }
        }
        self.report_capacity();
    }

    /// Ends the controller of a host that violates the protocol. Ends only the connection if it has no controller, or
    /// is an I/O queue that has not authenticated.
    pub(super) fn fail(&mut self, id: QueueId) -> Result<(), WorkerError> {
        let queue = self.queues.get(id);
        match queue.and_then(|queue| queue.attached.as_ref()) {
            // An I/O queue that has not authenticated has not proved that the controller is its host's.
            Some(one) if one.number == 0 || !one.must_authenticate => {
                let controller = one.controller;
                self.target.with(|model| model.end_controller(controller));
                Ok(())
            }
            Some(_) | None => self.disconnect(id),
        }
    }

    /// Begins a command of a connection that is established.
    pub(super) fn begin(&mut self, at: u32) -> Result<(), WorkerError> {
        let id = self.commands.ios[at as usize].queue; // CAST: widening.
        let Some(queue) = self.queues.get_mut(id) else {
            return self.drop_io(at);
        };
        match start(&mut self.commands, queue, at) {
            Some(act) => self.carry_out(at, act),
            None => self.begin_other(at),
        }
    }

    /// Begins a command that [`start`] leaves to this function: any command of a connection that is not an
    /// authenticated I/O queue, a fabrics command, or the command that follows the first of a fused pair.
    #[cold]
    fn begin_other(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &self.commands.ios[at as usize]; // CAST: widening.
        let (id, sqe) = (io.queue, io.sqe);
        let Some(queue) = self.queues.get_mut(id) else {
            return self.drop_io(at);
        };
        if let Some(first) = queue.fused.take() {
            if self.commands.is_second(at) {
                let Some(issuer) = queue.issuer() else {
                    self.refuse(first, Status::SEQUENCE.dnr())?;
                    return self.refuse(at, Status::SEQUENCE.dnr());
                };
                let act = self.commands.pair(first, at, &issuer);
                return self.carry_out(at, act);
            }
            self.refuse(first, Status::MISSING_FUSED.dnr())?;
        }
        let Some(queue) = self.queues.get(id) else {
            return self.drop_io(at);
        };
        let attached = queue.attached.as_ref();
        let number = attached.map(|one| one.number);
        let is_unknown = attached.is_some_and(|one| one.must_authenticate);
        let is_fabrics = sqe.opcode == admin::FABRICS;
        match number {
            Some(_) if is_fabrics && sqe.fabrics_type() == fabrics::AUTHENTICATION_SEND => {
                let bytes = sqe.cdw11.get();
                if !(1..=PAGE).contains(&bytes) {
                    return self.refuse(at, Status::INVALID_FIELD.dnr());
                }
                self.gather(at, bytes)
            }
            Some(1..) if is_unknown && !is_fabrics => {
                self.refuse(at, Status::AUTHENTICATION_REQUIRED.dnr())
            }
            None if is_fabrics && sqe.fabrics_type() == fabrics::CONNECT => {
                self.gather(at, ConnectData::BYTES)
            }
            None => self.refuse(at, Status::SEQUENCE.dnr()),
            Some(0) => self.administer(at),
            Some(_) if is_fabrics => self.administer(at),
            Some(_) => match queue.issuer() {
                Some(issuer) => {
                    let act = self.commands.begin(at, &issuer);
                    self.carry_out(at, act)
                }
                None => self.refuse(at, Status::INVALID_OPCODE.dnr()),
            },
        }
    }

    /// Executes the next step of a command.
    pub(super) fn carry_out(&mut self, at: u32, act: Do) -> Result<(), WorkerError> {
        match act {
            Do::Put | Do::Respond => {
                self.ready.push(at);
                Ok(())
            }
            Do::Wait => Ok(()),
            Do::Fetch => self.fetch(at),
            other @ (Do::Buffer(_)
            | Do::Disk(_)
            | Do::Refuse(_)
            | Do::Model
            | Do::First
            | Do::Pair
            | Do::Lock(_)
            | Do::Block
            | Do::Compared
            | Do::Again
            | Do::Limit
            | Do::Drop
            | Do::Others) => self.carry_out_other(at, other),
        }
    }

    #[cold]
    fn carry_out_other(&mut self, at: u32, act: Do) -> Result<(), WorkerError> {
        match act {
            Do::Refuse(status) => self.refuse(at, status),
            Do::Model => self.administer(at),
            Do::First => {
                let id = self.commands.ios[at as usize].queue; // CAST: widening.
                if let Some(queue) = self.queues.get_mut(id) {
                    queue.fused = Some(at);
                }
                Ok(())
            }
            Do::Lock(namespace) => {
                let block = self.commands.ios[at as usize].sqe.first_block(); // CAST: widening.
                let lock = self.target.lock(&namespace, block, self.id, at);
                self.commands.lock(at, lock);
                Ok(())
            }
            Do::Again => {
                let queue = self.queues.get(self.commands.ios[at as usize].queue); // CAST: widening.
                let host = queue.and_then(Queue::issuer).map(|issuer| issuer.host);
                self.commands.charge_step(at, host, || self.target.now());
                self.drive(at, Event::Again)
            }
            Do::Limit => {
                let id = self.commands.ios[at as usize].queue; // CAST: widening.
                let Some(issuer) = self.queues.get(id).and_then(Queue::issuer) else {
                    return self.drop_io(at);
                };
                let act = self.commands.reserve(at, self.target.now(), &issuer);
                self.carry_out(at, act)
            }
            Do::Compared => {
                let id = self.commands.ios[at as usize].queue; // CAST: widening.
                let queue = self.queues.get(id);
                let queue = queue.filter(|queue| queue.state() != State::Ending);
                let Some(issuer) = queue.and_then(Queue::issuer) else {
                    return self.drop_io(at);
                };
                let act = self.commands.compared(at, &issuer);
                self.carry_out(at, act)
            }
            Do::Drop => self.drop_io(at),
            Do::Others => loop {
                let others = self.commands.take_others();
                if others.is_empty() {
                    return Ok(());
                }
                for (other, act) in others {
                    self.carry_out(other, act)?;
                }
            },
            // `Commands` executes `Buffer`, `Disk`, `Block` and `Pair` itself, and never returns them.
            Do::Put | Do::Respond | Do::Fetch | Do::Wait => self.carry_out(at, act),
            Do::Buffer(_) | Do::Disk(_) | Do::Block | Do::Pair => {
                self.refuse(at, Status::INTERNAL.dnr())
            }
        }
    }

    /// Continues an I/O command after an event. If its queue has ended, the command is dropped.
    pub(super) fn drive(&mut self, at: u32, event: Event) -> Result<(), WorkerError> {
        let id = self.commands.ios[at as usize].queue; // CAST: widening.
        let Some(queue) = self.queues.get(id) else {
            return self.drop_io(at);
        };
        let act = match queue.issuer() {
            _ if queue.state() == State::Ending => Do::Drop,
            Some(issuer) => self.commands.drive(at, event, &issuer),
            None => Do::Refuse(Status::SEQUENCE.dnr()),
        };
        self.carry_out(at, act)
    }

    /// Continues the commands that waited because of a limit and whose time has come; all of them while the target is
    /// held or the worker stops. Returns whether there were any.
    #[cold]
    pub(super) fn end_waits(&mut self) -> Result<bool, WorkerError> {
        let is_forced = self.pause.is_some() || self.is_stopping.is_some();
        let now = self.target.now();
        let due = if is_forced { Moment::MAX } else { now };
        let mut moved = false;
        while let Some(one) = self.commands.next_due(due) {
            moved = true;
            let at = one.at;
            let id = self.commands.ios[at as usize].queue; // CAST: widening.
            let Some(issuer) = self.queues.get(id).and_then(Queue::issuer) else {
                self.drop_io(at)?;
                continue;
            };
            let act = self.commands.go_on(one, now, is_forced, &issuer);
            self.carry_out(at, act)?;
        }
        Ok(moved)
    }

    /// Fetches data of exactly this length into the command's page.
    fn gather(&mut self, at: u32, bytes: u32) -> Result<(), WorkerError> {
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        io.buffer = Some(DataBuffer::Page(at));
        io.bytes = bytes;
        match io.data {
            Data::Capsule { bytes: there, .. } if there == bytes => {
                io.step(Step::Ready);
                self.fetched(at)
            }
            Data::Remote { bytes: there, .. } if there == bytes => self.fetch(at),
            Data::None | Data::Capsule { .. } | Data::Remote { .. } => {
                self.refuse(at, Status::SGL_LENGTH.dnr())
            }
        }
    }

    /// Posts an RDMA Read of a command's data.
    fn fetch(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        let Data::Remote { address, key, .. } = io.data else {
            return self.refuse(at, Status::SGL_TYPE.dnr());
        };
        let remote = RmrTriplet {
            rmr_context: key,
            target_address: address,
            segment_length: io.bytes.into(),
        };
        let local = io.buffer.and_then(|data| self.memory.slice(data, io.bytes));
        let (Some(local), Some(queue)) = (local, self.queues.get(io.queue)) else {
            return self.drop_io(at);
        };
        let posted = self.ia.ep_post_rdma_read(
            queue.ep,
            &[local],
            cookie(at, kind::FETCH),
            &remote,
            CompletionFlags::empty(),
        );
        match posted {
            Ok(()) => {
                io.step(Step::Fetch);
                Ok(())
            }
            // Without DNR: the host tries again.
            Err(error) if error.return_type() == ReturnType::InsufficientResources => {
                self.refuse(at, Status::DATA_TRANSFER)
            }
            // The connection has ended; an event will report that.
            Err(_) => self.drop_io(at),
        }
    }

    /// Continues a command whose data has arrived in the worker's memory.
    pub(super) fn fetched(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &self.commands.ios[at as usize]; // CAST: widening.
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
            Some(_) => match queue.issuer() {
                Some(issuer) => {
                    let act = self.commands.drive(at, Event::Fetched, &issuer);
                    self.carry_out(at, act)
                }
                None => self.refuse(at, Status::INVALID_OPCODE.dnr()),
            },
        }
    }

    fn connect(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &self.commands.ios[at as usize]; // CAST: widening.
        let (id, sqe) = (io.queue, io.sqe);
        let Some(queue) = self.queues.get_mut(id) else {
            return self.drop_io(at);
        };
        let (buffer, from) = self.commands.memory.at(DataBuffer::Page(at));
        let data: ConnectData = buffer.read_obj(from);
        let (place, now) = (queue.place, self.target.now());
        let made = self
            .target
            .with(|model| model.connect(place, Connect::of(&sqe), &data, now));
        match made {
            Ok(connected) => {
                let is_host = connected.namespaces.is_some() && !connected.must_authenticate;
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
                let list = connected.namespaces.as_ref();
                let list = list.map(|list| self.commands.lists.add_user(list));
                queue.step(QueueStep::Attach);
                queue.head = 1 % connected.entries;
                queue.entries = connected.entries;
                queue.attached = Some(Attached::new(&connected, list));
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

    /// Lets the model execute a command.
    fn administer(&mut self, at: u32) -> Result<(), WorkerError> {
        self.administer_with(at, false)
    }

    /// Lets the model execute a command. `has_buffer`: the command has waited for a buffer, and one is free now.
    fn administer_with(&mut self, at: u32, has_buffer: bool) -> Result<(), WorkerError> {
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        let room = match (io.sqe.direction(), io.data) {
            (Direction::ToHost, Data::Remote { bytes, .. }) => bytes,
            _ => 0,
        };
        // An authentication message must fit into a page, so the command occupies no buffer while its step waits.
        let is_authentication = io.sqe.opcode == admin::FABRICS
            && io.sqe.fabrics_type() == fabrics::AUTHENTICATION_RECEIVE;
        if room > self.commands.memory.most_bytes() || is_authentication && room > PAGE {
            return self.refuse(at, Status::SGL_LENGTH.dnr());
        }
        if io.buffer.is_none() && room > PAGE {
            let owner = self.queues.get(io.queue).map(|queue| queue.share.owner);
            let owner = owner.unwrap_or_default();
            let buffers = &mut self.commands.buffers;
            if !has_buffer && !buffers.has(owner, 1) {
                io.step(Step::NoBuffer);
                buffers.wait(at, owner, 1);
                return Ok(());
            }
            io.buffer = buffers.take(owner).map(DataBuffer::Buffer);
        }
        if io.state() == IoState::New {
            io.step(Step::Ready);
        }
        let data = *io.buffer.get_or_insert(DataBuffer::Page(at));
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
        // The two words of a reservation command's data.
        let (buffer, from) = self.commands.memory.at(data);
        let keys = [0, 8].map(|key| buffer.read_obj::<U64>(from + key).get());
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
            Outcome::Waits => self.hold(at, controller)?,
            Outcome::Preempted(hosts) => self.wait_for_preempted(at, hosts)?,
            Outcome::Abort { queue, cid } => self.begin_abort(at, (controller, queue, cid))?,
            Outcome::Answered(answer) => self.answer_with(at, &answer),
        }
        Ok(())
    }

    /// Lets a Preempt and Abort wait until no worker has a command of the preempted hosts at the namespace's disk.
    #[cold]
    fn wait_for_preempted(&mut self, at: u32, hosts: Vec<HostId>) -> Result<(), WorkerError> {
        let io = &self.commands.ios[at as usize]; // CAST: widening.
        let nsid = io.sqe.nsid.get();
        let issuer = self.queues.get(io.queue).and_then(Queue::issuer);
        let lists = &mut self.commands.lists;
        let local = issuer.and_then(|issuer| lists.namespace(issuer.list, nsid));
        let namespace = local.map(|local| Arc::clone(&local.namespace));
        let lock = namespace.and_then(|it| self.target.lock_hosts(&it, hosts, self.id, at));
        match lock {
            Some(lock) => {
                self.commands.lock(at, Some(lock));
                Ok(())
            }
            // The namespace was removed meanwhile.
            None => self.refuse(at, Status::INVALID_NAMESPACE.dnr()),
        }
    }

    /// Answers a command with the model's answer. The answer's data fits into the host's buffer.
    pub(super) fn answer_with(&mut self, at: u32, answer: &Answer) {
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        let data = io.buffer.unwrap_or(DataBuffer::Page(at));
        let (buffer, to) = self.commands.memory.at(data);
        buffer.write_bytes(to, &answer.data);
        // The length of the host's buffer has 32 bits, so the data's length fits.
        io.bytes = u32::try_from(answer.data.len()).unwrap_or(0);
        io.answer(answer.status, answer.result, io.bytes != 0);
        self.ready.push(at);
    }

    /// Continues a command that has waited for a buffer, because buffers are free.
    pub(super) fn buffer_free(&mut self, at: u32) -> Result<(), WorkerError> {
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        io.step(Step::BufferFree);
        let queue = self.queues.get(io.queue);
        match queue.and_then(|queue| queue.attached.as_ref()) {
            Some(Attached { number: 0, .. }) | None => self.administer_with(at, true),
            Some(_) if is_models(io.sqe.opcode) => self.administer_with(at, true),
            Some(_) => match queue.and_then(Queue::issuer) {
                Some(issuer) => {
                    let act = self.commands.buffer_free(at, &issuer);
                    self.carry_out(at, act)
                }
                None => self.refuse(at, Status::INVALID_OPCODE.dnr()),
            },
        }
    }
}
