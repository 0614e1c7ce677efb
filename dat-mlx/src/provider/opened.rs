//! Handles of an opened function, from which other threads create instances and read counters.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use hw_mlx::{MlxError, Opened};

use super::{MlxProvider, SharedProvider};

/// A handle of a function. The function is open as long as an instance of it exists.
#[derive(Clone)]
pub struct OpenedProvider {
    pub(super) function: Opened,
    pub(super) common: Weak<SharedProvider>,
    pub(super) asked: Arc<Mutex<()>>,
}

impl MlxProvider {
    /// Returns a handle of the function, from which any thread can create another instance.
    #[must_use]
    pub fn opened(&self) -> OpenedProvider {
        OpenedProvider {
            function: self.hca.opened(),
            common: Arc::downgrade(&self.common),
            asked: Arc::clone(&self.common.asked),
        }
    }
}

impl OpenedProvider {
    /// Creates another instance of the function, for another thread. `None`: the function is closed, or it was resumed
    /// and the resumption is not finished. An instance would send frames then, and collect events.
    ///
    /// # Errors
    /// As [`Opened::instance`].
    pub fn instance(&self) -> Result<Option<MlxProvider>, MlxError> {
        if self.is_resuming() {
            return Ok(None);
        }
        let Some(hca) = self.function.instance()? else {
            return Ok(None);
        };
        // The last instance to close drops `common` before it closes the function.
        let Some(common) = self.common.upgrade() else {
            // All other instances are closed, so this instance must close the function.
            if let Err(error) = hca.close() {
                tracing::warn!(%error, "closing");
            }
            return Ok(None);
        };
        MlxProvider::of(hca, common).map(Some)
    }

    /// Returns whether the function was resumed, and the resumption is not finished.
    fn is_resuming(&self) -> bool {
        // A closing instance drops the last reference under this lock.
        let _asking = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let common = self.common.upgrade();
        common.is_some_and(|common| common.is_resuming.load(Ordering::Acquire))
    }
}
