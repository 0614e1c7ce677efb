//! Locks of blocks, for compare and write.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::model::Namespace;

/// A worker that has a command waiting for its own lock to take effect.
pub(crate) trait LockOwner: Debug + Send + Sync {
    /// Notifies the worker that no worker has a write at the block of command `io` any more.
    fn locked(&self, io: u32);
}

/// A locked block of a namespace. The lock takes effect when every worker has passed it, which means that the worker
/// has no write at the block.
#[derive(Debug)]
pub(crate) struct Lock {
    namespace: Arc<Namespace>,
    block: u64,
    /// Number of workers that have not passed the lock.
    busy: AtomicUsize,
    owner: Arc<dyn LockOwner>,
    io: u32,
}

impl Lock {
    /// Makes a lock that `workers` workers must pass before command `io` of `owner` continues.
    pub(crate) fn new(
        namespace: &Arc<Namespace>,
        block: u64,
        workers: usize,
        owner: Arc<dyn LockOwner>,
        io: u32,
    ) -> Self {
        Self {
            namespace: Arc::clone(namespace),
            block,
            busy: AtomicUsize::new(workers),
            owner,
            io,
        }
    }

    /// Records that one more worker has no write at the block. The last worker notifies the owner.
    pub(crate) fn pass(&self) {
        if self.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.owner.locked(self.io);
        }
    }

    /// Returns the namespace of the block.
    pub(crate) const fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    pub(crate) const fn block(&self) -> u64 {
        self.block
    }
}
