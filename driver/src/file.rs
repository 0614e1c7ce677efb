//! [`File`]: an open file that knows its name, and what it can do.

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
    /// Files are numbered in the order of their opening.
    number: u32,
    is_block_device: bool,
    /// Whether its file system makes holes, once that was asked.
    makes_holes: OnceLock<bool>,
    /// Whether a ring that polls has been told that it cannot be polled.
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

    /// Opens a file as the options say.
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
        // The call fails for no file that is open; what it then is an operation finds out.
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

    /// Its name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The file itself, for everything but transfers.
    #[must_use]
    pub fn as_std(&self) -> &std::fs::File {
        &self.inner.file
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }

    /// Whether it is the same open file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// A number that files opened near to it in time do not have.
    pub(crate) fn number(&self) -> u32 {
        self.inner.number
    }

    pub(crate) fn is_block_device(&self) -> bool {
        self.inner.is_block_device
    }

    /// Whether nothing has said that it cannot be polled.
    pub(crate) fn may_be_polled(&self) -> bool {
        !self.inner.is_not_polled.load(Ordering::Relaxed)
    }

    /// It cannot be polled, which is told once.
    pub(crate) fn cannot_be_polled(&self) {
        if !self.inner.is_not_polled.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{}: cannot be polled (it needs O_DIRECT and a device with queues for that): interrupts tell of its transfers",
                self.path().display()
            );
        }
    }
}
