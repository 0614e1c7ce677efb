//! The search of all workers for a command that a host aborts.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A worker that has an Abort.
pub(super) trait SearchOwner: Debug + Send + Sync {
    /// Notifies the worker that all workers have looked for the command of the Abort `io`.
    fn searched(&self, io: u32, was_found: bool);
}

/// The search for a command that is to be aborted.
#[derive(Debug)]
pub(super) struct Search {
    pub controller: u16,
    /// Number of the command's queue, and identifier of the command.
    pub queue: u16,
    pub cid: u16,
    /// Number of workers that have not looked.
    left: AtomicUsize,
    was_found: AtomicBool,
    /// Worker that has the Abort, and index of the Abort there.
    owner: Arc<dyn SearchOwner>,
    io: u32,
}

impl Search {
    /// Makes a search by `workers` workers for a command of a controller's queue. The Abort is command `io` of `owner`.
    pub(super) fn new(
        (controller, queue, cid): (u16, u16, u16),
        workers: usize,
        (owner, io): (Arc<dyn SearchOwner>, u32),
    ) -> Self {
        Self {
            controller,
            queue,
            cid,
            left: AtomicUsize::new(workers),
            was_found: AtomicBool::new(false),
            owner,
            io,
        }
    }

    /// Records that one more worker has looked. The last one notifies the worker that has the Abort.
    pub(super) fn pass(&self, was_found: bool) {
        self.was_found.fetch_or(was_found, Ordering::Relaxed);
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let was_found = self.was_found.load(Ordering::Relaxed);
            self.owner.searched(self.io, was_found);
        }
    }
}
