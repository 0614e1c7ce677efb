//! Locks of blocks, for compare and write.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::model::Namespace;

/// A worker whose command waits for a lock.
pub(crate) trait LockOwner: Debug + Send + Sync {
    /// No worker has a write at the block of command `io` any more.
    fn locked(&self, io: u32);
}

/// A locked block of a namespace. It takes effect once each worker has passed it: none of them has a write at the block
/// then.
#[derive(Debug)]
pub(crate) struct Lock {
    namespace: Arc<Namespace>,
    block: u64,
    /// Workers that have not passed.
    busy: AtomicUsize,
    owner: Arc<dyn LockOwner>,
    io: u32,
}

impl Lock {
    /// A lock that `workers` workers have to pass before command `io` of `owner` goes on.
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

    /// A worker has no write at the block. The last one to pass lets the owner go on.
    pub(crate) fn pass(&self) {
        if self.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.owner.locked(self.io);
        }
    }

    /// The namespace of the block.
    pub(crate) const fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    pub(crate) const fn block(&self) -> u64 {
        self.block
    }
}
