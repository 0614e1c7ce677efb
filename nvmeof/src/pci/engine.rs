//! The thread of the simulated SSD: fetches commands, carries them out, writes completions.
//!
//! Admin commands are the model's, except those that create and delete queues. I/O commands are in the table of
//! [`crate::io`]; this module moves their data between the driver's memory and the SSD's own.

mod admin;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use driver::{DmaArena, Function};
use udapl::reactor::ReactorError;
use zerocopy::little_endian::U64;
use zerocopy::{FromZeros, IntoBytes};

use super::dma::{Fault, pieces};
use super::no_device::NoDevice;
use super::queues::{Completion, Done, Submission};
use super::registers::{ENABLE, Seen};
use super::{Shared, SsdError};
use crate::io::{
    Commands, DataBuffer, Disks, Do, Event, Fence, Io, Issuer, Layout, Lock, LockOwner, Memory,
    Owner, PAGE, QueueId, Scope, State, Step, check,
};
use crate::model::{Connected, MAX_TRANSFER, MAX_TRANSFER_SHIFT, Moment, Notice, Outcome};
use crate::nvme::command::{Direction, PSDT, PSDT_SGL, io as opcode};
use crate::nvme::nqn::NqnError;
use crate::nvme::sgl::Data;
use crate::nvme::{Cqe, Nqn, Sqe, Status};

/// Number of the model's port.
pub(super) const PORT: u16 = 1;
/// Number of commands that are carried out at once. Others stay in their queues.
const COMMANDS: u32 = 256;
/// Number of buffers for data that is longer than a page.
const BUFFERS: u32 = 16;
/// Identifier of the host, of which there is one.
const HOST_ID: [u8; 16] = [1; 16];
/// Name of that host.
const HOST: &str = "nqn.2026-11.org.udapl:host-of-the-ssd";
/// Maximum time of a sleep.
const TICK: Duration = Duration::from_secs(1);
/// Time in which disks must answer when the SSD ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Access to the driver's memory, for the queues of a generation.
struct Access {
    shared: Arc<Shared>,
    generation: u64,
}

impl Access {
    fn read(&self, iova: u64, out: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < out.len() {
            let at = iova.checked_add(done as u64).ok_or(Fault)?; // CAST: widening.
            let registers = self.shared.registers();
            let part = registers.part(self.generation, (at, out.len() - done), false)?;
            // The lock stays until another process has answered, for a bounded time.
            part.read(&mut out[done..done + part.bytes])?;
            drop(registers);
            done += part.bytes;
        }
        Ok(())
    }

    fn write(&self, iova: u64, data: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < data.len() {
            let at = iova.checked_add(done as u64).ok_or(Fault)?; // CAST: widening.
            let registers = self.shared.registers();
            let part = registers.part(self.generation, (at, data.len() - done), true)?;
            part.write(&data[done..done + part.bytes])?;
            drop(registers);
            done += part.bytes;
        }
        Ok(())
    }

    /// Writes a completion. The byte with the phase bit is written after all others.
    fn complete(&self, iova: u64, cqe: &Cqe) -> Result<(), Fault> {
        const PHASE: usize = 14;
        let bytes = cqe.as_bytes();
        let at = |byte: usize| iova.checked_add(byte as u64).ok_or(Fault); // CAST: widening.
        self.write(iova, &bytes[..PHASE])?;
        self.write(at(PHASE + 1)?, &bytes[PHASE + 1..])?;
        fence(Ordering::Release);
        self.write(at(PHASE)?, &bytes[PHASE..=PHASE])
    }

    /// Calls `each` with every piece of a command's data: its address, and its place in the data.
    fn for_pieces(
        &self,
        prp: [u64; 2],
        bytes: usize,
        mut each: impl FnMut(u64, core::ops::Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Status> {
        let mut from = 0;
        for (iova, bytes) in pieces(prp, bytes, |at, out| self.read(at, out))? {
            each(iova, from..from + bytes).map_err(|Fault| Status::DATA_TRANSFER)?;
            from += bytes;
        }
        Ok(())
    }

    /// Writes data for the driver to the memory that PRP entries describe.
    fn put(&self, prp: [u64; 2], data: &[u8]) -> Result<(), Status> {
        self.for_pieces(prp, data.len(), |iova, range| {
            self.write(iova, &data[range])
        })
    }
}

/// Commands whose lock has taken effect.
#[derive(Debug, Default)]
struct Locked(Mutex<Vec<u32>>);

impl Locked {
    fn take(&self) -> Vec<u32> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        core::mem::take(&mut *all)
    }
}

impl LockOwner for Locked {
    fn locked(&self, io: u32) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(io);
    }
}

/// Sets the fatal status when the thread ends, also by a panic.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        let mut registers = self.0.registers();
        let generation = registers.seen().generation;
        registers.fail(&self.0.bar, generation);
    }
}

/// The controller.
pub(super) struct Engine {
    access: Access,
    subsystem: Nqn,
    host: Nqn,
    began: Instant,
    /// Value of CC that the model has.
    cc: u32,
    /// The admin queue in the model, while the controller is enabled.
    admin: Option<Connected>,
    /// True after an error that no completion can report, until the generation ends.
    has_failed: bool,
    /// Status after a shutdown, which is published when no command is under way.
    shutdown: Option<u32>,
    /// True once the flush of a shutdown has begun, and while it is under way.
    is_flushed: bool,
    is_flushing: bool,
    /// Deletions of submission queues that wait until the disks have ended the queues' commands: queue and command
    /// identifier.
    deletions: Vec<(u16, u16)>,
    /// I/O queue that a command was fetched from last.
    served: u16,
    submissions: BTreeMap<u16, Submission>,
    completions: BTreeMap<u16, Completion>,
    commands: Commands,
    /// PRP entries of each command of the table.
    prps: Vec<[u64; 2]>,
    /// Free entries of the table.
    free: Vec<u32>,
    /// Identifiers of the event requests that wait.
    events: VecDeque<u16>,
    locked: Arc<Locked>,
    fences: Vec<Fence>,
}

/// Returns the properties of a command's queue; `None` if the queue has ended.
fn issuer<'a>(submissions: &'a BTreeMap<u16, Submission>, io: &Io) -> Option<Issuer<'a>> {
    let number = u16::try_from(io.queue.place).ok()?;
    let queue = submissions.get(&number)?;
    Some(Issuer {
        list: queue.list,
        access: &queue.connected.access,
        host_id: &queue.connected.host_id,
        host: &queue.connected.host,
        owner: Owner::default(),
    })
}

impl Engine {
    pub(super) fn new(shared: Arc<Shared>, subsystem: Nqn) -> Result<Self, SsdError> {
        let memory = |error: &dyn core::fmt::Display| SsdError::System {
            what: "memory",
            source: std::io::Error::other(error.to_string()),
        };
        let function = Function::in_process(Arc::new(NoDevice)).map_err(|error| memory(&error))?;
        let arena = DmaArena::new(&function).map_err(|error| memory(&error))?;
        // CAST: widening.
        let alloc = |bytes: u32| {
            let buffer = arena.alloc(bytes as usize, PAGE as usize);
            buffer.map_err(|error| memory(&error))
        };
        let layout = Layout {
            pages_at: 0,
            buffers: BUFFERS,
            transfer_shift: MAX_TRANSFER_SHIFT,
        };
        let (pages, buffers) = (alloc(COMMANDS * PAGE)?, alloc(layout.buffers_bytes())?);
        let disks = Disks::new(COMMANDS)?;
        let host = HOST.parse().map_err(|error: NqnError| memory(&error))?;
        Ok(Self {
            access: Access {
                shared,
                generation: 0,
            },
            subsystem,
            host,
            began: Instant::now(),
            cc: 0,
            admin: None,
            has_failed: false,
            shutdown: None,
            is_flushed: false,
            is_flushing: false,
            deletions: Vec::new(),
            served: 0,
            submissions: BTreeMap::new(),
            completions: BTreeMap::new(),
            commands: Commands::new(
                COMMANDS,
                BUFFERS,
                Memory::new(pages, buffers, layout),
                disks,
            ),
            prps: vec![[0; 2]; COMMANDS as usize], // CAST: widening.
            free: (0..COMMANDS).rev().collect(),
            events: VecDeque::new(),
            locked: Arc::default(),
            fences: Vec::new(),
        })
    }

    /// Runs until the SSD is dropped.
    pub(super) fn run(mut self) {
        let shared = Arc::clone(&self.access.shared);
        let _guard = Guard(Arc::clone(&shared));
        loop {
            // Later signals end the sleep.
            let _signals = shared.wake.take();
            let ran = self.run_until_idle();
            if ran.as_ref().is_ok_and(|goes_on| !goes_on) {
                break;
            }
            let slept = ran.and_then(|_| {
                let wake = [shared.wake.as_fd()];
                self.commands.disks.sleep(&wake, TICK)
            });
            if let Err(error) = slept {
                tracing::error!(function = shared.name, %error, "the ring of the disks");
                self.fail();
                break;
            }
        }
        self.end_queues();
        let ended = self.commands.into_disks().end(DRAIN_TIMEOUT);
        if let Err(error) = ended {
            tracing::error!(function = shared.name, %error, "the disks cannot be waited for");
        }
    }

    /// Does all that can be done without a wait. Returns false if the SSD was dropped.
    fn run_until_idle(&mut self) -> Result<bool, ReactorError> {
        loop {
            // Registers may change while commands are carried out.
            let seen = self.access.shared.registers().seen();
            if seen.is_stopping {
                return Ok(false);
            }
            if !self.run_once(&seen)? {
                return Ok(true);
            }
        }
    }

    fn now(&self) -> Moment {
        self.began.elapsed()
    }

    /// Follows the registers, and runs one iteration. Returns whether a command has moved.
    fn run_once(&mut self, seen: &Seen) -> Result<bool, ReactorError> {
        if seen.generation != self.access.generation {
            self.end_queues();
            self.access.generation = seen.generation;
            self.has_failed = false;
        }
        let is_enabled = seen.cc & ENABLE != 0;
        // A write of the time before must not reach the disk after a write of the time to come.
        if is_enabled && self.admin.is_none() && !self.has_failed && !self.has_orphan(None) {
            self.enable(seen);
        } else if self.admin.is_some() && seen.cc != self.cc {
            self.configure(seen.cc);
        }
        self.take_doorbells();
        let mut has_moved = self.poll_disks()?;
        has_moved |= self.continue_waiting();
        has_moved |= self.fetch();
        self.finish_deletions();
        self.finish_shutdown();
        self.take_notices();
        self.write_completions();
        Ok(has_moved)
    }

    /// Sets the fatal status: an error that no completion can report. No more commands are fetched.
    fn fail(&mut self) {
        self.has_failed = true;
        let shared = &self.access.shared;
        let mut registers = shared.registers();
        registers.fail(&shared.bar, self.access.generation);
    }

    fn take_doorbells(&mut self) {
        let mut registers = self.access.shared.registers();
        let written = registers.take_doorbells(self.access.generation);
        drop(registers);
        for (number, [tail, head]) in written {
            if let (Some(tail), Some(queue)) = (tail, self.submissions.get_mut(&number)) {
                // A tail behind the end of the queue has no meaning.
                if tail < queue.entries {
                    queue.tail = tail;
                }
            }
            if let (Some(head), Some(queue)) = (head, self.completions.get_mut(&number))
                && head < queue.entries
            {
                queue.head = head;
            }
        }
    }

    /// Fetches commands, as long as there are places for them: one of each queue at a time (CC.AMS, round robin).
    /// Returns whether there was one.
    fn fetch(&mut self) -> bool {
        let mut has_moved = false;
        loop {
            let (served, all) = (self.served, self.submissions.keys().copied());
            let (before, after): (Vec<u16>, Vec<u16>) = all.partition(|number| *number <= served);
            let mut has_fetched = false;
            for number in after.into_iter().chain(before) {
                has_fetched |= self.fetch_one(number);
            }
            if !has_fetched {
                return has_moved;
            }
            has_moved = true;
        }
    }

    /// Fetches and begins a command of a queue. Returns false if there is none, or no place for it or its completion.
    fn fetch_one(&mut self, number: u16) -> bool {
        if self.has_failed || number != 0 && self.free.is_empty() {
            return false;
        }
        let Some(queue) = self.submissions.get_mut(&number) else {
            return false;
        };
        // A host that does not take its completions gets no more of them.
        let of = self.completions.get(&queue.completion);
        if of.is_none_or(|of| of.is_behind(queue.under_way)) {
            return false;
        }
        let Some(at) = queue.take() else {
            return false;
        };
        let mut sqe = Sqe::new_zeroed();
        if self.access.read(at, sqe.as_mut_bytes()) == Err(Fault) {
            self.fail();
            return false;
        }
        if number == 0 {
            self.administer(&sqe);
        } else {
            self.served = number;
            self.begin(number, sqe);
        }
        true
    }

    /// Begins a command of an I/O queue.
    fn begin(&mut self, number: u16, mut sqe: Sqe) {
        let (Some(at), Some(queue)) = (self.free.pop(), self.submissions.get_mut(&number)) else {
            return;
        };
        let place = at as usize; // CAST: widening.
        self.prps[place] = sqe.prp();
        let is_list = sqe.flags & PSDT != 0;
        // The table knows no page entries. From here on, the data is like that behind a keyed descriptor.
        sqe.flags = sqe.flags & !PSDT | PSDT_SGL;
        let first = queue.first.take();
        queue.under_way += 1;
        let io = &mut self.commands.ios[place];
        io.sqe = sqe;
        io.begin(
            QueueId {
                place: number.into(),
                generation: 0,
            },
            0,
        );
        let Some(issuer) = issuer(&self.submissions, io) else {
            return self.drop_io(at);
        };
        let local = self.commands.lists.namespace(issuer.list, sqe.nsid.get());
        // Page entries do not say how long the data is. The table refuses a command that the check refuses.
        let bytes = local.map_or(0, |local| check(&sqe, &issuer, local).unwrap_or(0));
        let io = &mut self.commands.ios[place];
        if bytes != 0 && sqe.direction() != Direction::None {
            io.data = Data::Remote {
                address: 0,
                bytes,
                key: 0,
                invalidate: false,
            };
        }
        let act = match first {
            _ if is_list => Do::Refuse(Status::INVALID_FIELD.dnr()),
            Some(first) if self.commands.is_second(at) => {
                let act = self.commands.pair(first, at, &issuer);
                return self.carry_out(at, act);
            }
            _ => self.commands.begin(at, &issuer),
        };
        if let Some(first) = first {
            self.carry_out(first, Do::Refuse(Status::MISSING_FUSED.dnr()));
        }
        self.carry_out(at, act);
    }

    fn carry_out(&mut self, at: u32, act: Do) {
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        match act {
            Do::Wait => {}
            Do::Fetch => {
                io.step(Step::Fetch);
                let fetched = self.fetch_data(at);
                self.commands.ios[at as usize].step(Step::Fetched); // CAST: widening.
                match fetched {
                    Ok(()) => self.drive(at, Event::Fetched),
                    Err(status) => self.carry_out(at, Do::Refuse(status)),
                }
            }
            Do::Put => {
                let (queue, sqe) = (io.queue, io.sqe);
                if let Err(status) = self.put_data(at) {
                    self.commands.ios[at as usize].status = status; // CAST: widening.
                    self.note_error(queue, &sqe, status);
                }
                self.end(at);
            }
            Do::Respond => self.end(at),
            Do::Refuse(status) => {
                io.answer(status, 0, false);
                let (queue, sqe) = (io.queue, io.sqe);
                self.note_error(queue, &sqe, status);
                let partner = self.commands.fail_partner(at);
                self.end(at);
                if let Some(partner) = partner {
                    self.carry_out(partner, Do::Refuse(Status::FAILED_FUSED.dnr()));
                }
            }
            Do::Model => self.reserve(at),
            Do::First => {
                let number = u16::try_from(io.queue.place);
                let queue = number.ok().and_then(|of| self.submissions.get_mut(&of));
                match queue {
                    Some(queue) => queue.first = Some(at),
                    None => self.drop_io(at),
                }
            }
            Do::Lock(namespace) => {
                let block = io.sqe.first_block();
                let owner = Arc::clone(&self.locked);
                let lock = namespace
                    .lock(block, 0)
                    .then(|| Arc::new(Lock::new(&namespace, Scope::Block(block), 1, owner, at)));
                let fence = lock
                    .clone()
                    .map(|lock| self.commands.fence(lock, |_, _| true));
                self.fences.extend(fence);
                self.commands.lock(at, lock);
            }
            Do::Again => self.drive(at, Event::Again),
            // No namespace of an SSD has a limit.
            Do::Limit => self.drive(at, Event::Admitted),
            Do::Compared => match issuer(&self.submissions, io) {
                Some(issuer) => {
                    let act = self.commands.compared(at, &issuer);
                    self.carry_out(at, act);
                }
                None => self.drop_io(at),
            },
            Do::Drop => self.drop_io(at),
            Do::Others => loop {
                let others = self.commands.take_others();
                if others.is_empty() {
                    return;
                }
                for (other, act) in others {
                    self.carry_out(other, act);
                }
            },
            // `Commands` executes these itself, and never returns them.
            Do::Buffer(_) | Do::Disk(_) | Do::Pair | Do::Block => {
                self.carry_out(at, Do::Refuse(Status::INTERNAL.dnr()));
            }
        }
    }

    fn drive(&mut self, at: u32, event: Event) {
        let io = &self.commands.ios[at as usize]; // CAST: widening.
        let Some(issuer) = issuer(&self.submissions, io) else {
            return self.drop_io(at);
        };
        let act = self.commands.drive(at, event, &issuer);
        self.carry_out(at, act);
    }

    /// Copies a command's data from the driver's memory.
    fn fetch_data(&self, at: u32) -> Result<(), Status> {
        let io = &self.commands.ios[at as usize]; // CAST: widening.
        let (bytes, data) = (io.bytes as usize, io.buffer.ok_or(Status::INTERNAL)?); // CAST: widening.
        let (buffer, to) = self.commands.memory.at(data);
        let mut copy = vec![0; bytes];
        let prp = self.prps[at as usize]; // CAST: widening.
        self.access.for_pieces(prp, bytes, |iova, range| {
            self.access.read(iova, &mut copy[range])
        })?;
        buffer.write_bytes(to, &copy);
        Ok(())
    }

    /// Copies a command's data to the driver's memory.
    fn put_data(&self, at: u32) -> Result<(), Status> {
        let io = &self.commands.ios[at as usize]; // CAST: widening.
        let (bytes, data) = (io.bytes as usize, io.buffer.ok_or(Status::INTERNAL)?); // CAST: widening.
        let (buffer, from) = self.commands.memory.at(data);
        let mut copy = vec![0; bytes];
        buffer.read_bytes(from, &mut copy);
        self.access.put(self.prps[at as usize], &copy) // CAST: widening.
    }

    /// Lets the model carry out a reservation command.
    fn reserve(&mut self, at: u32) {
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        let (sqe, queue) = (io.sqe, io.queue);
        if io.state() == State::New {
            io.step(Step::Ready);
        }
        let data = io.buffer.unwrap_or(DataBuffer::Page(at));
        let (buffer, from) = self.commands.memory.at(data);
        let keys = [0, 8].map(|key| buffer.read_obj::<U64>(from + key).get());
        // Number of dwords that the host wants, less one, in dword 10 of Reservation Report.
        let room = sqe.cdw10.get().saturating_add(1).saturating_mul(4);
        let is_report = sqe.opcode == opcode::RESERVATION_REPORT;
        if is_report && room > MAX_TRANSFER {
            return self.carry_out(at, Do::Refuse(Status::INVALID_FIELD.dnr()));
        }
        let room = if is_report { room } else { 0 };
        let number = u16::try_from(queue.place).unwrap_or(0);
        let controller = self.admin.as_ref().map_or(0, |admin| admin.controller);
        let mut model = self.access.shared.model();
        let outcome = model.reserve(controller, number, &sqe, keys, room);
        drop(model);
        let (mut status, mut result, mut data) = (Status::INTERNAL, 0, Vec::new());
        match outcome {
            Outcome::Answered(answer) => {
                (status, result, data) = (answer.status, answer.result, answer.data);
            }
            // An SSD has one host, so no other host has a command at a disk.
            Outcome::Preempted(_) => status = Status::SUCCESS,
            Outcome::Waits | Outcome::Abort { .. } => {}
        }
        if status.is_success()
            && !data.is_empty()
            // CAST: widening.
            && let Err(refused) = self.access.put(self.prps[at as usize], &data)
        {
            status = refused;
            self.note_error(queue, &sqe, status);
        }
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        io.answer(status, result, false);
        self.end(at);
    }

    fn note_error(&self, queue: QueueId, sqe: &Sqe, status: Status) {
        let number = u16::try_from(queue.place).unwrap_or(0);
        if let Some(admin) = &self.admin {
            let mut model = self.access.shared.model();
            model.note_error(admin.controller, number, sqe, status);
        }
    }

    /// Ends a command that has its status.
    fn end(&mut self, at: u32) {
        let io = &mut self.commands.ios[at as usize]; // CAST: widening.
        io.step(Step::Post);
        io.step(Step::Sent);
        if io.queue.place == 0 {
            // The flush of a shutdown, which no host has sent.
            self.is_flushing = false;
        }
        let done = Done {
            queue: u16::try_from(io.queue.place).unwrap_or(0),
            cid: io.sqe.cid.get(),
            status: io.status,
            result: io.result,
        };
        if done.queue != 0 {
            self.complete(done);
        }
        self.release(at);
    }

    /// Queues a completion.
    fn complete(&mut self, done: Done) {
        let of = self.submissions.get(&done.queue);
        let of = of.and_then(|queue| self.completions.get_mut(&queue.completion));
        if let Some(queue) = of {
            queue.waiting.push_back(done);
        }
    }

    fn drop_io(&mut self, at: u32) {
        self.commands.ios[at as usize].step(Step::Drop); // CAST: widening.
        self.release(at);
    }

    fn release(&mut self, at: u32) {
        let io = &self.commands.ios[at as usize]; // CAST: widening.
        if io.state() != State::Free {
            // The command took a step that its state does not have.
            return;
        }
        let number = u16::try_from(io.queue.place);
        let queue = number
            .ok()
            .and_then(|number| self.submissions.get_mut(&number));
        if let Some(queue) = queue {
            queue.under_way = queue.under_way.saturating_sub(1);
        }
        if let Some(lock) = self.commands.release(at) {
            if let Scope::Block(block) = lock.scope() {
                lock.namespace().unlock(*block);
            }
            for _ in 0..self.commands.blocked() {
                let Some(at) = self.commands.unblock() else {
                    break;
                };
                self.drive(at, Event::Unblocked);
            }
        }
        self.free.push(at);
    }

    /// Continues commands whose disk operations have ended. Returns whether there was one.
    fn poll_disks(&mut self) -> Result<bool, ReactorError> {
        self.commands.disks.poll()?;
        let mut has_moved = false;
        while let Some(ended) = self.commands.disks.next() {
            let at = ended.io;
            let act = self.commands.disk_done(ended);
            self.carry_out(at, act);
            has_moved = true;
        }
        Ok(has_moved)
    }

    /// Continues commands that waited for a lock or for buffers. Returns whether there was one.
    fn continue_waiting(&mut self) -> bool {
        let mut has_moved = false;
        let commands = &self.commands;
        self.fences.retain_mut(|fence| !commands.pass(fence));
        for at in self.locked.take() {
            let io = &self.commands.ios[at as usize]; // CAST: widening.
            let issuer = issuer(&self.submissions, io);
            let act = self.commands.locked(at, issuer.as_ref());
            self.carry_out(at, act);
            has_moved = true;
        }
        while let Some(at) = self.commands.buffers.next() {
            let io = &mut self.commands.ios[at as usize]; // CAST: widening.
            io.step(Step::BufferFree);
            has_moved = true;
            let Some(issuer) = issuer(&self.submissions, io) else {
                self.drop_io(at);
                continue;
            };
            let act = self.commands.buffer_free(at, &issuer);
            self.carry_out(at, act);
        }
        if self.commands.is_any_lost() {
            for (at, state, step) in self.commands.take_lost() {
                tracing::error!(at, ?state, ?step, "a bug: a command is lost");
            }
            self.fail();
        }
        has_moved
    }

    /// Answers event requests, and follows the end of the controller in the model.
    fn take_notices(&mut self) {
        let Some(ours) = self.admin.as_ref().map(|admin| admin.controller) else {
            return;
        };
        let shared = Arc::clone(&self.access.shared);
        let mut model = shared.model();
        let is_over = Notice::Over { controller: ours };
        if model.take_notices().contains(&is_over) {
            drop(model);
            self.end_queues();
            return self.fail();
        }
        // An event may have come before its request.
        while !self.events.is_empty()
            && let Some(answer) = model.next_event(ours)
            && let Some(cid) = self.events.pop_front()
        {
            self.complete(Done {
                queue: 0,
                cid,
                status: answer.status,
                result: answer.result,
            });
        }
    }

    /// Returns whether a disk has a command of a queue that has ended, or of any.
    fn has_orphan(&self, of: Option<u16>) -> bool {
        self.commands.ios.iter().any(|io| {
            let is_of = of.is_none_or(|of| io.queue.place == u32::from(of));
            is_of && io.is_orphan && io.state() != State::Free
        })
    }

    /// Answers deletions of submission queues whose commands the disks have ended.
    fn finish_deletions(&mut self) {
        let waiting = core::mem::take(&mut self.deletions);
        for (number, cid) in waiting {
            if self.has_orphan(Some(number)) {
                self.deletions.push((number, cid));
                continue;
            }
            self.complete(Done {
                queue: 0,
                cid,
                status: Status::SUCCESS,
                result: 0,
            });
        }
    }

    /// Writes completions, those of the admin queue last: the answer to a deletion follows the completions of its
    /// queue.
    fn write_completions(&mut self) {
        let mut has_failed = false;
        for queue in self.completions.values_mut().rev() {
            let mut has_written = false;
            while !has_failed && let Some((done, at, phase)) = queue.take() {
                let of = self.submissions.get(&done.queue);
                let head = of.map_or(0, |of| of.head);
                let cqe = Cqe {
                    result: done.result.into(),
                    sq_head: u16::try_from(head).unwrap_or(u16::MAX).into(),
                    sqid: done.queue.into(),
                    cid: done.cid.into(),
                    status: (done.status.field() | u16::from(phase)).into(),
                };
                has_failed = self.access.complete(at, &cqe) == Err(Fault);
                has_written = true;
            }
            if has_written && let Some(vector) = queue.vector {
                let registers = self.access.shared.registers();
                registers.signal(self.access.generation, vector);
            }
        }
        if has_failed {
            self.fail();
        }
    }

    /// Drops the commands of a queue, or of all queues. Those that a disk has end with it.
    fn drop_commands(&mut self, of: Option<u16>) {
        for at in 0..COMMANDS {
            let io = &self.commands.ios[at as usize]; // CAST: widening.
            let is_of = of.is_none_or(|of| io.queue.place == u32::from(of));
            if io.state() != State::Free && is_of && self.commands.orphan(at) {
                self.drop_io(at);
            }
        }
    }

    /// Ends all queues, and the controller in the model.
    fn end_queues(&mut self) {
        let queues = core::mem::take(&mut self.submissions);
        self.drop_commands(None);
        for queue in queues.into_values() {
            self.commands.lists.remove_user(queue.list);
        }
        self.completions.clear();
        self.events.clear();
        self.deletions.clear();
        (self.shutdown, self.is_flushing) = (None, false);
        if let Some(admin) = self.admin.take() {
            let mut model = self.access.shared.model();
            model.queue_lost(admin.controller, 0, admin.connection);
        }
    }

    /// Returns the address of the host, for the model. There is no network.
    const fn source() -> IpAddr {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    }
}
