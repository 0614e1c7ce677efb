//! [`File`]: an open file with its name and its capabilities.

mod geometry;

use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use crate::error::ReactorError;
pub use geometry::Geometry;

/// An open file with its name, for errors. Clones share it.
#[derive(Clone, Debug)]
pub struct File {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: std::fs::File,
    path: PathBuf,
    /// Number of the file, in the order of opening.
    number: u32,
    is_block_device: bool,
    /// True if the file is writable and the file system punches holes; unset until a query has found out.
    makes_holes: OnceLock<bool>,
    /// True once an operation has shown that the file cannot be polled.
    is_not_polled: AtomicBool,
}

static OPENED: AtomicU32 = AtomicU32::new(0);

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// [`ReactorError::Open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReactorError> {
        Self::open_with(OpenOptions::new().read(true), path)
    }

    /// Opens a file with the given options.
    ///
    /// # Errors
    /// [`ReactorError::Open`].
    pub fn open_with(options: &OpenOptions, path: impl AsRef<Path>) -> Result<Self, ReactorError> {
        let path = path.as_ref();
        match options.open(path) {
            Ok(file) => Ok(Self::from_std(file, path)),
            Err(source) => Err(ReactorError::Open {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Takes a file that is open already; `path` is for errors only.
    pub fn from_std(file: std::fs::File, path: impl AsRef<Path>) -> Self {
        // The call does not fail for an open file. If it did, a later operation would report the problem.
        let kind = file.metadata().map(|metadata| metadata.file_type());
        let is_block_device = kind.is_ok_and(|kind| kind.is_block_device());
        Self {
            inner: Arc::new(Inner {
                file,
                path: path.as_ref().to_owned(),
                number: OPENED.fetch_add(1, Ordering::Relaxed),
                is_block_device,
                makes_holes: OnceLock::new(),
                is_not_polled: AtomicBool::new(false),
            }),
        }
    }

    /// Returns the file's name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Returns the file itself, for all uses except transfers.
    #[must_use]
    pub fn as_std(&self) -> &std::fs::File {
        &self.inner.file
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }

    /// Returns whether both are the same open file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the file's number. Numbers wrap at 2^32, so two open files have different numbers unless 2^32 files were
    /// opened in between.
    pub(crate) fn number(&self) -> u32 {
        self.inner.number
    }

    pub(crate) fn is_block_device(&self) -> bool {
        self.inner.is_block_device
    }

    /// Returns whether the file may be polled: true until an operation has shown that it cannot.
    pub(crate) fn may_be_polled(&self) -> bool {
        !self.inner.is_not_polled.load(Ordering::Relaxed)
    }

    /// Records that the file cannot be polled, and logs that once.
    pub(crate) fn cannot_be_polled(&self) {
        if !self.inner.is_not_polled.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{}: cannot be polled (it needs O_DIRECT and a device with queues for that): its transfers complete by interrupt",
                self.path().display()
            );
        }
    }
}
