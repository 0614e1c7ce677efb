//! The execution of the commands of I/O queues, independent of the transport.
//!
//! ```text
//!   transport (serve: RDMA; tests: a loop)
//!      |  begin, fetched, disk_done, ...            ^  Do::{Fetch, Put, Respond, Refuse, Model, ...}
//!      v                                            |
//!   Commands   a worker's table of commands; carries out Do::{Buffer, Disk} itself
//!      |  Event                                     ^  Do
//!      v                                            |
//!   Io::next   one command: its checks, its states, its steps; performs no action
//! ```
//!
//! A command passes these stages:
//!
//! ```text
//!   received    Is it inside the namespace? May the host do it? Has the data the right length?
//!   Limit       Has the namespace or the host a limit? Then it may have to wait for its time
//!   Buffer      Up to 4 KiB are in the command's own page. More is in a buffer, which it may have to wait for
//!   Fetch       Data from the host, unless it came in the capsule
//!   execute     Disk: one operation, or several, one after the other; a flush of all disks at once
//!   Put         Data to the host; then the response
//! ```
//!
//! For each event, the transport names the command's queue by an [`Issuer`], and [`Commands`] finds the namespace. A
//! read on a disk has two events. The second event, the disk's completion, needs neither queue nor namespace.

mod buffers;
mod command;
mod disks;
mod ended;
mod fused;
mod limits;
mod lock;
mod memory;
mod namespaces;
mod permit;
mod ssd_queues;
mod state;
mod steps;
#[cfg(test)]
mod tests;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use buffers::{Buffers, Owner};
pub(crate) use command::{Do, Event, Io, QueueId, WaitKey};
pub(crate) use disks::Disks;
pub(crate) use ended::Ended;
pub(crate) use limits::Waiting;
pub(crate) use lock::{Fence, Lock, LockOwner, Scope};
pub(crate) use memory::{DataBuffer, Layout, Memory, PAGE};
pub(crate) use namespaces::LocalLists;
pub(crate) use permit::{Issuer, check};
pub(crate) use state::{State, Step};

use crate::nvme::Status;
use crate::nvme::command::{ALL_NAMESPACES, FUSE, PSDT, PSDT_SGL, io as opcode};
use command::Context;
use namespaces::Local;
use permit::{permit, status_of};

/// The commands of a worker, with their namespaces, buffers and disks.
pub(crate) struct Commands {
    pub ios: Vec<Io>,
    pub lists: LocalLists,
    pub buffers: Buffers,
    pub memory: Memory,
    pub disks: Disks,
    /// Writes and first commands of pairs that wait for a locked block.
    blocked: Vec<u32>,
    /// Commands that wait because of a limit, and the number of waits so far.
    waiting: BTreeMap<WaitKey, Waiting>,
    waits: u64,
    /// Actions of [`Do::Others`], in order: each with the index of its command.
    others: Vec<(u32, Do)>,
    is_any_lost: Arc<AtomicBool>,
}

impl Commands {
    /// Makes a worker's table of `count` commands.
    pub(crate) fn new(count: u32, buffers: u32, memory: Memory, disks: Disks) -> Self {
        let is_any_lost = Arc::new(AtomicBool::new(false));
        Self {
            ios: (0..count)
                .map(|number| Io::new(number, &is_any_lost))
                .collect(),
            lists: LocalLists::new(memory.most_bytes()),
            buffers: Buffers::new(buffers),
            memory,
            disks,
            blocked: Vec::new(),
            waiting: BTreeMap::new(),
            waits: 0,
            others: Vec::new(),
            is_any_lost,
        }
    }

    /// Ends the table, whose commands have all ended, and returns the disks.
    pub(crate) fn into_disks(self) -> Disks {
        self.disks
    }

    /// Starts a command of an I/O queue, whose fields `sqe` and `data` are set.
    #[inline]
    pub(crate) fn begin(&mut self, at: u32, issuer: &Issuer<'_>) -> Do {
        let io = &self.ios[at as usize]; // CAST: widening.
        if io.sqe.flags & (FUSE | PSDT) != PSDT_SGL {
            return self.begin_fused(at);
        }
        if io.sqe.opcode == opcode::FLUSH && io.sqe.nsid.get() == ALL_NAMESPACES {
            return self.flush_all(at, issuer);
        }
        self.drive(at, Event::Received, issuer)
    }

    /// Handles an event of a command. Returns the action of the transport.
    #[inline]
    pub(crate) fn drive(&mut self, at: u32, mut event: Event, issuer: &Issuer<'_>) -> Do {
        let io = &mut self.ios[at as usize]; // CAST: widening.
        let Some(local) = self.lists.namespace(issuer.list, io.sqe.nsid.get()) else {
            return Do::Refuse(Status::INVALID_NAMESPACE.dnr());
        };
        loop {
            let context = Context {
                issuer,
                local,
                memory: &self.memory,
            };
            match io.next(event, &context) {
                Do::Buffer(count) => {
                    if !self.buffers.has(issuer.owner, count) {
                        io.step(Step::NoBuffer);
                        self.buffers.wait(at, issuer.owner, count);
                        return Do::Wait;
                    }
                    io.take_buffers(|| self.buffers.take(issuer.owner));
                    event = Event::Placed { is_late: false };
                }
                Do::Disk(operation) => {
                    let operation = operation.of_file(&self.memory);
                    return match self.disks.ask(&local.handle, operation, at) {
                        Ok(count) => {
                            io.pending = count;
                            io.step(Step::Execute);
                            Do::Wait
                        }
                        Err(error) => Do::Refuse(status_of(&error, io.sqe.opcode)),
                    };
                }
                Do::Block => {
                    self.block(at);
                    return Do::Wait;
                }
                Do::Pair => return self.join(at, issuer),
                Do::Compared => return self.compared(at, issuer),
                Do::Put => {
                    // The data is zeros, so the read of a null disk no longer needs its buffer.
                    if let (Some(DataBuffer::Zeros), Some(buffer)) = (io.buffer, io.second) {
                        io.second = None;
                        self.buffers.give_back(buffer);
                    }
                    return Do::Put;
                }
                act @ (Do::Fetch
                | Do::Respond
                | Do::Refuse(_)
                | Do::Model
                | Do::First
                | Do::Lock(_)
                | Do::Again
                | Do::Drop
                | Do::Limit
                | Do::Wait
                | Do::Others) => return act,
            }
        }
    }

    /// Continues a command that waited for buffers, because they are free now.
    pub(crate) fn buffer_free(&mut self, at: u32, issuer: &Issuer<'_>) -> Do {
        let io = &mut self.ios[at as usize]; // CAST: widening.
        io.take_buffers(|| self.buffers.take(issuer.owner));
        self.drive(at, Event::Placed { is_late: true }, issuer)
    }

    /// Handles the completion of a disk operation of a command.
    pub(crate) fn disk_done(&mut self, ended: Ended) -> Do {
        let io = &mut self.ios[ended.io as usize]; // CAST: widening.
        match ended.result {
            Ok(bytes) => io.moved = u32::try_from(bytes).unwrap_or(u32::MAX),
            Err(error) => {
                io.status = status_of(&error, io.sqe.opcode);
                io.moved = 0;
            }
        }
        io.pending -= 1;
        if io.pending != 0 {
            return Do::Wait;
        }
        io.step(Step::DiskDone);
        let (is_done, opcode, bytes) = (
            io.status.is_success() && !io.is_orphan && io.moved == io.bytes,
            io.sqe.opcode,
            io.bytes,
        );
        if is_done && let Some(local) = self.lists.noted(io.used) {
            local.count(opcode, bytes);
        }
        io.disk_done(&self.memory)
    }

    /// Flushes all namespaces that the host sees. If the host may not flush one of them, flushes none.
    fn flush_all(&mut self, at: u32, issuer: &Issuer<'_>) -> Do {
        let io = &mut self.ios[at as usize]; // CAST: widening.
        let seen = |local: &&Local| local.is_visible_to(issuer.host);
        let refused = self
            .lists
            .all(issuer.list)
            .filter(seen)
            .find_map(|local| permit(opcode::FLUSH, issuer, local).err());
        if let Some(status) = refused {
            return Do::Refuse(status);
        }
        let mut asked = 0;
        for local in self.lists.all(issuer.list).filter(seen) {
            let operation = udapl::reactor::FileOperation::Sync;
            match self.disks.ask(&local.handle, operation, at) {
                Ok(count) => asked += count,
                Err(error) => io.status = status_of(&error, opcode::FLUSH),
            }
        }
        if asked != 0 {
            io.step(Step::Ready);
            io.step(Step::Execute);
            io.pending = asked;
            return Do::Wait;
        }
        if !io.status.is_success() {
            return Do::Refuse(io.status);
        }
        io.done()
    }

    /// Returns the actions of [`Do::Others`], in order: each with the index of its command.
    #[cold]
    pub(crate) fn take_others(&mut self) -> Vec<(u32, Do)> {
        core::mem::take(&mut self.others)
    }

    /// Frees the buffers of a command. Returns its lock, which the transport must unlock.
    #[inline]
    pub(crate) fn release(&mut self, at: u32) -> Option<Arc<Lock>> {
        let io = &mut self.ios[at as usize]; // CAST: widening.
        if let Some(DataBuffer::Buffer(buffer)) = io.buffer.take() {
            self.buffers.give_back(buffer);
        }
        if let Some(buffer) = io.second.take() {
            self.buffers.give_back(buffer);
        }
        if io.partner.is_none() && io.lock.is_none() {
            return None;
        }
        self.release_pair(at)
    }

    /// Handles the end of a command's connection. Returns true if nothing else uses the command; then the caller drops
    /// the command. Otherwise the command ends when the adapter or the disk has finished with it, or when all workers
    /// have passed its lock.
    pub(crate) fn orphan(&mut self, at: u32) -> bool {
        let io = &mut self.ios[at as usize]; // CAST: widening.
        match io.state() {
            State::NeedBuffer => {
                self.buffers.forget(at);
                true
            }
            State::Held => {
                self.end_wait(at);
                true
            }
            State::Blocked => {
                self.blocked.retain(|one| *one != at);
                true
            }
            State::New
            | State::ReadyToExecute
            | State::Paired
            | State::Executed
            | State::ReadyToComplete => true,
            State::Fetching | State::Executing | State::Locking | State::Completing => {
                io.is_orphan = true;
                false
            }
            State::Free | State::Lost => false,
        }
    }

    /// Returns the command with this identifier, if it waits and nothing else uses it: for its time, for a buffer, or
    /// for a locked block. It goes back to the state in which it can be refused. `is_of`: whether this is its queue.
    #[cold]
    pub(crate) fn abort(&mut self, is_of: impl Fn(QueueId) -> bool, cid: u16) -> Option<u32> {
        let all = (0..).zip(&self.ios);
        let mut waiting = all.filter_map(|(at, io)| {
            let step = match io.state() {
                State::Held => Step::Admit,
                State::NeedBuffer => Step::BufferFree,
                State::Blocked => Step::Unblock,
                State::Free
                | State::New
                | State::Fetching
                | State::ReadyToExecute
                | State::Paired
                | State::Locking
                | State::Executing
                | State::Executed
                | State::ReadyToComplete
                | State::Completing
                | State::Lost => return None,
            };
            (is_of(io.queue) && io.sqe.cid.get() == cid).then_some((at, step))
        });
        let (at, step) = waiting.next()?;
        drop(waiting);
        self.end_wait(at);
        self.buffers.forget(at);
        self.blocked.retain(|one| *one != at);
        self.ios[at as usize].step(step); // CAST: widening.
        Some(at)
    }

    /// Returns whether a command was lost since the last `take_lost`.
    #[inline]
    pub(crate) fn is_any_lost(&self) -> bool {
        self.is_any_lost.load(Ordering::Relaxed)
    }

    /// Returns the commands that were lost since the last call: index, state, and the step that the state does not
    /// have.
    #[cold]
    pub(crate) fn take_lost(&mut self) -> Vec<(u32, State, Step)> {
        self.is_any_lost.store(false, Ordering::Relaxed);
        let all = (0..).zip(&mut self.ios);
        all.filter_map(|(at, io)| io.mistake.take().map(|(state, step)| (at, state, step)))
            .collect()
    }
}
