//! Virtual time: nanoseconds since the start of the simulation.

use std::time::Duration;

/// Returns a duration in nanoseconds, or `u64::MAX` if it does not fit.
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
