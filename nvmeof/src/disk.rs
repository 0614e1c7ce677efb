//! Disks: files, block devices and memory that namespaces are on.
//!
//! A [`Disk`] is opened once. Each worker has a [`Handle`] of its own, which is made from that first descriptor and
//! never from the path, since another file may take the path. Files and block devices are read and written past the
//! page cache if they can be (O_DIRECT), and locked against other programs (`claim`). A memory disk is a file without a
//! name, so it works like a file. A faulty disk fails by order ([`faults`]).

mod claim;
pub mod faults;
#[cfg(test)]
mod tests;

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::O_DIRECT;
use nix::sys::memfd::{MFdFlags, memfd_create};
use udapl::reactor::{File, HandedInError, ReactorError, handed_in};

use claim::Claim;
pub use claim::Identity;
use faults::Faults;

/// Supported block sizes, as powers of two: 512 and 4,096 bytes.
pub const SHIFTS: [u8; 2] = [9, 12];

/// Source of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A regular file or a block device.
    File(PathBuf),
    /// A descriptor of this name, opened by the program that started this process (`LISTEN_FDS`).
    Given(String),
    /// Memory of this many bytes, which ends with the process.
    Memory(u64),
    /// Memory of this many bytes that fails and delays by order: for tests.
    Faulty(u64),
    /// A disk of this many bytes that ignores writes and reads as zeros: for measuring.
    Null(u64),
}

/// Reason why a disk cannot be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// It cannot be opened or examined.
    #[error("{0}")]
    File(#[from] ReactorError),
    /// There is no memory for it.
    #[error("{bytes} bytes of memory for a disk: {error}")]
    Memory {
        /// Number of bytes.
        bytes: u64,
        /// The system's answer.
        error: std::io::Error,
    },
    /// No such descriptor was handed in.
    #[error("{0}")]
    HandedIn(#[from] HandedInError),
    /// A descriptor that was handed in cannot be used.
    #[error("descriptor {name:?}: {error}")]
    Given {
        /// The name.
        name: String,
        /// The system's answer.
        error: std::io::Error,
    },
    /// The disk does not support this block size.
    #[error("{}: blocks of {asked} bytes on a disk whose own have {has}", path.display())]
    Blocks {
        /// The disk.
        path: PathBuf,
        /// Bytes of a block that were asked for.
        asked: u32,
        /// Bytes of a block that the disk has.
        has: u32,
    },
    /// Another program has it, or another namespace.
    #[error("{what} is in use: {holder}; key `lock = false` serves it all the same")]
    Taken {
        /// The disk.
        what: String,
        /// The program that has it, if the system tells.
        holder: String,
    },
    /// It cannot be locked.
    #[error("{what} cannot be locked: {error}; key `lock = false` serves it without a lock")]
    Lock {
        /// The disk.
        what: String,
        /// The system's answer.
        error: std::io::Error,
    },
    /// Its path names another file now.
    #[error("{} is {now} now; the namespace keeps {open}, which it has open", path.display())]
    Replaced {
        /// The path.
        path: PathBuf,
        /// The file that is open.
        open: Identity,
        /// The file that the path names now, or the reason why there is none.
        now: String,
    },
    /// It is smaller than a block.
    #[error("{what}: {bytes} bytes are less than a block of {block}")]
    Empty {
        /// The disk.
        what: String,
        /// Its size.
        bytes: u64,
        /// Bytes of a block.
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
    /// The first descriptor, which the others are made from; `None` if it has no file.
    file: Option<File>,
    /// The descriptor that was handed in. Another program has the same open file, and its lock.
    given: Option<File>,
    /// The open file, if it has a name.
    identity: Option<Identity>,
    /// The lock, until it is given up.
    claim: Mutex<Option<Claim>>,
    /// The faults of a faulty disk.
    faults: Option<Arc<Faults>>,
}

/// A disk as a worker has it open.
#[derive(Clone, Debug)]
pub enum Handle {
    /// A file, by the worker's ring.
    File(File),
    /// Likewise, with faults by order.
    Faulty(File, Arc<Faults>),
    /// A null disk: operations do nothing.
    Null,
}

impl Disk {
    /// Opens a disk with blocks of two to the `shift` bytes, and locks it: no other program that asks for a lock, and
    /// no other namespace, has it at the same time. Read-only namespaces may share a regular file, and a block device
    /// that was handed in and that this process may not open by itself; any other block device serves one namespace.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn open(source: Source, shift: u8, read_only: bool) -> Result<Self, DiskError> {
        let disk = Self::open_unlocked(source, shift, read_only)?;
        disk.lock()?;
        Ok(disk)
    }

    fn lock(&self) -> Result<(), DiskError> {
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

    /// Looks whether a disk could be opened, but for its lock, and changes nothing: one that was handed in may be
    /// served already, here or by another program.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn look(source: Source, shift: u8, read_only: bool) -> Result<(), DiskError> {
        Self::open_for(false, source, shift, read_only).map(|_| ())
    }

    /// Returns a disk whose file is not open yet.
    fn unopened(source: Source, shift: u8, read_only: bool) -> Self {
        Self {
            file: None,
            given: None,
            identity: None,
            claim: Mutex::default(),
            faults: None,
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
                    // File systems in memory have no O_DIRECT.
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

    /// Takes a descriptor that was handed in.
    fn take_given(&mut self, given: File, serves: bool) -> Result<(), DiskError> {
        // A descriptor that was opened for reading only stays so.
        self.read_only |= !is_writable(&given)?;
        let (file, is_direct) = own(&given, self.read_only, serves)?;
        self.take_file(file, is_direct, serves)?;
        self.given = Some(given);
        Ok(())
    }

    /// Takes an open file or block device, after its geometry is checked.
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
            // A file goes through the cache instead.
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

    /// Its name in messages.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.source {
            Source::File(path) => path.display().to_string(),
            Source::Given(name) => format!("descriptor {name}"),
            Source::Memory(_) => "memory".to_owned(),
            Source::Faulty(_) => "faulty".to_owned(),
            Source::Null(_) => "null".to_owned(),
        }
    }

    /// Its source.
    #[must_use]
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// Bytes of a block, as a power of two.
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

    /// Returns whether there is a cache that Flush writes back.
    #[must_use]
    pub const fn has_cache(&self) -> bool {
        matches!(self.source, Source::File(_) | Source::Given(_))
    }

    /// Its faults; `None` if it is not a faulty disk.
    #[must_use]
    pub const fn faults(&self) -> Option<&Arc<Faults>> {
        self.faults.as_ref()
    }

    /// Number of whole blocks that it has now. A disk may be resized.
    ///
    /// # Errors
    /// [`DiskError::File`].
    pub fn blocks(&self) -> Result<u64, DiskError> {
        Ok(self.bytes()? >> self.shift)
    }

    /// Number of blocks after a change of its size: at least one.
    ///
    /// # Errors
    /// [`DiskError::File`], [`DiskError::Empty`].
    pub fn blocks_now(&self) -> Result<u64, DiskError> {
        let bytes = self.bytes()?;
        match bytes >> self.shift {
            0 => Err(self.empty(bytes)),
            blocks => Ok(blocks),
        }
    }

    /// Bytes behind the last whole block, which no host reaches.
    ///
    /// # Errors
    /// [`DiskError::File`].
    pub fn left_out(&self) -> Result<u64, DiskError> {
        Ok(self.bytes()? % (1 << self.shift))
    }

    fn bytes(&self) -> Result<u64, DiskError> {
        match (&self.source, &self.file) {
            (_, Some(file)) => Ok(file.geometry()?.bytes),
            (Source::Null(bytes) | Source::Memory(bytes) | Source::Faulty(bytes), None) => {
                Ok(*bytes)
            }
            (Source::File(_) | Source::Given(_), None) => Ok(0),
        }
    }

    /// The open file or block device; `None` if it has no name.
    #[must_use]
    pub const fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// Checks that its path still names the open file. A disk without a path passes.
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

    /// Returns whether this disk and another one are the same file, and locks keep them apart.
    #[must_use]
    pub fn excludes(&self, other: &Self) -> bool {
        let is_same = self.identity.is_some() && self.identity == other.identity;
        let has_lock = |disk: &Self| {
            let claim = disk.claim.lock().unwrap_or_else(PoisonError::into_inner);
            claim.is_some()
        };
        is_same && !(self.read_only && other.read_only) && has_lock(self) && has_lock(other)
    }

    /// Releases its lock. Handles stay open for as long as their workers have them.
    pub fn give_up(&self) {
        drop(
            self.claim
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
    }

    /// Opens it for a worker.
    ///
    /// # Errors
    /// [`DiskError::File`]: it cannot be opened once more.
    pub fn handle(&self) -> Result<Handle, DiskError> {
        let Some(file) = &self.file else {
            return Ok(Handle::Null);
        };
        let file = match &self.source {
            // The daemon may have no right to open it by itself.
            Source::Given(_) => copy(file)?,
            Source::File(_) | Source::Memory(_) | Source::Faulty(_) | Source::Null(_) => {
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

/// Opens an open file once more, whatever its path names now. Without the right to do so, it copies the descriptor.
fn again(file: &File, read_only: bool, flags: i32) -> Result<File, ReactorError> {
    anew(file, read_only, flags).or_else(|_| copy(file))
}

/// Opens a file that is open once more.
fn anew(file: &File, read_only: bool, flags: i32) -> std::io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_std().as_raw_fd());
    let mut options = OpenOptions::new();
    options.read(true).write(!read_only).custom_flags(flags);
    Ok(File::from_std(options.open(path)?, file.path()))
}

/// A file for a descriptor that was handed in, past the page cache where that can be had, and whether it is: opened
/// once more, since its flags are the open file's (open(2)), which other processes have, too. Without a right to open
/// it, the flag is set on the open file that was handed in; a look takes that for done, which fails for no block
/// device.
fn own(given: &File, read_only: bool, serves: bool) -> Result<(File, bool), ReactorError> {
    let kind = given.as_std().metadata().map(|there| there.file_type());
    // To open what is no disk may take for ever, as a pipe does without a writer.
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

/// Copies a descriptor. Flags and locks belong to the open file, which copies share.
fn copy(file: &File) -> Result<File, ReactorError> {
    match file.as_std().try_clone() {
        Ok(another) => Ok(File::from_std(another, file.path())),
        Err(source) => Err(ReactorError::Open {
            path: file.path().to_owned(),
            source,
        }),
    }
}

fn is_writable(file: &File) -> Result<bool, DiskError> {
    let flags = fcntl(file.as_std(), FcntlArg::F_GETFL).map_err(|error| DiskError::Given {
        name: file.path().display().to_string(),
        error: error.into(),
    })?;
    Ok(OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE == OFlag::O_RDWR)
}

/// Sets or clears O_DIRECT. Returns whether that succeeded.
fn set_direct(file: &File, direct: bool) -> bool {
    let flags = fcntl(file.as_std(), FcntlArg::F_GETFL).unwrap_or(0);
    let mut flags = OFlag::from_bits_retain(flags);
    flags.set(OFlag::O_DIRECT, direct);
    fcntl(file.as_std(), FcntlArg::F_SETFL(flags)).is_ok()
}

/// Returns memory as a file.
fn anonymous(bytes: u64) -> Result<File, DiskError> {
    let failed = |error: std::io::Error| DiskError::Memory { bytes, error };
    let made = memfd_create(c"nvmeof-disk", MFdFlags::MFD_CLOEXEC);
    let memory = made.map_err(|error| failed(error.into()))?;
    let file = std::fs::File::from(memory);
    file.set_len(bytes).map_err(failed)?;
    Ok(File::from_std(file, "memory"))
}
