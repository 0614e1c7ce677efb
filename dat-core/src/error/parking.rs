//! Errors of state that is read in from a snapshot.

use super::range::first_out_of_range;
use crate::provider::Nanos;

/// Reason why state was not resumed from a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    /// The clock shows an earlier time than at the parking: it is another clock, or the system was started again.
    #[error("the clock shows {now} ns, and {parked_at} ns when the state was parked")]
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
}

impl ResumeError {
    /// Returns the error for impossible values.
    pub(crate) fn snapshot(table: impl ToString, what: impl Into<String>) -> Self {
        let (table, what) = (table.to_string(), what.into());
        Self::Snapshot { table, what }
    }

    /// Checks numbers: name, value, limit. The name of the table is made only for the error.
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
