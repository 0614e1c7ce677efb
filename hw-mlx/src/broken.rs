//! Slot queues that have failed. A queue that fails enters its name in a list of the function, because a function is
//! not parked before its queues are repaired.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Names of the slot queues of a function that have failed and were not repaired since.
#[derive(Clone, Debug, Default)]
pub(crate) struct BrokenQueues(Arc<Mutex<Vec<&'static str>>>);

impl BrokenQueues {
    fn names(&self) -> MutexGuard<'_, Vec<&'static str>> {
        // No change panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns one of the names; `None` if all queues work.
    pub(crate) fn first(&self) -> Option<&'static str> {
        self.names().first().copied()
    }
}

/// State of a slot queue: working or broken. The name of a broken queue is among the function's [`BrokenQueues`].
#[derive(Debug)]
pub(crate) struct Broken {
    is_broken: bool,
    name: &'static str,
    all: BrokenQueues,
}

impl Broken {
    /// Makes the state of a queue that works.
    pub(crate) const fn new(name: &'static str, all: BrokenQueues) -> Self {
        Self {
            is_broken: false,
            name,
            all,
        }
    }

    pub(crate) const fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Notes that the queue has failed, or that it works again.
    pub(crate) fn set(&mut self, is_broken: bool) {
        if self.is_broken == is_broken {
            return;
        }
        self.is_broken = is_broken;
        let mut names = self.all.names();
        if is_broken {
            names.push(self.name);
        } else if let Some(at) = names.iter().position(|name| *name == self.name) {
            names.swap_remove(at);
        }
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        self.set(false);
    }
}
