//! What disks have done, and commands that take them several steps.
//!
//! Ranges of Dataset Management, and the namespaces of a Flush for all, are asked for at once and counted as they
//! end. Verify and Copy go through their second buffer a piece at a time, and each piece is permitted anew: since the
//! last one the namespace may be protected, reserved by another host, out of reach, shorter, or another one.

use udapl::reactor::{FileOperation, ReactorError};
use zerocopy::FromBytes;

use super::disks::Ended;
use super::execute::{count, inside, permit, status_of};
use super::io::{Io, Step, Work};
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

/// Blocks between a disk and the second buffer of an I/O.
struct Piece {
    first: u64,
    blocks: u32,
    is_write: bool,
}

impl Piece {
    fn operation<'a>(
        &self,
        memory: &'a Memory,
        buffer: u32,
        io: &Io,
        shift: u8,
    ) -> FileOperation<'a> {
        let (region, from) = memory.at(Spot::Buffer(buffer));
        // CAST: 32 bits fit.
        let (buffer_offset, bytes) = (from as usize, (self.blocks << shift) as usize);
        let (offset, buffer) = (self.first << shift, &region.buffer);
        if self.is_write {
            FileOperation::Write {
                offset,
                buffer,
                buffer_offset,
                bytes,
                through: io.sqe.is_forced(),
            }
        } else {
            FileOperation::Read {
                offset,
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
            opcode::DATASET_MANAGEMENT => Ok(self.deallocate(at)),
            opcode::VERIFY => self.begin_verify(at),
            opcode::COPY => self.begin_copy(at),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        };
        self.go_on(at, next.unwrap_or_else(Next::Failed))
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

    /// Asks the disk for a piece of a command, if that is permitted now.
    fn ask(&mut self, at: u32, piece: &Piece) -> Result<Next, Status> {
        let Self {
            ios,
            queues,
            shelves,
            memory,
            disks,
            ..
        } = self;
        let io = &ios[at as usize];
        let (_, attached, local) = Self::parts(queues, shelves, io)?;
        permit(io.sqe.opcode, attached, local)?;
        inside(&local.namespace, piece.first, piece.blocks.into())?;
        let buffer = io.second.ok_or(Status::INTERNAL.dnr())?;
        let operation = piece.operation(memory, buffer, io, local.namespace.shift());
        Ok(Next::of(
            disks.ask(&local.handle, operation, at),
            io.sqe.opcode,
        ))
    }

    /// The first of a fused pair is compared.
    pub(super) fn compare_first(&mut self, at: u32) -> Result<(), WorkerError> {
        match self.read_to_compare(at).unwrap_or_else(Next::Failed) {
            // A null disk.
            Next::Done => self.compare_with(at, Spot::Zeros),
            next @ (Next::Asked(_) | Next::Failed(_)) => self.go_on(at, next),
        }
    }

    fn read_to_compare(&mut self, at: u32) -> Result<Next, Status> {
        let io = &self.ios[at as usize];
        let piece = Piece {
            first: io.sqe.first_block(),
            blocks: io.sqe.blocks(),
            is_write: false,
        };
        if let Some(lock) = &io.lock {
            let serial = lock.namespace().serial();
            self.shift(at, serial)?;
        }
        self.ask(at, &piece)
    }

    /// The blocks are here, at this place. The first of a fused pair is followed by the second if they are equal.
    pub(super) fn compare_with(&mut self, at: u32, blocks: Spot) -> Result<(), WorkerError> {
        let is_equal = self.is_equal(at, blocks);
        if is_equal && let Some(second) = self.ios[at as usize].partner {
            return self.compared(at, second);
        }
        let next = if is_equal {
            Next::Done
        } else {
            Next::Failed(Status::COMPARE.dnr())
        };
        self.go_on(at, next)
    }

    /// Whether what the host sent is what the disk has, which is at this place.
    fn is_equal(&self, at: u32, blocks: Spot) -> bool {
        /// Compared at a time.
        const CHUNK: usize = 512;
        let io = &self.ios[at as usize];
        let Some(sent) = io.spot else {
            return false;
        };
        let ((one, a), (other, b)) = (self.memory.at(sent), self.memory.at(blocks));
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

    fn begin_verify(&mut self, at: u32) -> Result<Next, Status> {
        let io = &self.ios[at as usize];
        let (_, _, local) = Self::parts(&self.queues, &mut self.shelves, io)?;
        let serial = local.namespace.serial();
        let io = &mut self.ios[at as usize];
        let first = io.sqe.first_block();
        io.work = Work::Verify(serial, first, first + u64::from(io.sqe.blocks()));
        self.verify(at)
    }

    /// Reads the next piece of what is verified.
    fn verify(&mut self, at: u32) -> Result<Next, Status> {
        let Work::Verify(namespace, next, end) = self.ios[at as usize].work else {
            return Err(Status::INTERNAL.dnr());
        };
        if next >= end {
            return Ok(Next::Done);
        }
        let most = MAX_TRANSFER >> self.shift(at, namespace)?;
        let piece = Piece {
            first: next,
            blocks: u32::try_from(end - next).map_or(most, |left| left.min(most)),
            is_write: false,
        };
        self.ask(at, &piece)
    }

    fn verified_piece(&mut self, at: u32, bytes: u32) -> Result<Next, Status> {
        let Work::Verify(namespace, next, end) = self.ios[at as usize].work else {
            return Err(Status::INTERNAL.dnr());
        };
        // The disk has become shorter, perhaps in the middle of a block.
        let blocks = bytes >> self.shift(at, namespace)?;
        if blocks == 0 {
            return Err(Status::LBA_RANGE.dnr());
        }
        self.ios[at as usize].work = Work::Verify(namespace, next + u64::from(blocks), end);
        self.verify(at)
    }

    fn begin_copy(&mut self, at: u32) -> Result<Next, Status> {
        let io = &self.ios[at as usize];
        let ranges: Vec<CopyRange> = list(&self.memory, io.spot, io.bytes);
        let (_, _, local) = Self::parts(&self.queues, &mut self.shelves, io)?;
        copied(&io.sqe, &ranges, &local.namespace)?;
        let namespace = local.namespace.serial();
        self.ios[at as usize].work = Work::Copy {
            namespace,
            range: 0,
            done: 0,
            written: 0,
            blocks: 0,
            is_writing: false,
        };
        self.copy(at)
    }

    /// A source range of a Copy.
    fn copy_range(&self, at: u32, range: u16) -> Option<CopyRange> {
        let io = &self.ios[at as usize];
        let place = u32::from(range) * CopyRange::BYTES;
        if place + CopyRange::BYTES > io.bytes {
            return None;
        }
        let (region, from) = self.memory.at(io.spot?);
        Some(region.buffer.read_obj((from + place) as usize)) // CAST: 32 bits fit.
    }

    /// The next step of a Copy: a piece of a range is read, or what was read is written.
    fn copy(&mut self, at: u32) -> Result<Next, Status> {
        let Work::Copy {
            namespace,
            range,
            done,
            written,
            is_writing,
            ..
        } = self.ios[at as usize].work
        else {
            return Err(Status::INTERNAL.dnr());
        };
        let most = MAX_TRANSFER >> self.shift(at, namespace)?;
        let Some(from) = self.copy_range(at, range) else {
            return Ok(Next::Done);
        };
        let io = &mut self.ios[at as usize];
        let piece = Piece {
            first: if is_writing {
                io.sqe.first_block() + u64::from(written)
            } else {
                from.first.get() + u64::from(done)
            },
            blocks: (u32::from(from.blocks.get()) + 1 - done).min(most),
            is_write: is_writing,
        };
        if let Work::Copy { blocks, .. } = &mut io.work {
            *blocks = piece.blocks;
        }
        self.ask(at, &piece)
    }

    /// What a step of a Copy has moved.
    fn copied_piece(&mut self, at: u32, bytes: u32) -> Result<Next, Status> {
        let Work::Copy {
            namespace,
            range,
            blocks,
            ..
        } = self.ios[at as usize].work
        else {
            return Err(Status::INTERNAL.dnr());
        };
        // The disk has become shorter. The rest of the buffer is what another command left there.
        if bytes != blocks << self.shift(at, namespace)? {
            return Err(Status::LBA_RANGE.dnr());
        }
        let of_range = self.copy_range(at, range);
        if let Work::Copy {
            range,
            done,
            written,
            is_writing,
            ..
        } = &mut self.ios[at as usize].work
        {
            if *is_writing {
                *done += blocks;
                *written += blocks;
                if of_range.is_none_or(|one| *done > u32::from(one.blocks.get())) {
                    *range += 1;
                    *done = 0;
                }
            }
            *is_writing = !*is_writing;
        }
        self.copy(at)
    }

    /// Flush for all namespaces: none of them is flushed if one of them may not be.
    pub(super) fn flush_all(&mut self, at: u32) -> Result<(), WorkerError> {
        let Self {
            ios,
            queues,
            shelves,
            disks,
            ..
        } = self;
        let queue = queues.get(ios[at as usize].queue);
        let attached = queue.and_then(|queue| queue.attached.as_ref());
        let Some((attached, shelf)) = attached.and_then(|one| Some((one, one.shelf?))) else {
            return self.refuse(at, Status::INVALID_OPCODE.dnr());
        };
        let refused = shelves
            .all(shelf)
            .find_map(|one| permit(opcode::FLUSH, attached, one).err());
        if let Some(status) = refused {
            return self.refuse(at, status);
        }
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
        let (bytes, second) = (io.bytes, io.second);
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
                return match second {
                    Some(buffer) => self.compare_with(at, Spot::Buffer(buffer)),
                    None => self.refuse(at, Status::INTERNAL.dnr()),
                };
            }
            opcode::VERIFY => self.verified_piece(at, moved).unwrap_or_else(Next::Failed),
            opcode::COPY => self.copied_piece(at, moved).unwrap_or_else(Next::Failed),
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

    /// Bytes of a block, as a power of two, of the namespace with this serial number.
    ///
    /// # Errors
    /// The I/O's namespace is another one now, or there is none.
    fn shift(&mut self, at: u32, serial: u64) -> Result<u8, Status> {
        let io = &self.ios[at as usize];
        let (_, _, local) = Self::parts(&self.queues, &mut self.shelves, io)?;
        if local.namespace.serial() != serial {
            return Err(Status::INVALID_NAMESPACE.dnr());
        }
        Ok(local.namespace.shift())
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
