//! Errors of a function that is parked or resumed.

use std::time::Duration;

use driver::{ArenaError, ClaimError, NamedFd};
use thiserror::Error;

use super::{DeadCause, MlxError};

/// Reason why a function was not parked.
#[derive(Debug, Error)]
pub enum ParkError {
    /// Not all instances of the function were given.
    #[error(
        "the function has {count} instances, and {given} were given; it is parked with all of them"
    )]
    Instances {
        /// Number of instances of the function.
        count: usize,
        /// Number of instances that were given.
        given: usize,
    },
    /// The list of instances is empty.
    #[error("no instance was given")]
    NoInstance,
    /// An instance in the list is one of another function.
    #[error("an instance of {other} is among those of {function}")]
    OtherFunction {
        /// Name of the function of the first instance in the list.
        function: String,
        /// Name of the other function.
        other: String,
    },
    /// The device is dead.
    #[error("the device is dead: {0}")]
    Dead(DeadCause),
    /// The last instance was retired, because it is about to close the function.
    #[error("the function is being closed")]
    Closed,
    /// The system has requested the function back.
    #[error("the system wants the function back")]
    Requested,
    /// The device may be dead, and has not yet answered the command that is to find out.
    #[error("the device may be dead; it has not answered yet")]
    Doubtful,
    /// The commands of an instance have a common time limit.
    #[error("the commands of an instance have a common time limit")]
    Limited,
    /// The function was resumed, and the resumption is not finished.
    #[error("the function was resumed, and the resumption is not finished")]
    Unfinished,
    /// Command slots are in use.
    #[error(
        "command slots in use: {posted} posted, {done} with an answer that was not taken, {quarantined} quarantined"
    )]
    Commands {
        /// Number of commands that the device has.
        posted: usize,
        /// Number of answers that their owners have not taken.
        done: usize,
        /// Number of commands that were given up, and that the device still has.
        quarantined: usize,
    },
    /// The firmware did not finish its requests for pages.
    #[error("page requests of the firmware take longer than {waited_ms} ms")]
    PageRequests {
        /// Milliseconds waited.
        waited_ms: u64,
    },
    /// The device may still write rings that are no longer read.
    #[error("the device may still write {count} rings of event queues that were not created")]
    OrphanedRings {
        /// Number of rings.
        count: usize,
    },
    /// Commands of threads without an instance, such as readers of counters, are not over, or such threads hold the
    /// tables.
    #[error(
        "{count} threads without an instance have used the function for longer than {waited_ms} ms"
    )]
    Readers {
        /// Number of commands, or of references to the tables.
        count: usize,
        /// Milliseconds waited.
        waited_ms: u64,
    },
    /// There are objects that cannot be parked, such as those of XRC.
    #[error("there are objects that cannot be parked: {}", list(objects))]
    Objects {
        /// Kinds and numbers of the objects.
        objects: Vec<(&'static str, i64)>,
    },
    /// The function has more instances than it is parked with. Ended ones whose doorbell pages no other instance has
    /// taken over count, too.
    #[error(
        "the function has {count} instances, and the doorbell pages of {ended} ended ones; it is parked with at most {most} in all"
    )]
    TooManyInstances {
        /// Number of instances.
        count: usize,
        /// Number of ended instances.
        ended: usize,
        /// Maximum number of both together.
        most: usize,
    },
    /// A time limit of the function's configuration is longer or shorter than a snapshot may have it.
    #[error(
        "a time limit of {limit:?} is configured; a function is parked with {least:?} to {most:?}"
    )]
    TimeLimit {
        /// The limit.
        limit: Duration,
        /// Shortest limit.
        least: Duration,
        /// Longest limit.
        most: Duration,
    },
    /// Queues have failed, and were not repaired since. The caller repairs them before it parks the function. An
    /// Ethernet port that was given up ([`Ethernet::is_given_up`](crate::ethernet::Ethernet::is_given_up)) cannot be
    /// repaired. The caller destroys it before it parks the function.
    #[error("{queue} has failed, and was not repaired since")]
    Broken {
        /// Name of the queues.
        queue: &'static str,
    },
    /// Memory of the function is in use outside of the driver.
    #[error("{count} buffers of the function's memory are in use")]
    MemoryInUse {
        /// Number of buffers.
        count: usize,
    },
    /// The arena keeps memory that the device may still use.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The function itself cannot be parked.
    #[error(transparent)]
    Function(#[from] driver::ParkError),
}

/// Returns kinds and numbers of objects as text.
fn list(objects: &[(&'static str, i64)]) -> String {
    let all = objects
        .iter()
        .map(|(kind, count)| format!("{kind} {count}"));
    all.collect::<Vec<_>>().join(", ")
}

/// Reason why a function or one of its objects was not resumed.
#[derive(Debug, Error)]
pub enum ResumeError {
    /// The function itself was not resumed.
    #[error(transparent)]
    Function(#[from] driver::ResumeError),
    /// Numbers of the snapshot contradict each other, or are impossible.
    #[error("snapshot of {table}: {what}")]
    Snapshot {
        /// The table that the numbers are of.
        table: &'static str,
        /// The numbers.
        what: String,
    },
    /// Memory of the snapshot is not memory that the function has.
    #[error("memory of {table}: {error}")]
    Claim {
        /// The table that lies in the memory.
        table: &'static str,
        /// The reason.
        #[source]
        error: ClaimError,
    },
    /// The device is in another state than the snapshot says.
    #[error("the device is not as it was: {what}")]
    Changed {
        /// The difference.
        what: String,
    },
    /// Objects that use memory exist in the device and were not resumed.
    #[error("objects that were not resumed: {}", list(objects))]
    Missing {
        /// Kinds and numbers of the objects. A number is negative if more objects of the kind were resumed than the
        /// function's snapshot has.
        objects: Vec<(&'static str, i64)>,
    },
    /// An operation on the function failed.
    #[error(transparent)]
    Device(#[from] MlxError),
}

impl ResumeError {
    /// Returns the error for impossible numbers.
    #[must_use]
    pub fn snapshot(table: &'static str, what: impl Into<String>) -> Self {
        let what = what.into();
        Self::Snapshot { table, what }
    }

    /// Returns the error for a device in another state.
    #[must_use]
    pub fn changed(what: impl Into<String>) -> Self {
        Self::Changed { what: what.into() }
    }

    /// Returns a function that makes the error for memory that cannot be claimed.
    pub(crate) fn of_memory(table: &'static str) -> impl Fn(ClaimError) -> Self {
        move |error| Self::Claim { table, error }
    }
}

/// Compares an object with the device's; if they differ, asks once more. A card may write the context of a busy object
/// back late, and the first query makes it do so.
pub(crate) fn ask_twice(
    mut compare: impl FnMut() -> Result<(), ResumeError>,
) -> Result<(), ResumeError> {
    match compare() {
        Err(ResumeError::Changed { what }) => {
            tracing::debug!(what, "the device is asked again");
            compare()
        }
        outcome => outcome,
    }
}

/// A function that was not resumed.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct NotResumed {
    /// The descriptors, or duplicates of them, by the names of the snapshot. When the last duplicate is closed, the
    /// function is reset. Empty if the system had no descriptors left in the end; the function was then closed.
    pub descriptors: Vec<NamedFd>,
    /// True if the device got a command. All such commands only ask. If they were answered, or if there was none, the
    /// function goes on as it was parked, with all its events, and the process that parked it can resume it. Each such
    /// attempt takes room in the event queue for commands. After about ten with one instance, and two with sixty, all
    /// are refused before the first command.
    pub touched: bool,
    /// The reason.
    #[source]
    pub error: ResumeError,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(mut answers: Vec<Result<(), ResumeError>>) -> (bool, usize) {
        let all = answers.len();
        let is_right = ask_twice(|| answers.remove(0)).is_ok();
        (is_right, all - answers.len())
    }

    /// A card may write the state of a working object back only when it is asked.
    #[test]
    fn a_difference_is_believed_when_it_is_there_twice() {
        let changed = || Err(ResumeError::changed("a counter"));
        assert_eq!(answers(vec![Ok(()), changed()]), (true, 1));
        assert_eq!(answers(vec![changed(), Ok(()), changed()]), (true, 2));
        assert_eq!(answers(vec![changed(), changed(), Ok(())]), (false, 2));
    }

    #[test]
    fn a_question_that_fails_is_not_asked_again() {
        let failed = || Err(ResumeError::snapshot("a queue", "a number"));
        assert_eq!(answers(vec![failed(), Ok(())]), (false, 1));
    }
}
