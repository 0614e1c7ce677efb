//! Virtual time: nanoseconds since the world began.

use std::time::Duration;

/// A duration in nanoseconds; the end of time if it does not fit.
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
