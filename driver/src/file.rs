//! [`File`]: an open file that knows its name.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::ReactorError;

/// An open file with its name, for errors. Clones share it.
#[derive(Clone, Debug)]
pub struct File {
    inner: Arc<(std::fs::File, PathBuf)>,
}

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
        Self {
            inner: Arc::new((file, path.as_ref().to_owned())),
        }
    }

    /// Its name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.1
    }

    /// The file itself, for everything but transfers.
    #[must_use]
    pub fn as_std(&self) -> &std::fs::File {
        &self.inner.0
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.0.as_fd()
    }
}
