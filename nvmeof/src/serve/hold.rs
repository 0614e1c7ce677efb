//! Holds: while the target is held ([`super::Target::hold`]), workers finish the commands that they have begun, and
//! begin no others.
//!
//! ```text
//!   hold ---> Message::Hold ---> each worker: capsules that it dequeues are set aside, in order
//!                                             its commands end; events are not reported, deadlines not checked
//!                                             it is quiet, and says so ---> all are quiet: run_or_pause returns
//!   release -> Message::Hold --> each worker begins the capsules that it set aside, and then takes up others
//! ```
//!
//! A worker that is quiet stays quiet until the release, because nothing but a capsule begins a command. It may have to
//! pass the locks of others and to look for the commands of their Aborts before, so workers pause only when all are
//! quiet.

use std::collections::{BTreeMap, BTreeSet};

use udapl::EpHandle;

use crate::io::Disks;
use crate::model::WorkerId;

/// A receive that has completed and whose command has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrived {
    /// Index of the command slot.
    pub at: u32,
    pub ep: EpHandle,
    /// Length of the capsule; `None` if the receive failed.
    pub bytes: Option<u32>,
}

/// A worker's pause.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// The receives that have completed since the hold began, oldest first.
    arrived: Vec<Arrived>,
    /// Number of them of each endpoint, by the number in its handle. A connection could otherwise take the receives of
    /// all during a long hold.
    counts: BTreeMap<u64, u32>,
}

impl Pause {
    /// Returns the pause of a worker that was parked with these receives.
    pub fn of(arrived: Vec<Arrived>) -> Self {
        let mut pause = Self::default();
        arrived.into_iter().for_each(|one| pause.add(one));
        pause
    }

    /// Adds a receive.
    pub fn add(&mut self, arrived: Arrived) {
        let (ep, _) = arrived.ep.to_raw();
        *self.counts.entry(ep).or_default() += 1;
        self.arrived.push(arrived);
    }

    /// Returns the number of receives of a connection.
    pub fn count(&self, ep: EpHandle) -> u32 {
        self.counts.get(&ep.to_raw().0).copied().unwrap_or(0)
    }

    /// Removes the receives of a connection, and returns them.
    pub fn remove(&mut self, ep: EpHandle) -> Vec<Arrived> {
        self.counts.remove(&ep.to_raw().0);
        self.arrived.extract_if(.., |one| one.ep == ep).collect()
    }

    /// Returns the receives, oldest first.
    pub fn arrived(&self) -> &[Arrived] {
        &self.arrived
    }
}

/// The hold of a target.
#[derive(Debug, Default)]
pub(super) struct Hold {
    pub is_on: bool,
    /// Workers that are quiet.
    pub quiet: BTreeSet<WorkerId>,
    /// Workers that were parked, and not resumed since. Their inboxes stay open.
    pub parked: BTreeSet<WorkerId>,
    /// Disks of workers that were parked in this process. A worker that is resumed here needs no new ring, which the
    /// limit of locked memory could forbid: the kernel returns the memory of a closed ring some time later.
    pub disks: BTreeMap<WorkerId, Disks>,
}

impl Hold {
    /// Returns whether a worker is quiet or parked.
    pub fn has(&self, worker: WorkerId) -> bool {
        self.quiet.contains(&worker) || self.parked.contains(&worker)
    }
}
