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
//! If an SSD ends, it is stopped, and then every command that has no answer fails. Until it is stopped, it may access
//! the memory of its commands, so they wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use driver::{DmaBuffer, Instant, Iova, MappedBuffer};
use hw_nvme::{Cause, Ended as Answer, Piece, QueuePair, SubmitError, block_command, command};
use nix::errno::Errno;
use udapl::reactor::{FileOperation, ReactorError};

use super::ended::Ended;
use crate::disk::ssd::{Ssd, SsdDisk};
use crate::nvme::command::{Range, io as opcode};
use crate::nvme::{Sqe, Status};

/// Time after which a sleeping worker polls a queue that has no interrupt.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Number of completions that are taken at a time.
const TAKEN: usize = 32;
/// Number of lists of ranges for Dataset Management, each of one range.
const LISTS: u16 = 256;
/// Number of polls between two checks of a queue whose commands are outstanding.
const POLLS_PER_CHECK: u32 = 1 << 16;
/// Maximum number of blocks of Write Zeroes.
const MOST_ZEROES: u64 = 1 << 16;
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
    parts: Vec<Part>,
    polls: u32,
    has_ended: bool,
}

/// The queues of a worker.
#[derive(Default)]
pub(super) struct SsdQueues {
    all: Vec<Queue>,
    /// The worker's memory, in which the data of commands is.
    memory: Vec<DmaBuffer>,
    done: VecDeque<Ended>,
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

/// Returns the errno for a status, from which the host's status follows.
fn errno_of(status: Status) -> Errno {
    match Status::of_field(status.field() & 0x7fff) {
        Status::CAPACITY => Errno::ENOSPC,
        Status::WRITE_PROTECTED => Errno::EROFS,
        Status::INVALID_OPCODE => Errno::EOPNOTSUPP,
        _ if hw_nvme::may_repeat(status) => Errno::EAGAIN,
        _ => Errno::EIO,
    }
}

impl SsdQueues {
    /// Sets the memory of operations. Queues that are made from now on map it.
    pub(super) fn set_memory(&mut self, memory: &[DmaBuffer]) {
        self.memory = memory.to_vec();
    }

    /// Returns whether there is no queue.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Begins an operation of a command of the host.
    pub(super) fn ask(
        &mut self,
        disk: &SsdDisk,
        operation: FileOperation<'_>,
        io: u32,
        now: Instant,
    ) -> Result<(), ReactorError> {
        let same = |queue: &Queue| Arc::ptr_eq(&queue.ssd, disk.ssd());
        let at = match self.all.iter().position(same) {
            Some(at) => at,
            None => self.make(disk.ssd())?,
        };
        let queue = &mut self.all[at];
        if queue.has_ended {
            return Err(failed(&queue.ssd, "an operation", Errno::ENODEV));
        }
        queue.ask(disk, operation, io, now)
    }

    /// Makes a queue. Returns its index.
    #[cold]
    fn make(&mut self, ssd: &Arc<Ssd>) -> Result<usize, ReactorError> {
        let refused = |error: &dyn core::fmt::Display| {
            tracing::error!(ssd = ssd.name(), %error, "no queue for this worker");
            failed(ssd, "a queue", Errno::ENODEV)
        };
        let bytes = usize::from(LISTS) * Range::BYTES as usize; // CAST: widening.
        let (pair, lists) = ssd.queue(bytes).map_err(|error| refused(&error))?;
        let memory = self.memory.iter().map(|one| one.map_for(ssd.function()));
        let memory = memory.collect::<Result<Vec<_>, _>>();
        let memory = match memory {
            Ok(memory) => memory,
            Err(error) => {
                ssd.delete_queue(pair);
                return Err(refused(&error));
            }
        };
        self.all.push(Queue {
            ssd: Arc::clone(ssd),
            pair,
            memory,
            lists,
            free_lists: (0..LISTS).rev().collect(),
            waiting: VecDeque::new(),
            parts: Vec::new(),
            polls: 0,
            has_ended: false,
        });
        Ok(self.all.len() - 1)
    }

    /// Submits what waits, and takes completions.
    pub(super) fn poll(&mut self, now: Instant) {
        for queue in &mut self.all {
            queue.poll(now, &mut self.done);
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
            queue.ssd.check(&queue.pair, now);
            queue.poll(now, &mut self.done);
        }
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

    /// Returns the number of operations that have not ended.
    pub(super) fn outstanding(&self) -> usize {
        let of = |queue: &Queue| queue.pair.outstanding() + queue.waiting.len();
        self.all.iter().map(of).sum()
    }

    /// Ends all queues and mappings. If a command is outstanding, its SSD is stopped first.
    pub(super) fn clear(&mut self) {
        for queue in self.all.drain(..) {
            if queue.pair.outstanding() > 0 && !queue.has_ended {
                let is_stopped = queue.ssd.stop(Cause::Stopped);
                if !is_stopped {
                    // The SSD may still access the memory of its commands.
                    core::mem::forget(queue);
                    continue;
                }
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
                let (first, blocks) = (offset >> shift, bytes >> shift);
                let count = u32::try_from(blocks.div_ceil(MOST_ZEROES)).unwrap_or(u32::MAX);
                let cookie = self.cookie(io, count);
                for number in 0..u64::from(count) {
                    let from = number * MOST_ZEROES;
                    // CAST: at most 65,536.
                    let length = (blocks - from).min(MOST_ZEROES) as u32;
                    let sqe =
                        block_command(opcode::WRITE_ZEROES, nsid, first + from, length, false);
                    self.submit(sqe, None, cookie, now);
                }
                Ok(())
            }
            FileOperation::Deallocate { offset, bytes } => {
                let (first, blocks) = (offset >> shift, bytes >> shift);
                let count = u32::try_from(blocks.div_ceil(u32::MAX.into())).unwrap_or(u32::MAX);
                let cookie = self.cookie(io, count);
                for number in 0..u64::from(count) {
                    let from = number * u64::from(u32::MAX);
                    let length = u32::try_from(blocks - from).unwrap_or(u32::MAX);
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
        if !self.waiting.is_empty() || !self.try_submit(&wanted, now) {
            self.waiting.push_back(wanted);
        }
    }

    /// Submits a command if there is room.
    #[inline]
    fn try_submit(&mut self, wanted: &Wanted, now: Instant) -> bool {
        let (mut sqe, mut cookie, mut data) = (wanted.sqe, wanted.cookie, wanted.data);
        let mut list = None;
        if let Some((first, blocks)) = wanted.range {
            let Some(number) = self.free_lists.last().copied() else {
                return false;
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
            sqe.cdw10 = 0.into();
            cookie |= HAS_LIST | u64::from(number) << 32;
            list = Some(number);
        }
        match self.pair.submit(sqe, data.as_slice(), cookie, now) {
            Ok(()) => {
                if list.is_some() {
                    self.free_lists.pop();
                }
                true
            }
            // The end of the controller is noticed by the next poll.
            Err(SubmitError::Full | SubmitError::Ended(_)) => false,
            Err(SubmitError::Data(error)) => {
                // The pages of a command are the worker's own, so this is a bug.
                tracing::error!(ssd = self.ssd.name(), %error, "the data of a command");
                false
            }
        }
    }

    fn poll(&mut self, now: Instant, done: &mut VecDeque<Ended>) {
        loop {
            let mut answers = [Answer::NONE; TAKEN];
            let count = match self.pair.poll(&mut answers) {
                Ok(count) => count,
                Err(cause) => return self.end(cause, done),
            };
            for answer in &answers[..count] {
                self.take(answer.cookie, answer.status, done);
            }
            while let Some(wanted) = self.waiting.front().copied() {
                if !self.try_submit(&wanted, now) {
                    break;
                }
                self.waiting.pop_front();
            }
            self.pair.ring();
            if count < TAKEN {
                break;
            }
        }
        if self.pair.outstanding() > 0 {
            self.polls += 1;
            if self.polls >= POLLS_PER_CHECK {
                self.polls = 0;
                self.ssd.check(&self.pair, now);
            }
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
        let result = if status.is_success() {
            Ok(bytes)
        } else {
            tracing::debug!(ssd = self.ssd.name(), %status, "a command failed");
            Err(failed(&self.ssd, "a command", errno_of(status)))
        };
        done.push_back(Ended { io, result });
    }

    /// Stops an SSD that has ended, and fails its commands.
    #[cold]
    fn end(&mut self, cause: Cause, done: &mut VecDeque<Ended>) {
        if !self.ssd.stop(cause) {
            return;
        }
        self.has_ended = true;
        let unanswered = self.pair.unanswered().unwrap_or_default();
        let waiting = core::mem::take(&mut self.waiting);
        let cookies = unanswered
            .into_iter()
            .chain(waiting.iter().map(|wanted| wanted.cookie));
        for cookie in cookies.collect::<Vec<_>>() {
            self.take(cookie, Status::INTERNAL.dnr(), done);
        }
    }
}
