//! What disks have done, and commands that take them several steps.
//!
//! Ranges of Dataset Management, and the namespaces of a Flush for all, are asked for at once and counted as they
//! end. Verify and Copy go through their second buffer a piece at a time.

use udapl::reactor::{FileOperation, ReactorError};
use zerocopy::FromBytes;

use super::disks::Ended;
use super::execute::{count, inside, status_of};
use super::io::{Step, Work};
use super::layout::{Memory, Spot};
use super::queue::State as QueueState;
use super::worker::{Worker, WorkerError};
use crate::disk::Handle;
use crate::model::{MAX_TRANSFER, Namespace};
use crate::nvme::command::{CopyRange, Range, io as opcode};
use crate::nvme::{Sqe, Status};

/// Attribute of Dataset Management: deallocate. The others are hints.
const DEALLOCATE: u32 = 1 << 2;

/// What a step comes to.
pub(super) enum Next {
    /// The disk is asked for so many things.
    Asked(u32),
    /// There is nothing left to do.
    Done,
    /// It cannot go on.
    Failed(Status),
}

impl Next {
    /// What a disk said that an I/O asked.
    pub(super) fn of(asked: Result<u32, ReactorError>, opcode: u8) -> Self {
        match asked {
            Ok(0) => Self::Done,
            Ok(count) => Self::Asked(count),
            Err(error) => Self::Failed(status_of(&error, opcode)),
        }
    }
}

/// A place on a disk and in memory.
struct Piece<'a> {
    memory: &'a Memory,
    buffer: u32,
    offset: u64,
    bytes: u32,
}

impl<'a> Piece<'a> {
    fn operation(&self, write: bool, through: bool) -> FileOperation<'a> {
        let (region, from) = self.memory.at(Spot::Buffer(self.buffer));
        // CAST: 32 bits fit.
        let (buffer, buffer_offset, bytes) = (&region.buffer, from as usize, self.bytes as usize);
        if write {
            FileOperation::Write {
                offset: self.offset,
                buffer,
                buffer_offset,
                bytes,
                through,
            }
        } else {
            FileOperation::Read {
                offset: self.offset,
                buffer,
                buffer_offset,
                bytes,
            }
        }
    }
}

/// The source ranges of a Copy, checked: how many blocks they are together.
fn copied(sqe: &Sqe, ranges: &[CopyRange], namespace: &Namespace) -> Result<u32, Status> {
    let mut blocks = 0;
    for range in ranges {
        let count = u32::from(range.blocks.get()) + 1;
        inside(namespace, range.first.get(), count.into())?;
        blocks += count;
    }
    if blocks > u32::from(crate::model::COPY_BLOCKS) {
        return Err(Status::COPY_SIZE.dnr());
    }
    inside(namespace, sqe.first_block(), blocks.into())?;
    Ok(blocks)
}

impl Worker {
    /// A command whose disk is asked in a way of its own.
    pub(super) fn execute_steps(&mut self, at: u32) -> Result<(), WorkerError> {
        let next = match self.ios[at as usize].sqe.opcode {
            opcode::COMPARE => self.read_to_compare(at),
            opcode::DATASET_MANAGEMENT => self.deallocate(at),
            opcode::VERIFY => {
                let io = &mut self.ios[at as usize];
                let first = io.sqe.first_block();
                io.work = Work::Verify(first, first + u64::from(io.sqe.blocks()));
                self.verify(at)
            }
            opcode::COPY => self.begin_copy(at),
            _ => Next::Failed(Status::INVALID_OPCODE.dnr()),
        };
        self.go_on(at, next)
    }

    #[inline]
    pub(super) fn go_on(&mut self, at: u32, next: Next) -> Result<(), WorkerError> {
        match next {
            Next::Asked(count) => {
                let io = &mut self.ios[at as usize];
                io.pending = count;
                io.step(Step::Start);
            }
            Next::Done => self.respond_with(at, Status::SUCCESS, 0),
            Next::Failed(status) => return self.refuse(at, status),
        }
        Ok(())
    }

    /// Asks the disk of an I/O's namespace; `make` says for what.
    fn ask<'a>(
        &'a mut self,
        at: u32,
        make: impl FnOnce(&'a Memory, &Namespace) -> Option<FileOperation<'a>>,
    ) -> Next {
        let Self {
            ios,
            queues,
            shelves,
            memory,
            disks,
            ..
        } = self;
        let io = &ios[at as usize];
        let local = match Self::parts(queues, shelves, io) {
            Ok((_, _, local)) => local,
            Err(status) => return Next::Failed(status),
        };
        let Some(operation) = make(memory, &local.namespace) else {
            return Next::Failed(Status::INTERNAL.dnr());
        };
        Next::of(disks.ask(&local.handle, operation, at), io.sqe.opcode)
    }

    /// The first of a fused pair is compared.
    pub(super) fn compare_first(&mut self, at: u32) -> Result<(), WorkerError> {
        let next = match self.read_to_compare(at) {
            // A disk that does nothing.
            Next::Done => match self.ios[at as usize].partner {
                Some(second) => return self.compared(at, second),
                None => Next::Done,
            },
            next @ (Next::Asked(_) | Next::Failed(_)) => next,
        };
        self.go_on(at, next)
    }

    fn read_to_compare(&mut self, at: u32) -> Next {
        let io = &self.ios[at as usize];
        let (first, bytes, second) = (io.sqe.first_block(), io.bytes, io.second);
        self.ask(at, |memory, namespace| {
            let piece = Piece {
                memory,
                buffer: second?,
                offset: first << namespace.shift(),
                bytes,
            };
            Some(piece.operation(false, false))
        })
    }

    /// Whether what the host sent is what the disk has.
    fn compare(&self, at: u32) -> bool {
        /// Compared at a time.
        const CHUNK: usize = 512;
        let io = &self.ios[at as usize];
        let (Some(one), Some(other)) = (io.spot, io.second) else {
            return false;
        };
        let ((one, a), (other, b)) = (self.memory.at(one), self.memory.at(Spot::Buffer(other)));
        let (mut left, mut right) = ([0; CHUNK], [0; CHUNK]);
        // CAST: 32 bits fit.
        (0..io.bytes as usize).step_by(CHUNK).all(|from| {
            one.buffer.read_bytes(a as usize + from, &mut left);
            other.buffer.read_bytes(b as usize + from, &mut right);
            left == right
        })
    }

    fn deallocate(&mut self, at: u32) -> Next {
        let Self {
            ios,
            queues,
            shelves,
            memory,
            disks,
            ..
        } = self;
        let io = &ios[at as usize];
        if io.sqe.cdw11.get() & DEALLOCATE == 0 {
            // Hints.
            return Next::Done;
        }
        let local = match Self::parts(queues, shelves, io) {
            Ok((_, _, local)) => local,
            Err(status) => return Next::Failed(status),
        };
        if matches!(local.handle, Handle::Null) {
            return Next::Done;
        }
        let ranges: Vec<Range> = list(memory, io.spot, io.bytes);
        let namespace = &*local.namespace;
        let is_inside =
            |range: &Range| inside(namespace, range.first.get(), range.blocks.get().into());
        if let Some(status) = ranges.iter().find_map(|range| is_inside(range).err()) {
            return Next::Failed(status);
        }
        if !namespace.disk().deallocates() {
            return Next::Done;
        }
        let mut asked = 0;
        for range in ranges.iter().filter(|range| range.blocks.get() != 0) {
            let operation = FileOperation::Deallocate {
                offset: range.first.get() << namespace.shift(),
                bytes: u64::from(range.blocks.get()) << namespace.shift(),
            };
            match disks.ask(&local.handle, operation, at) {
                Ok(one) => asked += one,
                // Those before it are at the disk; what it comes to is told when they have ended.
                Err(error) if asked != 0 => {
                    ios[at as usize].status = status_of(&error, opcode::DATASET_MANAGEMENT);
                    break;
                }
                Err(error) => return Next::Failed(status_of(&error, opcode::DATASET_MANAGEMENT)),
            }
        }
        if asked == 0 {
            Next::Done
        } else {
            Next::Asked(asked)
        }
    }

    /// Reads the next piece of what is verified.
    fn verify(&mut self, at: u32) -> Next {
        let io = &self.ios[at as usize];
        let (Work::Verify(next, end), second) = (io.work, io.second) else {
            return Next::Failed(Status::INTERNAL.dnr());
        };
        if next >= end {
            return Next::Done;
        }
        self.ask(at, |memory, namespace| {
            let shift = namespace.shift();
            let bytes = u64::from(MAX_TRANSFER).min((end - next) << shift);
            let piece = Piece {
                memory,
                buffer: second?,
                offset: next << shift,
                bytes: u32::try_from(bytes).ok()?,
            };
            Some(piece.operation(false, false))
        })
    }

    fn begin_copy(&mut self, at: u32) -> Next {
        let io = &self.ios[at as usize];
        let ranges: Vec<CopyRange> = list(&self.memory, io.spot, io.bytes);
        let blocks = match Self::parts(&self.queues, &mut self.shelves, io) {
            Ok((_, _, local)) => copied(&io.sqe, &ranges, &local.namespace),
            Err(status) => Err(status),
        };
        if let Err(status) = blocks {
            return Next::Failed(status);
        }
        self.ios[at as usize].work = Work::Copy {
            range: 0,
            done: 0,
            written: 0,
            is_writing: false,
        };
        self.copy(at)
    }

    /// The next step of a Copy: a piece of a range is read, or what was read is written.
    fn copy(&mut self, at: u32) -> Next {
        let io = &self.ios[at as usize];
        let Work::Copy {
            range,
            done,
            written,
            is_writing,
        } = io.work
        else {
            return Next::Failed(Status::INTERNAL.dnr());
        };
        let ranges: Vec<CopyRange> = list(&self.memory, io.spot, io.bytes);
        let Some(from) = ranges.get(usize::from(range)) else {
            return Next::Done;
        };
        let left = u32::from(from.blocks.get()) + 1 - done;
        let source = from.first.get() + u64::from(done);
        let target = io.sqe.first_block() + u64::from(written);
        let (second, through) = (io.second, io.sqe.is_forced());
        self.ask(at, |memory, namespace| {
            let blocks = left.min(MAX_TRANSFER >> namespace.shift());
            let block = if is_writing { target } else { source };
            let piece = Piece {
                memory,
                buffer: second?,
                offset: block << namespace.shift(),
                bytes: blocks << namespace.shift(),
            };
            Some(piece.operation(is_writing, through))
        })
    }

    /// What a step of a Copy has moved.
    fn copied_piece(&mut self, at: u32, bytes: u32) -> Next {
        let io = &self.ios[at as usize];
        let ranges: Vec<CopyRange> = list(&self.memory, io.spot, io.bytes);
        let shift = match Self::parts(&self.queues, &mut self.shelves, io) {
            Ok((_, _, local)) => local.namespace.shift(),
            Err(status) => return Next::Failed(status),
        };
        let io = &mut self.ios[at as usize];
        if let Work::Copy {
            range,
            done,
            written,
            is_writing,
        } = &mut io.work
        {
            if *is_writing {
                let blocks = bytes >> shift;
                *done += blocks;
                *written += blocks;
                let of_range = ranges.get(usize::from(*range));
                if of_range.is_none_or(|one| *done > u32::from(one.blocks.get())) {
                    *range += 1;
                    *done = 0;
                }
            }
            *is_writing = !*is_writing;
        }
        self.copy(at)
    }

    /// Flush for all namespaces.
    pub(super) fn flush_all(&mut self, at: u32) -> Result<(), WorkerError> {
        let Self {
            ios,
            queues,
            shelves,
            disks,
            ..
        } = self;
        let queue = queues.get(ios[at as usize].queue);
        let shelf = queue.and_then(|queue| queue.attached.as_ref()?.shelf);
        let Some(shelf) = shelf else {
            return self.refuse(at, Status::INVALID_OPCODE.dnr());
        };
        let mut asked = 0;
        for local in shelves.all(shelf) {
            match disks.ask(&local.handle, FileOperation::Sync, at) {
                Ok(one) => asked += one,
                Err(error) => ios[at as usize].status = status_of(&error, opcode::FLUSH),
            }
        }
        let status = ios[at as usize].status;
        let next = match (asked, status.is_success()) {
            (0, true) => Next::Done,
            (0, false) => Next::Failed(status),
            _ => Next::Asked(asked),
        };
        self.go_on(at, next)
    }

    /// A disk has done what it was asked for.
    pub(super) fn disk_done(&mut self, ended: Ended) -> Result<(), WorkerError> {
        let at = ended.io;
        let io = &mut self.ios[at as usize];
        let sqe = io.sqe;
        let moved = match ended.result {
            Ok(bytes) => u32::try_from(bytes).unwrap_or(u32::MAX),
            Err(error) => {
                tracing::warn!(worker = self.id, nsid = sqe.nsid.get(), opcode = sqe.opcode, %error, "disk");
                io.status = status_of(&error, sqe.opcode);
                0
            }
        };
        io.pending -= 1;
        if io.pending != 0 {
            return Ok(());
        }
        io.step(Step::Ended);
        let queue = self.queues.get(io.queue);
        if queue.is_none_or(|queue| queue.state() == QueueState::Ending) {
            return self.drop_io(at);
        }
        let status = io.status;
        if !status.is_success() {
            return self.refuse(at, status);
        }
        let (bytes, work) = (io.bytes, io.work);
        let is_whole = moved == bytes;
        let next = match sqe.opcode {
            // The disk has become shorter.
            opcode::READ | opcode::COMPARE | opcode::WRITE if !is_whole => {
                Next::Failed(Status::LBA_RANGE.dnr())
            }
            opcode::READ => {
                self.tally(at, bytes);
                self.respond_with_data(at);
                return Ok(());
            }
            opcode::COMPARE => {
                self.tally(at, bytes);
                let is_equal = self.compare(at);
                if is_equal && let Some(second) = self.ios[at as usize].partner {
                    return self.compared(at, second);
                }
                if is_equal {
                    Next::Done
                } else {
                    Next::Failed(Status::COMPARE.dnr())
                }
            }
            opcode::VERIFY => match work {
                _ if moved == 0 => Next::Failed(Status::LBA_RANGE.dnr()),
                Work::Verify(next, end) => {
                    let shift = self.shift(at);
                    self.ios[at as usize].work =
                        Work::Verify(next + u64::from(moved >> shift), end);
                    self.verify(at)
                }
                Work::Single | Work::Abandoned | Work::Copy { .. } => Next::Done,
            },
            opcode::COPY if moved == 0 => Next::Failed(Status::LBA_RANGE.dnr()),
            opcode::COPY => self.copied_piece(at, moved),
            _ => {
                self.tally(at, bytes);
                Next::Done
            }
        };
        self.go_on(at, next)
    }

    fn tally(&mut self, at: u32, bytes: u32) {
        let io = &self.ios[at as usize];
        if let Ok((_, _, local)) = Self::parts(&self.queues, &mut self.shelves, io) {
            count(&local.tally, io.sqe.opcode, bytes);
        }
    }

    fn shift(&mut self, at: u32) -> u8 {
        let io = &self.ios[at as usize];
        let parts = Self::parts(&self.queues, &mut self.shelves, io);
        parts.map_or(crate::disk::SHIFTS[1], |(_, _, local)| {
            local.namespace.shift()
        })
    }
}

/// What a host sent as a list.
fn list<T: FromBytes>(memory: &Memory, spot: Option<Spot>, bytes: u32) -> Vec<T> {
    let Some(spot) = spot else {
        return Vec::new();
    };
    let (region, from) = memory.at(spot);
    // CAST: 32 bits fit.
    let (from, bytes) = (from as usize, bytes as usize);
    let places = (0..bytes / size_of::<T>()).map(|place| from + place * size_of::<T>());
    places.map(|place| region.buffer.read_obj(place)).collect()
}
