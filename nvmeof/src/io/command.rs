//! A command: its data, and the choice of its next action.
//!
//! [`Io::next`] takes an event of a command and returns the next action. It performs no action itself:
//! [`super::Commands`] has the buffers, disks and locks; the transport transfers data and sends responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use udapl::reactor::FileOperation;

use super::lock::Lock;
use super::memory::{DataBuffer, Memory, PAGE};
use super::namespaces::{Local, LocalLists, Used};
use super::permit::{Issuer, check, is_reservation, permit};
use super::state::{State, Step};
use super::work::Work;
use crate::disk::Handle;
use crate::model::{Moment, Namespace, Tally};
use crate::nvme::command::{Direction, io as opcode};
use crate::nvme::sgl::Data;
use crate::nvme::{Sqe, Status};

/// Bit of Write Zeroes that allows deallocating the blocks (DEAC).
const MAY_DEALLOCATE: u32 = 1 << 25;

/// Identifier of a command's queue: an index in the transport's table, and the number of times that the entry was
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueId {
    pub place: u32,
    pub generation: u32,
}

impl QueueId {
    /// The identifier of no queue.
    pub(crate) const NONE: Self = Self {
        place: u32::MAX,
        generation: 0,
    };
}

/// Place of a command among those that wait because of a limit: the time at which it is looked at, and the number of
/// the wait, so that of two commands with the same time the first one goes on first.
pub(crate) type WaitKey = (Moment, u64);

/// An event of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The command has been received.
    Received,
    /// The limits of the namespace and the host let the command go on, if there are limits.
    Admitted,
    /// The command has got the buffers that it needs.
    Placed {
        /// True if the command had to wait for them.
        is_late: bool,
    },
    /// The command's data has arrived from the host.
    Fetched,
    /// The lock that blocked the command has been released.
    Unblocked,
    /// The command has locked its block.
    Locked,
    /// The comparison of the fused pair has succeeded, and this command, the write, may execute.
    Joined,
    /// The disk has completed a step, and the next step must be checked and started.
    Again,
}

/// The next action for a command.
#[derive(Debug)]
pub(crate) enum Do {
    /// The namespace or the host has a limit. The caller calls [`super::Commands::reserve`] with the time.
    Limit,
    /// Give the command this many buffers; then [`Event::Placed`] follows.
    Buffer(usize),
    /// The transport fetches the data from the host; then [`Event::Fetched`] follows.
    Fetch,
    /// Submit this disk operation; then [`Io::disk_done`] follows.
    Disk(Operation),
    /// The transport writes the data into the host's memory, and then sends the response.
    Put,
    /// The transport sends the response.
    Respond,
    /// The transport sends a response with this error.
    Refuse(Status),
    /// The model carries out the command.
    Model,
    /// The command is the first of a fused pair and waits for the next command of its queue.
    First,
    /// The command belongs to a fused pair and is ready.
    Pair,
    /// The first of a fused pair needs its block locked; then [`Event::Locked`] follows.
    Lock(Arc<Namespace>),
    /// Another pair has locked the block. The command waits; then [`Event::Unblocked`] follows.
    Block,
    /// The comparison of a fused pair has succeeded. The caller calls [`super::Commands::compared`] with the queue.
    Compared,
    /// The next step must be checked. The caller passes [`Event::Again`] with the queue.
    Again,
    /// The connection has ended, and nothing else uses the command: it is freed.
    Drop,
    /// No action until the next event of the command.
    Wait,
    /// [`super::Commands::take_others`] returns the actions: those for other commands, and possibly one for this one.
    Others,
}

/// An operation of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read {
        offset: u64,
        bytes: u32,
        to: DataBuffer,
    },
    Write {
        offset: u64,
        bytes: u32,
        from: DataBuffer,
        /// True if the data must be on the medium before the command completes, not only in a volatile cache (FUA).
        through: bool,
    },
    Sync,
    Zero {
        offset: u64,
        bytes: u64,
    },
    Deallocate {
        offset: u64,
        bytes: u64,
    },
}

impl Operation {
    /// Converts the operation to the form of the worker's ring.
    pub(super) const fn of_file(self, memory: &Memory) -> FileOperation<'_> {
        match self {
            Self::Read { offset, bytes, to } => {
                let (buffer, buffer_offset) = memory.at(to);
                FileOperation::Read {
                    offset,
                    buffer,
                    buffer_offset,
                    bytes: bytes as usize, // CAST: widening.
                }
            }
            Self::Write {
                offset,
                bytes,
                from,
                through,
            } => {
                let (buffer, buffer_offset) = memory.at(from);
                FileOperation::Write {
                    offset,
                    buffer,
                    buffer_offset,
                    bytes: bytes as usize, // CAST: widening.
                    through,
                }
            }
            Self::Sync => FileOperation::Sync,
            Self::Zero { offset, bytes } => FileOperation::Zero { offset, bytes },
            Self::Deallocate { offset, bytes } => FileOperation::Deallocate { offset, bytes },
        }
    }
}

/// State that the next action of a command depends on.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub issuer: &'a Issuer<'a>,
    pub local: &'a Local,
    pub memory: &'a Memory,
}

/// A command: one entry of a worker's table.
#[derive(Debug)]
pub(crate) struct Io {
    /// Index of the command in the table, and of its page.
    number: u32,
    state: State,
    pub queue: QueueId,
    pub sqe: Sqe,
    /// Number of data bytes in the capsule.
    pub in_capsule: u32,
    /// Location and length of the data, as the host's SGL descriptor gives them.
    pub data: Data,
    /// Location of the command's data in the target's memory, and its length in bytes.
    pub buffer: Option<DataBuffer>,
    pub bytes: u32,
    /// A second buffer, into which a disk reads data to be compared, copied or verified.
    pub second: Option<u32>,
    pub work: Work,
    /// Namespace on which the command was first checked, and on which it is executed.
    pub used: Used,
    /// Index of the partner in a fused pair, and the lock that this command holds.
    pub partner: Option<u32>,
    pub lock: Option<Arc<Lock>>,
    /// Place among the commands that wait because of a limit.
    pub wait: Option<WaitKey>,
    /// Number of disk operations that have not completed.
    pub pending: u32,
    /// Number of bytes that the last disk operation has moved.
    pub moved: u32,
    /// True if the connection ended while the adapter or a disk used the command, or before all workers passed the
    /// lock.
    pub is_orphan: bool,
    pub status: Status,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// True if data goes to the host before the response.
    pub puts: bool,
    /// Time at which the command was received, if it is measured.
    pub began: Option<Moment>,
    /// State of the command and the first step that is not valid in this state. Such a step is a bug of this crate.
    pub mistake: Option<(State, Step)>,
    /// True if a command of the table is lost; shared by all commands of the table.
    is_any_lost: Arc<AtomicBool>,
}

impl Io {
    pub(crate) fn new(number: u32, is_any_lost: &Arc<AtomicBool>) -> Self {
        Self {
            number,
            state: State::Free,
            queue: QueueId::NONE,
            sqe: zerocopy::FromZeros::new_zeroed(),
            in_capsule: 0,
            data: Data::None,
            buffer: None,
            bytes: 0,
            second: None,
            work: Work::Single,
            used: Used::default(),
            partner: None,
            lock: None,
            wait: None,
            pending: 0,
            moved: 0,
            is_orphan: false,
            status: Status::SUCCESS,
            result: 0,
            puts: false,
            began: None,
            mistake: None,
            is_any_lost: Arc::clone(is_any_lost),
        }
    }

    pub(crate) const fn state(&self) -> State {
        self.state
    }

    /// Returns whether a disk has an operation of the command. Aborts and authentications, which are executed
    /// elsewhere, have none.
    pub(super) const fn is_at_disk(&self) -> bool {
        matches!(self.state, State::Executing) && self.pending != 0
    }

    /// Applies a step to the state. If the state does not have the step, the command is lost.
    #[inline]
    pub(crate) fn step(&mut self, step: Step) {
        match self.state.next(step) {
            Some(next) => self.state = next,
            None => self.lose(step),
        }
    }

    #[cold]
    fn lose(&mut self, step: Step) {
        self.mistake.get_or_insert((self.state, step));
        self.state = State::Lost;
        self.is_any_lost.store(true, Ordering::Relaxed);
    }

    /// Starts a command, which the caller has written to [`Io::sqe`].
    #[inline(always)]
    pub(crate) fn begin(&mut self, queue: QueueId, in_capsule: u32) {
        self.step(Step::Receive);
        self.queue = queue;
        self.in_capsule = in_capsule;
        self.data = Data::None;
        self.bytes = 0;
        // Few commands have work of another kind, which would have to be dropped.
        if !matches!(self.work, Work::Single) {
            self.work = Work::Single;
        }
        self.is_orphan = false;
        self.status = Status::SUCCESS;
        self.began = None;
    }

    /// Sets the result of the command.
    #[inline]
    pub(crate) fn answer(&mut self, status: Status, result: u64, puts: bool) {
        self.status = status;
        self.result = result;
        self.puts = puts;
        self.step(Step::Answer);
    }

    /// Sets this entry to answer an event request with the identifier `cid`. The request's own entry is free already.
    pub(crate) fn answer_event(&mut self, queue: QueueId, cid: u16, status: Status, result: u64) {
        self.step(Step::Event);
        self.queue = queue;
        self.sqe = zerocopy::FromZeros::new_zeroed();
        self.sqe.cid = cid.into();
        self.data = Data::None;
        self.puts = false;
        self.status = status;
        self.result = result;
    }

    /// Returns whether the entry is free and holds nothing that must be released.
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        matches!(self.state, State::Free)
            && !matches!(self.buffer, Some(DataBuffer::Buffer(_)))
            && self.second.is_none()
            && self.partner.is_none()
            && self.lock.is_none()
    }

    /// Returns the key that the host wants invalidated by the response.
    #[inline]
    pub(crate) const fn invalidates(&self) -> Option<u32> {
        match self.data {
            Data::Remote {
                key,
                invalidate: true,
                ..
            } => Some(key),
            Data::Remote { .. } | Data::Capsule { .. } | Data::None => None,
        }
    }

    /// Returns the next action after an event.
    #[inline]
    pub(crate) fn next(&mut self, event: Event, context: &Context<'_>) -> Do {
        match event {
            Event::Received => self.received(context),
            Event::Admitted => self.admitted(context),
            Event::Placed { is_late } => self.placed(is_late, context),
            Event::Fetched | Event::Unblocked => self.resume(context),
            Event::Locked => self.locked(context),
            Event::Joined => self.execute(context),
            Event::Again => self.again(context),
        }
    }

    #[inline]
    fn received(&mut self, context: &Context<'_>) -> Do {
        if self.sqe.opcode == opcode::RESERVATION_REPORT {
            return match permit(self.sqe.opcode, context.issuer, context.local) {
                Ok(()) => Do::Model,
                Err(status) => Do::Refuse(status),
            };
        }
        let bytes = match check(&self.sqe, context.issuer, context.local) {
            Ok(bytes) => bytes,
            Err(status) => return Do::Refuse(status),
        };
        self.used = LocalLists::used(context.issuer.list, self.sqe.nsid.get(), context.local);
        let offered = self.data.bytes();
        if offered != bytes {
            // The data buffer may be longer than the list of ranges.
            let is_list = matches!(self.sqe.opcode, opcode::DATASET_MANAGEMENT | opcode::COPY);
            if !is_list || offered < bytes {
                return Do::Refuse(Status::SGL_LENGTH.dnr());
            }
        }
        self.bytes = bytes;
        if context.local.is_limited {
            return Do::Limit;
        }
        self.place(context)
    }

    /// Gives the command its place for data, if that is its own page.
    #[inline]
    fn place(&mut self, context: &Context<'_>) -> Do {
        match self.needs() {
            0 => {
                self.buffer = Some(DataBuffer::Page(self.number));
                self.placed(false, context)
            }
            needs => Do::Buffer(needs),
        }
    }

    /// Continues a command that the limit of its namespace lets go on. The checks are repeated, as after any wait.
    #[cold]
    fn admitted(&mut self, context: &Context<'_>) -> Do {
        match self.check_again(context) {
            Ok(()) => self.place(context),
            Err(status) => Do::Refuse(status),
        }
    }

    #[inline]
    const fn is_in_capsule(&self) -> bool {
        matches!(self.data, Data::Capsule { .. })
    }

    /// Returns whether the command's data is in its own page.
    #[inline]
    const fn is_in_page(&self) -> bool {
        self.is_in_capsule() || self.bytes <= PAGE
    }

    /// Returns whether a disk reads into a second buffer for this command.
    #[inline]
    const fn is_double(&self) -> bool {
        matches!(
            self.sqe.opcode,
            opcode::COMPARE | opcode::COPY | opcode::VERIFY
        )
    }

    /// Returns the number of buffers that the command needs.
    #[inline]
    pub(super) fn needs(&self) -> usize {
        usize::from(!self.is_in_page()) + usize::from(self.is_double())
    }

    /// Takes the buffers that the command needs, by calling `take`.
    pub(super) fn take_buffers(&mut self, mut take: impl FnMut() -> Option<u32>) {
        self.buffer = if self.is_in_page() {
            Some(DataBuffer::Page(self.number))
        } else {
            take().map(DataBuffer::Buffer)
        };
        if self.is_double() {
            self.second = take();
        }
    }

    #[inline]
    fn placed(&mut self, is_late: bool, context: &Context<'_>) -> Do {
        let comes = matches!(self.sqe.direction(), Direction::ToController);
        if comes && self.bytes != 0 && !self.is_in_capsule() {
            return Do::Fetch;
        }
        self.step(Step::Ready);
        if is_late {
            self.resume(context)
        } else {
            self.execute(context)
        }
    }

    /// Continues after a wait. Refuses the command if its namespace has been replaced: the host's data belongs to the
    /// former one. The checks are repeated, because meanwhile the namespace may have become protected, reserved by
    /// another host, or shorter.
    fn resume(&mut self, context: &Context<'_>) -> Do {
        match self.check_again(context) {
            Ok(()) => self.execute(context),
            Err(status) => Do::Refuse(status),
        }
    }

    fn check_again(&self, context: &Context<'_>) -> Result<(), Status> {
        if self.used.serial != context.local.namespace.serial() {
            return Err(Status::INVALID_NAMESPACE.dnr());
        }
        check(&self.sqe, context.issuer, context.local).map(|_| ())
    }

    /// Executes the command. A command on a null disk completes at once.
    #[inline]
    fn execute(&mut self, context: &Context<'_>) -> Do {
        let local = context.local;
        if self.partner.is_some() {
            return Do::Pair;
        }
        if matches!(self.work, Work::Abandoned) {
            return Do::Refuse(Status::FAILED_FUSED.dnr());
        }
        let may_write = |block: &u64| self.sqe.may_write(*block);
        if !local.locks.is_empty() && self.lock.is_none() && local.locks.iter().any(may_write) {
            return Do::Block;
        }
        let is_null = matches!(local.handle, Handle::Null);
        if is_null && self.sqe.opcode == opcode::READ {
            // The command's own memory may still hold data of an earlier command of another host.
            if let Some(DataBuffer::Buffer(buffer)) = self.buffer.replace(DataBuffer::Zeros) {
                self.second = Some(buffer);
            }
            local.count(opcode::READ, self.bytes);
            return self.put();
        }
        if is_reservation(self.sqe.opcode) {
            return Do::Model;
        }
        if is_null {
            local.count(self.sqe.opcode, self.bytes);
            return match self.sqe.opcode {
                opcode::COMPARE => self.compare(DataBuffer::Zeros, context.memory),
                _ => self.done(),
            };
        }
        self.execute_on_disk(context)
    }

    fn execute_on_disk(&mut self, context: &Context<'_>) -> Do {
        let (sqe, namespace) = (&self.sqe, &*context.local.namespace);
        let shift = namespace.shift();
        let (offset, blocks) = (sqe.first_block() << shift, u64::from(sqe.blocks()) << shift);
        let buffer = self.buffer.unwrap_or(DataBuffer::Page(self.number));
        let bytes = self.bytes;
        Do::Disk(match sqe.opcode {
            opcode::READ => Operation::Read {
                offset,
                bytes,
                to: buffer,
            },
            opcode::WRITE => Operation::Write {
                offset,
                bytes,
                from: buffer,
                through: sqe.is_forced(),
            },
            opcode::FLUSH => Operation::Sync,
            opcode::WRITE_ZEROES => {
                let bytes = blocks;
                if sqe.is_forced() {
                    self.work = Work::Forced;
                }
                let may_deallocate = sqe.cdw12.get() & MAY_DEALLOCATE != 0;
                if may_deallocate && namespace.disk().zeroes_deallocated() {
                    Operation::Deallocate { offset, bytes }
                } else {
                    Operation::Zero { offset, bytes }
                }
            }
            _ => return self.begin_steps(context),
        })
    }

    /// Completes the command with success and data for the host.
    #[inline]
    pub(super) fn put(&mut self) -> Do {
        self.answer(Status::SUCCESS, 0, true);
        Do::Put
    }

    /// Completes the command with success and without data.
    #[inline]
    pub(super) fn done(&mut self) -> Do {
        self.answer(Status::SUCCESS, 0, false);
        Do::Respond
    }

    /// Returns the next action after the disk has completed all operations. This event needs neither the queue nor the
    /// namespace.
    pub(super) fn disk_done(&mut self, memory: &Memory) -> Do {
        if self.is_orphan {
            return Do::Drop;
        }
        if !self.status.is_success() {
            return Do::Refuse(self.status);
        }
        let is_whole = self.moved == self.bytes;
        match self.sqe.opcode {
            // The disk was too short for the operation: it has shrunk.
            opcode::READ | opcode::COMPARE | opcode::WRITE if !is_whole => {
                Do::Refuse(Status::LBA_RANGE.dnr())
            }
            opcode::READ => self.put(),
            opcode::COMPARE => self.compare_second(memory),
            opcode::VERIFY | opcode::COPY | opcode::DATASET_MANAGEMENT => Do::Again,
            opcode::WRITE_ZEROES if matches!(self.work, Work::Forced) => Do::Again,
            _ => self.done(),
        }
    }
}

impl Local {
    /// Adds a completed command to the counters.
    #[inline]
    pub(super) fn count(&self, opcode: u8, bytes: u32) {
        let tally = &*self.tally;
        match opcode {
            opcode::READ | opcode::COMPARE => {
                Tally::add(&tally.reads, 1);
                Tally::add(&tally.read_bytes, bytes.into());
            }
            opcode::WRITE => {
                Tally::add(&tally.writes, 1);
                Tally::add(&tally.written_bytes, bytes.into());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use strum::VariantArray;

    #[test]
    fn a_command_that_takes_a_step_of_another_state_is_lost_for_good_and_says_which() {
        let pairs = State::VARIANTS
            .iter()
            .flat_map(|state| Step::VARIANTS.iter().map(move |step| (*state, *step)));
        for (state, step) in pairs {
            let is_any_lost = Arc::new(AtomicBool::new(false));
            let mut io = Io::new(0, &is_any_lost);
            io.state = state;
            io.step(step);
            let is_bug = state.next(step).is_none();
            assert_eq!(
                (is_any_lost.load(Ordering::Relaxed), io.mistake),
                (is_bug, is_bug.then_some((state, step))),
                "{state:?} + {step:?}"
            );
            // No step leads out of the state LOST, and the first wrong step is the one that is reported.
            for later in Step::VARIANTS.iter().filter(|_| is_bug) {
                io.step(*later);
                assert_eq!(
                    (io.state(), io.mistake),
                    (State::Lost, Some((state, step))),
                    "{state:?} + {step:?}, then {later:?}"
                );
            }
        }
    }
}
