//! Locks that let only one program use a disk at a time.
//!
//! A regular file is locked by flock(2): exclusively, or shared if it is only read. A block device is opened with
//! `O_EXCL`. The kernel refuses this open while the device is mounted, or while it is open with `O_EXCL` elsewhere.
//! A block device that was handed in and that this process may not open by itself is locked by flock(2). If possible,
//! the lock has its own open file. Then the lock ends with the namespace, not when the last worker closes its
//! descriptor.

use core::fmt;
use std::fs::{Metadata, OpenOptions, TryLockError};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::libc::O_EXCL;
use nix::sys::stat::{major, minor};
use serde::{Deserialize, Serialize};
use udapl::reactor::{File, ReactorError};

use super::{DiskError, again, copy};

/// Identity of a file or a block device, independent of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity {
    /// Device number of the block device, or of the file system that the file is on.
    device: u64,
    /// Number of the file's inode; `None` for a block device.
    inode: Option<u64>,
}

impl Identity {
    pub(super) fn of(file: &File) -> Result<Self, DiskError> {
        let there = file.as_std().metadata();
        let there = there.map_err(|source| ReactorError::Geometry {
            path: file.path().to_owned(),
            call: "fstat",
            source,
        })?;
        Ok(Self::of_metadata(&there))
    }

    /// Returns whether a claim of one excludes a claim of the other: they are the same file or block device, or one is
    /// the disk to which the other belongs as a partition. `devices` is `/sys/dev/block`. Returns `None` for two
    /// different block devices if `devices` lacks one of them.
    fn excludes(self, other: Self, devices: &Path) -> Option<bool> {
        if self == other || self.inode.is_some() || other.inode.is_some() {
            return Some(self == other);
        }
        let [[one, disk], [other, others_disk]] = [self.folders(devices)?, other.folders(devices)?];
        Some(one == other || one == others_disk || disk == other)
    }

    /// Returns the folders of a block device and of the disk that it is or belongs to (Linux
    /// `Documentation/ABI/stable/sysfs-block`).
    fn folders(self, devices: &Path) -> Option<[PathBuf; 2]> {
        let number = format!("{}:{}", major(self.device), minor(self.device));
        let folder = devices.join(number).canonicalize().ok()?;
        let disk = if folder.join("partition").exists() {
            folder.parent()?.to_owned()
        } else {
            folder.clone()
        };
        Some([folder, disk])
    }

    pub(super) fn of_metadata(there: &Metadata) -> Self {
        if there.file_type().is_block_device() {
            return Self {
                device: there.rdev(),
                inode: None,
            };
        }
        Self {
            device: there.dev(),
            inode: Some(there.ino()),
        }
    }
}

/// Locks of this process at the time of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnLocks {
    /// Locks that the reload releases.
    pub released: Vec<Identity>,
    /// Locks that it does not release.
    pub kept: Vec<Identity>,
}

/// Conflict of a new disk with the locks of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// No lock of this process is in the way.
    None,
    /// A lock that will be released is in the way.
    Released,
    /// A lock that is kept is in the way.
    Kept,
}

impl OwnLocks {
    /// Returns the conflict of a disk with these locks. `devices` is `/sys/dev/block`.
    pub(super) fn conflict_with(&self, disk: Identity, devices: &Path) -> Conflict {
        // A device that `devices` lacks counts as excluded by a released lock: its own lock is not tried. It does not
        // count as excluded by a kept lock: the open refuses it later.
        let excluded = |by: &[Identity], unknown: bool| {
            by.iter()
                .any(|one| disk.excludes(*one, devices).unwrap_or(unknown))
        };
        if !excluded(&self.released, true) {
            Conflict::None
        } else if excluded(&self.kept, false) {
            Conflict::Kept
        } else {
            Conflict::Released
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = (major(self.device), minor(self.device));
        match self.inode {
            Some(inode) => write!(f, "inode {inode} of device {major}:{minor}"),
            None => write!(f, "block device {major}:{minor}"),
        }
    }
}

/// Disks on descriptors that were handed in and are locked by flock(2); the `bool` is true for a read-only disk. All
/// disks on the same descriptor share one open file, so flock(2) does not exclude them from each other. This list does.
static GIVEN: Mutex<Vec<(Identity, bool)>> = Mutex::new(Vec::new());

/// A held lock of a disk.
#[derive(Debug)]
pub(super) struct Claim {
    file: File,
    /// Identity of the entry in [`GIVEN`]; `None` if there is no entry.
    given: Option<Identity>,
}

impl Claim {
    /// Locks an open file. `is_given` is true if another program has opened it and handed it in.
    pub(super) fn take(
        file: &File,
        identity: Identity,
        read_only: bool,
        is_given: bool,
    ) -> Result<Self, DiskError> {
        let what = file.path().display().to_string();
        if identity.inode.is_none() {
            let mut options = OpenOptions::new();
            options.read(true).write(!read_only).custom_flags(O_EXCL);
            let path = format!("/proc/self/fd/{}", file.as_std().as_raw_fd());
            let error = match options.open(path) {
                Ok(claim) => {
                    return Ok(Self {
                        file: File::from_std(claim, file.path()),
                        given: None,
                    });
                }
                Err(error) => error,
            };
            if error.raw_os_error().map(Errno::from_raw) == Some(Errno::EBUSY) {
                let holder =
                    "it is mounted, or another program or namespace has it for itself".to_owned();
                return Err(DiskError::Taken { what, holder });
            }
            if !is_given {
                return Err(DiskError::Lock { what, error });
            }
        }
        // The lock of a descriptor that was handed in belongs to the open file, which several processes may share.
        let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken =
            |(one, is_shared): &(Identity, bool)| *one == identity && !(*is_shared && read_only);
        if is_given && given.iter().any(is_taken) {
            let holder = "another namespace of this process lies on it".to_owned();
            return Err(DiskError::Taken { what, holder });
        }
        let own = if is_given {
            copy(file)?
        } else {
            again(file, read_only, 0)?
        };
        let locked = if read_only {
            own.as_std().try_lock_shared()
        } else {
            own.as_std().try_lock()
        };
        match locked {
            Ok(()) => {
                if is_given {
                    given.push((identity, read_only));
                }
                Ok(Self {
                    file: own,
                    given: is_given.then_some(identity),
                })
            }
            Err(TryLockError::WouldBlock) => Err(DiskError::Taken {
                what,
                holder: holder(identity),
            }),
            Err(TryLockError::Error(error)) => Err(DiskError::Lock { what, error }),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The mutex is held until the unlock. Otherwise a claim of the same open file in between would lose its lock.
        let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(identity) = self.given {
            if let Some(at) = given.iter().position(|(one, _)| *one == identity) {
                given.swap_remove(at);
            }
            if given.iter().any(|(one, _)| *one == identity) {
                return;
            }
        }
        // The lock is released explicitly: it belongs to the open file, which other descriptors may keep open.
        let _ = self.file.as_std().unlock();
    }
}

/// Returns a description of the program that has locked a file, as far as /proc/locks shows it.
fn holder(identity: Identity) -> String {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    match identity
        .inode
        .and_then(|inode| pid_of(&locks, identity.device, inode))
    {
        Some(pid) if pid == std::process::id() => {
            "another namespace of this process lies on it".to_owned()
        }
        Some(pid) => {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            match name.trim() {
                "" => format!("process {pid} has it locked"),
                name => format!("process {pid} ({name}) has it locked"),
            }
        }
        None => "another program has it locked".to_owned(),
    }
}

/// Returns the process that has a file locked by flock(2), according to the text of `/proc/locks`.
fn pid_of(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    let of_line = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (kind, pid) = (words.next()?, words.nth(2)?);
        let is_it = kind == "FLOCK" && words.next()? == place;
        pid.parse().ok().filter(|_| is_it)
    };
    locks.lines().find_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, Source};

    fn file(bytes: u64) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        let made = std::fs::File::create(&path).expect("a file");
        made.set_len(bytes).expect("a length");
        (folder, path)
    }

    fn open(path: &std::path::Path, read_only: bool) -> Result<Disk, DiskError> {
        Disk::open(Source::File(path.to_owned()), 9, read_only)
    }

    /// A claim of a disk excludes those of its partitions, and the other way round. Claims of two partitions, or of two
    /// disks, do not exclude each other (Linux `block/bdev.c` `bd_may_claim`).
    #[test]
    fn a_claim_of_a_disk_excludes_only_those_of_its_partitions() {
        let sys = tempfile::tempdir().expect("a folder");
        let devices = sys.path().join("block");
        std::fs::create_dir(&devices).expect("a folder");
        for (number, folder, is_partition) in [
            ("8:0", "sda", false),
            ("8:1", "sda/sda1", true),
            ("8:2", "sda/sda2", true),
            ("8:16", "sdb", false),
        ] {
            let folder = sys.path().join(folder);
            std::fs::create_dir(&folder).expect("a folder");
            if is_partition {
                std::fs::write(folder.join("partition"), "").expect("a file");
            }
            std::os::unix::fs::symlink(folder, devices.join(number)).expect("a link");
        }
        let block = |minor| Identity {
            device: nix::sys::stat::makedev(8, minor),
            inode: None,
        };
        let excludes = |one, other| block(one).excludes(block(other), &devices);
        for (one, other, expected) in [
            (0, 0, Some(true)),
            (0, 1, Some(true)),
            (2, 0, Some(true)),
            (1, 2, Some(false)),
            (0, 16, Some(false)),
            (1, 16, Some(false)),
            // The system does not know this one.
            (0, 32, None),
            (32, 32, Some(true)),
        ] {
            assert_eq!(excludes(one, other), expected, "{one} and {other}");
        }
        // A reload gives up partition 1 for the whole disk, which partition 2 still excludes.
        let locks = |kept: &[u64]| OwnLocks {
            released: vec![block(1)],
            kept: kept.iter().map(|minor| block(*minor)).collect(),
        };
        for (kept, disk, expected) in [
            (&[2_u64][..], 0, Conflict::Kept),
            (&[16], 0, Conflict::Released),
            (&[2], 1, Conflict::Released),
            (&[2], 2, Conflict::None),
            // The system does not know 32.
            (&[2], 32, Conflict::Released),
            (&[32], 0, Conflict::Released),
        ] {
            let conflict = locks(kept).conflict_with(block(disk), &devices);
            assert_eq!(conflict, expected, "{disk} beside {kept:?}");
        }
        let file = Identity {
            device: 0,
            inode: Some(7),
        };
        assert_eq!(file.excludes(file, &devices), Some(true));
        assert_eq!(file.excludes(block(0), &devices), Some(false));
    }

    #[test]
    fn a_lock_keeps_a_second_disk_of_the_same_file_away_until_it_is_given_up() {
        let (folder, path) = file(1 << 20);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        let first = open(&path, false).expect("a disk");
        for read_only in [false, true] {
            let said = open(&link, read_only).expect_err("locked").to_string();
            assert_eq!(
                said,
                format!(
                    "{} is in use: another namespace of this process lies on it; key `lock = false` serves it all \
                     the same",
                    link.display()
                )
            );
        }
        let unlocked = Disk::open_unlocked(Source::File(path.clone()), 9, false);
        let unlocked = unlocked.expect("whoever wants no lock is not kept away");
        assert!(!first.excludes(&unlocked) && first.identity() == unlocked.identity());
        // A handle that is still open does not hold the lock.
        let handle = first.handle().expect("a handle");
        first.give_up();
        let second = open(&path, false).expect("given up");
        drop(handle);
        drop(second);
        let readers = [true, true].map(|read_only| open(&path, read_only).expect("shared"));
        assert!(!readers[0].excludes(&readers[1]));
        assert!(open(&path, false).is_err(), "two that read are there");
    }

    #[test]
    fn the_holder_of_a_lock_is_found_by_device_and_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 77 08:02:131 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 78 08:12:131 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 79 08:12:131 0 EOF\n\
                     3: FLOCK  ADVISORY  READ  -1 fd:00:9 0 EOF\n";
        let device = nix::sys::stat::makedev(8, 0x12);
        assert_eq!(pid_of(locks, device, 131), Some(78));
        assert_eq!(pid_of(locks, device, 132), None);
        let device = nix::sys::stat::makedev(8, 2);
        assert_eq!(pid_of(locks, device, 131), None, "another kind of lock");
        let device = nix::sys::stat::makedev(0xfd, 0);
        assert_eq!(
            pid_of(locks, device, 9),
            None,
            "of no process that is seen here"
        );
    }
}
