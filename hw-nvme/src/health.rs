//! State that a controller and its queues share: whether it has ended, and why.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Cause;

/// State that a controller and its queues share.
#[derive(Debug, Default)]
pub(crate) struct Health {
    cause: OnceLock<Cause>,
    /// True if the controller reaches no memory any more.
    is_stopped: AtomicBool,
}

impl Health {
    /// Returns the cause, if the controller has ended.
    #[inline]
    pub(crate) fn cause(&self) -> Option<Cause> {
        self.cause.get().copied()
    }

    /// Ends the controller. Returns the first cause.
    #[cold]
    pub(crate) fn end(&self, cause: Cause) -> Cause {
        *self.cause.get_or_init(|| cause)
    }

    /// Returns whether the controller reaches no memory any more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Notes that the controller reaches no memory any more.
    pub(crate) fn set_stopped(&self) {
        self.is_stopped.store(true, Ordering::Release);
    }
}
