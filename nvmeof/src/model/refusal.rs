//! Reasons why a model is not parked, or not resumed.

/// Limit of counters in a snapshot. No counter reaches it in practice.
pub(super) const MOST_COUNTED: u64 = 1 << 56;

/// Reason why a model was not parked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelParkError {
    /// Messages to workers were not taken ([`Model::take_notices`](super::Model::take_notices)).
    #[error("{count} messages to workers were not taken")]
    Notices {
        /// Number of the messages.
        count: usize,
    },
    /// Removed namespaces were not taken ([`Model::take_removed`](super::Model::take_removed)).
    #[error("{count} removed namespaces were not taken")]
    Removed {
        /// Number of the namespaces.
        count: usize,
    },
    /// A step of an authentication is computed.
    #[error("a message of authentication of queue {queue} of controller {controller} is computed")]
    Authentication {
        /// Number of the controller.
        controller: u16,
        /// Number of the queue.
        queue: u16,
    },
    /// A pair of commands has locked blocks.
    #[error("a compare and write of namespace {nsid} of {subsystem} is under way")]
    Locked {
        /// Name of the subsystem.
        subsystem: String,
        /// Number of the namespace.
        nsid: u32,
    },
}

/// Reason why a model was not resumed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModelResumeError {
    /// The model has or had connections.
    #[error("the model has had {connections} connections: a new one is resumed")]
    Used {
        /// Number of the connections.
        connections: u64,
    },
    /// A subsystem, a namespace or a port is not as at the parking, or a host may not connect any more.
    #[error("{of}: {what}")]
    Configuration {
        /// The object.
        of: String,
        /// The difference.
        what: String,
    },
    /// A number of the snapshot is over its limit.
    #[error("snapshot of {of}: {name} is {value}, at most {limit} is possible")]
    OutOfRange {
        /// The object that the number is of.
        of: String,
        /// Name of the number in the snapshot.
        name: &'static str,
        /// The number.
        value: u64,
        /// Largest possible number.
        limit: u64,
    },
    /// Values of the snapshot contradict each other, or are impossible.
    #[error("snapshot of {of}: {what}")]
    Snapshot {
        /// The object that the values are of.
        of: String,
        /// The values.
        what: String,
    },
}

impl ModelResumeError {
    /// Returns the error for an object that is not as at the parking.
    pub(super) fn configuration(of: impl ToString, what: impl Into<String>) -> Self {
        let (of, what) = (of.to_string(), what.into());
        Self::Configuration { of, what }
    }

    /// Returns the error for impossible values.
    pub(super) fn snapshot(of: impl ToString, what: impl Into<String>) -> Self {
        let (of, what) = (of.to_string(), what.into());
        Self::Snapshot { of, what }
    }

    /// Checks numbers: name, value, limit.
    pub(super) fn check_range<const N: usize>(
        of: impl ToString,
        numbers: [(&'static str, u64, u64); N],
    ) -> Result<(), Self> {
        let mut numbers = numbers.into_iter();
        match numbers.find(|(_, value, limit)| value > limit) {
            None => Ok(()),
            Some((name, value, limit)) => Err(Self::OutOfRange {
                of: of.to_string(),
                name,
                value,
                limit,
            }),
        }
    }

    /// Returns an error unless a condition is fulfilled. `what` describes the impossible values.
    pub(super) fn check(
        is_possible: bool,
        of: impl ToString,
        what: impl Into<String>,
    ) -> Result<(), Self> {
        if is_possible {
            Ok(())
        } else {
            Err(Self::snapshot(of, what))
        }
    }
}
