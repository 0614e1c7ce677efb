//! Disks: the files, block devices and memory that namespaces use.
//!
//! A [`Disk`] is opened once. Each worker has its own [`Handle`], which is made from the disk's descriptor and never
//! from the path, because the path may name another file by then. If possible, files and block devices are read and
//! written without the page cache (O_DIRECT). They are locked against other programs (`claim`). A memory disk is an
//! unnamed file, so it works like a file. A faulty disk is a memory disk that can be made to fail ([`faults`]). An SSD
//! that this process drives itself ([`ssd`]) has no file at all.

mod claim;
pub mod faults;
pub mod ssd;
#[cfg(test)]
pub(crate) mod tests;

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::O_DIRECT;
use nix::sys::memfd::{MFdFlags, memfd_create};
use udapl::reactor::{File, HandedInError, ReactorError, handed_in};

use claim::{Claim, Conflict};
pub use claim::{Identity, OwnLocks};
use faults::Faults;
use ssd::{SsdAddress, SsdClaim, SsdDisk};

/// Supported block sizes, as powers of two: 512 and 4,096 bytes.
pub const SHIFTS: [u8; 2] = [9, 12];

/// Source of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A regular file or a block device.
    File(PathBuf),
    /// A descriptor that the program that started this process has handed in under this name (`LISTEN_FDS`).
    Given(String),
    /// Memory of this many bytes. Its content is lost when the process ends.
    Memory(u64),
    /// Memory of this many bytes whose operations can be made to fail or to be late, for tests.
    Faulty(u64),
    /// A disk of this many bytes that ignores writes and reads as zeros, for benchmarks.
    Null(u64),
    /// A namespace of an NVMe SSD that this process drives itself.
    Ssd(SsdAddress),
}

/// Reason why a disk cannot be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The file cannot be opened or examined.
    #[error("{0}")]
    File(#[from] ReactorError),
    /// There is not enough memory for a memory disk.
    #[error("{bytes} bytes of memory for a disk: {error}")]
    Memory {
        /// Size of the disk in bytes.
        bytes: u64,
        /// Error of the system.
        error: std::io::Error,
    },
    /// No descriptor with this name was handed in.
    #[error("{0}")]
    HandedIn(#[from] HandedInError),
    /// A descriptor that was handed in cannot be used.
    #[error("descriptor {name:?}: {error}")]
    Given {
        /// Name of the descriptor.
        name: String,
        /// Error of the system.
        error: std::io::Error,
    },
    /// The disk does not support this block size.
    #[error("{}: blocks of {asked} bytes on a disk whose own have {has}", path.display())]
    Blocks {
        /// Path of the disk.
        path: PathBuf,
        /// Block size that was requested, in bytes.
        asked: u32,
        /// Smallest block size of the disk, in bytes.
        has: u32,
    },
    /// Another program or another namespace has locked the disk.
    #[error("{what} is in use: {holder}; key `lock = false` serves it all the same")]
    Taken {
        /// Name of the disk.
        what: String,
        /// Description of the program that has the lock, as far as the system reports it.
        holder: String,
    },
    /// The disk cannot be locked.
    #[error("{what} cannot be locked: {error}; key `lock = false` serves it without a lock")]
    Lock {
        /// Name of the disk.
        what: String,
        /// Error of the system.
        error: std::io::Error,
    },
    /// An SSD cannot be opened, or has ended.
    #[error("SSD {name}: {error}")]
    Ssd {
        /// Name of its function.
        name: String,
        /// Reason, with the number.
        error: String,
    },
    /// The path of the disk now names another file than the open one.
    #[error("{} is {now} now; the namespace keeps {open}, which it has open", path.display())]
    Replaced {
        /// Path of the disk.
        path: PathBuf,
        /// Identity of the file that is open.
        open: Identity,
        /// Description of the file that the path names now, or the reason why the path names no file.
        now: String,
    },
    /// The disk is smaller than a block.
    #[error("{what}: {bytes} bytes are less than a block of {block}")]
    Empty {
        /// Name of the disk.
        what: String,
        /// Size of the disk in bytes.
        bytes: u64,
        /// Block size in bytes.
        block: u32,
    },
}

/// An open disk.
#[derive(Debug)]
pub struct Disk {
    source: Source,
    shift: u8,
    read_only: bool,
    direct: bool,
    deallocates: bool,
    /// File from which the workers' handles are made; `None` for a null disk.
    file: Option<File>,
    /// Descriptor that was handed in, if any. Another program shares the open file, and with it the lock.
    given: Option<File>,
    /// Identity of the open file; `None` for a disk without a file of the file system.
    identity: Option<Identity>,
    /// Lock of the disk, until it is released.
    claim: Mutex<Option<Claim>>,
    /// Faults of a faulty disk; `None` for every other disk.
    faults: Option<Arc<Faults>>,
    /// Namespace of an SSD that this process drives, and its claim until it is released; `None` for every other disk.
    ssd: Option<Arc<SsdDisk>>,
    ssd_claim: Mutex<Option<SsdClaim>>,
}

/// A worker's access to a disk.
#[derive(Clone, Debug)]
pub enum Handle {
    /// A file, which the worker accesses through its io_uring ring.
    File(File),
    /// A file whose operations can be made to fail or to be late.
    Faulty(File, Arc<Faults>),
    /// A null disk, whose operations do nothing.
    Null,
    /// A namespace of an SSD, of which the worker has a queue.
    Ssd(Arc<SsdDisk>),
}

impl Disk {
    /// Opens a disk with blocks of two to the `shift` bytes, and locks it. While it is locked, no other program that
    /// asks for a lock and no other namespace can open it. There are two exceptions: read-only namespaces may share a
    /// regular file, and they may share a block device that was handed in and that this process may not open by itself.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn open(source: Source, shift: u8, read_only: bool) -> Result<Self, DiskError> {
        let disk = Self::open_unlocked(source, shift, read_only)?;
        disk.lock()?;
        Ok(disk)
    }

    fn lock(&self) -> Result<(), DiskError> {
        if let Some(ssd) = &self.ssd {
            let claim = ssd.claim(self.read_only)?;
            let mut place = self
                .ssd_claim
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *place = Some(claim);
        }
        let locked = self.given.as_ref().or(self.file.as_ref());
        if let (Some(file), Some(identity)) = (locked, self.identity) {
            let claim = Claim::take(file, identity, self.read_only, self.given.is_some())?;
            *self.claim.lock().unwrap_or_else(PoisonError::into_inner) = Some(claim);
        }
        Ok(())
    }

    /// Opens a disk without a lock, for example a block device that several machines share.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn open_unlocked(source: Source, shift: u8, read_only: bool) -> Result<Self, DiskError> {
        Self::open_for(true, source, shift, read_only)
    }

    /// Checks whether a disk could be opened, and locked if `locks`, after a reload has released some of the locks in
    /// `own`. The lock is not tried where a released lock is in the way. So a lock of another program on a sibling
    /// partition shows only at the open. Nor is it tried on a descriptor that was handed in, because the lock belongs
    /// to the open file, which another program may use.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn probe(
        source: Source,
        shift: u8,
        read_only: bool,
        locks: bool,
        own: &OwnLocks,
    ) -> Result<(), DiskError> {
        let disk = Self::open_for(false, source, shift, read_only)?;
        if !locks || disk.given.is_some() || matches!(disk.source, Source::Ssd(_)) {
            return Ok(());
        }
        let devices = Path::new("/sys/dev/block");
        match disk.identity.map(|one| own.conflict_with(one, devices)) {
            Some(Conflict::Released) => Ok(()),
            Some(Conflict::Kept) => Err(DiskError::Taken {
                what: disk.name(),
                holder: "another namespace of this process lies on it or on a part of it"
                    .to_owned(),
            }),
            Some(Conflict::None) | None => disk.lock(),
        }
    }

    /// Returns a disk whose file is not open yet.
    fn unopened(source: Source, shift: u8, read_only: bool) -> Self {
        Self {
            file: None,
            given: None,
            identity: None,
            claim: Mutex::default(),
            faults: None,
            ssd: None,
            ssd_claim: Mutex::default(),
            shift,
            read_only,
            direct: false,
            deallocates: true,
            source,
        }
    }

    fn open_for(
        serves: bool,
        source: Source,
        shift: u8,
        read_only: bool,
    ) -> Result<Self, DiskError> {
        let mut disk = Self::unopened(source, shift, read_only);
        match &disk.source {
            Source::Null(_) => {}
            // The function is reset when it is opened, which a mere check must not do.
            Source::Ssd(_) if !serves => return Ok(disk),
            Source::Ssd(address) => {
                let ssd = SsdDisk::open(address)?;
                disk.take_ssd(ssd)?;
            }
            Source::Memory(bytes) => disk.file = Some(anonymous(*bytes)?),
            Source::Faulty(bytes) => {
                disk.file = Some(anonymous(*bytes)?);
                disk.faults = Some(Arc::default());
            }
            Source::Given(name) => {
                let given = File::from_std(handed_in(name)?.into(), name);
                disk.take_given(given, serves)?;
            }
            Source::File(path) => {
                let (file, is_direct) = match open(path, read_only, O_DIRECT) {
                    Ok(file) => (file, true),
                    // Some file systems in memory do not support O_DIRECT.
                    Err(ReactorError::Open { .. }) => (open(path, read_only, 0)?, false),
                    Err(other) => return Err(other.into()),
                };
                disk.take_file(file, is_direct, serves)?;
            }
        }
        if disk.blocks()? == 0 {
            return Err(disk.empty(disk.bytes()?));
        }
        Ok(disk)
    }

    /// Uses a descriptor that was handed in as the disk's file.
    fn take_given(&mut self, given: File, serves: bool) -> Result<(), DiskError> {
        // A descriptor that was opened for reading only cannot be written.
        self.read_only |= !is_writable(&given)?;
        let (file, is_direct) = own(&given, self.read_only, serves)?;
        self.take_file(file, is_direct, serves)?;
        self.given = Some(given);
        Ok(())
    }

    /// Uses a namespace of an SSD as the disk, after checking its block size.
    fn take_ssd(&mut self, ssd: SsdDisk) -> Result<(), DiskError> {
        if ssd.shift() > self.shift {
            return Err(DiskError::Blocks {
                path: self.name().into(),
                asked: 1 << self.shift,
                has: 1 << ssd.shift(),
            });
        }
        self.read_only |= ssd.is_protected();
        self.deallocates = ssd.deallocates();
        self.ssd = Some(Arc::new(ssd));
        Ok(())
    }

    /// Uses an open file or block device as the disk's file, after checking its block size and alignment.
    fn take_file(&mut self, file: File, is_direct: bool, serves: bool) -> Result<(), DiskError> {
        let geometry = file.geometry()?;
        let asked = 1 << self.shift;
        let least = if is_direct {
            geometry.logical_block.max(geometry.offset_alignment)
        } else {
            geometry.logical_block.min(asked)
        };
        if least > asked {
            if geometry.is_block_device {
                return Err(DiskError::Blocks {
                    path: file.path().to_owned(),
                    asked,
                    has: least,
                });
            }
            // A regular file can be accessed through the page cache instead.
            if serves {
                set_direct(&file, false);
            }
        }
        self.direct = is_direct && least <= asked;
        self.deallocates = geometry.deallocates;
        self.identity = Some(Identity::of(&file)?);
        self.file = Some(file);
        Ok(())
    }

    fn empty(&self, bytes: u64) -> DiskError {
        DiskError::Empty {
            what: self.name(),
            bytes,
            block: 1 << self.shift,
        }
    }

    /// Returns the disk's name for messages.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.source {
            Source::File(path) => path.display().to_string(),
            Source::Given(name) => format!("descriptor {name}"),
            Source::Memory(_) => "memory".to_owned(),
            Source::Faulty(_) => "faulty".to_owned(),
            Source::Null(_) => "null".to_owned(),
            Source::Ssd(address) => address.to_string(),
        }
    }

    /// Returns the source of the disk.
    #[must_use]
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// Returns the block size in bytes, as a power of two.
    #[must_use]
    pub const fn shift(&self) -> u8 {
        self.shift
    }

    /// Returns whether writes are refused.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns whether blocks can be deallocated.
    #[must_use]
    pub const fn deallocates(&self) -> bool {
        self.deallocates
    }

    /// Returns whether deallocated blocks read as zeros. For an SSD, a deallocation is a hint, after which blocks may
    /// have any content.
    #[must_use]
    pub const fn zeroes_deallocated(&self) -> bool {
        self.deallocates && self.ssd.is_none()
    }

    /// Returns whether there is a cache that Flush writes back.
    #[must_use]
    pub fn has_cache(&self) -> bool {
        let of_ssd = self.ssd.as_ref().is_some_and(|ssd| ssd.has_cache());
        of_ssd || matches!(self.source, Source::File(_) | Source::Given(_))
    }

    /// Returns the faults of a faulty disk; `None` for every other disk.
    #[must_use]
    pub const fn faults(&self) -> Option<&Arc<Faults>> {
        self.faults.as_ref()
    }

    /// Returns the number of whole blocks that the disk has now. A disk may be resized.
    ///
    /// # Errors
    /// [`DiskError::File`].
    pub fn blocks(&self) -> Result<u64, DiskError> {
        Ok(self.bytes()? >> self.shift)
    }

    /// Returns the number of whole blocks after a resize. There must be at least one.
    ///
    /// # Errors
    /// [`DiskError::File`], [`DiskError::Empty`].
    pub fn blocks_now(&self) -> Result<u64, DiskError> {
        if let Some(ssd) = &self.ssd {
            ssd.refresh()?;
        }
        let bytes = self.bytes()?;
        match bytes >> self.shift {
            0 => Err(self.empty(bytes)),
            blocks => Ok(blocks),
        }
    }

    /// Returns the number of bytes after the last whole block, which no host can access.
    ///
    /// # Errors
    /// [`DiskError::File`].
    pub fn left_out(&self) -> Result<u64, DiskError> {
        Ok(self.bytes()? % (1 << self.shift))
    }

    fn bytes(&self) -> Result<u64, DiskError> {
        if let Some(ssd) = &self.ssd {
            return Ok(ssd.bytes());
        }
        match (&self.source, &self.file) {
            (_, Some(file)) => Ok(file.geometry()?.bytes),
            (Source::Null(bytes) | Source::Memory(bytes) | Source::Faulty(bytes), None) => {
                Ok(*bytes)
            }
            (Source::File(_) | Source::Given(_) | Source::Ssd(_), None) => Ok(0),
        }
    }

    /// Returns the identity of the open file or block device; `None` for memory disks and null disks.
    #[must_use]
    pub const fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// Checks that the path still names the open file. A disk without a path passes.
    ///
    /// # Errors
    /// [`DiskError::Replaced`].
    pub fn check_path(&self) -> Result<(), DiskError> {
        let (Source::File(path), Some(open)) = (&self.source, self.identity) else {
            return Ok(());
        };
        let now = match std::fs::metadata(path) {
            Ok(there) if Identity::of_metadata(&there) == open => return Ok(()),
            Ok(there) => Identity::of_metadata(&there).to_string(),
            Err(error) => format!("not to be found ({error})"),
        };
        Err(DiskError::Replaced {
            path: path.clone(),
            open,
            now,
        })
    }

    /// Returns the namespace of an SSD that this disk is; `None` for other disks.
    pub(crate) fn ssd(&self) -> Option<Arc<SsdDisk>> {
        self.ssd.clone()
    }

    /// Returns whether this disk and another are the same file, both are locked, and the locks exclude each other.
    #[must_use]
    pub fn excludes(&self, other: &Self) -> bool {
        let is_same = self.identity.is_some() && self.identity == other.identity;
        let has_lock = |disk: &Self| {
            let claim = disk.claim.lock().unwrap_or_else(PoisonError::into_inner);
            claim.is_some()
        };
        is_same && !(self.read_only && other.read_only) && has_lock(self) && has_lock(other)
    }

    /// Returns the identity of the file that this disk has locked; `None` if it has no lock.
    pub(crate) fn locked(&self) -> Option<Identity> {
        let claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        self.identity.filter(|_| claim.is_some())
    }

    /// Releases the lock. The workers' handles stay open until the workers drop them.
    pub fn give_up(&self) {
        drop(
            self.ssd_claim
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        drop(
            self.claim
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
    }

    /// Makes the handle of a worker.
    ///
    /// # Errors
    /// [`DiskError::File`]: the file cannot be opened once more.
    pub fn handle(&self) -> Result<Handle, DiskError> {
        if let Some(ssd) = &self.ssd {
            return Ok(Handle::Ssd(Arc::clone(ssd)));
        }
        let Some(file) = &self.file else {
            return Ok(Handle::Null);
        };
        let file = match &self.source {
            // The descriptor is copied, because the daemon may have no right to open the file by itself.
            Source::Given(_) => copy(file)?,
            Source::File(_)
            | Source::Memory(_)
            | Source::Faulty(_)
            | Source::Null(_)
            | Source::Ssd(_) => {
                again(file, self.read_only, if self.direct { O_DIRECT } else { 0 })?
            }
        };
        Ok(match &self.faults {
            Some(faults) => Handle::Faulty(file, Arc::clone(faults)),
            None => Handle::File(file),
        })
    }
}

fn open(path: &Path, read_only: bool, flags: i32) -> Result<File, ReactorError> {
    let mut options = OpenOptions::new();
    options.read(true).write(!read_only).custom_flags(flags);
    File::open_with(&options, path)
}

/// Opens an open file once more, whatever its path names now. If this process may not open it, copies the descriptor.
fn again(file: &File, read_only: bool, flags: i32) -> Result<File, ReactorError> {
    anew(file, read_only, flags).or_else(|_| copy(file))
}

/// Opens an open file once more, by its entry in /proc.
fn anew(file: &File, read_only: bool, flags: i32) -> std::io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_std().as_raw_fd());
    let mut options = OpenOptions::new();
    options.read(true).write(!read_only).custom_flags(flags);
    Ok(File::from_std(options.open(path)?, file.path()))
}

/// Returns a file for a descriptor that was handed in, and whether the file bypasses the page cache (O_DIRECT).
///
/// If possible, the file is opened once more, because the flags belong to the open file (open(2)), which other
/// processes share. If this process may not open it, the descriptor is copied and O_DIRECT is set on the shared open
/// file. A mere check (`serves` is false) does not set the flag and assumes success: no block device refuses it.
fn own(given: &File, read_only: bool, serves: bool) -> Result<(File, bool), ReactorError> {
    let kind = given.as_std().metadata().map(|there| there.file_type());
    // Only files and block devices are opened: opening a pipe without a writer would block for ever.
    if kind.is_ok_and(|kind| kind.is_file() || kind.is_block_device()) {
        for (flags, is_direct) in [(O_DIRECT, true), (0, false)] {
            if let Ok(file) = anew(given, read_only, flags) {
                return Ok((file, is_direct));
            }
        }
    }
    let file = copy(given)?;
    let is_direct = !serves || set_direct(&file, true);
    Ok((file, is_direct))
}

/// Copies a descriptor. The copies share the open file, and with it the flags and the locks.
fn copy(file: &File) -> Result<File, ReactorError> {
    match file.as_std().try_clone() {
        Ok(another) => Ok(File::from_std(another, file.path())),
        Err(source) => Err(ReactorError::Open {
            path: file.path().to_owned(),
            source,
        }),
    }
}

/// Returns whether a descriptor that was handed in can be written. Refuses one that cannot be read.
fn is_writable(file: &File) -> Result<bool, DiskError> {
    let refused = |error| DiskError::Given {
        name: file.path().display().to_string(),
        error,
    };
    let flags = fcntl(file.as_std(), FcntlArg::F_GETFL).map_err(|error| refused(error.into()))?;
    let mode = OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE;
    if mode == OFlag::O_WRONLY {
        let why = "it is open for writing only (O_WRONLY), and a disk is also read";
        return Err(refused(std::io::Error::other(why)));
    }
    Ok(mode == OFlag::O_RDWR)
}

/// Sets or clears O_DIRECT. Returns whether that succeeded.
fn set_direct(file: &File, direct: bool) -> bool {
    let flags = fcntl(file.as_std(), FcntlArg::F_GETFL).unwrap_or(0);
    let mut flags = OFlag::from_bits_retain(flags);
    flags.set(OFlag::O_DIRECT, direct);
    fcntl(file.as_std(), FcntlArg::F_SETFL(flags)).is_ok()
}

/// Makes an unnamed file in memory.
fn anonymous(bytes: u64) -> Result<File, DiskError> {
    let failed = |error: std::io::Error| DiskError::Memory { bytes, error };
    let made = memfd_create(c"nvmeof-disk", MFdFlags::MFD_CLOEXEC);
    let memory = made.map_err(|error| failed(error.into()))?;
    let file = std::fs::File::from(memory);
    file.set_len(bytes).map_err(failed)?;
    Ok(File::from_std(file, "memory"))
}
