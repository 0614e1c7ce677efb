//! Locks: a command waits until no worker has certain other commands at a disk.
//!
//! A lock of a block is for compare and write, and delays writes at the block until it is unlocked. A lock of hosts is
//! for Preempt and Abort, and delays nothing: the hosts' new commands are checked against the changed reservation.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::model::{HostId, Namespace};

/// A worker that has a command waiting for its own lock to take effect.
pub(crate) trait LockOwner: Debug + Send + Sync {
    /// Notifies the worker that no worker has a command at a disk any more that the lock of command `io` waits for.
    fn locked(&self, io: u32);
}

/// Commands of a namespace that a lock waits for.
#[derive(Debug)]
pub(crate) enum Scope {
    /// Writes at a block.
    Block(u64),
    /// Commands of hosts with these identifiers.
    Hosts(Vec<HostId>),
}

/// A lock of a namespace. The lock takes effect when every worker has passed it, which means that the worker has no
/// command of the lock's scope at a disk.
#[derive(Debug)]
pub(crate) struct Lock {
    namespace: Arc<Namespace>,
    scope: Scope,
    /// Number of workers that have not passed the lock.
    busy: AtomicUsize,
    owner: Arc<dyn LockOwner>,
    io: u32,
    /// True if a command of the lock's scope may be at a disk for ever.
    has_failed: AtomicBool,
}

impl Lock {
    /// Makes a lock that `workers` workers must pass before command `io` of `owner` continues. It has failed from the
    /// start if an ended worker has abandoned commands of the namespace.
    pub(crate) fn new(
        namespace: &Arc<Namespace>,
        scope: Scope,
        workers: usize,
        owner: Arc<dyn LockOwner>,
        io: u32,
    ) -> Self {
        Self {
            namespace: Arc::clone(namespace),
            scope,
            busy: AtomicUsize::new(workers),
            owner,
            io,
            has_failed: AtomicBool::new(namespace.is_abandoned()),
        }
    }

    /// Records that the caller's commands may be at the disk for ever. The caller passes the lock afterwards.
    pub(crate) fn fail(&self) {
        self.has_failed.store(true, Ordering::Release);
    }

    /// Returns whether a command of the lock's scope may be at a disk for ever.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Records that one more worker has passed the lock. The last worker notifies the owner.
    pub(crate) fn pass(&self) {
        if self.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.owner.locked(self.io);
        }
    }

    /// Returns the namespace of the lock.
    pub(crate) const fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    pub(crate) const fn scope(&self) -> &Scope {
        &self.scope
    }
}

/// A lock that a worker has not passed, with the worker's commands that it waits for. Commands that begin later are not
/// among them: those at a locked block wait, and those of preempted hosts are under the new reservation.
#[derive(Debug)]
pub(crate) struct Fence {
    pub lock: Arc<Lock>,
    /// Indices of the commands.
    pub busy: Vec<u32>,
}
