//! What blocks lie on.
//!
//! A [`Disk`] is opened once for all workers and knows its size; each worker has a [`Handle`] of its own, so that
//! what an I/O counts and keeps is nobody else's. Files and block devices are read and written past the page cache
//! where they can be (O_DIRECT). A memory disk is a file without a name, so that everything that works on files works
//! on it; a faulty disk is one that fails as it is told ([`faults`]).

pub mod faults;

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::O_DIRECT;
use nix::sys::memfd::{MFdFlags, memfd_create};
use udapl::reactor::{File, HandedInError, ReactorError, handed_in};

use faults::Faults;

/// Sizes of blocks that there are, as powers of two: 512 and 4,096 bytes.
pub const SHIFTS: [u8; 2] = [9, 12];

/// What to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A regular file or a block device.
    File(PathBuf),
    /// A descriptor of this name that whoever started the process has opened for it (`LISTEN_FDS`).
    Given(String),
    /// So many bytes of memory, which end with the process.
    Memory(u64),
    /// So many bytes of memory that fail and wait as they are told: for tests.
    Faulty(u64),
    /// So many bytes that take what is written and read as what lies in the buffer: for measuring.
    Null(u64),
}

/// Why a disk is not to be had.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// It cannot be opened, or not looked at.
    #[error("{0}")]
    File(#[from] ReactorError),
    /// There is no memory for it.
    #[error("{bytes} bytes of memory for a disk: {error}")]
    Memory {
        /// How much.
        bytes: u64,
        /// The system's answer.
        error: std::io::Error,
    },
    /// It was not handed in.
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
    /// Blocks of this size cannot be had.
    #[error("{}: blocks of {asked} bytes on a disk whose own have {has}", path.display())]
    Blocks {
        /// The disk.
        path: PathBuf,
        /// Bytes of a block that were asked for.
        asked: u32,
        /// Bytes of a block that the disk has.
        has: u32,
    },
    /// It has not a single block.
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

/// A disk that is open.
#[derive(Debug)]
pub struct Disk {
    source: Source,
    shift: u8,
    read_only: bool,
    direct: bool,
    deallocates: bool,
    /// What the memory of a memory disk is.
    memory: Option<OwnedFd>,
    /// What goes wrong with a faulty one.
    faults: Option<Arc<Faults>>,
}

/// What a worker does I/O on.
#[derive(Clone, Debug)]
pub enum Handle {
    /// Through the worker's ring.
    File(File),
    /// Likewise, if it is not ordered otherwise.
    Faulty(File, Arc<Faults>),
    /// Nothing is done.
    Null,
}

impl Disk {
    /// Opens a disk with blocks of two to the `shift` bytes.
    ///
    /// # Errors
    /// [`DiskError`].
    pub fn open(source: Source, shift: u8, read_only: bool) -> Result<Self, DiskError> {
        let mut disk = Self {
            memory: None,
            faults: None,
            shift,
            read_only,
            direct: false,
            deallocates: true,
            source,
        };
        match &disk.source {
            Source::Null(_) => {}
            Source::Memory(bytes) => disk.memory = Some(anonymous(*bytes)?),
            Source::Faulty(bytes) => {
                disk.memory = Some(anonymous(*bytes)?);
                disk.faults = Some(Arc::default());
            }
            Source::File(_) | Source::Given(_) => {
                let (file, is_direct, path) = match &disk.source {
                    Source::Given(name) => {
                        let file = given(name)?;
                        // What was opened for reading alone is that.
                        disk.read_only |= !is_writable(&file, name)?;
                        let is_direct = set_direct(&file, true);
                        (file, is_direct, PathBuf::from(name))
                    }
                    Source::File(path) => {
                        let direct = open(path, read_only, O_DIRECT);
                        let (file, is_direct) = match direct {
                            Ok(file) => (file, true),
                            // File systems in memory have no way past the cache.
                            Err(ReactorError::Open { .. }) => (open(path, read_only, 0)?, false),
                            Err(other) => return Err(other.into()),
                        };
                        (file, is_direct, path.clone())
                    }
                    Source::Memory(_) | Source::Faulty(_) | Source::Null(_) => {
                        return Ok(disk);
                    }
                };
                let geometry = file.geometry()?;
                let least = if is_direct {
                    geometry.logical_block.max(geometry.offset_alignment)
                } else {
                    geometry.logical_block.min(1 << shift)
                };
                if least > 1 << shift {
                    if geometry.is_block_device {
                        return Err(DiskError::Blocks {
                            path,
                            asked: 1 << shift,
                            has: least,
                        });
                    }
                    // A file goes through the cache instead.
                    disk.direct = false;
                    set_direct(&file, false);
                } else {
                    disk.direct = is_direct;
                }
                disk.deallocates = geometry.deallocates;
            }
        }
        let blocks = disk.blocks()?;
        if blocks == 0 {
            return Err(DiskError::Empty {
                what: disk.name(),
                bytes: disk.bytes()?,
                block: 1 << shift,
            });
        }
        Ok(disk)
    }

    /// What it is called in messages.
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

    /// What was opened.
    #[must_use]
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// Bytes of a block, as a power of two.
    #[must_use]
    pub const fn shift(&self) -> u8 {
        self.shift
    }

    /// Nothing may be written.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Blocks can be given back.
    #[must_use]
    pub const fn deallocates(&self) -> bool {
        self.deallocates
    }

    /// There is something that Flush has to write.
    #[must_use]
    pub const fn has_cache(&self) -> bool {
        matches!(self.source, Source::File(_) | Source::Given(_))
    }

    /// What goes wrong with it; none: nothing can be ordered to.
    #[must_use]
    pub const fn faults(&self) -> Option<&Arc<Faults>> {
        self.faults.as_ref()
    }

    /// Whole blocks that it has now: a disk may be resized.
    ///
    /// # Errors
    /// [`DiskError::File`].
    pub fn blocks(&self) -> Result<u64, DiskError> {
        Ok(self.bytes()? >> self.shift)
    }

    fn bytes(&self) -> Result<u64, DiskError> {
        match (&self.source, self.handle()?) {
            (Source::Null(bytes), _) => Ok(*bytes),
            (_, Handle::File(file) | Handle::Faulty(file, _)) => Ok(file.geometry()?.bytes),
            (Source::Memory(bytes) | Source::Faulty(bytes), Handle::Null) => Ok(*bytes),
            (Source::File(_) | Source::Given(_), Handle::Null) => Ok(0),
        }
    }

    /// For a worker.
    ///
    /// # Errors
    /// [`DiskError::File`]: it cannot be opened once more.
    pub fn handle(&self) -> Result<Handle, DiskError> {
        let flags = if self.direct { O_DIRECT } else { 0 };
        match (&self.source, &self.memory) {
            (Source::File(path), _) => Ok(Handle::File(open(path, self.read_only, flags)?)),
            (Source::Given(name), _) => Ok(Handle::File(given(name)?)),
            (Source::Memory(_) | Source::Faulty(_), Some(memory)) => {
                let path = PathBuf::from(format!("/proc/self/fd/{}", memory.as_raw_fd()));
                let file = open(&path, self.read_only, 0)?;
                Ok(match &self.faults {
                    Some(faults) => Handle::Faulty(file, Arc::clone(faults)),
                    None => Handle::File(file),
                })
            }
            (Source::Memory(_) | Source::Faulty(_), None) | (Source::Null(_), _) => {
                Ok(Handle::Null)
            }
        }
    }
}

fn open(path: &Path, read_only: bool, flags: i32) -> Result<File, ReactorError> {
    let mut options = OpenOptions::new();
    options.read(true).write(!read_only).custom_flags(flags);
    File::open_with(&options, path)
}

/// A copy of a descriptor that was handed in: the same open file, so what one copy is, all are.
fn given(name: &str) -> Result<File, DiskError> {
    Ok(File::from_std(handed_in(name)?.into(), name))
}

fn is_writable(file: &File, name: &str) -> Result<bool, DiskError> {
    let flags = fcntl(file.as_std(), FcntlArg::F_GETFL).map_err(|error| DiskError::Given {
        name: name.to_owned(),
        error: error.into(),
    })?;
    Ok(OFlag::from_bits_retain(flags) & OFlag::O_ACCMODE == OFlag::O_RDWR)
}

/// Has it go past the page cache, or not. Whether that can be had.
fn set_direct(file: &File, direct: bool) -> bool {
    let flags = fcntl(file.as_std(), FcntlArg::F_GETFL).unwrap_or(0);
    let mut flags = OFlag::from_bits_retain(flags);
    flags.set(OFlag::O_DIRECT, direct);
    fcntl(file.as_std(), FcntlArg::F_SETFL(flags)).is_ok()
}

/// Memory that is a file.
fn anonymous(bytes: u64) -> Result<OwnedFd, DiskError> {
    let failed = |error: std::io::Error| DiskError::Memory { bytes, error };
    let made = memfd_create(c"nvmeof-disk", MFdFlags::MFD_CLOEXEC);
    let memory = made.map_err(|error| failed(error.into()))?;
    let file = std::fs::File::from(memory);
    file.set_len(bytes).map_err(failed)?;
    Ok(file.into())
}
