//! Reasons why a snapshot is refused.

use std::time::Duration;

use crate::address::{AddressError, Mac};

/// Reason why a snapshot was not resumed ([`Neighbours::resume`](crate::Neighbours::resume)).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    /// The snapshot is of an adapter with another MAC.
    #[error("parked with the MAC {parked:02x?}; the adapter has {ours:02x?}")]
    Mac {
        /// MAC of the snapshot.
        parked: Mac,
        /// MAC of the configuration.
        ours: Mac,
    },
    /// The time of the parking has not come yet: the clock has another origin.
    #[error("parked at {parked:?}; the time is {now:?}")]
    Clock {
        /// Time of the parking.
        parked: Duration,
        /// The current time.
        now: Duration,
    },
    /// An address, VLAN or MAC is not valid, an address of ours occurs twice, or there are too many of them.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A list is longer than the configuration allows.
    #[error("{have} {list}, and there is room for {most}")]
    TooMany {
        /// Name of the list.
        list: &'static str,
        /// Its length.
        have: usize,
        /// Maximum length.
        most: usize,
    },
    /// A list has an item twice.
    #[error("{item}: more than once")]
    Twice {
        /// The item.
        item: String,
    },
    /// A number is out of range.
    #[error("{item}: {number} {of}, not {least} to {most}")]
    Number {
        /// The item that has the number.
        item: String,
        /// Name of the things that are counted.
        of: &'static str,
        /// The number.
        number: u64,
        /// Smallest possible number.
        least: u64,
        /// Largest possible number.
        most: u64,
    },
    /// A time is later than it can be.
    #[error("{item}: {of} at {time:?}, later than {latest:?}")]
    Time {
        /// The item that has the time.
        item: String,
        /// Name of the event at that time.
        of: &'static str,
        /// The time.
        time: Duration,
        /// Latest possible time.
        latest: Duration,
    },
    /// Facts about an item contradict each other.
    #[error("{item}: {facts}")]
    Contradiction {
        /// The item.
        item: String,
        /// The facts.
        facts: String,
    },
}

impl ResumeError {
    /// Returns the error for facts that contradict each other.
    pub(crate) fn contradiction(item: impl Into<String>, facts: impl Into<String>) -> Self {
        Self::Contradiction {
            item: item.into(),
            facts: facts.into(),
        }
    }
}
