//! Errors of state that is written out as a snapshot, and of state that is read in from one.

use super::range::first_out_of_range;
use crate::handle::{CnoHandle, EpHandle, EvdHandle, LmrHandle, SrqHandle};
use crate::provider::{Nanos, ProviderError};
use crate::table::TableError;

/// Limit of counters in a snapshot. No counter reaches it in practice, and no sum of counters overflows. `neighbour`
/// and `hw-mlx` have the same one.
pub(crate) const MOST_COUNTED: u64 = 1 << 56;
/// Limit of sums of bytes in a snapshot. At 100 Gb/s, [`MOST_COUNTED`] bytes take 67 days, and these take 11 years.
const MOST_BYTES: u64 = 1 << 62;

/// Reason why instances were not parked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParkError {
    /// No instance was given.
    #[error("no instance was given")]
    NoInstance,
    /// An instance of the adapter was not given. All of them are parked together.
    #[error(
        "the adapter has {count} instances, and {given} were given: give IA {missing}, too, or close it before the parking"
    )]
    Instances {
        /// Number of instances of the adapter.
        count: usize,
        /// Number of instances that were given.
        given: usize,
        /// Number of an instance that was not given, which is in its handles.
        missing: u32,
    },
    /// An instance is of another adapter than the first one.
    #[error("IA {number} is of another adapter ({other}) than IA {first} ({adapter})")]
    OtherAdapter {
        /// Number of the instance.
        number: u32,
        /// Name of its adapter.
        other: String,
        /// Number of the first instance.
        first: u32,
        /// Name of the adapter of the first instance.
        adapter: String,
    },
    /// The adapter has more instances than a snapshot may have.
    #[error("{count} instances were given; at most {most} are parked together")]
    TooManyInstances {
        /// Number of instances.
        count: usize,
        /// The limit.
        most: usize,
    },
    /// The device is dead.
    #[error("the device of {adapter} is dead")]
    Dead {
        /// Name of the adapter.
        adapter: String,
    },
    /// The system has requested the device's release.
    #[error("the system wants the device back: {adapter}")]
    Requested {
        /// Name of the adapter.
        adapter: String,
    },
    /// A thread waits on an EVD.
    #[error("a thread waits on {evd:?}")]
    EvdWaiter {
        /// The EVD.
        evd: EvdHandle,
    },
    /// A thread waits on a CNO.
    #[error("a thread waits on {cno:?}")]
    CnoWaiter {
        /// The CNO.
        cno: CnoHandle,
    },
    /// The completion queue of an EVD has overrun. No other process can go on with it.
    #[error("the completion queue of {evd:?} has overrun: free the EVD before the parking")]
    EvdOverran {
        /// The EVD.
        evd: EvdHandle,
    },
    /// The completion queue for the null EVDs of an endpoint has overrun. No other process can go on with it.
    #[error(
        "the completion queue of null EVDs of {ep:?} has overrun: free the endpoint before the parking"
    )]
    EpOverran {
        /// The endpoint.
        ep: EpHandle,
    },
    /// An SRQ is in error. No other process can go on with it.
    #[error("{srq:?} is in error: free it before the parking")]
    SrqError {
        /// The SRQ.
        srq: SrqHandle,
    },
    /// A CNO has an agent, which is a function of the program.
    #[error("{cno:?} has an agent: remove it before the parking, and set it again later")]
    Agent {
        /// The CNO.
        cno: CnoHandle,
    },
    /// The adapter has watchers, which are functions of the program and stay until the adapter is closed.
    #[error("the adapter has {count} watchers of events")]
    Watchers {
        /// Number of watchers.
        count: usize,
    },
    /// The recorder has a keeper, which is a function of the program.
    #[error("the recorder of IA {number} has a keeper: stop the recorder before the parking")]
    Keeper {
        /// Number of the instance.
        number: u32,
    },
    /// Another process cannot have the memory of a region.
    #[error("the memory of {lmr:?} cannot be parked: {error}")]
    Region {
        /// The region.
        lmr: LmrHandle,
        /// The provider's reason.
        #[source]
        error: ProviderError,
    },
    /// The program still has the memory of a region. The memory belongs to the next process after the parking, so the
    /// program drops its own clones first.
    #[error(
        "the program still has the memory of {lmr:?} (clones: {owners}): drop it before the parking"
    )]
    Memory {
        /// The region.
        lmr: LmrHandle,
        /// Number of the program's own clones, or parts, of the memory.
        owners: usize,
    },
    /// The tables of the instance contradict each other, so no process could resume it.
    #[error("the instance could not be resumed: {0}")]
    Tables(#[source] ResumeError),
    /// The provider cannot be parked.
    #[error("the provider cannot be parked: {0}")]
    Provider(#[source] ProviderError),
}

/// Reason why state was not resumed from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    /// The clock shows an earlier time than at the parking: it is another clock, or the system was started again.
    #[error("the clock shows {now} ns, and showed {parked_at} ns at the parking")]
    Clock {
        /// Time of the parking.
        parked_at: Nanos,
        /// Time now.
        now: Nanos,
    },
    /// A number of the snapshot is over its limit.
    #[error("snapshot of {table}: {name} is {value}, at most {limit} is possible")]
    OutOfRange {
        /// The table, or its entry, that the number is of.
        table: String,
        /// Name of the number in the snapshot.
        name: &'static str,
        /// The number.
        value: u64,
        /// Largest possible number.
        limit: u64,
    },
    /// Values of the snapshot contradict each other, or are impossible.
    #[error("snapshot of {table}: {what}")]
    Snapshot {
        /// The table, or its entry, that the values are of.
        table: String,
        /// The values.
        what: String,
    },
    /// The device's object, or its memory, is not as the snapshot says.
    #[error("snapshot of {table}: {error}")]
    Device {
        /// The object that the provider could not make again.
        table: String,
        /// The provider's reason.
        error: String,
    },
    /// The number in all handles of the parked IA is that of an IA of this process.
    #[error(
        "the parked IA has number {number}, which an IA of this process has: close that one first"
    )]
    Number {
        /// The number.
        number: u32,
    },
    /// The snapshot has several instances, and the call resumes one. They are resumed together.
    #[error("the snapshot has {count} instances: resume all of them together")]
    Instances {
        /// Number of instances.
        count: usize,
    },
}

impl ResumeError {
    /// Returns the error with the number of the instance whose tables it is about.
    pub(crate) fn of_instance(mut self, number: u32) -> Self {
        match &mut self {
            Self::OutOfRange { table, .. }
            | Self::Snapshot { table, .. }
            | Self::Device { table, .. } => table.insert_str(0, &format!("IA {number}: ")),
            Self::Clock { .. } | Self::Number { .. } | Self::Instances { .. } => {}
        }
        self
    }

    /// Returns the error for impossible values.
    pub(crate) fn snapshot(table: impl ToString, what: impl Into<String>) -> Self {
        let (table, what) = (table.to_string(), what.into());
        Self::Snapshot { table, what }
    }

    /// Returns the error for keys that are not those of a table.
    pub(crate) fn of_table<K: core::fmt::Debug>(table: &'static str, error: TableError<K>) -> Self {
        let what = match error {
            TableError::Index(key) => format!("{key:?} names no slot"),
            TableError::Repeated(key) => format!("the slot of {key:?} is there twice"),
        };
        Self::snapshot(table, what)
    }

    /// Returns the error for an object that the provider could not make again.
    pub(crate) fn device(table: impl ToString, error: &ProviderError) -> Self {
        let (table, error) = (table.to_string(), error.to_string());
        Self::Device { table, error }
    }

    /// Checks that counters can go on counting.
    pub(crate) fn check_counters<const N: usize>(
        table: impl ToString,
        counters: [(&'static str, u64); N],
    ) -> Result<(), Self> {
        let limited = counters.map(|(name, value)| (name, value, MOST_COUNTED));
        Self::check_range(table, limited)
    }

    /// Checks that sums of bytes can go on counting.
    pub(crate) fn check_bytes<const N: usize>(
        table: impl ToString,
        sums: [(&'static str, u64); N],
    ) -> Result<(), Self> {
        Self::check_range(table, sums.map(|(name, value)| (name, value, MOST_BYTES)))
    }

    /// Checks numbers: name, value, limit.
    pub(crate) fn check_range<const N: usize>(
        table: impl ToString,
        numbers: [(&'static str, u64, u64); N],
    ) -> Result<(), Self> {
        match first_out_of_range(numbers) {
            None => Ok(()),
            Some((name, value, limit)) => Err(Self::OutOfRange {
                table: table.to_string(),
                name,
                value,
                limit,
            }),
        }
    }
}
