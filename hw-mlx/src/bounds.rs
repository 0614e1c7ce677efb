//! Bounds of numbers in snapshots.

/// Limit of a counter in a snapshot: more than any function counts, and a sum of some counters is far from overflow.
pub const MAX_COUNT: u64 = 1 << 56;
