//! A worker's queues on SSDs that the process drives itself.
//!
//! ```text
//!   ask --> commands --> waiting (the queue is full) --> submitted --ring--> the SSD --poll--> done
//! ```
//!
//! An operation is one command, or several if the SSD takes no such long one ([`Part`]). Its data stays where the
//! network's device has put it: the worker's memory is mapped for the SSD, too. A queue and its mappings are made at
//! the first operation of a disk.
//!
//! If an SSD ends, the commands that it did not get fail. It is stopped, and then every command that has no answer
//! fails, too. Until it is stopped, it may access the memory of its commands, so they wait. A queue of an SSD that was
//! stopped is dropped, so that the function can be opened again.
//!
//! An SSD is silent if a queue has a command for longer than its time limit, and no other command of the queue has
//! ended for as long.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use driver::{DmaBuffer, Instant, Iova, MappedBuffer};
use hw_nvme::{Cause, Ended as Answer, Piece, QueuePair, SubmitError, block_command, command};
use nix::errno::Errno;
use udapl::reactor::{FileOperation, ReactorError};

use super::ended::Ended;
use crate::disk::ssd::{LIMIT, Ssd, SsdDisk};
use crate::nvme::command::{Range, io as opcode};
use crate::nvme::{Sqe, Status};

/// Time after which a sleeping worker polls a queue that has no interrupt.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Number of completions that are taken at a time.
const TAKEN: usize = 32;
/// Number of lists of ranges for Dataset Management, each of one range.
const LISTS: u16 = 256;
/// Interval at which a queue with outstanding commands is checked, and at which a stop is repeated.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Time after which a worker that was refused a queue asks for one again.
const REFUSED: Duration = Duration::from_secs(5);
/// Maximum number of bytes that a command deallocates.
const MOST_DEALLOCATED: u64 = 1 << 30;
/// Deallocate attribute of Dataset Management.
const DEALLOCATE: u32 = 1 << 2;
/// Bit of a cookie: the command is a part of an operation. Bits 31:0 are the command of the host, 52:32 the bytes.
const IS_PART: u64 = 1 << 63;
/// Bit of a cookie: the command has a list, whose number is in bits 47:32.
const HAS_LIST: u64 = 1 << 62;

/// A command that was not submitted yet.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    sqe: Sqe,
    data: Option<Piece>,
    cookie: u64,
    /// Range to be deallocated: first block, and number of blocks.
    range: Option<(u64, u32)>,
}

/// An operation of several commands.
#[derive(Debug)]
struct Part {
    io: u32,
    left: u32,
    bytes: usize,
    status: Status,
}

/// A queue on an SSD.
struct Queue {
    ssd: Arc<Ssd>,
    pair: QueuePair,
    /// The worker's memory, mapped for the SSD.
    memory: Vec<MappedBuffer>,
    /// Lists of ranges, and the numbers of those that are free.
    lists: DmaBuffer,
    free_lists: Vec<u16>,
    waiting: VecDeque<Wanted>,
    /// Cookies of commands that cannot be submitted.
    broken: Vec<u64>,
    parts: Vec<Part>,
    /// Time at which a command was submitted to an idle queue, or ended.
    moved: Instant,
    next_check: Instant,
    /// True once the SSD was stopped.
    is_over: bool,
}

/// Outcome of an attempt to submit a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Submitted,
    NoRoom,
    Impossible,
}

/// The queues of a worker.
#[derive(Default)]
pub(super) struct SsdQueues {
    all: Vec<Queue>,
    /// The worker's memory, in which the data of commands is.
    memory: Vec<DmaBuffer>,
    done: VecDeque<Ended>,
    /// SSDs that have refused a queue, and the time at which they are asked again.
    refused: Vec<(Arc<Ssd>, Instant)>,
}

/// Returns the error of an operation whose SSD failed it, or has ended.
fn failed(ssd: &Ssd, operation: &'static str, errno: Errno) -> ReactorError {
    ReactorError::Transfer {
        path: ssd.name().into(),
        operation,
        offset: 0,
        bytes: 0,
        source: errno.into(),
    }
}

/// Returns the result of an operation from the status and the bytes of its commands. A disk that is too short moves
/// fewer bytes.
fn result_of(ssd: &Ssd, status: Status, bytes: usize) -> Result<usize, ReactorError> {
    /// Type of a status of the medium: SCT 2h.
    const MEDIUM: u16 = 2;
    if status.is_success() {
        return Ok(bytes);
    }
    tracing::debug!(ssd = ssd.name(), %status, "a command failed");
    let errno = match status.code() {
        code if code == Status::LBA_RANGE.code() => return Ok(0),
        code if code == Status::CAPACITY.code() => Errno::ENOSPC,
        code if code == Status::WRITE_PROTECTED.code() => Errno::EROFS,
        code if code == Status::INVALID_OPCODE.code() => Errno::EOPNOTSUPP,
        code if code >> 8 == MEDIUM => Errno::EIO,
        _ if hw_nvme::may_repeat(status) => Errno::EAGAIN,
        _ => Errno::EIO,
    };
    Err(failed(ssd, "a command", errno))
}

impl SsdQueues {
    /// Sets the memory of operations. Queues that are made from now on map it.
    pub(super) fn set_memory(&mut self, memory: &[DmaBuffer]) {
        self.memory = memory.to_vec();
    }

    /// Returns whether there is no queue, and no operation that has ended.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.done.is_empty()
    }

    /// Begins an operation of a command of the host.
    pub(super) fn ask(
        &mut self,
        disk: &SsdDisk,
        operation: FileOperation<'_>,
        io: u32,
        now: Instant,
    ) -> Result<(), ReactorError> {
        let ssd = disk.ssd();
        if disk.has_ended() {
            return Err(failed(ssd, "an operation", Errno::ENODEV));
        }
        let same = |queue: &Queue| Arc::ptr_eq(&queue.ssd, ssd);
        let at = match self.all.iter().position(same) {
            Some(at) => at,
            None => self.make(ssd, now)?,
        };
        self.all[at].ask(disk, operation, io, now)
    }

    /// Makes a queue. Returns its index.
    #[cold]
    fn make(&mut self, ssd: &Arc<Ssd>, now: Instant) -> Result<usize, ReactorError> {
        self.refused.retain(|(_, until)| *until > now);
        let no_queue = || failed(ssd, "a queue", Errno::ENODEV);
        if self.refused.iter().any(|(one, _)| Arc::ptr_eq(one, ssd)) {
            return Err(no_queue());
        }
        let bytes = usize::from(LISTS) * Range::BYTES as usize; // CAST: widening.
        let made = ssd.queue(&self.memory, bytes);
        let made = made.map_err(|error| {
            tracing::error!(ssd = ssd.name(), %error, "no queue for this worker");
            self.refused.push((Arc::clone(ssd), now + REFUSED));
            no_queue()
        })?;
        self.all.push(Queue {
            ssd: Arc::clone(ssd),
            pair: made.pair,
            memory: made.memory,
            lists: made.own,
            free_lists: (0..LISTS).rev().collect(),
            waiting: VecDeque::new(),
            broken: Vec::new(),
            parts: Vec::new(),
            moved: now,
            next_check: now + CHECK_INTERVAL,
            is_over: false,
        });
        Ok(self.all.len() - 1)
    }

    /// Submits what waits, and takes completions.
    pub(super) fn poll(&mut self, now: Instant) {
        let mut has_ended = false;
        for queue in &mut self.all {
            queue.poll(now, &mut self.done);
            has_ended |= queue.is_over;
        }
        if has_ended {
            self.all.retain(|queue| !queue.is_over);
        }
    }

    /// Returns an operation that has ended.
    #[inline]
    pub(super) fn next(&mut self) -> Option<Ended> {
        self.done.pop_front()
    }

    /// Prepares a sleep. Returns whether nothing has ended, so that the caller may sleep until an interrupt of
    /// [`Self::interrupts`].
    pub(super) fn may_sleep(&mut self, now: Instant) -> bool {
        for queue in &mut self.all {
            if let Some(interrupt) = queue.pair.interrupt() {
                let _signals = interrupt.take();
            }
        }
        self.poll(now);
        self.done.is_empty()
    }

    /// Returns the descriptors of the queues' interrupts.
    pub(super) fn interrupts(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
        let all = self.all.iter();
        all.filter_map(|queue| queue.pair.interrupt().map(driver::Interrupt::as_fd))
    }

    /// Returns whether a queue with outstanding commands has no interrupt, so that the worker has to poll.
    pub(super) fn has_polled(&self) -> bool {
        let mut all = self.all.iter();
        all.any(|queue| queue.pair.outstanding() > 0 && queue.pair.interrupt().is_none())
    }

    /// Returns the number of commands that have not ended.
    pub(super) fn outstanding(&self) -> usize {
        let of = |queue: &Queue| queue.pair.outstanding() + queue.waiting.len();
        self.all.iter().map(of).sum()
    }

    /// Ends all queues and mappings. If a command is outstanding, its SSD is stopped first.
    pub(super) fn clear(&mut self) {
        for queue in self.all.drain(..) {
            if queue.pair.outstanding() > 0 && !queue.ssd.stop(Cause::Stopped) {
                // The SSD may still access the memory of its commands.
                core::mem::forget(queue);
                continue;
            }
            let Queue {
                ssd, pair, memory, ..
            } = queue;
            if pair.outstanding() == 0 {
                ssd.delete_queue(pair);
            }
            drop(memory);
        }
        self.memory.clear();
    }
}

impl Drop for SsdQueues {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Queue {
    fn ask(
        &mut self,
        disk: &SsdDisk,
        operation: FileOperation<'_>,
        io: u32,
        now: Instant,
    ) -> Result<(), ReactorError> {
        let (nsid, shift) = (disk.nsid(), disk.shift());
        match operation {
            FileOperation::Read {
                offset,
                buffer,
                buffer_offset,
                bytes,
            } => {
                let at = self.iova(buffer, buffer_offset)?;
                self.transfer((opcode::READ, false), disk, offset, (at, bytes), io, now)
            }
            FileOperation::Write {
                offset,
                buffer,
                buffer_offset,
                bytes,
                through,
            } => {
                let at = self.iova(buffer, buffer_offset)?;
                self.transfer((opcode::WRITE, through), disk, offset, (at, bytes), io, now)
            }
            FileOperation::Sync => {
                self.submit(command(opcode::FLUSH, nsid), None, io.into(), now);
                Ok(())
            }
            FileOperation::Zero { offset, bytes } => {
                if !self.ssd.zeroes() {
                    return Err(failed(&self.ssd, "zero", Errno::EOPNOTSUPP));
                }
                // Without a limit of its own, Write Zeroes has that of transfers (Linux `nvme_config_discard`).
                let most = u64::from(self.ssd.max_transfer()) >> shift;
                let (first, blocks) = (offset >> shift, bytes >> shift);
                let count = u32::try_from(blocks.div_ceil(most)).unwrap_or(u32::MAX);
                let cookie = self.cookie(io, count);
                for number in 0..u64::from(count) {
                    let from = number * most;
                    let length = u32::try_from((blocks - from).min(most)).unwrap_or(u32::MAX);
                    let sqe =
                        block_command(opcode::WRITE_ZEROES, nsid, first + from, length, false);
                    self.submit(sqe, None, cookie, now);
                }
                Ok(())
            }
            FileOperation::Deallocate { offset, bytes } => {
                let most = MOST_DEALLOCATED >> shift;
                let (first, blocks) = (offset >> shift, bytes >> shift);
                let count = u32::try_from(blocks.div_ceil(most)).unwrap_or(u32::MAX);
                let cookie = self.cookie(io, count);
                for number in 0..u64::from(count) {
                    let from = number * most;
                    let length = u32::try_from((blocks - from).min(most)).unwrap_or(u32::MAX);
                    let mut sqe = command(opcode::DATASET_MANAGEMENT, nsid);
                    sqe.cdw11 = DEALLOCATE.into();
                    let wanted = Wanted {
                        sqe,
                        data: None,
                        cookie,
                        range: Some((first + from, length)),
                    };
                    self.push(wanted, now);
                }
                Ok(())
            }
        }
    }

    /// Returns the I/O address of a place in the worker's memory for the SSD.
    #[inline]
    fn iova(&self, buffer: &DmaBuffer, offset: usize) -> Result<Iova, ReactorError> {
        let same = |one: &&MappedBuffer| one.buffer().address() == buffer.address();
        let mapped = self.memory.iter().find(same);
        let mapped = mapped.ok_or_else(|| failed(&self.ssd, "an address", Errno::EFAULT))?;
        Ok(mapped.iova().advance(offset))
    }

    /// Begins a read or a write.
    #[inline]
    fn transfer(
        &mut self,
        (opcode, through): (u8, bool),
        disk: &SsdDisk,
        offset: u64,
        (iova, bytes): (Iova, usize),
        io: u32,
        now: Instant,
    ) -> Result<(), ReactorError> {
        let shift = disk.shift();
        // CAST: at most 1 MiB.
        let most = self.ssd.max_transfer() as usize;
        let (mut from, count) = (0, bytes.div_ceil(most));
        let cookie = self.cookie(io, u32::try_from(count).unwrap_or(u32::MAX));
        while from < bytes {
            let length = u32::try_from((bytes - from).min(most)).unwrap_or(u32::MAX);
            let first = (offset + from as u64) >> shift; // CAST: widening.
            let sqe = block_command(opcode, disk.nsid(), first, length >> shift, through);
            let piece = Piece {
                iova: iova.advance(from),
                bytes: length,
            };
            let cookie = cookie | u64::from(length) << 32;
            self.submit(sqe, Some(piece), cookie, now);
            from += length as usize; // CAST: widening.
        }
        Ok(())
    }

    /// Returns the cookie of an operation of this many commands.
    #[inline]
    fn cookie(&mut self, io: u32, count: u32) -> u64 {
        if count == 1 {
            return io.into();
        }
        self.parts.push(Part {
            io,
            left: count,
            bytes: 0,
            status: Status::SUCCESS,
        });
        u64::from(io) | IS_PART
    }

    #[inline]
    fn submit(&mut self, sqe: Sqe, data: Option<Piece>, cookie: u64, now: Instant) {
        let wanted = Wanted {
            sqe,
            data,
            cookie,
            range: None,
        };
        self.push(wanted, now);
    }

    /// Submits a command, or lets it wait.
    #[inline]
    fn push(&mut self, wanted: Wanted, now: Instant) {
        if !self.waiting.is_empty() {
            return self.waiting.push_back(wanted);
        }
        if self.pair.outstanding() == 0 {
            self.moved = now;
        }
        match self.try_submit(&wanted, now) {
            Attempt::Submitted => {}
            Attempt::NoRoom => self.waiting.push_back(wanted),
            Attempt::Impossible => self.broken.push(wanted.cookie),
        }
    }

    /// Submits a command if there is room.
    #[inline]
    fn try_submit(&mut self, wanted: &Wanted, now: Instant) -> Attempt {
        let (mut sqe, mut cookie, mut data) = (wanted.sqe, wanted.cookie, wanted.data);
        if let Some((first, blocks)) = wanted.range {
            let Some(number) = self.free_lists.last().copied() else {
                return Attempt::NoRoom;
            };
            let range = Range {
                attributes: 0.into(),
                blocks: blocks.into(),
                first: first.into(),
            };
            let at = usize::from(number) * Range::BYTES as usize; // CAST: widening.
            self.lists.write_obj(at, &range);
            data = Some(Piece {
                iova: self.lists.iova().advance(at),
                bytes: Range::BYTES,
            });
            // The field is the number of ranges, less one.
            sqe.cdw10 = 0.into();
            cookie |= HAS_LIST | u64::from(number) << 32;
        }
        match self.pair.submit(sqe, data.as_slice(), cookie, now) {
            Ok(()) => {
                if wanted.range.is_some() {
                    self.free_lists.pop();
                }
                Attempt::Submitted
            }
            // The next poll notices the end of the controller.
            Err(SubmitError::Full | SubmitError::Ended(_)) => Attempt::NoRoom,
            Err(SubmitError::Data(error)) => {
                // The pages of a command are the worker's own, so this is a bug.
                tracing::error!(ssd = self.ssd.name(), %error, "the data of a command");
                Attempt::Impossible
            }
        }
    }

    /// Submits what waits, tells the SSD of it, and takes completions.
    fn poll(&mut self, now: Instant, done: &mut VecDeque<Ended>) {
        while self.pair.has_completion() {
            let mut answers = [Answer::NONE; TAKEN];
            let Ok(count) = self.pair.poll(&mut answers) else {
                break;
            };
            for answer in &answers[..count] {
                self.take(answer.cookie, answer.status, done);
            }
            self.moved = now;
            if count < TAKEN {
                break;
            }
        }
        while let Some(wanted) = self.waiting.front().copied() {
            match self.try_submit(&wanted, now) {
                Attempt::Submitted => {}
                Attempt::NoRoom => break,
                Attempt::Impossible => self.broken.push(wanted.cookie),
            }
            self.waiting.pop_front();
        }
        for cookie in core::mem::take(&mut self.broken) {
            self.take(cookie, Status::INTERNAL.dnr(), done);
        }
        self.pair.ring();
        if now >= self.next_check {
            self.next_check = now + CHECK_INTERVAL;
            self.check(now, done);
        }
    }

    /// Checks the SSD, and follows its end.
    #[cold]
    fn check(&mut self, now: Instant, done: &mut VecDeque<Ended>) {
        if self.pair.outstanding() > 0 {
            let is_silent = now.since(self.moved) > LIMIT;
            self.ssd.check(&self.pair, now, is_silent);
        }
        if let Err(cause) = self.pair.poll(&mut []) {
            self.end(cause, done);
        }
    }

    /// Handles the end of a command.
    fn take(&mut self, cookie: u64, status: Status, done: &mut VecDeque<Ended>) {
        // CAST: the fields of a cookie.
        #[expect(clippy::cast_possible_truncation, reason = "the fields of a cookie")]
        let (io, mut bytes) = (cookie as u32, (cookie >> 32 & 0x1f_ffff) as usize);
        if cookie & HAS_LIST != 0 {
            // CAST: the field of a cookie.
            #[expect(clippy::cast_possible_truncation, reason = "the field of a cookie")]
            self.free_lists.push((cookie >> 32) as u16);
            bytes = 0;
        }
        let mut status = status;
        if cookie & IS_PART != 0 {
            let Some(at) = self.parts.iter().position(|part| part.io == io) else {
                return;
            };
            let part = &mut self.parts[at];
            part.left -= 1;
            part.bytes += bytes;
            if part.status.is_success() {
                part.status = status;
            }
            if part.left > 0 {
                return;
            }
            let part = self.parts.swap_remove(at);
            (status, bytes) = (part.status, part.bytes);
        }
        let result = result_of(&self.ssd, status, bytes);
        done.push_back(Ended { io, result });
    }

    /// Fails the commands that an SSD did not get, because it has ended; stops it, and fails the others.
    fn end(&mut self, cause: Cause, done: &mut VecDeque<Ended>) {
        let waiting = core::mem::take(&mut self.waiting);
        for wanted in waiting {
            self.take(wanted.cookie, Status::INTERNAL.dnr(), done);
        }
        if !self.ssd.stop(cause) {
            return;
        }
        self.is_over = true;
        for cookie in self.pair.unanswered().unwrap_or_default() {
            self.take(cookie, Status::INTERNAL.dnr(), done);
        }
    }
}
