//! What can be done with a file, and how far that has come.
//!
//! An [`Operation`] owns what the kernel touches for it, the file and the memory, and builds the entry for what is
//! still to do. The kernel's answer is a step:
//!
//! ```text
//!   entry --> answer --> all bytes moved, or the file's end, or no bytes to move: Ended
//!                    \-> some bytes moved, or interrupted:                        Again, with the rest
//!                    \-> not supported, and there is another way to the same:     Again, that way
//!                    \-> any other refusal:                                       Failed
//! ```
//!
//! Other ways there are for space. A block device is told to discard by a command of io_uring's (Linux 6.12); without
//! that, or on a device that cannot discard, a hole is punched, which zeroes by unmapping. A file system that cannot
//! zero a range (tmpfs) punches a hole, and allocates it again.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};
use nix::errno::Errno;
use nix::libc;
use zerocopy::IntoBytes;

use crate::bytes::Bytes;
use crate::dma::{DmaBuffer, Lease};
use crate::error::ReactorError;
use crate::file::File;
use crate::span::Span;

/// Names a queued operation. Later ones compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub(crate) u64);

/// What to do with a file.
#[derive(Clone, Copy, Debug)]
pub enum FileOperation<'a> {
    /// Bytes of the file go to the buffer; fewer than asked for only at the end of the file.
    Read {
        /// Where in the file.
        offset: u64,
        /// Whereto.
        buffer: &'a DmaBuffer,
        /// Where in the buffer.
        buffer_offset: usize,
        /// How many.
        bytes: usize,
    },
    /// Bytes of the buffer go to the file: all of them.
    Write {
        /// Where in the file.
        offset: u64,
        /// Wherefrom.
        buffer: &'a DmaBuffer,
        /// Where in the buffer.
        buffer_offset: usize,
        /// How many.
        bytes: usize,
        /// It is on the medium when it ends (`RWF_DSYNC`; on a block device FUA, or a write and a flush).
        through: bool,
    },
    /// What was written before, by operations that have ended, is on the medium when it ends (`fdatasync`).
    Sync,
    /// Bytes read as zeroes, and the space stays allocated where the file system can; the file does not grow.
    Zero {
        /// Where in the file.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// The space is given back. Bytes of a file read as zeroes then, and the file does not shrink; a block device is
    /// told to discard, and what its bytes read as is its own affair.
    Deallocate {
        /// Where in the file.
        offset: u64,
        /// How many.
        bytes: u64,
    },
}

impl<'a> FileOperation<'a> {
    /// Reads from byte `offset` of the file on, to memory that a device can reach: as many bytes as there are in `to`.
    ///
    /// Neither copies nor references are made: `to` may be a region of an adapter ([`DmaMemory::bytes`]), and its
    /// memory stays mapped until the operation has ended. A file that was opened with `O_DIRECT` wants an offset, a
    /// length and memory at multiples of its block size ([`Geometry`](crate::Geometry)).
    ///
    /// [`DmaMemory::bytes`]: crate::DmaMemory::bytes
    #[inline]
    #[must_use]
    pub const fn read(offset: u64, to: Bytes<'a>) -> Self {
        let (buffer, buffer_offset, bytes) = to.place();
        Self::Read {
            offset,
            buffer,
            buffer_offset,
            bytes,
        }
    }

    /// Writes all bytes of `from` to byte `offset` of the file on. What was said of [`read`](Self::read) holds here.
    #[inline]
    #[must_use]
    pub const fn write(offset: u64, from: Bytes<'a>) -> Self {
        Self::writing(offset, from, false)
    }

    /// As [`write`](Self::write); it is on the medium when it ends.
    #[inline]
    #[must_use]
    pub const fn write_through(offset: u64, from: Bytes<'a>) -> Self {
        Self::writing(offset, from, true)
    }

    const fn writing(offset: u64, from: Bytes<'a>, through: bool) -> Self {
        let (buffer, buffer_offset, bytes) = from.place();
        Self::Write {
            offset,
            buffer,
            buffer_offset,
            bytes,
            through,
        }
    }

    /// Where in the file, and how many bytes.
    #[inline]
    fn range(&self) -> (u64, u64) {
        match *self {
            // CAST: usize has at most 64 bits on every target Rust has.
            Self::Read { offset, bytes, .. } | Self::Write { offset, bytes, .. } => {
                (offset, bytes as u64)
            }
            Self::Sync => (0, 0),
            Self::Zero { offset, bytes } | Self::Deallocate { offset, bytes } => (offset, bytes),
        }
    }

    /// The memory it moves bytes of: buffer, offset, bytes.
    #[inline]
    fn memory(&self) -> Option<(&DmaBuffer, usize, usize)> {
        match *self {
            Self::Read {
                buffer,
                buffer_offset,
                bytes,
                ..
            }
            | Self::Write {
                buffer,
                buffer_offset,
                bytes,
                ..
            } => Some((buffer, buffer_offset, bytes)),
            Self::Sync | Self::Zero { .. } | Self::Deallocate { .. } => None,
        }
    }
}

/// What the kernel is asked for: the operation, or another way to the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Read,
    Write {
        through: bool,
    },
    Sync,
    ZeroRange,
    /// In place of `ZeroRange`: a hole, which is allocated next.
    ZeroByHole,
    ZeroAllocate,
    Discard,
    /// In place of `Discard`, and what gives a file's space back.
    Hole,
}

/// The longest piece of a transfer that the kernel is asked for at once; it does no more than 2 GiB.
const LONGEST: u64 = 1 << 30;

/// `BLOCK_URING_CMD_DISCARD` of `linux/blkdev.h`: `_IO(0x12, 0)`. Start and length are where other entries have `addr`
/// and `addr3`.
const DISCARD: u32 = 0x1200;

/// An operation on a file, from when it is queued to its end.
pub(crate) struct Operation {
    pub(crate) token: Token,
    pub(crate) tag: u64,
    file: File,
    /// Of reads and writes: the buffer's bytes, what is left to move among them, and what keeps them.
    memory: Option<(Span, Arc<Lease>)>,
    buffer_offset: usize,
    way: Way,
    offset: u64,
    /// Bytes still to do.
    left: u64,
    /// Bytes moved.
    done: usize,
}

/// What an answer of the kernel's makes of an operation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is more to do.
    Again,
    Ended,
    Failed(Errno),
}

/// Where the kernel has what it was given beforehand.
pub(crate) trait Pinned {
    /// The buffer that a range of memory lies in.
    fn buffer(&self, address: usize, bytes: usize) -> Option<u16>;
    /// The file.
    fn file(&self, file: &File) -> Option<i32>;
}

impl Operation {
    #[inline]
    pub(crate) fn new(
        file: &File,
        operation: FileOperation<'_>,
        token: Token,
        tag: u64,
    ) -> Result<Self, ReactorError> {
        let memory = operation.memory();
        if let Some((buffer, buffer_offset, bytes)) = memory
            && !buffer.contains(buffer_offset, bytes)
        {
            return Err(ReactorError::Bounds {
                path: file.path().to_owned(),
                buffer_offset,
                bytes,
                len: buffer.len(),
            });
        }
        let (offset, left) = operation.range();
        let way = match operation {
            FileOperation::Read { .. } => Way::Read,
            FileOperation::Write { through, .. } => Way::Write { through },
            FileOperation::Sync => Way::Sync,
            FileOperation::Zero { .. } => Way::ZeroRange,
            FileOperation::Deallocate { .. } if file.is_block_device() => Way::Discard,
            FileOperation::Deallocate { .. } => Way::Hole,
        };
        let new = Self {
            token,
            tag,
            file: file.clone(),
            memory: memory.map(|(buffer, ..)| (buffer.span(), buffer.lease())),
            buffer_offset: memory.map_or(0, |(_, at, _)| at),
            way,
            offset,
            left,
            done: 0,
        };
        // Offsets are signed in the kernel, and -1 is "where the file stands".
        match offset.checked_add(left) {
            Some(end) if i64::try_from(end).is_ok() => Ok(new),
            _ => Err(new.error(Errno::EINVAL)),
        }
    }

    pub(crate) const fn done(&self) -> usize {
        self.done
    }

    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// Whether it moves bytes: all that a ring takes which polls.
    pub(crate) const fn is_transfer(&self) -> bool {
        matches!(self.way, Way::Read | Way::Write { .. })
    }

    /// True if there is nothing for the kernel to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0 && self.way != Way::Sync
    }

    /// The entry for what is still to do. It names the file's descriptor and, for reads and writes, memory inside the
    /// buffer, both of which `self` owns; other entries name no memory.
    #[inline]
    pub(crate) fn entry(&self, pinned: &impl Pinned) -> squeue::Entry {
        let (fd, flags) = match pinned.file(&self.file) {
            // An index of the ring's table takes the descriptor's place.
            Some(index) => (Fd(index), squeue::Flags::FIXED_FILE),
            None => (Fd(self.file.as_fd().as_raw_fd()), squeue::Flags::empty()),
        };
        let entry = match self.way {
            Way::Read => {
                let (pointer, length, pinned) = self.piece(pinned);
                match pinned {
                    Some(index) => opcode::ReadFixed::new(fd, pointer, length, index)
                        .offset(self.offset)
                        .build(),
                    None => opcode::Read::new(fd, pointer, length)
                        .offset(self.offset)
                        .build(),
                }
            }
            Way::Write { through } => {
                let (pointer, length, pinned) = self.piece(pinned);
                let flags = if through { libc::RWF_DSYNC } else { 0 };
                match pinned {
                    Some(index) => opcode::WriteFixed::new(fd, pointer, length, index)
                        .offset(self.offset)
                        .rw_flags(flags)
                        .build(),
                    None => opcode::Write::new(fd, pointer, length)
                        .offset(self.offset)
                        .rw_flags(flags)
                        .build(),
                }
            }
            Way::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Way::ZeroRange => self.allocate(fd, libc::FALLOC_FL_ZERO_RANGE),
            Way::ZeroByHole | Way::Hole => self.allocate(fd, libc::FALLOC_FL_PUNCH_HOLE),
            Way::ZeroAllocate => self.allocate(fd, 0),
            Way::Discard => {
                let mut length = [0; 16];
                length[..8].copy_from_slice(self.left.as_bytes());
                opcode::UringCmd16::new(fd, DISCARD)
                    .addr(Some(self.offset))
                    .cmd(length)
                    .build()
            }
        };
        entry.flags(flags)
    }

    /// The next piece of a read or a write in memory: where, how long, and which pinned buffer it is of.
    #[inline]
    fn piece(&self, pinned: &impl Pinned) -> (*mut u8, u32, Option<u16>) {
        // PANIC: LONGEST fits both.
        let length = u32::try_from(self.left.min(LONGEST)).expect("at most LONGEST");
        let bytes = usize::try_from(length).expect("at most LONGEST");
        // PANIC: reads and writes have one, and `new` has looked that the bytes are inside.
        let (span, _) = self.memory.as_ref().expect("a buffer");
        let pointer = span.at(self.buffer_offset, bytes).as_ptr();
        (pointer, length, pinned.buffer(pointer.addr(), bytes))
    }

    fn allocate(&self, fd: Fd, mode: i32) -> squeue::Entry {
        opcode::Fallocate::new(fd, self.left)
            .offset(self.offset)
            .mode(mode | libc::FALLOC_FL_KEEP_SIZE)
            .build()
    }

    /// Takes a step by the kernel's answer: bytes moved, or an errno below zero.
    #[inline]
    pub(crate) fn answer(&mut self, result: i32) -> Step {
        let Ok(moved) = usize::try_from(result) else {
            return self.refused(Errno::from_raw(result.wrapping_neg()));
        };
        match self.way {
            Way::Read if moved == 0 => Step::Ended,
            // A write that moves nothing, and says no more.
            Way::Write { .. } if moved == 0 => Step::Failed(Errno::ENOSPC),
            Way::Read | Way::Write { .. } => {
                // CAST: usize has at most 64 bits on every target Rust has.
                let step = (moved as u64).min(self.left);
                let moved = usize::try_from(step).unwrap_or(moved);
                self.done += moved;
                self.buffer_offset += moved;
                self.offset += step;
                self.left -= step;
                if self.left == 0 {
                    Step::Ended
                } else {
                    Step::Again
                }
            }
            Way::ZeroByHole => {
                self.way = Way::ZeroAllocate;
                Step::Again
            }
            Way::Sync | Way::ZeroRange | Way::ZeroAllocate | Way::Discard | Way::Hole => {
                Step::Ended
            }
        }
    }

    fn refused(&mut self, errno: Errno) -> Step {
        match (self.way, errno) {
            (_, Errno::EINTR | Errno::EAGAIN) => Step::Again,
            (Way::ZeroRange, Errno::EOPNOTSUPP) => {
                self.way = Way::ZeroByHole;
                Step::Again
            }
            // The bytes are zero, and this file system allocates nothing beforehand.
            (Way::ZeroAllocate, Errno::EOPNOTSUPP) => Step::Ended,
            // A kernel before 6.12 or a device that cannot; before 5.19 there were no such entries.
            (Way::Discard, Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENOTTY) => {
                tracing::debug!(
                    "{}: {errno}: a hole is punched in place of a discard",
                    self.file.path().display()
                );
                self.way = Way::Hole;
                Step::Again
            }
            (_, errno) => Step::Failed(errno),
        }
    }

    /// What it ended as, if `errno` is why.
    pub(crate) fn error(&self, errno: Errno) -> ReactorError {
        ReactorError::Transfer {
            path: self.file.path().to_owned(),
            operation: match self.way {
                Way::Read => "read",
                Way::Write { .. } => "write",
                Way::Sync => "sync",
                Way::ZeroRange | Way::ZeroByHole | Way::ZeroAllocate => "zero",
                Way::Discard | Way::Hole => "deallocate",
            },
            offset: self.offset,
            bytes: usize::try_from(self.left).unwrap_or(usize::MAX),
            source: io::Error::from(errno),
        }
    }
}

#[cfg(test)]
mod tests;
