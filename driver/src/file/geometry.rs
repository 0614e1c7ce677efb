//! Geometry of a disk, read anew at each call, because a disk may be resized.
//!
//! Alignments come from `statx` (`STATX_DIOALIGN`, Linux 6.1), and so does the size of a file. For a block device, size
//! and block sizes come from its ioctls, and its support for discard from sysfs. Support for holes in a file system is
//! found by a trial, once for each open file: a hole of one byte is punched beyond the end of the file, at 2^62 bytes,
//! or at a smaller power of two if the file system's limit on file sizes is lower. The trial is a write, so a file
//! opened read-only has no support for holes. A trial that shows nothing (no space or memory, a failing medium, no
//! possible offset) is made anew by the next call.

// UNSAFETY: the number of an ioctl determines what it writes.
#![expect(unsafe_code, reason = "BLKGETSIZE64")]

use std::io;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use rustix::fs::{AtFlags, StatxFlags, ioctl_blkpbszget, ioctl_blksszget, statx};
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};

use super::File;
use crate::error::ReactorError;

/// Geometry of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Geometry {
    /// Size in bytes.
    pub bytes: u64,
    /// True for a block device, false for a file.
    pub is_block_device: bool,
    /// Bytes of the smallest piece that can be read or written with `O_DIRECT`. For a file, the value of its file
    /// system, or 512 if the system does not report it.
    pub logical_block: u32,
    /// Bytes of the smallest piece that is written without a read-modify-write. For a file, the preferred block size of
    /// its file system.
    pub physical_block: u32,
    /// Alignment in bytes of memory used with `O_DIRECT`. Where the system does not report it (before Linux 6.1, and
    /// for some file systems), the logical block.
    pub memory_alignment: u32,
    /// Alignment in bytes of offsets and lengths used with `O_DIRECT`. Where the system does not report it, the logical
    /// block.
    pub offset_alignment: u32,
    /// True if discard or holes are supported and the file was opened for writing.
    pub deallocates: bool,
}

/// Block size in bytes that is assumed for a file whose `O_DIRECT` alignment the system does not report.
const SECTOR: u32 = 512;

/// `BLKGETSIZE64` of `linux/fs.h`.
const BLKGETSIZE64: Opcode = opcode::read::<usize>(0x12, 114);

impl File {
    /// Reads the current geometry.
    ///
    /// # Errors
    /// [`ReactorError::Geometry`].
    pub fn geometry(&self) -> Result<Geometry, ReactorError> {
        self.read_geometry()
            .map_err(|(call, source)| ReactorError::Geometry {
                path: self.path().to_owned(),
                call,
                source,
            })
    }

    fn read_geometry(&self) -> Result<Geometry, (&'static str, io::Error)> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
        let stat = statx(self.as_fd(), c"", AtFlags::EMPTY_PATH, wanted)
            .map_err(|error| ("statx", error.into()))?;
        let says = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN);
        let or = |said: u32, other: u32| if says && said > 0 { said } else { other };
        if !self.is_block_device() {
            let offset_alignment = or(stat.stx_dio_offset_align, SECTOR);
            return Ok(Geometry {
                bytes: stat.stx_size,
                is_block_device: false,
                logical_block: offset_alignment,
                physical_block: stat.stx_blksize.max(offset_alignment),
                memory_alignment: or(stat.stx_dio_mem_align, offset_alignment),
                offset_alignment,
                deallocates: self.makes_holes(stat.stx_size),
            });
        }
        let logical_block =
            ioctl_blksszget(self.as_fd()).map_err(|error| ("BLKSSZGET", error.into()))?;
        let physical_block =
            ioctl_blkpbszget(self.as_fd()).map_err(|error| ("BLKPBSZGET", error.into()))?;
        Ok(Geometry {
            bytes: self
                .device_bytes()
                .map_err(|errno| ("BLKGETSIZE64", errno.into()))?,
            is_block_device: true,
            logical_block,
            physical_block: physical_block.max(logical_block),
            memory_alignment: or(stat.stx_dio_mem_align, logical_block),
            offset_alignment: or(stat.stx_dio_offset_align, logical_block),
            deallocates: self.is_written() && discards(stat.stx_rdev_major, stat.stx_rdev_minor),
        })
    }

    fn device_bytes(&self) -> Result<u64, Errno> {
        // SAFETY: BLKGETSIZE64 writes a 64-bit number.
        let size = unsafe { Getter::<BLKGETSIZE64, u64>::new() };
        // SAFETY: the descriptor is open and refers to a block device, for which the request has this meaning.
        let bytes = unsafe { ioctl(self.as_fd(), size) };
        bytes.map_err(|error| Errno::from_raw(error.raw_os_error()))
    }

    fn is_written(&self) -> bool {
        let flags = rustix::fs::fcntl_getfl(self.as_fd());
        flags.is_ok_and(|flags| {
            flags.intersects(rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::RDWR)
        })
    }

    /// Returns whether the file system punches holes. An answer that a trial has shown is kept.
    fn makes_holes(&self, size: u64) -> bool {
        let kept = &self.inner.makes_holes;
        if let Some(makes) = kept.get() {
            return *makes;
        }
        let shown = if self.is_written() {
            shown_by_trial(size, |offset| self.punch(offset))
        } else {
            Some(false)
        };
        shown.is_some_and(|makes| *kept.get_or_init(|| makes))
    }

    fn punch(&self, offset: i64) -> Result<(), Errno> {
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(self.as_fd(), hole, offset, 1)
    }
}

/// Tries to punch a hole beyond the end of a file of `size` bytes. Returns whether the file system punches holes, or
/// `None` if the trial has not shown that: it failed for a reason that may pass, or no offset is beyond the end.
fn shown_by_trial(size: u64, mut punch: impl FnMut(i64) -> Result<(), Errno>) -> Option<bool> {
    let offsets = (32..63).rev().map(|bit| 1_i64 << bit);
    for offset in offsets.take_while(|&offset| offset.cast_unsigned() > size) {
        let mut punched = punch(offset);
        while punched == Err(Errno::EINTR) {
            punched = punch(offset);
        }
        match punched {
            Ok(()) => return Some(true),
            // The offset is beyond the largest file of this file system: try half the offset.
            Err(Errno::EFBIG) => {}
            Err(errno) if may_pass(errno) => return None,
            Err(_) => return Some(false),
        }
    }
    None
}

/// Returns whether an operation that failed with this error may succeed later: space or memory was short, or the medium
/// failed.
fn may_pass(errno: Errno) -> bool {
    let passing = [
        Errno::ENOSPC,
        Errno::EDQUOT,
        Errno::ENOMEM,
        Errno::EAGAIN,
        Errno::EIO,
    ];
    passing.contains(&errno)
}

/// Returns whether a block device supports discard (for a partition, whether its disk does). False without sysfs.
fn discards(major: u32, minor: u32) -> bool {
    let device = format!("/sys/dev/block/{major}:{minor}");
    ["queue", "../queue"]
        .iter()
        .find_map(|queue| {
            std::fs::read_to_string(format!("{device}/{queue}/discard_max_bytes")).ok()
        })
        .is_some_and(|bytes| bytes.trim().parse::<u64>().is_ok_and(|bytes| bytes > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_for_holes_that_is_interrupted_is_repeated() {
        let mut answers = [Err(Errno::EINTR), Err(Errno::EINTR), Ok(())].into_iter();
        let shown = shown_by_trial(0, |_| answers.next().expect("three trials"));
        assert_eq!((shown, answers.next()), (Some(true), None));
    }

    #[test]
    fn a_trial_for_holes_that_lacks_space_or_memory_shows_nothing() {
        for errno in [Errno::ENOSPC, Errno::EDQUOT, Errno::ENOMEM, Errno::EIO] {
            assert_eq!(shown_by_trial(0, |_| Err(errno)), None, "{errno}");
        }
        for errno in [Errno::EOPNOTSUPP, Errno::EPERM] {
            assert_eq!(shown_by_trial(0, |_| Err(errno)), Some(false), "{errno}");
        }
    }

    #[test]
    fn trials_for_holes_are_beyond_the_end_and_below_the_limit_of_the_file_system() {
        let mut tried = Vec::new();
        let mut trial = |size| {
            tried.clear();
            let shown = shown_by_trial(size, |offset| {
                tried.push(offset);
                if offset > 1 << 44 {
                    return Err(Errno::EFBIG);
                }
                Ok(())
            });
            (shown, tried.len(), tried.last().copied())
        };
        assert_eq!(trial(0), (Some(true), 19, Some(1 << 44)));
        assert_eq!(trial(1 << 43), (Some(true), 19, Some(1 << 44)));
        assert_eq!(trial(1 << 44), (None, 18, Some(1 << 45)));
        assert_eq!(trial(u64::MAX), (None, 0, None));
    }
}
