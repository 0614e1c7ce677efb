//! Operations on files, and their progress.
//!
//! An [`Operation`] owns the file and the memory that the kernel touches for it, and builds the entry for the
//! remaining work. The kernel's result determines the next step:
//!
//! ```text
//!   entry --> answer --> all bytes moved, or the file's end, or no bytes to move: Ended
//!                    \-> some bytes moved, or interrupted:                        Again, with the rest
//!                    \-> not supported, and there is an alternative:              Again, with that
//!                    \-> any other refusal:                                       Failed
//! ```
//!
//! Operations on space have alternatives. A block device discards by an io_uring command (Linux 6.12). On an older
//! kernel, or on a device that cannot discard, a hole is punched instead, which zeroes by unmapping. On a file system
//! that cannot zero a range (tmpfs), a hole is punched and allocated again.

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

/// An identifier of a queued operation. Tokens of later operations compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub(crate) u64);

/// An operation on a file.
#[derive(Clone, Copy, Debug)]
pub enum FileOperation<'a> {
    /// Reads bytes of the file to the buffer; fewer than asked for only at the end of the file.
    Read {
        /// Offset in the file.
        offset: u64,
        /// Destination.
        buffer: &'a DmaBuffer,
        /// Offset in the buffer.
        buffer_offset: usize,
        /// Number of bytes.
        bytes: usize,
    },
    /// Writes bytes of the buffer to the file: all of them.
    Write {
        /// Offset in the file.
        offset: u64,
        /// Source.
        buffer: &'a DmaBuffer,
        /// Offset in the buffer.
        buffer_offset: usize,
        /// Number of bytes.
        bytes: usize,
        /// True if the bytes must be on the medium at the end (`RWF_DSYNC`; on a block device FUA, or a write and a
        /// flush).
        through: bool,
    },
    /// Brings the bytes written by ended operations to the medium (`fdatasync`).
    Sync,
    /// Makes bytes read as zeroes. The space stays allocated if the file system can do that; the file does not grow.
    Zero {
        /// Offset in the file.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// Frees the space. Bytes of a file then read as zeroes, and the file does not shrink. A block device discards;
    /// the device decides the value of its bytes afterwards.
    Deallocate {
        /// Offset in the file.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
}

impl<'a> FileOperation<'a> {
    /// Returns a read of `to.len()` bytes, from byte `offset` of the file on, to memory that a device can reach.
    ///
    /// Neither copies nor references are made: `to` may be a region of an adapter ([`DmaMemory::bytes`]), and its
    /// memory stays mapped until the operation has ended. A file that was opened with `O_DIRECT` needs an offset, a
    /// length and memory with the alignments of its [`Geometry`](crate::Geometry).
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

    /// Returns a write of all bytes of `from`, from byte `offset` of the file on. The notes for [`read`](Self::read)
    /// apply here, too.
    #[inline]
    #[must_use]
    pub const fn write(offset: u64, from: Bytes<'a>) -> Self {
        Self::writing(offset, from, false)
    }

    /// Returns a write as [`write`](Self::write) does, but the bytes are on the medium when the operation ends.
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

    /// Returns the offset in the file and the number of bytes.
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

    /// Returns the memory of a read or a write: buffer, offset in the buffer, number of bytes. `None` for other
    /// operations.
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

/// A request to the kernel: the operation itself, or an alternative for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Read,
    Write {
        through: bool,
    },
    Sync,
    ZeroRange,
    /// Alternative to `ZeroRange`: punches a hole, which `ZeroAllocate` allocates next.
    ZeroByHole,
    ZeroAllocate,
    Discard,
    /// Punches a hole: frees the space of a file, and is the alternative to `Discard` for a block device.
    Hole,
}

/// Number of bytes of the longest piece in one request. The kernel moves no more than 2 GiB for a request.
const LONGEST: u64 = 1 << 30;

/// `BLOCK_URING_CMD_DISCARD` of `linux/blkdev.h`: `_IO(0x12, 0)`. The entry's fields `addr` and `addr3` contain the
/// start and the length.
const DISCARD: u32 = 0x1200;

/// An operation on a file, from queueing to its end.
pub(crate) struct Operation {
    pub(crate) token: Token,
    pub(crate) tag: u64,
    file: File,
    /// For reads and writes: the buffer's bytes, which contain the remaining piece, and the lease that keeps them.
    memory: Option<(Span, Arc<Lease>)>,
    buffer_offset: usize,
    method: Method,
    offset: u64,
    /// Number of bytes that remain.
    left: u64,
    /// Number of bytes moved.
    done: usize,
}

/// Next step after a result of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// There is more to do.
    Again,
    Ended,
    Failed(Errno),
}

/// Buffers and files that are registered with the kernel.
pub(crate) trait Pinned {
    /// Returns the index of the registered buffer that contains a range of memory; `None` if there is none.
    fn buffer(&self, address: usize, bytes: usize) -> Option<u16>;
    /// Returns the index of the file; `None` if it is not registered.
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
        let method = match operation {
            FileOperation::Read { .. } => Method::Read,
            FileOperation::Write { through, .. } => Method::Write { through },
            FileOperation::Sync => Method::Sync,
            FileOperation::Zero { .. } => Method::ZeroRange,
            FileOperation::Deallocate { .. } if file.is_block_device() => Method::Discard,
            FileOperation::Deallocate { .. } => Method::Hole,
        };
        let new = Self {
            token,
            tag,
            file: file.clone(),
            memory: memory.map(|(buffer, ..)| (buffer.span(), buffer.lease())),
            buffer_offset: memory.map_or(0, |(_, at, _)| at),
            method,
            offset,
            left,
            done: 0,
        };
        // Offsets are signed in the kernel, and -1 means the current position.
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

    /// Returns whether the operation moves bytes. A polling ring takes no other operations.
    pub(crate) const fn is_transfer(&self) -> bool {
        matches!(self.method, Method::Read | Method::Write { .. })
    }

    /// Returns whether there is nothing for the kernel to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0 && self.method != Method::Sync
    }

    /// Returns the entry for the remaining work. It names the file's descriptor and, for reads and writes, memory
    /// inside the buffer, both of which `self` owns; other entries name no memory.
    #[inline]
    pub(crate) fn entry(&self, pinned: &impl Pinned) -> squeue::Entry {
        let (fd, flags) = match pinned.file(&self.file) {
            // The file's index in the ring's table takes the place of the descriptor.
            Some(index) => (Fd(index), squeue::Flags::FIXED_FILE),
            None => (Fd(self.file.as_fd().as_raw_fd()), squeue::Flags::empty()),
        };
        let entry = match self.method {
            Method::Read => {
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
            Method::Write { through } => {
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
            Method::Sync => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Method::ZeroRange => self.allocate(fd, libc::FALLOC_FL_ZERO_RANGE),
            Method::ZeroByHole | Method::Hole => self.allocate(fd, libc::FALLOC_FL_PUNCH_HOLE),
            Method::ZeroAllocate => self.allocate(fd, 0),
            Method::Discard => {
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

    /// Returns the next piece of a read or a write: its address, its length, and the index of its registered buffer.
    #[inline]
    fn piece(&self, pinned: &impl Pinned) -> (*mut u8, u32, Option<u16>) {
        // PANIC: LONGEST fits both.
        let length = u32::try_from(self.left.min(LONGEST)).expect("at most LONGEST");
        let bytes = usize::try_from(length).expect("at most LONGEST");
        // PANIC: reads and writes have a buffer, and `new` has checked that the bytes are inside.
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

    /// Advances the operation by a result of the kernel: the number of bytes moved, or a negative errno.
    #[inline]
    pub(crate) fn answer(&mut self, result: i32) -> Step {
        let Ok(moved) = usize::try_from(result) else {
            return self.refused(Errno::from_raw(result.wrapping_neg()));
        };
        match self.method {
            Method::Read if moved == 0 => Step::Ended,
            // The write has moved nothing, and the kernel gives no reason.
            Method::Write { .. } if moved == 0 => Step::Failed(Errno::ENOSPC),
            Method::Read | Method::Write { .. } => {
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
            Method::ZeroByHole => {
                self.method = Method::ZeroAllocate;
                Step::Again
            }
            Method::Sync
            | Method::ZeroRange
            | Method::ZeroAllocate
            | Method::Discard
            | Method::Hole => Step::Ended,
        }
    }

    fn refused(&mut self, errno: Errno) -> Step {
        match (self.method, errno) {
            (_, Errno::EINTR | Errno::EAGAIN) => Step::Again,
            (Method::ZeroRange, Errno::EOPNOTSUPP) => {
                self.method = Method::ZeroByHole;
                Step::Again
            }
            // The bytes are zero, and this file system cannot preallocate.
            (Method::ZeroAllocate, Errno::EOPNOTSUPP) => Step::Ended,
            // The kernel is older than 6.12, or the device cannot discard; before 5.19 io_uring had no commands.
            (Method::Discard, Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENOTTY) => {
                tracing::debug!(
                    "{}: {errno}: a hole is punched in place of a discard",
                    self.file.path().display()
                );
                self.method = Method::Hole;
                Step::Again
            }
            (_, errno) => Step::Failed(errno),
        }
    }

    /// Returns the error of the operation, with the cause `errno`.
    pub(crate) fn error(&self, errno: Errno) -> ReactorError {
        ReactorError::Transfer {
            path: self.file.path().to_owned(),
            operation: match self.method {
                Method::Read => "read",
                Method::Write { .. } => "write",
                Method::Sync => "sync",
                Method::ZeroRange | Method::ZeroByHole | Method::ZeroAllocate => "zero",
                Method::Discard | Method::Hole => "deallocate",
            },
            offset: self.offset,
            bytes: usize::try_from(self.left).unwrap_or(usize::MAX),
            source: io::Error::from(errno),
        }
    }
}

#[cfg(test)]
mod tests;
