//! Commands that need several operations of a disk.
//!
//! The ranges of Dataset Management are deallocated one after the other, so that a command has at most one operation at
//! a disk. Verify and Copy use their second buffer for one piece at a time. Each piece is checked again: since the last
//! piece, the namespace may have become write-protected, reserved by another host, inaccessible or shorter, or may have
//! been replaced by another one. A Write Zeroes with Force Unit Access ends with a flush.
//!
//! A list of ranges is read only once from the memory into which the host's data arrives. That copy is both checked and
//! used. Otherwise the host could change the ranges after the check.

use super::command::{Context, Do, Io, Operation};
use super::memory::{DataBuffer, Memory};
use super::permit::{check_copy, inside, is_reservation, permit};
use super::work::{Copy, Work};
use crate::disk::Handle;
use crate::nvme::Status;
use crate::nvme::command::{CopyRange, Range, io as opcode};

/// Attribute of Dataset Management: deallocate. The other attributes are hints.
const DEALLOCATE: u32 = 1 << 2;

impl Io {
    /// Starts a command that needs several operations.
    pub(super) fn begin_steps(&mut self, context: &Context<'_>) -> Do {
        let begun = match self.sqe.opcode {
            opcode::COMPARE => self.read_to_compare(context),
            opcode::DATASET_MANAGEMENT => self.deallocate(context),
            opcode::VERIFY => {
                let next = self.sqe.first_block();
                let end = next + u64::from(self.sqe.blocks());
                self.work = Work::Verify { next, end };
                self.verify(context)
            }
            opcode::COPY => self.begin_copy(context),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        };
        begun.unwrap_or_else(Do::Refuse)
    }

    /// Continues a command whose last operation has completed.
    pub(super) fn again(&mut self, context: &Context<'_>) -> Do {
        if self.used.serial != context.local.namespace.serial() {
            return Do::Refuse(Status::INVALID_NAMESPACE.dnr());
        }
        let next = match &self.work {
            Work::Deallocate(_) => self.deallocate_next(context),
            Work::Verify { .. } => self.verified(context),
            Work::Copy(_) => self.copied(context),
            Work::Forced => {
                self.work = Work::Single;
                Ok(Do::Disk(Operation::Sync))
            }
            Work::Single | Work::Abandoned => Err(Status::INTERNAL.dnr()),
        };
        next.unwrap_or_else(Do::Refuse)
    }

    /// Starts the read of the locked block of a pair, which is then compared. Completes a Preempt and Abort.
    pub(super) fn locked(&mut self, context: &Context<'_>) -> Do {
        if is_reservation(self.sqe.opcode) {
            return self.done();
        }
        let locked = self.lock.as_ref().map(|lock| lock.namespace().serial());
        let now = context.local.namespace.serial();
        if locked != Some(now) {
            return Do::Refuse(Status::INVALID_NAMESPACE.dnr());
        }
        self.read_to_compare(context).unwrap_or_else(Do::Refuse)
    }

    fn read_to_compare(&mut self, context: &Context<'_>) -> Result<Do, Status> {
        let (first, blocks) = (self.sqe.first_block(), self.sqe.blocks());
        let read = self.piece(context, first, blocks, false)?;
        if matches!(context.local.handle, Handle::Null) {
            return Ok(self.compare(DataBuffer::Zeros, context.memory));
        }
        Ok(read)
    }

    /// Compares the host's data with the blocks in the second buffer.
    pub(super) fn compare_second(&mut self, memory: &Memory) -> Do {
        match self.second {
            Some(buffer) => self.compare(DataBuffer::Buffer(buffer), memory),
            None => Do::Refuse(Status::INTERNAL.dnr()),
        }
    }

    /// Compares the host's data with a disk's blocks. If they are equal, the second of a pair follows the first.
    pub(super) fn compare(&mut self, blocks: DataBuffer, memory: &Memory) -> Do {
        let is_equal = |sent| memory.is_equal(sent, blocks, self.bytes);
        if !self.buffer.is_some_and(is_equal) {
            return Do::Refuse(Status::COMPARE.dnr());
        }
        if self.partner.is_some() {
            Do::Compared
        } else {
            self.done()
        }
    }

    /// Returns the transfer of blocks between a disk and the second buffer, if it is permitted now.
    fn piece(
        &self,
        context: &Context<'_>,
        first: u64,
        blocks: u32,
        is_write: bool,
    ) -> Result<Do, Status> {
        let local = context.local;
        permit(self.sqe.opcode, context.issuer, local)?;
        inside(&local.namespace, first, blocks.into())?;
        let buffer = DataBuffer::Buffer(self.second.ok_or(Status::INTERNAL.dnr())?);
        let shift = local.namespace.shift();
        let (offset, bytes) = (first << shift, blocks << shift);
        Ok(Do::Disk(if is_write {
            Operation::Write {
                offset,
                bytes,
                from: buffer,
                through: self.sqe.is_forced(),
            }
        } else {
            Operation::Read {
                offset,
                bytes,
                to: buffer,
            }
        }))
    }

    fn deallocate(&mut self, context: &Context<'_>) -> Result<Do, Status> {
        if self.sqe.cdw11.get() & DEALLOCATE == 0 {
            // Without the deallocate attribute, Dataset Management carries only hints, which we ignore.
            return Ok(self.done());
        }
        let namespace = &*context.local.namespace;
        let list = self
            .buffer
            .map(|list| context.memory.list(list, self.bytes));
        let ranges: Vec<Range> = list.unwrap_or_default();
        for range in &ranges {
            inside(namespace, range.first.get(), range.blocks.get().into())?;
        }
        if !namespace.disk().deallocates() {
            return Ok(self.done());
        }
        let wanted = ranges.iter().filter(|range| range.blocks.get() != 0);
        let wanted = wanted.map(|range| (range.first.get(), range.blocks.get()));
        // The ranges are reversed, because `deallocate_next` takes them from the end.
        self.work = Work::Deallocate(wanted.rev().collect());
        self.deallocate_next(context)
    }

    /// Deallocates the next range, or completes the command after the last.
    fn deallocate_next(&mut self, context: &Context<'_>) -> Result<Do, Status> {
        let Work::Deallocate(ranges) = &mut self.work else {
            return Err(Status::INTERNAL.dnr());
        };
        let Some((first, blocks)) = ranges.pop() else {
            return Ok(self.done());
        };
        let namespace = &*context.local.namespace;
        permit(self.sqe.opcode, context.issuer, context.local)?;
        inside(namespace, first, blocks.into())?;
        let shift = namespace.shift();
        Ok(Do::Disk(Operation::Deallocate {
            offset: first << shift,
            bytes: u64::from(blocks) << shift,
        }))
    }

    /// Starts the read of the next piece of a Verify.
    fn verify(&mut self, context: &Context<'_>) -> Result<Do, Status> {
        let Work::Verify { next, end } = self.work else {
            return Err(Status::INTERNAL.dnr());
        };
        if next >= end {
            return Ok(self.done());
        }
        let most = context.memory.most_bytes() >> context.local.namespace.shift();
        let blocks = u32::try_from(end - next).map_or(most, |left| left.min(most));
        self.piece(context, next, blocks, false)
    }

    fn verified(&mut self, context: &Context<'_>) -> Result<Do, Status> {
        let blocks = self.moved >> context.local.namespace.shift();
        // The disk has shrunk, perhaps to the middle of a block.
        if blocks == 0 {
            return Err(Status::LBA_RANGE.dnr());
        }
        if let Work::Verify { next, .. } = &mut self.work {
            *next += u64::from(blocks);
        }
        self.verify(context)
    }

    fn begin_copy(&mut self, context: &Context<'_>) -> Result<Do, Status> {
        let list = self
            .buffer
            .map(|list| context.memory.list(list, self.bytes));
        let ranges: Vec<CopyRange> = list.unwrap_or_default();
        check_copy(&self.sqe, &ranges, &context.local.namespace)?;
        let ranges = ranges
            .iter()
            .map(|one| (one.first.get(), u32::from(one.blocks.get()) + 1));
        self.work = Work::Copy(Box::new(Copy {
            ranges: ranges.collect(),
            range: 0,
            done: 0,
            written: 0,
            blocks: 0,
            is_writing: false,
        }));
        self.copy(context)
    }

    /// Starts the next operation of a Copy: the read of a piece of a range, or the write of the piece that was read.
    fn copy(&mut self, context: &Context<'_>) -> Result<Do, Status> {
        let Work::Copy(copy) = &mut self.work else {
            return Err(Status::INTERNAL.dnr());
        };
        let Some((first, blocks)) = copy.ranges.get(copy.range).copied() else {
            return Ok(self.done());
        };
        let most = context.memory.most_bytes() >> context.local.namespace.shift();
        copy.blocks = (blocks - copy.done).min(most);
        let (blocks, is_writing) = (copy.blocks, copy.is_writing);
        let first = if is_writing {
            self.sqe.first_block() + u64::from(copy.written)
        } else {
            first + u64::from(copy.done)
        };
        self.piece(context, first, blocks, is_writing)
    }

    /// Handles the completion of an operation of a Copy.
    fn copied(&mut self, context: &Context<'_>) -> Result<Do, Status> {
        let Work::Copy(copy) = &mut self.work else {
            return Err(Status::INTERNAL.dnr());
        };
        // The disk has shrunk. The rest of the buffer holds the data of an earlier command.
        if self.moved != copy.blocks << context.local.namespace.shift() {
            return Err(Status::LBA_RANGE.dnr());
        }
        if copy.is_writing {
            copy.done += copy.blocks;
            copy.written += copy.blocks;
            if copy
                .ranges
                .get(copy.range)
                .is_none_or(|(_, blocks)| copy.done >= *blocks)
            {
                copy.range += 1;
                copy.done = 0;
            }
        }
        copy.is_writing = !copy.is_writing;
        self.copy(context)
    }
}
